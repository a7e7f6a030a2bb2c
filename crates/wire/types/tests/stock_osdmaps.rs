//! Every increment and every map that a stock 16.2.15 monitor wrote while it was given commands.
#![allow(missing_docs)]

use bytes::Bytes;
use denc::{Decode, Encode, Features, Reader};
use types::{OsdMap, OsdMapIncremental};

#[test]
fn each_increment_leads_to_the_monitors_next_map() {
    // Epoch, two lengths, the increment, the map; over and over.
    let mut r = Reader::new(Bytes::from_static(include_bytes!("data/osdmaps.bin")));
    let mut map = OsdMap::default();
    let mut epochs = 0;
    while r.left() > 0 {
        let (epoch, inc_len, map_len): (u32, u32, u32) = r.get().unwrap();
        let inc_bytes = r.bytes("increment", inc_len as usize).unwrap();
        let map_bytes = r.bytes("map", map_len as usize).unwrap();
        let inc = OsdMapIncremental::from_bytes(&inc_bytes).unwrap();
        let f = Features(inc.encode_features);
        assert_eq!(inc.epoch.0, epoch);
        assert!(inc.to_bytes(f) == inc_bytes, "increment {epoch} encodes to its bytes");
        map.apply_incremental(&inc).unwrap();
        let (ours, crc) = map.to_bytes_with_crc(f);
        let at = ours.iter().zip(&map_bytes).position(|(a, b)| a != b);
        assert!(
            ours == map_bytes,
            "map {epoch} (lengths {} and {}) differs at {at:?}",
            ours.len(),
            map_len
        );
        assert_eq!(inc.full_crc, Some(crc), "checksum of map {epoch}");
        let theirs = OsdMap::from_bytes(&map_bytes).unwrap();
        assert!(map == theirs, "map {epoch}");
        epochs += 1;
    }
    assert!(epochs >= 45, "only {epochs} epochs");
}
