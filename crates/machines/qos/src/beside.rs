use crate::OpClass;

/// How much background work is begun beside clients.
///
/// A scheduler orders what waits. Clients that keep few operations under way on an OSD never wait,
/// and background work that is begun beside them costs them all the same: processor, device and
/// commits are shared below the scheduler. Therefore background work is also held back in front of
/// it. While clients are there, a class of background work may begin
///
/// * a part of what clients begin themselves, counted in cost, that is in time of device and
///   processor ([`Part::beside`]); one unit serves both sides, so an error of the cost model is the
///   same for both;
/// * and a part of the time in which no operation of a client is in execution ([`Part::spare`]),
///   but for moments: clients that ask for little leave room.
///
/// When clients pause, background work may begin everything at once; the moment they are back the
/// parts hold again. What waits too long begins whatever the parts say; how long that is, the
/// caller says.
///
/// Times are in nanoseconds, costs in the scheduler's unit.
#[derive(Clone, Debug)]
pub struct Beside {
    classes: [Class; 2],
    /// Multiplies the parts, in thousandths; none for no bound at all.
    scale: Option<u32>,
    /// What the OSD can do in a millisecond, in cost.
    per_ms: u64,
    /// An operation of a client is in execution.
    present: bool,
    /// When the last one ended.
    left: Option<u64>,
    /// Up to when absence was counted.
    counted: u64,
    /// Cost of operations of clients that was not counted yet.
    begun: u64,
    /// Cost of what clients began since the start.
    clients: u64,
}

/// What a class of background work may take beside clients, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Part {
    /// Of what clients begin.
    pub beside: u32,
    /// Of the time in which clients have nothing in execution.
    pub spare: u32,
}

/// What a class has done beside clients, and when they were away.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Begun {
    /// Operations that began while clients were there, ...
    pub beside: u64,
    /// ... what they cost, ...
    pub cost: u64,
    /// ... how many of them only because they had waited long enough;
    pub overdue: u64,
    /// and operations that began while clients were away, or without a bound.
    pub free: u64,
}

#[derive(Clone, Debug, Default)]
struct Class {
    part: Part,
    /// What may begin, in cost; what has begun goes below zero.
    credit: i64,
    begun: Begun,
}

/// Clients are away when nothing of them was in execution for so long; longer, if background work
/// has less than its parts: the pauses of clients that ask for little are not all its own then.
pub const PAUSE: u64 = 20_000_000;
/// From so much on an absence counts: those with many operations under way are often answered all
/// at once, and are back soon.
const MOMENT: u64 = 2_000_000;
/// When to look again whether clients have begun enough.
const LOOK: u64 = 5_000_000;
/// What is not used is kept up to so much: as many writes of 4 KiB.
const KEPT: i64 = 8 * crate::REFERENCE as i64;
/// What competes in the scheduler gets what its class is promised there. Clients that do not wait
/// there have asked for no more than they get, and what runs beside them is taken from them whole:
/// it is a quarter of its promise.
const OUTSIDE: f64 = 0.25;
/// What a class without a reservation counts as having, times its ceiling.
const UNRESERVED: f64 = 0.2;

/// What a profile means for recovery and best effort beside clients. Of each class (client,
/// recovery, best effort) it has reservation, weight and ceiling, as fractions of the OSD; 0 is no
/// reservation, or no ceiling.
///
/// A class is as strong as the geometric mean of its reservation and its weight, so that both
/// count, and classes are to clients as their strengths are.
pub fn parts(classes: [(f64, u32, f64); 3]) -> [Part; 2] {
    let open = |lim: f64| if lim > 0.0 { lim.min(1.0) } else { 1.0 };
    let strength = |(res, wgt, lim): (f64, u32, f64)| {
        let reserved = if res >= 0.001 { res.min(1.0) } else { UNRESERVED * open(lim) };
        (reserved * f64::from(wgt.clamp(1, 1_000_000))).sqrt()
    };
    let client = strength(classes[0]);
    let ratio = |class| (strength(class) / client).clamp(1.0 / 16.0, 16.0);
    let (recovery, best_effort) = (ratio(classes[1]), ratio(classes[2]));
    let all = 1.0 + recovery + best_effort;
    let part = |ratio: f64, lim: f64| Part {
        beside: (OUTSIDE * ratio * 1000.0).round() as u32,
        spare: ((ratio / all).min(open(lim)) * 1000.0).round() as u32,
    };
    [part(recovery, classes[1].2), part(best_effort, classes[2].2)]
}

fn index(class: OpClass) -> Option<usize> {
    match class {
        OpClass::BackgroundRecovery => Some(0),
        OpClass::BackgroundBestEffort => Some(1),
        OpClass::Client | OpClass::Immediate => None,
    }
}

impl Beside {
    /// With these parts. `per_ms` is what the OSD can do in a millisecond.
    pub fn new(parts: [Part; 2], per_ms: u64) -> Self {
        Beside {
            classes: parts.map(|part| Class { part, ..Class::default() }),
            scale: Some(1000),
            per_ms,
            present: false,
            left: None,
            counted: 0,
            begun: 0,
            clients: 0,
        }
    }

    /// Changes the parts. Nothing that was saved or owed under others counts.
    pub fn set_parts(&mut self, parts: [Part; 2]) {
        for (class, part) in self.classes.iter_mut().zip(parts) {
            if class.part != part {
                (class.part, class.credit) = (part, 0);
            }
        }
    }

    /// Changes what the OSD can do in a millisecond.
    pub fn set_per_ms(&mut self, per_ms: u64) {
        self.per_ms = per_ms;
    }

    /// Multiplies the parts by so many thousandths; none for no bound.
    pub fn set_scale(&mut self, scale: Option<u32>) {
        self.scale = scale;
    }

    /// What holds for a class: its part with the scale, or none without a bound.
    pub fn part(&self, class: OpClass) -> Option<Part> {
        let scale = u64::from(self.scale?);
        let part = self.classes[index(class)?].part;
        let of = |n: u32| (u64::from(n) * scale / 1000).min(u64::from(u32::MAX)) as u32;
        Some(Part { beside: of(part.beside), spare: of(part.spare).min(1000) })
    }

    /// Counters of a class.
    pub fn begun(&self, class: OpClass) -> Begun {
        index(class).map_or(Begun::default(), |i| self.classes[i].begun)
    }

    /// Cost of what clients have begun.
    pub fn clients(&self) -> u64 {
        self.clients
    }

    /// An operation of a client begins.
    #[inline]
    pub fn client_begins(&mut self, cost: u32, now: u64) {
        if !self.present {
            self.count_absence(now);
            self.present = true;
        }
        self.begun = self.begun.saturating_add(cost.into());
        self.clients = self.clients.saturating_add(cost.into());
    }

    /// The last operation of a client in execution has ended.
    #[inline]
    pub fn clients_left(&mut self, now: u64) {
        if std::mem::take(&mut self.present) {
            (self.left, self.counted) = (Some(now), now.saturating_add(MOMENT));
        }
    }

    /// Whether clients are away. `wait` says whether some wait in the scheduler.
    pub fn is_away(&self, wait: bool, now: u64) -> bool {
        !self.present
            && !wait
            && self.left.is_none_or(|left| now.saturating_sub(left) >= self.pause())
    }

    /// For how long clients do nothing when they are away.
    fn pause(&self) -> u64 {
        PAUSE * 1000 / u64::from(self.scale.unwrap_or(1000).clamp(1, 1000))
    }

    /// Whether background work may begin everything: clients are away, or there is no bound.
    fn is_free(&self, wait: bool, now: u64) -> bool {
        self.scale.is_none() || self.is_away(wait, now)
    }

    fn count_absence(&mut self, now: u64) {
        let away = now.saturating_sub(self.counted).min(self.pause());
        self.counted = self.counted.max(now);
        if self.left.is_some() && away > 0 {
            let could = u128::from(away) * u128::from(self.per_ms) / 1_000_000;
            self.earn(could, |part| part.spare);
        }
    }

    fn earn(&mut self, of: u128, part: impl Fn(Part) -> u32) {
        for (i, class) in
            [OpClass::BackgroundRecovery, OpClass::BackgroundBestEffort].into_iter().enumerate()
        {
            let Some(p) = self.part(class) else { return };
            let earned = (of * u128::from(part(p)) / 1000).min(1 << 62) as i64;
            let class = &mut self.classes[i];
            class.credit = class.credit.saturating_add(earned).min(KEPT.max(class.credit));
        }
    }

    /// Whether an operation of a class may begin now, or when to ask again. It may at `overdue`,
    /// whatever holds. `wait` says whether clients wait in the scheduler.
    pub fn may_begin(
        &mut self,
        class: OpClass,
        overdue: u64,
        wait: bool,
        now: u64,
    ) -> Result<(), u64> {
        let Some(i) = index(class) else { return Ok(()) };
        if self.is_free(wait, now) {
            return Ok(());
        }
        if !self.present {
            self.count_absence(now);
        }
        let begun = std::mem::take(&mut self.begun);
        if begun > 0 {
            self.earn(begun.into(), |part| part.beside);
        }
        if self.classes[i].credit > 0 || now >= overdue {
            return Ok(());
        }
        let away = self
            .left
            .filter(|_| !self.present && !wait)
            .map_or(u64::MAX, |left| left + self.pause());
        Err(overdue.min(away).min(now + LOOK))
    }

    /// An operation of a class that may begin begins.
    pub fn begins(&mut self, class: OpClass, cost: u64, wait: bool, now: u64) {
        let Some(i) = index(class) else { return };
        let free = self.is_free(wait, now);
        let class = &mut self.classes[i];
        if free {
            // What runs while clients are away counts for no class, and buys nothing for later.
            class.credit = class.credit.min(0);
            class.begun.free += 1;
            return;
        }
        class.begun.beside += 1;
        class.begun.cost = class.begun.cost.saturating_add(cost);
        class.begun.overdue += u64::from(class.credit <= 0);
        let cost = cost.min(1 << 60) as i64;
        // What began because it was overdue is owed, but such debts do not add up.
        class.credit = (class.credit - cost).max(class.credit.min(-2 * cost));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Allocations, MclockProfile, REFERENCE};
    use proptest::prelude::*;

    const REF: u64 = REFERENCE as u64;
    const CLASSES: [OpClass; 2] = [OpClass::BackgroundRecovery, OpClass::BackgroundBestEffort];
    const MS: u64 = 1_000_000;
    const PATIENCE: u64 = 500 * MS;

    fn of(profile: MclockProfile) -> [Part; 2] {
        parts(profile.parts(Allocations::Reef, [(0.0, 1, 0.0); 3]))
    }

    /// Runs background work that always waits for so many milliseconds, beside a client that begins
    /// `each_ms` writes in each of them (none in the milliseconds that `pauses` names). What each
    /// class began, in writes.
    fn run(
        b: &mut Beside,
        from: u64,
        ms: u64,
        each_ms: u64,
        cost: u64,
        pauses: impl Fn(u64) -> bool,
    ) -> [u64; 2] {
        let mut done = [0; 2];
        for ms in from..from + ms {
            let now = ms * MS;
            if pauses(ms) {
                b.clients_left(now);
            } else {
                for _ in 0..each_ms {
                    b.client_begins(REFERENCE, now);
                }
            }
            for (class, done) in CLASSES.into_iter().zip(&mut done) {
                // At most so many in a millisecond, whatever is allowed.
                for _ in 0..4 {
                    if b.may_begin(class, u64::MAX, false, now).is_ok() {
                        b.begins(class, cost * REF, false, now);
                        *done += 1;
                    }
                }
            }
        }
        done
    }

    #[test]
    fn profiles_come_in_order() {
        for allocations in [Allocations::Reef, Allocations::Quincy] {
            let of = |p: MclockProfile| parts(p.parts(allocations, [(0.0, 1, 0.0); 3]));
            let [low, mid, high] = [
                MclockProfile::HighClientOps,
                MclockProfile::Balanced,
                MclockProfile::HighRecoveryOps,
            ]
            .map(of);
            for (less, more) in [(low, mid), (mid, high)] {
                assert!(
                    f64::from(less[0].beside) * 1.3 < f64::from(more[0].beside),
                    "{less:?} {more:?}"
                );
                assert!(
                    f64::from(less[1].beside) * 1.1 < f64::from(more[1].beside),
                    "{less:?} {more:?}"
                );
            }
        }
        let [rec, rest] = of(MclockProfile::HighClientOps);
        assert!(rec.beside + rest.beside <= 250, "clients keep four fifths: {rec:?} {rest:?}");
        let custom = parts([(0.0, 1, 0.0); 3]);
        assert_eq!(custom[0], custom[1], "equals");
        assert!(custom[0].spare <= 334);
    }

    #[test]
    fn a_class_gets_its_part_of_what_clients_begin() {
        for profile in
            [MclockProfile::HighClientOps, MclockProfile::Balanced, MclockProfile::HighRecoveryOps]
        {
            let parts = of(profile);
            let mut b = Beside::new(parts, 10 * REF);
            run(&mut b, 0, 100, 4, 5, |_| false);
            let done = run(&mut b, 100, 20_000, 4, 5, |_| false);
            for (part, done) in parts.iter().zip(done) {
                let promised = 80_000 * u64::from(part.beside) / 1000 / 5;
                assert!(
                    done.abs_diff(promised) <= promised / 50 + 10,
                    "{profile:?}: {done} of {promised}"
                );
            }
        }
    }

    #[test]
    fn without_clients_everything_begins_and_a_pause_is_used() {
        let mut b = Beside::new(of(MclockProfile::HighClientOps), 10 * REF);
        assert_eq!(run(&mut b, 0, 1000, 0, 50, |_| true), [4000, 4000]);
        // 100 ms of clients, 100 ms without: all but the first 20 ms of a pause are used.
        let done = run(&mut b, 1000, 10_000, 2, 50, |ms| ms / 100 % 2 == 1);
        assert!(done.iter().all(|d| (4000 * 4..4600 * 4).contains(d)), "{done:?}");
    }

    #[test]
    fn clients_that_come_back_find_the_bound_at_once() {
        let mut b = Beside::new(of(MclockProfile::Balanced), 10 * REF);
        run(&mut b, 0, 10_000, 0, 5, |_| true);
        let done = run(&mut b, 10_000, 100, 4, 5, |_| false);
        // 25 and 15 percent of 400 writes, and what is kept.
        assert!(done[0] <= 20 + 2 && done[1] <= 13 + 2, "{done:?}");
    }

    #[test]
    fn a_client_that_asks_for_little_leaves_room() {
        let parts = of(MclockProfile::Balanced);
        let mut b = Beside::new(parts, 10 * REF);
        // A write each ten milliseconds that takes one; two more say nothing.
        let done = run(&mut b, 0, 10_000, 1, 5, |ms| ms % 10 != 0);
        let spare = 7000 * 10 / 5 * u64::from(parts[0].spare) / 1000;
        assert!(done[0] > spare * 9 / 10 && done[0] < spare * 12 / 10, "{done:?} {spare}");
    }

    #[test]
    fn without_a_bound_nothing_is_held() {
        let mut b = Beside::new(of(MclockProfile::HighClientOps), 10 * REF);
        b.set_scale(None);
        assert_eq!(run(&mut b, 0, 100, 4, 50, |_| false), [400, 400]);
        b.set_scale(Some(500));
        assert_eq!(
            b.part(CLASSES[0]).map(|p| p.beside),
            Some(of(MclockProfile::HighClientOps)[0].beside / 2)
        );
    }

    #[test]
    fn a_new_profile_holds_at_once() {
        let mut b = Beside::new(of(MclockProfile::HighClientOps), 10 * REF);
        // Debts of large operations.
        run(&mut b, 0, 5000, 1, 500, |_| false);
        b.set_parts(of(MclockProfile::HighRecoveryOps));
        let done = run(&mut b, 5000, 1000, 10, 5, |_| false);
        assert!(
            done[0]
                > 10_000 * u64::from(of(MclockProfile::HighRecoveryOps)[0].beside) / 1000 / 5 * 9
                    / 10,
            "{done:?}"
        );
    }

    proptest! {
        /// Whatever the parts, the load and the costs: what waits begins in bounded time.
        #[test]
        fn everything_begins_in_bounded_time(
            parts in proptest::array::uniform2((0u32..10_000, 0u32..=1000)),
            scale in proptest::option::of(0u32..10_000),
            steps in proptest::collection::vec((0u64..200, 0u64..200_000, any::<bool>(), any::<bool>(), 0u64..1 << 40), 1..300),
        ) {
            let mut b = Beside::new(parts.map(|(beside, spare)| Part { beside, spare }), 10 * REF);
            b.set_scale(scale);
            let mut now = 0;
            let mut since: [Option<u64>; 2] = [None, None];
            for (ms, client, left, wait, cost) in steps {
                let until = now + ms * MS;
                if left { b.clients_left(now) } else { b.client_begins(client as u32, now) }
                loop {
                    let mut next = until;
                    for (class, since) in CLASSES.into_iter().zip(&mut since) {
                        let first = *since.get_or_insert(now);
                        match b.may_begin(class, first + PATIENCE, wait, now) {
                            Ok(()) => {
                                b.begins(class, cost, wait, now);
                                *since = None;
                            }
                            Err(at) => {
                                prop_assert!(at > now, "asked again at once");
                                prop_assert!(now - first <= PATIENCE, "{} ms", (now - first) / MS);
                                next = next.min(at);
                            }
                        }
                    }
                    if next >= until { break }
                    now = next;
                }
                now = until;
            }
        }
    }
}
