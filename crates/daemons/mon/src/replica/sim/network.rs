//! What carries calls between monitors, late, twice, in any order, or not at all.

use super::exec::{Process, WORLD, sleep};
use super::oracle::Journal;
use super::world::{self, Bug, World};
use crate::replica::network::Call;
use crate::replica::{NodeId, Peers, RaftRequest, Replica, decode_request, encode_reply};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;

type Reply = oneshot::Sender<std::io::Result<Bytes>>;

/// The state of the network.
#[derive(Default)]
pub struct Net {
    /// Nothing gets from the first to the second.
    pub cut: RefCell<BTreeSet<(String, String)>>,
    /// Of a thousand messages so many are late, lost, doubled.
    pub late: Cell<u64>,
    pub lost: Cell<u64>,
    pub doubled: Cell<u64>,
    /// Callers that wait for what was lost.
    waiting: RefCell<Vec<Reply>>,
}

/// The network as the library of one monitor has it.
pub struct Wire {
    pub name: String,
    pub process: Process,
}

impl Peers for Wire {
    fn call(&self, to: NodeId, name: &str, request: Bytes) -> Call<'_> {
        let (tell, told) = oneshot::channel();
        world::with(|w| w.net.call(w, self, to, name, request, tell));
        Box::pin(async move {
            told.await.map_err(|_| std::io::Error::other("the connection was lost"))?
        })
    }
}

impl Net {
    /// How long a message is under way; `None` if it is lost.
    fn fate(&self, world: &World) -> Option<Duration> {
        if world.permille(self.lost.get()) {
            world.mark("message lost");
            return None;
        }
        Some(match world.permille(self.late.get()) {
            true => world.millis(100, 4000),
            false => world.millis(0, 4),
        })
    }

    fn is_cut(&self, from: &str, to: &str) -> bool {
        self.cut.borrow().contains(&(from.to_owned(), to.to_owned()))
    }

    /// Everything gets through from now on.
    pub fn heal(&self) {
        self.cut.borrow_mut().clear();
        for of in [&self.late, &self.lost, &self.doubled] {
            of.set(0);
        }
    }

    /// A caller that waits for what is lost waits until it gives up, or is told.
    fn lose(&self, world: &World, tell: Option<Reply>) {
        if let Some(tell) = tell.filter(|_| world.permille(700)) {
            self.waiting.borrow_mut().push(tell);
        }
    }

    /// Brings something to where a monitor runs, and has it done there. It comes when it comes.
    pub fn deliver<F: Future<Output = ()> + 'static>(
        &self,
        world: &Rc<World>,
        from: &str,
        to: &str,
        what: impl FnOnce(Process, Replica<Journal>) -> F + 'static,
    ) {
        let Some(time) = self.fate(world) else { return };
        let (world, from, to) = (world.clone(), from.to_owned(), to.to_owned());
        world.clone().exec.spawn_in(WORLD, async move {
            sleep(time).await;
            if world.net.is_cut(&from, &to) {
                return;
            }
            if let Some((process, replica)) = world.replica(&to) {
                world.exec.spawn_in(process, what(process, replica));
            }
        });
    }

    fn call(
        &self,
        world: &Rc<World>,
        from: &Wire,
        to: NodeId,
        name: &str,
        request: Bytes,
        tell: Reply,
    ) {
        // What is dead says nothing.
        if world.exec.is_dead(from.process) {
            return;
        }
        if world.permille(self.doubled.get()) {
            world.mark("call doubled");
            self.one_call(world, &from.name, to, name, request.clone(), None);
        }
        self.one_call(world, &from.name, to, name, request, Some(tell));
    }

    fn one_call(
        &self,
        world: &Rc<World>,
        from: &str,
        to: NodeId,
        name: &str,
        request: Bytes,
        tell: Option<Reply>,
    ) {
        let Some(time) = self.fate(world) else { return self.lose(world, tell) };
        let (world, from, name) = (world.clone(), from.to_owned(), name.to_owned());
        world.clone().exec.spawn_in(WORLD, async move {
            sleep(time).await;
            let target = world.replica(&name);
            let Some((process, replica)) = target.filter(|_| !world.net.is_cut(&from, &name))
            else {
                return world.net.lose(&world, tell);
            };
            if replica.id() != to && world.bug != Some(Bug::AnyoneAnswers) {
                world.mark("call to a member that is gone");
                if let Some(tell) = tell {
                    let _ =
                        tell.send(Err(std::io::Error::other("the member is not there any more")));
                }
                return;
            }
            if world.exec.is_frozen(process) {
                world.mark("call to a stopped monitor");
            }
            let request = decode_request(&request).expect("a request that was encoded");
            let votes = matches!(request, RaftRequest::Vote(_));
            let handling = world
                .exec
                .spawn_in(process, async move { encode_reply(&replica.handle(request).await) });
            // It dies with its answer.
            let Ok(reply) = handling.await else { return world.net.lose(&world, tell) };
            if votes && !world.calm.get() && world.permille(150) {
                world.mark("killed after it was asked for its vote");
                world.kill(&name);
                if world.permille(800) {
                    world.start(&name);
                }
            }
            let Some(tell) = tell else { return };
            if tell.is_closed() {
                world.mark("call executed after its caller gave up");
                return;
            }
            let Some(time) = world.net.fate(&world) else {
                return world.net.lose(&world, Some(tell));
            };
            sleep(time).await;
            match world.net.is_cut(&name, &from) {
                true => world.net.lose(&world, Some(tell)),
                false => drop(tell.send(Ok(reply))),
            }
        });
    }
}
