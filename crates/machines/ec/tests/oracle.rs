//! Stock `ceph-erasure-code-tool`, which loads Ceph's plugins, decides whether the bytes are right.

use ec::{Code, Technique};
use std::path::Path;
use std::process::Command;

const STRIPE_UNIT: usize = 4096;

fn have_tool() -> bool {
    let found = Command::new("ceph-erasure-code-tool").arg("--help").output().is_ok();
    if !found {
        eprintln!("skipped: ceph-erasure-code-tool is not installed");
    }
    found
}

fn tool(command: &str, profile: &str, shards: &[usize], file: &Path) {
    let shards: Vec<String> = shards.iter().map(usize::to_string).collect();
    let out = Command::new("ceph-erasure-code-tool")
        .args([command, profile, &STRIPE_UNIT.to_string(), &shards.join(",")])
        .arg(file)
        .env("CEPH_CONF", "/dev/null")
        .output()
        .expect("the tool runs");
    assert!(out.status.success(), "{command} {profile}: {}", String::from_utf8_lossy(&out.stderr));
}

fn shard_file(file: &Path, shard: usize) -> std::path::PathBuf {
    file.with_extension(shard.to_string())
}

fn codes() -> Vec<(String, Code)> {
    let mut codes = Vec::new();
    for (name, technique, shapes) in [
        (
            "plugin=jerasure,technique=reed_sol_van",
            Technique::JerasureReedSolVan,
            &[(2, 1), (2, 2), (3, 2), (4, 2), (5, 3), (6, 2), (6, 3), (8, 3), (10, 4), (17, 7)][..],
        ),
        (
            "plugin=isa,technique=reed_sol_van",
            Technique::IsaReedSolVan,
            &[(2, 1), (2, 2), (3, 2), (4, 2), (8, 3), (21, 4), (32, 3)],
        ),
        (
            "plugin=isa,technique=cauchy",
            Technique::IsaCauchy,
            &[(2, 1), (2, 2), (4, 2), (8, 3), (10, 4), (24, 8)],
        ),
    ] {
        for &(k, m) in shapes {
            codes.push((format!("{name},k={k},m={m}"), Code::new(technique, k, m).unwrap()));
        }
    }
    codes
}

#[test]
fn parity_is_that_of_the_plugins() {
    if !have_tool() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (profile, code) in codes() {
        let (k, m) = (code.k(), code.m());
        let file = dir.path().join("object");
        let object: Vec<u8> =
            (0..k * STRIPE_UNIT * 2).map(|i| (i * 131 + i / 4096 * 17 + i / 7) as u8).collect();
        std::fs::write(&file, &object).unwrap();
        tool("encode", &profile, &(0..k + m).collect::<Vec<_>>(), &file);
        let shards: Vec<Vec<u8>> =
            (0..k + m).map(|s| std::fs::read(shard_file(&file, s)).unwrap()).collect();
        let data: Vec<&[u8]> = shards[..k].iter().map(Vec::as_slice).collect();
        let mut parity = vec![vec![0; data[0].len()]; m];
        code.encode(&data, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        for (i, p) in parity.iter().enumerate() {
            assert!(*p == shards[k + i], "{profile}: parity shard {i} differs");
        }
    }
}

#[test]
fn the_plugins_decode_what_is_encoded_here() {
    if !have_tool() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (profile, code) in codes() {
        let (k, m) = (code.k(), code.m());
        let file = dir.path().join("object");
        let data: Vec<Vec<u8>> = (0..k)
            .map(|s| (0..STRIPE_UNIT).map(|i| (i * 13 + s * 101 + i / 255) as u8).collect())
            .collect();
        let mut parity = vec![vec![0; STRIPE_UNIT]; m];
        code.encode(
            &data.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
        );
        // As many data shards are lost as parity can replace.
        let lost = m.min(k);
        for (s, bytes) in data.iter().chain(&parity).enumerate().skip(lost) {
            std::fs::write(shard_file(&file, s), bytes).unwrap();
        }
        for s in 0..lost {
            drop(std::fs::remove_file(shard_file(&file, s)));
        }
        tool("decode", &profile, &(lost..lost + k).collect::<Vec<_>>(), &file);
        assert!(std::fs::read(&file).unwrap() == data.concat(), "{profile}: decoded otherwise");
    }
}
