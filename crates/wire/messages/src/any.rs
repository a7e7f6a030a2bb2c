//! Decoding by number.

use crate::payload::{MessageError, Payload};
use crate::*;
use types::message::Message;

macro_rules! registry {
    ($($name:ident),* $(,)?) => {
        /// Any message that this crate knows.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, clippy::large_enum_variant)]
        pub enum AnyMessage {
            $( $name($name), )*
            /// A message of another type: its number.
            Unknown(u16),
        }

        impl AnyMessage {
            /// Numbers and names of all messages.
            pub const TYPES: &[(u16, &str)] = &[$( ($name::TYPE, $name::NAME) ),*];

            /// Decodes `m` by the number in its header. A number that is not known is no error:
            /// peers may be newer.
            pub fn decode(m: &Message) -> Result<Self, MessageError> {
                Ok(match m.msg_type {
                    $( $name::TYPE => AnyMessage::$name($name::decode(m)?), )*
                    other => AnyMessage::Unknown(other),
                })
            }
        }

        #[cfg(test)]
        mod tests {
            use super::*;
            use crate::sample::{Gen, Sample};
            use bytes::Bytes;
            use proptest::prelude::*;

            fn round_trip<T: Payload + Sample + PartialEq + std::fmt::Debug + Clone>(seed: u64) {
                let value = T::sample(&mut Gen::new(seed));
                for features in [denc::Features::ALL, types::features::PACIFIC] {
                    let m = value.encode(features);
                    assert_eq!(m.msg_type, T::TYPE);
                    let back = T::decode(&m).unwrap_or_else(|e| panic!("{}: {e:?}", T::NAME));
                    assert_eq!(back, value, "{}", T::NAME);
                    assert_eq!(AnyMessage::decode(&m).is_ok(), true);
                    // A front that ends early is an error or a shorter message, never a panic.
                    for cut in 0..m.front.len().min(300) {
                        let mut short = m.clone();
                        short.front = m.front.slice(..cut);
                        let _ = T::decode(&short);
                    }
                }
            }

            #[test]
            fn numbers_are_unique() {
                let mut seen = std::collections::BTreeMap::new();
                for (number, name) in AnyMessage::TYPES {
                    assert_eq!(seen.insert(number, name), None, "{name}");
                }
            }

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(64))]

                #[test]
                fn every_message_round_trips(seed: u64) {
                    $( round_trip::<$name>(seed); )*
                }

                #[test]
                fn random_bytes_never_panic(
                    front in proptest::collection::vec(any::<u8>(), 0..400),
                    data in proptest::collection::vec(any::<u8>(), 0..100),
                    version in 0u16..12,
                ) {
                    for (number, _) in AnyMessage::TYPES {
                        let mut m = Message::new(*number, Bytes::from(front.clone()));
                        m.version = version;
                        m.data = [Bytes::from(data.clone())].into_iter().collect();
                        let _ = AnyMessage::decode(&m);
                    }
                }

                #[test]
                fn damaged_messages_never_panic(seed: u64, at: usize, bits: u8) {
                    $( {
                        let mut m = $name::sample(&mut Gen::new(seed)).encode(denc::Features::ALL);
                        let mut front = m.front.to_vec();
                        if !front.is_empty() {
                            let i = at % front.len();
                            front[i] ^= bits;
                        }
                        m.front = front.into();
                        let _ = AnyMessage::decode(&m);
                    } )*
                }
            }
        }
    };
}

registry! {
    Auth, AuthReply, ClientCapRelease, ClientCaps, ClientLease, ClientMetrics, ClientQuota, ClientReclaim,
    ClientReclaimReply, ClientReconnect, ClientReply, ClientRequest, ClientRequestForward, ClientSession,
    ClientSnap, Command, CommandReply, Config, FsMapMsg, FsMapUserMsg, FsPeerMessage, GetConfig, GetPoolStats,
    GetPoolStatsReply, KvData, Log, LogAck, MdsBeacon, MdsLoadTargets, MdsMapMsg, MgrClose, MgrCommand, MgrCommandReply,
    MgrBeacon, MgrConfigure, MgrDigest, MgrMapMsg, MgrOpen, MgrReport, MonCommand, MonCommandAck, MonForward,
    MonGetMap, MonGetOsdMap, MonGetVersion, MonGetVersionReply, MonGlobalId, MonHealthChecks,
    MonMapMsg, MonRoute, MonSubscribe, MonSubscribeAck, OsdAlive, OsdBackoff, OsdBeacon, OsdBoot,
    OsdFailure, OsdForceRecovery, OsdFull, OsdMapMsg, OsdMarkMeDead, OsdMarkMeDown, OsdOp, OsdOpReply,
    OsdPgCreate, OsdPgCreated, OsdPgTemp, OsdPing, OsdScrub, OsdStatsReport, PeerMessage, Ping, PoolOp, PoolOpReply,
    QosDemand, QosShares, RaftMessage, RemoveSnaps, ServiceMapMsg, Statfs, StatfsReply, WatchNotify,
}
