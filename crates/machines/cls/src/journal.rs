//! The header and the data objects of journals (Ceph: `cls/journal`).

use crate::context::Object;
use crate::method::{Class, Ignored, RD, RD_WR, decode, encode, method};
use bytes::Bytes;
use denc::{Decode, Encode};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "journal",
    methods: &[
        method!("create", RD_WR, create),
        method!("get_order", RD, get_order),
        method!("get_splay_width", RD, get_splay_width),
        method!("get_pool_id", RD, get_pool_id),
        method!("get_minimum_set", RD, get_minimum_set),
        method!("set_minimum_set", RD_WR, set_minimum_set),
        method!("get_active_set", RD, get_active_set),
        method!("set_active_set", RD_WR, set_active_set),
        method!("get_client", RD, get_client),
        method!("client_register", RD_WR, client_register),
        method!("client_update_data", RD_WR, client_update_data),
        method!("client_update_state", RD_WR, client_update_state),
        method!("client_unregister", RD_WR, client_unregister),
        method!("client_commit", RD_WR, client_commit),
        method!("client_list", RD, client_list),
        method!("get_next_tag_tid", RD, get_next_tag_tid),
        method!("get_tag", RD, get_tag),
        method!("tag_create", RD_WR, tag_create),
        method!("tag_list", RD, tag_list),
        method!("guard_append", RD_WR, guard_append),
        method!("append", RD_WR, append),
    ],
};

const ORDER: &[u8] = b"order";
const SPLAY_WIDTH: &[u8] = b"splay_width";
const POOL_ID: &[u8] = b"pool_id";
const MINIMUM_SET: &[u8] = b"minimum_set";
const ACTIVE_SET: &[u8] = b"active_set";
const NEXT_TAG_TID: &[u8] = b"next_tag_tid";
const NEXT_TAG_CLASS: &[u8] = b"next_tag_class";
const CLIENT_PREFIX: &[u8] = b"client_";
const TAG_PREFIX: &[u8] = b"tag_";

/// Rows read at a time.
const PAGE: u64 = 64;
/// Clients read at a time.
const CLIENTS: u64 = 256;
/// The release from which on clients know that appended data may be followed by zeros.
const OCTOPUS: u8 = 15;

/// An entry's place (Ceph: `cls::journal::ObjectPosition`, `cls/journal/cls_journal_types.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjectPosition {
    /// The data object.
    pub object_number: u64,
    /// The entry's tag.
    pub tag_tid: u64,
    /// The entry.
    pub entry_tid: u64,
}

/// How far a client is (Ceph: `cls::journal::ObjectSetPosition`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjectSetPosition {
    /// The latest first.
    pub object_positions: Vec<ObjectPosition>,
}

/// Whether a client counts (Ceph: `cls::journal::ClientState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct ClientState(pub u8);

impl ClientState {
    /// Nothing that it still needs is removed.
    pub const CONNECTED: ClientState = ClientState(0);
    /// It is not waited for.
    pub const DISCONNECTED: ClientState = ClientState(1);
}

/// A reader of the journal (Ceph: `cls::journal::Client`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Client {
    /// Its name.
    pub id: Bytes,
    /// Anything.
    pub data: Bytes,
    /// How far it is.
    pub commit_position: ObjectSetPosition,
    /// Whether it counts.
    pub state: ClientState,
}

/// What entries are marked with (Ceph: `cls::journal::Tag`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Tag {
    /// Its number.
    pub tid: u64,
    /// Tags of one class replace each other.
    pub tag_class: u64,
    /// Anything.
    pub data: Bytes,
}

/// Asks for a tag class of its own (Ceph: `Tag::TAG_CLASS_NEW`).
pub const TAG_CLASS_NEW: u64 = u64::MAX;

fn client_key(id: &[u8]) -> Vec<u8> {
    [CLIENT_PREFIX, id].concat()
}

fn tag_key(tid: u64) -> Vec<u8> {
    [TAG_PREFIX, format!("{tid:016x}").as_bytes()].concat()
}

/// A row; ENOENT if there is none, EINVAL if it cannot be read.
async fn load<T: Decode>(object: Object<'_>, key: &[u8]) -> Result<T, Errno> {
    decode(object.map_get_val(key).await?, Errno::EINVAL)
}

async fn store<T: Encode>(object: Object<'_>, key: &[u8], value: &T) -> Result<(), Errno> {
    object.map_set_val(key, encode(value)).await
}

/// EEXIST if there is such a row.
async fn absent(object: Object<'_>, key: &[u8]) -> Result<(), Errno> {
    match object.map_get_val(key).await {
        Ok(_) => Err(Errno::EEXIST),
        Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Rows in key order, a page at a time.
struct Rows {
    prefix: &'static [u8],
    after: Bytes,
    more: bool,
}

impl Rows {
    fn new(prefix: &'static [u8]) -> Self {
        Rows { prefix, after: Bytes::new(), more: true }
    }

    /// The next page; `None` after the last.
    async fn next<T: Decode>(
        &mut self,
        object: Object<'_>,
    ) -> Result<Option<Vec<(Bytes, T)>>, Errno> {
        if !self.more {
            return Ok(None);
        }
        let page = match object.map_get_vals(&self.after, self.prefix, PAGE).await {
            Err(Errno::ENOENT) => return Ok(None),
            other => other?,
        };
        let Some((last, _)) = page.rows.last_key_value() else { return Ok(None) };
        self.after = last.clone();
        self.more = page.more;
        page.rows
            .into_iter()
            .map(|(k, v)| Ok((k, decode(v, Errno::EIO)?)))
            .collect::<Result<_, _>>()
            .map(Some)
    }
}

async fn create(
    object: Object<'_>,
    (order, splay_width, pool_id): (u8, u8, i64),
) -> Result<(), Errno> {
    absent(object, ORDER).await?;
    let number = encode(&0u64);
    let rows = [
        (ORDER, encode(&order)),
        (SPLAY_WIDTH, encode(&splay_width)),
        (POOL_ID, encode(&pool_id)),
        (ACTIVE_SET, number.clone()),
        (MINIMUM_SET, number.clone()),
        (NEXT_TAG_TID, number.clone()),
        (NEXT_TAG_CLASS, number),
    ];
    object.map_set_vals(rows.map(|(k, v)| (Bytes::from_static(k), v)).into()).await
}

/// A row as it was read, so that bytes after it are left away.
async fn get<T: Decode + Encode>(object: Object<'_>, key: &[u8]) -> Result<Bytes, Errno> {
    Ok(encode(&load::<T>(object, key).await?))
}

async fn get_order(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    get::<u8>(object, ORDER).await
}

async fn get_splay_width(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    get::<u8>(object, SPLAY_WIDTH).await
}

async fn get_pool_id(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    get::<i64>(object, POOL_ID).await
}

async fn get_minimum_set(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    get::<u64>(object, MINIMUM_SET).await
}

async fn get_active_set(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    get::<u64>(object, ACTIVE_SET).await
}

/// Moves a set forward; ESTALE if it would go back.
async fn advance(object: Object<'_>, key: &[u8], set: u64) -> Result<(), Errno> {
    let current: u64 = load(object, key).await?;
    match set.cmp(&current) {
        std::cmp::Ordering::Less => Err(Errno::ESTALE),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => store(object, key, &set).await,
    }
}

async fn set_minimum_set(object: Object<'_>, set: u64) -> Result<(), Errno> {
    if load::<u64>(object, ACTIVE_SET).await? < set {
        return Err(Errno::EINVAL);
    }
    advance(object, MINIMUM_SET, set).await
}

async fn set_active_set(object: Object<'_>, set: u64) -> Result<(), Errno> {
    if load::<u64>(object, MINIMUM_SET).await? > set {
        return Err(Errno::EINVAL);
    }
    advance(object, ACTIVE_SET, set).await
}

async fn get_client(object: Object<'_>, id: Bytes) -> Result<Bytes, Errno> {
    get::<Client>(object, &client_key(&id)).await
}

/// Up to `max` clients that come after the named one.
async fn clients(object: Object<'_>, after: &[u8], max: u64) -> Result<Vec<Client>, Errno> {
    let after = if after.is_empty() { Vec::new() } else { client_key(after) };
    let page = object.map_get_vals(&after, CLIENT_PREFIX, max).await?;
    page.rows.into_values().map(|v| decode(v, Errno::EIO)).collect()
}

/// How far the client is that is behind all others; a client that has committed nothing is further
/// behind than any.
async fn minimum_position(object: Object<'_>) -> Result<ObjectSetPosition, Errno> {
    let mut minimum: Option<(u64, u64)> = None;
    let mut found = ObjectSetPosition::default();
    let mut after = Bytes::new();
    loop {
        let batch = clients(object, &after, CLIENTS).await?;
        let Some(last) = batch.last() else { return Ok(found) };
        after = last.id.clone();
        let full = batch.len() as u64 >= CLIENTS;
        for client in batch {
            let Some(first) = client.commit_position.object_positions.first() else {
                found = ObjectSetPosition::default();
                break;
            };
            let at = (first.tag_tid, first.entry_tid);
            if minimum.is_none_or(|m| at < m) {
                minimum = Some(at);
                found = client.commit_position;
            }
        }
        if !full {
            return Ok(found);
        }
    }
}

async fn client_register(object: Object<'_>, (id, data): (Bytes, Bytes)) -> Result<(), Errno> {
    load::<u8>(object, ORDER).await?;
    let key = client_key(&id);
    absent(object, &key).await?;
    let commit_position = minimum_position(object).await?;
    store(object, &key, &Client { id, data, commit_position, state: ClientState::CONNECTED }).await
}

async fn client_update_data(object: Object<'_>, (id, data): (Bytes, Bytes)) -> Result<(), Errno> {
    let key = client_key(&id);
    let client: Client = load(object, &key).await?;
    store(object, &key, &Client { data, ..client }).await
}

async fn client_update_state(
    object: Object<'_>,
    (id, state): (Bytes, ClientState),
) -> Result<(), Errno> {
    let key = client_key(&id);
    let client: Client = load(object, &key).await?;
    store(object, &key, &Client { state, ..client }).await
}

async fn client_unregister(object: Object<'_>, id: Bytes) -> Result<(), Errno> {
    let key = client_key(&id);
    object.map_get_val(&key).await?;
    object.map_remove_key(&key).await?;
    expire_tags(object, Some(&id)).await
}

async fn client_commit(
    object: Object<'_>,
    (id, position): (Bytes, ObjectSetPosition),
) -> Result<(), Errno> {
    let splay_width: u8 = load(object, SPLAY_WIDTH).await?;
    if position.object_positions.len() > splay_width.into() {
        return Err(Errno::EINVAL);
    }
    let key = client_key(&id);
    let client: Client = load(object, &key).await?;
    if client.commit_position == position {
        return Ok(());
    }
    store(object, &key, &Client { commit_position: position, ..client }).await
}

async fn client_list(object: Object<'_>, (after, max): (Bytes, u64)) -> Result<Bytes, Errno> {
    Ok(encode(&clients(object, &after, max).await?))
}

async fn get_next_tag_tid(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    get::<u64>(object, NEXT_TAG_TID).await
}

async fn get_tag(object: Object<'_>, tid: u64) -> Result<Bytes, Errno> {
    get::<Tag>(object, &tag_key(tid)).await
}

/// For each class the newest tag that is not after `last`: older ones of the class are not used any
/// more.
async fn newest_of_classes(object: Object<'_>, last: u64) -> Result<BTreeMap<u64, u64>, Errno> {
    let mut newest = BTreeMap::new();
    let mut rows = Rows::new(TAG_PREFIX);
    while let Some(page) = rows.next::<Tag>(object).await? {
        for (_, tag) in page {
            newest.insert(tag.tag_class, tag.tid);
            if tag.tid >= last {
                return Ok(newest);
            }
        }
    }
    Ok(newest)
}

/// The oldest tag of what a client has committed.
fn oldest_tag(client: &Client) -> Option<u64> {
    client.commit_position.object_positions.iter().map(|p| p.tag_tid).min()
}

/// Removes tags that no client needs; `leaving` is on its way out and does not count.
async fn expire_tags(object: Object<'_>, leaving: Option<&Bytes>) -> Result<(), Errno> {
    let leaving = leaving.map(|id| client_key(id));
    let mut minimum: Option<u64> = None;
    let mut rows = Rows::new(CLIENT_PREFIX);
    while let Some(page) = rows.next::<Client>(object).await? {
        for (key, client) in page {
            if leaving.as_deref() == Some(&key[..]) || client.state == ClientState::DISCONNECTED {
                continue;
            }
            // A reader that has not committed anything may need everything.
            let Some(oldest) = oldest_tag(&client) else { return Ok(()) };
            minimum = Some(minimum.map_or(oldest, |m| m.min(oldest)));
        }
    }
    let Some(minimum) = minimum.filter(|m| *m != u64::MAX) else { return Ok(()) };
    let newest = newest_of_classes(object, minimum).await?;
    let mut rows = Rows::new(TAG_PREFIX);
    while let Some(page) = rows.next::<Tag>(object).await? {
        for (key, tag) in page {
            if key != tag_key(tag.tid) {
                return Err(Errno::EINVAL);
            }
            if newest.get(&tag.tag_class).is_some_and(|n| tag.tid < *n) {
                object.map_remove_key(&key).await?;
            }
            if tag.tid >= minimum {
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn tag_create(
    object: Object<'_>,
    (tid, tag_class, data): (u64, u64, Bytes),
) -> Result<(), Errno> {
    let key = tag_key(tid);
    absent(object, &key).await?;
    if tid != load::<u64>(object, NEXT_TAG_TID).await? {
        return Err(Errno::ESTALE);
    }
    let next_class: u64 = load(object, NEXT_TAG_CLASS).await?;
    let tag_class = if tag_class == TAG_CLASS_NEW {
        store(object, NEXT_TAG_CLASS, &next_class.wrapping_add(1)).await?;
        next_class
    } else if tag_class < next_class {
        tag_class
    } else {
        return Err(Errno::EINVAL);
    };
    expire_tags(object, None).await?;
    store(object, NEXT_TAG_TID, &tid.wrapping_add(1)).await?;
    store(object, &key, &Tag { tid, tag_class, data }).await
}

/// Input of `tag_list`: after which tag, how many, of which client and class.
type TagListInput = ((u64, u64), (Bytes, Option<u64>));

async fn tag_list(
    object: Object<'_>,
    ((after, max), (client, class)): TagListInput,
) -> Result<Bytes, Errno> {
    let client: Client = load(object, &client_key(&client)).await?;
    // Tags that are older than what the client has committed, and replaced by then, are not shown.
    let newest = match oldest_tag(&client).filter(|t| *t != u64::MAX) {
        Some(oldest) => newest_of_classes(object, oldest).await?,
        None => BTreeMap::new(),
    };
    let mut found: Vec<Tag> = Vec::new();
    let mut rows = Rows::new(TAG_PREFIX);
    'all: while let Some(page) = rows.next::<Tag>(object).await? {
        for (_, tag) in page {
            if after != 0 && tag.tid <= after {
                continue;
            }
            let replaced = newest.get(&tag.tag_class).is_some_and(|n| tag.tid < *n);
            if !replaced && class.is_none_or(|c| c == tag.tag_class) {
                found.push(tag);
            }
            if found.len() as u64 >= max {
                break 'all;
            }
        }
    }
    Ok(encode(&found))
}

/// EOVERFLOW if the object is full.
async fn guard_append(object: Object<'_>, soft_max_size: u64) -> Result<(), Errno> {
    match object.stat().await {
        Ok((size, _)) if size >= soft_max_size => Err(Errno::EOVERFLOW),
        Ok(_) | Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Appends, and fills up what the store would allocate anyway, so that later appends begin at such
/// a boundary.
async fn append(object: Object<'_>, (soft_max_size, data): (u64, Bytes)) -> Result<(), Errno> {
    let size = match object.stat().await {
        Ok((size, _)) => size,
        Err(Errno::ENOENT) => 0,
        Err(e) => return Err(e),
    };
    if size >= soft_max_size {
        return Err(Errno::EOVERFLOW);
    }
    let end = size.saturating_add(data.len() as u64);
    object.write(size, data).await?;
    let origin = object.origin();
    if origin.min_compat_client < OCTOPUS {
        return Ok(());
    }
    let unit = if origin.min_alloc_size == 0 { 8 } else { origin.min_alloc_size };
    let unit =
        if origin.stripe_width == 0 { unit } else { unit.next_multiple_of(origin.stripe_width) };
    let padded = end.next_multiple_of(unit);
    if padded == end { Ok(()) } else { object.truncate(padded).await }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;

    fn journal() -> TestObject {
        let mut o = TestObject::new();
        o.exec("journal", "create", &(2u8, 4u8, -1i64)).unwrap();
        o
    }

    fn id(s: &'static str) -> Bytes {
        Bytes::from_static(s.as_bytes())
    }

    fn register(o: &mut TestObject, name: &'static str) -> Result<(), Errno> {
        o.exec("journal", "client_register", &(id(name), id("data"))).map(drop)
    }

    fn position(tags: &[u64]) -> ObjectSetPosition {
        let at = |&tag_tid: &u64| ObjectPosition { object_number: 1, tag_tid, entry_tid: 7 };
        ObjectSetPosition { object_positions: tags.iter().map(at).collect() }
    }

    fn commit(o: &mut TestObject, name: &'static str, tags: &[u64]) -> Result<(), Errno> {
        o.exec("journal", "client_commit", &(id(name), position(tags))).map(drop)
    }

    fn new_tag(o: &mut TestObject, tid: u64, class: u64) -> Result<(), Errno> {
        o.exec("journal", "tag_create", &(tid, class, id("t"))).map(drop)
    }

    fn tids(
        o: &mut TestObject,
        client: &'static str,
        after: u64,
        max: u64,
        class: Option<u64>,
    ) -> Vec<u64> {
        let tags: Vec<Tag> =
            o.query("journal", "tag_list", &((after, max), (id(client), class))).unwrap();
        tags.iter().map(|t| t.tid).collect()
    }

    #[test]
    fn a_journal_is_created_once() {
        let mut o = TestObject::new();
        assert_eq!(o.call("journal", "get_order", "").unwrap_err(), Errno::ENOENT);
        let mut o2 = journal();
        std::mem::swap(&mut o, &mut o2);
        assert_eq!(o.exec("journal", "create", &(1u8, 1u8, 1i64)), Err(Errno::EEXIST));
        assert_eq!(o.query::<_, u8>("journal", "get_order", &()).unwrap(), 2);
        assert_eq!(o.query::<_, u8>("journal", "get_splay_width", &()).unwrap(), 4);
        assert_eq!(o.query::<_, i64>("journal", "get_pool_id", &()).unwrap(), -1);
    }

    #[test]
    fn sets_go_forward_and_stay_in_order() {
        let mut o = journal();
        let set = |o: &mut TestObject, what: &str, n: u64| o.exec("journal", what, &n).map(drop);
        assert_eq!(set(&mut o, "set_minimum_set", 1), Err(Errno::EINVAL));
        set(&mut o, "set_active_set", 5).unwrap();
        set(&mut o, "set_active_set", 5).unwrap();
        assert_eq!(set(&mut o, "set_active_set", 4), Err(Errno::ESTALE));
        set(&mut o, "set_minimum_set", 3).unwrap();
        assert_eq!(set(&mut o, "set_minimum_set", 2), Err(Errno::ESTALE));
        assert_eq!(set(&mut o, "set_active_set", 2), Err(Errno::EINVAL));
        assert_eq!(o.query::<_, u64>("journal", "get_active_set", &()).unwrap(), 5);
        assert_eq!(o.query::<_, u64>("journal", "get_minimum_set", &()).unwrap(), 3);
    }

    #[test]
    fn clients_begin_where_the_last_one_is() {
        let mut none = TestObject::new();
        assert_eq!(register(&mut none, "a"), Err(Errno::ENOENT));
        let mut o = journal();
        register(&mut o, "a").unwrap();
        assert_eq!(register(&mut o, "a"), Err(Errno::EEXIST));
        commit(&mut o, "a", &[3]).unwrap();
        register(&mut o, "b").unwrap();
        commit(&mut o, "b", &[2]).unwrap();
        register(&mut o, "c").unwrap();
        let all: Vec<Client> = o.query("journal", "client_list", &(id(""), 10u64)).unwrap();
        assert_eq!(all.iter().map(|c| &c.id[..]).collect::<Vec<_>>(), [b"a", b"b", b"c"]);
        assert_eq!(all[2].commit_position, position(&[2]));
        let some: Vec<Client> = o.query("journal", "client_list", &(id("a"), 1u64)).unwrap();
        assert_eq!(some[0].id, "b");
        assert_eq!(commit(&mut o, "a", &[1, 1, 1, 1, 1]), Err(Errno::EINVAL));
        assert_eq!(commit(&mut o, "nobody", &[1]), Err(Errno::ENOENT));
        o.exec("journal", "client_update_data", &(id("a"), id("new"))).unwrap();
        o.exec("journal", "client_update_state", &(id("a"), 1u8)).unwrap();
        let a: Client = o.query("journal", "get_client", &id("a")).unwrap();
        assert_eq!((&a.data[..], a.state), (&b"new"[..], ClientState::DISCONNECTED));
        o.exec("journal", "client_unregister", &id("a")).unwrap();
        assert_eq!(o.exec("journal", "client_unregister", &id("a")), Err(Errno::ENOENT));
    }

    #[test]
    fn tags_are_numbered() {
        let mut o = journal();
        assert_eq!(new_tag(&mut o, 1, TAG_CLASS_NEW), Err(Errno::ESTALE));
        assert_eq!(new_tag(&mut o, 0, 0), Err(Errno::EINVAL));
        new_tag(&mut o, 0, TAG_CLASS_NEW).unwrap();
        assert_eq!(new_tag(&mut o, 0, TAG_CLASS_NEW), Err(Errno::EEXIST));
        new_tag(&mut o, 1, 0).unwrap();
        new_tag(&mut o, 2, TAG_CLASS_NEW).unwrap();
        assert_eq!(o.query::<_, u64>("journal", "get_next_tag_tid", &()).unwrap(), 3);
        let tag: Tag = o.query("journal", "get_tag", &2u64).unwrap();
        assert_eq!(tag, Tag { tid: 2, tag_class: 1, data: id("t") });
        assert_eq!(o.exec("journal", "get_tag", &3u64), Err(Errno::ENOENT));
    }

    #[test]
    fn tags_are_listed_from_where_a_client_is() {
        let mut o = journal();
        register(&mut o, "a").unwrap();
        for (tid, class) in [(0, TAG_CLASS_NEW), (1, 0), (2, TAG_CLASS_NEW), (3, 0), (4, 1)] {
            new_tag(&mut o, tid, class).unwrap();
        }
        assert_eq!(tids(&mut o, "a", 0, 100, None), [0, 1, 2, 3, 4]);
        assert_eq!(tids(&mut o, "a", 0, 2, None), [0, 1]);
        assert_eq!(tids(&mut o, "a", 1, 100, None), [2, 3, 4]);
        assert_eq!(tids(&mut o, "a", 0, 100, Some(1)), [2, 4]);
        commit(&mut o, "a", &[3]).unwrap();
        assert_eq!(tids(&mut o, "a", 0, 100, None), [2, 3, 4]);
        assert_eq!(
            o.exec("journal", "tag_list", &((0u64, 9u64), (id("nobody"), None::<u64>))),
            Err(Errno::ENOENT)
        );
    }

    #[test]
    fn tags_expire_when_no_client_needs_them() {
        let mut o = journal();
        register(&mut o, "a").unwrap();
        register(&mut o, "b").unwrap();
        // More than one page of tags.
        new_tag(&mut o, 0, TAG_CLASS_NEW).unwrap();
        (1..150).for_each(|tid| new_tag(&mut o, tid, 0).unwrap());
        let tags =
            |o: &TestObject| o.stored.omap.keys().filter(|k| k.starts_with(TAG_PREFIX)).count();
        commit(&mut o, "a", &[100]).unwrap();
        new_tag(&mut o, 150, 0).unwrap();
        assert_eq!(tags(&o), 151, "one client has committed nothing");
        commit(&mut o, "b", &[120, 30]).unwrap();
        new_tag(&mut o, 151, 0).unwrap();
        assert_eq!(tags(&o), 152 - 30);
        o.exec("journal", "client_unregister", &id("b")).unwrap();
        assert_eq!(tags(&o), 152 - 100);
        o.exec("journal", "client_update_state", &(id("a"), 1u8)).unwrap();
        new_tag(&mut o, 152, 0).unwrap();
        assert_eq!(tags(&o), 153 - 100, "without clients nothing expires");
    }

    #[test]
    fn appending() {
        let mut o = TestObject::new();
        let add = |o: &mut TestObject, max: u64, data: &'static str| {
            o.exec("journal", "append", &(max, id(data))).map(drop)
        };
        o.exec("journal", "guard_append", &1u64).unwrap();
        assert!(!o.stored.exists);
        add(&mut o, 10, "12345").unwrap();
        add(&mut o, 6, "678").unwrap();
        assert_eq!(o.stored.data, b"12345678");
        assert_eq!(add(&mut o, 8, "9"), Err(Errno::EOVERFLOW));
        assert_eq!(o.exec("journal", "guard_append", &8u64), Err(Errno::EOVERFLOW));
        o.exec("journal", "guard_append", &9u64).unwrap();
        o.origin.min_compat_client = OCTOPUS;
        add(&mut o, 100, "9").unwrap();
        assert_eq!(o.stored.data.len(), 4096);
        o.origin.stripe_width = 3000;
        add(&mut o, 5000, "0").unwrap();
        assert_eq!(o.stored.data.len(), 6000);
    }
}
