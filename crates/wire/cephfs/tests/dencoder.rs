//! Types against `ceph-dencoder`.
//!
//! For each of its test values the program says which bytes it has for it. Those are decoded and
//! encoded again: they must be the same, or, where the form has grown since that release (14.2),
//! the program must read our bytes as the same value. Then values of ours, with something in each
//! field, are given to the program: it must read them, and give the same bytes.
//!
//! The program is found through `SIPHON_CEPH_DENCODER`, or in `target/oracle`, where
//! `tests/oracle/fetch-dencoder.sh` puts it. Without it the test is skipped, unless
//! `SIPHON_REQUIRE_ORACLES=1`.

use bytes::Bytes;
use cephfs::inode::Newer;
use cephfs::journal::{JournalHeader, JournalPointer};
use cephfs::tables::SnapServer;
use cephfs::*;
use denc::{Decode, Encode, Features, Reader};
use std::path::{Path, PathBuf};
use std::process::Command;
use types::fsmap::ClientFeatures;
use types::{EntityAddr, EntityName, EntityType, IntervalSet, SnapId, Utime};

/// Types with a newer form than the program's, and what is new.
const GROWN: &[(&str, &str)] = &[
    ("InodeStore", "contains inode_t"),
    ("SnapInfo", "version 3: metadata"),
    ("SnapServer", "contains SnapInfo"),
    ("inode_t<std::allocator>", "version 17: ephemeral pins, encryption"),
    ("old_inode_t<std::allocator>", "contains inode_t"),
    ("session_info_t", "client_metadata_t 3: statistics"),
    ("sr_t", "contains SnapInfo"),
];

struct Dencoder(PathBuf);

impl Dencoder {
    fn find() -> Option<Self> {
        let fetched =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/oracle/ceph-dencoder");
        let path = std::env::var_os("SIPHON_CEPH_DENCODER").map_or(fetched, PathBuf::from);
        let works = Command::new(&path).arg("version").output().is_ok_and(|o| o.status.success());
        works.then_some(Dencoder(path))
    }

    fn run(&self, args: &[&str]) -> Result<String, String> {
        let out =
            Command::new(&self.0).args(args).env("TZ", "UTC").output().expect("the program starts");
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        match out.status.success() && out.stderr.is_empty() {
            true => Ok(text(&out.stdout)),
            false => Err(format!("{args:?}: {}{}", text(&out.stdout), text(&out.stderr))),
        }
    }
}

type Recode = fn(&Bytes) -> Result<Bytes, String>;

/// A type: its Ceph name, how bytes are decoded and encoded again, and a value of ours.
struct Case {
    name: &'static str,
    recode: Recode,
    sample: Bytes,
}

fn bytes<T: Encode>(value: &T) -> Bytes {
    value.to_bytes(Features::ALL)
}

fn case<T: Encode + Decode>(name: &'static str, sample: T) -> Case {
    let recode = |b: &Bytes| {
        let mut r = Reader::new(b.clone());
        let value: T = r.get().map_err(|e| e.to_string())?;
        r.expect_end("value").map_err(|e| e.to_string())?;
        Ok(bytes(&value))
    };
    Case { name, recode, sample: bytes(&sample) }
}

fn time(n: u32) -> Utime {
    Utime::new(1_600_000_000 + n, 123_456_789)
}

fn frag_info() -> FragInfo {
    FragInfo { version: 1 << 40, mtime: time(1), nfiles: -2, nsubdirs: 3, change_attr: 4 }
}

fn nest_info() -> NestInfo {
    NestInfo {
        version: 1 << 41,
        rbytes: 1 << 50,
        rfiles: 2,
        rsubdirs: -3,
        rsnaps: 4,
        rctime: time(2),
    }
}

fn layout() -> FileLayout {
    FileLayout { stripe_count: 3, namespace: "ns".into(), ..FileLayout::of_pool(5) }
}

fn snap() -> SnapInfo {
    SnapInfo {
        snapid: SnapId(3),
        ino: Ino(1 << 40),
        stamp: time(3),
        name: "snap".into(),
        metadata: [("a".to_owned(), "b".to_owned())].into(),
    }
}

fn inode(mode: u32) -> Inode {
    Inode {
        ino: Ino(0x100_0000_01f4),
        rdev: 1,
        ctime: time(1),
        btime: time(2),
        mode,
        uid: 3,
        gid: 4,
        nlink: -5,
        dir_layout: DirLayout::DEFAULT,
        layout: layout(),
        size: 6 << 32,
        truncate_seq: 7,
        truncate_size: u64::MAX,
        truncate_from: 8,
        truncate_pending: 9,
        mtime: time(3),
        atime: time(4),
        time_warp_seq: 10,
        client_ranges: [(11, ClientRange { first: 1, last: 2, follows: SnapId(3) })].into(),
        dirstat: frag_info(),
        rstat: nest_info(),
        accounted_rstat: nest_info(),
        version: 12,
        file_data_version: 13,
        xattr_version: 14,
        backtrace_version: 15,
        old_pools: [16, 17].into(),
        max_size_ever: 18,
        inline: InlineData { version: 19, data: "inline".into() },
        quota: Quota { max_bytes: 20, max_files: 21 },
        stray_prior_path: "prior".into(),
        last_scrub_version: 22,
        last_scrub_stamp: time(5),
        change_attr: 23,
        export_pin: 24,
        ephemeral_random_pin: 0.25,
        ephemeral_distributed_pin: true,
        fscrypt: true,
        newer: None::<Newer>,
    }
}

fn realm() -> SnapRealmRecord {
    SnapRealmRecord {
        seq: SnapId(1),
        created: SnapId(2),
        last_created: SnapId(3),
        last_destroyed: SnapId(4),
        current_parent_since: SnapId(5),
        snaps: [(SnapId(6), snap())].into(),
        past_parents: [(SnapId(7), SnapLink { ino: Ino(8), first: SnapId(9) })].into(),
        past_parent_snaps: [SnapId(10), SnapId(11)].into(),
        flags: SnapRealmRecord::SUBVOLUME,
    }
}

fn store(mode: u32, symlink: &'static str) -> InodeStore {
    let old = OldInode {
        first: SnapId(2),
        inode: inode(mode),
        xattrs: [("user.a".into(), "b".into())].into(),
    };
    InodeStore {
        inode: inode(mode),
        symlink: symlink.into(),
        fragtree: FragTree([(Frag::ROOT, 3), (Frag::new(3, 0xe0_0000), 1)].into()),
        xattrs: [("user.b".into(), Bytes::from_static(&[0, 1, 255])), ("a".into(), "c".into())]
            .into(),
        snap: Some(Box::new(realm())),
        old_inodes: [(SnapId(3), old)].into(),
        oldest_snap: SnapId(4),
        damage_flags: 5,
    }
}

fn numbers(ranges: &[(u64, u64)]) -> IntervalSet {
    let mut set = IntervalSet::new();
    ranges.iter().for_each(|&(start, len)| set.insert(start, len));
    set
}

/// A table without the version in front, which the program does not write.
struct InoTableState(InoTable);

impl Encode for InoTableState {
    fn encode(&self, out: &mut bytes::BytesMut, f: Features) {
        out.extend_from_slice(&self.0.to_bytes(f)[8..]);
    }
}
impl Decode for InoTableState {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let whole = [&0u64.to_le_bytes()[..], &r.rest()].concat();
        Ok(InoTableState(InoTable::from_bytes(&whole.into())?))
    }
}

fn cases() -> Vec<Case> {
    let fnode = Fnode {
        version: 1,
        snap_purged_thru: SnapId(2),
        fragstat: frag_info(),
        accounted_fragstat: FragInfo { nfiles: 7, ..frag_info() },
        rstat: nest_info(),
        accounted_rstat: NestInfo { rfiles: 8, ..nest_info() },
        damage_flags: 3,
        recursive_scrub_version: 4,
        recursive_scrub_stamp: time(5),
        localized_scrub_version: 6,
        localized_scrub_stamp: time(7),
    };
    let pointer = Backpointer { dirino: Ino(1 << 40), dname: "name".into(), version: 9 };
    let backtrace = Backtrace {
        ino: Ino(5),
        ancestors: vec![pointer.clone(), pointer.clone()],
        pool: 3,
        old_pools: vec![1, 2],
    };
    let session = SessionInfo {
        name: EntityName::client(4100),
        addr: EntityAddr::msgr2(([127, 0, 0, 1], 0).into(), 77),
        completed_requests: [(5, Ino(6)), (7, Ino(0))].into(),
        prealloc_inos: numbers(&[(1 << 40, 1000)]),
        completed_flushes: [8, 9].into(),
        auth_name: (EntityType::CLIENT, "admin".into()),
        metadata: ClientMetadata {
            texts: [("hostname".to_owned(), "host".to_owned())].into(),
            features: ClientFeatures([5, 9, 15].into()),
            metric_spec: MetricSpec { flags: ClientFeatures([0, 1].into()) },
        },
    };
    let server = SnapServer {
        last_snap: SnapId(1),
        snaps: [(SnapId(3), snap())].into(),
        need_to_purge: [(2, [SnapId(4)].into())].into(),
        pending_update: [(5, snap())].into(),
        pending_destroy: [(6, (SnapId(7), SnapId(8)))].into(),
        pending_noop: [9].into(),
        last_created: SnapId(10),
        last_destroyed: SnapId(11),
        snaprealm_v2_since: SnapId(12),
    };
    vec![
        case("frag_info_t", frag_info()),
        case("nest_info_t", nest_info()),
        case("quota_info_t", Quota { max_bytes: 1, max_files: -2 }),
        case("file_layout_t", layout()),
        case("client_writeable_range_t", ClientRange { first: 1, last: 2, follows: SnapId(3) }),
        case("inode_t<std::allocator>", inode(0o100_644)),
        case(
            "old_inode_t<std::allocator>",
            OldInode { first: SnapId(2), inode: inode(0o40_755), xattrs: store(0, "").xattrs },
        ),
        case("InodeStore", store(0o120_777, "target")),
        case("fnode_t", fnode),
        case("inode_backpointer_t", pointer),
        case("inode_backtrace_t", backtrace),
        case("InoTable", InoTableState(InoTable { version: 0, free: numbers(&[(5, 6), (20, 1)]) })),
        case("SnapInfo", snap()),
        case("snaplink_t", SnapLink { ino: Ino(1), first: SnapId(2) }),
        case("sr_t", realm()),
        case("SnapServer", server),
        case(
            "SnapRealmInfo",
            SnapRealmInfo {
                ino: Ino(1),
                created: SnapId(2),
                parent: Ino(3),
                parent_since: SnapId(4),
                seq: SnapId(5),
                snaps: vec![SnapId(6), SnapId(5)],
                prior_parent_snaps: vec![SnapId(4)],
            },
        ),
        case("mds_table_pending_t", TablePending { reqid: 1, rank: 2, tid: 3 }),
        case("session_info_t", session),
        case("JournalPointer", JournalPointer { front: Ino::log(0), back: Ino::log_backup(0) }),
        case(
            "Journaler::Header",
            JournalHeader {
                unused: 5,
                write_pos: 9 << 20,
                ..JournalHeader::new(FileLayout::of_pool(2))
            },
        ),
    ]
}

#[test]
fn every_type_has_ceph_s_bytes() {
    let Some(dencoder) = Dencoder::find() else {
        let required = std::env::var_os("SIPHON_REQUIRE_ORACLES").is_some();
        assert!(!required, "ceph-dencoder was not found; run tests/oracle/fetch-dencoder.sh");
        eprintln!("skipped: no ceph-dencoder");
        return;
    };
    let dir = std::env::temp_dir().join(format!("cephfs-dencoder.{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("value");
    let path = file.to_str().unwrap();
    let mut wrong = Vec::new();
    for case in &cases() {
        let grown = GROWN.iter().any(|g| g.0 == case.name);
        let count = dencoder.run(&["type", case.name, "count_tests"]).unwrap();
        for n in 1..=count.trim().parse::<u32>().unwrap() {
            let n = n.to_string();
            let select = ["type", case.name, "select_test", &n];
            let export = [&select[..], &["encode", "export", path]].concat();
            dencoder.run(&export).unwrap();
            // A value that was read, because not all of a test value is written.
            let read = ["type", case.name, "import", path, "decode", "dump_json"];
            let json = dencoder.run(&read).unwrap();
            let theirs = Bytes::from(std::fs::read(&file).unwrap());
            match (case.recode)(&theirs) {
                Err(e) => wrong.push(format!("{} {n}: {e}", case.name)),
                Ok(ours) if ours == theirs => {}
                Ok(ours) => {
                    std::fs::write(&file, &ours).unwrap();
                    let read = dencoder.run(&read);
                    if !grown || read.as_ref() != Ok(&json) {
                        wrong.push(format!(
                            "{} {n}: {theirs:?}\n{ours:?}\n{json}\n{read:?}",
                            case.name
                        ));
                    }
                }
            }
        }
        assert_eq!((case.recode)(&case.sample).as_ref(), Ok(&case.sample), "{}", case.name);
        std::fs::write(&file, &case.sample).unwrap();
        let again = dir.join("again");
        let again = again.to_str().unwrap();
        let export =
            ["type", case.name, "import", path, "decode", "encode", "export", again, "dump_json"];
        match dencoder.run(&export) {
            Err(e) => wrong.push(format!("{}: our value is not read: {e}", case.name)),
            Ok(json) => {
                let theirs = Bytes::from(std::fs::read(again).unwrap());
                if theirs != case.sample && !grown {
                    wrong.push(format!("{}: {theirs:?}\n{:?}", case.name, case.sample));
                }
                // What the program knows of our value survives the way through its own form.
                let recoded = (case.recode)(&theirs).unwrap_or_default();
                std::fs::write(&file, &recoded).unwrap();
                let read =
                    dencoder.run(&["type", case.name, "import", path, "decode", "dump_json"]);
                if read.as_ref() != Ok(&json) {
                    wrong.push(format!("{}: {json}\n{read:?}", case.name));
                }
            }
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
