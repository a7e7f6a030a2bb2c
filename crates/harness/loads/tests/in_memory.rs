//! The load generator for S3 against the gateway over a layout in memory: every command works, and
//! answers that are wrong are found.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../daemons/s3-gateway/tests/common/memory.rs"]
mod memory;

use loads::s3::content::Content;
use loads::s3::wire::{Connection, Target};
use loads::s3::{Options, Session};
use s3::sig::v4::Signer;
use s3_gateway::{Gateway, Options as GatewayOptions, listen};
use s3_layout::Layout;
use s3_layout::api::{AccessKey, User, UserId};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::LocalSet;

const ACCESS: &str = "ACCESS";
const SECRET: &str = "secret";

/// A gateway on a thread of its own, which ends with the process.
fn gateway() -> SocketAddr {
    let (send, addr) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = runtime();
        LocalSet::new().block_on(&runtime, async {
            let memory = memory::Memory::default();
            let (id, secret) = (ACCESS.to_owned(), SECRET.to_owned());
            let key = AccessKey { id, secret, subuser: String::new() };
            let user = User { id: UserId::parse("first"), keys: vec![key], ..User::default() };
            memory.create_user(&user).await.unwrap();
            let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
            send.send(listener.local_addr().unwrap()).unwrap();
            let gateway = Gateway::new(memory, GatewayOptions::default());
            gateway.serve(listener, std::future::pending()).await;
        });
    });
    addr.recv().unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn session(addr: SocketAddr) -> Session {
    Session::new(Options {
        endpoint: format!("http://{addr}"),
        access: ACCESS.into(),
        secret: SECRET.into(),
        region: "us-east-1".into(),
        connections: 4,
        threads: 2,
        unsigned_bodies: false,
        timeout: 60,
        seed: 7,
        commands: Vec::new(),
    })
    .unwrap()
}

fn said(session: &mut Session, command: &str) -> Value {
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    session.command(&words).unwrap()
}

#[track_caller]
fn count(said: &Value, kind: &str) -> u64 {
    said["kinds"][kind]["count"].as_u64().unwrap_or(0)
}

#[track_caller]
fn right(said: &Value) {
    assert_eq!((&said["failed"], &said["wrong"]), (&0.into(), &0.into()), "{said}");
}

fn target(addr: SocketAddr) -> Target {
    let (access_key, secret) = (ACCESS.to_owned(), SECRET.to_owned());
    Target {
        address: addr,
        host: addr.to_string(),
        signer: Signer { access_key, secret, region: "us-east-1".into() },
        signed_bodies: false,
        timeout: Duration::from_secs(60),
    }
}

#[test]
fn a_mix_is_filled_loaded_and_checked() {
    let mut s = session(gateway());
    let planned = said(&mut s, "plan mix --buckets 2 --objects 40 --sizes small");
    assert_eq!(planned["objects"], 160);
    let filled = said(&mut s, "fill mix");
    right(&filled);
    assert_eq!(count(&filled, "put"), 160);
    let fresh = said(&mut s, "load mix --ops mixed --count 600");
    right(&fresh);
    for kind in ["get", "put", "list", "delete"] {
        assert!(count(&fresh, kind) > 0, "{kind}: {fresh}");
    }
    assert_eq!(fresh["count"], 600);
    let checked = said(&mut s, "check mix");
    right(&checked);
    assert!(count(&checked, "get") > 80 && count(&checked, "list") >= 16, "{checked}");
}

#[test]
fn an_open_loop_has_its_rate() {
    let mut s = session(gateway());
    said(&mut s, "plan open --objects 40 --sizes 100");
    said(&mut s, "fill open");
    let ran = said(&mut s, "load open --ops get --seconds 2 --rate 200");
    right(&ran);
    // What a busy machine leaves out is counted.
    let all = count(&ran, "get") + ran["left_out"].as_u64().unwrap();
    assert!((300..500).contains(&all), "{ran}");
}

#[test]
fn one_request_deletes_many() {
    let mut s = session(gateway());
    said(&mut s, "plan many --objects 100 --sizes 10");
    said(&mut s, "fill many");
    let deleted = said(&mut s, "delete-many many --batch 10");
    right(&deleted);
    // Four workers with 25 objects each.
    assert_eq!(count(&deleted, "delete-many"), 12);
    right(&said(&mut s, "check many"));
    let none = said(&mut s, "load many --ops get --count 4");
    assert_eq!((count(&none, "get"), &none["failed"]), (0, &4.into()));
}

#[test]
fn large_bodies_are_made_and_compared_in_pieces() {
    let mut s = session(gateway());
    said(&mut s, "plan large --objects 4 --sizes 3M");
    right(&said(&mut s, "fill large"));
    right(&said(&mut s, "check large"));
}

#[test]
fn changes_behind_its_back_are_found() {
    let addr = gateway();
    let mut s = session(addr);
    said(&mut s, "plan bbb --objects 8 --sizes 5000");
    said(&mut s, "fill bbb");
    // One object is lost, and one has another version.
    let change = async {
        let mut c = Connection::new(target(addr));
        c.delete("bbb", "000/00000000").await.unwrap();
        let key = "001/00000000";
        c.put("bbb", key, Content::new("bbb", key, 2, 5000)).await.unwrap();
    };
    LocalSet::new().block_on(&runtime(), change);
    let checked = said(&mut s, "check bbb");
    // The lost one is missing in the list, too.
    assert_eq!(checked["wrong"], 3, "{checked}");
    let samples = checked["samples"].to_string();
    for part in [
        "/bbb/000/00000000 was acknowledged, and is not there (NoSuchKey)",
        "/bbb/001/00000000: byte 0: expected",
        "000/00000000 is not in the list",
    ] {
        assert!(samples.contains(part), "{part}: {samples}");
    }
}

#[test]
fn commands_that_make_no_sense_are_refused() {
    let mut s = session(gateway());
    for (command, part) in [
        ("fill x", "there is no plan x"),
        ("plan x --objects 1 --sizes 4T", "bytes such as 4096"),
        ("plan x --objects 1 --sizes 4K --scale 0", "above 0"),
        ("load x --ops 1/2/3", "percents of the four"),
        ("load x --ops get --rate 0", "above 0"),
        ("delete-many x --batch 1001", "1 to 1000"),
    ] {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let e = format!("{:#}", s.command(&words).unwrap_err());
        assert!(e.contains(part), "{command}: {e}");
    }
}
