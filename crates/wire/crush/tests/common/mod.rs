//! Random maps, and stock `crushtool` to compare with.
#![allow(dead_code, missing_docs)]

use crush::{
    Algorithm, Bucket, ChooseArg, ChooseArgs, CrushMap, Rule, RuleMode, Step, Tunables, op,
};
use std::path::Path;
use std::process::Command;

/// A small generator with a printable seed (xorshift64*).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// Whether a stock tool is installed; says so when it is not, and fails when it must be.
pub fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("--help").output().is_ok();
    if !found {
        assert!(
            std::env::var_os("SIPHON_REQUIRE_ORACLES").is_none(),
            "{tool} is required and not installed"
        );
        eprintln!("skipped: {tool} is not installed");
    }
    found
}

/// Runs crushtool and returns what it wrote to both outputs.
pub fn crushtool(args: &[&str], map: &Path) -> (bool, String) {
    let out = Command::new("crushtool")
        .env("CEPH_ARGS", "--crash-dir /nonexistent --log-to-stderr false")
        .arg("-i")
        .arg(map)
        .args(args)
        .output()
        .expect("crushtool runs");
    let mut text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if out.status.code().is_none() {
        text = format!(
            "aborted: {}",
            text.lines().find(|l| l.contains("FAILED ceph_assert")).unwrap_or("no assertion")
        );
    }
    (out.status.success(), text)
}

const ALL: [Algorithm; 5] =
    [Algorithm::Uniform, Algorithm::List, Algorithm::Tree, Algorithm::Straw, Algorithm::Straw2];

fn random_bucket(
    rng: &mut Rng,
    map: &CrushMap,
    kind: u16,
    items: &[(i32, u32)],
    algs: &[Algorithm],
) -> Bucket {
    let mut algorithm = if rng.one_in(2) { Algorithm::Straw2 } else { *rng.pick(algs) };
    if algorithm == Algorithm::Uniform && items.first().is_some_and(|i| i.1 == 0) {
        algorithm = Algorithm::Straw2; // stock tools abort on a uniform bucket without weight
    }
    if algorithm == Algorithm::Tree && items.iter().all(|i| i.1 == 0) {
        algorithm = Algorithm::List; // stock code walks past the items of a tree without weight
    }
    Bucket::with_items(algorithm, kind, items, map.tunables.straw_calc_version)
        .expect("the items fit")
}

/// A forest of one root over racks over hosts over devices, with everything random that may be.
pub fn random_map(rng: &mut Rng) -> CrushMap {
    random_map_of(rng, &ALL)
}

/// As [`random_map`], with these bucket algorithms.
pub fn random_map_of(rng: &mut Rng, algs: &[Algorithm]) -> CrushMap {
    let mut map = CrushMap::with_default_types();
    let profiles = [
        Tunables::LEGACY,
        Tunables::BOBTAIL,
        Tunables::FIREFLY,
        Tunables::HAMMER,
        Tunables::JEWEL,
        Tunables::JEWEL,
    ];
    map.tunables = *rng.pick(&profiles);
    map.tunables.straw_calc_version = rng.below(2) as u8;
    if rng.one_in(4) {
        map.tunables.choose_local_tries = rng.below(4) as u32;
        map.tunables.choose_local_fallback_tries = rng.below(6) as u32;
        map.tunables.chooseleaf_vary_r = rng.below(5) as u8;
        map.tunables.choose_total_tries = 1 + rng.below(60) as u32;
    }
    let mut device = 0;
    let mut racks = Vec::new();
    for rack in 0..1 + rng.below(4) {
        let mut hosts = Vec::new();
        for host in 0..1 + rng.below(5) {
            let mut devices = Vec::new();
            for _ in 0..rng.below(7) {
                device += if rng.one_in(12) { 2 } else { 1 };
                let weight = if rng.one_in(10) { 0 } else { 0x1000 + rng.below(0x40000) as u32 };
                devices.push((device - 1, weight));
            }
            hosts.push(place(rng, &mut map, 1, &devices, &format!("host{rack}-{host}"), algs));
        }
        racks.push(place(rng, &mut map, 3, &hosts, &format!("rack{rack}"), algs));
    }
    place(rng, &mut map, 11, &racks, "default", algs);
    for item in map.buckets().flat_map(|b| b.items.clone()).filter(|i| *i >= 0).collect::<Vec<_>>()
    {
        map.set_item_name(item, &format!("osd.{item}")).expect("a valid name");
    }
    map.finalize();
    random_rules(rng, &mut map);
    if rng.one_in(3) {
        random_choose_args(rng, &mut map);
    }
    map
}

fn place(
    rng: &mut Rng,
    map: &mut CrushMap,
    kind: u16,
    items: &[(i32, u32)],
    name: &str,
    algs: &[Algorithm],
) -> (i32, u32) {
    let b = random_bucket(rng, map, kind, items, algs);
    let items: Vec<(i32, u32)> = b.weighted_items().collect();
    let algorithm = b.algorithm();
    let id = map.add_bucket(None, Some(algorithm), kind, &items).expect("an id is free");
    map.set_item_name(id, name).expect("a valid name");
    (id, b.weight)
}

fn random_rules(rng: &mut Rng, map: &mut CrushMap) {
    let root = map.names.id("default").expect("the root");
    for (name, domain, mode) in [
        ("leaf", "host", RuleMode::Firstn),
        ("ec", "host", RuleMode::Indep),
        ("osd", "", RuleMode::Firstn),
    ] {
        map.add_simple_rule(name, "default", domain, "", mode, 1, None).expect("the names exist");
    }
    for n in 0..3 {
        let mut steps = Vec::new();
        for set in op::SET_CHOOSE_TRIES..=op::SET_CHOOSELEAF_STABLE {
            if rng.one_in(5) {
                steps.push(Step::new(set, rng.below(6) as i32, 0));
            }
        }
        steps.push(Step::new(op::TAKE, root, 0));
        let indep = rng.one_in(2);
        let choose = if indep { op::CHOOSE_INDEP } else { op::CHOOSE_FIRSTN };
        let leaf = if indep { op::CHOOSELEAF_INDEP } else { op::CHOOSELEAF_FIRSTN };
        match rng.below(3) {
            0 => {
                steps.push(Step::new(choose, rng.below(4) as i32, 3));
                steps.push(Step::new(leaf, rng.below(4) as i32, 1));
            }
            1 => {
                steps.push(Step::new(choose, 2, 3));
                steps.push(Step::new(choose, 2, 1));
                steps.push(Step::new(choose, 1 + rng.below(2) as i32, 0));
            }
            _ => {
                steps.push(Step::new(leaf, -1, 3));
                steps.push(Step::new(op::EMIT, 0, 0));
                steps.push(Step::new(op::TAKE, root, 0));
                steps.push(Step::new(leaf, 2, 1));
            }
        }
        steps.push(Step::new(op::EMIT, 0, 0));
        let rule = Rule { ruleset: 0, kind: 1, min_size: 1, max_size: 10, steps };
        map.add_rule(&format!("rule{n}"), None, rule).expect("a number is free");
    }
}

pub fn random_choose_args(rng: &mut Rng, map: &mut CrushMap) {
    let positions = 1 + rng.below(3) as usize;
    let mut args = ChooseArgs::default();
    for b in map.buckets().filter(|b| b.algorithm() == Algorithm::Straw2) {
        let mut arg = ChooseArg::default();
        if !rng.one_in(4) {
            for _ in 0..positions {
                arg.weight_set.push(b.items.iter().map(|_| rng.below(0x30000) as u32).collect());
            }
        }
        if rng.one_in(3) {
            arg.ids = b.items.iter().map(|i| i.wrapping_sub(1000)).collect();
        }
        if !arg.is_empty() {
            args.args.insert((-1 - b.id) as u32, arg);
        }
    }
    map.choose_args.insert(crush::DEFAULT_CHOOSE_ARGS, args);
}
