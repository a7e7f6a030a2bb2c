//! Devices below daemons (Ceph: `DaemonStateIndex`, `DeviceState`, `src/mgr`, 16.2), from what the
//! daemons say of themselves to the monitors.

use super::fs::{Ask, Later};
use super::{Answer, Entry, Run, unsupported};
use command::{Command, Format, Refusal, Reply, flags};
use pgmap::table::{Align, Table};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use types::errno::Errno;

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Device {
    /// Host, name there, stable path.
    places: BTreeSet<(String, String, String)>,
    /// Daemons with data on it.
    daemons: BTreeSet<String>,
}

/// Devices by id.
#[derive(Clone, Debug, Default)]
struct Devices {
    all: BTreeMap<String, Device>,
    daemons: BTreeSet<String>,
}

const fn ask(signature: &'static str, help: &'static str, handler: fn(Ask) -> Later) -> Entry {
    Command {
        signature,
        help,
        module: "mgr",
        perm: "r",
        flags: flags::MGR,
        handler: Run::Fs(handler),
    }
}

const HEALTH: &str = "health of devices is not collected";

pub(super) const COMMANDS: &[Entry] = &[
    ask("device ls", "Show devices", |a| Box::pin(ls(a))),
    ask("device info name=devid,type=CephString", "Show information about a device", |a| {
        Box::pin(info(a))
    }),
    ask(
        "device ls-by-daemon name=who,type=CephString",
        "Show devices associated with a daemon",
        |a| Box::pin(ls_by_daemon(a)),
    ),
    ask("device ls-by-host name=host,type=CephString", "Show devices on a host", |a| {
        Box::pin(ls_by_host(a))
    }),
    unsupported("device monitoring on", "Enable device health monitoring", "mgr", HEALTH),
    unsupported("device monitoring off", "Disable device health monitoring", "mgr", HEALTH),
    unsupported(
        "device get-health-metrics name=devid,type=CephString name=sample,type=CephString,req=false",
        "Show stored device metrics for the device",
        "mgr",
        HEALTH,
    ),
    unsupported("device check-health", "Check life expectancy of devices", "mgr", HEALTH),
];

/// `NAME=VALUE` pairs with commas between them.
fn pairs(metadata: &Value, key: &str) -> BTreeMap<String, String> {
    let text = metadata[key].as_str().unwrap_or_default();
    let pair = |p: &str| p.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned()));
    text.split(',').filter_map(pair).filter(|(_, v)| !v.is_empty()).collect()
}

impl Devices {
    /// Takes what daemons of a kind say; `key` names the field with the daemon's id.
    fn add(&mut self, kind: &str, key: &str, all: &Value) {
        for m in all.as_array().into_iter().flatten() {
            let id = match &m[key] {
                Value::String(s) => s.clone(),
                other => other.to_string(),
            };
            let daemon = format!("{kind}.{id}");
            let host = m["hostname"].as_str().unwrap_or_default();
            let paths = pairs(m, "device_paths");
            for (name, id) in pairs(m, "device_ids") {
                let device = self.all.entry(id).or_default();
                let path = paths.get(&name).cloned().unwrap_or_default();
                device.places.insert((host.to_owned(), name, path));
                device.daemons.insert(daemon.clone());
            }
            self.daemons.insert(daemon);
        }
    }
}

impl Device {
    fn json(&self, id: &str) -> Value {
        let place = |(host, dev, path): &(String, String, String)| json!({"host": host, "dev": dev, "path": path});
        json!({
            "devid": id,
            "location": self.places.iter().map(place).collect::<Vec<_>>(),
            "daemons": self.daemons,
        })
    }

    fn places(&self) -> String {
        let all: Vec<String> = self.places.iter().map(|(h, d, _)| format!("{h}:{d}")).collect();
        all.join(" ")
    }

    fn daemons(&self) -> String {
        self.daemons.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    fn text(&self, id: &str) -> String {
        let mut out = format!("device {id}\n");
        for (host, dev, path) in &self.places {
            out += &format!("attachment {host} {dev} {path}\n\n");
        }
        out + &self.daemons.iter().map(String::as_str).collect::<Vec<_>>().join(",") + "\n"
    }
}

async fn devices(a: &Ask) -> Result<Devices, Refusal> {
    let mut devices = Devices::default();
    for (kind, key) in [("osd", "id"), ("mon", "name"), ("mds", "name")] {
        let command = json!({"prefix": format!("{kind} metadata"), "format": "json"});
        let reply = (a.monitors)(command).await?;
        let all = serde_json::from_slice(&reply.data)
            .map_err(|e| Refusal::invalid(format!("{kind} metadata: {e}")))?;
        devices.add(kind, key, &all);
    }
    Ok(devices)
}

fn table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Reply {
    let mut t = Table::new();
    for head in heads {
        let align = if *head == "WEAR" { Align::Right } else { Align::Left };
        t.column(head, align, align);
    }
    for row in rows {
        t.row(row);
    }
    Reply::data(t.to_string())
}

fn list<'a>(format: Format, all: impl Iterator<Item = (&'a String, &'a Device)>) -> Reply {
    Reply::data(format.json(&all.map(|(id, d)| d.json(id)).collect::<Value>()))
}

async fn ls(a: Ask) -> Answer {
    let devices = devices(&a).await?;
    if a.format != Format::Plain {
        return Ok(list(a.format, devices.all.iter()));
    }
    let row = |(id, d): (&String, &Device)| {
        vec![id.clone(), d.places(), d.daemons(), String::new(), String::new()]
    };
    let heads = ["DEVICE", "HOST:DEV", "DAEMONS", "WEAR", "LIFE EXPECTANCY"];
    Ok(table(&heads, devices.all.iter().map(row)))
}

async fn info(a: Ask) -> Answer {
    let id = a.args.req("devid").to_owned();
    let devices = devices(&a).await?;
    let Some(device) = devices.all.get(&id) else {
        return Err(Refusal::new(Errno::ENOENT, format!("device {id} not found")));
    };
    Ok(a.format.reply(|| device.json(&id), || device.text(&id)))
}

async fn ls_by_daemon(a: Ask) -> Answer {
    let who = a.args.req("who").to_owned();
    let sound = who.split_once('.').is_some_and(|(kind, id)| !kind.is_empty() && !id.is_empty());
    if !sound {
        return Err(Refusal::invalid(format!("{who} is not a valid daemon name")));
    }
    let devices = devices(&a).await?;
    if !devices.daemons.contains(&who) {
        return Err(Refusal::new(Errno::ENOENT, format!("daemon {who} not found")));
    }
    let mine = devices.all.iter().filter(|(_, d)| d.daemons.contains(&who));
    if a.format != Format::Plain {
        return Ok(list(a.format, mine));
    }
    let row = |(id, d): (&String, &Device)| vec![id.clone(), d.places(), String::new()];
    Ok(table(&["DEVICE", "HOST:DEV", "EXPECTED FAILURE"], mine.map(row)))
}

async fn ls_by_host(a: Ask) -> Answer {
    let host = a.args.req("host").to_owned();
    let devices = devices(&a).await?;
    let there = |d: &Device| d.places.iter().any(|(h, ..)| *h == host);
    let mine = devices.all.iter().filter(|(_, d)| there(d));
    if a.format != Format::Plain {
        return Ok(list(a.format, mine));
    }
    let row = |(id, d): (&String, &Device)| {
        let names: Vec<&str> =
            d.places.iter().filter(|(h, ..)| *h == host).map(|(_, n, _)| n.as_str()).collect();
        vec![id.clone(), names.join(" "), d.daemons(), String::new()]
    };
    Ok(table(&["DEVICE", "DEV", "DAEMONS", "EXPECTED FAILURE"], mine.map(row)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(line: Value) -> Ask {
        let osds = json!([
            {"id": 0, "hostname": "h1", "devices": "nvme0n1", "device_ids": "nvme0n1=M_1", "device_paths": "nvme0n1=/dev/disk/by-path/p"},
            {"id": 1, "hostname": "h1", "devices": "sda,sdb", "device_ids": "sda=S_1,sdb=S_2", "device_paths": "sda=,sdb="},
            {"id": 2, "hostname": "h2", "devices": "", "device_ids": "", "device_paths": ""},
        ]);
        let mons = json!([{"name": "a", "hostname": "h1", "device_ids": "sda=S_1"}]);
        Ask {
            monitors: Box::new(move |command| {
                let answer = match command["prefix"].as_str().unwrap() {
                    "osd metadata" => osds.clone(),
                    "mon metadata" => mons.clone(),
                    _ => json!([]),
                };
                Box::pin(async move { Ok(Reply::data(answer.to_string())) })
            }),
            format: Format::of(&command::Args::parse(&[line.to_string()]).unwrap()),
            args: command::Args::parse(&[line.to_string()]).unwrap(),
            fs: Default::default(),
            pools: Default::default(),
            counters: Default::default(),
            volumes: None,
            clients: crate::client_stats::Clients::unused(),
            crashes: Default::default(),
            telemetry: Default::default(),
            now: Default::default(),
        }
    }

    fn run(line: Value) -> Answer {
        let args = command::Args::parse(&[line.to_string()]).unwrap();
        let Run::Fs(handler) = crate::commands::find(&args).unwrap().handler else { panic!() };
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        rt.block_on(handler(ask(line)))
    }

    #[test]
    fn a_device_has_its_places_and_daemons() {
        let all: Value = serde_json::from_slice(
            &run(json!({"prefix": "device ls", "format": "json"})).unwrap().data,
        )
        .unwrap();
        assert_eq!(
            all,
            json!([
                {"devid": "M_1", "location": [{"host": "h1", "dev": "nvme0n1", "path": "/dev/disk/by-path/p"}], "daemons": ["osd.0"]},
                {"devid": "S_1", "location": [{"host": "h1", "dev": "sda", "path": ""}], "daemons": ["mon.a", "osd.1"]},
                {"devid": "S_2", "location": [{"host": "h1", "dev": "sdb", "path": ""}], "daemons": ["osd.1"]},
            ])
        );
        let text = |line| String::from_utf8(run(line).unwrap().data.to_vec()).unwrap();
        let table = text(json!({"prefix": "device ls"}));
        assert!(
            table.starts_with("DEVICE  HOST:DEV    DAEMONS      WEAR  LIFE EXPECTANCY"),
            "{table}"
        );
        assert!(table.contains("S_1     h1:sda      mon.a osd.1"), "{table}");
        assert_eq!(
            text(json!({"prefix": "device info", "devid": "S_1"})),
            "device S_1\nattachment h1 sda \n\nmon.a,osd.1\n"
        );
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let code = |line| run(line).unwrap_err().errno;
        assert_eq!(code(json!({"prefix": "device info", "devid": "S_3"})), Errno::ENOENT);
        assert_eq!(code(json!({"prefix": "device ls-by-daemon", "who": "osd"})), Errno::EINVAL);
        assert_eq!(code(json!({"prefix": "device ls-by-daemon", "who": "osd.9"})), Errno::ENOENT);
        let all = |line| -> Value { serde_json::from_slice(&run(line).unwrap().data).unwrap() };
        let of = |who| all(json!({"prefix": "device ls-by-daemon", "who": who, "format": "json"}));
        assert_eq!(of("osd.2"), json!([]));
        assert_eq!(of("osd.1").as_array().unwrap().len(), 2);
        let on = |host| all(json!({"prefix": "device ls-by-host", "host": host, "format": "json"}));
        assert_eq!((on("h1").as_array().unwrap().len(), on("h2")), (3, json!([])));
    }
}
