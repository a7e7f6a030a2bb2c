//! TLS: certificates that can be read anew while the gateway serves, and handshakes within bounds.

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Why certificates cannot be used.
#[derive(Debug)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

/// A chain of certificates and its key, out of two files. Cheap to clone; all clones have the same.
#[derive(Clone)]
pub struct Certificates(Arc<Files>);

struct Files {
    chain: PathBuf,
    key: PathBuf,
    used: RwLock<Used>,
}

/// What connections that come get.
struct Used {
    config: Arc<ServerConfig>,
    stamps: Stamps,
}

/// What tells that a file was written or replaced.
type Stamps = [(SystemTime, u64); 2];

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificates({})", self.0.chain.display())
    }
}

impl Certificates {
    /// Reads PEM files: the certificate with those that lead to a root, and its key.
    pub fn open(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        let used = RwLock::new(read(chain, key)?);
        Ok(Certificates(Arc::new(Files { chain: chain.into(), key: key.into(), used })))
    }

    /// Reads the files again. Connections that come have what they say; those that are there keep
    /// what they have. If the files cannot be used, all stays as it is.
    pub fn reload(&self) -> Result<(), TlsError> {
        let used = read(&self.0.chain, &self.0.key)?;
        *self.0.used.write().unwrap_or_else(PoisonError::into_inner) = used;
        Ok(())
    }

    /// Whether a file is another one than when it was read, or was written since.
    pub fn changed(&self) -> bool {
        let used = self.0.used.read().unwrap_or_else(PoisonError::into_inner);
        // A file that is not there is about to be replaced.
        stamps(&self.0.chain, &self.0.key).is_ok_and(|stamps| stamps != used.stamps)
    }

    fn config(&self) -> Arc<ServerConfig> {
        self.0.used.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }
}

fn stamps(chain: &Path, key: &Path) -> Result<Stamps, TlsError> {
    let stamp = |path: &Path| {
        let found = std::fs::metadata(path).and_then(|m| Ok((m.modified()?, m.len())));
        found.map_err(|e| TlsError(format!("{} cannot be read: {e}", path.display())))
    };
    Ok([stamp(chain)?, stamp(key)?])
}

fn read(chain: &Path, key: &Path) -> Result<Used, TlsError> {
    // A file that is written meanwhile is read once more later.
    let stamps = stamps(chain, key)?;
    let bad = |path: &Path, expected: &str, e: &dyn fmt::Display| {
        TlsError(format!("{}: {expected} in PEM was expected: {e}", path.display()))
    };
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect)
        .map_err(|e| bad(chain, "a chain of certificates", &e))?;
    if certificates.is_empty() {
        return Err(bad(chain, "a chain of certificates", &"there is none"));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| bad(key, "a private key", &e))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| TlsError(format!("no version of TLS can be used: {e}")))?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(|e| {
            TlsError(format!(
                "{} and {} are not a certificate and its key: {e}",
                chain.display(),
                key.display()
            ))
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Used { config: Arc::new(config), stamps })
}

/// Handshakes of one thread.
pub(crate) struct Handshakes {
    certificates: Certificates,
    turns: Semaphore,
    patience: Duration,
}

impl Handshakes {
    /// At most so many at a time, each within `patience`.
    pub fn new(certificates: Certificates, most: usize, patience: Duration) -> Self {
        Handshakes { certificates, turns: Semaphore::new(most.max(1)), patience }
    }

    /// A connection after its handshake. The time counts from here, also while the connection waits
    /// for its turn.
    pub async fn shake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let shaken = async {
            let _turn = self.turns.acquire().await.map_err(io::Error::other)?;
            TlsAcceptor::from(self.certificates.config()).accept(stream).await
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long");
        tokio::time::timeout(self.patience, shaken).await.unwrap_or_else(|_| Err(late()))
    }
}
