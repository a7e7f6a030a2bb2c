//! Capability bits (Ceph: `CEPH_CAP_*`, `include/ceph_fs.h`): what a client may do with an inode
//! without asking. One group of bits for each part of the inode.

/// The inode is known and stays so.
pub const PIN: u32 = 1;

/// Shared: read what the group is about.
pub const GSHARED: u32 = 1;
/// Exclusive: read it and change it.
pub const GEXCL: u32 = 2;
/// Cache data that was read.
pub const GCACHE: u32 = 4;
/// Read data.
pub const GRD: u32 = 8;
/// Write data.
pub const GWR: u32 = 16;
/// Keep written data back.
pub const GBUFFER: u32 = 32;
/// Write beyond the end of the file.
pub const GWREXTEND: u32 = 64;
/// Read and write whatever others do.
pub const GLAZYIO: u32 = 128;

/// Where the bits of mode and owner begin.
pub const AUTH_SHIFT: u32 = 2;
/// Where the bits of the number of names begin.
pub const LINK_SHIFT: u32 = 4;
/// Where the bits of extended attributes begin.
pub const XATTR_SHIFT: u32 = 6;
/// Where the bits of size, times and data begin.
pub const FILE_SHIFT: u32 = 8;

/// Read mode and owner.
pub const AUTH_SHARED: u32 = GSHARED << AUTH_SHIFT;
/// Change mode and owner.
pub const AUTH_EXCL: u32 = GEXCL << AUTH_SHIFT;
/// Read the number of names.
pub const LINK_SHARED: u32 = GSHARED << LINK_SHIFT;
/// Change the number of names.
pub const LINK_EXCL: u32 = GEXCL << LINK_SHIFT;
/// Read extended attributes.
pub const XATTR_SHARED: u32 = GSHARED << XATTR_SHIFT;
/// Change extended attributes.
pub const XATTR_EXCL: u32 = GEXCL << XATTR_SHIFT;
/// Read size and times.
pub const FILE_SHARED: u32 = GSHARED << FILE_SHIFT;
/// Change size and times.
pub const FILE_EXCL: u32 = GEXCL << FILE_SHIFT;
/// Cache data that was read.
pub const FILE_CACHE: u32 = GCACHE << FILE_SHIFT;
/// Read data.
pub const FILE_RD: u32 = GRD << FILE_SHIFT;
/// Write data.
pub const FILE_WR: u32 = GWR << FILE_SHIFT;
/// Keep written data back.
pub const FILE_BUFFER: u32 = GBUFFER << FILE_SHIFT;
/// Write beyond the end; in the mask of a request: recursive statistics.
pub const FILE_WREXTEND: u32 = GWREXTEND << FILE_SHIFT;
/// Read and write whatever others do.
pub const FILE_LAZYIO: u32 = GLAZYIO << FILE_SHIFT;

/// Everything that only reads the inode.
pub const ANY_SHARED: u32 = AUTH_SHARED | LINK_SHARED | XATTR_SHARED | FILE_SHARED;
/// Everything that changes the inode.
pub const ANY_EXCL: u32 = AUTH_EXCL | LINK_EXCL | XATTR_EXCL | FILE_EXCL;
/// Everything that reads data, or size and times.
pub const ANY_FILE_RD: u32 = FILE_RD | FILE_CACHE | FILE_SHARED;
/// Everything that writes data, or size and times.
pub const ANY_FILE_WR: u32 = FILE_WR | FILE_BUFFER | FILE_EXCL;
/// Everything that changes something.
pub const ANY_WR: u32 = ANY_EXCL | ANY_FILE_WR;

/// The flag in a reply's capability: issued by the rank that owns the inode.
pub const FLAG_AUTH: u8 = 1;
/// The flag in a reply's capability: the client is asked to give it back.
pub const FLAG_RELEASE: u8 = 2;

/// The bits as Ceph shows them, such as `pAsLsXsFscr` (Ceph: `ccap_string`, `mds/mdstypes.h`).
pub fn show(caps: u32) -> String {
    let mut s = String::new();
    if caps & PIN != 0 {
        s.push('p');
    }
    let mut group = |name: char, bits: u32| {
        if bits != 0 {
            s.push(name);
            let letters = "sxcrwbal".chars().enumerate();
            s.extend(letters.filter(|(at, _)| bits & 1 << at != 0).map(|(_, c)| c));
        }
    };
    group('A', caps >> AUTH_SHIFT & 3);
    group('L', caps >> LINK_SHIFT & 3);
    group('X', caps >> XATTR_SHIFT & 3);
    group('F', caps >> FILE_SHIFT);
    if s.is_empty() { "-".to_owned() } else { s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_shown() {
        assert_eq!(show(0), "-");
        assert_eq!(show(PIN | ANY_SHARED | FILE_CACHE | FILE_RD), "pAsLsXsFscr");
        assert_eq!(show(AUTH_EXCL | FILE_LAZYIO), "AxFl");
        assert_eq!(show(FILE_WREXTEND | FILE_BUFFER | FILE_WR | FILE_EXCL), "Fxwba");
    }
}
