//! Registers in objects of erasure-coded pools: an object has several cells, and a client writes or
//! reads one, so that a write changes a part of an object.

use bytes::Bytes;

use crate::rng::mix;

/// Cells of an object.
pub const CELLS: u64 = 4;

/// The bytes of a cell that stand for a value.
pub fn content(value: u64, length: u64) -> Vec<u8> {
    (0..length).map(|i| word(value, i / 8)[(i % 8) as usize]).collect()
}

fn word(value: u64, at: u64) -> [u8; 8] {
    if at == 0 { value.to_le_bytes() } else { mix(value ^ at).to_le_bytes() }
}

/// The value of a cell; `None` if all of it is zero. `Err` if its bytes are of several.
pub fn value_of(bytes: &[u8], length: u64) -> Result<Option<u64>, String> {
    if bytes.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    let first = bytes.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let value = first.ok_or("a cell without its first word")?;
    let expected = content(value, length);
    match bytes.iter().zip(&expected).position(|(a, b)| a != b) {
        _ if bytes.len() as u64 != length => {
            Err(format!("{} bytes of a cell of {length}", bytes.len()))
        }
        None => Ok(Some(value)),
        Some(at) => Err(format!("a cell of {value} is torn at byte {at} of {length}")),
    }
}

/// The omap row of a cell that has a value.
pub fn row(cell: u64) -> Bytes {
    Bytes::from(format!("cell{cell}"))
}

/// The value of a row.
pub fn row_value(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_two_values_is_told() {
        let mut cell = content(7, 100);
        assert_eq!(value_of(&cell, 100), Ok(Some(7)));
        cell[64..].copy_from_slice(&content(9, 100)[64..]);
        assert!(value_of(&cell, 100).unwrap_err().contains("torn at byte 64"));
        cell[64..].fill(0);
        assert!(value_of(&cell, 100).is_err() && value_of(&cell[..64], 100).is_err());
        assert_eq!(value_of(&[0; 100], 100), Ok(None));
    }
}
