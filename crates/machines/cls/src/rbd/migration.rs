//! Migration of an image: the row `migration` of its header at either end, and a mark that keeps
//! clients away that know nothing of it. In the second format the mark is a feature; in the first,
//! another text in front of the header.

use super::features;
use super::omap::{find_key, has_key, read_key, remove_key, write_key};
use super::types::{MigrationHeaderType, MigrationSpec, MigrationState};
use super::v1::{self, HeaderText};
use crate::context::Object;
use crate::method::{Ignored, encode};
use bytes::Bytes;
use types::errno::Errno;

const KEY: &[u8] = b"migration";

/// Begins a migration; EEXIST if one is under way.
pub async fn migration_set(object: Object<'_>, spec: MigrationSpec) -> Result<(), Errno> {
    if has_key(&mut *object, KEY).await? {
        return Err(Errno::EEXIST);
    }
    match find_key::<u64>(&mut *object, b"features").await? {
        None => {
            if v1::read_text(&mut *object).await? == HeaderText::Migrating {
                return Err(Errno::EEXIST);
            }
            // A destination is always made in the second format.
            if spec.header_type != MigrationHeaderType::SRC {
                return Err(Errno::EINVAL);
            }
            object.write(0, HeaderText::Migrating.stored()).await?;
        }
        Some(features) if features & features::MIGRATING != 0 => {
            if spec.header_type != MigrationHeaderType::DST {
                return Err(Errno::EEXIST);
            }
        }
        Some(features) => {
            write_key(&mut *object, b"features", &(features | features::MIGRATING)).await?
        }
    }
    write_key(object, KEY, &spec).await
}

/// The migration that is under way; EINVAL if none is.
async fn read(object: Object<'_>) -> Result<MigrationSpec, Errno> {
    let marked = match find_key::<u64>(&mut *object, b"features").await? {
        None => v1::read_text(&mut *object).await? == HeaderText::Migrating,
        Some(features) => features & features::MIGRATING != 0,
    };
    if !marked {
        return Err(Errno::EINVAL);
    }
    read_key(object, KEY).await
}

/// How far the migration has come. Input: the state, and the same for people.
pub async fn migration_set_state(
    object: Object<'_>,
    (state, description): (MigrationState, Bytes),
) -> Result<(), Errno> {
    let mut spec = read(&mut *object).await?;
    spec.state = state;
    spec.state_description = description;
    write_key(object, KEY, &spec).await
}

/// The migration.
pub async fn migration_get(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    Ok(encode(&read(object).await?))
}

/// Ends the migration.
pub async fn migration_remove(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    remove_key(&mut *object, KEY).await?;
    match find_key::<u64>(&mut *object, b"features").await? {
        None => match v1::read_text(&mut *object).await? {
            HeaderText::Migrating => object.write(0, HeaderText::Image.stored()).await,
            HeaderText::Image => Err(Errno::EINVAL),
        },
        Some(features) if features & features::MIGRATING != 0 => {
            write_key(object, b"features", &(features & !features::MIGRATING)).await
        }
        Some(_) => Ok(()),
    }
}
