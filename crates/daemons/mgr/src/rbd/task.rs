//! Background tasks on images: a queue in the order in which they came, kept in the object
//! `rbd_task` of each pool and namespace in Ceph's form (module `rbd_support`, `task.py`).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use types::Utime;

/// A failed task is tried again after so many seconds, times the number of attempts.
const RETRY_INTERVAL: u64 = 30;
/// But at most after these.
const MOST_RETRY_INTERVAL: u64 = 300;
/// Tasks that are remembered when they are done, so that a repeated command gets the same answer.
const MOST_COMPLETED: usize = 50;

/// The kind of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Makes a clone independent of its parent.
    #[serde(rename = "flatten")]
    Flatten,
    /// Removes an image.
    #[serde(rename = "remove")]
    Remove,
    /// Removes an image that is in the trash.
    #[serde(rename = "trash remove")]
    TrashRemove,
    /// Copies the data of an image that is migrated.
    #[serde(rename = "migrate execute")]
    MigrateExecute,
    /// Removes the source of an image that was migrated.
    #[serde(rename = "migrate commit")]
    MigrateCommit,
    /// Takes a migration back.
    #[serde(rename = "migrate abort")]
    MigrateAbort,
}

/// The object of a task, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refs {
    /// The kind of the task.
    pub action: Action,
    /// The pool.
    pub pool_name: String,
    /// The namespace.
    pub pool_namespace: String,
    /// The image's name, unless it is in the trash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_name: Option<String>,
    /// Its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
}

impl Refs {
    /// Whether these are asked for by `other`, which may not know the id.
    fn answers(&self, other: &Refs) -> bool {
        let mut own = self.clone();
        if other.image_id.is_none() {
            own.image_id = None;
        }
        own == *other
    }
}

/// The part of a task that is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// Its place in the queue.
    pub sequence: u64,
    /// A UUID.
    pub id: String,
    /// For people.
    pub message: String,
    /// Its pool, namespace and image.
    pub refs: Refs,
}

/// A task in the queue.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its stored form.
    pub stored: Stored,
    retry_message: Option<String>,
    retry_attempts: u64,
    retry_time: Option<Utime>,
    in_progress: bool,
    progress: f64,
    canceled: bool,
}

impl Task {
    /// A task that was not tried yet.
    pub fn new(stored: Stored) -> Self {
        Task {
            stored,
            retry_message: None,
            retry_attempts: 0,
            retry_time: None,
            in_progress: false,
            progress: 0.0,
            canceled: false,
        }
    }

    /// Its key in `rbd_task`.
    pub fn key(&self) -> String {
        format!("{:016X}", self.stored.sequence)
    }

    /// What `rbd task list` shows.
    pub fn dump(&self) -> Value {
        let mut d = json!(self.stored);
        if let Some(m) = &self.retry_message {
            d["retry_message"] = m.as_str().into();
        }
        if self.retry_attempts > 0 {
            d["retry_attempts"] = self.retry_attempts.into();
        }
        if let Some(t) = self.retry_time {
            d["retry_time"] = t.to_string().into();
        }
        if self.in_progress {
            d["in_progress"] = true.into();
            d["progress"] = self.progress.into();
        }
        if self.canceled {
            d["canceled"] = true.into();
        }
        d
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// With success.
    Done,
    /// Without, and for good.
    Failed,
    /// It is to be tried again, because of this.
    Retry(String),
}

/// The tasks.
#[derive(Default)]
pub struct Queue {
    tasks: BTreeMap<u64, Task>,
    completed: VecDeque<Stored>,
    sequence: u64,
}

impl Queue {
    /// Takes over a stored task.
    pub fn load(&mut self, stored: Stored) {
        self.sequence = self.sequence.max(stored.sequence);
        self.tasks.insert(stored.sequence, Task::new(stored));
    }

    /// A task that is already there for this, or was there.
    pub fn find(&self, refs: &Refs) -> Option<&Stored> {
        let waiting = self.tasks.values().rev().map(|t| &t.stored);
        waiting.chain(self.completed.iter().rev()).find(|t| t.refs.answers(refs))
    }

    /// The next task, which is not in the queue yet.
    pub fn next(&mut self, id: String, message: String, refs: Refs) -> Stored {
        self.sequence += 1;
        Stored { sequence: self.sequence, id, message, refs }
    }

    /// A task by its id.
    pub fn by_id(&self, id: &str) -> Option<&Task> {
        self.tasks.values().find(|t| t.stored.id == id)
    }

    /// All tasks in order.
    pub fn all(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values()
    }

    /// The tasks that are due, in order.
    pub fn due(&self, now: Utime) -> Vec<u64> {
        self.tasks
            .values()
            .filter(|t| t.retry_time.is_none_or(|at| at <= now))
            .map(|t| t.stored.sequence)
            .collect()
    }

    /// Begins an attempt.
    pub fn start(&mut self, sequence: u64) -> Option<Stored> {
        let task = self.tasks.get_mut(&sequence).filter(|t| !t.canceled)?;
        task.in_progress = true;
        task.progress = 0.0;
        Some(task.stored.clone())
    }

    /// Notes progress; false if the task is to end.
    pub fn progress(&mut self, sequence: u64, done: f64) -> bool {
        let Some(task) = self.tasks.get_mut(&sequence) else { return false };
        task.progress = done;
        !task.canceled
    }

    /// Ends an attempt. True if the task is over and is to be removed from the pool, too.
    pub fn end(&mut self, sequence: u64, end: End, now: Utime) -> bool {
        let Some(task) = self.tasks.get_mut(&sequence) else { return true };
        task.in_progress = false;
        match end {
            End::Retry(why) if !task.canceled => {
                task.retry_message = Some(why);
                task.retry_attempts += 1;
                let pause = (RETRY_INTERVAL * task.retry_attempts).min(MOST_RETRY_INTERVAL);
                task.retry_time = Some(Utime::new(now.sec.saturating_add(pause as u32), now.nsec));
                false
            }
            end => {
                if let Some(task) = self.tasks.remove(&sequence)
                    && end == End::Done
                    && !task.canceled
                {
                    self.completed.push_back(task.stored);
                    if self.completed.len() > MOST_COMPLETED {
                        self.completed.pop_front();
                    }
                }
                true
            }
        }
    }

    /// Cancels a task. One that is being worked on leaves the queue when it notices.
    pub fn cancel(&mut self, id: &str) {
        let Some(task) = self.tasks.values_mut().find(|t| t.stored.id == id) else { return };
        task.canceled = true;
        let (sequence, running) = (task.stored.sequence, task.in_progress);
        if !running {
            self.tasks.remove(&sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refs(action: Action, image: &str, id: Option<&str>) -> Refs {
        Refs {
            action,
            pool_name: "rbd".into(),
            pool_namespace: String::new(),
            image_name: Some(image.into()),
            image_id: id.map(str::to_owned),
        }
    }

    fn add(q: &mut Queue, image: &str) -> Stored {
        let stored = q.next(
            format!("uuid-{image}"),
            format!("Removing image rbd/{image}"),
            refs(Action::Remove, image, Some("10a")),
        );
        q.load(stored.clone());
        stored
    }

    #[test]
    fn a_task_is_stored_as_ceph_does() {
        let mut q = Queue::default();
        let stored = add(&mut q, "one");
        let text = serde_json::to_string(&stored).unwrap();
        let expected = r#"{"sequence":1,"id":"uuid-one","message":"Removing image rbd/one","refs":{"action":"remove","pool_name":"rbd","pool_namespace":"","image_name":"one","image_id":"10a"}}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Stored>(&text).unwrap(), stored);
        assert_eq!(Task::new(stored).key(), "0000000000000001");
    }

    #[test]
    fn a_repeated_command_finds_its_task() {
        let mut q = Queue::default();
        let stored = add(&mut q, "one");
        assert_eq!(q.find(&refs(Action::Remove, "one", Some("10a"))), Some(&stored));
        assert_eq!(
            q.find(&refs(Action::Remove, "one", Some("10b"))),
            None,
            "another image of the same name"
        );
        assert_eq!(q.find(&refs(Action::Flatten, "one", None)), None);
        assert!(q.start(1).is_some());
        assert!(q.end(1, End::Done, Utime::ZERO));
        assert_eq!(q.find(&refs(Action::Remove, "one", None)), Some(&stored), "it is done");
        assert_eq!(q.all().count(), 0);
    }

    #[test]
    fn failed_tasks_wait_and_cancelled_ones_go() {
        let mut q = Queue::default();
        add(&mut q, "one");
        add(&mut q, "two");
        assert_eq!(q.due(Utime::new(100, 0)), [1, 2]);
        q.start(1);
        assert!(!q.end(1, End::Retry("busy".into()), Utime::new(100, 0)));
        assert_eq!(q.due(Utime::new(129, 0)), [2]);
        assert_eq!(q.due(Utime::new(130, 0)), [1, 2]);
        let shown = q.by_id("uuid-one").unwrap().dump();
        assert_eq!(
            (&shown["retry_message"], &shown["retry_attempts"]),
            (&json!("busy"), &json!(1))
        );
        assert_eq!(shown.get("in_progress"), None);
        q.start(2);
        assert!(q.progress(2, 0.5));
        assert_eq!(q.by_id("uuid-two").unwrap().dump()["progress"], 0.5);
        q.cancel("uuid-two");
        assert!(!q.progress(2, 0.6), "it notices");
        assert!(q.end(2, End::Retry("cancelled".into()), Utime::new(100, 0)));
        q.cancel("uuid-one");
        assert_eq!(q.all().count(), 0);
        assert_eq!(q.find(&refs(Action::Remove, "two", None)), None);
    }
}
