//! Which OSD instantiates a PG that no OSD has yet.
//!
//! OSDs are not told to create PGs: they see it in the maps. A PG is born in the first epoch in
//! which its pool exists and its acting set is not empty; the OSDs that act in that epoch
//! instantiate it, however late they process the map. An OSD that acts later learns of the PG from
//! them, by a message. An OSD must have made the new PGs durable before it records that it
//! processed the map.

use denc_derive::Denc;
use types::{OsdId, PgId, PgShard, PoolId, SpgId};

use crate::info::PgInfo;
use crate::map::MapView;
use crate::msg::{PeerHeader, PeerMsg, Query};
use crate::past_intervals::{PastIntervals, place};

/// PGs that had no acting OSD in any map so far: the host keeps one for all pools, feeds it every
/// map in order, and stores it with the map epoch that it processed.
#[derive(Denc, Clone, PartialEq, Eq, Debug, Default)]
#[denc(version = 1, compat = 1)]
pub struct UnbornPgs {
    /// PGs without a birth epoch.
    waiting: Vec<PgId>,
    /// Pools seen, with the `pg_num` they had.
    pools: Vec<(PoolId, u32)>,
}

impl UnbornPgs {
    /// Processes the next map. `pools` are the pools of that map. Returns the copies that `me` must
    /// instantiate with [`Pg::create`](crate::Pg::create) in this epoch.
    ///
    /// If the host cannot get the maps from a pool's creation on (they were trimmed, which means
    /// that the PGs were clean once), it calls [`UnbornPgs::skip`] for the first map it has.
    pub fn advance(&mut self, me: OsdId, map: &dyn MapView, pools: &[PoolId]) -> Vec<SpgId> {
        self.discover(map, pools);
        let mut mine = Vec::new();
        self.waiting.retain(|&pgid| match place(map, pgid) {
            None => false,
            Some((mapping, _)) => {
                if let Some(copy) = mapping.acting.on(me) {
                    mine.push(SpgId { pgid, shard: copy.shard });
                }
                mapping.acting.is_empty()
            }
        });
        mine
    }

    /// Takes all PGs of this map for born elsewhere.
    pub fn skip(&mut self, map: &dyn MapView, pools: &[PoolId]) {
        self.discover(map, pools);
        self.waiting.clear();
    }

    /// PGs that no OSD could instantiate yet.
    pub fn waiting(&self) -> &[PgId] {
        &self.waiting
    }

    fn discover(&mut self, map: &dyn MapView, pools: &[PoolId]) {
        self.pools.retain(|(pool, _)| pools.contains(pool));
        for &pool in pools {
            let Some(view) = map.pool(pool) else { continue };
            if let Some((_, known)) = self.pools.iter_mut().find(|(p, _)| *p == pool) {
                // A grown pg_num is a split, not a birth: what comes out of a PG that no OSD has
                // yet, no OSD has.
                let old = std::mem::replace(known, view.pg_num);
                let unborn = self.waiting.iter().filter(|p| p.pool == pool);
                let children: Vec<_> =
                    unborn.flat_map(|p| p.split_children(old, view.pg_num)).collect();
                self.waiting.extend(children);
                continue;
            }
            self.pools.push((pool, view.pg_num));
            self.waiting.extend((0..view.pg_num).map(|seed| PgId { pool, seed }));
        }
    }
}

/// What to do with a message for a PG that this OSD does not have.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and rare")]
pub enum Stranger {
    /// Instantiate the PG with [`Pg::adopt`](crate::Pg::adopt), then hand it the message.
    Adopt,
    /// Send this answer.
    Answer(PeerHeader, PeerMsg),
    /// Drop it.
    Drop,
    /// Fetch the maps up to `header.sent`, process them, then ask again.
    WaitForMap,
}

/// Decides what to do with a message for a PG that this OSD does not have.
pub fn stranger(
    me: OsdId,
    from: OsdId,
    header: &PeerHeader,
    msg: &PeerMsg,
    map: &dyn MapView,
) -> Stranger {
    if header.sent > map.epoch() {
        return Stranger::WaitForMap;
    }
    let Some((mapping, _)) = place(map, header.pgid) else { return Stranger::Drop };
    let (me, from) = (PgShard { osd: me, shard: header.to }, header.sender(from));
    let answer_header = PeerHeader {
        pgid: header.pgid,
        from: header.to,
        to: header.from,
        sent: map.epoch(),
        asked: header.sent,
    };
    let nothing =
        |history| PgInfo { pgid: header.pgid, shard: me.shard, history, ..PgInfo::default() };
    // Intervals may have come and gone between the sender's map and ours, and a copy must know them
    // all. So a copy is only made from a message of exactly our epoch; otherwise the sender is made
    // to look again.
    let same_epoch = header.sent == map.epoch();
    match msg {
        // The sender has the PG and takes this OSD for its primary, rightly.
        PeerMsg::Notify { info, .. }
            if mapping.primary == Some(me) && info.history.epoch_created.0 > 0 =>
        {
            if same_epoch {
                return Stranger::Adopt;
            }
            let again = PeerMsg::Query { query: Query::Info, history: Default::default() };
            Stranger::Answer(PeerHeader { asked: map.epoch(), ..answer_header }, again)
        }
        // The primary makes us a replica.
        PeerMsg::Activate { info, .. }
            if mapping.primary == Some(from) && mapping.acting.contains(&me) =>
        {
            if same_epoch {
                return Stranger::Adopt;
            }
            let not_yet = PeerMsg::Notify {
                info: nothing(info.history),
                past: PastIntervals::default(),
                promises: Vec::new(),
            };
            Stranger::Answer(PeerHeader { asked: map.epoch(), ..answer_header }, not_yet)
        }
        // The primary wants to fill a copy here.
        PeerMsg::StartBackfill { info, .. }
            if mapping.primary == Some(from) && mapping.up.contains(&me) =>
        {
            if same_epoch {
                return Stranger::Adopt;
            }
            let not_yet = PeerMsg::Notify {
                info: nothing(info.history),
                past: PastIntervals::default(),
                promises: Vec::new(),
            };
            Stranger::Answer(PeerHeader { asked: map.epoch(), ..answer_header }, not_yet)
        }
        PeerMsg::Query { query: Query::Info, history } if mapping.primary == Some(from) => {
            Stranger::Answer(
                answer_header,
                PeerMsg::Notify {
                    info: nothing(*history),
                    past: PastIntervals::default(),
                    promises: Vec::new(),
                },
            )
        }
        PeerMsg::Query { query: Query::Log(_), history } if mapping.primary == Some(from) => {
            let (log, missing, undo) = Default::default();
            let info = nothing(*history);
            Stranger::Answer(answer_header, PeerMsg::Log { info, log, missing, undo })
        }
        _ => Stranger::Drop,
    }
}
