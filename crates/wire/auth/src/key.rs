//! Secret keys, and Ceph's way to encrypt with them.

use aes::Aes128;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use cbc::cipher::{
    BlockModeDecrypt, BlockModeEncrypt, KeyIvInit, block_padding::NoPadding, block_padding::Pkcs7,
};
use denc::{BufMut, Decode, DecodeError, Encode, Features, Reader};
use hmac::{Hmac, KeyInit, Mac};
use rand::CryptoRng;
use sha2::Sha256;
use std::fmt;
use types::Utime;

/// The only initialisation vector that cephx knows (`CEPH_AES_IV`, `src/auth/Crypto.h`). Every
/// sealed value starts with the same 9 bytes, so equal values under one key give equal ciphertexts;
/// that is the protocol's property, not a choice made here.
const IV: &[u8; 16] = b"cephsageyudagreg";
const AES_KEY_LEN: usize = 16;
const BLOCK: usize = 16;

/// First bytes of every sealed value (`AUTH_ENC_MAGIC`, `src/auth/cephx/CephxProtocol.h`).
const ENC_MAGIC: u64 = 0xff00_9cad_8826_aa55;

/// What kind of cipher a key is for (`CEPH_CRYPTO_*`, `src/include/ceph_fs.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u16)]
pub enum KeyKind {
    /// No key at all: the type of an empty secret.
    #[default]
    None = 0,
    /// AES-128 in CBC mode.
    Aes = 1,
    /// AES-256 as of release 20 (`CEPH_CRYPTO_AES256KRB5`). Recognised so that it can be refused by
    /// name; its cipher is not implemented.
    Aes256k = 2,
}

/// A key that cannot be used, or a value that a key does not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A key type that this release does not implement.
    #[error("unsupported key type {0}")]
    UnsupportedKind(u16),
    /// The secret is missing or shorter than its cipher needs.
    #[error("the key is empty or too short")]
    TooShort,
    /// Not base64, or not a key inside.
    #[error("not a base64 encoded key")]
    Malformed,
    /// The ciphertext was not made with this key, or was changed. Deliberately says no more.
    #[error("the value does not decrypt with this key")]
    Sealed,
}

/// A secret key: `CryptoKey`, `src/auth/Crypto.h` (plain: type, creation `u16` length, bytes).
#[derive(Clone, PartialEq, Eq)]
pub struct CryptoKey {
    kind: KeyKind,
    created: Utime,
    secret: Bytes,
}

impl Default for CryptoKey {
    fn default() -> Self {
        CryptoKey { kind: KeyKind::None, created: Utime::ZERO, secret: Bytes::new() }
    }
}

impl CryptoKey {
    /// A fresh AES key.
    pub fn generate(now: Utime, rng: &mut dyn CryptoRng) -> Self {
        let mut secret = [0; AES_KEY_LEN];
        rng.fill_bytes(&mut secret);
        CryptoKey { kind: KeyKind::Aes, created: now, secret: Bytes::copy_from_slice(&secret) }
    }

    /// An AES key of the given bytes (at least 16).
    pub fn from_secret(created: Utime, secret: Bytes) -> Result<Self, KeyError> {
        if secret.len() < AES_KEY_LEN {
            return Err(KeyError::TooShort);
        }
        Ok(CryptoKey { kind: KeyKind::Aes, created, secret })
    }

    /// Whether there is no secret. Such a key seals and opens nothing.
    pub fn is_empty(&self) -> bool {
        self.secret.is_empty()
    }

    /// The cipher that the key is for.
    pub fn kind(&self) -> KeyKind {
        self.kind
    }

    /// When the key was made.
    pub fn created(&self) -> Utime {
        self.created
    }

    /// The secret bytes.
    pub fn secret(&self) -> &Bytes {
        &self.secret
    }

    /// The form in keyrings and on command lines.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.to_bytes(Features::ALL))
    }

    /// Reads the form of [`Self::to_base64`]. White space around it is ignored.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        let raw = BASE64.decode(text.trim()).map_err(|_| KeyError::Malformed)?;
        if let Some(kind) = raw.first_chunk::<2>().map(|b| u16::from_le_bytes(*b))
            && kind > KeyKind::Aes as u16
        {
            return Err(KeyError::UnsupportedKind(kind));
        }
        CryptoKey::from_bytes(&raw.into()).map_err(|_| KeyError::Malformed)
    }

    fn aes(&self) -> Result<&[u8; AES_KEY_LEN], KeyError> {
        match self.kind {
            KeyKind::Aes => self.secret.first_chunk().ok_or(KeyError::TooShort),
            KeyKind::None => Err(KeyError::TooShort),
            KeyKind::Aes256k => Err(KeyError::UnsupportedKind(self.kind as u16)),
        }
    }

    /// AES-128-CBC with the fixed vector and PKCS#7 padding.
    pub fn encrypt(&self, plain: &[u8]) -> Result<Bytes, KeyError> {
        let key = self.aes()?;
        let cipher = cbc::Encryptor::<Aes128>::new(key.into(), IV.into());
        Ok(cipher.encrypt_padded_vec::<Pkcs7>(plain).into())
    }

    /// The reverse of [`Self::encrypt`]. As in Ceph the padding is cut off but not verified:
    /// whether it was well formed must not be observable.
    pub fn decrypt(&self, sealed: &[u8]) -> Result<Bytes, KeyError> {
        let key = self.aes()?;
        if sealed.len() < BLOCK || !sealed.len().is_multiple_of(BLOCK) {
            return Err(KeyError::Sealed);
        }
        let cipher = cbc::Decryptor::<Aes128>::new(key.into(), IV.into());
        let mut plain =
            cipher.decrypt_padded_vec::<NoPadding>(sealed).map_err(|_| KeyError::Sealed)?;
        let pad = plain.last().map_or(0, |b| usize::from(*b).min(BLOCK));
        plain.truncate(plain.len() - pad);
        Ok(plain.into())
    }

    /// HMAC-SHA256 over `data`; all zero for an empty key, as the protocol wants it.
    pub fn hmac_sha256(&self, data: &[u8]) -> [u8; 32] {
        if self.secret.is_empty() {
            return [0; 32];
        }
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length");
        mac.update(data);
        mac.finalize().into_bytes().into()
    }
}

/// The secret stays out of logs.
impl fmt::Debug for CryptoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CryptoKey({:?}, {} bytes)", self.kind, self.secret.len())
    }
}

impl Encode for CryptoKey {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u16_le(self.kind as u16);
        self.created.encode(out, f);
        out.put_u16_le(u16::try_from(self.secret.len()).expect("a secret is under 64 KiB"));
        out.put_slice(&self.secret);
    }
}

impl Decode for CryptoKey {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let kind: u16 = r.get()?;
        let created = r.get()?;
        let len: u16 = r.get()?;
        let secret = r.bytes("CryptoKey secret", len.into())?;
        let invalid = |found| DecodeError::Invalid { what: "CryptoKey", found };
        if secret.is_empty() {
            return Ok(CryptoKey { kind: KeyKind::None, created, secret });
        }
        match kind {
            1 if secret.len() >= AES_KEY_LEN => {
                // A copy: the key outlives the message that it came in.
                let secret = Bytes::copy_from_slice(&secret);
                Ok(CryptoKey { kind: KeyKind::Aes, created, secret })
            }
            1 => Err(invalid(len.into())),
            other => Err(invalid(other.into())),
        }
    }
}

/// Encrypts a value in the envelope that every encrypted cephx field has: version, magic, value
/// (`encode_encrypt_enc_bl`). The caller writes the result as a byte string where the protocol
/// wants its length in front (`encode_encrypt`).
pub fn seal<T: Encode>(key: &CryptoKey, value: &T) -> Result<Bytes, KeyError> {
    let mut plain = BytesMut::new();
    plain.put_u8(1);
    plain.put_u64_le(ENC_MAGIC);
    value.encode(&mut plain, Features::ALL);
    key.encrypt(&plain)
}

/// Opens what [`seal`] made.
pub fn unseal<T: Decode>(key: &CryptoKey, sealed: &[u8]) -> Result<T, KeyError> {
    let mut r = Reader::new(key.decrypt(sealed)?);
    let (_struct_v, magic) = <(u8, u64)>::decode(&mut r).map_err(|_| KeyError::Sealed)?;
    if magic != ENC_MAGIC {
        return Err(KeyError::Sealed);
    }
    T::decode(&mut r).map_err(|_| KeyError::Sealed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADMIN: &str = "AQAAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA==";

    #[test]
    fn base64_is_the_encoded_struct() {
        let key = CryptoKey::from_secret(
            Utime::ZERO,
            Bytes::from_static(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
        )
        .unwrap();
        assert_eq!(key.to_base64(), ADMIN);
        assert_eq!(CryptoKey::from_base64(ADMIN), Ok(key));
        assert_eq!(
            CryptoKey::from_base64("AgAAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA=="),
            Err(KeyError::UnsupportedKind(2))
        );
        assert_eq!(CryptoKey::from_base64("AQAAAAAAAAAAABAAAQID"), Err(KeyError::Malformed));
        assert_eq!(CryptoKey::from_base64("?"), Err(KeyError::Malformed));
    }

    #[test]
    fn sealing_needs_the_same_key() {
        let key = CryptoKey::from_base64(ADMIN).unwrap();
        let other = CryptoKey::from_secret(Utime::ZERO, Bytes::from_static(&[9; 16])).unwrap();
        let sealed = seal(&key, &77u64).unwrap();
        assert_eq!(sealed.len(), 32);
        assert_eq!(unseal::<u64>(&key, &sealed), Ok(77));
        assert_eq!(unseal::<u64>(&other, &sealed), Err(KeyError::Sealed));
        assert_eq!(unseal::<u64>(&key, &sealed[..31]), Err(KeyError::Sealed));
        assert_eq!(seal(&CryptoKey::default(), &1u8), Err(KeyError::TooShort));
    }
}
