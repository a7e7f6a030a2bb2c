use super::network::{Call, Nobody};
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

fn alone() -> BTreeMap<NodeId, String> {
    [(1, "here".into())].into()
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
            let r = Replica::<Journal>::open(&path, 1, alone(), Arc::new(Nobody)).await.unwrap();
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
        let r = Replica::<Journal>::open(&path, 1, alone(), Arc::new(Nobody)).await.unwrap();
        for i in 0..20u32 {
            r.propose(Bytes::from(i.to_string())).await.unwrap();
        }
        std::fs::copy(&path, &copy).unwrap();
        r.shutdown().await;
    });
    runtime().block_on(async {
        let r = Replica::<Journal>::open(&copy, 1, alone(), Arc::new(Nobody)).await.unwrap();
        let expect: Vec<_> = (0..20u32).map(|i| Bytes::from(i.to_string())).collect();
        r.read(|m| assert_eq!(m.0, expect));
        r.shutdown().await;
    });
}

/// Delivers between members of one process.
#[derive(Default)]
struct Local(Mutex<HashMap<NodeId, Replica<Journal>>>);

struct Via(Arc<Local>);

impl Peers for Via {
    fn call(&self, to: NodeId, _: &str, request: Bytes) -> Call<'_> {
        Box::pin(async move {
            let target = self.0.0.lock().unwrap().get(&to).cloned();
            let target = target.ok_or_else(|| std::io::Error::other("not up"))?;
            let reply = target.handle(serde_json::from_slice(&request)?).await;
            Ok(serde_json::to_vec(&reply)?.into())
        })
    }
}

#[test]
fn three_members_agree_and_survive_one() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let local = Arc::new(Local::default());
        let members: BTreeMap<NodeId, String> = (1..=3).map(|i| (i, i.to_string())).collect();
        for id in 1..=3 {
            let path = dir.path().join(format!("{id}.db"));
            let r = Replica::<Journal>::open(&path, id, members.clone(), Arc::new(Via(local.clone()))).await;
            local.0.lock().unwrap().insert(id, r.unwrap());
        }
        let any = local.0.lock().unwrap()[&1].clone();
        let m = any
            .raft
            .wait(Some(std::time::Duration::from_secs(20)))
            .metrics(|m| m.current_leader.is_some(), "a leader")
            .await
            .unwrap();
        let first = m.current_leader.unwrap();
        let leader = local.0.lock().unwrap()[&first].clone();
        leader.propose(Bytes::from_static(b"a")).await.unwrap();
        let other = if first == 1 { 2 } else { 1 };
        let follower = local.0.lock().unwrap()[&other].clone();
        assert!(matches!(follower.propose(Bytes::from_static(b"x")).await, Err(ProposeError::NotLeader { .. })));

        local.0.lock().unwrap().remove(&first);
        leader.shutdown().await;
        let m = follower
            .raft
            .wait(Some(std::time::Duration::from_secs(20)))
            .metrics(|m| m.current_leader.is_some_and(|l| l != first), "another leader")
            .await
            .unwrap();
        let second = local.0.lock().unwrap()[&m.current_leader.unwrap()].clone();
        second.propose(Bytes::from_static(b"b")).await.unwrap();
        second.read(|m| assert_eq!(m.0, [Bytes::from_static(b"a"), Bytes::from_static(b"b")]));
    });
}
