//! What is known of a worker's keys.

use super::content::{Content, hash};
use super::mix::Sizes;
use rand::RngExt;
use rand::rngs::StdRng;

/// How often a key with some property is looked for at random before all keys are looked at.
const TRIES: usize = 16;

/// What was acknowledged of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// There is no object.
    Absent,
    /// There is one, of the newest version.
    Present,
    /// A change failed without a word about its effect.
    Unknown,
}

/// A key.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The newest version that was sent.
    version: u32,
    state: State,
}

/// Buckets and sizes that the parts of all workers have in common.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Buckets that are read and listed, then those that are written, if others.
    pub buckets: Vec<String>,
    /// How many of them are read.
    pub read: usize,
    /// The first one that is written.
    pub first_written: usize,
    /// Keys of a worker in each bucket.
    pub keys: usize,
    /// Sizes of objects.
    pub sizes: Sizes,
}

impl Plan {
    /// `count` buckets that are read and as many that are written; with 0 one for both. All workers
    /// together have `objects` keys in each, or a few more.
    pub fn new(name: &str, count: usize, objects: usize, workers: usize, sizes: Sizes) -> Plan {
        let buckets = match count {
            0 => vec![name.to_owned()],
            n => ["read", "written"]
                .iter()
                .flat_map(|kind| (0..n).map(move |i| format!("{name}-{kind}-{i}")))
                .collect(),
        };
        let keys = objects.div_ceil(workers.max(1));
        Plan { buckets, read: count.max(1), first_written: count, keys, sizes }
    }
}

/// The keys of one worker. No other worker touches them.
pub struct Part {
    worker: usize,
    slots: Vec<Vec<Slot>>,
}

/// One of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the bucket in the plan.
    pub bucket: usize,
    /// Number of the key.
    pub index: usize,
}

impl Part {
    /// Keys without objects.
    pub fn new(plan: &Plan, worker: usize) -> Part {
        let absent = Slot { version: 0, state: State::Absent };
        Part { worker, slots: vec![vec![absent; plan.keys]; plan.buckets.len()] }
    }

    /// What all keys of the worker begin with.
    pub fn prefix(&self) -> String {
        format!("{:03}/", self.worker)
    }

    /// The name of a key. Names have the order of their numbers.
    pub fn key(&self, index: usize) -> String {
        format!("{:03}/{index:08}", self.worker)
    }

    /// The number of a key, if the name is that of one.
    fn index(&self, key: &str) -> Option<usize> {
        let index = key.strip_prefix(&self.prefix())?.parse().ok()?;
        (self.key(index) == key).then_some(index)
    }

    /// The content of the newest version.
    pub fn content(&self, plan: &Plan, at: Place) -> Content {
        let slot = self.slots[at.bucket][at.index];
        let (bucket, key) = (&plan.buckets[at.bucket], self.key(at.index));
        let size = plan.sizes.pick(hash(bucket, &key, slot.version));
        Content::new(bucket, &key, slot.version, size)
    }

    /// What is known of a key.
    pub fn state(&self, at: Place) -> State {
        self.slots[at.bucket][at.index].state
    }

    /// Begins a new version.
    pub fn next_version(&mut self, at: Place) {
        let slot = &mut self.slots[at.bucket][at.index];
        slot.version += 1;
        slot.state = State::Unknown;
    }

    /// Notes what an answer said.
    pub fn set(&mut self, at: Place, state: State) {
        self.slots[at.bucket][at.index].state = state;
    }

    /// Objects of the first version are there: another process wrote them.
    pub fn assume_filled(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            *slot = Slot { version: 1, state: State::Present };
        }
    }

    /// A key of one of these buckets at random.
    pub fn any(&self, random: &mut StdRng, buckets: std::ops::Range<usize>) -> Option<Place> {
        let bucket = random.random_range(buckets);
        let keys = self.slots[bucket].len();
        (keys > 0).then(|| Place { bucket, index: random.random_range(0..keys) })
    }

    /// A key of one of these buckets at random, with `follow` behind it if there are so many.
    pub fn with_followers(
        &self,
        random: &mut StdRng,
        buckets: std::ops::Range<usize>,
        follow: usize,
    ) -> Option<Place> {
        let bucket = random.random_range(buckets);
        let keys = self.slots[bucket].len();
        let index = random.random_range(0..keys.saturating_sub(follow).max(1));
        (keys > 0).then_some(Place { bucket, index })
    }

    /// A key with an object of one of these buckets at random, if there is one.
    pub fn present(&self, random: &mut StdRng, buckets: std::ops::Range<usize>) -> Option<Place> {
        for _ in 0..TRIES {
            let at = self.any(random, buckets.clone())?;
            if self.state(at) == State::Present {
                return Some(at);
            }
        }
        let bucket = random.random_range(buckets);
        let slots = &self.slots[bucket];
        let from = random.random_range(0..slots.len());
        let mut around = (from..slots.len()).chain(0..from);
        let index = around.find(|i| slots[*i].state == State::Present)?;
        Some(Place { bucket, index })
    }

    /// Up to `count` keys with objects of one bucket, from the beginning.
    pub fn first_present(&self, count: usize) -> Vec<Place> {
        let mut present = self.all().filter(|at| self.state(*at) == State::Present).peekable();
        let Some(bucket) = present.peek().map(|at| at.bucket) else { return Vec::new() };
        present.take_while(|at| at.bucket == bucket).take(count).collect()
    }

    /// All keys.
    pub fn all(&self) -> impl Iterator<Item = Place> + '_ {
        self.slots
            .iter()
            .enumerate()
            .flat_map(|(bucket, s)| (0..s.len()).map(move |index| Place { bucket, index }))
    }

    /// What a list begins after that begins with this key.
    pub fn before(&self, from: Place) -> String {
        match from.index {
            0 => self.prefix(),
            n => self.key(n - 1),
        }
    }

    /// The number behind that of a key in a list.
    pub fn behind(&self, key: &str) -> Option<usize> {
        self.index(key).map(|i| i + 1)
    }

    /// Whether a list of the worker's keys from this one on is right: `found` has all keys with
    /// objects and no other, up to its end. Keys of unknown state may be there or not.
    pub fn check_list(
        &self,
        from: Place,
        found: &[String],
        truncated: bool,
        most: usize,
    ) -> Result<(), String> {
        if truncated && found.len() != most {
            return Err(format!("{} keys and more to come; {most} were expected", found.len()));
        }
        let slots = &self.slots[from.bucket];
        let mut next = from.index;
        for key in found {
            let Some(index) = self.index(key).filter(|i| *i < slots.len()) else {
                return Err(format!("{key} was never written"));
            };
            if index < next {
                return Err(format!("{key} is out of order"));
            }
            self.none_missing(from.bucket, next..index)?;
            if slots[index].state == State::Absent {
                return Err(format!("{key} was deleted, and is in the list"));
            }
            next = index + 1;
        }
        if !truncated {
            self.none_missing(from.bucket, next..slots.len())?;
        }
        Ok(())
    }

    fn none_missing(&self, bucket: usize, range: std::ops::Range<usize>) -> Result<(), String> {
        let from = range.start;
        let missing = self.slots[bucket][range].iter().position(|s| s.state == State::Present);
        match missing {
            Some(n) => Err(format!("{} is not in the list", self.key(from + n))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn part() -> (Plan, Part) {
        let plan = Plan::new("b", 0, 40, 4, Sizes::fixed(10));
        let mut part = Part::new(&plan, 2);
        part.assume_filled();
        (plan, part)
    }

    fn at(index: usize) -> Place {
        Place { bucket: 0, index }
    }

    #[test]
    fn buckets_are_shared_or_split() {
        let one = Plan::new("b", 0, 41, 4, Sizes::fixed(1));
        assert_eq!((one.buckets.len(), one.read, one.first_written, one.keys), (1, 1, 0, 11));
        let six = Plan::new("b", 3, 40, 4, Sizes::fixed(1));
        assert_eq!((six.buckets.len(), six.read, six.first_written), (6, 3, 3));
        assert_eq!((&*six.buckets[2], &*six.buckets[3]), ("b-read-2", "b-written-0"));
    }

    #[test]
    fn a_new_version_has_a_new_content() {
        let (plan, mut part) = part();
        let old = part.content(&plan, at(3));
        part.next_version(at(3));
        assert_eq!(part.state(at(3)), State::Unknown);
        assert_ne!(part.content(&plan, at(3)), old);
    }

    #[test]
    fn lists_are_compared_with_what_was_acknowledged() {
        let (_, mut part) = part();
        part.set(at(4), State::Absent);
        part.set(at(6), State::Unknown);
        let keys = |all: &[usize]| all.iter().map(|i| part.key(*i)).collect::<Vec<_>>();
        let check = |all: &[usize], truncated| part.check_list(at(3), &keys(all), truncated, 3);
        check(&[3, 5, 6, 7, 8, 9], false).unwrap();
        check(&[3, 5, 7, 8, 9], false).unwrap();
        check(&[3, 5, 7], true).unwrap();
        for (list, truncated, what) in [
            (&[3, 5, 7][..], false, "002/00000008 is not in the list"),
            (&[5, 7, 8, 9], false, "002/00000003 is not in the list"),
            (&[3, 4, 5], true, "was deleted"),
            (&[3, 5, 5], true, "out of order"),
            (&[2, 3, 5], true, "out of order"),
            (&[3, 5], true, "3 were expected"),
            (&[3, 5, 7, 8, 9, 10], false, "never written"),
        ] {
            let found = check(list, truncated).unwrap_err();
            assert!(found.contains(what), "{list:?}: {found}");
        }
        let strange = part.check_list(at(9), &["002/9".to_owned()], false, 3);
        assert!(strange.unwrap_err().contains("never written"));
    }

    #[test]
    fn what_is_present_is_found_however_rare_it_is() {
        let (_, mut part) = part();
        let mut random = StdRng::seed_from_u64(1);
        for index in 0..10 {
            part.set(at(index), State::Absent);
        }
        assert_eq!(part.present(&mut random, 0..1), None);
        part.set(at(7), State::Present);
        for _ in 0..100 {
            assert_eq!(part.present(&mut random, 0..1), Some(at(7)));
        }
        assert_eq!(part.first_present(5), [at(7)]);
    }
}
