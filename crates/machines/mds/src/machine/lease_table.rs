//! Which clients have leases of which names, and directories of which no client has all names.

use super::few::Few;
use super::operation::OpId;
use super::weight::{heap, own, same, slot};
use crate::types::{ClientId, Ino, Name, Steady};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};

/// So many clients of a shared directory are known to be learning its names at most.
pub(crate) const LEARNING_MAX: usize = 16;

/// A client's lease of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub until: Steady,
    pub seq: u32,
    /// The client was asked for it.
    pub asked: bool,
}

/// Leases of one name.
#[derive(Default, Debug)]
pub(crate) struct Named {
    pub held: Few<ClientId, Held>,
    /// Operations that change it: no more leases of it are given.
    pub ops: Vec<OpId>,
    /// Leases of the server before this one are among them, if there are any.
    pub unknown: bool,
}

impl Named {
    fn weigh(&self, name: &Name) -> usize {
        slot::<(Ino, Name), Named>()
            + heap(name)
            + self.held.bytes()
            + self.ops.capacity() * size_of::<OpId>()
    }

    fn is_waited_for(&self) -> bool {
        !self.held.is_empty() && !self.ops.is_empty()
    }
}

/// A directory of which no client has all names.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub until: Steady,
    pub length: u64,
    /// The client of the last change.
    pub by: ClientId,
    /// Up to here another client may have a lease.
    pub read_until: Steady,
    /// Clients that do not take all of it for known, whatever they have listed.
    pub learning: Few<ClientId, ()>,
}

/// Leases of all names.
#[derive(Default, Debug)]
pub(crate) struct Leases {
    pub names: BTreeMap<(Ino, Name), Named>,
    /// Names in the order in which leases of them end.
    pub ends: VecDeque<(Steady, Ino, Name)>,
    /// How many leases clients have.
    of: FxHashMap<ClientId, usize>,
    pub shared: BTreeMap<Ino, Shared>,
    /// Pages that wait for changes of names that have begun.
    pub lists: BTreeMap<Ino, Vec<(OpId, ClientId)>>,
    /// The number of the last lease.
    pub last: u32,
    /// There may be leases of the server before this one, which has just begun.
    pub unknown: bool,
    /// Up to here there may be some.
    pub unknown_until: Steady,
    /// Names of which a lease is waited for.
    pub waited: usize,
    bytes: usize,
}

impl Leases {
    pub fn bytes(&self) -> usize {
        self.bytes
            + self.ends.capacity() * size_of::<(Steady, Ino, Name)>()
            + self.of.len() * slot::<ClientId, usize>()
            + self.shared.len() * (slot::<Ino, Shared>() + LEARNING_MAX * size_of::<ClientId>())
    }

    /// Compares what is kept with a full count.
    pub fn check(&self) -> Result<(), String> {
        let all = self.names.iter().map(|((_, name), named)| named.weigh(name));
        same("leases", self.bytes, all.sum())?;
        let held = self.names.values().map(|n| n.held.len());
        same("leases of clients", self.of.values().sum(), held.sum())?;
        let waited = self.names.values().filter(|n| n.is_waited_for()).count();
        same("leases that are waited for", self.waited, waited)
    }

    /// How many leases a client has.
    pub fn count(&self, client: ClientId) -> usize {
        self.of.get(&client).copied().unwrap_or(0)
    }

    /// Changes what is known of a name.
    pub fn change<T>(&mut self, dir: Ino, name: &Name, how: impl FnOnce(&mut Named) -> T) -> T {
        let key = match self.names.get_key_value(&(dir, name.clone())) {
            Some((key, _)) => key.clone(),
            None => (dir, own(name)),
        };
        let mut named = self.names.remove(&key).inspect(|named| {
            self.bytes -= named.weigh(&key.1);
            self.waited -= usize::from(named.is_waited_for());
        });
        let done = how(named.get_or_insert_default());
        if let Some(named) = named
            && (named.unknown || !named.held.is_empty() || !named.ops.is_empty())
        {
            self.bytes += named.weigh(&key.1);
            self.waited += usize::from(named.is_waited_for());
            self.names.insert(key, named);
        }
        done
    }

    /// Gives a client a lease, or a longer one.
    pub fn give(&mut self, client: ClientId, dir: Ino, name: &Name, held: Held) {
        let is_new = self.change(dir, name, |named| named.held.insert(client, held).is_none());
        *self.of.entry(client).or_default() += usize::from(is_new);
        self.ends_at(held.until, dir, name);
    }

    /// Notes when it is to be looked for leases of a name that end.
    pub fn ends_at(&mut self, until: Steady, dir: Ino, name: &Name) {
        if let Some(((_, kept), _)) = self.names.get_key_value(&(dir, name.clone())) {
            self.ends.push_back((until, dir, kept.clone()));
        }
    }

    /// Ends leases of a name. Says which operations need not wait any more.
    pub fn end(
        &mut self,
        dir: Ino,
        name: &Name,
        of: impl Fn(ClientId, &Held) -> bool,
    ) -> Vec<OpId> {
        if !self.names.contains_key(&(dir, name.clone())) {
            return Vec::new();
        }
        let (gone, ops) = self.change(dir, name, |named| {
            let gone = named.held.iter().filter(|(c, held)| of(**c, held)).map(|(c, _)| *c);
            let gone: Vec<ClientId> = gone.collect();
            for client in &gone {
                named.held.remove(client);
            }
            let free = !gone.is_empty() && named.held.is_empty();
            (gone, if free { named.ops.clone() } else { Vec::new() })
        });
        for client in gone {
            if let Some(count) = self.of.get_mut(&client) {
                *count -= 1;
                if *count == 0 {
                    self.of.remove(&client);
                }
            }
        }
        ops
    }
}
