//! Which client may do what with an inode without asking.
//!
//! What is issued to two clients never conflicts ([`caps::conflicts`]), counting what was asked
//! back and is not given back yet.

use super::Mds;
use super::node::{Cap, Need, Node};
use super::operation::{Exec, Kind, OpId, Phase, Stop, fail};
use super::state::Leaving;
use super::stats::Change;
use super::weight;
use crate::action::{Action, CapsMessage, CapsOp};
use crate::caps::{self, Group, Mode};
use crate::conf::Bug;
use crate::event::CapsUpdate;
use crate::request::{CapGrant, InodeStat, Release};
use crate::types::{Batch, ClientId, Ino, Layout, Name};
use bytes::Bytes;
use std::collections::BTreeMap;

/// A writer is granted so many objects more than there are at most.
const AHEAD_OBJECTS: u64 = 1_024;

impl Node {
    fn mode(&self) -> Mode {
        Mode::of(self.caps.values().map(|c| c.wanted))
    }

    /// What a client may have, others' capabilities aside.
    fn allowed(&self, client: ClientId, wanted: u32, issued: u32) -> u32 {
        let mut allowed = caps::ALL;
        if !self.inode.is_dir() {
            allowed = allowed & !caps::ANY_FILE | self.mode().allows(wanted);
        } else {
            allowed &= !(caps::FILE_CACHE | caps::FILE_RD | caps::FILE_WR | caps::FILE_BUFFER);
        }
        for need in &self.needs {
            allowed &= !need.takes(client, issued);
        }
        allowed | caps::PIN
    }

    /// Whether other clients' operations wait for what this client knows of its names.
    fn is_changed_beside(&self, client: ClientId) -> bool {
        let takes = |n: &Need| n.client != client && n.others & caps::FILE_SHARED != 0;
        self.needs.iter().any(takes)
    }

    /// Whether operations that wait take the names from this client, its own included.
    pub(crate) fn loses_names(&self, client: ClientId) -> bool {
        let takes = |n: &Need| n.takes(client, caps::FILE_SHARED) & caps::FILE_SHARED != 0;
        self.needs.iter().any(takes)
    }

    /// What conflicts with that which others have.
    fn taken(&self, client: ClientId, bug: Bug) -> u32 {
        let of = |c: &Cap| if bug == Bug::GrantBeforeAck { c.pending } else { c.issued() };
        self.caps
            .iter()
            .filter(|(c, _)| **c != client)
            .fold(0, |all, (_, cap)| all | caps::conflicts(of(cap)))
    }
}

impl Mds {
    /// Notes that the current operation reads a group of an inode.
    pub(crate) fn reads(&mut self, client: ClientId, ino: Ino, group: Group) {
        // What a request needed that was answered, its client may have been given again since.
        let size = group == Group::File && !self.early.resent;
        let need = Need { op: self.current, client, others: group.read(), own: 0, unless: 0, size };
        self.collected.push((ino, need));
    }

    /// Notes that the current operation reads what these capabilities cover.
    pub(crate) fn reads_mask(&mut self, client: ClientId, ino: Ino, mask: u32) {
        for group in Group::ALL {
            if mask & (group.shared() | group.excl()) != 0 {
                self.reads(client, ino, group);
            }
        }
        if mask & (caps::FILE_RD | caps::FILE_WREXTEND) != 0 {
            self.reads(client, ino, Group::File);
        }
    }

    /// Notes that the current operation changes a group of an inode. The client of the operation
    /// gives back what it has too, with what it changed, but for the names of a directory: it may
    /// keep them if no other client relies on them. Other clients' reads take that back, so the
    /// answer reaches the client before any other client sees the change.
    pub(crate) fn writes(&mut self, client: ClientId, ino: Ino, group: Group) {
        let is_dir = self.nodes.get(&ino).is_some_and(|n| n.inode.is_dir());
        let names = group == Group::File && is_dir;
        let resent = self.early.resent;
        let need = Need {
            op: self.current,
            client,
            others: group.write(),
            own: if resent { 0 } else { group.write() },
            unless: if names { group.excl() } else { 0 },
            size: group == Group::File && !resent,
        };
        self.collected.push((ino, need));
    }

    fn is_met(&self, ino: Ino, need: &Need) -> bool {
        let Some(node) = self.nodes.get(&ino) else { return false };
        if self.locked(ino) & (need.others | need.own) != 0 {
            return false;
        }
        let truncating = need.own != 0 && self.truncating.contains(&ino);
        if need.size && (self.recovering.contains(&ino) || truncating) {
            return false;
        }
        node.caps.iter().all(|(c, cap)| {
            let issued = cap.issued();
            issued & need.takes(*c, issued) == 0
        })
    }

    /// Waits until no client has what is in the way of the current operation.
    pub(crate) fn settled(&mut self) -> Exec<()> {
        if self.conf.bug == Bug::NoRevoke {
            return Ok(());
        }
        let is_met = self.collected.iter().all(|(ino, need)| self.is_met(*ino, need));
        if is_met && !self.has_leases() {
            return Ok(());
        }
        self.keep_needs();
        Err(Stop::Wait)
    }

    /// Has clients give back what is in the way of the current operation, while it waits.
    pub(crate) fn keep_needs(&mut self) {
        for (ino, need) in self.collected.clone() {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.needs.push(need);
                self.judge.insert(ino);
            }
        }
        self.keep_names();
    }

    /// Notes that halves of another owner's request change a group of an inode: all clients give
    /// it back.
    pub(crate) fn takes(&mut self, client: ClientId, ino: Ino, group: Group) {
        let own = if self.early.resent { 0 } else { group.write() };
        let others = group.write();
        let need = Need { op: self.current, client, others, own, unless: 0, size: false };
        self.collected.push((ino, need));
    }

    /// Has operations tried again that wait for capabilities of an inode, or for its size.
    pub(crate) fn retry(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get(&ino) else { return };
        let met: Vec<OpId> =
            node.needs.iter().filter(|n| self.is_met(ino, n)).map(|n| n.op).collect();
        self.again.extend(met);
    }

    /// Asks back what clients may no longer have, and grants what they want and may have.
    pub(crate) fn judge(&mut self, ino: Ino) {
        let bug = self.conf.bug;
        // What other clients have is known only when all are back.
        if self.phase != Phase::Active {
            return;
        }
        self.retry_lists(ino);
        let Some(node) = self.nodes.get(&ino) else { return };
        let clients: Vec<ClientId> = node.caps.keys().copied().collect();
        let locked = self.locked(ino);
        // An owner that leaves takes all back.
        let leaves = self.peers.leaving >= Some(Leaving::Caps);
        let leaves = leaves && bug != Bug::LeaveWithCaps;
        let goes = !self.serves(ino) && bug != Bug::MoveWithCaps;
        let most = if leaves || goes { caps::PIN } else { caps::ALL };
        for client in &clients {
            let Some(node) = self.nodes.get_mut(&ino) else { return };
            let Some(cap) = node.caps.get(client) else { continue };
            let allowed = node.allowed(*client, cap.wanted, cap.issued()) & !locked & most;
            let shares = node.inode.is_dir() && node.is_changed_beside(*client);
            let Some(cap) = node.caps.get_mut(client) else { continue };
            let keep = cap.pending & allowed;
            if keep != cap.pending {
                let shares = shares && cap.pending & caps::FILE_SHARED != 0;
                cap.seq += 1;
                cap.asked.push((cap.seq, cap.pending));
                cap.pending = keep;
                cap.late_since.get_or_insert(self.now);
                if shares {
                    self.shares_names(ino);
                }
                self.tell_caps(*client, ino, CapsOp::Revoke);
            }
        }
        let shared = if self.is_shared(ino) { caps::NAMES } else { 0 };
        for client in &clients {
            let Some(node) = self.nodes.get_mut(&ino) else { return };
            let Some(cap) = node.caps.get(client) else { continue };
            let allowed = node.allowed(*client, cap.wanted, cap.issued()) & !locked & most;
            // A client that hears of the last link's end gives the inode back when it is closed.
            let gone = if node.inode.nlink == 0 { caps::LINK_SHARED } else { 0 };
            let wanted = cap.wanted | gone;
            let more = allowed & wanted & !shared & !node.taken(*client, bug) & !cap.pending;
            if more == 0 {
                continue;
            }
            let Some(cap) = node.caps.get_mut(client) else { continue };
            cap.pending |= more;
            cap.seq += 1;
            self.let_write(*client, ino, 0);
            self.tell_caps(*client, ino, CapsOp::Grant);
        }
    }

    /// Tells a client of its capabilities of an inode.
    fn tell_caps(&mut self, client: ClientId, ino: Ino, op: CapsOp) {
        self.tell_caps_after(client, ino, op, Batch(0));
    }

    pub(crate) fn tell_caps_after(&mut self, client: ClientId, ino: Ino, op: CapsOp, batch: Batch) {
        let Some(node) = self.nodes.get(&ino) else { return };
        let Some(cap) = node.caps.get(&client) else { return };
        let Some((shown, lasts)) = self.tell_for(ino, cap.pending) else { return };
        let message = CapsMessage {
            op,
            inode: Box::new(shown),
            layout: self.layout_of(ino),
            cap_id: cap.id,
            seq: cap.seq,
            caps: cap.pending,
            wanted: cap.wanted,
            max_size: node.inode.ranges.get(&client).copied().unwrap_or(0),
        };
        let action = Action::Caps(client, Box::new(message));
        match op {
            // Of what is told behind it, nothing needs it that is not about the inode.
            CapsOp::FlushAck { .. } => self.tell_aside(client, node.batch().max(batch), action),
            CapsOp::Grant | CapsOp::Revoke => {
                let early = self.conf.early_reply;
                let of = |last| if early { self.shown_to(client, last) } else { last.batch };
                let shown = lasts.map(of).into_iter().fold(self.early.rules, Batch::max);
                self.tell(client, shown.max(batch), action);
            }
            CapsOp::Export => self.tell(client, node.batch().max(batch), action),
        }
    }

    /// The layout in force.
    pub(crate) fn layout_of(&self, ino: Ino) -> Option<Layout> {
        let mut at = Some(ino);
        while let Some(node) = at.and_then(|a| self.nodes.get(&a)) {
            if node.inode.layout.is_some() {
                return node.inode.layout.clone();
            }
            if let Some(root) = at.and_then(|a| self.peers.roots.get(&a)) {
                return root.layout.clone().or_else(|| Some(self.conf.layout.clone()));
            }
            at = node.parent.as_ref().map(|(d, _)| *d);
        }
        Some(self.conf.layout.clone())
    }

    /// Makes a record of an inode for a client, and grants it what it may have.
    pub(crate) fn record(&mut self, client: ClientId, ino: Ino, wanted: u32) -> Exec<InodeStat> {
        self.record_with(client, ino, wanted, !self.is_shared(ino))
    }

    /// Makes a record, with or without the right to rely on all names of a directory.
    pub(crate) fn record_with(
        &mut self,
        client: ClientId,
        ino: Ino,
        wanted: u32,
        names: bool,
    ) -> Exec<InodeStat> {
        if !self.serves(ino) {
            return Ok(self.shadow_record(ino, 0));
        }
        let most = if names { caps::ALL } else { caps::ALL & !caps::NAMES };
        let cap = self.issue(client, ino, wanted, most);
        let quota = self.quota_of(ino);
        let layout = self.layout_of(ino);
        let Some(inode) = self.look_for(ino, cap.caps) else { return fail(types::Errno::EIO) };
        let max_size = inode.ranges.get(&client).copied().unwrap_or(0);
        Ok(InodeStat { inode: Box::new(inode), layout, max_size, cap, quota })
    }

    /// Grants a client what it may have of an inode, at most `most` more.
    fn issue(&mut self, client: ClientId, ino: Ino, wanted: u32, most: u32) -> CapGrant {
        let bug = self.conf.bug;
        let bare = wanted == 0 && self.is_bare(client, ino);
        let locked = self.locked(ino);
        self.lives(client);
        let (Some(session), Some(node)) =
            (self.sessions.get_mut(&client), self.nodes.get_mut(&ino))
        else {
            return CapGrant::default();
        };
        if session.evicting || bare {
            return CapGrant::default();
        }
        session.inodes.insert(ino);
        let next = &mut self.next_cap;
        let cap = node.caps.get_or_insert_with(client, || {
            *next += 1;
            Cap { id: *next, pending: caps::PIN, ..Cap::default() }
        });
        if cap.wanted | wanted != cap.wanted {
            cap.wanted |= wanted;
            self.judge.insert(ino);
        }
        let (wanted, issued) = (cap.wanted, cap.issued());
        let mut likes = caps::ANY_SHARED | caps::FILE_CACHE | caps::FILE_RD;
        if node.caps.len() == 1 {
            likes |= caps::AUTH_EXCL | caps::XATTR_EXCL;
            if node.inode.is_dir() {
                likes |= caps::FILE_EXCL;
            }
        }
        let more = node.allowed(client, wanted, issued)
            & (likes | wanted)
            & !node.taken(client, bug)
            & !locked
            & most;
        let Some(cap) = node.caps.get_mut(&client) else { return CapGrant::default() };
        cap.pending |= more;
        cap.seq += 1;
        cap.issue_seq = cap.seq;
        let grant =
            CapGrant { caps: cap.pending, wanted, cap_id: cap.id, seq: cap.seq, auth: true };
        self.let_write(client, ino, 0);
        grant
    }

    /// Sets up to where a client may write, if it may: at least up to `want`. It is in the log
    /// before the client knows it, so that a successor knows how far to look for data.
    pub(crate) fn let_write(&mut self, client: ClientId, ino: Ino, want: u64) -> bool {
        let Some(node) = self.nodes.get(&ino) else { return false };
        let Some(cap) = node.caps.get(&client) else { return false };
        if !node.inode.is_file() || cap.pending & (caps::FILE_WR | caps::FILE_BUFFER) == 0 {
            return false;
        }
        let layout = self.layout_of(ino).unwrap_or_default();
        let period = layout.period();
        let size = node.inode.size;
        let ahead = AHEAD_OBJECTS * u64::from(layout.object_size.max(1));
        let old = node.inode.ranges.get(&client).copied().unwrap_or(0);
        let roomy = size
            .saturating_mul(2)
            .min(size.saturating_add(ahead))
            .max(want)
            .max(size.saturating_add(1));
        let mut new = roomy.div_ceil(period).saturating_mul(period).min(self.conf.max_file_size);
        // Near a quota, a writer gets an object at a time.
        let dir = node.parent.as_ref().map(|(d, _)| *d);
        let room = dir.and_then(|d| self.room_below(d)).filter(|_| !self.early.resent);
        if let Some(room) = room {
            let fits = size.saturating_add(room).div_ceil(period).saturating_mul(period);
            // A client that waits for room that it asked for does not look at quotas again: it gets
            // that, and no more. It looks before the next write.
            new = new.min(fits.max(size)).max(want.min(self.conf.max_file_size));
        }
        if new <= old || (want <= old && old > size) {
            return false;
        }
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.inode.ranges.insert(client, new);
        }
        self.touch(ino);
        if self.early.made != Some(ino) {
            // A request that is sent again grants this again for what it makes alone.
            let (open, durable) = (self.log.open(), self.log.durable);
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.changed.note(open, ClientId(0), durable);
            }
            self.shows(open);
        }
        true
    }

    /// Takes back the right to write of a client that neither has nor wants it.
    pub(crate) fn end_write(&mut self, client: ClientId, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let writes = caps::FILE_WR | caps::FILE_BUFFER;
        let keeps = node.caps.get(&client).is_some_and(|c| (c.issued() | c.wanted) & writes != 0);
        if !keeps && !self.recovering.contains(&ino) && node.inode.ranges.remove(&client).is_some()
        {
            self.touch_unseen(ino);
        }
    }

    /// A client says what it keeps.
    fn confirm(&mut self, client: ClientId, ino: Ino, id: u64, seq: u32, kept: u32) {
        let bug = self.conf.bug;
        let Some(cap) = self.nodes.get_mut(&ino).and_then(|n| n.caps.get_mut(&client)) else {
            return;
        };
        if cap.id != id {
            return;
        }
        let kept = kept & cap.issued();
        cap.asked.retain(|(asked, _)| *asked > seq);
        // The next message may ask for what the client has just given back. A client does not
        // answer a message that takes nothing away from it, so this word is the answer. Messages
        // behind the next one ask for what that one says the client has.
        if bug != Bug::CrossingIgnored {
            let next = seq.wrapping_add(1);
            cap.asked.iter_mut().filter(|(n, _)| *n == next).for_each(|(_, had)| *had &= kept);
            let pending = cap.pending;
            cap.asked.retain(|(_, had)| had & !pending != 0);
        }
        // An older word does not know of what was granted since.
        if seq == cap.seq {
            cap.pending &= kept | caps::PIN;
        }
        // A client may have seen that it was asked, and still use what it was asked for: what it
        // says that it has counts as issued until it says that it has less.
        if kept & !cap.pending != 0 {
            cap.asked.insert(0, (seq, kept));
        }
        if cap.asked.is_empty() {
            cap.late_since = None;
        }
        self.judge.insert(ino);
        self.retry(ino);
    }

    fn set_wanted(&mut self, client: ClientId, ino: Ino, id: u64, issue_seq: u32, wanted: u32) {
        let Some(cap) = self.nodes.get_mut(&ino).and_then(|n| n.caps.get_mut(&client)) else {
            return;
        };
        if cap.id != id {
            return;
        }
        // A word from before a record that opened the file does not close it.
        let new = if issue_seq >= cap.issue_seq { wanted } else { wanted | cap.wanted };
        if new != cap.wanted {
            cap.wanted = new;
            self.judge.insert(ino);
        }
    }

    /// Capabilities come back with a request.
    pub(crate) fn released(&mut self, client: ClientId, release: &Release) {
        // The inode may not have been read since a failover.
        let claim = self.claims.get_mut(release.ino, client);
        if let Some(claim) = claim.filter(|c| c.cap_id == release.cap_id) {
            claim.issued &= release.caps;
            claim.wanted = release.wanted;
            return;
        }
        self.confirm(client, release.ino, release.cap_id, release.seq, release.caps);
        self.set_wanted(client, release.ino, release.cap_id, release.issue_seq, release.wanted);
    }

    /// A client dropped an inode.
    pub(crate) fn cap_released(&mut self, client: ClientId, ino: Ino, id: u64, issue_seq: u32) {
        if self.claims.get_mut(ino, client).is_some_and(|c| c.cap_id == id) {
            self.claims.remove_one(ino, client);
        }
        let Some(cap) = self.nodes.get(&ino).and_then(|n| n.caps.get(&client)) else { return };
        // A record that it has not seen yet gave it the inode again.
        if cap.id == id && issue_seq >= cap.issue_seq {
            self.drop_cap(client, ino);
            self.end_write(client, ino);
        }
    }

    /// Takes a client's capabilities of an inode away.
    pub(crate) fn drop_cap(&mut self, client: ClientId, ino: Ino) {
        let node = self.nodes.get_mut(&ino);
        let nlink = node.as_ref().map(|n| n.inode.nlink);
        let cap = node.and_then(|n| n.caps.remove(&client));
        if let Some(session) = self.sessions.get_mut(&client) {
            session.inodes.remove(&ino);
            session.held -= cap.as_ref().map_or(0, |c| c.charge);
        }
        if cap.is_none() {
            return;
        }
        self.barren = 0;
        self.gave_back(client);
        if nlink == Some(0) {
            self.note_purgeable(ino);
        }
        self.judge.insert(ino);
        self.retry(ino);
    }

    /// Gives clients what they had before a failover.
    pub(crate) fn attach_claims(&mut self, ino: Ino) {
        let claims = self.claims.remove(ino);
        if claims.is_empty() {
            return;
        }
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        for (client, claim) in claims {
            let Some(session) = self.sessions.get_mut(&client) else { continue };
            session.inodes.insert(ino);
            let cap = Cap {
                id: claim.cap_id,
                pending: claim.issued | caps::PIN,
                wanted: claim.wanted,
                ..Cap::default()
            };
            if let Some(old) = node.caps.insert(client, cap) {
                session.held -= old.charge;
            }
            for (rule, lock) in claim.locks {
                node.locks.get_or_insert_default().put(rule, lock);
            }
        }
        self.still_held(ino);
        self.judge.insert(ino);
    }

    pub(crate) fn drop_claims(&mut self, client: ClientId) {
        self.claims.remove_all_of(client);
    }

    /// Begins with what a client says of an inode.
    pub(crate) fn start_caps(&mut self, client: ClientId, update: CapsUpdate) -> OpId {
        let ino = update.ino;
        let id = self.start(client, Kind::Caps(Box::new(update)));
        self.caps_ops.entry((client, ino)).or_default().push_back(id);
        id
    }

    /// Whether a word of a client about an inode is not done yet.
    pub(crate) fn is_flushing(&self, client: ClientId, ino: Ino) -> bool {
        self.caps_ops.contains_key(&(client, ino))
    }

    /// A word of a client about an inode has come to its end: the next one goes on.
    pub(crate) fn caps_ended(&mut self, client: ClientId, ino: Ino) {
        let Some(ops) = self.caps_ops.get_mut(&(client, ino)) else { return };
        ops.pop_front();
        match ops.front() {
            Some(next) => drop(self.again.insert(*next)),
            None => drop(self.caps_ops.remove(&(client, ino))),
        }
    }

    /// Takes in what comes back with a request, behind what the client has said of the inode.
    pub(crate) fn take_release(&mut self, client: ClientId, release: &Release) {
        if let Some((name, seq)) = &release.lease {
            self.lease_released(client, release.ino, name, *seq);
        }
        if self.conf.bug == Bug::CapsOvertake || !self.caps_ops.contains_key(&(client, release.ino))
        {
            return self.released(client, release);
        }
        let update = CapsUpdate {
            ino: release.ino,
            cap_id: release.cap_id,
            seq: release.seq,
            issue_seq: release.issue_seq,
            caps: release.caps,
            wanted: release.wanted,
            ..CapsUpdate::default()
        };
        self.start_caps(client, update);
    }

    /// Takes in what a client says of an inode: what it changed, what it keeps, what it wants. It
    /// waits for what the client has said before: a change counts as far as the client may make it,
    /// and the next word may give that up.
    pub(crate) fn caps_update(&mut self, client: ClientId, update: &CapsUpdate) -> Exec<()> {
        let ino = update.ino;
        let first = self.caps_ops.get(&(client, ino)).and_then(|ops| ops.front());
        if self.conf.bug != Bug::CapsOvertake && first.is_some_and(|op| *op != self.current) {
            return Err(Stop::Wait);
        }
        if self.has_gone(ino) {
            self.flushed_before(client, update);
            return Ok(());
        }
        let claimed = self.claims.contains(ino, client);
        if !claimed && !self.nodes.contains_key(&ino) {
            return Ok(());
        }
        self.chain(ino)?;
        let allowed = self.dirty_allowed(client, update)?;
        let Some(cap) = self.nodes.get(&ino).and_then(|n| n.caps.get(&client)) else {
            return Ok(());
        };
        if cap.id != update.cap_id {
            return Ok(());
        }
        // What the server before this one was sent and did not finish is given up already: the
        // client has it no more, and no other client was granted it since.
        let resent = self.phase != Phase::Active;
        let issued = if resent { caps::ALL } else { cap.issued() };
        let done = match (update.flush, self.sessions.get_mut(&client)) {
            (Some(flush), Some(session)) => {
                session.record.forget_flushes_below(update.oldest_flush);
                let known = session.record.flushes.insert(flush, ()).is_some();
                if session.record.flushes.len() > self.conf.bounds.completed_max {
                    session.record.flushes.pop_first();
                }
                known
            }
            _ => false,
        };
        if !done {
            self.apply_dirty(ino, update, issued & allowed);
            if let Some(flush) = update.flush {
                self.log_flush(client, flush, update.oldest_flush);
            }
        }
        if update.flush.is_some() {
            // Until it is acknowledged, the client holds what it said for newer than what it sees:
            // what is told of the inode waits for that.
            let (newest, durable) = (self.log.newest(), self.log.durable);
            if let Some(node) = self.nodes.get_mut(&ino) {
                let batch = node.changed.batch.max(newest);
                node.changed.note(batch, ClientId(0), durable);
            }
        }
        if update.max_size > 0 && self.let_write(client, ino, update.max_size) {
            if let Some(cap) = self.nodes.get_mut(&ino).and_then(|n| n.caps.get_mut(&client)) {
                cap.seq += 1;
            }
            self.tell_caps(client, ino, CapsOp::Grant);
        }
        self.confirm(client, ino, update.cap_id, update.seq, update.caps);
        self.set_wanted(client, ino, update.cap_id, update.issue_seq, update.wanted);
        self.end_write(client, ino);
        if let Some(flush) = update.flush {
            if update.sync {
                self.log.wants(self.log.newest());
            }
            let op = CapsOp::FlushAck { flush, dirty: update.dirty };
            self.tell_caps_after(client, ino, op, self.log.newest());
        }
        Ok(())
    }

    /// Takes over what a client changed, as far as it was allowed to.
    fn apply_dirty(&mut self, ino: Ino, update: &CapsUpdate, issued: u32) {
        let dirty = update.dirty & issued;
        let attrs = &update.attrs;
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let inode = &mut node.inode;
        let mut changed = false;
        if dirty & caps::AUTH_EXCL != 0 {
            let kind = inode.mode & crate::types::mode::TYPE;
            inode.mode = kind | attrs.mode & !crate::types::mode::TYPE;
            (inode.uid, inode.gid) = (attrs.uid, attrs.gid);
            inode.btime = attrs.btime;
            changed = true;
        }
        let bytes = |all: &BTreeMap<Name, Bytes>| -> usize {
            all.iter().map(|(name, value)| name.len() + value.len()).sum()
        };
        if dirty & caps::XATTR_EXCL != 0
            && let Some(xattrs) = &attrs.xattrs
            && bytes(xattrs) <= self.conf.max_xattr_bytes
        {
            // Virtual ones are no client's to change in this way.
            let own = xattrs.iter().filter(|(name, _)| !name.starts_with(b"ceph."));
            inode.xattrs =
                own.map(|(name, value)| (weight::own(name), weight::own(value))).collect();
            inode.xattr_version += 1;
            changed = true;
        }
        let excl = dirty & caps::FILE_EXCL != 0;
        if dirty & (caps::FILE_EXCL | caps::FILE_WR | caps::FILE_BUFFER) != 0 && !inode.is_dir() {
            if attrs.size > inode.size && attrs.size <= self.conf.max_file_size {
                inode.size = attrs.size;
                inode.max_size_ever = inode.max_size_ever.max(attrs.size);
            }
            inode.mtime = if excl { attrs.mtime } else { inode.mtime.max(attrs.mtime) };
            if excl {
                inode.atime = attrs.atime;
            }
            inode.time_warp_seq = inode.time_warp_seq.max(attrs.time_warp_seq);
            inode.change_attr = inode.change_attr.max(attrs.change_attr);
            changed = true;
        }
        if changed {
            self.changed(ino, attrs.ctime);
        }
    }

    /// Has the size of a file found out: a client that may have written is gone.
    pub(crate) fn recover_size(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get(&ino) else { return };
        let waits = !self.is_active() || self.is_calm();
        if !node.inode.is_file() || waits || self.size_work.values().any(|i| *i == ino) {
            self.recovering.insert(ino);
            return;
        }
        let alive = |c: &ClientId| self.sessions.contains_key(c);
        let max = node.inode.ranges.iter().filter(|(c, _)| !alive(c)).map(|(_, m)| *m).max();
        let Some(max) = max else {
            self.recovering.remove(&ino);
            return;
        };
        self.recovering.insert(ino);
        let mut inode = Box::new(node.inode.clone());
        inode.layout = self.layout_of(ino);
        let token = self.token();
        self.size_work.insert(token, ino);
        self.out.push_back(Action::Probe { token, inode, max });
    }

    /// Has the objects behind a file's size trimmed.
    pub(crate) fn trim_data(&mut self, ino: Ino) {
        self.truncating.insert(ino);
        if self.is_calm() || self.size_work.values().any(|i| *i == ino) {
            return;
        }
        let Some(node) = self.nodes.get(&ino) else { return };
        let (batch, mut inode) = (node.batch(), Box::new(node.inode.clone()));
        inode.layout = self.layout_of(ino);
        let token = self.token();
        self.size_work.insert(token, ino);
        self.hold(batch, Action::Truncate { token, inode });
    }

    pub(crate) fn probed(
        &mut self,
        token: crate::event::Token,
        result: Result<(u64, Option<types::Utime>), i32>,
    ) {
        let Some(ino) = self.size_work.remove(&token) else { return };
        match result {
            Ok(found) => {
                self.start(ClientId(0), Kind::Sized(ino, Some(found)));
            }
            // The shell tries until it succeeds; an error means that the pool is gone.
            Err(_) => {
                self.start(ClientId(0), Kind::Sized(ino, Some((0, None))));
            }
        }
    }

    /// A file's size is known, or its objects are trimmed.
    pub(crate) fn sized(
        &mut self,
        ino: Ino,
        found: Option<(u64, Option<types::Utime>)>,
    ) -> Exec<()> {
        self.chain(ino)?;
        let gone: Vec<ClientId> = {
            let inode = self.get(ino)?;
            inode.ranges.keys().copied().filter(|c| !self.sessions.contains_key(c)).collect()
        };
        let Some(node) = self.nodes.get_mut(&ino) else { return Ok(()) };
        let before = node.inode.rstat;
        match found {
            Some((size, mtime)) => {
                node.inode.size = node.inode.size.max(size);
                node.inode.max_size_ever = node.inode.max_size_ever.max(node.inode.size);
                if let Some(mtime) = mtime {
                    node.inode.mtime = node.inode.mtime.max(mtime);
                }
                for client in gone {
                    node.inode.ranges.remove(&client);
                }
                node.inode.rstat = super::stats::leaf(&node.inode);
                self.recovering.remove(&ino);
            }
            None => {
                node.inode.truncate_pending = 0;
                node.inode.truncate_from = 0;
                self.truncating.remove(&ino);
            }
        }
        let change = Change::default().with(node.inode.rstat, 1).with(before, -1);
        let parent = node.parent.as_ref().map(|(d, _)| *d);
        let stamp = node.inode.rstat.rctime;
        self.touch(ino);
        if let Some(dir) = parent {
            self.account(dir, change, stamp);
        }
        if self.truncating.contains(&ino) {
            self.trim_data(ino);
        } else if node_has_dead_writer(self, ino) {
            self.recover_size(ino);
        }
        self.judge.insert(ino);
        self.retry(ino);
        Ok(())
    }

    /// The batch that shows an inode as it is.
    pub(crate) fn batch_of(&self, ino: Ino) -> Batch {
        self.nodes.get(&ino).map_or(Batch(0), |n| n.batch())
    }
}

fn node_has_dead_writer(mds: &Mds, ino: Ino) -> bool {
    mds.recovering.contains(&ino)
        && mds
            .nodes
            .get(&ino)
            .is_some_and(|n| n.inode.ranges.keys().any(|c| !mds.sessions.contains_key(c)))
}
