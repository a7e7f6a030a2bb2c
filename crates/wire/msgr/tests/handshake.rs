//! Two state machines talk to each other, over a wire that splits and corrupts.

mod common;

use auth::{
    AuthMethod, AuthPolicy, ClientAuth, ClientConn, ConMode, Context, MauthOutcome, ServerAuth,
};
use common::ends::*;
use common::*;
use msgr::protocol::ProtocolError;
use msgr::session::{Existing, Session};
use msgr::*;
use rand::RngExt;
use types::{EntityName, EntityType};

const MODES: [ConMode; 2] = [ConMode::Crc, ConMode::Secure];

#[test]
fn client_and_monitor_in_both_modes() {
    for mode in MODES {
        let s = secrets(NOW, &mut rng(1));
        let client_auth = admin(&s, mode);
        let (mut c, mut m) = admin_and_mon_as(&s, client_auth.clone());
        let to_mon: Vec<_> =
            (0..20).map(|n| message(n, n as usize * 37, n as usize * 1000)).collect();
        let to_client: Vec<_> = (20..30).map(|n| message(n, 10, n as usize)).collect();
        to_mon.iter().for_each(|x| c.s.push(x.clone()));
        c.p.keepalive();
        pump(&mut c, &mut m, |n| n);
        to_client.iter().for_each(|x| m.s.push(x.clone()));
        pump(&mut c, &mut m, |n| n);
        assert_eq!((&c.failed, &m.failed), (&None, &None));
        assert!(c.ready && m.ready);
        assert_eq!((c.p.con_mode(), m.p.con_mode()), (mode, mode));
        assert_eq!(m.got, to_mon.iter().zip(1..).map(|(x, seq)| flat(x, seq)).collect::<Vec<_>>());
        assert_eq!(
            c.got,
            to_client.iter().zip(1..).map(|(x, seq)| flat(x, seq)).collect::<Vec<_>>()
        );
        assert_eq!(c.p.last_keepalive_ack(), Some(NOW));
        let who = m.p.authenticated().unwrap();
        assert_eq!(
            (who.name.to_string().as_str(), who.caps.text.as_str()),
            ("client.admin", "allow *")
        );
        assert_eq!(client_auth.borrow().global_id(), who.global_id);
        for service in [EntityType::AUTH, EntityType::MON, EntityType::OSD, EntityType::MGR] {
            assert!(client_auth.borrow().has_ticket(service, NOW), "{service}");
        }
        assert_eq!(c.p.features(), types::features::SUPPORTED);
    }
}

#[test]
fn bytes_may_come_one_by_one() {
    for mode in MODES {
        let s = secrets(NOW, &mut rng(1));
        for step in 0..4u64 {
            let (mut c, mut m) = admin_and_mon(&s, mode);
            let sent = [message(1, 100, 0), message(2, 0, 70_000), message(3, 5000, 33_000)];
            sent.iter().for_each(|x| c.s.push(x.clone()));
            let mut random = rng(step);
            pump(&mut c, &mut m, |n| if step == 0 { 1 } else { random.random_range(1..=n) });
            assert_eq!((&c.failed, &m.failed), (&None, &None));
            assert_eq!(
                m.got,
                sent.iter().zip(1..).map(|(x, seq)| flat(x, seq)).collect::<Vec<_>>()
            );
        }
    }
}

/// Runs a handshake and a message in which byte `at` of what one end sends is changed. Returns how
/// many bytes that end sent, and whether anybody noticed.
fn corrupted(s: &Secrets, mode: ConMode, from_client: bool, at: usize, flip: u8) -> (usize, bool) {
    let (mut c, mut m) = admin_and_mon(s, mode);
    let sent = message(1, 40, 100);
    c.s.push(sent.clone());
    m.s.push(sent.clone());
    let mut offset = 0;
    loop {
        let (ab, ba) = (c.take(), m.take());
        if ab.is_empty() && ba.is_empty() {
            break;
        }
        for (bytes, to, watched) in [(ab, &mut m, from_client), (ba, &mut c, !from_client)] {
            let mut bytes = bytes.to_vec();
            if watched {
                if let Some(b) = at.checked_sub(offset).and_then(|i| bytes.get_mut(i)) {
                    *b ^= flip;
                }
                offset += bytes.len();
            }
            to.receive(&bytes);
        }
    }
    // It notices, or waits for bytes that never come; or the other one notices. What it must never
    // do is take the wrong thing for the right one.
    let (victim, other) = if from_client { (&m, &c) } else { (&c, &m) };
    let noticed = victim.failed.is_some() || other.failed.is_some() || victim.got.is_empty();
    assert!(m.got.iter().chain(&c.got).all(|x| *x == flat(&sent, 1)));
    (offset, noticed)
}

#[test]
fn every_corrupt_byte_is_noticed() {
    for mode in MODES {
        let s = secrets(NOW, &mut rng(1));
        for from_client in [true, false] {
            let (total, noticed) = corrupted(&s, mode, from_client, usize::MAX, 0);
            assert!(total > 500 && !noticed);
            let unnoticed = (0..total)
                .filter(|at| !corrupted(&s, mode, from_client, *at, 1 << (at % 8)).1)
                .count();
            // In crc mode half of a message's status byte is reserved: ignored, and not covered.
            assert!(
                unnoticed <= usize::from(mode == ConMode::Crc),
                "{unnoticed} bytes in {mode:?}"
            );
        }
    }
}

#[test]
fn strangers_are_refused() {
    let s = secrets(NOW, &mut rng(1));
    let wrong = admin(&secrets(NOW, &mut rng(99)), ConMode::Crc);
    let (mut c, mut m) = admin_and_mon_as(&s, wrong);
    pump(&mut c, &mut m, |n| n);
    assert_eq!(c.failed, Some(ProtocolError::Auth(auth::AuthError::Refused(13))));
    assert!(!m.ready && !m.p.is_authenticated());

    // A peer that would rather not authenticate.
    let mut policy = AuthPolicy::new(EntityType::CLIENT);
    policy.client_methods = vec![AuthMethod::None];
    let nobody = auth::CephxClient::new(policy, name("client.admin"), Default::default(), &[]);
    let nobody = std::rc::Rc::new(std::cell::RefCell::new(nobody));
    let (mut c, mut m) = admin_and_mon_as(&s, nobody.clone());
    pump(&mut c, &mut m, |n| n);
    assert_eq!(c.failed, Some(ProtocolError::Auth(auth::AuthError::Refused(95))));
    assert!(!m.ready);

    // It is welcome where the policy says so, with crc only.
    s.mon.borrow_mut().policy.service_methods = vec![AuthMethod::Cephx, AuthMethod::None];
    let (mut c, mut m) = admin_and_mon_as(&s, nobody);
    pump(&mut c, &mut m, |n| n);
    assert!(c.ready && m.ready);
    assert!(m.p.authenticated().unwrap().caps.allow_all);
    assert_eq!(m.p.con_mode(), ConMode::Crc);

    // No mode in common.
    s.mon.borrow_mut().policy = only(AuthPolicy::new(EntityType::MON), ConMode::Secure);
    let (mut c, mut m) = admin_and_mon(&s, ConMode::Crc);
    pump(&mut c, &mut m, |n| n);
    assert_eq!(c.failed, Some(ProtocolError::Auth(auth::AuthError::Refused(95))));
    assert!(!m.ready);
}

#[test]
fn a_global_id_is_kept_by_whoever_has_its_ticket() {
    let s = secrets(NOW, &mut rng(1));
    let client = admin(&s, ConMode::Secure);
    let connect = |client| {
        let (mut c, mut m) = admin_and_mon_as(&s, client);
        pump(&mut c, &mut m, |n| n);
        (c.ready && m.ready, c.failed)
    };
    assert!(connect(client.clone()).0);
    let id = client.borrow().global_id();
    assert!(connect(client.clone()).0);
    assert_eq!(client.borrow().global_id(), id, "reclaimed");
    // The ticket's secret is gone: the client must start anew.
    s.mon.borrow_mut().keys.wipe_rotating(EntityType::AUTH);
    let again = s.mon.borrow().keys.prepare_rotation(Default::default(), NOW, &mut rng(5)).unwrap();
    assert!(s.mon.borrow_mut().keys.apply_rotation(again));
    // Ids start over, so the secret's id is known again, but it is another secret.
    assert_eq!(
        connect(client.clone()),
        (false, Some(ProtocolError::Auth(auth::AuthError::Refused(13))))
    );
    client.borrow_mut().forget_session();
    assert!(connect(client.clone()).0);
    assert_ne!(client.borrow().global_id(), id);
}

/// osd.0 gets its rotating secrets, client.admin its tickets; then they talk.
#[test]
fn client_and_service_with_tickets_and_renewal() {
    for mode in MODES {
        let s = secrets(NOW, &mut rng(1));
        let (osd_client, osd_service) = osd(&s);
        let (mut c, mut m) = admin_and_mon_as(&s, osd_client.clone());
        pump(&mut c, &mut m, |n| n);
        assert!(c.ready && m.ready, "{:?} {:?}", c.failed, m.failed);
        let mauth = |m: &mut End, now, request| {
            let conn = m.p.server_auth().unwrap();
            s.mon
                .borrow()
                .handle_mauth(&mut Context { now, rng: &mut rng(4) }, conn, request)
                .unwrap()
                .payload
        };
        let request = osd_client.borrow().rotating_request(NOW).unwrap();
        let reply = mauth(&mut m, NOW, request);
        let mut r = rng(6);
        let mut cx = Context { now: NOW, rng: &mut r };
        let outcome = osd_client.borrow_mut().handle_mauth_reply(&mut cx, 0, reply).unwrap();
        assert_eq!(outcome, MauthOutcome::RotatingKeys);
        assert_eq!(osd_client.borrow().rotating_request(NOW), None);

        let client = admin(&s, mode);
        let to_osd = |client: &std::rc::Rc<std::cell::RefCell<auth::CephxClient>>| {
            let c = End::client(
                client.clone(),
                CLIENT,
                EntityType::OSD,
                Policy::lossy_client(),
                Session::default(),
            );
            let o = End::server(
                osd_service.clone(),
                EntityName::osd(0),
                Policy::stateless_server(),
                Session::default(),
            );
            (c, o)
        };
        let (mut c, mut o) = to_osd(&client);
        pump(&mut c, &mut o, |n| n);
        assert!(
            matches!(c.failed, Some(ProtocolError::Auth(auth::AuthError::Denied(_)))),
            "no ticket yet"
        );

        let (mut c, mut m) = admin_and_mon_as(&s, client.clone());
        pump(&mut c, &mut m, |n| n);
        assert!(c.ready);
        let (mut d, mut o) = to_osd(&client);
        d.s.push(message(7, 10, 10));
        pump(&mut d, &mut o, |n| n);
        assert_eq!((&d.failed, &o.failed), (&None, &None));
        assert_eq!(o.got.len(), 1);
        assert_eq!(o.p.con_mode(), mode);
        assert_eq!(o.p.authenticated().unwrap().caps.text, "allow *");

        // Service tickets last an hour and are renewed after three quarters of it.
        let mut later = NOW;
        later.sec += 46 * 60;
        assert_eq!(
            client.borrow().need(later),
            EntityType::OSD.0 | EntityType::MON.0 | EntityType::MGR.0
        );
        for _ in 0..2 {
            let rotation =
                s.mon.borrow().keys.prepare_rotation(Default::default(), later, &mut rng(7));
            if let Some(rotation) = rotation {
                assert!(s.mon.borrow_mut().keys.apply_rotation(rotation));
            }
            let mut r = rng(8);
            let mut cx = Context { now: later, rng: &mut r };
            let request = client
                .borrow_mut()
                .mauth_request(&mut cx, c.p.client_auth().unwrap())
                .unwrap()
                .unwrap();
            let reply = mauth(&mut m, later, request);
            let outcome = client.borrow_mut().handle_mauth_reply(&mut cx, 0, reply).unwrap();
            assert_eq!(outcome, MauthOutcome::Tickets);
            assert_eq!(client.borrow().need(later), 0);
            // The second time everything is due, even the auth ticket.
            later.sec += 60 * 3600;
        }
    }
}

#[test]
fn a_recorded_authorizer_is_worth_nothing() {
    let s = secrets(NOW, &mut rng(1));
    let (osd_client, service) = osd(&s);
    let (mut c, mut m) = admin_and_mon_as(&s, osd_client.clone());
    pump(&mut c, &mut m, |n| n);
    let request = osd_client.borrow().rotating_request(NOW).unwrap();
    let mut r = rng(3);
    let mut cx = Context { now: NOW, rng: &mut r };
    let reply =
        s.mon.borrow().handle_mauth(&mut cx, m.p.server_auth().unwrap(), request).unwrap().payload;
    osd_client.borrow_mut().handle_mauth_reply(&mut cx, 0, reply).unwrap();

    let mut mine = ClientConn::new(EntityType::OSD);
    let open = osd_client.start(&mut cx, &mut mine).unwrap();
    let server = || auth::ServerConn::new(EntityType::OSD, AuthMethod::Cephx, ConMode::Crc);
    let mut first = server();
    let auth::ServerStep::More(challenge) =
        service.request(&mut cx, &mut first, open.payload.clone(), false).unwrap()
    else {
        panic!("the first authorizer must be challenged")
    };
    let answer = osd_client.more(&mut cx, &mut mine, challenge).unwrap();
    // Both payloads played to another connection: it has another challenge.
    let mut second = server();
    service.request(&mut cx, &mut second, open.payload.clone(), false).unwrap();
    assert!(service.request(&mut cx, &mut second, answer.clone(), true).is_err());
    // The answer out of the blue, and twice the opening.
    assert!(matches!(
        service.request(&mut cx, &mut server(), answer.clone(), false),
        Ok(auth::ServerStep::More(_))
    ));
    let mut third = server();
    service.request(&mut cx, &mut third, open.payload.clone(), false).unwrap();
    assert!(service.request(&mut cx, &mut third, open.payload, true).is_err());
    // On its own connection it is good.
    assert!(matches!(
        service.request(&mut cx, &mut first, answer, true),
        Ok(auth::ServerStep::Done(..))
    ));
}

/// Two OSDs with sockets that keep breaking. Every message arrives once, in order.
#[test]
fn nothing_is_lost_or_doubled_over_reconnects() {
    for seed in 0..30 {
        let mode = MODES[seed as usize % 2];
        let s = secrets(NOW, &mut rng(1));
        let peer_auth = admin(&s, mode);
        let mut random = rng(seed);
        let (mut a, mut b) = (Session::default(), Session::default());
        let (mut sent, mut a_got, mut b_got) = ([0u64; 2], Vec::new(), Vec::new());
        let mut established = false;
        let total = 120;
        let mut rounds = 0;
        while a_got.len() < total || b_got.len() < total {
            rounds += 1;
            assert!(rounds < 10_000, "no progress");
            if a.server_cookie != 0 {
                a.connect_seq += 1;
            }
            let existing = established.then_some(Existing {
                lossy: false,
                server: false,
                client_cookie: b.client_cookie,
                server_cookie: b.server_cookie,
                peer_global_seq: b.peer_global_seq,
                connect_seq: b.connect_seq,
                settled: true,
            });
            let policy = Policy::lossless_peer();
            let mut c = End::client(
                peer_auth.clone(),
                CLIENT,
                EntityType::MON,
                policy,
                std::mem::take(&mut a),
            );
            // Attempts are counted per process, and this is the only one.
            c.s.global_seq = rounds;
            let mut m = End::server(s.mon.clone(), MON, policy, std::mem::take(&mut b));
            m.existing = existing;
            m.resetcheck = false;
            // How many bytes this socket carries before it breaks.
            let mut left: usize =
                if rounds % 3 == 0 { 200_000 } else { random.random_range(0..6_000) };
            loop {
                for (end, sent) in [&mut c, &mut m].into_iter().zip(&mut sent) {
                    if *sent < total as u64 && random.random_range(0..3) == 0 {
                        end.s.push(message(*sent, random.random_range(0..200), 0));
                        *sent += 1;
                    }
                }
                let (ab, ba) = (c.take(), m.take());
                if ab.is_empty() && ba.is_empty() && sent == [total as u64; 2] {
                    break;
                }
                for (bytes, to) in [(ab, &mut m), (ba, &mut c)] {
                    let n = bytes.len().min(left);
                    to.receive(&bytes[..n]);
                    left -= n;
                }
                if left == 0 || c.failed.is_some() || m.failed.is_some() {
                    break;
                }
            }
            assert_eq!((&c.failed, &m.failed), (&None, &None), "seed {seed}");
            assert!(!c.remote_reset && !m.remote_reset);
            established |= m.ready;
            a_got.extend(c.got.iter().map(|x| x.tid));
            b_got.extend(m.got.iter().map(|x| x.tid));
            (a, b) = (c.s, m.s);
            a.requeue_sent();
            if established {
                b.requeue_sent();
            } else {
                // A connection that never was: what was queued on this end is tried on the next
                // one.
                let again = std::mem::take(&mut sent[1]);
                b = Session::default();
                assert!(b_got.is_empty() && a_got.is_empty() || again == 0);
            }
        }
        let want: Vec<_> = (0..total as u64).collect();
        assert_eq!((a_got, b_got), (want.clone(), want), "seed {seed}");
    }
}

#[test]
fn a_peer_that_restarted_is_told_to_start_anew() {
    let s = secrets(NOW, &mut rng(1));
    let auth = admin(&s, ConMode::Crc);
    let policy = Policy::lossless_peer_reuse();
    let mut c = End::client(auth.clone(), CLIENT, EntityType::MON, policy, Session::default());
    let mut m = End::server(s.mon.clone(), MON, policy, Session::default());
    pump(&mut c, &mut m, |n| n);
    assert!(c.ready && c.s.server_cookie != 0);
    let mut session = c.s;
    session.connect_seq += 1;
    session.push(message(1, 1, 1));
    let mut c = End::client(auth, CLIENT, EntityType::MON, policy, session);
    let mut m = End::server(s.mon.clone(), MON, policy, Session::default());
    pump(&mut c, &mut m, |n| n);
    assert!(c.ready && c.remote_reset && m.ready);
    assert!(m.got.is_empty(), "what was queued for the lost session is dropped");
}

#[test]
fn missing_features_are_told() {
    let s = secrets(NOW, &mut rng(1));
    let policy = Policy::lossy_client()
        .with_features(denc::Features(types::features::MSG_ADDR2), denc::Features(0));
    let mut c =
        End::client(admin(&s, ConMode::Crc), CLIENT, EntityType::MON, policy, Session::default());
    let need = denc::Features(types::features::SERVER_NAUTILUS);
    let policy = Policy::stateless_server().with_features(types::features::SUPPORTED, need);
    let mut m = End::server(s.mon.clone(), MON, policy, Session::default());
    pump(&mut c, &mut m, |n| n);
    let missing = need.0 & !types::features::MSG_ADDR2;
    assert_eq!(c.failed, Some(ProtocolError::MissingFeatures(missing)));
    assert!(!m.ready);
}
