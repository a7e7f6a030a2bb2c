//! Data of several operations in one message.

use messages::Op;

/// The store keeps blocks as they came. When the data of a message belongs to several operations,
/// pieces of up to this many bytes get memory of their own, or one block could keep a large message
/// in memory.
pub const SMALL_BYTES: usize = 64 << 10;

/// Gives each small piece of data memory of its own; see [`SMALL_BYTES`].
pub fn own_small_data(ops: &mut [Op]) {
    if ops.iter().filter(|o| !o.indata.is_empty()).count() < 2 {
        return;
    }
    for op in ops {
        if (aligned::PAGE..=SMALL_BYTES).contains(&op.indata.len()) {
            op.indata = aligned::AlignedBuf::copy_of(&op.indata).freeze();
        }
    }
}
