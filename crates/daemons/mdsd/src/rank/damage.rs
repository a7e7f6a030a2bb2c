//! What was found damaged at rest.

use mds::Ino;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// So many entries are kept (Ceph: `mds_damage_table_max_entries`).
const ENTRIES_MAX: usize = 10_000;

/// Something damaged.
#[derive(Clone, Debug)]
pub struct Damage {
    /// Ceph's name of the kind: `dir_frag`, `dentry`, `backtrace`.
    pub kind: &'static str,
    pub ino: Ino,
    /// Where it was, if that is known.
    pub path: Option<String>,
    pub why: String,
}

/// What is known, each thing once.
#[derive(Default, Debug)]
pub struct DamageTable {
    known: BTreeMap<(&'static str, Ino), (u64, Damage)>,
    last: u64,
}

impl DamageTable {
    /// Notes it.
    pub fn add(&mut self, damage: Damage) {
        let key = (damage.kind, damage.ino);
        if self.known.len() < ENTRIES_MAX && !self.known.contains_key(&key) {
            self.last += 1;
            self.known.insert(key, (self.last, damage));
        }
    }

    /// Forgets an entry.
    pub fn remove(&mut self, id: u64) {
        self.known.retain(|_, (known, _)| *known != id);
    }

    /// What `damage ls` shows (16.2: `DamageTable::dump`), with a reason.
    pub fn to_json(&self) -> Value {
        let each = self.known.values().map(|(id, d)| {
            json!({
                "damage_type": d.kind, "id": id, "ino": d.ino.0,
                "path": d.path.as_deref().unwrap_or_default(), "why": d.why,
            })
        });
        Value::Array(each.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_known_once() {
        let of = |kind, ino| Damage { kind, ino: Ino(ino), path: None, why: String::new() };
        let mut table = DamageTable::default();
        for (kind, ino) in [("dentry", 5), ("dir_frag", 5), ("dentry", 5), ("dentry", 6)] {
            table.add(of(kind, ino));
        }
        let ids = |t: &DamageTable| {
            let all = t.to_json();
            all.as_array().unwrap().iter().map(|d| d["id"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(ids(&table), [1, 3, 2]);
        table.remove(3);
        assert_eq!(ids(&table), [1, 2]);
        table.add(of("dentry", 6));
        assert_eq!(ids(&table), [1, 4, 2]);
    }
}
