//! What options of mClock mean together.

use crate::schema::find;

/// Classes, as in `osd_mclock_scheduler_<class>_{res,wgt,lim}`.
pub const CLASSES: [&str; 3] = ["client", "background_recovery", "background_best_effort"];

/// What belongs to each class of the profile `custom`.
pub const PARTS: [&str; 3] = ["res", "wgt", "lim"];

/// The option of a class.
pub fn option(class: &str, part: &str) -> String {
    format!("osd_mclock_scheduler_{class}_{part}")
}

/// Whether an option reserves a part of what an OSD can do.
pub fn reserves(name: &str) -> bool {
    CLASSES.iter().any(|class| option(class, "res") == name)
}

/// Why the reservations of the profile `custom` cannot be kept together, if that is so: more than
/// 100 % of an OSD. `value` gives what an option is set to.
pub fn overcommitted(value: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let of = |class: &str| {
        let name = option(class, "res");
        value(&name)
            .unwrap_or_else(|| find(&name).and_then(|o| o.default.parse().ok()).unwrap_or(0.0))
    };
    let parts = CLASSES.map(|class| (class, of(class)));
    let sum: f64 = parts.iter().map(|(_, part)| part).sum();
    // Tenths are not exact.
    (sum > 1.0 + 1e-9).then(|| {
        let parts = parts.map(|(class, part)| format!("{class} {}", percent(part)));
        format!("reservations add up to {}: {}", percent(sum), parts.join(", "))
    })
}

fn percent(part: f64) -> String {
    format!("{} %", (part * 10_000.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_fit_together_or_the_sum_is_said() {
        let of = |parts: [f64; 3]| {
            overcommitted(|name| {
                Some(parts[CLASSES.iter().position(|c| option(c, "res") == name)?])
            })
        };
        assert_eq!(of([0.5, 0.3, 0.2]), None);
        assert_eq!(of([0.1, 0.2, 0.7]), None, "0.1 + 0.2 is a little more than 0.3");
        assert_eq!(
            of([0.8, 0.3, 0.005]).unwrap(),
            "reservations add up to 110.5 %: client 80 %, background_recovery 30 %, background_best_effort 0.5 %"
        );
        assert_eq!(
            overcommitted(|name| name.contains("client").then_some(1.0)),
            None,
            "the others have none by default"
        );
        for class in CLASSES {
            for part in PARTS {
                let name = option(class, part);
                assert!(find(&name).is_some() && reserves(&name) == (part == "res"), "{name}");
            }
        }
        assert!(!reserves("osd_mclock_profile"));
    }
}
