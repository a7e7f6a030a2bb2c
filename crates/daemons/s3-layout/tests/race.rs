//! Many clients change and list the same few keys through two gateways. What each was told fits
//! into one order for each key (linearizable), and lists show what was there throughout.

mod memory;

use memory::{Body, Dice, Disk, Link, gateway, run};
use s3::ErrorCode;
use s3::condition::Conditions;
use s3::xml::config::{Acl, Grant, Grantee, Permission, Versioning};
use s3_layout::api::{BucketChange, BucketName, Error, List, NewBucket, NewObject, User, UserId};
use s3_layout::rgw::{BucketRef, Rgw};
use s3_layout::{Layout, Result};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

const CLIENTS: u64 = 32;
const STEPS: u64 = 12;
const KEYS: u64 = 8;
const OWNER: &str = "ann";

/// A tag, or no object.
type State = Option<String>;

#[derive(Clone, Debug)]
enum Asked {
    Write(State),
    /// Only if there is no object.
    Create(State),
    /// Only over the object with a tag.
    Swap(String, State),
    Read,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Done,
    /// A condition did not hold: there was an object, or another one.
    Refused,
    /// There was no object.
    Missing,
    Found(State),
    /// Other changes came first, and nothing was done.
    Lost,
}

#[derive(Clone, Debug)]
struct Event {
    begun: u64,
    ended: u64,
    asked: Asked,
    told: Told,
}

/// The state after an event, if it can happen in a state.
fn step(state: &State, event: &Event) -> Option<State> {
    let same = |holds: bool| holds.then(|| state.clone());
    match (&event.asked, &event.told) {
        (_, Told::Lost) => Some(state.clone()),
        (Asked::Write(new), Told::Done) => Some(new.clone()),
        (Asked::Create(new), Told::Done) => state.is_none().then(|| new.clone()),
        (Asked::Create(_), Told::Refused) => same(state.is_some()),
        // Nothing is as good as deleted; a delete marker is not the object with a tag.
        (Asked::Swap(_, None), Told::Done) if state.is_none() => Some(None),
        (Asked::Swap(old, None), Told::Refused) => same(state.as_ref() != Some(old)),
        (Asked::Swap(old, new), Told::Done) => (state.as_ref() == Some(old)).then(|| new.clone()),
        (Asked::Swap(old, _), Told::Refused) => same(state.as_ref().is_some_and(|tag| tag != old)),
        (Asked::Swap(..), Told::Missing) => same(state.is_none()),
        (Asked::Read, Told::Found(found)) => same(state == found),
        _ => None,
    }
}

/// Searches an order of events that are not over before others begin.
fn linearizable(events: &[Event]) -> bool {
    assert!(events.len() <= 128);
    let all = if events.len() == 128 { u128::MAX } else { (1_u128 << events.len()) - 1 };
    let mut seen: HashSet<(u128, State)> = HashSet::new();
    let mut open: Vec<(u128, State)> = vec![(0, None)];
    while let Some((done, state)) = open.pop() {
        if done == all {
            return true;
        }
        if !seen.insert((done, state.clone())) {
            continue;
        }
        let left = || (0..events.len()).filter(|i| done & (1 << i) == 0);
        let first_end = left().map(|i| events[i].ended).min().unwrap_or(0);
        for i in left().filter(|i| events[*i].begun <= first_end) {
            if let Some(next) = step(&state, &events[i]) {
                open.push((done | 1 << i, next));
            }
        }
    }
    false
}

#[test]
fn the_search_finds_what_is_wrong() {
    let event = |begun, ended, asked, told| Event { begun, ended, asked, told };
    let tag = |t: &str| Some(t.to_owned());
    let a = event(0, 1, Asked::Write(tag("a")), Told::Done);
    let read = |found| event(2, 3, Asked::Read, Told::Found(found));
    assert!(linearizable(&[a.clone(), read(tag("a"))]));
    assert!(!linearizable(&[a.clone(), read(None)]));
    let created = event(2, 3, Asked::Create(tag("b")), Told::Done);
    assert!(!linearizable(&[a.clone(), created]));
    let at_once = event(0, 9, Asked::Create(tag("b")), Told::Done);
    assert!(linearizable(&[a.clone(), at_once.clone()]));
    let swap = |begun, new: &str| event(begun, 9, Asked::Swap("a".into(), tag(new)), Told::Done);
    assert!(!linearizable(&[a.clone(), swap(2, "b"), swap(2, "c")]));
    let removed = event(2, 3, Asked::Swap("b".into(), None), Told::Done);
    assert!(linearizable(std::slice::from_ref(&removed)) && !linearizable(&[a, removed]));
}

fn acl() -> Acl {
    let grantee = Grantee::User { id: OWNER.into(), display_name: OWNER.into() };
    let grant = Grant { grantee, permission: Permission::FullControl };
    Acl { owner: OWNER.into(), owner_name: OWNER.into(), grants: vec![grant] }
}

fn name() -> BucketName {
    BucketName { tenant: String::new(), name: "b".into() }
}

struct Race {
    gateways: [(Rgw, BucketRef); 2],
    dice: Rc<Dice>,
    clock: Cell<u64>,
    contents: Cell<u64>,
    histories: RefCell<BTreeMap<String, Vec<Event>>>,
    /// Keys that are never changed.
    stable: Vec<String>,
}

fn outcome<T>(result: Result<T>) -> Told {
    match result {
        Ok(_) => Told::Done,
        Err(Error::Refused(e)) => match e.code {
            ErrorCode::PreconditionFailed => Told::Refused,
            ErrorCode::NoSuchKey => Told::Missing,
            ErrorCode::ConditionalRequestConflict => Told::Lost,
            code => panic!("{code:?}"),
        },
        Err(Error::Unavailable(_)) => Told::Lost,
        Err(e) => panic!("{e}"),
    }
}

impl Race {
    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    async fn put(&self, at: &(Rgw, BucketRef), key: &str, conditions: Conditions) -> (State, Told) {
        self.contents.set(self.contents.get() + 1);
        // Every content is another one.
        let content = self.contents.get().to_le_bytes().to_vec();
        let tag = s3::etag::of_digest(&memory::digest(&content));
        let new = NewObject { acl: acl(), conditions, ..NewObject::default() };
        let written = at.0.put(&at.1, key, new, &mut Body::new(content)).await;
        if let Ok(written) = &written {
            assert_eq!(written.etag, tag);
        }
        (Some(tag), outcome(written))
    }

    async fn change(&self, at: &(Rgw, BucketRef), key: String) {
        let known = {
            let histories = self.histories.borrow();
            let tags = histories.get(&key).into_iter().flatten().rev();
            tags.filter_map(|e| match (&e.asked, &e.told) {
                (Asked::Read, Told::Found(Some(tag))) => Some(tag.clone()),
                _ => None,
            })
            .next()
        };
        let quoted = |tag: &str| Some(format!("\"{tag}\""));
        let begun = self.tick();
        let (asked, told) = match (self.dice.below(7), known) {
            (0, _) => {
                let (new, told) = self.put(at, &key, Conditions::default()).await;
                (Asked::Write(new), told)
            }
            (1, _) => {
                let none = Conditions { none_match: Some("*".into()), ..Conditions::default() };
                let (new, told) = self.put(at, &key, none).await;
                (Asked::Create(new), told)
            }
            (2, Some(tag)) => {
                let same = Conditions { matches: quoted(&tag), ..Conditions::default() };
                let (new, told) = self.put(at, &key, same).await;
                (Asked::Swap(tag, new), told)
            }
            (3, Some(tag)) => {
                let same = Conditions { matches: quoted(&tag), ..Conditions::default() };
                let told = outcome(at.0.delete(&at.1, &key, None, &same).await);
                (Asked::Swap(tag, None), told)
            }
            (4, _) => {
                let all = Conditions::default();
                (Asked::Write(None), outcome(at.0.delete(&at.1, &key, None, &all).await))
            }
            _ => {
                let found = match at.0.open(&at.1, &key, None, false).await {
                    Ok(object) => Told::Found(Some(object.as_ref().etag.clone())),
                    Err(e) if e.code() == ErrorCode::NoSuchKey => Told::Found(None),
                    Err(e) => outcome::<()>(Err(e)),
                };
                (Asked::Read, found)
            }
        };
        let event = Event { begun, ended: self.tick(), asked, told };
        self.histories.borrow_mut().entry(key).or_default().push(event);
    }

    async fn list(&self, at: &(Rgw, BucketRef)) {
        let mut what = List { max: 5, ..List::default() };
        let mut keys: Vec<String> = Vec::new();
        loop {
            let page = at.0.list(&at.1, &what).await.unwrap();
            keys.extend(page.entries.into_iter().map(|e| e.key));
            let Some((after, _)) = page.next else { break };
            what.after = after;
        }
        assert!(keys.windows(2).all(|w| w[0] < w[1]), "in order, and once: {keys:?}");
        for key in &self.stable {
            assert!(keys.contains(key), "{key} is there all the time: {keys:?}");
        }
    }
}

fn race(seed: u64, versioned: bool) {
    let disk = Disk::new();
    let dice = Rc::new(Dice::new(seed));
    let links = [(); 2].map(|()| Link::new(&disk, None, Some(dice.clone())));
    run(async {
        let first = gateway(&links[0]).await;
        let id = UserId { tenant: String::new(), id: OWNER.into() };
        let user = User { id: id.clone(), display_name: OWNER.into(), ..User::default() };
        first.create_user(&user).await.unwrap();
        let new = NewBucket { name: name(), owner: id, acl: acl(), ..NewBucket::default() };
        let mut bucket = first.create_bucket(new).await.unwrap();
        if versioned {
            let change = BucketChange::Versioning(Versioning::Enabled);
            first.change_bucket(&bucket, change).await.unwrap();
            bucket = first.bucket(&name()).await.unwrap();
        }
        let second = gateway(&links[1]).await;
        let theirs = second.bucket(&name()).await.unwrap();
        let race = Rc::new(Race {
            gateways: [(first, bucket), (second, theirs)],
            dice,
            clock: Cell::new(0),
            contents: Cell::new(0),
            histories: RefCell::default(),
            stable: (0..9).map(|n| format!("{n}-stable")).collect(),
        });
        for key in &race.stable {
            race.put(&race.gateways[0], key, Conditions::default()).await;
        }
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let race = race.clone();
                tokio::task::spawn_local(async move {
                    let at = &race.gateways[client as usize % 2];
                    for _ in 0..STEPS {
                        if race.dice.below(8) == 0 {
                            race.list(at).await;
                        } else {
                            let key = format!("{}-raced", race.dice.below(KEYS));
                            race.change(at, key).await;
                        }
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        for (key, events) in race.histories.borrow().iter() {
            assert!(linearizable(events), "seed {seed}: {key}: {events:#?}");
        }
        // Nothing is announced any more: the list agrees with the heads.
        disk.pass(300);
        let (rgw, bucket) = &race.gateways[0];
        let page = rgw.list(bucket, &List { max: 1000, ..List::default() }).await.unwrap();
        let listed: BTreeMap<_, _> = page.entries.into_iter().map(|e| (e.key, e.etag)).collect();
        let keys: Vec<String> = race.histories.borrow().keys().cloned().collect();
        for key in &keys {
            let there = match rgw.open(bucket, key, None, false).await {
                Ok(object) => Some(object.as_ref().etag.clone()),
                Err(_) => None,
            };
            assert_eq!(listed.get(key), there.as_ref(), "seed {seed}: {key}");
        }
    });
}

#[test]
fn clients_that_race_fit_into_one_order() {
    for seed in 1..=6 {
        race(seed, false);
    }
}

#[test]
fn clients_that_race_for_versions_fit_into_one_order() {
    for seed in 1..=6 {
        race(seed, true);
    }
}
