//! Binary form of a map (Ceph: `CrushWrapper::encode`/`decode`, 16.2). It has no envelope: the end
//! tells which of the later parts are there.

use crate::{
    Algorithm, Body, Bucket, ChooseArg, ChooseArgs, CrushMap, MAX_RULES, Names, Rule, Step,
    Tunables,
};
use denc::{BufMut, BytesMut, Decode, DecodeError, Encode, Features, Reader, Result};
use std::collections::BTreeMap;

const MAGIC: u32 = 0x0001_0000;

/// Feature bits that shape the encoding (Ceph: `include/ceph_features.h`). Luminous and choose_args
/// share bit 21 and need the incarnation bits with it.
const TUNABLES5: u64 = 1 << 58;
const INCARNATION_2: u64 = 1 << 57;
const LUMINOUS: u64 = 1 << 21 | INCARNATION_2;

impl Encode for CrushMap {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u32_le(MAGIC);
        out.put_i32_le(self.buckets.len() as i32);
        out.put_u32_le(self.rules.len() as u32);
        out.put_i32_le(self.max_devices);
        // A peer that does not know choose_args gets the compatible weight set as the buckets'
        // weights.
        let compat = if f.has(LUMINOUS) { None } else { self.choose_args.values().next() };
        for slot in &self.buckets {
            match slot {
                None => out.put_u32_le(0),
                Some(b) => encode_bucket(b, compat, out),
            }
        }
        for slot in &self.rules {
            out.put_u32_le(u32::from(slot.is_some()));
            let Some(rule) = slot else { continue };
            out.put_u32_le(rule.steps.len() as u32);
            out.put_slice(&[rule.ruleset, rule.kind, rule.min_size, rule.max_size]);
            for step in &rule.steps {
                out.put_u32_le(step.op);
                out.put_i32_le(step.arg1);
                out.put_i32_le(step.arg2);
            }
        }
        for names in [&self.types, &self.names, &self.rule_names] {
            encode_names(names, out, f);
        }
        let t = &self.tunables;
        out.put_u32_le(t.choose_local_tries);
        out.put_u32_le(t.choose_local_fallback_tries);
        out.put_u32_le(t.choose_total_tries);
        out.put_u32_le(t.chooseleaf_descend_once);
        out.put_u8(t.chooseleaf_vary_r);
        out.put_u8(t.straw_calc_version);
        out.put_u32_le(t.allowed_bucket_algs);
        if f.has(TUNABLES5) {
            out.put_u8(t.chooseleaf_stable);
        }
        if f.has(LUMINOUS) {
            self.class_map.encode(out, f);
            encode_names(&self.class_names, out, f);
            self.class_bucket.encode(out, f);
            out.put_u32_le(self.choose_args.len() as u32);
            for (key, cmap) in &self.choose_args {
                out.put_i64_le(*key);
                encode_choose_args(cmap, out, f);
            }
        }
    }
}

fn encode_names(names: &Names, out: &mut BytesMut, f: Features) {
    out.put_u32_le(names.len() as u32);
    for (id, name) in names.iter() {
        out.put_i32_le(id);
        name.encode(out, f);
    }
}

fn encode_bucket(b: &Bucket, compat: Option<&ChooseArgs>, out: &mut BytesMut) {
    out.put_u32_le(b.algorithm() as u32);
    out.put_i32_le(b.id);
    out.put_u16_le(b.kind);
    out.put_u8(b.algorithm() as u8);
    out.put_u8(b.hash);
    out.put_u32_le(b.weight);
    out.put_u32_le(b.items.len() as u32);
    b.items.iter().for_each(|i| out.put_i32_le(*i));
    let pairs = |a: &[u32], b: &[u32], out: &mut BytesMut| {
        for (a, b) in a.iter().zip(b) {
            out.put_u32_le(*a);
            out.put_u32_le(*b);
        }
    };
    match &b.body {
        Body::Uniform { item_weight } => out.put_u32_le(*item_weight),
        Body::List { item_weights, sum_weights } => pairs(item_weights, sum_weights, out),
        Body::Tree { node_weights } => {
            out.put_u8(node_weights.len() as u8);
            node_weights.iter().for_each(|w| out.put_u32_le(*w));
        }
        Body::Straw { item_weights, straws } => pairs(item_weights, straws, out),
        Body::Straw2 { item_weights } => {
            let weights = compat
                .and_then(|c| c.get(b.id)?.weight_set.first())
                .filter(|w| w.len() == item_weights.len())
                .unwrap_or(item_weights);
            weights.iter().for_each(|w| out.put_u32_le(*w));
        }
    }
}

fn encode_choose_args(cmap: &ChooseArgs, out: &mut BytesMut, f: Features) {
    let used = || cmap.args.iter().filter(|(_, a)| !a.is_empty());
    out.put_u32_le(used().count() as u32);
    for (index, arg) in used() {
        out.put_u32_le(*index);
        arg.weight_set.encode(out, f);
        arg.ids.encode(out, f);
    }
}

impl Decode for CrushMap {
    /// Reads to the end of the reader, as the format demands. What is read is well-formed, which
    /// does not make it fit for use: see [`CrushMap::validate`].
    fn decode(r: &mut Reader) -> Result<Self> {
        let magic: u32 = r.get()?;
        if magic != MAGIC {
            return Err(invalid("CRUSH magic", u64::from(magic)));
        }
        let max_buckets: u32 = r.get()?;
        let max_rules: u32 = r.get()?;
        let max_devices: i32 = r.get()?;
        if max_buckets as usize > r.left() / 4 {
            return Err(invalid("crush_map.max_buckets", u64::from(max_buckets)));
        }
        if max_rules as usize > MAX_RULES {
            return Err(invalid("crush_map.max_rules", u64::from(max_rules)));
        }
        let mut map = CrushMap { max_devices, tunables: Tunables::LEGACY, ..CrushMap::default() };
        for index in 0..max_buckets {
            map.buckets.push(decode_bucket(index, r)?);
        }
        for _ in 0..max_rules {
            map.rules.push(if r.get::<u32>()? == 0 { None } else { Some(decode_rule(r)?) });
        }
        map.types = decode_names(r)?;
        map.names = decode_names(r)?;
        map.rule_names = decode_names(r)?;
        decode_tail(&mut map, r)?;
        map.update_choose_args();
        map.finalize();
        Ok(map)
    }
}

fn decode_tail(map: &mut CrushMap, r: &mut Reader) -> Result<()> {
    let t = &mut map.tunables;
    if r.left() == 0 {
        return Ok(());
    }
    t.choose_local_tries = r.get()?;
    t.choose_local_fallback_tries = r.get()?;
    t.choose_total_tries = r.get()?;
    if r.left() == 0 {
        return Ok(());
    }
    t.chooseleaf_descend_once = r.get()?;
    if r.left() == 0 {
        return Ok(());
    }
    t.chooseleaf_vary_r = r.get()?;
    if r.left() == 0 {
        return Ok(());
    }
    t.straw_calc_version = r.get()?;
    if r.left() == 0 {
        return Ok(());
    }
    t.allowed_bucket_algs = r.get()?;
    if r.left() == 0 {
        return Ok(());
    }
    t.chooseleaf_stable = r.get()?;
    if r.left() == 0 {
        return Ok(());
    }
    map.class_map = r.get()?;
    map.class_names = r.get::<BTreeMap<i32, String>>()?.into_iter().collect();
    map.class_bucket = r.get()?;
    if r.left() == 0 {
        return Ok(());
    }
    let mut growth = 0;
    for _ in 0..r.count("choose_args", 12)? {
        let key: i64 = r.get()?;
        let mut cmap = ChooseArgs::default();
        for _ in 0..r.count("crush_choose_arg_map", 12)? {
            let index: u32 = r.get()?;
            let Some(slot) = map.buckets.get(index as usize) else {
                return Err(invalid("choose_args bucket index", u64::from(index)));
            };
            let arg = ChooseArg { weight_set: r.get::<Vec<Vec<u32>>>()?, ids: r.get()? };
            let size = slot.as_ref().map_or(0, |b| b.items.len());
            if !arg.ids.is_empty() && arg.ids.len() != size {
                return Err(invalid("crush_choose_arg.ids_size", arg.ids.len() as u64));
            }
            // Weight sets are fitted to the bucket later; that must not let a few bytes grow into
            // many.
            growth += arg.weight_set.iter().map(|w| size.saturating_sub(w.len())).sum::<usize>();
            if growth > GROWTH_MAX {
                return Err(invalid("crush_weight_set.size", growth as u64));
            }
            cmap.args.insert(index, arg);
        }
        map.choose_args.insert(key, cmap);
    }
    Ok(())
}

/// How many weights may be missing, which only maps written by early releases had.
const GROWTH_MAX: usize = 1 << 20;

impl CrushMap {
    /// Recomputes `max_devices` from the items and names (Ceph: `CrushWrapper::finalize`). Decoding
    /// does it; a map under construction needs it before its devices can be mapped to.
    pub fn finalize(&mut self) {
        let items = self.buckets().flat_map(|b| b.items.iter().copied()).max().unwrap_or(-1);
        let named = self.names.last_id().unwrap_or(-1);
        self.max_devices = items.max(named).max(-1).saturating_add(1);
    }
}

fn invalid(what: &'static str, found: u64) -> DecodeError {
    DecodeError::Invalid { what, found }
}

fn decode_bucket(index: u32, r: &mut Reader) -> Result<Option<Bucket>> {
    let alg: u32 = r.get()?;
    if alg == 0 {
        return Ok(None);
    }
    let algorithm =
        Algorithm::from_wire(alg).ok_or_else(|| invalid("bucket algorithm", u64::from(alg)))?;
    let id: i32 = r.get()?;
    if i64::from(id) != -1 - i64::from(index) {
        return Err(invalid("bucket id", id as u32 as u64));
    }
    let kind: u16 = r.get()?;
    let alg_again: u8 = r.get()?;
    if u32::from(alg_again) != alg {
        return Err(invalid("bucket algorithm", u64::from(alg_again)));
    }
    let hash: u8 = r.get()?;
    let weight: u32 = r.get()?;
    let items: Vec<i32> = r.get()?;
    let n = items.len();
    let one = |r: &mut Reader| -> Result<Vec<u32>> { (0..n).map(|_| r.get()).collect() };
    let two = |r: &mut Reader| -> Result<(Vec<u32>, Vec<u32>)> {
        let (mut a, mut b) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for _ in 0..n {
            a.push(r.get()?);
            b.push(r.get()?);
        }
        Ok((a, b))
    };
    let body = match algorithm {
        Algorithm::Uniform => Body::Uniform { item_weight: r.get()? },
        Algorithm::List => {
            let (item_weights, sum_weights) = two(r)?;
            Body::List { item_weights, sum_weights }
        }
        Algorithm::Tree => {
            let nodes: u8 = r.get()?;
            Body::Tree { node_weights: (0..nodes).map(|_| r.get()).collect::<Result<_>>()? }
        }
        Algorithm::Straw => {
            let (item_weights, straws) = two(r)?;
            Body::Straw { item_weights, straws }
        }
        Algorithm::Straw2 => Body::Straw2 { item_weights: one(r)? },
    };
    // The builder relies on a tree that has a node for each item.
    if let Body::Tree { node_weights } = &body
        && n > 0
        && (!node_weights.len().is_power_of_two() || node_weights.len() < 2 * n)
    {
        return Err(invalid("crush_bucket_tree.num_nodes", node_weights.len() as u64));
    }
    Ok(Some(Bucket { id, kind, hash, weight, items, body }))
}

fn decode_rule(r: &mut Reader) -> Result<Rule> {
    let n = r.count("crush_rule.len", 12).and_then(|n| {
        // The count stands before the mask, which is not an element.
        if r.left() < n * 12 + 4 { Err(invalid("crush_rule.len", n as u64)) } else { Ok(n) }
    })?;
    let [ruleset, kind, min_size, max_size] = r.array("crush_rule_mask")?;
    let mut steps = Vec::with_capacity(n);
    for _ in 0..n {
        steps.push(Step { op: r.get()?, arg1: r.get()?, arg2: r.get()? });
    }
    Ok(Rule { ruleset, kind, min_size, max_size, steps })
}

/// Numbers with names. Very old writers used 64-bit numbers, which shows as an empty name.
fn decode_names(r: &mut Reader) -> Result<Names> {
    let n = r.count("crush name map", 8)?;
    let mut names = BTreeMap::new();
    for _ in 0..n {
        let id: i32 = r.get()?;
        let mut len: u32 = r.get()?;
        if len == 0 {
            len = r.get()?;
        }
        let bytes = r.bytes("crush name", len as usize)?;
        let name = std::str::from_utf8(&bytes).map_err(|e| DecodeError::Invalid {
            what: "crush name",
            found: e.valid_up_to() as u64,
        })?;
        names.insert(id, name.to_owned());
    }
    Ok(names.into_iter().collect())
}
