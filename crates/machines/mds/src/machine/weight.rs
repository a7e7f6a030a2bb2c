//! Maps and lists that know what they hold takes in memory.
//!
//! Each value has a weight: what its fields and what they point to take, with what the allocator
//! and the map around it add.

use crate::action::Action;
use crate::event::{CapsUpdate, Claim, Event};
use crate::request::{Extra, FileLock, InodeStat, LockKind, Op, Release, Reply, Request};
use crate::types::{Batch, ClientId, DirFrag, Ino, Inode, Name};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash;
use std::ops::Deref;

/// What the allocator and the count of users add to bytes of their own.
pub(crate) const HEAP: usize = 32;

/// So many entries a tree has room for in one node.
const LEAF: usize = 11;

/// What an entry of a large tree takes: nodes of trees are two thirds full, about.
pub(crate) const fn slot<K, V>() -> usize {
    let size = size_of::<K>() + size_of::<V>();
    size + size / 2 + 8
}

/// What a tree takes: the first node is there from the first entry on.
pub(crate) const fn tree<K, V>(len: usize) -> usize {
    let leaf = LEAF * (size_of::<K>() + size_of::<V>()) + HEAP;
    match len {
        0 => 0,
        1..=LEAF => leaf,
        _ => leaf + (len - LEAF) * slot::<K, V>(),
    }
}

/// What a value in a box takes, with its key in a hash table.
pub(crate) const fn boxed<K, V>() -> usize {
    2 * (size_of::<K>() + size_of::<usize>()) + size_of::<V>() + HEAP / 2
}

pub(crate) fn heap(bytes: &Bytes) -> usize {
    if bytes.is_empty() { 0 } else { bytes.len() + HEAP }
}

/// Bytes of their own: those of a message or a page keep all of it in memory.
pub(crate) fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// What was last counted of a value.
#[derive(Clone, Default, Debug)]
pub(crate) struct Weight {
    bytes: usize,
    /// What of it only clients can free.
    pinned: usize,
    touched: bool,
}

impl Weight {
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A value of which the bytes are counted.
pub(crate) trait Weigh {
    /// All that it takes, with its place in a map.
    fn weigh(&self) -> usize;
    /// Whether clients keep it in memory.
    fn is_pinned(&self) -> bool {
        false
    }
    fn weight(&self) -> &Weight;
    fn weight_mut(&mut self) -> &mut Weight;
}

impl<T: Weigh> Weigh for Box<T> {
    fn weigh(&self) -> usize {
        (**self).weigh()
    }

    fn is_pinned(&self) -> bool {
        (**self).is_pinned()
    }

    fn weight(&self) -> &Weight {
        (**self).weight()
    }

    fn weight_mut(&mut self) -> &mut Weight {
        (**self).weight_mut()
    }
}

/// A map that [`Weighed`] can be built on.
pub(crate) trait Map: Default {
    type Key: Copy;
    type Value: Weigh;
    fn put(&mut self, key: Self::Key, value: Self::Value) -> Option<Self::Value>;
    fn take(&mut self, key: &Self::Key) -> Option<Self::Value>;
    fn find(&mut self, key: &Self::Key) -> Option<&mut Self::Value>;
    fn reach(&mut self, key: Self::Key) -> &mut Self::Value
    where
        Self::Value: Default;
    fn all(&self) -> impl Iterator<Item = &Self::Value>;
    /// Gives back what was needed for more values than there are.
    fn fit(&mut self) {}
}

impl<K: Copy + Eq + Hash, V: Weigh> Map for FxHashMap<K, V> {
    type Key = K;
    type Value = V;

    fn put(&mut self, key: K, value: V) -> Option<V> {
        self.insert(key, value)
    }

    fn take(&mut self, key: &K) -> Option<V> {
        self.remove(key)
    }

    fn find(&mut self, key: &K) -> Option<&mut V> {
        self.get_mut(key)
    }

    fn reach(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.entry(key).or_default()
    }

    fn all(&self) -> impl Iterator<Item = &V> {
        self.values()
    }

    fn fit(&mut self) {
        if self.capacity() > 1_024 && self.len() < self.capacity() / 4 {
            self.shrink_to(2 * self.len());
        }
    }
}

impl<K: Copy + Ord, V: Weigh> Map for BTreeMap<K, V> {
    type Key = K;
    type Value = V;

    fn put(&mut self, key: K, value: V) -> Option<V> {
        self.insert(key, value)
    }

    fn take(&mut self, key: &K) -> Option<V> {
        self.remove(key)
    }

    fn find(&mut self, key: &K) -> Option<&mut V> {
        self.get_mut(key)
    }

    fn reach(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.entry(key).or_default()
    }

    fn all(&self) -> impl Iterator<Item = &V> {
        self.values()
    }
}

/// A map that knows what its values take.
#[derive(Debug)]
pub(crate) struct Weighed<M: Map> {
    map: M,
    touched: Vec<M::Key>,
    sum: Sum,
}

/// Bytes of values, and of those that clients keep.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sum {
    pub bytes: usize,
    pub pinned: usize,
    /// Values that clients keep.
    pub pinned_values: usize,
}

impl Sum {
    fn add(&mut self, weight: &Weight) {
        self.bytes += weight.bytes;
        self.pinned += weight.pinned;
        self.pinned_values += usize::from(weight.pinned > 0);
    }

    fn sub(&mut self, weight: &Weight) {
        self.bytes -= weight.bytes;
        self.pinned -= weight.pinned;
        self.pinned_values -= usize::from(weight.pinned > 0);
    }
}

impl<M: Map> Default for Weighed<M> {
    fn default() -> Self {
        Weighed { map: M::default(), touched: Vec::new(), sum: Sum::default() }
    }
}

impl<M: Map> Deref for Weighed<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.map
    }
}

pub(crate) fn same(what: &str, kept: usize, counted: usize) -> Result<(), String> {
    if kept == counted {
        return Ok(());
    }
    Err(format!("{what}: {kept} is kept, {counted} is counted"))
}

fn measure<V: Weigh>(value: &mut V) {
    let bytes = value.weigh();
    let pinned = if value.is_pinned() { bytes } else { 0 };
    *value.weight_mut() = Weight { bytes, pinned, touched: false };
}

fn touch<K, V: Weigh>(touched: &mut Vec<K>, key: K, value: &mut V) {
    let weight = value.weight_mut();
    if !weight.touched {
        weight.touched = true;
        touched.push(key);
    }
}

impl<M: Map> Weighed<M> {
    pub fn insert(&mut self, key: M::Key, mut value: M::Value) -> Option<M::Value> {
        measure(&mut value);
        self.sum.add(value.weight());
        let old = self.map.put(key, value);
        if let Some(old) = &old {
            self.sum.sub(old.weight());
        }
        old
    }

    pub fn remove(&mut self, key: &M::Key) -> Option<M::Value> {
        let old = self.map.take(key)?;
        self.sum.sub(old.weight());
        Some(old)
    }

    /// A value that may change.
    pub fn get_mut(&mut self, key: &M::Key) -> Option<&mut M::Value> {
        let value = self.map.find(key)?;
        touch(&mut self.touched, *key, value);
        Some(value)
    }

    /// A value that may change, and is made if there is none.
    pub fn or_default(&mut self, key: M::Key) -> &mut M::Value
    where
        M::Value: Default,
    {
        let value = self.map.reach(key);
        touch(&mut self.touched, key, value);
        value
    }

    /// A value of which nothing changes that weighs.
    pub fn get_as_it_weighs(&mut self, key: &M::Key) -> Option<&mut M::Value> {
        self.map.find(key)
    }

    /// Weighs what was reached for a change.
    pub fn settle(&mut self, mut each: impl FnMut(&mut M::Value)) {
        while let Some(key) = self.touched.pop() {
            let Some(value) = self.map.find(&key).filter(|v| v.weight().touched) else { continue };
            self.sum.sub(value.weight());
            measure(value);
            self.sum.add(value.weight());
            each(value);
        }
    }

    pub fn sum(&self) -> Sum {
        self.sum
    }

    pub fn fit(&mut self) {
        self.map.fit();
    }

    pub fn check(&self, what: &str) -> Result<(), String> {
        let mut all = Sum::default();
        for value in self.map.all() {
            let bytes = value.weigh();
            let pinned = if value.is_pinned() { bytes } else { 0 };
            all.add(&Weight { bytes, pinned, touched: false });
        }
        if all == self.sum {
            return Ok(());
        }
        Err(format!("{what}: {:?} is kept, {all:?} is counted", self.sum))
    }
}

/// Entries of the cache in the order in which they were used, about.
#[derive(Default, Debug)]
pub(crate) struct Queue {
    list: VecDeque<(DirFrag, Name)>,
    names: usize,
}

impl Queue {
    /// Compares what is kept with a full count.
    pub fn check(&self) -> Result<(), String> {
        same("names", self.names, self.list.iter().map(|(_, name)| heap(name)).sum())
    }

    pub fn push_back(&mut self, entry: (DirFrag, Name)) {
        self.names += heap(&entry.1);
        self.list.push_back(entry);
    }

    pub fn pop_front(&mut self) -> Option<(DirFrag, Name)> {
        let entry = self.list.pop_front()?;
        self.names -= heap(&entry.1);
        if self.list.capacity() > 1_024 && self.list.len() < self.list.capacity() / 4 {
            self.list.shrink_to(2 * self.list.len());
        }
        Some(entry)
    }

    /// Forgets entries of directories.
    pub fn forget(&mut self, dirs: &BTreeSet<DirFrag>) {
        self.list.retain(|(dir, _)| !dirs.contains(dir));
        self.names = self.list.iter().map(|(_, name)| heap(name)).sum();
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn bytes(&self) -> usize {
        self.names + self.list.len() * size_of::<(DirFrag, Name)>()
    }
}

/// What a client had, of an inode that is known.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub cap_id: u64,
    pub issued: u32,
    pub wanted: u32,
    pub locks: Box<[(LockKind, FileLock)]>,
}

/// What clients of the server before this one say that they had. There may be millions, and each
/// of another inode: one tree has them all.
#[derive(Default, Debug)]
pub(crate) struct Claims {
    map: BTreeMap<(Ino, ClientId), Claimed>,
    bytes: usize,
    /// What each client claimed, also what it claims no more.
    lists: FxHashMap<ClientId, Vec<Ino>>,
    listed: usize,
}

fn claim_bytes(claim: &Claimed) -> usize {
    slot::<(Ino, ClientId), Claimed>() + std::mem::size_of_val(&*claim.locks)
}

impl Claims {
    pub fn bytes(&self) -> usize {
        self.bytes + self.listed * size_of::<Ino>()
    }

    /// Compares what is kept with a full count.
    pub fn check(&self) -> Result<(), String> {
        same("claims", self.bytes, self.map.values().map(claim_bytes).sum())?;
        same("lists of claims", self.listed, self.lists.values().map(Vec::len).sum())
    }

    /// Says how many bytes it takes.
    pub fn insert(&mut self, client: ClientId, claim: Claim) -> usize {
        let Claim { ino, cap_id, issued, wanted, locks } = claim;
        let claimed = Claimed { cap_id, issued, wanted, locks: locks.into() };
        let bytes = claim_bytes(&claimed);
        self.bytes += bytes;
        let old = self.map.insert((ino, client), claimed);
        self.bytes -= old.as_ref().map_or(0, claim_bytes);
        self.lists.entry(client).or_default().push(ino);
        self.listed += 1;
        bytes + size_of::<Ino>()
    }

    /// All, in the order of inodes.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Claimed)> {
        self.map.iter().map(|((ino, _), claim)| (*ino, claim))
    }

    /// Inodes that are claimed, each once.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> {
        let mut last = None;
        let each = self.map.keys().map(|(ino, _)| *ino);
        each.filter(move |ino| last.replace(*ino) != Some(*ino))
    }

    pub fn contains(&self, ino: Ino, client: ClientId) -> bool {
        self.map.contains_key(&(ino, client))
    }

    /// A claim of which the locks do not change.
    pub fn get_mut(&mut self, ino: Ino, client: ClientId) -> Option<&mut Claimed> {
        self.map.get_mut(&(ino, client))
    }

    /// Takes all claims of an inode out.
    pub fn remove(&mut self, ino: Ino) -> Vec<(ClientId, Claimed)> {
        let of = self.map.range((ino, ClientId(0))..=(ino, ClientId(u64::MAX)));
        let clients: Vec<ClientId> = of.map(|((_, client), _)| *client).collect();
        let one = |client| Some((client, self.remove_one(ino, client)?));
        clients.into_iter().filter_map(one).collect()
    }

    pub fn remove_one(&mut self, ino: Ino, client: ClientId) -> Option<Claimed> {
        let old = self.map.remove(&(ino, client))?;
        self.bytes -= claim_bytes(&old);
        if self.map.is_empty() {
            self.lists.clear();
            self.listed = 0;
        }
        Some(old)
    }

    /// Other clients' claims are not looked at: sessions end while there are millions.
    pub fn remove_all_of(&mut self, client: ClientId) {
        let list = self.lists.remove(&client).unwrap_or_default();
        self.listed -= list.len();
        for ino in list {
            self.remove_one(ino, client);
        }
    }
}

/// Something that a client is told.
#[derive(Debug)]
struct Told {
    /// Counts what the client is told.
    number: u64,
    /// The batch that must be durable before.
    leaves: Batch,
    /// The batch with which it is safe.
    safe: Batch,
    bytes: usize,
    action: Action,
}

/// What a client is told, in order. Beside that are words that what follows does not wait for: they
/// do not overtake what was said before them.
#[derive(Default, Debug)]
pub(crate) struct Output {
    list: VecDeque<Told>,
    aside: VecDeque<Told>,
    number: u64,
    bytes: usize,
}

impl Output {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Compares what is kept with a full count.
    pub fn check(&self) -> Result<(), String> {
        let all = self.list.iter().chain(&self.aside).map(|t| action_bytes(&t.action));
        same("what clients are told", self.bytes, all.sum())
    }

    fn told(&mut self, leaves: Batch, safe: Batch, action: Action) -> Told {
        let bytes = action_bytes(&action);
        self.bytes += bytes;
        self.number += 1;
        Told { number: self.number, leaves, safe, bytes, action }
    }

    pub fn push(&mut self, leaves: Batch, safe: Batch, action: Action) {
        let told = self.told(leaves, safe, action);
        self.list.push_back(told);
    }

    pub fn push_aside(&mut self, batch: Batch, action: Action) {
        let told = self.told(batch, batch, action);
        self.aside.push_back(told);
    }

    /// The next one, if there is one that may leave.
    pub fn pop(&mut self, durable: Batch) -> Option<Action> {
        let first = |list: &VecDeque<Told>| {
            let told = list.front().filter(|t| t.leaves <= durable)?;
            Some(told.number)
        };
        let next = match (first(&self.list), first(&self.aside)) {
            (Some(number), Some(aside)) if aside < number => self.aside.pop_front(),
            (None, Some(_)) => self.aside.pop_front(),
            (Some(_), _) => self.list.pop_front(),
            (None, None) => None,
        };
        let mut told = next?;
        self.bytes -= told.bytes;
        if told.safe > durable
            && let Action::Reply(client, reply) = &mut told.action
        {
            reply.safe = false;
            let again = Action::Reply(*client, Box::new(Reply::bare(reply.tid, reply.result)));
            self.push_aside(told.safe, again);
        }
        Some(told.action)
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.aside.is_empty()
    }

    /// Whether something waits that what is told later comes behind.
    pub fn waits(&self) -> bool {
        !self.list.is_empty()
    }

    /// All of it, with the batches with which it is safe.
    pub fn into_all(self) -> impl Iterator<Item = (Batch, Action)> {
        let mut all: Vec<Told> = self.list.into_iter().chain(self.aside).collect();
        all.sort_by_key(|t| t.number);
        all.into_iter().map(|t| (t.safe, t.action))
    }
}

pub(crate) fn inode_heap(inode: &Inode) -> usize {
    let xattr = |(n, v): (&Name, &Bytes)| heap(n) + heap(v);
    inode.layout.as_ref().map_or(0, |l| l.namespace.capacity())
        + tree::<ClientId, u64>(inode.ranges.len())
        + tree::<Name, Bytes>(inode.xattrs.len())
        + heap(&inode.symlink)
        + heap(&inode.rest)
        + inode.xattrs.iter().map(xattr).sum::<usize>()
}

fn stat_bytes(stat: &InodeStat) -> usize {
    size_of::<InodeStat>() + size_of::<Inode>() + HEAP + inode_heap(&stat.inode)
}

fn action_bytes(action: &Action) -> usize {
    let more = match action {
        Action::Reply(_, reply) => {
            let page = match &reply.extra {
                Extra::Page { entries, .. } => {
                    entries.iter().map(|(name, _, stat)| heap(name) + stat_bytes(stat)).sum()
                }
                _ => 0,
            };
            let dir = reply.dentry.as_ref().map_or(0, |d| stat_bytes(&d.dir));
            size_of_val(&**reply) + page + dir + reply.target.as_ref().map_or(0, stat_bytes)
        }
        Action::Caps(_, message) => {
            size_of_val(&**message) + size_of::<Inode>() + inode_heap(&message.inode)
        }
        Action::Lease(_, end) => size_of_val(&**end) + HEAP + heap(&end.name),
        _ => 0,
    };
    size_of::<(Batch, usize, Action)>() + more
}

pub(crate) fn request_bytes(request: &Request) -> usize {
    let op = match &request.op {
        Op::Setxattr { name, value, .. } => heap(name) + heap(value),
        Op::Rmxattr { name } => heap(name),
        Op::Symlink { target } => heap(target),
        Op::Readdir { after, .. } => after.as_ref().map_or(0, heap),
        _ => 0,
    };
    let leases = request.releases.iter().filter_map(|r| r.lease.as_ref());
    let leases = leases.map(|(name, _)| heap(name)).sum::<usize>();
    size_of::<Request>()
        + HEAP
        + request.groups.capacity() * size_of::<u32>()
        + heap(&request.path.path)
        + heap(&request.path2.path)
        + request.releases.capacity() * size_of::<Release>()
        + leases
        + op
}

pub(crate) fn update_bytes(update: &CapsUpdate) -> usize {
    let xattrs = update.attrs.xattrs.iter().flatten();
    let xattrs = xattrs.map(|(n, v)| slot::<Name, Bytes>() + heap(n) + heap(v));
    size_of::<CapsUpdate>() + HEAP + xattrs.sum::<usize>()
}

/// What an event takes while it waits.
fn event_bytes(event: &Event) -> usize {
    let more = match event {
        Event::Request(_, request) => request_bytes(request),
        Event::Caps(_, update) => update_bytes(update),
        Event::CapRelease(_, list) => list.capacity() * size_of::<(Ino, u64, u32)>(),
        _ => 0,
    };
    size_of::<Event>() + more
}

/// Requests that clients were answered, in the order in which they come.
#[derive(Default, Debug)]
pub(crate) struct Replays {
    map: BTreeMap<ClientId, VecDeque<Request>>,
    bytes: usize,
}

impl Replays {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Compares what is kept with a full count.
    pub fn check(&self) -> Result<(), String> {
        let all = self.map.values().flatten().map(request_bytes);
        same("requests that were answered", self.bytes, all.sum())
    }

    pub fn clients(&self) -> Vec<ClientId> {
        self.map.keys().copied().collect()
    }

    pub fn push(&mut self, client: ClientId, request: Request) {
        self.bytes += request_bytes(&request);
        self.map.entry(client).or_default().push_back(request);
    }

    pub fn pop(&mut self, client: ClientId) -> Option<Request> {
        let request = self.map.get_mut(&client)?.pop_front();
        self.bytes -= request.as_ref().map_or(0, request_bytes);
        if request.is_none() {
            self.map.remove(&client);
        }
        request
    }

    pub fn forget(&mut self, client: ClientId) {
        let gone = self.map.remove(&client).unwrap_or_default();
        self.bytes -= gone.iter().map(request_bytes).sum::<usize>();
    }
}

/// Events that wait until clients are back, or a subvolume or a tree has come to its owner.
#[derive(Default, Debug)]
pub(crate) struct Deferred {
    list: Vec<Event>,
    bytes: usize,
}

impl Deferred {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Compares what is kept with a full count.
    pub fn check(&self) -> Result<(), String> {
        same("deferred events", self.bytes, self.list.iter().map(event_bytes).sum())
    }

    pub fn push(&mut self, event: Event) {
        self.bytes += event_bytes(&event);
        self.list.push(event);
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Drops a request.
    pub fn forget(&mut self, client: ClientId, tid: u64) {
        let bytes = &mut self.bytes;
        self.list.retain(|event| {
            let keeps = !matches!(event, Event::Request(c, r) if (*c, r.tid) == (client, tid));
            *bytes -= if keeps { 0 } else { event_bytes(event) };
            keeps
        });
    }

    /// Takes all out.
    pub fn take(&mut self) -> Vec<Event> {
        self.bytes = 0;
        std::mem::take(&mut self.list)
    }
}

impl Inode {
    /// Has all that it points to in memory of its own.
    pub(crate) fn detach(&mut self) {
        self.symlink = own(&self.symlink);
        self.rest = own(&self.rest);
        let all = std::mem::take(&mut self.xattrs);
        self.xattrs = all.iter().map(|(n, v)| (own(n), own(v))).collect();
    }
}
