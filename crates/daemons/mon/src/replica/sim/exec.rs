//! One thread that runs the tasks of all members, in virtual time.
//!
//! Which task goes on, of those that can, is drawn from the seed. Time stands still while any can;
//! then *one* timer fires, and the task that waited for it runs before anything else. So no task
//! ever sees its timer fired and a message arrived at once: `tokio::select!` without `biased`,
//! which the library has in places, would toss a coin there that the seed does not rule. Tasks that
//! can go on are kept by number: `tokio::sync::watch` wakes waiting tasks in any order.

use super::rng::{Rng, mix};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::oneshot;

/// A process: one run of a member. Tasks and timers belong to one, and end with it.
pub type Process = u64;

/// The simulation itself, which never dies.
pub const WORLD: Process = 0;

/// So much may happen at one instant.
const BUSY: u64 = 1_000_000;
/// So long may a run be.
const LONGEST: Duration = Duration::from_secs(3600);

thread_local!(static HERE: RefCell<Option<Rc<Exec>>> = const { RefCell::new(None) });

/// The simulation that runs on this thread.
pub fn here() -> Option<Rc<Exec>> {
    HERE.try_with(|h| h.borrow().clone()).ok().flatten()
}

struct Task {
    process: Process,
    /// `None` while it runs.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

#[derive(Default)]
struct Slot {
    fired: bool,
    waker: Option<Waker>,
}

type Key = (Duration, u64);

/// A timer, and its task.
type Pending = (Process, Arc<Mutex<Slot>>);

/// The tasks, timers and time of a run.
pub struct Exec {
    now: Cell<Duration>,
    pub rng: RefCell<Rng>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    /// Tasks that can go on, unless they are gone or stopped.
    ready: Arc<Mutex<BTreeSet<u64>>>,
    timers: RefCell<BTreeMap<Key, Pending>>,
    numbers: Cell<u64>,
    current: Cell<Process>,
    frozen: RefCell<BTreeSet<Process>>,
    dead: RefCell<BTreeSet<Process>>,
    trace: Cell<u64>,
    steps: Cell<u64>,
}

struct Waking(u64, Arc<Mutex<BTreeSet<u64>>>);

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().insert(self.0);
    }
}

impl Exec {
    /// Runs what `main` makes, until it ends; `watch` is called whenever nothing can go on without
    /// time. Returns the hash of what happened, and how much it was.
    pub fn run<F: Future<Output = ()> + 'static>(
        seed: u64,
        main: impl FnOnce(Rc<Exec>) -> F,
        watch: impl Fn(),
    ) -> (u64, u64) {
        let exec = Rc::new(Exec {
            now: Cell::default(),
            rng: RefCell::new(Rng::new(seed)),
            tasks: RefCell::default(),
            ready: Arc::default(),
            timers: RefCell::default(),
            numbers: Cell::new(1),
            current: Cell::new(WORLD),
            frozen: RefCell::default(),
            dead: RefCell::default(),
            trace: Cell::new(seed),
            steps: Cell::new(0),
        });
        HERE.with(|h| *h.borrow_mut() = Some(exec.clone()));
        let _here = Leave;
        let ended = exec.spawn_in(WORLD, main(exec.clone()));
        let mut ended = std::pin::pin!(ended);
        let mut busy = 0;
        loop {
            if let Some(task) = exec.pick() {
                exec.poll(task);
                busy += 1;
                assert!(busy < BUSY, "tasks wake each other for ever");
                continue;
            }
            busy = 0;
            assert!(exec.now() < LONGEST, "this never ends");
            watch();
            match ended.try_recv() {
                Ok(()) => break,
                Err(oneshot::error::TryRecvError::Closed) => {
                    unreachable!("the main task was dropped")
                }
                Err(oneshot::error::TryRecvError::Empty) => {
                    assert!(exec.fire(), "everything waits, and nothing will happen")
                }
            }
        }
        let tasks = std::mem::take(&mut *exec.tasks.borrow_mut());
        drop(tasks);
        (exec.trace.get(), exec.steps.get())
    }

    /// The time since the run began.
    pub fn now(&self) -> Duration {
        self.now.get()
    }

    /// Makes something part of what the hash of the run tells.
    pub fn note(&self, what: u64) {
        self.trace.set(mix(self.trace.get() ^ what));
    }

    /// A number that was not given out before.
    pub fn number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// The process of the running task.
    pub fn current(&self) -> Process {
        self.current.get()
    }

    /// Starts a task of a process. What is returned tells when it ended, or that it was dropped.
    pub fn spawn_in<T: 'static>(
        &self,
        process: Process,
        future: impl Future<Output = T> + 'static,
    ) -> oneshot::Receiver<T> {
        let (tell, told) = oneshot::channel();
        if self.is_dead(process) {
            return told;
        }
        let id = self.number();
        let future = Box::pin(async move { drop(tell.send(future.await)) });
        self.tasks.borrow_mut().insert(id, Task { process, future: Some(future) });
        self.ready.lock().unwrap().insert(id);
        told
    }

    /// Ends a process where it stands. The task that runs, if it is one of its, goes on until it
    /// waits.
    pub fn kill(&self, process: Process) {
        self.dead.borrow_mut().insert(process);
        self.frozen.borrow_mut().remove(&process);
        self.bury();
    }

    /// The same for the process of the running task, in the middle of its work.
    pub fn die(&self, process: Process) {
        self.dead.borrow_mut().insert(process);
    }

    pub fn is_dead(&self, process: Process) -> bool {
        self.dead.borrow().contains(&process)
    }

    /// Stops a process: nothing of it goes on, and its time passes.
    pub fn freeze(&self, process: Process, frozen: bool) {
        match frozen {
            true => self.frozen.borrow_mut().insert(process),
            false => self.frozen.borrow_mut().remove(&process),
        };
    }

    pub fn is_frozen(&self, process: Process) -> bool {
        self.frozen.borrow().contains(&process)
    }

    /// Drops the tasks of dead processes. Their ends may wake, spawn and drop others.
    fn bury(&self) {
        let gone: Vec<Task> = {
            let (dead, mut tasks) = (self.dead.borrow(), self.tasks.borrow_mut());
            let ids: Vec<u64> = tasks
                .iter()
                .filter(|(_, t)| t.future.is_some() && dead.contains(&t.process))
                .map(|(i, _)| *i)
                .collect();
            ids.iter().filter_map(|i| tasks.remove(i)).collect()
        };
        drop(gone);
        let dead = self.dead.borrow();
        self.timers.borrow_mut().retain(|_, (p, _)| !dead.contains(p));
    }

    /// Takes a task that can go on.
    fn pick(&self) -> Option<u64> {
        let mut ready = self.ready.lock().unwrap();
        let (tasks, frozen) = (self.tasks.borrow(), self.frozen.borrow());
        ready.retain(|id| tasks.contains_key(id));
        let able: Vec<u64> =
            ready.iter().filter(|i| !frozen.contains(&tasks[*i].process)).copied().collect();
        let task = self.rng.borrow_mut().pick(&able)?;
        ready.remove(&task);
        Some(task)
    }

    fn poll(&self, id: u64) {
        let taken =
            self.tasks.borrow_mut().get_mut(&id).and_then(|t| Some((t.process, t.future.take()?)));
        let Some((process, mut future)) = taken else { return };
        self.note(id);
        self.steps.set(self.steps.get() + 1);
        self.current.set(process);
        let waker = Waker::from(Arc::new(Waking(id, self.ready.clone())));
        let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        match done || self.is_dead(process) {
            true => {
                self.tasks.borrow_mut().remove(&id);
                drop(future);
            }
            false => {
                if let Some(t) = self.tasks.borrow_mut().get_mut(&id) {
                    t.future = Some(future);
                }
            }
        }
        self.current.set(WORLD);
        if self.is_dead(process) {
            self.bury();
        }
    }

    /// Lets time pass until the next timer fires. False if there is none.
    fn fire(&self) -> bool {
        let found = {
            let (timers, frozen) = (self.timers.borrow(), self.frozen.borrow());
            timers.iter().find(|(_, (p, _))| !frozen.contains(p)).map(|(k, _)| *k)
        };
        let Some(key) = found else { return false };
        self.now.set(self.now.get().max(key.0));
        self.note(key.0.as_nanos() as u64);
        let slot = self.timers.borrow_mut().remove(&key);
        let waker = slot.and_then(|(_, slot)| {
            let mut slot = slot.lock().unwrap();
            slot.fired = true;
            slot.waker.take()
        });
        if let Some(w) = waker {
            w.wake();
        }
        true
    }
}

struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        let exec = HERE.with(|h| h.borrow().clone());
        // Tasks that are dropped look for it.
        let tasks = exec.map(|e| std::mem::take(&mut *e.tasks.borrow_mut()));
        drop(tasks);
        HERE.with(|h| h.borrow_mut().take());
    }
}

/// A timer. It is over when it fired, not when its time has come: see the module.
pub struct Timer {
    key: Key,
    slot: Arc<Mutex<Slot>>,
}

impl Timer {
    pub fn new(exec: &Exec, at: Duration) -> Timer {
        let (key, slot) = ((at, exec.number()), Arc::<Mutex<Slot>>::default());
        let process = exec.current();
        if !exec.is_dead(process) {
            exec.timers.borrow_mut().insert(key, (process, slot.clone()));
        }
        Timer { key, slot }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut slot = self.slot.lock().unwrap();
        match slot.fired {
            true => Poll::Ready(()),
            false => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(exec) = here() {
            let removed = exec.timers.borrow_mut().remove(&self.key);
            drop(removed);
        }
    }
}

/// Waits in virtual time.
pub fn sleep(time: Duration) -> Timer {
    let exec = here().expect("a simulation runs");
    Timer::new(&exec, exec.now() + time)
}
