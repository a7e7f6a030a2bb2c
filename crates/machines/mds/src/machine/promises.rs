//! What subvolumes are promised: requests each second, at least and at most, and a share of what is
//! left. Virtual attributes of a subvolume's root set it; it is in the log and the tables.

use super::Mds;
use super::operation::{Exec, fail};
use super::state::Open;
use crate::caps::Group;
use crate::types::{ClientId, Ino, Inode, Name, Promise, Space};
use bytes::Bytes;
use qos::{OpClass, Pace, TenantSpec};
use types::Errno;

/// The most requests each second that a promise may name.
const RATE_MAX: u64 = 1_000_000_000;
/// The largest weight.
const WEIGHT_MAX: u32 = 10_000;
/// What the names of the virtual attributes begin with.
pub(crate) const PREFIX: &str = "ceph.dmclock.";

impl Promise {
    /// The usual weight.
    pub const WEIGHT: u32 = TenantSpec::WEIGHT;

    /// What the scheduler is told.
    pub(crate) fn spec(&self) -> TenantSpec {
        let pace = |iops_milli| Pace { iops_milli, bps: 0 };
        TenantSpec {
            floor: pace(self.reservation_milli),
            weight: if self.weight == 0 { TenantSpec::WEIGHT } else { self.weight },
            ceiling: pace(self.limit_milli),
        }
    }

    /// Virtual attributes that say it.
    fn attributes(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if self.reservation_milli != 0 {
            all.push(("ceph.dmclock.mds_reservation", rate_text(self.reservation_milli)));
        }
        if self.weight != 0 {
            all.push(("ceph.dmclock.mds_weight", self.weight.to_string()));
        }
        if self.limit_milli != 0 {
            all.push(("ceph.dmclock.mds_limit", rate_text(self.limit_milli)));
        }
        all
    }
}

fn rate_text(milli: u64) -> String {
    match milli % 1_000 {
        0 => (milli / 1_000).to_string(),
        rest => format!("{}.{rest:03}", milli / 1_000),
    }
}

/// A rate as text, in thousandths.
fn rate(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || part.len() > 3 || !digits(whole) || !digits(part) {
        return None;
    }
    let whole: u64 = whole.parse().ok().filter(|n| *n <= RATE_MAX)?;
    let part: u64 = format!("{part:0<3}").parse().ok()?;
    Some(whole * 1_000 + part)
}

impl Open {
    pub(super) fn promised(&mut self, space: Space) {
        self.promises.insert(space);
    }
}

impl Mds {
    /// The subvolume of which a directory is the root: the one that was marked, or one in it, which
    /// is what clients mount.
    fn rooted(&self, ino: Ino) -> Option<Space> {
        let node = self.nodes.get(&ino).filter(|n| n.inode.is_dir())?;
        let of = |n: &super::node::Node| Some(n.inode.space).filter(|s| *s != Space(0));
        of(node).or_else(|| of(self.nodes.get(&node.parent.as_ref()?.0)?))
    }

    /// Sets a part of the promise to a subvolume or, without a value, takes it back.
    pub(crate) fn set_promise(
        &mut self,
        client: ClientId,
        ino: Ino,
        field: &str,
        value: Option<&Bytes>,
    ) -> Exec<()> {
        let Some(space) = self.rooted(ino) else { return fail(Errno::EINVAL) };
        let mut promise = self.promises.get(&space).copied().unwrap_or_default();
        let text = value.map_or(Some("0"), |v| std::str::from_utf8(v).ok());
        let Some(text) = text.map(|t| t.trim_end_matches('\0').trim()) else {
            return fail(Errno::EINVAL);
        };
        let number = match field {
            "mds_reservation" | "mds_limit" => rate(text),
            "mds_weight" => text.parse().ok().filter(|w| *w <= u64::from(WEIGHT_MAX)),
            _ => return fail(Errno::EINVAL),
        };
        let Some(number) = number else { return fail(Errno::EINVAL) };
        match field {
            "mds_reservation" => promise.reservation_milli = number,
            "mds_limit" => promise.limit_milli = number,
            _ => promise.weight = u32::try_from(number).unwrap_or(WEIGHT_MAX),
        }
        let (floor, ceiling) = (promise.reservation_milli, promise.limit_milli);
        if ceiling != 0 && floor > ceiling {
            return fail(Errno::EINVAL);
        }
        // Clients have the attributes in their caches.
        self.writes(client, ino, Group::Xattr);
        self.settled()?;
        promise.version += 1;
        self.promise(space, promise);
        Ok(())
    }

    /// Goes by a promise from now on.
    pub(crate) fn promise(&mut self, space: Space, promise: Promise) {
        self.promises.insert(space, promise);
        self.entrance.sched.set_tenant(OpClass::Client, space.0.into(), promise.spec(), self.now);
        self.log_promise(space);
    }

    /// Goes by the promises of the server before this one.
    pub(crate) fn adopt_promises(&mut self) {
        for (space, promise) in &self.promises {
            self.entrance.sched.set_tenant(
                OpClass::Client,
                space.0.into(),
                promise.spec(),
                self.now,
            );
        }
    }

    /// The subvolume is gone, and its number is not given out again.
    pub(crate) fn forget_promise(&mut self, space: Space) {
        if self.promises.remove(&space).is_some() {
            let spec = TenantSpec::default();
            self.entrance.sched.set_tenant(OpClass::Client, space.0.into(), spec, self.now);
            self.log_promise(space);
        }
    }

    /// An inode as clients see it: the root of a subvolume says what that is promised.
    pub(crate) fn shown(&self, ino: Ino) -> Option<Inode> {
        let mut inode = self.nodes.get(&ino)?.inode.clone();
        let promise = || self.promises.get(&self.rooted(ino)?);
        if inode.is_dir()
            && let Some(promise) = promise()
        {
            inode.xattr_version += promise.version;
            for (name, value) in promise.attributes() {
                inode.xattrs.insert(Name::from_static(name.as_bytes()), value.into());
            }
        }
        Some(inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_in_thousandths() {
        for (text, milli) in [
            ("0", Some(0)),
            ("100", Some(100_000)),
            ("0.5", Some(500)),
            ("12.345", Some(12_345)),
            ("1.2345", None),
            ("-1", None),
            ("", None),
            (".5", None),
            ("1e3", None),
            ("18446744073709551616", None),
            ("1000000001", None),
        ] {
            assert_eq!(rate(text), milli, "{text}");
        }
        for milli in [1_000, 500, 12_345, 100_000] {
            assert_eq!(rate(&rate_text(milli)), Some(milli));
        }
    }
}
