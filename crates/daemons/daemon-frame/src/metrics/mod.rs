//! A daemon's counters for Prometheus, on an address of their own. Nothing is served unless an
//! operator names an address.
//!
//! * [`page`]: counters under the names that Ceph's `ceph-exporter` (18.2) gives them;
//! * [`text`]: the text format;
//! * [`http`]: the server, which peers cannot make wait or grow.

pub mod http;
pub mod text;

use conf::Config;
use serde_json::Value;
use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Weak;
use std::time::Duration;
use text::{Kind, Text};
use tokio::task::JoinHandle;

/// The option that says where a daemon's counters are served.
pub const OPTION: &str = "metrics_addr";
/// How often the option is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Counters of a smaller priority are not exported (Ceph: `exporter_prio_limit`).
const PRIORITY_MIN: u64 = 5;
/// Bits of a counter's type (Ceph 16.2: `perfcounter_type_d`).
const AVERAGE: u64 = 4;
const GROWS: u64 = 8;
const HISTOGRAM: u64 = 16;

/// Counters of a daemon.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// `perf dump`.
    pub values: Value,
    /// `perf schema`.
    pub schema: Value,
}

/// A name as Prometheus takes it.
fn exported(name: &str) -> String {
    let name = name.replace("::", "_").replace('+', "_plus");
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    name.chars().map(fits).collect()
}

/// The counters as a page. An average has a sum and a count.
pub fn page(daemon: &str, counters: &Counters) -> String {
    let mut out = Text::default();
    let labels = [("ceph_daemon", daemon)];
    let sections = counters.schema.as_object().into_iter().flatten();
    for (section, counter, schema) in sections.flat_map(|(section, all)| {
        all.as_object().into_iter().flatten().map(move |(name, s)| (section, name, s))
    }) {
        let kind = schema["type"].as_u64().unwrap_or_default();
        let hidden = schema["priority"].as_u64().is_some_and(|p| p < PRIORITY_MIN);
        let value = &counters.values[section.as_str()][counter.as_str()];
        if hidden || kind & HISTOGRAM != 0 {
            continue;
        }
        let name = format!("ceph_{}_{}", exported(section), exported(counter));
        let help = schema["description"].as_str().unwrap_or_default();
        let mut put = |name: &str, kind, value: &Value| {
            if let Some(value) = value.as_f64() {
                out.metric(name, kind, help);
                out.value(name, &labels, value);
            }
        };
        if kind & AVERAGE != 0 {
            put(&format!("{name}_sum"), Kind::Counter, &value["sum"]);
            put(&format!("{name}_count"), Kind::Counter, &value["avgcount"]);
        } else {
            put(&name, if kind & GROWS != 0 { Kind::Counter } else { Kind::Gauge }, value);
        }
    }
    out.finish()
}

/// Serves the counters of a daemon where [`OPTION`] says, for as long as its configuration is
/// there. A change takes effect within a second.
pub async fn serve<F>(
    conf: Weak<RefCell<Config>>,
    daemon: String,
    counters: impl Fn() -> F + Clone + 'static,
) where
    F: Future<Output = Counters> + 'static,
{
    let mut running: Option<(String, JoinHandle<()>)> = None;
    let mut complained = String::new();
    loop {
        let wanted = match conf.upgrade() {
            Some(conf) => conf.borrow().str(OPTION),
            None => String::new(),
        };
        if let Some((_, task)) = running.take_if(|(addr, _)| *addr != wanted) {
            task.abort();
            // The address is free when it has ended.
            let _ = task.await;
        }
        if running.is_none() && !wanted.is_empty() {
            match listen(&wanted) {
                Ok(listener) => {
                    if let Ok(addr) = listener.local_addr() {
                        tracing::info!("{daemon}: metrics are served at http://{addr}/metrics");
                    }
                    let (name, counters) = (daemon.clone(), counters.clone());
                    let make = move || {
                        let (name, counters) = (name.clone(), counters());
                        async move { page(&name, &counters.await) }
                    };
                    running = Some((wanted, tokio::task::spawn_local(http::serve(listener, make))));
                    complained.clear();
                }
                Err(e) => {
                    let complaint =
                        format!("{daemon}: metrics cannot be served at {wanted:?}: {e}");
                    if complained != complaint {
                        tracing::warn!("{complaint}");
                        complained = complaint;
                    }
                }
            }
        }
        if conf.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Listens at `ADDRESS:PORT`.
pub fn listen(text: &str) -> std::io::Result<tokio::net::TcpListener> {
    let addr: SocketAddr = text.parse().map_err(|_| {
        std::io::Error::new(std::io::ErrorKind::InvalidInput, "ADDRESS:PORT was expected")
    })?;
    http::listen(&addr.ip().to_string(), addr.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counters_have_the_names_of_ceph_exporter() {
        let counters = Counters {
            values: json!({"osd": {"op_r": 7, "numpg": 3, "op_latency": {"avgcount": 2, "sum": 0.5, "avgtime": 0.25}, "quiet": 1},
                           "a-b.c::d": {"x+y": 1}}),
            schema: json!({
                "osd": {
                    "op_r": {"type": 10, "priority": 5, "description": "Client read operations"},
                    "numpg": {"type": 2, "priority": 5, "description": "Groups"},
                    "op_latency": {"type": 5, "priority": 5, "description": "Latency"},
                    "quiet": {"type": 2, "priority": 0, "description": ""},
                    "absent": {"type": 2, "priority": 5, "description": ""},
                    "histogram": {"type": 26, "priority": 5, "description": ""},
                },
                "a-b.c::d": {"x+y": {"type": 2, "priority": 5, "description": ""}},
            }),
        };
        let page = page("osd.3", &counters);
        let mut values: Vec<&str> = page.lines().filter(|l| !l.starts_with('#')).collect();
        values.sort();
        assert_eq!(
            values,
            [
                r#"ceph_a_b_c_d_x_plusy{ceph_daemon="osd.3"} 1.0"#,
                r#"ceph_osd_numpg{ceph_daemon="osd.3"} 3.0"#,
                r#"ceph_osd_op_latency_count{ceph_daemon="osd.3"} 2.0"#,
                r#"ceph_osd_op_latency_sum{ceph_daemon="osd.3"} 0.5"#,
                r#"ceph_osd_op_r{ceph_daemon="osd.3"} 7.0"#,
            ]
        );
        assert!(page.contains(
            "# HELP ceph_osd_op_r Client read operations\n# TYPE ceph_osd_op_r counter\n"
        ));
        assert!(page.contains("# TYPE ceph_osd_numpg gauge\n"));
    }

    #[test]
    fn an_address_is_an_ip_and_a_port() {
        for bad in ["", "9283", "localhost:9", "127.0.0.1", ":9283"] {
            assert!(listen(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn nothing_is_served_unless_an_address_is_named() {
        use std::rc::Rc;
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        use tokio::net::TcpStream;
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = taken.local_addr().unwrap();
        drop(taken);
        let conf = Rc::new(RefCell::new(Config::new()));
        assert_eq!(conf.borrow().str(OPTION), "");
        let set = |value: &str| {
            let source = conf::effective::Source::Override;
            conf.borrow_mut().set(source, OPTION, value).unwrap();
        };
        let served = async {
            let local = tokio::task::LocalSet::new();
            let counters = || async {
                Counters {
                    values: json!({"mds": {"reply": 1}}),
                    schema: json!({"mds": {"reply": {"type": 10, "priority": 5, "description": "x"}}}),
                }
            };
            local
                .run_until(async {
                    let weak = Rc::downgrade(&conf);
                    let task = tokio::task::spawn_local(serve(weak, "mds.a".into(), counters));
                    tokio::task::yield_now().await;
                    assert!(TcpStream::connect(addr).await.is_err());
                    set(&addr.to_string());
                    let mut peer = loop {
                        if let Ok(peer) = TcpStream::connect(addr).await {
                            break peer;
                        }
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    };
                    peer.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
                    let mut answer = String::new();
                    peer.read_to_string(&mut answer).await.unwrap();
                    assert!(
                        answer.ends_with("ceph_mds_reply{ceph_daemon=\"mds.a\"} 1.0\n"),
                        "{answer}"
                    );
                    set("");
                    while TcpStream::connect(addr).await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    task.abort();
                })
                .await;
        };
        tokio::time::timeout(Duration::from_secs(60), served).await.unwrap();
    }
}
