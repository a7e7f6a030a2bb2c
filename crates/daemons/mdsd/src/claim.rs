//! What the server says of its log to the monitors: that it is empty, so that they let a stock
//! server have the rank. Before the log is written to again, they must have heard of it.

use messages::MdsBeacon;

/// What was said, and what the monitors are known to have heard.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum LogClaim {
    /// The monitors take the log for one with changes. It is written to.
    #[default]
    Used,
    /// Beacons say that it is empty. The monitors may know that already.
    Saying,
    /// The monitors know it.
    Known,
    /// Beacons say that it is going to be used, from the one with this number on.
    TakingBack(Option<u64>),
}

impl LogClaim {
    /// There is nothing in the log.
    pub fn say_empty(&mut self) {
        if *self == LogClaim::Used {
            *self = LogClaim::Saying;
        }
    }

    /// The log is to be written to. Says whether it may be; else it may when the monitors know.
    pub fn use_log(&mut self) -> bool {
        if matches!(self, LogClaim::Saying | LogClaim::Known) {
            *self = LogClaim::TakingBack(None);
        }
        *self == LogClaim::Used
    }

    /// What the beacon with this number says.
    pub fn in_beacon(&mut self, seq: u64) -> &'static str {
        match self {
            LogClaim::Used | LogClaim::Known => "",
            LogClaim::Saying => MdsBeacon::LOG_EMPTY,
            LogClaim::TakingBack(first) => {
                first.get_or_insert(seq);
                MdsBeacon::LOG_USED
            }
        }
    }

    /// A map: whether it has the log of the rank as empty, and the last beacon of this server that
    /// changed it.
    pub fn heard(&mut self, empty: bool, last: u64) {
        match *self {
            LogClaim::Saying if empty => *self = LogClaim::Known,
            LogClaim::Known if !empty => *self = LogClaim::Saying,
            // A word that is older than this beacon does not count any more.
            LogClaim::TakingBack(Some(first)) if !empty && last >= first => *self = LogClaim::Used,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_used_again_only_when_the_monitors_know() {
        let mut claim = LogClaim::default();
        assert!(claim.use_log());
        claim.say_empty();
        assert_eq!(claim.in_beacon(5), MdsBeacon::LOG_EMPTY);
        // The word may still be on its way: the map does not tell.
        assert!(!claim.use_log());
        claim.heard(false, 4);
        assert!(!claim.use_log());
        assert_eq!(claim.in_beacon(6), MdsBeacon::LOG_USED);
        claim.heard(false, 5);
        claim.heard(true, 5);
        assert!(!claim.use_log(), "beacon 6 is not heard");
        assert_eq!(claim.in_beacon(7), MdsBeacon::LOG_USED);
        claim.heard(false, 6);
        assert!(claim.use_log());
        assert_eq!(claim.in_beacon(8), "");
    }

    #[test]
    fn what_is_known_is_taken_back_first() {
        let mut claim = LogClaim::default();
        claim.say_empty();
        claim.heard(false, 0);
        assert_eq!(claim, LogClaim::Saying);
        claim.heard(true, 3);
        assert_eq!(claim, LogClaim::Known);
        assert_eq!(claim.in_beacon(4), "");
        assert!(!claim.use_log());
        claim.heard(false, 9);
        assert!(!claim.use_log(), "nothing was said");
    }
}
