use super::network::Call;
use super::*;
use std::collections::HashMap;
use std::sync::Mutex;

/// A machine that keeps every proposal as a row, numbered.
#[derive(Default)]
struct Journal(Vec<Bytes>);

impl Machine for Journal {
    fn load(rows: &Rows) -> Result<Self, String> {
        Ok(Journal(rows.values().cloned().collect()))
    }
    fn apply(&mut self, proposal: &Bytes, changed: &mut Vec<Row>) -> Bytes {
        let n = self.0.len() as u32;
        self.0.push(proposal.clone());
        changed.push((Bytes::copy_from_slice(&n.to_be_bytes()), Some(proposal.clone())));
        Bytes::copy_from_slice(&n.to_le_bytes())
    }
}

/// A group of one has no other to call.
struct Nobody;

impl Peers for Nobody {
    fn call(&self, to: NodeId, _: &str, _: Bytes) -> Call<'_> {
        Box::pin(
            async move { Err(std::io::Error::other(format!("member {to} cannot be reached"))) },
        )
    }
}

/// Opens a file, and founds a group with it if it belongs to none.
async fn alone(path: &Path) -> Replica<Journal> {
    let r = Replica::<Journal>::open(path, Arc::new(Nobody)).await.unwrap();
    if !r.is_member().await.unwrap() {
        r.found("a").await.unwrap();
    }
    r
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn survives_restarts_and_purges_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let mut expect = Vec::new();
    for round in 0..3u32 {
        runtime().block_on(async {
            let r = alone(&path).await;
            r.read(|m| assert_eq!(m.0, expect, "round {round}"));
            for i in 0..700u32 {
                let p = Bytes::from(format!("{round}.{i}"));
                let n = r.propose(p.clone()).await.unwrap();
                assert_eq!(n, Bytes::copy_from_slice(&(expect.len() as u32).to_le_bytes()));
                expect.push(p);
            }
            let purged = r
                .raft
                .wait(Some(std::time::Duration::from_secs(10)))
                .metrics(|m| m.purged.is_some_and(|p| p.index > u64::from(round) * 512), "purge")
                .await
                .unwrap();
            assert!(purged.last_log_index.unwrap() - purged.purged.unwrap().index < 700);
            r.shutdown().await;
        });
    }
}

/// A process that dies leaves what it answered: the copy of the file taken while it runs opens with
/// every answered proposal, and none twice.
#[test]
fn a_crash_keeps_what_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let copy = dir.path().join("copy.db");
    runtime().block_on(async {
        let r = alone(&path).await;
        for i in 0..20u32 {
            r.propose(Bytes::from(i.to_string())).await.unwrap();
        }
        std::fs::copy(&path, &copy).unwrap();
        r.shutdown().await;
    });
    runtime().block_on(async {
        let r = alone(&copy).await;
        let expect: Vec<_> = (0..20u32).map(|i| Bytes::from(i.to_string())).collect();
        r.read(|m| assert_eq!(m.0, expect));
        r.shutdown().await;
    });
}

/// Delivers between members of one process, unless a link is cut.
#[derive(Default)]
struct Local {
    members: Mutex<HashMap<NodeId, Replica<Journal>>>,
    cut: Mutex<BTreeSet<NodeId>>,
}

struct Via(Arc<Local>, NodeId);

impl Peers for Via {
    fn call(&self, to: NodeId, _: &str, request: Bytes) -> Call<'_> {
        Box::pin(async move {
            let target = self.0.members.lock().unwrap().get(&to).cloned();
            let cut = |id: &NodeId| self.0.cut.lock().unwrap().contains(id);
            let target = target
                .filter(|_| !cut(&to) && !cut(&self.1))
                .ok_or_else(|| std::io::Error::other("not up"))?;
            let reply = target.handle(decode_request(&request).unwrap()).await;
            Ok(encode_reply(&reply))
        })
    }
}

struct Group {
    dir: tempfile::TempDir,
    local: Arc<Local>,
}

impl Group {
    fn new() -> Group {
        Group { dir: tempfile::tempdir().unwrap(), local: Arc::default() }
    }

    /// Starts a member, with a new file if it has none.
    async fn start(&self, id: NodeId) -> Replica<Journal> {
        let path = self.dir.path().join(format!("{id}.db"));
        if !path.exists() {
            seed(&path, id, &Rows::new()).unwrap();
        }
        let r = Replica::open(&path, Arc::new(Via(self.local.clone(), id))).await.unwrap();
        self.local.members.lock().unwrap().insert(id, r.clone());
        r
    }

    async fn stop(&self, id: NodeId) {
        let r = self.local.members.lock().unwrap().remove(&id);
        if let Some(r) = r {
            r.shutdown().await;
        }
    }

    /// A group of three, founded by the first; what was proposed before the others came is in their
    /// state too.
    async fn three(&self) -> [Replica<Journal>; 3] {
        let a = self.start(11).await;
        a.found("a").await.unwrap();
        a.propose(Bytes::from_static(b"first")).await.unwrap();
        for (id, name) in [(12, "b"), (13, "c")] {
            let r = self.start(id).await;
            assert!(!r.is_member().await.unwrap());
            self.take_in(&a, id, name).await;
        }
        let get = |id| self.local.members.lock().unwrap()[&id].clone();
        [get(11), get(12), get(13)]
    }

    async fn take_in(&self, leader: &Replica<Journal>, id: NodeId, name: &str) {
        leader.admit(id, name).await.unwrap();
        until("it catches up", || leader.has_caught_up(id)).await;
        let mut voters: BTreeSet<NodeId> = leader
            .members()
            .voters
            .into_iter()
            .filter(|(_, n)| n != name)
            .map(|(i, _)| i)
            .collect();
        voters.insert(id);
        leader.set_voters(voters).await.unwrap();
    }

    /// The leader among these.
    async fn leader(&self, of: &[NodeId]) -> Replica<Journal> {
        let find = || {
            let members = self.local.members.lock().unwrap();
            of.iter().filter_map(|i| members.get(i)).find(|r| r.standing().leads).cloned()
        };
        until("a leader", || find().is_some()).await;
        let found = find().unwrap();
        assert!(found.catch_up().await);
        found
    }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain: {what}");
}

#[test]
fn three_members_agree_and_survive_one() {
    runtime().block_on(async {
        let g = Group::new();
        let [a, b, c] = g.three().await;
        a.propose(Bytes::from_static(b"second")).await.unwrap();
        let expect = [Bytes::from_static(b"first"), Bytes::from_static(b"second")];
        for r in [&b, &c] {
            until("the follower has it", || r.read(|m| m.0.len()) == 2).await;
            r.read(|m| assert_eq!(m.0, expect));
            assert_eq!(r.standing().follows.as_deref(), Some("a"));
            assert!(matches!(
                r.propose(Bytes::from_static(b"x")).await,
                Err(ProposeError::NotLeader { .. })
            ));
        }
        g.stop(11).await;
        let second = g.leader(&[12, 13]).await;
        second.propose(Bytes::from_static(b"third")).await.unwrap();
        // A member that was away learns what it missed.
        let a = g.start(11).await;
        until("it has caught up", || a.read(|m| m.0.len()) == 3).await;
        for r in [a, b, c] {
            r.shutdown().await;
        }
    });
}

#[test]
fn a_minority_decides_nothing_and_forgets_what_it_began() {
    runtime().block_on(async {
        let g = Group::new();
        let [a, b, c] = g.three().await;
        g.local.cut.lock().unwrap().insert(11);
        let lost = tokio::spawn({
            let a = a.clone();
            async move { a.propose(Bytes::from_static(b"lost")).await }
        });
        let second = g.leader(&[12, 13]).await;
        assert!(!lost.is_finished(), "a leader without a majority answers nobody");
        second.propose(Bytes::from_static(b"kept")).await.unwrap();
        g.local.cut.lock().unwrap().clear();
        assert!(matches!(lost.await.unwrap(), Err(ProposeError::NotLeader { .. })));
        let expect = [Bytes::from_static(b"first"), Bytes::from_static(b"kept")];
        for r in [&a, &b, &c] {
            until("all have it", || r.read(|m| m.0.len()) == 2).await;
            r.read(|m| assert_eq!(m.0, expect));
        }
        for r in [a, b, c] {
            r.shutdown().await;
        }
    });
}

/// A member that lost its file comes back under another number, with a snapshot, and its old number
/// loses its vote.
#[test]
fn a_lost_file_is_replaced() {
    runtime().block_on(async {
        let g = Group::new();
        let [a, b, c] = g.three().await;
        g.stop(12).await;
        // More than the log keeps.
        for i in 0..800u32 {
            a.propose(Bytes::from(i.to_string())).await.unwrap();
        }
        let new = g.start(22).await;
        g.take_in(&a, 22, "b").await;
        assert_eq!(
            a.members().voters,
            [(11, "a".into()), (13, "c".into()), (22, "b".into())].into()
        );
        until("it has everything", || new.read(|m| m.0.len()) == 801).await;
        // It counts: the two others are not needed both.
        g.stop(13).await;
        a.propose(Bytes::from_static(b"with the new one")).await.unwrap();
        // The number that it had counts no more: with its old file it has no say and no part.
        let old = g.start(12).await;
        tokio::time::sleep(ELECTION.1 * 3).await;
        assert!(a.standing().leads && old.standing().follows.is_none());
        for r in [a, b, c, new, old] {
            let _ = r.raft.shutdown().await;
        }
    });
}

/// A member that was away for longer than the log reaches gets a snapshot, also over what it had.
#[test]
fn who_was_away_for_long_gets_a_snapshot() {
    runtime().block_on(async {
        let g = Group::new();
        let [a, b, c] = g.three().await;
        g.stop(13).await;
        for i in 0..1500u32 {
            a.propose(Bytes::from(i.to_string())).await.unwrap();
        }
        let c2 = g.start(13).await;
        assert!(c2.read(|m| m.0.len()) < 10);
        until("it has everything", || c2.read(|m| m.0.len()) == 1501).await;
        assert_eq!(c2.applied(), a.applied());
        for r in [a, b, c, c2] {
            let _ = r.raft.shutdown().await;
        }
    });
}

#[test]
fn requests_survive_the_wire_and_nonsense_does_not() {
    use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, Vote};
    let log_id = LogId::new(CommittedLeaderId::new(3, 11), 7);
    let entries = vec![
        Entry { log_id, payload: EntryPayload::Blank },
        Entry { log_id, payload: EntryPayload::Normal(Proposal(Bytes::from_static(b"\0\xff"))) },
    ];
    let request = openraft::raft::AppendEntriesRequest {
        vote: Vote::new_committed(3, 11),
        prev_log_id: Some(log_id),
        entries,
        leader_commit: None,
    };
    let text = format!("{request:?}");
    let bytes = encode_request(RaftRequest::Append(request));
    match decode_request(&bytes) {
        Some(RaftRequest::Append(r)) => assert_eq!(format!("{r:?}"), text),
        other => panic!("{other:?}"),
    }
    for cut in 0..bytes.len() {
        assert!(decode_request(&bytes.slice(..cut)).is_none(), "cut at {cut}");
    }
    assert!(decode_reply(b"{}").is_none());
}

/// A leader must not be relied on when another can have been elected.
#[test]
fn the_lease_ends_before_an_election_can() {
    assert!(LEASE < ELECTION.1);
    assert!(HEARTBEAT < ELECTION.0 && HEARTBEAT * 3 < LEASE);
}

/// The file of a member of a group that is stopped.
fn survivor(g: &Group, id: NodeId) -> Result<Survivor<Journal>, RescueError> {
    Survivor::open(&g.dir.path().join(format!("{id}.db")))
}

impl Group {
    /// Makes the member `old`, which is stopped, the only one, as `new`, and starts it.
    async fn rescue(&self, old: NodeId, new: NodeId, name: &str) -> Replica<Journal> {
        survivor(self, old).unwrap().rescue(new, name, vec![]).unwrap();
        std::fs::rename(
            self.dir.path().join(format!("{old}.db")),
            self.dir.path().join(format!("{new}.db")),
        )
        .unwrap();
        self.start(new).await
    }
}

/// One of three goes on alone, takes others in, and is not needed any more in the end.
#[test]
fn a_survivor_goes_on_alone() {
    runtime().block_on(async {
        let g = Group::new();
        let [a, _, c] = g.three().await;
        a.propose(Bytes::from_static(b"second")).await.unwrap();
        until("the follower has it", || c.read(|m| m.0.len()) == 2).await;
        let term = c.term();
        for id in [11, 12, 13] {
            g.stop(id).await;
        }
        let s = survivor(&g, 13).unwrap();
        let names: Vec<&str> = s.survey().voters.values().map(String::as_str).collect();
        assert_eq!((s.survey().id, names, s.survey().term), (13, vec!["a", "b", "c"], term));
        assert!(s.survey().last >= s.survey().applied && s.survey().last.index > 0);
        let last = s.survey().last;
        drop(s);
        let alone = g.rescue(13, 99, "c").await;
        assert!(alone.standing().leads && alone.standing().votes && alone.term() > term + 500);
        assert!(alone.applied() > last.index);
        assert_eq!(
            alone.members(),
            Members { voters: [(99, "c".into())].into(), ..Members::default() }
        );
        alone.read(|m| {
            assert_eq!(m.0, [Bytes::from_static(b"first"), Bytes::from_static(b"second")])
        });
        alone.propose(Bytes::from_static(b"third")).await.unwrap();
        // It is as good as any other member.
        g.stop(99).await;
        let alone = g.start(99).await;
        for (id, name) in [(22, "a"), (23, "b")] {
            g.start(id).await;
            g.take_in(&alone, id, name).await;
        }
        g.stop(99).await;
        let next = g.leader(&[22, 23]).await;
        next.propose(Bytes::from_static(b"fourth")).await.unwrap();
        next.read(|m| {
            assert_eq!(m.0, [&b"first"[..], b"second", b"third", b"fourth"].map(Bytes::from_static))
        });
        for id in [22, 23] {
            g.stop(id).await;
        }
    });
}

/// Whatever is in the survivor's log counts, whether it was committed or not.
#[test]
fn what_a_survivor_had_only_in_its_log_is_kept() {
    runtime().block_on(async {
        let g = Group::new();
        let [a, _, _] = g.three().await;
        g.local.cut.lock().unwrap().insert(11);
        let before = a.raft.metrics().borrow().last_log_index.unwrap();
        let doubtful = tokio::spawn({
            let a = a.clone();
            async move { a.propose(Bytes::from_static(b"doubtful")).await }
        });
        until("it is in the log", || a.raft.metrics().borrow().last_log_index.unwrap() > before)
            .await;
        a.read(|m| assert_eq!(m.0.len(), 1));
        for id in [11, 12, 13] {
            g.stop(id).await;
        }
        let _ = doubtful.await;
        drop(a);
        g.local.cut.lock().unwrap().clear();
        let (a, b) = (survivor(&g, 11).unwrap(), survivor(&g, 12).unwrap());
        assert!(a.survey().last.index > a.survey().applied.index && a.machine.0.len() == 2);
        assert_eq!(b.machine.0.len(), 1);
        drop((a, b));
        let alone = g.rescue(11, 99, "a").await;
        alone.read(|m| {
            assert_eq!(m.0, [Bytes::from_static(b"first"), Bytes::from_static(b"doubtful")])
        });
        g.stop(99).await;
    });
}

/// A member of the old group has no say in the new one, whatever term it has: nothing that it sends
/// is for the number of the rescued one, and without that it has no majority.
#[test]
fn a_lost_member_that_comes_back_does_not_win() {
    runtime().block_on(async {
        let g = Group::new();
        let _ = g.three().await;
        for id in [11, 12, 13] {
            g.stop(id).await;
        }
        let alone = g.rescue(11, 99, "a").await;
        let term = alone.term();
        let old = g.start(12).await;
        for round in 0..3u64 {
            let before = old.term();
            old.raft.trigger().elect().await.unwrap();
            until("it stands for election", || old.term() > before).await;
            alone.propose(Bytes::from(round.to_string())).await.unwrap();
        }
        assert!(!old.standing().leads && old.standing().follows.is_none());
        assert!(
            alone.standing().leads && alone.term() == term && alone.members().voters.len() == 1
        );
        assert_eq!(old.read(|m| m.0.len()), 1, "it learns nothing either");
        g.stop(12).await;
        g.stop(99).await;
    });
}

#[test]
fn a_rescue_is_refused_where_it_makes_no_sense() {
    let what = |r: Result<Survivor<Journal>, RescueError>| r.err().unwrap().to_string();
    runtime().block_on(async {
        let g = Group::new();
        assert!(what(survivor(&g, 1)).contains("cannot be opened"));
        assert!(!g.dir.path().join("1.db").exists(), "looking makes nothing");
        g.start(10).await;
        g.stop(10).await;
        assert!(matches!(survivor(&g, 10), Err(RescueError::NoGroup)));
        let one = g.start(10).await;
        one.found("a").await.unwrap();
        assert!(matches!(survivor(&g, 10), Err(RescueError::Busy)));
        drop(one);
        g.stop(10).await;
        assert!(matches!(survivor(&g, 10), Err(RescueError::Alone)));

        let [a, _, _] = g.three().await;
        for n in 0..20 {
            a.propose(Bytes::from(n.to_string())).await.unwrap();
        }
        drop(a);
        for id in [11, 12, 13] {
            g.stop(id).await;
        }
        let path = |id: NodeId| g.dir.path().join(format!("{id}.db"));
        let edit = |id: NodeId, f: &dyn Fn(&redb::WriteTransaction)| {
            let shared = Shared::open(&path(id)).unwrap();
            shared
                .write(redb::Durability::Immediate, |t| {
                    f(t);
                    Ok(())
                })
                .unwrap();
        };
        let intact = std::fs::read(path(11)).unwrap();
        assert!(survivor(&g, 11).is_ok());
        // Not a member of what it says is its group.
        edit(11, &|t| store::put_meta(t, "id", &77u64).unwrap());
        assert!(matches!(survivor(&g, 11), Err(RescueError::Removed)));
        // A hole in the log, an entry and a value that cannot be read.
        let last = survivor(&g, 12).unwrap().survey().last.index;
        edit(12, &|t| {
            // As if nothing of the log had been applied.
            store::put_meta(t, "applied", &store::Applied::default()).unwrap();
            t.open_table(store::LOG).unwrap().retain(|i, _| i != last - 1).unwrap();
        });
        assert!(what(survivor(&g, 12)).contains("should be"), "{}", what(survivor(&g, 12)));
        std::fs::write(path(11), &intact).unwrap();
        edit(11, &|t| drop(t.open_table(store::LOG).unwrap().insert(last, &b"\0\0"[..]).unwrap()));
        assert!(matches!(survivor(&g, 11), Err(RescueError::Damaged(_))));
        std::fs::write(path(11), &intact).unwrap();
        edit(11, &|t| drop(t.open_table(store::META).unwrap().insert("vote", &b"{"[..]).unwrap()));
        assert!(matches!(survivor(&g, 11), Err(RescueError::Damaged(_))));
        // Not a store at all, and half of one.
        std::fs::write(path(11), b"no store").unwrap();
        assert!(survivor(&g, 11).is_err());
        std::fs::write(path(11), &intact[..intact.len() / 2]).unwrap();
        assert!(survivor(&g, 11).is_err());
    });
}
