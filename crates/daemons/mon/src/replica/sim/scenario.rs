//! A run: a group is founded, clients ask, faults happen; then calm, and all members must agree.

use super::disk;
use super::exec::{Exec, WORLD, sleep};
use super::rng::Rng;
use super::world::{Bug, World};
use crate::replica::ProposeError;
use bytes::Bytes;
use openraft::AsyncRuntime;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// After so long without faults all members agree.
const CALM: Duration = Duration::from_secs(90);
/// The group has this many members at most.
const MOST: usize = 6;

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Monitors at first.
    pub members: usize,
    pub clients: u64,
    /// How long faults happen.
    pub trouble: Duration,
    /// The time between them, at most, in milliseconds.
    pub pause: u64,
    /// The time between requests of a client, at most, in milliseconds.
    pub think: u64,
    /// Values have this many bytes more, at most.
    pub padding: u64,
    pub bug: Option<Bug>,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn shape(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0x7363_656e_6172_696f);
        Scenario {
            members: if rng.permille(300) { 5 } else { 3 },
            clients: rng.range(1, 4),
            trouble: Duration::from_secs(rng.range(20, 60)),
            pause: rng.pick(&[500, 2000, 6000]).unwrap_or(2000),
            // Some write so much that the library makes snapshots by itself.
            think: rng.pick(&[20, 300, 300, 1000]).unwrap_or(300),
            padding: rng.pick(&[1, 64, 3000]).unwrap_or(1),
            bug: None,
        }
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Report {
    /// Proposals that were acknowledged.
    pub answered: u64,
    pub reads: u64,
    /// What was reached, and how often.
    pub marks: BTreeMap<&'static str, u64>,
    /// A hash of everything that happened.
    pub trace: u64,
    /// How often a task went on.
    pub steps: u64,
}

struct End;

impl Drop for End {
    fn drop(&mut self) {
        World::end();
    }
}

/// Runs a scenario. Panics if something is wrong.
pub fn run(seed: u64, scenario: &Scenario) -> Report {
    let _end = End;
    disk::all_fast();
    let scenario = scenario.clone();
    let main = move |exec: Rc<Exec>| {
        let world = World::new(exec, seed, scenario.bug);
        world.tell(|| format!("{scenario:?}"));
        live(world, scenario)
    };
    let (trace, steps) = Exec::run(seed, main, || {
        super::world::with(|w| w.watch());
    });
    let (answered, reads, marks) = super::world::with(|w| {
        let (untold, refused) = w.oracle.borrow().judge();
        let mut marks = w.marks();
        *marks.entry("done, and nobody was told").or_default() += untold;
        *marks.entry("refused, and done").or_default() += refused;
        (w.oracle.borrow().answered, w.oracle.borrow().reads, marks)
    })
    .expect("the world is there until this returns");
    Report { answered, reads, marks, trace, steps }
}

async fn live(world: Rc<World>, scenario: Scenario) {
    let names: Vec<String> =
        ["a", "b", "c", "d", "e", "f"].iter().map(|n| (*n).to_owned()).collect();
    world.found(&names[..scenario.members]).await;
    world.calm.set(false);
    for client in 0..scenario.clients {
        world.exec.spawn_in(WORLD, ask(world.clone(), client, scenario.clone()));
    }
    trouble(&world, &scenario, &names).await;
    calm(&world).await;
}

/// One client.
async fn ask(world: Rc<World>, client: u64, scenario: Scenario) {
    let mut number = 0;
    let mut again: Option<Bytes> = None;
    while !world.calm.get() {
        sleep(world.millis(0, scenario.think)).await;
        let names: Vec<String> = world.hosts.borrow().keys().cloned().collect();
        let name = match world.leader().filter(|_| world.permille(800)) {
            Some(n) => n,
            None => world.pick(&names).unwrap_or_default(),
        };
        let Some((process, replica)) = world.replica(&name).filter(|_| !world.quiet.get()) else {
            continue;
        };
        let w = world.clone();
        if world.permille(300) {
            let floor = world.oracle.borrow().floor();
            world.exec.spawn_in(process, async move {
                if replica.catch_up().await {
                    let saw = replica.read(|m| m.0.len());
                    w.oracle.borrow_mut().read(floor, saw);
                }
            });
            continue;
        }
        let value = again.take().unwrap_or_else(|| {
            number += 1;
            let padding = "x".repeat(world.range(0, scenario.padding) as usize);
            format!("{client}.{number}.{padding}").into()
        });
        world.oracle.borrow_mut().asked(&value);
        let asked = value.clone();
        let answer = world.exec.spawn_in(process, async move {
            match replica.propose(asked.clone()).await {
                Ok(n) => {
                    let n = u64::from_le_bytes(n[..].try_into().expect("a number")) as usize;
                    w.oracle.borrow_mut().acknowledged(&asked, n);
                    assert!(
                        replica.read(|m| m.0.len()) > n,
                        "who was answered does not see what he wrote"
                    );
                    true
                }
                Err(ProposeError::NotLeader { .. }) => {
                    w.oracle.borrow_mut().refused(&asked);
                    false
                }
                Err(e @ ProposeError::Stopped(_)) => {
                    assert!(w.exec.is_dead(process), "{e}");
                    false
                }
            }
        });
        let patience = world.millis(20, 3000);
        let done = match super::Runtime::timeout(patience, answer).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => {
                world.mark("no answer: the monitor died");
                false
            }
            Err(_) => {
                world.mark("no answer in time");
                false
            }
        };
        if !done && world.permille(300) {
            world.mark("proposed again");
            again = Some(value);
        }
    }
}

/// Faults, until the time for them is over.
async fn trouble(world: &Rc<World>, scenario: &Scenario, names: &[String]) {
    let end = world.exec.now() + scenario.trouble;
    let mut changing = false;
    while world.exec.now() < end {
        sleep(world.millis(20, scenario.pause)).await;
        while world.exec.now() < world.holds.get() {
            sleep(Duration::from_millis(100)).await;
        }
        world.collect_dead();
        if changing && world.is_whole() {
            changing = false;
            forget_unlisted(world);
        }
        let down: Vec<String> = world
            .hosts
            .borrow()
            .iter()
            .filter(|(_, h)| h.up.is_none())
            .map(|(n, _)| n.clone())
            .collect();
        if world.permille(500)
            && let Some(name) = world.pick(&down)
        {
            world.start(&name);
        }
        let hosts: Vec<String> = world.hosts.borrow().keys().cloned().collect();
        // Leaders are worth more.
        let victim = match world.leader().filter(|_| world.permille(400)) {
            Some(n) => n,
            None => world.pick(&hosts).unwrap_or_default(),
        };
        match world.range(0, 29) {
            0..=2 => world.kill(&victim),
            3 => {
                world.mark("all killed");
                hosts.iter().for_each(|n| world.kill(n));
            }
            4..=6 => {
                let syncs = world.range(0, 8);
                world.hosts.borrow()[&victim].disk.die_in(syncs);
            }
            7..=8 => freeze(world, &victim),
            9..=12 => cut(world, &victim, &hosts),
            13..=15 => {
                world.tell(|| "the network is whole".into());
                world.net.heal();
            }
            16 => {
                let rate = |most| world.pick(&[0, 0, most / 10, most]).unwrap_or(0);
                let (late, lost, doubled) = (rate(300), rate(200), rate(200));
                world.tell(|| format!("the network: late {late}, lost {lost}, doubled {doubled}"));
                world.net.late.set(late);
                world.net.lost.set(lost);
                world.net.doubled.set(doubled);
            }
            17 => {
                if let Some((process, _)) = world.replica(&victim) {
                    world.mark("disk is slow");
                    let most = world.pick(&[50, 500, 1500]).unwrap_or(50);
                    disk::slow(
                        process,
                        Duration::from_millis(most / 5),
                        Duration::from_millis(most),
                    );
                }
            }
            18..=19 => {
                if let Some((process, replica)) = world.replica(&victim) {
                    world.mark("log compacted");
                    world.exec.spawn_in(process, async move { drop(replica.compact_log().await) });
                }
            }
            20..=21 if !changing && world.is_whole() => {
                world.mark("member replaced");
                changing = true;
                world.replace(&victim);
            }
            22 if !changing && world.is_whole() && hosts.len() < MOST => {
                let Some(new) = names.iter().find(|n| !hosts.contains(n)) else { continue };
                world.mark("member added");
                world.tell(|| format!("{new} is added"));
                changing = true;
                world.listed.borrow_mut().insert(new.clone());
                world.add_host(new);
                world.start(new);
            }
            23 if !changing && world.is_whole() && hosts.len() > 3 => {
                world.mark("member removed");
                world.tell(|| format!("{victim} is removed"));
                changing = true;
                world.listed.borrow_mut().remove(&victim);
            }
            24..=26 => depose(world).await,
            27..=28 => settle(world).await,
            _ => {}
        }
    }
}

/// Gives the group the time to find a leader.
async fn settle(world: &Rc<World>) {
    world.net.heal();
    world.collect_dead();
    let names: Vec<String> = world.hosts.borrow().keys().cloned().collect();
    names.iter().for_each(|n| world.start(n));
    for _ in 0..100 {
        if world.is_whole() {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// The leader loses its followers one after the other, and they do not lose each other: the one
/// that lost it first is ready to stand when the last one may vote. It has everything that the last
/// one has if there are no writes meanwhile.
async fn depose(world: &Rc<World>) {
    settle(world).await;
    let Some(leader) = world.leader() else { return };
    let others: Vec<String> =
        world.hosts.borrow().keys().filter(|n| **n != leader).cloned().collect();
    if world.permille(600) {
        world.quiet.set(true);
        sleep(Duration::from_secs(1)).await;
    }
    let most = world.pick(&[500, 6000]).unwrap_or(500);
    for name in others {
        world.tell(|| format!("the leader {leader} loses {name}"));
        let both = [(leader.clone(), name.clone()), (name.clone(), leader.clone())];
        world.net.cut.borrow_mut().extend(both);
        sleep(world.millis(0, most)).await;
    }
    sleep(world.millis(2000, 4000)).await;
    world.quiet.set(false);
    sleep(world.millis(0, 4000)).await;
    if world.leader().is_some_and(|n| n != leader) {
        world.mark("leader deposed by a majority that it lost");
    }
    world.net.heal();
}

/// A monitor stands still for a while.
fn freeze(world: &Rc<World>, name: &str) {
    let Some((process, _)) = world.replica(name) else { return };
    world.mark("monitor stopped");
    if world.leader().as_deref() == Some(name) {
        world.mark("leader stopped");
    }
    world.tell(|| format!("{name} stands still"));
    world.exec.freeze(process, true);
    let (world, time) = (world.clone(), world.millis(300, 12_000));
    world.clone().exec.spawn_in(WORLD, async move {
        sleep(time).await;
        world.exec.freeze(process, false);
    });
}

/// Some do not reach some.
fn cut(world: &Rc<World>, victim: &str, hosts: &[String]) {
    let mut cut = world.net.cut.borrow_mut();
    let both = |a: &str, b: &str| [(a.to_owned(), b.to_owned()), (b.to_owned(), a.to_owned())];
    let others = || hosts.iter().filter(|n| *n != victim);
    match world.range(0, 5) {
        0 => {
            world.mark("monitor cut off");
            if world.leader().as_deref() == Some(victim) {
                world.mark("leader cut off");
            }
            cut.extend(others().flat_map(|n| both(victim, n)));
        }
        1 => {
            world.mark("partition");
            let (here, there): (Vec<_>, Vec<_>) = hosts.iter().partition(|_| world.permille(500));
            cut.extend(here.iter().flat_map(|a| there.iter().flat_map(|b| both(a, b))));
        }
        2 | 3 => {
            if let Some(n) = world.pick(&others().cloned().collect::<Vec<_>>()) {
                world.mark("link cut");
                cut.extend(both(victim, &n));
            }
        }
        _ => {
            world.mark("link cut in one direction");
            let most = if world.permille(500) { 1 } else { hosts.len() };
            cut.extend(others().take(most).map(|n| (victim.to_owned(), n.clone())));
        }
    }
    world.tell(|| format!("cut: {cut:?}"));
}

/// Monitors that are not members any more are switched off.
fn forget_unlisted(world: &Rc<World>) {
    let listed = world.listed.borrow().clone();
    let gone: Vec<String> =
        world.hosts.borrow().keys().filter(|n| !listed.contains(*n)).cloned().collect();
    for name in gone {
        world.kill(&name);
        let host = world.hosts.borrow_mut().remove(&name);
        drop(host);
    }
}

/// Everything works again; then all members must agree before long.
async fn calm(world: &Rc<World>) {
    world.tell(|| "calm".into());
    world.calm.set(true);
    world.net.heal();
    disk::all_fast();
    let end = world.exec.now() + CALM;
    let mut proposed = false;
    loop {
        world.collect_dead();
        let names: Vec<String> = world.hosts.borrow().keys().cloned().collect();
        for name in &names {
            // No member dies any more.
            if let Some((process, _)) = world.replica(name) {
                world.exec.freeze(process, false);
            }
            world.hosts.borrow()[name].disk.lives();
            world.start(name);
        }
        if world.is_whole() {
            forget_unlisted(world);
            match world.leader().and_then(|n| world.replica(&n)) {
                Some((process, leader)) if !proposed => {
                    let value = Bytes::from_static(b"the last");
                    world.oracle.borrow_mut().asked(&value);
                    let answer = world.exec.spawn_in(process, async move {
                        leader.propose(Bytes::from_static(b"the last")).await
                    });
                    proposed = matches!(
                        super::Runtime::timeout(Duration::from_secs(5), answer).await,
                        Ok(Ok(Ok(_)))
                    );
                }
                _ if proposed && agreed(world) => return,
                _ => {}
            }
        }
        let left = end.saturating_sub(world.exec.now());
        assert!(!left.is_zero(), "no agreement after {CALM:?} of calm: {}", state(world));
        sleep(Duration::from_millis(100)).await;
    }
}

/// Whether every monitor has the whole history.
fn agreed(world: &World) -> bool {
    let all = world.oracle.borrow().len();
    let hosts = world.hosts.borrow();
    hosts.values().all(|h| {
        let replica = h.up.as_ref().and_then(|u| u.replica.as_ref());
        replica.is_some_and(|r| r.read(|m| m.0.len()) == all)
    })
}

/// What monitors say of themselves.
fn state(world: &World) -> String {
    let mut out = String::new();
    for (name, host) in &*world.hosts.borrow() {
        out += &format!("\n{name} {}: ", host.id);
        match host.up.as_ref().and_then(|u| u.replica.as_ref()) {
            Some(r) => {
                out +=
                    &format!("{:?} {:?} has {}", r.standing(), r.members(), r.read(|m| m.0.len()))
            }
            None => out += "down",
        }
    }
    out
}
