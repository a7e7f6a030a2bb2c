//! Decoders of what is read from the device: any bytes give a value or an error, never a panic, a
//! hang or an allocation out of proportion.

use crate::codec::{Put, Take};
use crate::onode::{Extent, Onode};
use crate::superblock::{LogPos, Superblock};
use crate::tree::{Node, NodePtr};
use crate::types::AllocHint;
use bytes::Bytes;
use proptest::prelude::*;

fn extent_list() -> impl Strategy<Value = Vec<Extent>> {
    prop::collection::vec(
        (0u32..50, any::<u32>(), 0u64..3, prop::collection::vec(any::<u32>(), 1..20)),
        0..12,
    )
    .prop_map(|parts| {
        let mut at = 0;
        parts
            .into_iter()
            .map(|(gap, pblk, family, crcs)| {
                let e = Extent { lblk: at + gap, pblk: pblk.into(), family, crcs };
                at = e.end();
                e
            })
            .collect()
    })
}

fn onode() -> impl Strategy<Value = Onode> {
    let attrs = prop::collection::btree_map(
        prop::collection::vec(any::<u8>(), 0..20),
        prop::collection::vec(any::<u8>(), 0..60),
        0..6,
    );
    (any::<u64>(), any::<u64>(), any::<(u64, u64, u32)>(), attrs, extent_list()).prop_map(
        |(size, omap, (object_size, write_size, flags), attrs, extents)| Onode {
            size,
            omap,
            hint: AllocHint { object_size, write_size, flags },
            attrs: attrs.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
            extents,
        },
    )
}

fn superblock() -> Superblock {
    Superblock {
        store_id: 77,
        label: Bytes::from_static(b"label"),
        device: 64 << 20,
        log_len: 4 << 20,
        generation: 12,
        tail: LogPos { at: 8192, seq: 44, prev_crc: 5 },
        next_id: 3,
        tree_blocks: 9,
        root: Some(NodePtr { runs: smallvec::smallvec![(5000, 2), (6000, 1)], crc: 1 }),
    }
}

proptest! {
    #[test]
    fn onode_round_trip(o in onode()) {
        let mut out = Vec::new();
        o.encode(&mut out);
        prop_assert_eq!(Onode::decode(&out.into()).unwrap(), o);
    }

    #[test]
    fn onode_decoder_takes_anything(o in onode(), edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8), cut in any::<prop::sample::Index>()) {
        let mut out = Vec::new();
        o.encode(&mut out);
        for (i, b) in edits {
            let i = i.index(out.len());
            out[i] = b;
        }
        out.truncate(1 + cut.index(out.len()));
        if let Ok(o) = Onode::decode(&out.into()) {
            prop_assert!(o.extents.windows(2).all(|w| w[0].end() <= w[1].lblk));
        }
    }

    #[test]
    fn decoders_take_random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let bytes = Bytes::from(bytes);
        let _ = Onode::decode(&bytes);
        let _ = NodePtr::decode(&mut Take::new(&bytes));
        let _ = Node::parse(bytes.clone());
        let _ = crate::log::records(&bytes);
        let mut block = bytes.to_vec();
        block.resize(4096, 0);
        let _ = Superblock::decode(&block.into());
        let mut r = Take::new(&bytes);
        while r.left() > 0 && r.var().is_ok() {}
    }

    #[test]
    fn node_parser_takes_damaged_nodes(level in 0u8..2, edits in prop::collection::vec((0usize..400, any::<u8>()), 1..6)) {
        let ptr = superblock().root;
        let mut value = Vec::new();
        if let Some(p) = &ptr {
            p.encode(&mut value);
        }
        let rows: Vec<(Bytes, Bytes)> =
            (0..9).map(|i| (Bytes::from(format!("prefix{i}")), Bytes::from(value.clone()))).collect();
        let whole = crate::tree::build_for_test(level, &rows);
        let node = Node::parse(Bytes::copy_from_slice(&whole)).unwrap();
        prop_assert_eq!((0..9).map(|i| (node.key(i), node.value(i))).collect::<Vec<_>>(), rows);
        let mut bytes = whole.to_vec();
        for (i, b) in edits {
            bytes[i] = b;
        }
        if let Ok(node) = Node::parse(bytes.into()) {
            for i in 0..node.len() {
                let _ = (node.key(i), node.value(i), node.find(&node.key(i)));
                if !node.is_leaf() {
                    let _ = node.child(i);
                }
            }
            let _ = node.lower_bound(b"prefix4");
        }
    }

    #[test]
    fn varints_round_trip(v in any::<u64>()) {
        let mut out = Vec::new();
        out.var(v);
        let out = Bytes::from(out);
        prop_assert_eq!(Take::new(&out).var().unwrap(), v);
    }

    #[test]
    fn a_damaged_superblock_is_refused(at in 0usize..4096, flip in 1u8..=255) {
        let whole = superblock().encode();
        prop_assert_eq!(Superblock::decode(&whole).unwrap(), superblock());
        let mut bytes = whole.to_vec();
        bytes[at] ^= flip;
        prop_assert!(Superblock::decode(&bytes.into()).is_err());
    }
}
