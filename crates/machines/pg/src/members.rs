//! Up and acting sets.

use std::ops::Deref;

use types::{OsdId, PgShard, ShardId};

/// The copies that an up or acting set names.
///
/// Dereferences to its members: in a replicated pool in the order of the set, otherwise in that of
/// their positions. A position that no OSD holds is a hole. A hole is no member, but it is kept,
/// and shows in [`Members::slots`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Members {
    shards: Vec<PgShard>,
    /// How many positions there are, holes included; `None` in a replicated pool.
    width: Option<usize>,
}

impl Members {
    /// Members without positions. Holes are left out.
    pub fn whole(osds: impl IntoIterator<Item = OsdId>) -> Self {
        let some = osds.into_iter().filter(|o| o.is_some());
        Self { shards: some.map(PgShard::from).collect(), width: None }
    }

    /// One member for each position, in order; [`OsdId::NONE`] is a hole.
    pub fn positioned(osds: impl IntoIterator<Item = OsdId>) -> Self {
        let mut width = 0;
        let mut shards = Vec::new();
        for (position, osd) in osds.into_iter().enumerate() {
            // As many as a shard's number can tell: Ceph's `shard_id_t` has seven bits for it.
            let Ok(position) = i8::try_from(position) else { break };
            width += 1;
            if osd.is_some() {
                shards.push(PgShard { osd, shard: ShardId(position) });
            }
        }
        Self { shards, width: Some(width) }
    }

    /// The set as maps show it, holes included.
    pub fn slots(&self) -> Vec<OsdId> {
        let Some(width) = self.width else { return self.osds().collect() };
        let mut slots = vec![OsdId::NONE; width];
        for member in &self.shards {
            if let Some(slot) = usize::try_from(member.shard.0).ok().and_then(|i| slots.get_mut(i))
            {
                *slot = member.osd;
            }
        }
        slots
    }

    /// How many positions there are, holes included; `None` in a replicated pool.
    pub fn width(&self) -> Option<usize> {
        self.width
    }

    /// A set of the same pool with these members.
    pub fn of_same_pool(&self, mut shards: Vec<PgShard>) -> Self {
        if self.width.is_some() {
            shards.sort_by_key(|s| s.shard);
        }
        Self { shards, width: self.width }
    }

    /// OSDs of the members.
    pub fn osds(&self) -> impl Iterator<Item = OsdId> {
        self.shards.iter().map(|s| s.osd)
    }

    /// The copy that the set names on an OSD, if it names one.
    pub fn on(&self, osd: OsdId) -> Option<PgShard> {
        self.shards.iter().copied().find(|s| s.osd == osd)
    }

    /// The set without a member: with positions, a hole is left.
    pub fn without(mut self, member: PgShard) -> Self {
        self.shards.retain(|s| *s != member);
        self
    }
}

impl Deref for Members {
    type Target = [PgShard];

    fn deref(&self) -> &[PgShard] {
        &self.shards
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_kept_where_positions_count() {
        let osds = [OsdId(4), OsdId::NONE, OsdId(2), OsdId::NONE];
        let whole = Members::whole(osds);
        assert_eq!(whole.slots(), [OsdId(4), OsdId(2)]);
        assert_eq!(whole.on(OsdId(2)), Some(PgShard::from(OsdId(2))));
        let shards = Members::positioned(osds);
        assert_eq!((shards.len(), shards.slots()), (2, osds.to_vec()));
        let two = PgShard { osd: OsdId(2), shard: ShardId(2) };
        assert_eq!(shards.on(OsdId(2)), Some(two));
        assert_eq!(shards.without(two).slots(), [OsdId(4), OsdId::NONE, OsdId::NONE, OsdId::NONE]);
        assert_eq!(Members::positioned(vec![OsdId(1); 1000]).slots().len(), 128);
    }
}
