//! A subvolume, or another directory with all below it, goes to the owner that a pin names.
//!
//! Inodes of a subvolume have numbers of a space of their own, which stay. The space gets another
//! owner. The first owner knows where each space is that it does not have itself; all others send
//! what they do not have to the first one. So a move is to the first owner or from it. Of another
//! directory, a *tree*, single numbers get another owner: see [`trees`](super::trees).
//!
//! ```text
//! the owner that has it                 the other owner
//!   requests of it wait, clients give all back
//!   logs that it has it no more
//!   writes all of it to its place at rest
//!   logs that this is done
//!   Give ─────────────────────────────►  logs that it has it
//!        ◄───────────────────────────── Taken
//! ```
//!
//! Up to the first record, a crash leaves it where it was. From there on it comes to the other
//! owner, and no owner serves it on its way.

use super::Mds;
use super::node::{Fetch, Link, Node};
use super::operation::{Exec, Kind, OpId, OpState, Stop, fail};
use super::state::{Moving, RootAbove, Walk, What};
use super::stats::{self, Change};
use crate::action::{Action, CapsMessage, CapsOp};
use crate::caps;
use crate::conf::Bug;
use crate::event::{CapsUpdate, Event};
use crate::peer::{Lot, LotId, Message, OwnerTables, Parcel, Prepare, Refusal, Root};
use crate::request::{FilePath, Request};
use crate::types::{Batch, ClientId, DirFrag, Ino, Inode, Name, Rank, SessionRecord, Space};
use std::collections::{BTreeMap, BTreeSet};
use types::Errno;

/// The owner that knows where all are.
pub(super) const FIRST: Rank = Rank(0);

impl Mds {
    /// The subvolume that an inode is of, as far as its number or its place in memory says.
    fn subvolume_of(&self, ino: Ino) -> Option<Space> {
        match ino.space() {
            space if space >= Space::FIRST => Some(space),
            _ => self.peers.odd.get(&ino).copied(),
        }
    }

    /// The subvolume that an inode is of, or the tree on its way.
    pub(crate) fn lot_of(&self, ino: Ino) -> Option<LotId> {
        match self.subvolume_of(ino) {
            Some(space) => Some(LotId::Space(space)),
            None => self.tree_of(ino).map(LotId::Tree),
        }
    }

    /// The owner that has an inode because its subvolume, or a tree, moved.
    pub(crate) fn mover(&self, ino: Ino) -> Option<Rank> {
        let subvolume = || self.subvolume_of(ino).map(LotId::Space);
        let lots = &self.peers.lots;
        if !lots.is_empty()
            && let Some(lot) = subvolume().and_then(|id| lots.get(&id))
        {
            let here = lot.parcel.is_some() && !lot.rested;
            return Some(if here { self.conf.rank } else { lot.holder });
        }
        self.peers.runs.get(ino)
    }

    /// Whether no requests of a subvolume or tree are carried out, as it goes to another owner.
    fn is_stopped(&self, id: LotId) -> bool {
        self.peers.moving.get(&id).is_some_and(|m| m.stopped)
            || self.peers.lots.get(&id).is_some_and(|l| l.parcel.is_some())
    }

    fn stops(&self, ino: Ino) -> Option<LotId> {
        if self.peers.moving.is_empty() && self.peers.lots.is_empty() {
            return None;
        }
        self.lot_of(ino).filter(|id| self.is_stopped(*id))
    }

    /// Whether this owner carries out requests of an inode.
    pub(crate) fn serves(&self, ino: Ino) -> bool {
        self.is_mine(ino) && self.stops(ino).is_none() && !self.may_be_walked(ino)
    }

    /// Has the current operation wait if the inode is of what is on its way.
    pub(crate) fn passes(&mut self, ino: Ino) -> Exec<()> {
        if self.may_be_walked(ino) && self.nodes.contains_key(&ino) && self.is_mine(ino) {
            self.chain(ino)?;
        }
        self.stops(ino).map_or(Ok(()), |id| Err(Stop::Park(id)))
    }

    /// Whether clients can have nothing of an inode here: it is another owner's, or has been let
    /// go.
    pub(crate) fn has_gone(&self, ino: Ino) -> bool {
        let lot = || self.peers.lots.get(&self.lot_of(ino)?);
        !self.is_mine(ino) || lot().is_some_and(|l| l.parcel.is_some())
    }

    /// Whether a subvolume or a tree moves, or is to.
    pub(crate) fn has_moves(&self) -> bool {
        let p = &self.peers;
        !(p.moving.is_empty() && p.recalls.is_empty())
            || p.lots.values().any(|l| l.parcel.is_some())
    }

    /// The names above the root of a part, if that moved here.
    pub(crate) fn way_above(&self, part: Ino) -> Option<Vec<Name>> {
        let space = self.peers.odd.get(&part).copied();
        let lot = self.peers.lots.get(&space.map_or(LotId::Tree(part), LotId::Space))?;
        (lot.root == part && self.conf.rank != FIRST).then(|| lot.way.clone())
    }

    /// What a half says that goes on at another inode. Names of a subvolume are with its owner
    /// alone.
    pub(crate) fn elsewhere(&self, prepare: &Prepare, path: FilePath) -> Refusal {
        let holder = self.keeper(path.ino);
        if self.subvolume_of(path.ino).is_some()
            && self.mover(path.ino).is_some()
            && holder != self.conf.rank
            && holder != prepare.txn.rank
        {
            return Refusal::Errno(Errno::EXDEV.0);
        }
        if prepare.halves.iter().any(|half| half.begins_at() == Some(path.ino)) {
            return Refusal::With(path.ino, holder);
        }
        Refusal::Elsewhere(path)
    }

    // What belongs to a subvolume.

    /// Notes what is the root of a subvolume, or older than the subvolume that it is in.
    pub(crate) fn note_odd(&mut self, inode: &Inode, parent: Option<&(Ino, Name)>) {
        if inode.space != Space(0) {
            return self.note_root(inode.ino, inode.space);
        }
        if inode.pin != 0 && inode.is_dir() {
            self.note_pinned(inode.ino);
        }
        if !inode.is_dir() || inode.ino.space() >= Space::FIRST {
            return;
        }
        let above = parent.and_then(|(dir, _)| self.nodes.get(dir));
        if let Some(space) = above.map(|n| n.inode.space).filter(|s| *s != Space(0)) {
            self.note_older(inode.ino, space);
        }
    }

    /// Notes the root of a subvolume.
    pub(crate) fn note_root(&mut self, root: Ino, space: Space) {
        self.cancel_move(LotId::Tree(root));
        self.peers.odd.insert(root, space);
        self.peers.choose.insert(LotId::Space(space));
        let entries = self.dirs.get(&DirFrag::whole(root)).map(|d| d.entries.values());
        let below = entries.into_iter().flatten().filter_map(|e| match e.link {
            Link::Primary(ino) if ino.space() < Space::FIRST => Some(ino),
            _ => None,
        });
        for ino in below.filter(|ino| self.is_dir(*ino)).collect::<Vec<_>>() {
            self.note_older(ino, space);
        }
    }

    fn note_older(&mut self, ino: Ino, space: Space) {
        if self.peers.odd.contains_key(&ino) {
            return;
        }
        self.cancel_move(LotId::Tree(ino));
        // Below a directory that another owner made, or has, are more with such numbers.
        let stays = self.peers.runs.get(ino).is_none() && self.peers.transit.get(ino).is_none();
        if ino.owner() == FIRST && stays {
            self.peers.odd.insert(ino, space);
        } else {
            self.peers.mixed.insert(space);
        }
    }

    /// Whether an inode has to stay in memory, as it is to go along with its subvolume.
    pub(crate) fn goes_along(&self, ino: Ino, node: &Node) -> bool {
        let moving = &self.peers.moving;
        if moving.is_empty() {
            return false;
        }
        let stray = node.parent.as_ref().is_some_and(|(dir, _)| dir.is_stray_dir());
        let is_of = || self.lot_of(ino).is_some_and(|id| moving.contains_key(&id));
        moving.values().any(|m| m.root == ino) || stray && is_of()
    }

    // Which owner it is to have.

    /// A directory says something else of where those below it are.
    pub(crate) fn pin_changed(&mut self, ino: Ino) {
        self.peers.choose_all = true;
        self.pin_of_tree_changed(ino);
        if self.peers.roots.contains_key(&ino) {
            self.peers.urgent.insert(ino);
        }
    }

    /// The root of a part has been reported.
    pub(crate) fn choose_root(&mut self, ino: Ino) {
        match self.peers.odd.get(&ino) {
            Some(space) => drop(self.peers.choose.insert(LotId::Space(*space))),
            None => self.choose_tree(ino),
        }
    }

    /// Looks which owner a subvolume or a tree is to have, and begins to move it there.
    pub(crate) fn choose_owner(&mut self, id: LotId) -> Exec<()> {
        let lot = self.peers.lots.get(&id);
        if lot.is_some_and(|l| l.parcel.is_some()) {
            return Ok(());
        }
        let root = match id {
            LotId::Space(space) => lot.map(|l| l.root).or_else(|| self.roots.get(&space).copied()),
            LotId::Tree(root) => self.is_known_tree(root).then_some(root),
        };
        let Some(root) = root else { return Ok(()) };
        if !self.nodes.contains_key(&root) {
            self.load(root)?;
        }
        self.chain(root)?;
        let Some(to) = self.wished(id, root) else { return Ok(()) };
        let (holder, turn) = self.holder_of(id);
        if holder != self.conf.rank {
            let lot = self.peers.lots.get(&id);
            // The holder goes by these names.
            let same = lot.is_none_or(|l| l.way == self.way_to(root));
            if to == self.in_place_of(holder) && same || self.has_to_wait(id) {
                self.peers.recalls.remove(&id);
            } else if self.peers.recalls.insert(id) {
                self.say(holder, Batch(0), Message::Recall(id, turn));
            }
        } else if self.peers.moving.get(&id).is_none_or(|m| m.to != to) {
            self.cancel_move(id);
            if to != self.conf.rank && self.may_begin(id) {
                self.begin_move(id, root, to);
            }
        }
        Ok(())
    }

    /// The owner that has a subvolume or a tree, and the count of its moves.
    fn holder_of(&self, id: LotId) -> (Rank, u64) {
        let lot = self.peers.lots.get(&id);
        let holder = match id {
            LotId::Space(_) => lot.map_or(self.conf.rank, |l| l.holder),
            LotId::Tree(root) => self.keeper(root),
        };
        (holder, lot.map_or(0, |l| l.turn))
    }

    fn may_begin(&mut self, id: LotId) -> bool {
        match id {
            LotId::Space(space) => !self.peers.mixed.contains(&space),
            LotId::Tree(root) => self.tree_may_begin(root),
        }
    }

    /// Nothing is wanted back of a directory that was removed.
    pub(crate) fn root_is_removed(&mut self, root: Ino) {
        let space = self.peers.odd.get(&root).copied();
        self.peers.recalls.remove(&space.map_or(LotId::Tree(root), LotId::Space));
    }

    /// The first owner wants something back.
    pub(crate) fn take_recall(&mut self, from: Rank, id: LotId, turn: u64) {
        let me = self.conf.rank;
        let root = match (id, self.peers.lots.get(&id)) {
            (_, Some(l)) if l.holder == me && l.turn == turn && l.parcel.is_none() => Some(l.root),
            // It was made here.
            (LotId::Tree(root), None) if turn == 0 && self.is_mine(root) => Some(root),
            _ => None,
        };
        if let Some(root) = root.filter(|root| self.peers.roots.contains_key(root))
            && from == FIRST
            && self.peers.leaving.is_none()
            && !self.peers.moving.contains_key(&id)
        {
            if self.has_to_wait(id) {
                self.say(FIRST, Batch(0), Message::Stays(id, turn));
            } else if self.may_begin(id) {
                self.begin_move(id, root, FIRST);
            }
        }
    }

    fn begin_move(&mut self, id: LotId, root: Ino, to: Rank) {
        let tree = matches!(id, LotId::Tree(_));
        let moving = Moving {
            to,
            root,
            looked: 0,
            found: tree,
            look: tree,
            stopped: false,
            held: BTreeSet::new(),
            walk: Walk::default(),
        };
        self.peers.moving.insert(id, moving);
        if let LotId::Space(space) = id {
            self.start(ClientId(0), Kind::Collect(space));
        }
    }

    /// Nothing happens of a move that is not in the log.
    pub(crate) fn cancel_move(&mut self, id: LotId) {
        if self.put_off(id) {
            self.one_is_over();
        }
    }

    /// Has a move begin anew later. Says whether there was one.
    pub(crate) fn put_off(&mut self, id: LotId) -> bool {
        let Some(moving) = self.peers.moving.remove(&id) else { return false };
        self.forget_walk(id);
        if moving.stopped {
            self.goes_on(id);
        }
        true
    }

    /// Requests of a subvolume or a tree are carried out again.
    fn goes_on(&mut self, id: LotId) {
        let held = self.nodes.iter().filter(|(_, n)| !n.caps.is_empty()).map(|(ino, _)| *ino);
        let any = matches!(id, LotId::Tree(_));
        let held: Vec<Ino> = held.filter(|ino| any || self.lot_of(*ino) == Some(id)).collect();
        self.judge.extend(held);
        self.unpark(id);
    }

    // Requests that come meanwhile.

    /// Keeps a request until that which it is about has come to its owner.
    pub(crate) fn park(&mut self, id: LotId, client: ClientId, request: &Request) {
        let parked = self.peers.parked.entry(id).or_default();
        parked.forget(client, request.tid);
        // What came back with it was taken in.
        let request = Request { releases: Vec::new(), ..request.clone() };
        parked.push(Event::Request(client, request));
    }

    fn unpark(&mut self, id: LotId) {
        for event in self.peers.parked.remove(&id).unwrap_or_default().take() {
            self.take(event);
        }
    }

    /// Says again that a flush is durable which came before its inode went.
    pub(crate) fn flushed_before(&mut self, client: ClientId, update: &CapsUpdate) {
        let Some(flush) = update.flush else { return };
        let Some(session) = self.sessions.get(&client) else { return };
        if session.record.flushes.contains_key(&flush) {
            let op = CapsOp::FlushAck { flush, dirty: update.dirty };
            self.tell_of_gone(client, update.ino, (update.cap_id, 0), op);
        }
    }

    /// Tells a client of a capability of an inode that is not here, with what the client wants.
    fn tell_of_gone(
        &mut self,
        client: ClientId,
        ino: Ino,
        (cap_id, wanted): (u64, u32),
        op: CapsOp,
    ) {
        let message = CapsMessage {
            op,
            inode: Box::new(Inode { ino, ..Inode::default() }),
            layout: None,
            cap_id,
            seq: 0,
            caps: caps::PIN,
            wanted,
            max_size: 0,
        };
        self.tell(client, self.log.newest(), Action::Caps(client, Box::new(message)));
    }

    // Step by step.

    /// Goes on with what moves. Says whether there was something to do.
    pub(crate) fn move_on(&mut self) -> bool {
        if !self.is_active() {
            return false;
        }
        if self.choose_next() || self.report_urgent() {
            return true;
        }
        let all: Vec<LotId> = self.peers.moving.keys().copied().collect();
        if self.peers.leaving.is_some() {
            self.peers.recalls.clear();
            all.iter().for_each(|id| self.cancel_move(*id));
            if !all.is_empty() {
                return true;
            }
        }
        if all.into_iter().any(|id| self.move_step(id)) {
            return true;
        }
        let go = self.peers.lots.iter().filter(|(_, l)| l.parcel.is_some() && !l.rested);
        let go: Vec<LotId> = go.map(|(id, _)| *id).collect();
        go.into_iter().any(|id| self.rest_lot(id))
    }

    fn choose_next(&mut self) -> bool {
        if self.conf.rank != FIRST || !self.conf.moves {
            self.peers.choose.clear();
            self.peers.choose_all = false;
            return false;
        }
        if self.conf.owners <= 1 || self.peers.leaving.is_some() {
            return false;
        }
        if std::mem::take(&mut self.peers.choose_all) {
            let peers = &mut self.peers;
            peers.choose.extend(self.roots.keys().map(|space| LotId::Space(*space)));
            peers.choose.extend(peers.lots.keys());
            peers.choose.extend(peers.moving.keys());
            peers.choose.extend(peers.pinned.iter().map(|root| LotId::Tree(*root)));
        }
        let all = std::mem::take(&mut self.peers.choose);
        for id in &all {
            self.start(ClientId(0), Kind::Choose(*id));
        }
        !all.is_empty()
    }

    /// Reports roots of which the pin was changed: the first owner decides by it.
    fn report_urgent(&mut self) -> bool {
        let mut begun = false;
        for ino in self.peers.urgent.clone() {
            if self.is_being_written(&What::Base(ino)) {
                continue;
            }
            self.peers.urgent.remove(&ino);
            if self.dirty_base.contains_key(&ino) && self.peers.roots.contains_key(&ino) {
                self.write_base(ino);
                begun = true;
            }
        }
        begun
    }

    /// Finds all that is to go along, and has it in memory: directories with other numbers in the
    /// root, and strays.
    pub(crate) fn collect(&mut self, space: Space, state: &mut OpState) -> Exec<()> {
        let id = LotId::Space(space);
        let Some(root) = self.peers.moving.get(&id).map(|m| m.root) else { return Ok(()) };
        let ranks = std::iter::once(self.conf.rank).chain(self.peers.kept.iter().copied());
        let strays = ranks.flat_map(|r| (0..Ino::STRAYS).map(move |i| Ino::stray_of(r, i)));
        let dirs: Vec<Ino> = std::iter::once(root).chain(strays).collect();
        while let Some(moving) = self.peers.moving.get(&id)
            && let Some(dir) = dirs.get(moving.looked)
        {
            self.chain(*dir)?;
            self.scan_strays(*dir, state)?;
            if let Some(moving) = self.peers.moving.get_mut(&id) {
                moving.looked += 1;
            }
        }
        if self.peers.mixed.contains(&space) {
            return fail(Errno::EXDEV);
        }
        if let Some(moving) = self.peers.moving.get_mut(&id) {
            (moving.found, moving.look) = (true, true);
        }
        Ok(())
    }

    /// Goes on with a move that is not in the log. Says whether there was something to do.
    fn move_step(&mut self, id: LotId) -> bool {
        let Some(moving) = self.peers.moving.get_mut(&id).filter(|m| m.found) else {
            return false;
        };
        if self.nodes.get(&moving.root).is_none_or(|n| n.inode.nlink == 0) {
            self.cancel_move(id);
            return true;
        }
        if !moving.stopped {
            if !std::mem::take(&mut moving.look) || self.has_to_stay(id) {
                return false;
            }
            self.stop(id);
            return true;
        }
        if let LotId::Tree(root) = id
            && !moving.walk.done
        {
            return self.walk_on(root);
        }
        if self.holds_some(id) {
            return false;
        }
        if self.has_to_stay(id) {
            // One of the last requests has left a lock, or a file without a name.
            if let Some(moving) = self.peers.moving.get_mut(&id) {
                (moving.stopped, moving.look) = (false, false);
            }
            self.forget_walk(id);
            self.goes_on(id);
            return true;
        }
        self.let_go(id);
        true
    }

    /// Whether a client has what could not be carried over: a lock, or a file without a name.
    fn has_to_stay(&self, id: LotId) -> bool {
        let of = |ino: &Ino| match id {
            LotId::Space(_) => self.lot_of(*ino) == Some(id),
            LotId::Tree(root) => self.seems_within(*ino, root),
        };
        let stays = |n: &Node| n.locks.is_some() || self.is_open_and_gone(n);
        self.nodes.iter().any(|(ino, n)| stays(n) && of(ino))
            || self.claims.iter().any(|(ino, claim)| !claim.locks.is_empty() && of(&ino))
    }

    /// Has requests of a subvolume or a tree wait, and clients give all back.
    fn stop(&mut self, id: LotId) {
        // They are tried from their beginning, and find that it is on its way.
        let begun = self.ops.iter().filter(|(id, s)| match s.kind {
            Kind::Request(_) => self.entrance.has_begun(**id),
            Kind::Prepare(_) => true,
            _ => false,
        });
        let begun: Vec<OpId> = begun.map(|(id, _)| *id).collect();
        self.again.extend(begun);
        if let Some(moving) = self.peers.moving.get_mut(&id) {
            moving.stopped = true;
        }
        match id {
            LotId::Space(_) => self.take_all_back(id),
            LotId::Tree(root) => self.begin_walk(root),
        }
    }

    /// Has clients give all back of what is known to be on its way.
    pub(crate) fn take_all_back(&mut self, id: LotId) {
        let of = |ino: &Ino| self.lot_of(*ino) == Some(id);
        let held = self.nodes.iter().filter(|(_, n)| !n.caps.is_empty()).map(|(ino, _)| *ino);
        let held: BTreeSet<Ino> = held.filter(of).collect();
        let claimed: Vec<Ino> = self.claims.inodes().filter(of).collect();
        self.judge.extend(held.iter().copied());
        if let Some(moving) = self.peers.moving.get_mut(&id) {
            moving.held = held;
        }
        for ino in claimed {
            self.start(ClientId(0), Kind::Claimed(ino));
        }
        self.take_leases_back(|mds, dir| mds.lot_of(dir) == Some(id));
    }

    /// Clients had something of an inode before a failover.
    pub(crate) fn still_held(&mut self, ino: Ino) {
        if let Some(id) = self.lot_of(ino)
            && let Some(moving) = self.peers.moving.get_mut(&id)
        {
            moving.held.insert(ino);
        }
    }

    /// Whether something of a subvolume or a tree is under way, or with clients.
    fn holds_some(&mut self, id: LotId) -> bool {
        let of = |ino: &Ino| self.lot_of(*ino) == Some(id);
        let kind = |kind: &Kind| match kind {
            Kind::Caps(update) => of(&update.ino),
            Kind::Purged(ino) | Kind::Rehome(ino) | Kind::Sized(ino, _) | Kind::Claimed(ino) => {
                of(ino)
            }
            _ => false,
        };
        let half = |h: &crate::peer::Held| of(&h.found.ino) || of(&h.dir);
        if self.ops.values().any(|s| kind(&s.kind))
            || self.peers.prepared.values().any(|(_, p)| p.halves.iter().any(half))
            || self.purging.iter().any(of)
            || self.size_work.values().any(of)
            || self.claims.iter().any(|(ino, _)| of(&ino))
            || self.recovering.iter().any(|ino| of(ino) && self.nodes.contains_key(ino))
            || self.truncating.iter().any(|ino| of(ino) && self.nodes.contains_key(ino))
        {
            return true;
        }
        if self.has_leases_of(|mds, dir| mds.lot_of(dir) == Some(id)) {
            return true;
        }
        let Some(moving) = self.peers.moving.get_mut(&id) else { return false };
        while let Some(ino) = moving.held.first() {
            let node = self.nodes.get(ino);
            let early = self.conf.bug == Bug::MoveWithCaps;
            let has = |n: &Node| n.caps.values().any(|c| c.issued() & !caps::PIN != 0);
            if !early && node.is_some_and(|n| has(n)) {
                return true;
            }
            moving.held.pop_first();
        }
        false
    }

    /// Has a subvolume or a tree no more, from the record on that this makes.
    fn let_go(&mut self, id: LotId) {
        let Some(Moving { to, root, walk, .. }) = self.peers.moving.remove(&id) else { return };
        let Some(node) = self.nodes.get(&root) else { return };
        let (inode, parent) = (node.inode.clone(), node.parent.clone());
        self.end_caps(id);
        let lot = self.peers.lots.get(&id);
        let turn = lot.map_or(0, |l| l.turn) + 1;
        let way = match lot {
            Some(lot) if self.conf.rank != FIRST => lot.way.clone(),
            _ => self.way_to(root),
        };
        let above = parent.map(|(dir, _)| dir);
        let layout = above.and_then(|dir| self.layout_of(dir));
        let random = match id {
            LotId::Tree(_) => above.map(|dir| self.chance_below(dir)).unwrap_or_default(),
            LotId::Space(_) => Default::default(),
        };
        let root_above = Root { inode, above: FIRST, layout, random };
        let mut parcel = Parcel {
            turn,
            root: root_above,
            way: way.clone(),
            records: self.records_of_all(),
            runs: walk.runs.iter().map(|(first, count, ())| (first, count)).collect(),
            ..Parcel::default()
        };
        if let LotId::Space(space) = id {
            let next = self.next_ino.get(&space).copied();
            let older = self.peers.odd.iter().filter(|(ino, s)| **s == space && **ino != root);
            parcel.space = space;
            parcel.older = older.map(|(ino, _)| *ino).collect();
            parcel.next = next.unwrap_or_else(|| space.first_number());
            parcel.promise = self.promises.get(&space).copied();
            parcel.strays = self.take_strays(space);
            self.forget_promise(space);
            self.roots.remove(&space);
        }
        self.with_quota.remove(&root);
        if self.peers.roots.remove(&root).is_some() {
            self.log_root(root);
            self.dirty_base.remove(&root);
            if let Some((token, _, _)) = self.peers.reports.remove(&root) {
                self.done(token);
            }
        }
        let (older, parcel) = (parcel.older.clone(), Some(parcel));
        let lot = Lot { holder: to, turn, root, older, way, parcel, rested: false };
        self.peers.lots.insert(id, lot);
        self.log_lot(id);
        self.begin_flush();
    }

    /// Clients have nothing of it from now on. No client can write any more: where one goes on,
    /// its next owner lets it.
    fn end_caps(&mut self, id: LotId) {
        let of = |ino: &Ino| self.lot_of(*ino) == Some(id);
        let held = self.nodes.iter().filter(|(_, n)| !n.caps.is_empty()).map(|(ino, _)| *ino);
        let held: Vec<Ino> = held.filter(of).collect();
        let written = self.nodes.iter().filter(|(_, n)| !n.inode.ranges.is_empty());
        let written: Vec<Ino> = written.map(|(ino, _)| *ino).filter(of).collect();
        for ino in held {
            let clients: Vec<ClientId> =
                self.nodes.get(&ino).map_or_else(Vec::new, |n| n.caps.keys().copied().collect());
            for client in clients {
                self.tell_caps_after(client, ino, CapsOp::Export, self.log.open());
                self.drop_cap(client, ino);
            }
        }
        for ino in written {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.inode.ranges.clear();
            }
            self.touch(ino);
        }
    }

    /// Takes a subvolume's inodes out of stray directories.
    fn take_strays(&mut self, space: Space) -> Vec<Inode> {
        let of = |ino: &Ino| self.subvolume_of(*ino) == Some(space);
        let strays = self.nodes.iter().filter_map(|(ino, node)| {
            let place = node.parent.clone().filter(|(dir, _)| dir.is_stray_dir())?;
            of(ino).then(|| (place, node.inode.clone()))
        });
        let mut strays: Vec<_> = strays.collect();
        strays.sort_by_key(|(_, inode)| inode.ino);
        for ((dir, name), inode) in &strays {
            let ino = inode.ino;
            self.set_link(DirFrag::whole(*dir), name, Link::Absent);
            let change = Change::name(inode.is_dir(), -1).with(stats::of(inode), -1);
            self.account(*dir, change, inode.ctime);
            self.backtraces.remove(&ino);
            self.purgeable.remove(&ino);
            self.forget_dir(DirFrag::whole(ino));
            self.nodes.remove(&ino);
        }
        strays.into_iter().map(|(_, inode)| inode).collect()
    }

    /// What was done for clients, which they may ask for again.
    fn records_of_all(&self) -> BTreeMap<ClientId, SessionRecord> {
        let mut all = self.peers.records.clone();
        for (client, session) in self.sessions.iter() {
            all.insert(*client, session.record.clone());
        }
        all.retain(|_, record| {
            record.flushes.clear();
            !record.completed.is_empty()
        });
        all
    }

    /// Waits until all of what goes is at rest, and forgets it. Says whether there was something to
    /// do.
    fn rest_lot(&mut self, id: LotId) -> bool {
        let of = |ino: Ino| self.lot_of(ino) == Some(id);
        let what = |what: &What| match what {
            What::Dir(dir) => of(dir.ino),
            What::Base(ino) | What::Backtrace(ino) => of(*ino),
            What::Tables => false,
        };
        let fetch = |what: &Fetch| match what {
            Fetch::Page(dir, _) | Fetch::Entry(dir, _) => of(dir.ino),
            Fetch::Backtrace(ino) | Fetch::Join(ino) => of(*ino),
            Fetch::Base(_) => false,
        };
        let kind = |kind: &Kind| match kind {
            Kind::WriteDir(dir) => of(dir.ino),
            Kind::Backtrace(ino) | Kind::Claimed(ino) => of(*ino),
            Kind::Caps(update) => of(update.ino),
            _ => false,
        };
        let dirty = self.dirty_dirs.in_order().any(|(_, dir)| of(dir.ino))
            || self.backtraces.in_order().any(|(_, ino)| of(ino));
        if dirty && self.flush.is_none() {
            self.begin_flush();
            return true;
        }
        if dirty
            || self.writes.values().any(|w| what(&w.what))
            || self.fetching.keys().any(fetch)
            || self.ops.values().any(|s| kind(&s.kind))
        {
            return false;
        }
        let Some(lot) = self.peers.lots.get(&id) else { return false };
        let (root, holder) = (lot.root, lot.holder);
        let runs = lot.parcel.as_ref().map(|p| p.runs.clone()).unwrap_or_default();
        self.forget_lot(id, root);
        for (first, count) in runs {
            self.set_holder(first, count, holder);
        }
        if let Some(lot) = self.peers.lots.get_mut(&id) {
            lot.rested = true;
        }
        self.log_lot(id);
        self.peers.asked = 0;
        self.wake(self.now);
        true
    }

    /// Drops what is in memory of it. Its root stays with the owner of the name.
    fn forget_lot(&mut self, id: LotId, root: Ino) {
        let first = self.conf.rank == FIRST;
        let of = |ino: &Ino| self.lot_of(*ino) == Some(id);
        let nodes = self.nodes.keys().copied().filter(of).filter(|ino| !(first && *ino == root));
        let nodes: Vec<Ino> = nodes.collect();
        let dirs: BTreeSet<DirFrag> = self.dirs.keys().copied().filter(|d| of(&d.ino)).collect();
        let places: Vec<Ino> = self.places.keys().copied().filter(of).collect();
        let sizes = self.truncating.iter().chain(&self.recovering).copied();
        let sizes: Vec<Ino> = sizes.filter(of).collect();
        for ino in nodes {
            self.nodes.remove(&ino);
            self.with_quota.remove(&ino);
            self.purgeable.remove(&ino);
            self.misplaced.remove(&ino);
        }
        for ino in places {
            self.places.remove(&ino);
        }
        for ino in sizes {
            self.truncating.remove(&ino);
            self.recovering.remove(&ino);
        }
        self.queue.forget(&dirs);
        for dir in dirs {
            self.dirs.remove(&dir);
        }
    }

    /// What is said to others again.
    pub(crate) fn moves_again(&mut self) -> Vec<(Rank, Batch, Message)> {
        self.peers.moving.values_mut().for_each(|m| m.look = true);
        let newest = self.log.newest();
        let mut words = Vec::new();
        for lot in self.peers.lots.values().filter(|l| l.rested) {
            let give = lot.parcel.clone().map(|p| Message::Give(Box::new(p)));
            words.extend(give.map(|give| (lot.holder, newest, give)));
        }
        for id in self.peers.recalls.clone() {
            let (holder, turn) = self.holder_of(id);
            let there = match id {
                LotId::Space(_) => self.peers.lots.contains_key(&id),
                LotId::Tree(root) => self.is_known_tree(root) && holder != self.conf.rank,
            };
            if there {
                words.push((holder, Batch(0), Message::Recall(id, turn)));
            } else {
                self.peers.recalls.remove(&id);
            }
        }
        words
    }

    /// The other owner has it.
    pub(crate) fn has_taken(&mut self, from: Rank, id: LotId, turn: u64) {
        let first = self.conf.rank == FIRST;
        let Some(lot) = self.peers.lots.get_mut(&id) else { return };
        if !lot.rested || (lot.holder, lot.turn) != (from, turn) {
            return;
        }
        (lot.parcel, lot.rested) = (None, false);
        if !first {
            self.peers.lots.remove(&id);
            if let LotId::Space(space) = id {
                self.peers.odd.retain(|_, s| *s != space);
            }
        }
        self.forget_walk(id);
        self.log_lot(id);
        self.unpark(id);
        self.peers.choose.insert(id);
        self.one_is_over();
    }

    // The other owner.

    /// Takes a subvolume or a tree over.
    pub(crate) fn take_parcel(&mut self, from: Rank, parcel: &Parcel) -> Exec<()> {
        let (me, id) = (self.conf.rank, parcel.id());
        let known = match id {
            LotId::Space(space) => space >= Space::FIRST,
            LotId::Tree(root) => super::trees::are_numbers(root, &parcel.runs),
        };
        if me != FIRST && from != FIRST || !known {
            return Ok(());
        }
        if self.peers.lots.get(&id).is_some_and(|l| l.turn >= parcel.turn) {
            self.say(from, self.log.newest(), Message::Taken(id, parcel.turn));
            return Ok(());
        }
        for stray in &parcel.strays {
            self.stray_ready(stray.ino)?;
        }
        let root = parcel.root.inode.ino;
        if me == FIRST {
            if !self.nodes.contains_key(&root) {
                self.load(root)?;
            }
            self.chain(root)?;
        }
        self.own_lot(parcel);
        if me == FIRST {
            self.root_is_back(root, &parcel.root.inode);
        } else {
            self.peers.roots.insert(root, RootAbove::of(&parcel.root));
            self.insert_node(parcel.root.inode.clone(), None, self.log.open());
            self.log_root(root);
        }
        for stray in &parcel.strays {
            self.insert_node(stray.clone(), None, self.log.open());
            self.make_stray(stray.ino, stray.ctime);
        }
        for (client, record) in &parcel.records {
            match self.sessions.get_mut(client) {
                Some(session) => {
                    session.record.take_over(record.clone());
                    self.log_session(*client);
                }
                None => {
                    self.peers.records.entry(*client).or_default().take_over(record.clone());
                    self.log_tables();
                }
            }
        }
        let early = self.conf.bug == Bug::MoveTakenEarly;
        let batch = if early { Batch(0) } else { self.log.open() };
        self.say(from, batch, Message::Taken(id, parcel.turn));
        self.unpark(id);
        self.peers.stays.clear();
        self.one_is_over();
        Ok(())
    }

    /// Has a subvolume or a tree from now on.
    fn own_lot(&mut self, parcel: &Parcel) {
        let (id, root) = (parcel.id(), parcel.root.inode.ino);
        self.forget_walk(id);
        for (first, count) in &parcel.runs {
            self.set_holder(*first, *count, self.conf.rank);
        }
        let lot = Lot {
            holder: self.conf.rank,
            turn: parcel.turn,
            root,
            older: parcel.older.clone(),
            way: parcel.way.clone(),
            parcel: None,
            rested: false,
        };
        if let LotId::Space(space) = id {
            self.note_lot(space, &lot);
            let next = self.next_ino.entry(space).or_default();
            *next = parcel.next.max(*next);
            self.log.open.spaces.insert(space);
            if let Some(promise) = parcel.promise {
                self.promise(space, promise);
            }
        }
        self.peers.lots.insert(id, lot);
        self.log_lot(id);
        self.peers.recalls.remove(&id);
        self.peers.choose.insert(id);
    }

    fn note_lot(&mut self, space: Space, lot: &Lot) {
        self.peers.odd.insert(lot.root, space);
        self.peers.odd.extend(lot.older.iter().map(|ino| (*ino, space)));
    }

    /// A shadow is an inode of this owner again, as it was with the other one.
    fn root_is_back(&mut self, root: Ino, inode: &Inode) {
        let Some(node) = self.nodes.get_mut(&root) else { return };
        let before = node.inode.rstat;
        let backtrace_version = node.inode.backtrace_version;
        node.inode = Inode { backtrace_version, ..inode.clone() };
        self.counting.forget(root);
        let dir = node.parent.as_ref().map(|(dir, _)| *dir);
        self.touch(root);
        self.root_is_here(root);
        if let Some(dir) = dir {
            let change = Change::default().with(inode.rstat, 1).with(before, -1);
            self.account(dir, change, inode.rstat.rctime);
        }
    }

    fn root_is_here(&mut self, root: Ino) {
        let Some(node) = self.nodes.get(&root) else { return };
        let (limited, space) = (node.inode.quota.is_set(), node.inode.space);
        if limited {
            self.with_quota.insert(root);
        }
        if space != Space(0) {
            self.roots.insert(space, root);
        }
    }

    // Owners that leave, and failovers.

    /// Subvolumes and trees that an owner has that leaves. All of them is at rest.
    pub(crate) fn lots_held(&self) -> (BTreeMap<Space, Parcel>, BTreeMap<Ino, Parcel>) {
        let (mut lots, mut trees) = (BTreeMap::new(), BTreeMap::new());
        for (id, lot) in self.peers.lots.iter().filter(|(_, l)| l.holder == self.conf.rank) {
            let inode = Inode { ino: lot.root, ..Inode::default() };
            let parcel = Parcel {
                turn: lot.turn,
                root: Root { inode, ..Root::default() },
                older: lot.older.clone(),
                way: lot.way.clone(),
                ..Parcel::default()
            };
            let LotId::Space(space) = *id else {
                trees.insert(lot.root, parcel);
                continue;
            };
            let next = self.next_ino.get(&space).copied();
            let next = next.unwrap_or_else(|| space.first_number());
            let promise = self.promises.get(&space).copied();
            lots.insert(space, Parcel { space, next, promise, ..parcel });
        }
        (lots, trees)
    }

    /// An owner has left. What it had is this one's, and what was to go to it stays here.
    pub(crate) fn take_lots_of(&mut self, from: Rank, lots: Vec<Parcel>) {
        for parcel in lots {
            self.own_lot(&parcel);
            self.root_is_here(parcel.root.inode.ino);
            self.unpark(parcel.id());
        }
        self.take_runs_of(from);
        self.take_back(from);
        self.peers.choose_all = true;
    }

    /// Takes back what was to go to an owner that has left without it.
    fn take_back(&mut self, gone: Rank) {
        let lots = self.peers.lots.values().filter(|l| l.holder == gone);
        let back: Vec<Parcel> = lots.filter_map(|l| l.parcel.clone()).collect();
        for parcel in back {
            let parcel = Parcel { turn: parcel.turn + 1, ..parcel };
            self.start(ClientId(0), Kind::Take(self.conf.rank, Box::new(parcel)));
        }
    }

    /// Goes on with what moved before a failover.
    pub(crate) fn adopt_lots(&mut self, owners: &OwnerTables) {
        let lots = owners.lots.iter().map(|(space, lot)| (LotId::Space(*space), lot.clone()));
        let trees = owners.trees.iter().map(|(root, lot)| (LotId::Tree(*root), lot.clone()));
        self.peers.lots = lots.chain(trees).collect();
        for (space, lot) in &owners.lots {
            self.note_lot(*space, lot);
        }
        for (root, lot) in &owners.trees {
            for (first, count) in lot.parcel.iter().flat_map(|p| &p.runs) {
                self.peers.transit.set(*first, *count, Some(*root));
            }
        }
        for lot in owners.lots.values().chain(owners.trees.values()) {
            if let Some(parcel) = lot.parcel.as_ref().filter(|_| !lot.rested)
                && self.conf.rank != FIRST
            {
                self.insert_node(parcel.root.inode.clone(), None, Batch(0));
            }
        }
    }

    /// Goes on with all that moves: clients are back.
    pub(crate) fn go_on_moving(&mut self) {
        for (client, ino, cap_id, wanted) in std::mem::take(&mut self.peers.exports) {
            self.tell_of_gone(client, ino, (cap_id, wanted), CapsOp::Export);
        }
        self.peers.choose_all = true;
        let roots = self.peers.lots.values().map(|l| l.root);
        self.peers.urgent.extend(roots.filter(|root| self.peers.roots.contains_key(root)));
        for gone in self.peers.kept.clone() {
            self.take_back(gone);
        }
        if self.peers.lots.values().any(|l| l.rested) {
            self.peers.asked = 0;
        }
    }
}
