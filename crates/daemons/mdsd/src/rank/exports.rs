//! Clients that wait for capabilities of an inode that goes to another rank.
//!
//! An export takes the capability from a stock client, and does not wake what waits for more of it
//! there (16.2, client/Client.cc, `handle_cap_export`): an open file would stay as it is. An import
//! wakes it. So each export is followed by a capability that comes and goes at once. What waits
//! finds that it has none, and opens the file anew, with the other rank.
//!
//! If it looks between the two, it waits for what the import has promised. That takes an exact
//! moment each time, so it is done several times, and again later. A stock server names the
//! capability that the client has of the other rank instead; this one does not know it.

use super::Rank;
use super::sessions::tell;
use crate::convert;
use cephfs::caps::PIN;
use mds::{CapsMessage, CapsOp, ClientId};
use messages::CapOp;
use msgr::Connection;
use std::rc::Rc;
use std::time::Duration;

/// The capability that comes and goes has this bit in its number, which no other one has.
const PASSING: u64 = 1 << 63;
/// How often it does.
const TIMES: usize = 2;
/// When it does so again.
const LATER: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(3)];
/// When it is looked again whether the client has heard all.
const MOMENT: Duration = Duration::from_millis(5);

impl Rank {
    /// Takes a capability from a client, and has it look where the inode is.
    pub(super) fn export(&self, client: ClientId, conn: &Rc<Connection>, message: &CapsMessage) {
        self.say_caps(conn, message);
        // Nothing waits for capabilities of a file that is not open.
        if message.wanted == 0 {
            return;
        }
        self.wake(conn, message);
        let Some(me) = self.me.upgrade() else { return };
        let (conn, message) = (Rc::downgrade(conn), message.clone());
        tokio::task::spawn_local(async move {
            let ino = message.inode.ino;
            for pause in LATER {
                tokio::time::sleep(pause).await;
                // The inode may have come back meanwhile, and perhaps gone again, which the client
                // has not heard yet: it aborts when a capability comes beside the one that it has.
                loop {
                    let known = |core: &mds::Mds| {
                        (core.has_caps(client, ino), core.knows_of_no_caps(client, ino))
                    };
                    match me.look(known) {
                        Some((false, true)) => break,
                        Some((false, false)) => tokio::time::sleep(MOMENT).await,
                        Some((true, _)) | None => return,
                    }
                }
                let same = conn.upgrade().zip(me.conn(client)).filter(|(a, b)| Rc::ptr_eq(a, b));
                let Some((conn, _)) = same else { return };
                me.wake(&conn, &message);
            }
        });
    }

    /// A capability comes, and goes.
    fn wake(&self, conn: &Connection, message: &CapsMessage) {
        let cap_id = message.cap_id | PASSING;
        let passing = CapsMessage { cap_id, caps: PIN, wanted: mds::caps::ALL, ..message.clone() };
        for _ in 0..TIMES {
            let (mut import, tid) =
                self.caps_out(&CapsMessage { op: CapsOp::Grant, ..passing.clone() });
            import.op = CapOp::IMPORT;
            tell(conn, &import, tid);
            self.say_caps(conn, &passing);
        }
    }

    fn caps_out(&self, message: &CapsMessage) -> (messages::ClientCaps, u64) {
        let realm = self.look(|core| core.realms(message.inode.ino)[0]).unwrap_or(mds::Ino::ROOT);
        convert::caps_out(message, realm, self.barrier.get())
    }

    /// Tells a client of its capabilities.
    pub(super) fn say_caps(&self, conn: &Connection, message: &CapsMessage) {
        let (caps, tid) = self.caps_out(message);
        tell(conn, &caps, tid);
    }
}
