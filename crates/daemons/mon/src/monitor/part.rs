//! A monitor's part in the group, as it remembers it.

use crate::replica::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Instant;

/// What a monitor does in its group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// No part.
    #[default]
    Out,
    /// Passes requests on to that monitor.
    Follower(String),
    /// Decides.
    Leader,
}

/// What a monitor remembers of its part.
pub(crate) struct Part {
    pub role: Role,
    pub term: u64,
    /// Since when it is out.
    pub out_since: Option<Instant>,
    /// Elections that this monitor won since it started, and those that another one did.
    pub won: u64,
    pub lost: u64,
    /// The term of the last of them.
    pub counted: u64,
    pub view: View,
    pub told_view: Option<Instant>,
    /// A change of the members is under way.
    pub changing: bool,
    /// In which term the leader was told of this monitor.
    pub greeted: Option<(String, u64)>,
    pub asking_ids: bool,
    pub asked_whether_lost: Option<Instant>,
    /// Every other monitor was asked whether the group was given up, or had the time to answer: see
    /// `Inner::vet`.
    pub vetted: bool,
}

impl Default for Part {
    fn default() -> Self {
        Part {
            role: Role::Out,
            term: 0,
            out_since: Some(Instant::now()),
            won: 0,
            lost: 0,
            counted: 0,
            view: View::default(),
            told_view: None,
            changing: false,
            greeted: None,
            asking_ids: false,
            asked_whether_lost: None,
            vetted: false,
        }
    }
}

impl Part {
    /// Counts the election of this term, once its winner is known.
    pub fn count_election(&mut self) {
        if self.role == Role::Out || self.counted == self.term {
            return;
        }
        self.counted = self.term;
        match self.role {
            Role::Leader => self.won += 1,
            _ => self.lost += 1,
        }
    }
}

/// The quorum, as the leader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct View {
    pub term: u64,
    pub quorum: Vec<String>,
    /// Seconds since the epoch.
    pub since: u32,
    /// Which group this is ([`crate::state::ClusterState::rescued`]).
    #[serde(default)]
    pub rescued: u64,
    /// The leader, which says this.
    #[serde(default)]
    pub leader: String,
    /// The members of the group.
    #[serde(default)]
    pub members: BTreeSet<NodeId>,
}
