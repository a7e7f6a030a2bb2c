//! Records that a metadata server finds in a pool: any client that may write there wrote them.
#![no_main]

use bytes::Bytes;
use denc::{Decode, Encode, Features};
use libfuzzer_sys::fuzz_target;

fn again<T: Decode + Encode>(bytes: &Bytes) {
    if let Ok(value) = T::from_bytes(bytes) {
        let written = value.to_bytes(Features::ALL);
        assert!(T::from_bytes(&written).is_ok(), "what was written is not read");
    }
}

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (kind, bytes) = input;
    let bytes = Bytes::from(bytes);
    match kind % 8 {
        0 => again::<cephfs::InodeStore>(&bytes),
        1 => again::<cephfs::Fnode>(&bytes),
        2 => again::<cephfs::Backtrace>(&bytes),
        3 => again::<cephfs::InoTable>(&bytes),
        4 => again::<cephfs::SnapTable>(&bytes),
        5 => again::<cephfs::SessionInfo>(&bytes),
        6 => again::<cephfs::SessionMapHeader>(&bytes),
        _ => again::<cephfs::FileLayout>(&bytes),
    }
});
