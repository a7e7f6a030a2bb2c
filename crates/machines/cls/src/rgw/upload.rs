//! Parts of uploads: a row for each (Ceph 18.2: `rgw_mp_upload_part_info_update`).

use super::rows;
use crate::context::Object;
use ::rgw::upload::{PartInfo, PartUpdateOp};
use types::errno::Errno;

/// Writes a part's row. Data of the part that it replaces stays, and is named in the row: the
/// gateway that completes or aborts the upload removes it. EEXIST if the part's own data is among
/// what was replaced.
pub(super) async fn update_part(object: Object<'_>, op: PartUpdateOp) -> Result<(), Errno> {
    let mut info = op.info;
    let stored: Option<PartInfo> = rows::optional(rows::read(object, &op.key).await)?;
    let mut past = info.past_prefixes.take().unwrap_or_default();
    if let Some(stored) = stored {
        if !stored.manifest.is_empty() {
            past.insert(stored.manifest.prefix);
        }
        past.extend(stored.past_prefixes.into_iter().flatten());
    }
    if past.contains(&info.manifest.prefix) {
        return Err(Errno::EEXIST);
    }
    info.past_prefixes = Some(past);
    rows::write(object, &op.key, &info).await
}
