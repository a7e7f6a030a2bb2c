//! The states of a metadata server: what the map says, how far its work is, and what it asks for.

use types::compat_set::CompatSet;
use types::fsmap::MdsState;

/// What the server can read and write. The feature of its log is in the map of a file system from
/// the moment on at which the server has a rank of it, so that the monitors give the rank to no
/// server that would miss changes in the log.
pub fn compat() -> CompatSet {
    let mut set = types::fsmap::default_compat();
    // Stock servers bring it into the map. Inodes that have such data are refused one by one.
    set.incompat.names.insert(7, "mds uses inline data".to_owned());
    let (number, name) = types::fsmap::LOG_FEATURE;
    set.incompat.names.insert(number, name.to_owned());
    set
}

/// How far the work for a rank is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Progress {
    /// What is at rest is being read, or made.
    Loading,
    /// The server knows all that its predecessor did.
    Ready,
    /// Clients of its predecessor are back, or evicted.
    ClientsBack,
    /// Sessions are closed, and all is at rest.
    Stopped,
    /// What is at rest, or the log, cannot be served.
    Damaged,
}

/// What the server asks for, given what the map says. Clients keep their sessions over a failover
/// only if they see the state `RECONNECT`: it lasts until all of them are back.
pub fn wanted(state: MdsState, progress: Progress) -> MdsState {
    match state {
        MdsState::CREATING | MdsState::STARTING | MdsState::REPLAY | MdsState::RESOLVE
            if progress == Progress::Damaged =>
        {
            MdsState::DAMAGED
        }
        MdsState::CREATING | MdsState::STARTING if progress >= Progress::Ready => MdsState::ACTIVE,
        MdsState::REPLAY | MdsState::RESOLVE if progress >= Progress::Ready => MdsState::RECONNECT,
        MdsState::RECONNECT if progress >= Progress::ClientsBack => MdsState::REJOIN,
        MdsState::REJOIN | MdsState::CLIENTREPLAY => MdsState::ACTIVE,
        MdsState::STOPPING if progress >= Progress::Stopped => MdsState::STOPPED,
        state => state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(mut state: MdsState, progress: &[Progress]) -> Vec<MdsState> {
        let mut seen = vec![state];
        for p in progress {
            // The monitors grant one step at a time.
            for _ in 0..3 {
                let next = wanted(state, *p);
                assert!(state.may_become(next), "{state} may not become {next}");
                if next != state {
                    seen.push(next);
                    state = next;
                }
            }
        }
        seen
    }

    #[test]
    fn a_successor_waits_for_clients() {
        let all = [Progress::Loading, Progress::Ready, Progress::ClientsBack];
        let want = [MdsState::REPLAY, MdsState::RECONNECT, MdsState::REJOIN, MdsState::ACTIVE];
        assert_eq!(way(MdsState::REPLAY, &all), want);
        assert_eq!(way(MdsState::REPLAY, &all[..2]), want[..2]);
    }

    #[test]
    fn a_new_rank_has_none() {
        let all = [Progress::Loading, Progress::Ready];
        assert_eq!(way(MdsState::CREATING, &all), [MdsState::CREATING, MdsState::ACTIVE]);
        assert_eq!(way(MdsState::STANDBY, &all), [MdsState::STANDBY]);
    }

    #[test]
    fn a_rank_that_cannot_be_read_is_given_up() {
        for state in [MdsState::CREATING, MdsState::STARTING, MdsState::REPLAY] {
            assert_eq!(wanted(state, Progress::Damaged), MdsState::DAMAGED);
        }
        // A server that waits holds no rank.
        assert_eq!(wanted(MdsState::STANDBY, Progress::Damaged), MdsState::STANDBY);
    }

    #[test]
    fn stock_servers_are_kept_away() {
        let stock = types::fsmap::default_compat();
        assert!(!stock.writeable(&compat()));
        assert!(compat().writeable(&stock));
        let mut after_stock = stock;
        after_stock.incompat.names.insert(7, "mds uses inline data".to_owned());
        assert!(compat().writeable(&after_stock));
    }
}
