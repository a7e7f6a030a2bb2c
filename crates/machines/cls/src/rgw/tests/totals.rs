//! A header says what its rows say, whatever gateways call, repeat or leave unfinished.

use super::*;

/// Numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % n.max(1) as u64) as usize
    }
}

/// The gateway has ended.
struct Ended;

type Step = Result<(), Ended>;

/// An index, the heads that its entries are of, and a gateway that may end before any call.
struct Gateway {
    o: TestObject,
    dice: Dice,
    /// Sizes of heads, with the epoch that each was written at.
    heads: BTreeMap<ObjKey, (u64, u64)>,
    epoch: u64,
    /// Calls until the gateway ends.
    left: Option<usize>,
    tags: u64,
    seed: u64,
    traced: bool,
    trace: Vec<String>,
}

impl Gateway {
    fn new(seed: u64) -> Self {
        let dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (heads, trace) = (BTreeMap::new(), Vec::new());
        let traced = std::env::var_os("SIPHON_SIM_TRACE").is_some();
        Gateway { o: index(), dice, heads, epoch: 0, left: None, tags: 0, seed, traced, trace }
    }

    /// A call, which may be sent twice: its answer was lost. The second may be refused.
    fn call<T: Encode + std::fmt::Debug>(&mut self, method: &str, op: &T) -> Result<Step, Errno> {
        if let Some(left) = &mut self.left {
            if *left == 0 {
                return Ok(Err(Ended));
            }
            *left -= 1;
        }
        self.o.origin.now.sec += 1;
        let done = self.o.exec("rgw", method, op);
        self.note(|| format!("{method} {op:?}: {:?}", done.as_ref().err()));
        self.check();
        if self.dice.below(4) == 0 {
            let again = self.o.exec("rgw", method, op);
            self.note(|| format!("again: {:?}", again.err()));
            self.check();
        }
        done.map(|_| Ok(()))
    }

    /// Kept with SIPHON_SIM_TRACE: texts take longer than calls.
    fn note(&mut self, what: impl FnOnce() -> String) {
        if self.traced {
            self.trace.push(what());
        }
    }

    fn row(value: &Bytes) -> DirEntry {
        denc::Reader::new(value.clone()).get().unwrap()
    }

    /// The header has the sum over entries that exist: one row of each object or version.
    fn check(&mut self) {
        let mut sum = DirHeader::default();
        for (idx, value) in &self.o.stored.omap {
            let plain = super::super::keys::is_listed(idx) && !idx.contains(&0);
            if !plain && !idx.starts_with(super::super::keys::INSTANCES) {
                continue;
            }
            let entry = Self::row(value);
            // The row of a null version that became a delete marker still says that it exists.
            if entry.exists && !entry.has(flag::DELETE_MARKER) {
                sum.account(&entry.meta);
            }
        }
        let had = list(&mut self.o, ListOp::default()).dir.header;
        let used = |h: DirHeader| -> BTreeMap<_, _> {
            h.stats.into_iter().filter(|(_, s)| *s != CategoryStats::default()).collect()
        };
        assert_eq!(used(had), used(sum), "seed {}\n{}", self.seed, self.trace.join("\n"));
    }

    /// With nothing left unfinished the count of listed rows agrees as well.
    fn check_index(&mut self) {
        let ret: CheckIndexRet = ask(&mut self.o, "bucket_check_index", &());
        let of = |h: &DirHeader| h.stats.get(&ObjCategory::MAIN).copied().unwrap_or_default();
        let (had, counted) = (of(&ret.existing_header), of(&ret.calculated_header));
        assert_eq!(had, counted, "seed {}\n{}", self.seed, self.trace.join("\n"));
    }

    fn tag(&mut self) -> Bytes {
        self.tags += 1;
        format!("t{}", self.tags).into()
    }

    fn prepare(&mut self, op: ModifyOp, key: &ObjKey) -> Result<Bytes, Ended> {
        let tag = self.tag();
        let op = PrepareOp { op, key: key.clone(), tag: tag.clone(), ..PrepareOp::default() };
        self.call("bucket_prepare_op", &op).unwrap()?;
        Ok(tag)
    }

    fn complete(&mut self, op: ModifyOp, key: &ObjKey, tag: Bytes, epoch: u64, size: u64) -> Step {
        let meta = if op == ModifyOp::ADD { meta(size) } else { EntryMeta::default() };
        let ver = EntryVer { pool: 7, epoch };
        let log_op = self.dice.below(2) == 0;
        let op =
            CompleteOp { op, key: key.clone(), tag, ver, meta, log_op, ..CompleteOp::default() };
        // A second gateway can have finished the change.
        self.call("bucket_complete_op", &op).unwrap_or(Ok(()))
    }

    /// Writes a head, which may be given up before.
    fn write(&mut self, key: &ObjKey) -> Step {
        let tag = self.prepare(ModifyOp::ADD, key)?;
        if self.dice.below(8) == 0 {
            return self.complete(ModifyOp::CANCEL, key, tag, 0, 0);
        }
        self.epoch += 1;
        let (size, epoch) = (100 + self.dice.below(10_000) as u64, self.epoch);
        self.heads.insert(key.clone(), (size, epoch));
        if self.dice.below(8) == 0 {
            // Another write of the same object comes between, and completes first.
            self.write(key)?;
        }
        self.complete(ModifyOp::ADD, key, tag, epoch, size)
    }

    fn remove(&mut self, key: &ObjKey) -> Step {
        if !self.heads.contains_key(key) {
            return self.heal(key);
        }
        let tag = self.prepare(ModifyOp::DEL, key)?;
        self.heads.remove(key);
        self.epoch += 1;
        let epoch = self.epoch;
        self.complete(ModifyOp::DEL, key, tag, epoch, 0)
    }

    /// What was announced of an entry is given up, and it becomes as its head is.
    fn heal(&mut self, key: &ObjKey) -> Step {
        let row = |idx: &Bytes| self.o.stored.omap.get(idx).map(Self::row);
        let entry = match row(&super::super::keys::object(key)) {
            // The null version beside others.
            Some(mark) if mark.has(flag::VER_MARKER) => row(&super::super::keys::instance(key)),
            found => found,
        };
        let Some(entry) = entry else { return Ok(()) };
        if entry.has(flag::DELETE_MARKER | flag::VER_MARKER) {
            return Ok(());
        }
        for (tag, _) in entry.pending_map.iter() {
            self.complete(ModifyOp::CANCEL, key, tag.clone(), 0, 0)?;
        }
        match self.heads.get(key).copied() {
            Some((size, epoch)) => {
                let tag = self.prepare(ModifyOp::ADD, key)?;
                self.complete(ModifyOp::ADD, key, tag, epoch, size)
            }
            None => {
                let tag = self.prepare(ModifyOp::DEL, key)?;
                // Later than all that was written.
                self.epoch += 1;
                self.complete(ModifyOp::DEL, key, tag, self.epoch, 0)
            }
        }
    }

    /// The same by the class's means: it looks away while it waits for a change.
    fn suggest(&mut self, key: &ObjKey) -> Step {
        let Some(value) = self.o.stored.omap.get(&super::super::keys::object(key)) else {
            return Ok(());
        };
        let mut entry = Self::row(value);
        if entry.has(flag::DELETE_MARKER | flag::VER_MARKER) {
            return Ok(());
        }
        entry.pending_map = Default::default();
        let what = match self.heads.get(key) {
            Some((size, epoch)) => {
                entry.exists = true;
                entry.meta = meta(*size);
                entry.ver = EntryVer { pool: 7, epoch: *epoch };
                suggestion(suggest::UPDATE, &entry)
            }
            None => suggestion(suggest::REMOVE, &entry),
        };
        for _ in 0..2 {
            self.o.call("rgw", "dir_suggest_changes", what.clone()).unwrap();
            self.note(|| format!("suggested {key:?}"));
            self.check();
        }
        Ok(())
    }

    fn link(&mut self, key: &ObjKey, delete_marker: bool) -> Step {
        let op = LinkOlhOp {
            key: key.clone(),
            olh_tag: "olh".into(),
            delete_marker,
            op_tag: self.tag(),
            log_op: self.dice.below(2) == 0,
            ..LinkOlhOp::default()
        };
        // A delete marker after a delete marker is refused, and a version that is gone.
        self.call("bucket_link_olh", &op).unwrap_or(Ok(()))?;
        self.apply(&key.name)
    }

    fn unlink(&mut self, key: &ObjKey) -> Step {
        let op = UnlinkInstanceOp {
            key: key.clone(),
            op_tag: self.tag(),
            olh_tag: "olh".into(),
            log_op: self.dice.below(2) == 0,
            ..UnlinkInstanceOp::default()
        };
        // Refused if the next version is an object that was announced and never made.
        self.call("bucket_unlink_instance", &op).unwrap_or(Ok(()))?;
        self.apply(&key.name)
    }

    /// Applies the log of an object's versions.
    fn apply(&mut self, name: &Bytes) -> Step {
        let olh = ObjKey::plain(name.clone());
        let op = ReadOlhLogOp { olh: olh.clone(), ver_marker: 0, olh_tag: "olh".into() };
        let Ok(bytes) = self.o.exec("rgw", "bucket_read_olh_log", &op) else { return Ok(()) };
        let log = denc::Reader::new(bytes).get::<ReadOlhLogRet>().unwrap().log;
        let Some(last) = log.keys().next_back().copied() else { return Ok(()) };
        let mut unlinked = false;
        for entry in log.values().flatten() {
            match entry.op {
                OlhLogOp::REMOVE_INSTANCE => {
                    let mut key = entry.key.clone();
                    if &key.instance[..] == b"null" {
                        key.instance = Bytes::new();
                    }
                    self.remove(&key)?;
                }
                OlhLogOp::LINK_OLH => unlinked = false,
                _ => unlinked = true,
            }
        }
        let trim = TrimOlhLogOp { olh: olh.clone(), ver: last, olh_tag: "olh".into() };
        self.call("bucket_trim_olh_log", &trim).unwrap_or(Ok(()))?;
        if unlinked {
            let clear = ClearOlhOp { key: olh, olh_tag: "olh".into() };
            self.call("bucket_clear_olh", &clear).unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    fn has_versions(&self, name: &Bytes) -> bool {
        self.o.stored.omap.contains_key(&super::super::keys::olh(name))
    }

    /// Versions of an object that its index lists.
    fn listed(&mut self, name: &Bytes) -> Vec<ObjKey> {
        self.listed_entries(name).into_iter().map(|e| e.key).collect()
    }

    fn listed_entries(&mut self, name: &Bytes) -> Vec<DirEntry> {
        let ret = list(&mut self.o, ListOp { list_versions: true, ..all() });
        ret.dir.entries.into_values().filter(|e| e.key.name == *name).collect()
    }

    fn change(&mut self, versions: Versions, name: Bytes) -> Step {
        let plain = ObjKey::plain(name.clone());
        let what = self.dice.below(8);
        let fresh = |g: &mut Self| ObjKey { name: name.clone(), instance: g.tag() };
        match (versions, what) {
            (Versions::None, 0..5) => self.write(&plain),
            (Versions::None, _) => self.remove(&plain),
            (_, 0..2) => {
                let listed = self.listed(&name);
                match listed.get(self.dice.below(listed.len())) {
                    Some(key) => self.unlink(&key.clone()),
                    None => Ok(()),
                }
            }
            (Versions::Enabled, 2..4) => {
                let marker = fresh(self);
                self.link(&marker, true)
            }
            (Versions::Suspended, 2..4) => self.link(&plain, true),
            (Versions::Enabled, _) => {
                let key = fresh(self);
                self.write(&key)?;
                if self.heads.contains_key(&key) { self.link(&key, false) } else { Ok(()) }
            }
            (Versions::Suspended, _) => {
                self.write(&plain)?;
                let linked = self.has_versions(&name) && self.heads.contains_key(&plain);
                if linked { self.link(&plain, false) } else { Ok(()) }
            }
        }
    }

    /// Finishes what gateways that ended have left of an object.
    fn settle(&mut self, name: &Bytes) {
        let keys: Vec<ObjKey> = self
            .o
            .stored
            .omap
            .iter()
            .filter(|(idx, _)| idx.starts_with(super::super::keys::INSTANCES))
            .map(|(_, value)| Self::row(value).key)
            .chain([ObjKey::plain(name.clone())])
            .filter(|key| key.name == *name)
            .collect();
        let _ = self.apply(name);
        let listed = self.listed(name);
        for key in keys {
            if !key.instance.is_empty() && !listed.contains(&key) && self.heads.contains_key(&key) {
                // It was written, and never linked.
                let _ = self.remove(&key);
            }
            let _ = self.heal(&key);
        }
        let plain = ObjKey::plain(name.clone());
        let object = |e: &DirEntry| e.key == plain && !e.has(flag::DELETE_MARKER);
        if self.has_versions(name)
            && self.heads.contains_key(&plain)
            && !self.listed_entries(name).iter().any(object)
        {
            let _ = self.link(&plain, false);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Versions {
    None,
    Enabled,
    Suspended,
}

fn seeds() -> u64 {
    std::env::var("SIPHON_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(25)
}

/// Gateways that end before any of their calls, and others that go on.
#[test]
fn a_header_has_the_sum_of_its_entries() {
    for seed in 0..seeds() {
        let mut g = Gateway::new(seed);
        let mut versions = Versions::None;
        for _ in 0..40 {
            match g.dice.below(12) {
                0 => versions = Versions::Enabled,
                1 if !matches!(versions, Versions::None) => versions = Versions::Suspended,
                _ => {}
            }
            let name = Bytes::from(format!("o{}", g.dice.below(2)));
            g.left = (g.dice.below(3) == 0).then(|| g.dice.below(7));
            if g.change(versions, name.clone()).is_err() {
                g.note(|| "ended".into());
                g.left = None;
                // A null version that was written and not linked must be linked before another
                // change: the class takes it for one that is not there when the versions go.
                let must = matches!(versions, Versions::Suspended);
                match if must { 0 } else { g.dice.below(3) } {
                    0 => g.settle(&name),
                    1 => {
                        g.o.origin.now.sec += 200;
                        let _ = g.suggest(&ObjKey::plain(name));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Where no gateway ends, or what it left is settled, listed rows have the same sum.
#[test]
fn listed_rows_have_the_sum_of_the_header() {
    for (seed, ends) in (0..seeds()).flat_map(|s| [(s, false), (s, true)]) {
        let mut g = Gateway::new(seed);
        let mut versions = Versions::None;
        for _ in 0..30 {
            if g.dice.below(12) == 0 {
                versions = Versions::Enabled;
            }
            let name = Bytes::from(format!("o{}", g.dice.below(2)));
            g.left = (ends && g.dice.below(3) == 0).then(|| g.dice.below(7));
            let _ = g.change(versions, name.clone());
            g.left = None;
            g.settle(&name);
            g.check_index();
        }
    }
}
