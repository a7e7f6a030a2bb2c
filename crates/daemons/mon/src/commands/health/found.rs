//! A health check that was found.

use messages::HealthCheck;

/// A check by its code.
pub(in crate::commands) type Found = (String, HealthCheck);

pub(in crate::commands) fn found(
    code: &str,
    severity: u8,
    summary: String,
    detail: Vec<String>,
    count: usize,
) -> Found {
    (code.to_owned(), HealthCheck { severity, summary, detail, count: count as i64 })
}

/// A check with a line for each thing that is wrong, if there is any; the summary is made of their
/// count.
pub(in crate::commands) fn of_lines(
    code: &str,
    severity: u8,
    detail: Vec<String>,
    summary: impl FnOnce(usize) -> String,
) -> Option<Found> {
    let count = detail.len();
    (count > 0).then(|| found(code, severity, summary(count), detail, count))
}

/// A check without details.
pub(in crate::commands) fn alone(code: &str, severity: u8, summary: impl Into<String>) -> Found {
    found(code, severity, summary.into(), Vec::new(), 1)
}
