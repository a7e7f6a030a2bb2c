//! Blocking calls on a few threads, for kernels and containers without io_uring.

use super::request::{Gather, Outcome};
use aligned::AlignedBuf;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex};
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce(&File) + Send>;

struct Queue {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    wake: Condvar,
}

/// Threads that work on one file. They finish what is queued and end when the pool is dropped.
pub(super) struct Pool {
    queue: Arc<Queue>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Pool {
    pub(super) fn new(file: Arc<File>, threads: usize) -> Pool {
        let queue =
            Arc::new(Queue { jobs: Mutex::new((VecDeque::new(), false)), wake: Condvar::new() });
        let work = |queue: Arc<Queue>, file: Arc<File>| {
            loop {
                let mut jobs = queue.jobs.lock().unwrap_or_else(|e| e.into_inner());
                let job = loop {
                    if let Some(job) = jobs.0.pop_front() {
                        break job;
                    }
                    if jobs.1 {
                        return;
                    }
                    jobs = queue.wake.wait(jobs).unwrap_or_else(|e| e.into_inner());
                };
                drop(jobs);
                job(&file);
            }
        };
        let threads = (0..threads)
            .map(|_| {
                let (queue, file) = (queue.clone(), file.clone());
                std::thread::spawn(move || work(queue, file))
            })
            .collect();
        Pool { queue, threads }
    }

    pub(super) fn read(&self, off: u64, mut buf: AlignedBuf) -> oneshot::Receiver<Outcome> {
        self.run(move |file| {
            let r = file.read_exact_at(&mut buf, off);
            (Some(buf), r)
        })
    }

    pub(super) fn write(
        &self,
        off: u64,
        data: Gather,
        durable: bool,
    ) -> oneshot::Receiver<Outcome> {
        self.run(move |file| {
            let mut at = off;
            let mut write = || -> io::Result<()> {
                for b in &data {
                    file.write_all_at(b, at)?;
                    at += b.len() as u64;
                }
                if durable { file.sync_data() } else { Ok(()) }
            };
            (None, write())
        })
    }

    pub(super) fn flush(&self) -> oneshot::Receiver<Outcome> {
        self.run(|file| (None, file.sync_data()))
    }

    fn run(&self, f: impl FnOnce(&File) -> Outcome + Send + 'static) -> oneshot::Receiver<Outcome> {
        let (tx, rx) = oneshot::channel();
        let job: Job = Box::new(move |file| {
            // The caller does not wait any more, and does not want the result either.
            let _ = tx.send(f(file));
        });
        self.queue.jobs.lock().unwrap_or_else(|e| e.into_inner()).0.push_back(job);
        self.queue.wake.notify_one();
        rx
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.jobs.lock().unwrap_or_else(|e| e.into_inner()).1 = true;
        self.queue.wake.notify_all();
        for t in self.threads.drain(..) {
            // A panic in a job was reported by the thread itself.
            let _ = t.join();
        }
    }
}
