//! Limits of images (librbd's `rbd_qos_*` options), read here and split over the OSDs that serve
//! them.
//!
//! OSDs say what an image's data is asked for. For the images in use the settings of the image, of
//! its pool and for all clients are read again and again; each OSD is told its part of what they
//! mean. Here is what decides; the reading is in [`super`].

use messages::{DemandCount, ImageData, ImageDemand, ImageShare, QosShares, ShareOfRate};
use promises::SIGN_OF_LIFE;
use qos::{Limits, Rate};
use std::collections::{BTreeMap, BTreeSet};
use types::{OsdId, PoolId};

/// Prefix of settings in metadata (Ceph: `ImageCtx::METADATA_CONF_PREFIX`).
pub const CONF: &str = "conf_";
/// Prefix of the options that concern limits.
pub const QOS: &str = "rbd_qos_";
/// Settings are read again after so many seconds.
const FRESH: f64 = 2.0;
/// After a failure to read them, after so many.
const RETRY: f64 = 1.0;
/// An image is in use for so long after it was asked for anything.
const IN_USE: f64 = 60.0;
/// Over about so many seconds demand is smoothed.
const SMOOTHING: f64 = 0.5;
/// Demand that was not told again for so long fades.
pub(crate) const SILENT: f64 = 0.5;
/// Images that are looked at; more have no limits.
const MOST_IMAGES: usize = 1 << 16;
/// Sources that are read at a time.
const MOST_READS: usize = 32;

/// Values of `rbd_qos_*` options by name.
pub type Settings = BTreeMap<String, String>;

/// A place of settings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// With the monitors, for all clients.
    Global,
    /// With a pool.
    Pool(PoolId),
    /// With an image, known by its data.
    Image(ImageData),
}

/// An image as its data's names say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRef {
    /// The pool with its header.
    pub pool: PoolId,
    /// Its id.
    pub id: String,
    /// Whether its data is in another pool.
    pub elsewhere: bool,
}

/// The image that data belongs to, as far as names say (Ceph: `librbd::util::data_object_prefix`).
pub fn image_ref(data: &ImageData) -> Option<ImageRef> {
    let rest = std::str::from_utf8(&data.prefix).ok()?.strip_prefix("rbd_data.")?;
    let (pool, id) = match rest.split_once('.') {
        Some((pool, id)) => (Some(PoolId(pool.parse().ok()?)), id),
        None => (None, rest),
    };
    let plain = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric());
    plain.then(|| ImageRef {
        pool: pool.unwrap_or(data.pool),
        id: id.to_owned(),
        elsewhere: pool.is_some(),
    })
}

/// What settings mean. The first that has a value for an option wins.
pub fn limits(sources: &[&Settings]) -> Limits {
    let number = |name: String, otherwise: u64| {
        let valid = |s: &&Settings| match conf::find(&name)?.parse(s.get(&name)?) {
            Ok(conf::Value::Uint(n)) => Some(n),
            _ => None,
        };
        sources.iter().find_map(valid).unwrap_or(otherwise)
    };
    Limits::from_rates(Limits::NAMES.map(|kind| {
        let burst = number(format!("{QOS}{kind}_burst"), 0);
        Rate::new(
            number(format!("{QOS}{kind}_limit"), 0),
            burst,
            number(format!("{QOS}{kind}_burst_seconds"), 1),
        )
    }))
}

/// What the monitors' `config get client` says about limits.
pub fn global(json: &[u8]) -> Settings {
    let all: BTreeMap<String, serde_json::Value> = serde_json::from_slice(json).unwrap_or_default();
    let of_limits = all.into_iter().filter(|(name, _)| name.starts_with(QOS));
    of_limits.filter_map(|(name, v)| Some((name, v.get("value")?.as_str()?.to_owned()))).collect()
}

/// Settings that are read again and again.
#[derive(Default)]
struct Known {
    /// Nothing until they were read once.
    settings: Option<Settings>,
    /// When they are to be read.
    due: f64,
    reading: bool,
}

/// What an OSD was asked for, smoothed, each second.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rates {
    /// Operations and bytes, read and written.
    came: [f64; 4],
    /// The same that wait.
    waits: [f64; 4],
    pub(crate) told: f64,
}

impl Rates {
    /// Takes a report; true if nothing is asked for any more.
    pub(crate) fn take(
        &mut self,
        millis: u64,
        reads: &DemandCount,
        writes: &DemandCount,
        now: f64,
    ) -> bool {
        if *reads == DemandCount::default() && *writes == DemandCount::default() {
            // A client that writes through an image goes from OSD to OSD: the next one needs the
            // part at once.
            let was = self.came.iter().any(|c| *c > 0.0);
            *self = Rates { told: now, ..Rates::default() };
            return was;
        }
        let each = |f: fn(&DemandCount) -> [u64; 2]| {
            let ([a, b], [c, d]) = (f(reads), f(writes));
            [a, b, c, d].map(|n| n as f64)
        };
        let seconds = (millis as f64 / 1000.0).max(0.001);
        let keep = if self.told == 0.0 { 0.0 } else { (-seconds / SMOOTHING).exp() };
        for (had, came) in self.came.iter_mut().zip(each(|c| [c.ops, c.bytes])) {
            *had = *had * keep + came / seconds * (1.0 - keep);
        }
        self.waits = each(|c| [c.waiting_ops, c.waiting_bytes]);
        self.told = now;
        false
    }

    /// Demand for each of the limits, in thousandths.
    pub(crate) fn demand(&self, now: f64) -> [u64; 6] {
        let silent = now - self.told - SILENT;
        let fade = if silent > 0.0 { (-silent / SMOOTHING).exp() } else { 1.0 };
        let at = |i: usize| (self.came[i] + self.waits[i]) * fade;
        let [r_ops, r_bytes, w_ops, w_bytes] = [0, 1, 2, 3].map(at);
        [r_ops + w_ops, r_bytes + w_bytes, r_ops, w_ops, r_bytes, w_bytes]
            .map(|n| (n * 1000.0) as u64)
    }
}

#[derive(Default)]
struct Image {
    used: f64,
    rates: BTreeMap<OsdId, Rates>,
    /// What OSDs were told.
    told: BTreeMap<OsdId, ImageShare>,
}

/// The limits of images in use, divided over OSDs. Times are seconds.
#[derive(Default)]
pub struct Ceilings {
    images: BTreeMap<ImageData, Image>,
    sources: BTreeMap<Source, Known>,
    /// When OSDs were told something.
    spoken: BTreeMap<OsdId, f64>,
}

impl Ceilings {
    /// Takes what an OSD was asked for. True if the next round should be now.
    pub fn handle_demand(&mut self, osd: OsdId, demand: &[ImageDemand], now: f64) -> bool {
        let mut new = false;
        for d in demand {
            if !self.images.contains_key(&d.data) {
                if self.images.len() >= MOST_IMAGES {
                    continue;
                }
                new = true;
                // The name belongs to a message.
                let own = |b: &bytes::Bytes| bytes::Bytes::copy_from_slice(b);
                let data = ImageData {
                    pool: d.data.pool,
                    namespace: own(&d.data.namespace),
                    prefix: own(&d.data.prefix),
                };
                self.need(&data);
                self.images.insert(data, Image::default());
            }
            if let Some(image) = self.images.get_mut(&d.data) {
                image.used = now;
                if !d.known {
                    // It has begun anew, or was not told yet.
                    image.told.remove(&osd);
                    new = true;
                }
                new |= image.rates.entry(osd).or_default().take(d.millis, &d.reads, &d.writes, now);
            }
        }
        new
    }

    fn need(&mut self, data: &ImageData) {
        let pool = image_ref(data).map(|i| Source::Pool(i.pool));
        for source in
            [Some(Source::Global), pool, Some(Source::Image(data.clone()))].into_iter().flatten()
        {
            self.sources.entry(source).or_default();
        }
    }

    /// Whether any image is in use.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// What is to be read now. Each is answered with [`Ceilings::read`].
    pub fn due(&mut self, now: f64) -> Vec<Source> {
        let under_way = self.sources.values().filter(|k| k.reading).count();
        let mut due: Vec<(f64, &Source)> = self
            .sources
            .iter()
            .filter(|(_, k)| !k.reading && k.due <= now)
            .map(|(s, k)| (k.due, s))
            .collect();
        // The image that waits for longest; new ones first.
        due.sort_by(|a, b| a.0.total_cmp(&b.0));
        let due: Vec<Source> = due
            .into_iter()
            .take(MOST_READS.saturating_sub(under_way))
            .map(|(_, s)| s.clone())
            .collect();
        for source in &due {
            if let Some(known) = self.sources.get_mut(source) {
                known.reading = true;
            }
        }
        due
    }

    /// Takes what was read; nothing if it could not be. Then what was known holds. True if it is
    /// news.
    pub fn read(&mut self, source: &Source, settings: Option<Settings>, now: f64) -> bool {
        let Some(known) = self.sources.get_mut(source) else { return false };
        known.reading = false;
        known.due = now + if settings.is_some() { FRESH } else { RETRY };
        let news = settings.is_some() && known.settings != settings;
        if news {
            known.settings = settings;
        }
        news
    }

    /// The limits of an image; nothing if they are not known yet.
    fn limits_of(&self, data: &ImageData) -> Option<Limits> {
        // What is not the data of an image is not limited, whatever holds for all images.
        let Some(image) = image_ref(data) else { return Some(Limits::default()) };
        let sources = [Source::Image(data.clone()), Source::Pool(image.pool), Source::Global];
        let [image, pool, global] =
            sources.map(|s| self.sources.get(&s).and_then(|k| k.settings.as_ref()));
        let image = image?;
        if image.contains_key(NO_IMAGE) {
            return Some(Limits::default());
        }
        Some(limits(&[image, pool?, global?]))
    }

    /// Splits anew; what there is to tell. `serving` are the OSDs that lead PGs of a pool.
    pub fn round(
        &mut self,
        now: f64,
        mut serving: impl FnMut(PoolId) -> BTreeSet<OsdId>,
    ) -> BTreeMap<OsdId, QosShares> {
        self.images.retain(|_, i| now - i.used <= IN_USE);
        self.forget_sources();
        let mut pools: BTreeMap<PoolId, BTreeSet<OsdId>> = BTreeMap::new();
        let mut tell: BTreeMap<OsdId, QosShares> = BTreeMap::new();
        let mut limited: BTreeSet<OsdId> = BTreeSet::new();
        let limits: Vec<Option<Limits>> =
            self.images.keys().map(|data| self.limits_of(data)).collect();
        for ((data, image), limits) in self.images.iter_mut().zip(limits) {
            let Some(limits) = limits else { continue };
            let shares: BTreeMap<OsdId, ImageShare> = if limits.is_unlimited() {
                let empty = ImageShare { data: data.clone(), osds: 0, rates: Vec::new() };
                image.told.keys().chain(image.rates.keys()).map(|o| (*o, empty.clone())).collect()
            } else {
                let serving = pools.entry(data.pool).or_insert_with(|| serving(data.pool));
                image.rates.retain(|o, r| serving.contains(o) || now - r.told < SILENT);
                let osds: BTreeSet<OsdId> =
                    serving.iter().chain(image.rates.keys()).copied().collect();
                let rates: Vec<Rates> =
                    osds.iter().map(|o| image.rates.get(o).copied().unwrap_or_default()).collect();
                split(data, &limits, &osds, &rates, now)
            };
            for (osd, share) in shares {
                if !share.rates.is_empty() {
                    limited.insert(osd);
                }
                if image.told.get(&osd) != Some(&share) {
                    image.told.insert(osd, share.clone());
                    tell.entry(osd).or_default().images.push(share);
                }
            }
        }
        self.spoken.retain(|osd, _| limited.contains(osd));
        for osd in limited {
            let at = self.spoken.entry(osd).or_insert(now);
            if tell.contains_key(&osd) || now - *at >= SIGN_OF_LIFE {
                *at = now;
                tell.entry(osd).or_default();
            }
        }
        tell
    }

    /// An OSD has another connection: what was sent on the former may be lost.
    pub fn forget_told(&mut self, osd: OsdId) {
        for image in self.images.values_mut() {
            image.told.remove(&osd);
        }
    }

    fn forget_sources(&mut self) {
        if self.sources.len() > 2 * self.images.len() + 1 || self.images.is_empty() {
            let images = &self.images;
            let pools: BTreeSet<PoolId> =
                images.keys().filter_map(image_ref).map(|i| i.pool).collect();
            self.sources.retain(|source, _| match source {
                Source::Global => !images.is_empty(),
                Source::Pool(pool) => pools.contains(pool),
                Source::Image(data) => images.contains_key(data),
            });
        }
    }
}

/// Stands among the settings of an image that does not exist, or that does not have its data where
/// its name says.
pub const NO_IMAGE: &str = "no image";

fn split(
    data: &ImageData,
    limits: &Limits,
    osds: &BTreeSet<OsdId>,
    rates: &[Rates],
    now: f64,
) -> BTreeMap<OsdId, ImageShare> {
    let demand: Vec<[u64; 6]> = rates.iter().map(|r| r.demand(now)).collect();
    let empty = ImageShare { data: data.clone(), osds: osds.len() as u32, rates: Vec::new() };
    let mut shares = vec![empty; osds.len()];
    for (i, rate) in limits.rates().into_iter().enumerate() {
        let asked: Vec<u64> = demand.iter().map(|d| d[i]).collect();
        for (share, part) in shares.iter_mut().zip(qos::split(rate.each_second, &asked)) {
            share.rates.push(ShareOfRate {
                each_second: rate.each_second,
                saved: rate.saved,
                peak: rate.peak,
                part,
            });
        }
    }
    osds.iter().copied().zip(shares).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(pool: i64, prefix: &'static str) -> ImageData {
        ImageData { pool: PoolId(pool), namespace: "".into(), prefix: prefix.into() }
    }

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        pairs.iter().map(|(k, v)| (format!("{QOS}{k}"), v.to_string())).collect()
    }

    fn writes(data: &ImageData, ops: u64, waiting: u64) -> ImageDemand {
        let writes = DemandCount {
            ops,
            bytes: ops * 4096,
            waiting_ops: waiting,
            waiting_bytes: waiting * 4096,
        };
        ImageDemand {
            data: data.clone(),
            known: true,
            millis: 200,
            writes,
            reads: DemandCount::default(),
        }
    }

    fn osds(_: PoolId) -> BTreeSet<OsdId> {
        [0, 1, 2].map(OsdId).into()
    }

    #[test]
    fn images_are_found_by_their_data() {
        let found =
            |pool, prefix| image_ref(&data(pool, prefix)).map(|i| (i.pool.0, i.id, i.elsewhere));
        assert_eq!(found(3, "rbd_data.10ab"), Some((3, "10ab".into(), false)));
        assert_eq!(found(3, "rbd_data.2.10ab"), Some((2, "10ab".into(), true)));
        for prefix in
            ["rbd_data.", "rbd_data.x.10ab", "rbd_data.2.10.ab", "rbd_header.10ab", "rbd_data.a/b"]
        {
            assert_eq!(found(3, prefix), None, "{prefix}");
        }
    }

    #[test]
    fn the_first_setting_wins() {
        let image = settings(&[
            ("iops_limit", "100"),
            ("write_bps_limit", "0"),
            ("read_iops_limit", "word"),
        ]);
        let pool = settings(&[
            ("iops_limit", "200"),
            ("write_bps_limit", "1000"),
            ("read_iops_limit", "5"),
        ]);
        let global =
            settings(&[("bps_limit", "7000"), ("bps_burst", "9000"), ("bps_burst_seconds", "2")]);
        let l = limits(&[&image, &pool, &global]);
        assert_eq!(l.iops, Rate::new(100, 0, 1));
        assert!(l.write_bps.is_unlimited(), "nothing is a value, too");
        assert_eq!(l.bps, Rate::new(7000, 9000, 2));
        assert_eq!(l.read_iops, Rate::new(5, 0, 1), "what is no number is no value");
        assert!(limits(&[]).is_unlimited());
    }

    fn answered(c: &mut Ceilings, now: f64, image: &[(&str, &str)]) -> Vec<Source> {
        let due = c.due(now);
        for s in &due {
            let known =
                if matches!(s, Source::Image(_)) { settings(image) } else { Settings::new() };
            c.read(s, Some(known), now);
        }
        due
    }

    #[test]
    fn a_ceiling_follows_demand_and_stays_whole() {
        let d = data(3, "rbd_data.2.10ab");
        let mut c = Ceilings::default();
        assert!(c.handle_demand(OsdId(0), &[writes(&d, 50, 8)], 1.0));
        assert!(c.round(1.0, osds).is_empty(), "nothing is known yet");
        assert_eq!(
            answered(&mut c, 1.0, &[("iops_limit", "100")]),
            [Source::Global, Source::Pool(PoolId(2)), Source::Image(d.clone())]
        );
        // What the OSDs know: the last that each was told.
        let mut parts = [0; 3];
        let mut round = |c: &mut Ceilings, now: f64| {
            for (osd, shares) in c.round(now, osds) {
                for share in shares.images {
                    assert!(share.osds == 3 && share.rates[1..].iter().all(|r| r.each_second == 0));
                    parts[osd.0 as usize] = share.rates[0].part;
                }
            }
            assert!((99_990..=100_000).contains(&parts.iter().sum::<u64>()), "{parts:?}");
            parts
        };
        assert_eq!(round(&mut c, 1.0), [96_666, 1_666, 1_666]);
        assert!(c.round(1.1, osds).is_empty(), "nothing changed");
        // Another OSD is asked for as much.
        for n in 1..20 {
            let now = 1.0 + 0.2 * f64::from(n);
            c.handle_demand(OsdId(0), &[writes(&d, 10, 4)], now);
            c.handle_demand(OsdId(2), &[writes(&d, 10, 4)], now);
            round(&mut c, now);
        }
        let [a, b, other] = round(&mut c, 4.9);
        assert!(
            a.abs_diff(49_166) < 1500 && other.abs_diff(49_166) < 1500 && b == 1_666,
            "{a} {b} {other}"
        );
        // An OSD that reports no demand any more gives its part back at once.
        assert!(c.handle_demand(OsdId(0), &[writes(&d, 0, 0)], 4.9));
        assert_eq!(round(&mut c, 4.9), [1_666, 1_666, 96_666]);
        c.handle_demand(OsdId(0), &[writes(&d, 100, 0)], 5.0);
        // And a silent one, soon.
        c.handle_demand(OsdId(2), &[writes(&d, 10, 4)], 8.0);
        assert!(round(&mut c, 8.0)[2] > 90_000);
    }

    #[test]
    fn changes_are_seen_and_removal_is_told() {
        let d = data(3, "rbd_data.10ab");
        let mut c = Ceilings::default();
        c.handle_demand(OsdId(1), &[writes(&d, 1, 0)], 1.0);
        answered(&mut c, 1.0, &[("iops_limit", "100")]);
        assert_eq!(c.round(1.0, osds).len(), 3);
        assert!(c.round(1.1, osds).is_empty());
        assert!(c.due(2.9).is_empty());
        // What cannot be read stays as it was.
        let due = c.due(3.0);
        assert_eq!(due.len(), 3);
        assert!(c.due(3.0).is_empty(), "it is being read");
        assert!(due.iter().all(|s| !c.read(s, None, 3.0)));
        assert!(c.round(3.0, osds).values().all(|t| t.images.iter().all(|i| i.rates.len() == 6)));
        assert_eq!(answered(&mut c, 4.0, &[]).len(), 3);
        let told = c.round(4.0, osds);
        assert!(told.len() == 3 && told.values().all(|t| t.images[0].rates.is_empty()), "{told:?}");
        assert!(c.round(4.2, osds).is_empty());
        c.forget_told(OsdId(2));
        assert_eq!(
            c.round(4.3, osds).keys().copied().collect::<Vec<_>>(),
            [] as [OsdId; 0],
            "it did not ask"
        );
        // An OSD that does not know is told again.
        assert!(c.handle_demand(
            OsdId(1),
            &[ImageDemand { known: false, ..writes(&d, 1, 0) }],
            6.0
        ));
        assert_eq!(c.round(6.0, osds).keys().copied().collect::<Vec<_>>(), [OsdId(1)]);
        // Nothing is kept of images that are not in use.
        assert!(
            c.round(6.0 + IN_USE + 0.1, osds).is_empty() && c.is_empty() && c.sources.is_empty()
        );
    }

    #[test]
    fn what_is_no_image_has_no_limits() {
        let mut c = Ceilings::default();
        let d = data(3, "rbd_data.2.10ab");
        c.handle_demand(OsdId(0), &[writes(&d, 1, 0)], 1.0);
        for s in c.due(1.0) {
            let global = Settings::from([("rbd_qos_iops_limit".into(), "1".into())]);
            let none = Settings::from([(NO_IMAGE.into(), String::new())]);
            let known = if s == Source::Global { global } else { none };
            c.read(&s, Some(known), 1.0);
        }
        let told = c.round(1.0, osds);
        assert!(told.len() == 1 && told[&OsdId(0)].images[0].rates.is_empty(), "{told:?}");
    }
}
