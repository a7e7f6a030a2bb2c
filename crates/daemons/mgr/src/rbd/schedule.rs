//! When something is done to pools and images by itself: their trash is emptied, snapshots of
//! mirrored images are made (Ceph: module `rbd_support`, `schedule.py`, `trash_purge_schedule.py`
//! and `mirror_snapshot_schedule.py`). Times are those of UTC.

use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use types::PoolId;

/// What a schedule is for: everything, a pool, a namespace of a pool, or an image. What runs is a
/// level, too: the smallest that there is for a kind of schedule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything.
    Global,
    /// A pool with all its namespaces.
    Pool(PoolId),
    /// A namespace.
    Namespace(PoolId, String),
    /// An image by its id.
    Image(PoolId, String, String),
}

/// A level as a command names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelName {
    /// Nothing.
    Global,
    /// `POOL/`.
    Pool(String),
    /// `POOL/NAMESPACE/`.
    Namespace(String, String),
    /// `POOL/[NAMESPACE/]IMAGE`.
    Image(String, String, String),
}

impl LevelName {
    /// Reads a level; nothing if the text is none.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(LevelName::Global);
        }
        let own = |s: &str| s.to_owned();
        match text.split('/').collect::<Vec<_>>()[..] {
            [pool, ""] if !pool.is_empty() => Some(LevelName::Pool(own(pool))),
            [pool, namespace, ""] if !pool.is_empty() => {
                Some(LevelName::Namespace(own(pool), own(namespace)))
            }
            [pool, image] if !pool.is_empty() && !image.contains('@') => {
                Some(LevelName::Image(own(pool), String::new(), own(image)))
            }
            [pool, namespace, image] if !pool.is_empty() && !image.contains('@') => {
                Some(LevelName::Image(own(pool), own(namespace), own(image)))
            }
            _ => None,
        }
    }
}

impl Level {
    /// The key under which schedules are stored: the pool's number, and the namespace.
    pub fn id(&self) -> String {
        match self {
            Level::Global => String::new(),
            Level::Pool(pool) => pool.0.to_string(),
            Level::Namespace(pool, namespace) => format!("{}/{namespace}", pool.0),
            Level::Image(pool, namespace, image) => format!("{}/{namespace}/{image}", pool.0),
        }
    }

    /// Reads such a key.
    pub fn from_id(id: &str) -> Option<Self> {
        if id.is_empty() {
            return Some(Level::Global);
        }
        match id.split('/').collect::<Vec<_>>()[..] {
            [pool] => Some(Level::Pool(PoolId(pool.parse().ok()?))),
            [pool, namespace] => {
                Some(Level::Namespace(PoolId(pool.parse().ok()?), namespace.to_owned()))
            }
            [pool, namespace, image] if !image.is_empty() => Some(Level::Image(
                PoolId(pool.parse().ok()?),
                namespace.to_owned(),
                image.to_owned(),
            )),
            _ => None,
        }
    }

    /// The pool.
    pub fn pool(&self) -> Option<PoolId> {
        match self {
            Level::Global => None,
            Level::Pool(p) | Level::Namespace(p, _) | Level::Image(p, ..) => Some(*p),
        }
    }

    /// The next larger level.
    fn parent(&self) -> Option<Level> {
        match self {
            Level::Global => None,
            Level::Pool(_) => Some(Level::Global),
            Level::Namespace(pool, _) => Some(Level::Pool(*pool)),
            Level::Image(pool, namespace, _) => Some(Level::Namespace(*pool, namespace.clone())),
        }
    }

    /// Whether this level is `other` or part of it.
    pub fn is_within(&self, other: &Level) -> bool {
        self == other || self.parent().is_some_and(|p| p.is_within(other))
    }

    /// How it is called, given the name of its pool, and of an image its own.
    pub fn name(&self, pool: &str, image: &str) -> String {
        match self {
            Level::Global => String::new(),
            Level::Pool(_) => format!("{pool}/"),
            Level::Namespace(_, namespace) => format!("{pool}/{namespace}/"),
            Level::Image(_, namespace, _) if namespace.is_empty() => format!("{pool}/{image}"),
            Level::Image(_, namespace, _) => format!("{pool}/{namespace}/{image}"),
        }
    }
}

/// A period in minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval(u64);

impl Interval {
    /// Reads a number of minutes, or of hours (`h`) or days (`d`).
    pub fn parse(text: &str) -> Option<Self> {
        let (digits, unit) = match text.as_bytes().last()? {
            b'd' => (text.get(..text.len() - 1)?, 24 * 60),
            b'h' => (text.get(..text.len() - 1)?, 60),
            b'm' => (text.get(..text.len() - 1)?, 1),
            _ => (text, 1),
        };
        let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let n: u64 = digits.parse().ok().filter(|n| all_digits && (1..=1 << 32).contains(n))?;
        Some(Interval(n * unit))
    }
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            n if n % (24 * 60) == 0 => write!(f, "{}d", n / (24 * 60)),
            n if n % 60 == 0 => write!(f, "{}h", n / 60),
            n => write!(f, "{n}m"),
        }
    }
}

/// A time of day, with the offset of its time zone if it was given one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StartTime {
    /// Minutes of the day that periods are counted from.
    minutes: u64,
    shown: String,
}

impl StartTime {
    /// Reads `HH:MM[:SS][Z|+HH:MM|-HH:MM]`, after a date or without one.
    pub fn parse(text: &str) -> Option<Self> {
        let time = text.rsplit(['T', ' ']).next()?;
        let (clock, zone) = match time.find(['Z', '+', '-']) {
            Some(at) => time.split_at(at),
            None => (time, ""),
        };
        let two =
            |s: &str, below: u64| s.parse::<u64>().ok().filter(|n| s.len() <= 2 && *n < below);
        let mut parts = clock.split(':');
        let (hour, minute) = (two(parts.next()?, 24)?, two(parts.next()?, 60)?);
        if parts.next().is_some_and(|s| two(s.split('.').next().unwrap_or(""), 60).is_none())
            || parts.next().is_some()
        {
            return None;
        }
        let offset = match zone {
            "" => None,
            "Z" => Some((0, "+00:00".to_owned())),
            z => {
                let (sign, digits) = z.split_at(1);
                let (h, m) = digits.split_once(':').or_else(|| digits.split_at_checked(2))?;
                let minutes = two(h, 24)? * 60 + if m.is_empty() { 0 } else { two(m, 60)? };
                let shown = format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60);
                Some((if sign == "-" { (24 * 60 - minutes) % (24 * 60) } else { minutes }, shown))
            }
        };
        let (offset, zone) = offset.unwrap_or_default();
        Some(StartTime {
            minutes: hour * 60 + minute + offset,
            shown: format!("{hour:02}:{minute:02}:00{zone}"),
        })
    }
}

/// When something runs: the union of its items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule(BTreeSet<(Interval, Option<StartTime>)>);

impl Schedule {
    /// Reads the stored form.
    pub fn from_json(text: &str) -> Option<Self> {
        let items: Vec<Value> = serde_json::from_str(text).ok()?;
        let item = |v: &Value| {
            let start = match v.get("start_time")?.as_str() {
                Some(text) => Some(StartTime::parse(text)?),
                None => None,
            };
            Some((Interval::parse(v.get("interval")?.as_str()?)?, start))
        };
        items.iter().map(item).collect::<Option<_>>().map(Schedule)
    }

    /// The stored form, which is also the shown one.
    pub fn to_json(&self) -> Value {
        let item = |(interval, start): &(Interval, Option<StartTime>)| json!({"interval": interval.to_string(), "start_time": start.as_ref().map(|s| s.shown.as_str())});
        self.0.iter().map(item).collect()
    }

    /// The first time after `now`, in minutes since 1970.
    pub fn next_run(&self, now: u64) -> Option<u64> {
        let next = |(interval, start): &(Interval, Option<StartTime>)| {
            let start = start.as_ref().map_or(0, |s| s.minutes);
            start + (now.saturating_sub(start) / interval.0 + 1) * interval.0
        };
        self.0.iter().map(next).min()
    }
}

/// All schedules, and what runs next.
#[derive(Default)]
pub struct Schedules {
    levels: BTreeMap<Level, Schedule>,
    queue: BTreeMap<Level, u64>,
}

impl Schedules {
    /// Takes over a stored schedule.
    pub fn load(&mut self, level: Level, schedule: Schedule) {
        self.levels.insert(level, schedule);
    }

    /// Adds an item. Returns the level's schedule.
    pub fn add(
        &mut self,
        level: &Level,
        interval: Interval,
        start: Option<StartTime>,
    ) -> &Schedule {
        let schedule = self.levels.entry(level.clone()).or_default();
        schedule.0.insert((interval, start));
        schedule
    }

    /// Removes an item, or all of them. Returns what is left.
    pub fn remove(
        &mut self,
        level: &Level,
        item: Option<(Interval, Option<StartTime>)>,
    ) -> Option<&Schedule> {
        match (self.levels.get_mut(level), item) {
            (Some(schedule), Some(item)) => {
                schedule.0.remove(&item);
                if schedule.0.is_empty() {
                    self.levels.remove(level);
                }
            }
            _ => {
                self.levels.remove(level);
            }
        }
        self.levels.get(level)
    }

    /// Whether there is any.
    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// Whether any schedule may concern a pool.
    pub fn concern(&self, pool: PoolId) -> bool {
        self.levels.keys().any(|l| l.pool().is_none_or(|p| p == pool))
    }

    /// The levels with schedules.
    pub fn levels(&self) -> impl Iterator<Item = &Level> {
        self.levels.keys()
    }

    /// What holds for a place: the schedule of the smallest level.
    fn find(&self, place: &Level) -> Option<&Schedule> {
        let mut level = Some(place.clone());
        while let Some(l) = level {
            if let Some(s) = self.levels.get(&l) {
                return Some(s);
            }
            level = l.parent();
        }
        None
    }

    /// Plans the next run of every place there is; with `anew`, also of those that are planned.
    pub fn plan(&mut self, places: &BTreeSet<Level>, now: u64, anew: bool) {
        let mut queue = BTreeMap::new();
        for place in places {
            let Some(next) = self.find(place).and_then(|s| s.next_run(now)) else { continue };
            // What is due stays due.
            let planned = self.queue.get(place).copied().filter(|at| !anew || *at <= now);
            queue.insert(place.clone(), planned.unwrap_or(next));
        }
        self.queue = queue;
    }

    /// A place that is due. It is planned again.
    pub fn due(&mut self, now: u64) -> Option<Level> {
        let place =
            self.queue.iter().find(|(_, at)| **at <= now).map(|(place, _)| place.clone())?;
        match self.find(&place).and_then(|s| s.next_run(now)) {
            Some(next) => self.queue.insert(place.clone(), next),
            None => self.queue.remove(&place),
        };
        Some(place)
    }

    /// What `list` shows for a level: its own schedule or the one that it inherits, and those
    /// within it. Levels without a name are gone.
    pub fn list(&self, level: &Level, name: &dyn Fn(&Level) -> Option<String>) -> Value {
        let mut shown = Some(level.clone());
        while let Some(l) = &shown
            && !self.levels.contains_key(l)
        {
            shown = l.parent();
        }
        let mut out = Map::new();
        for (l, schedule) in &self.levels {
            if shown.as_ref() != Some(l) && !l.is_within(level) {
                continue;
            }
            if let Some(name) = name(l) {
                out.insert(l.id(), json!({"name": name, "schedule": schedule.to_json()}));
            }
        }
        out.into()
    }

    /// What runs next within a level, and when, in the order of time.
    pub fn planned(&self, level: &Level) -> Vec<(&Level, String)> {
        let mut planned: Vec<_> = self.queue.iter().filter(|(l, _)| l.is_within(level)).collect();
        planned.sort_by_key(|(_, at)| **at);
        planned.into_iter().map(|(place, at)| (place, shown_time(*at))).collect()
    }
}

/// Minutes since 1970 as a time.
fn shown_time(minutes: u64) -> String {
    let at = types::Utime::new(u32::try_from(minutes.saturating_mul(60)).unwrap_or(u32::MAX), 0)
        .to_string();
    let (date, time) = at.split_once('T').unwrap_or((&at, ""));
    format!("{date} {}:00", time.get(..5).unwrap_or("00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId(7);

    fn name(level: &Level) -> Option<String> {
        level.pool().is_none_or(|p| p == POOL).then(|| level.name("rbd", "img"))
    }

    fn interval(text: &str) -> Interval {
        Interval::parse(text).unwrap()
    }

    #[test]
    fn texts() {
        for (text, shown) in
            [("5", "5m"), ("90m", "90m"), ("120m", "2h"), ("24h", "1d"), ("3d", "3d")]
        {
            assert_eq!(interval(text).to_string(), shown);
        }
        for bad in ["", "m", "-1h", "1w", "0", "+5", "99999999999999999999d", "1é"] {
            assert_eq!(Interval::parse(bad), None, "{bad}");
        }
        let start = |t: &str| StartTime::parse(t).map(|s| (s.minutes, s.shown));
        assert_eq!(start("14:00"), Some((840, "14:00:00".into())));
        assert_eq!(
            start("2020-03-01T01:30:00-05:00"),
            Some((90 + 19 * 60, "01:30:00-05:00".into()))
        );
        assert_eq!(start("01:30+0200"), Some((210, "01:30:00+02:00".into())));
        for bad in ["", "25:00", "12", "12:60", "1:2:3:4", "12:00+x"] {
            assert_eq!(start(bad), None, "{bad}");
        }
        assert_eq!(LevelName::parse("rbd/"), Some(LevelName::Pool("rbd".into())));
        assert_eq!(LevelName::parse("rbd//"), Some(LevelName::Namespace("rbd".into(), "".into())));
        assert_eq!(
            LevelName::parse("rbd/ns/"),
            Some(LevelName::Namespace("rbd".into(), "ns".into()))
        );
        assert_eq!(
            LevelName::parse("rbd/img"),
            Some(LevelName::Image("rbd".into(), "".into(), "img".into()))
        );
        assert_eq!((LevelName::parse("rbd"), LevelName::parse("/x")), (None, None));
        let image = |namespace: &str| Level::Image(POOL, namespace.into(), "10ab".into());
        for (level, id, shown) in [
            (Level::Global, "", ""),
            (Level::Pool(POOL), "7", "rbd/"),
            (Level::Namespace(POOL, String::new()), "7/", "rbd//"),
            (Level::Namespace(POOL, "ns".into()), "7/ns", "rbd/ns/"),
            (image(""), "7//10ab", "rbd/img"),
            (image("ns"), "7/ns/10ab", "rbd/ns/img"),
        ] {
            assert_eq!((level.id().as_str(), name(&level).as_deref()), (id, Some(shown)));
            assert_eq!(Level::from_id(id), Some(level));
        }
        for bad in ["x", "7/ns/", "7/a/b/c"] {
            assert_eq!(Level::from_id(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_schedule_is_stored_and_runs() {
        let text =
            r#"[{"interval":"1d","start_time":"00:30:00"},{"interval":"5h","start_time":null}]"#;
        let s = Schedule::from_json(text).unwrap();
        assert_eq!(Schedule::from_json(&s.to_json().to_string()), Some(s.clone()));
        assert_eq!(
            (s.next_run(0), s.next_run(300), s.next_run(23 * 60)),
            (Some(300), Some(600), Some(24 * 60 + 30))
        );
        assert_eq!(
            (s.next_run(24 * 60), s.next_run(25 * 60 - 1)),
            (Some(24 * 60 + 30), Some(25 * 60))
        );
        assert_eq!(Schedule::from_json("[{}]"), None);
    }

    #[test]
    fn the_smallest_level_holds() {
        let mut s = Schedules::default();
        let ns = Level::Namespace(POOL, "ns".into());
        let image = Level::Image(POOL, "ns".into(), "10ab".into());
        s.add(&Level::Global, interval("1d"), None);
        s.add(&ns, interval("10m"), StartTime::parse("00:03"));
        let places: BTreeSet<_> = [Level::Namespace(POOL, String::new()), ns.clone()].into();
        s.plan(&places, 100, false);
        assert_eq!(s.planned(&Level::Global)[0], (&ns, shown_time(103)));
        assert_eq!((s.due(102), s.due(103), s.due(103)), (None, Some(ns.clone()), None));
        let pool = Level::Pool(POOL);
        assert_eq!(
            s.list(&pool, &name),
            json!({
                "": {"name": "", "schedule": [{"interval": "1d", "start_time": null}]},
                "7/ns": {"name": "rbd/ns/", "schedule": [{"interval": "10m", "start_time": "00:03:00"}]},
            })
        );
        // An image inherits, until it has a schedule of its own.
        s.plan(&[image.clone()].into(), 100, true);
        assert_eq!(s.planned(&pool), [(&image, shown_time(103))]);
        s.add(&image, interval("1m"), None);
        s.plan(&[image.clone()].into(), 100, true);
        assert_eq!(s.planned(&ns), [(&image, shown_time(101))]);
        assert_eq!(s.list(&image, &name)["7/ns/10ab"]["name"], "rbd/ns/img");
        assert!(s.remove(&image, None).is_none());

        assert!(s.remove(&ns, None).is_none());
        assert!(s.remove(&Level::Global, Some((interval("2d"), None))).is_some(), "no such item");
        assert!(s.remove(&Level::Global, Some((interval("1d"), None))).is_none());
        s.plan(&places, 100, true);
        assert_eq!((s.is_empty(), s.due(u64::MAX)), (true, None));
    }
}
