//! What is done to data objects of images.

use super::omap::check_exists;
use super::types::AssertSnapcSeqState;
use crate::context::Object;
use crate::method::Raw;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use types::errno::Errno;

/// Writes what the parent has in an object that the clone does not have yet. A clone that has it
/// has newer data.
pub async fn copyup(object: Object<'_>, Raw(data): Raw) -> Result<(), Errno> {
    if object.stat().await.is_ok() {
        return Ok(());
    }
    object.write(0, data).await
}

/// The same with the extents (offset and length) that are there, and their data one after the
/// other.
pub async fn sparse_copyup(
    object: Object<'_>,
    (extents, mut data): (BTreeMap<u64, u64>, Bytes),
) -> Result<(), Errno> {
    if check_exists(&mut *object).await.is_ok() {
        return Ok(());
    }
    if extents.is_empty() {
        return object.create(true).await;
    }
    for (offset, len) in extents {
        let len =
            usize::try_from(len).ok().filter(|&len| len <= data.len()).ok_or(Errno::EINVAL)?;
        object.write(offset, data.split_to(len)).await?;
    }
    Ok(())
}

/// ERANGE unless the snapshot context's newest snapshot is newer than the object's (or not, as
/// asked). An object that does not exist has none.
pub async fn assert_snapc_seq(
    object: Object<'_>,
    (seq, state): (u64, AssertSnapcSeqState),
) -> Result<(), Errno> {
    let exists = super::omap::optional(check_exists(&mut *object).await)?.is_some();
    let is_newer = !exists || seq > object.origin().snap_seq;
    let holds = match state {
        AssertSnapcSeqState::NEWER => is_newer,
        AssertSnapcSeqState::NOT_NEWER => !is_newer,
        _ => return Err(Errno::EOPNOTSUPP),
    };
    if holds { Ok(()) } else { Err(Errno::ERANGE) }
}

/// Gives back the space of zeros. Input: the smallest run of zeros worth it, in bytes, and whether
/// an object of zeros only is to be removed.
pub async fn sparsify(
    object: Object<'_>,
    (sparse_size, remove_empty): (u64, bool),
) -> Result<(), Errno> {
    let (size, _) = object.stat().await?;
    let data = if size == 0 { Bytes::new() } else { object.read(0, size).await? };
    if is_zero(&data) {
        if remove_empty {
            return object.remove().await;
        }
        return if data.is_empty() { Ok(()) } else { object.truncate(0).await };
    }
    if sparse_size == 0 {
        return Err(Errno::EINVAL);
    }
    let runs = runs_of_data(&data, usize::try_from(sparse_size).unwrap_or(usize::MAX));
    if runs.len() == 1 && runs[0] == (0..data.len()) {
        return Ok(());
    }
    object.truncate(0).await?;
    for run in runs {
        object.write(run.start as u64, data.slice(run)).await?;
    }
    Ok(())
}

fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|&b| b == 0)
}

/// Where data is that is not zero, in pieces of `piece` bytes.
fn runs_of_data(data: &[u8], piece: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for bytes in data.chunks(piece) {
        let end = start + bytes.len();
        if !is_zero(bytes) {
            match runs.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => runs.push(start..end),
            }
        }
        start = end;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::runs_of_data;

    #[test]
    fn runs_are_cut_at_whole_pieces() {
        assert_eq!(runs_of_data(&[0, 0, 1, 0, 1, 1, 0, 0, 5], 2), [2..6, 8..9]);
        assert_eq!(runs_of_data(&[1, 0, 0, 1], 2), std::slice::from_ref(&(0..4)));
        assert_eq!(runs_of_data(&[1; 5], usize::MAX), std::slice::from_ref(&(0..5)));
    }
}
