//! `siphon qos`: what tenants are promised. Specifications are kept with the monitors; the manager
//! reads them.

use crate::cli::{Qos, QosAction, QosSet};
use crate::qos_cluster::{Cluster, Dumps, PATIENCE};
use crate::qos_explain::{self, Explanation};
use crate::qos_floors::{self, Judgement};
use crate::qos_fs::{self, Place};
use crate::qos_top;
use crate::qos_wait::Change;
use anyhow::{Context, Result, anyhow, bail};
use auth::AuthName;
use client::{ClusterConfig, Rados};
use mgr::qos::Resolver;
use promises::spec::{PREFIX, Selector, Spec};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long it may take until OSDs go by a change,
const HELD_PATIENCE: Duration = Duration::from_secs(30);
/// and how often they are asked.
const HELD_LOOK: Duration = Duration::from_millis(100);

/// Runs the command.
pub fn run(args: Qos) -> Result<()> {
    let config = ClusterConfig::read(&args.conf, AuthName::new(types::EntityType::CLIENT, "admin"))
        .with_context(|| {
            format!("{} cannot be used: -c names a cluster's ceph.conf", args.conf.display())
        })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let cluster = Cluster {
            rados: Rados::connect(&config, PATIENCE)
                .await
                .context("no answer from the monitors: is the cluster running?")?,
        };
        let done = match args.action {
            QosAction::Set(set) => cluster.set(*set).await,
            QosAction::Ls => cluster.ls().await,
            QosAction::Get { selector } => cluster.get(&selector).await,
            QosAction::Rm { selector } => cluster.rm(&selector).await,
            QosAction::Explain { selector, period, json } => {
                cluster.explain(&selector, period, json).await
            }
            QosAction::Top { once, period, sort, json } => {
                qos_top::run(&cluster, once, period, sort, json).await
            }
        };
        cluster.rados.shutdown();
        done
    })
}

impl Cluster {
    async fn set(&self, a: QosSet) -> Result<()> {
        if let Some(place) = Place::parse(&a.selector) {
            return qos_fs::set(&self.rados, &place?, &qos_fs::Promise::of(&a)?).await;
        }
        let selector = Selector::parse(&a.selector)?;
        let spec = Spec {
            like: a.like.map(|l| l.trim_start_matches('@').to_owned()),
            weight: a.weight,
            floor_iops: a.floor_iops,
            floor_bps: a.floor_bps,
            ceiling_iops: a.ceiling_iops,
            ceiling_bps: a.ceiling_bps,
            floor_iops_per_gib: a.floor_iops_per_gib,
            ceiling_iops_per_gib: a.ceiling_iops_per_gib,
            burst_iops: a.burst_iops,
            burst_bps: a.burst_bps,
            burst_seconds: a.burst_seconds,
        };
        let mut all = self.all().await?;
        let before = all.clone();
        // A template on its own need not say what its users add.
        spec.effective(&all)?.validate(&selector)?;
        all.insert(selector.clone(), spec.clone());
        let users = |(s, other): (&Selector, &Spec)| {
            Some((s.clone(), other.effective(&all).and_then(|e| e.validate(s)).err()?))
        };
        if let Some((user, why)) = all.iter().find_map(users) {
            bail!("{user} would not hold any more: {why}");
        }
        self.check_floors(&all, a.force).await?;
        self.mon(json!({"prefix": "config-key set", "key": format!("{PREFIX}{selector}"), "val": spec.to_json()})).await?;
        self.wait_until_held(&selector, &before, &all).await
    }

    /// Refuses floors that the OSDs cannot keep, and warns where background work has a claim, too.
    async fn check_floors(&self, all: &BTreeMap<Selector, Spec>, force: bool) -> Result<()> {
        let mut promised = Vec::new();
        for (selector, spec) in all {
            // What does not exist yet may come; of images it is looked which there are.
            if !matches!(selector, Selector::Template(_) | Selector::Image(..)) {
                promised.push((
                    selector.to_string(),
                    spec.effective(all)?.promise(None).floors[0] / 1000,
                ));
            }
        }
        let has_floor = |s: &Spec| {
            s.effective(all).is_ok_and(|e| e.floor_iops.is_some() || e.floor_iops_per_gib.is_some())
        };
        if all.iter().any(|(s, spec)| matches!(s, Selector::Image(..)) && has_floor(spec)) {
            self.rados.objecter().wait_latest().await?;
            match Resolver::new(self.rados.clone()).resolve(all).await {
                Ok(found) => {
                    let images = found
                        .into_iter()
                        .filter(|r| r.whose.prefix.is_some() && r.whose.pool.is_some());
                    promised.extend(images.map(|r| (r.whose.name, r.promise.floors[0] / 1000)));
                }
                Err(e) => eprintln!(
                    "siphon: images could not be looked for ({e}): what specifications promise to them is not in what follows"
                ),
            }
        }
        promised.retain(|(_, floor)| *floor > 0);
        if promised.is_empty() {
            return Ok(());
        }
        let dumps = self.dumps().await?;
        let mut there = Vec::new();
        for osd in self.rados.objecter().wait_latest().await?.up_osds() {
            let (iops, source) = match dumps
                .get(&osd)
                .and_then(|dump| qos_floors::capacity(&dump["capacity"]))
            {
                Some(known) => known,
                None => {
                    let option = "osd_mclock_max_capacity_iops_ssd";
                    let answer = self.mon(json!({"prefix": "config get", "who": format!("osd.{}", osd.0), "key": option})).await?;
                    let set = String::from_utf8_lossy(&answer)
                        .trim()
                        .parse()
                        .map_err(|_| anyhow!("{option} of osd.{} is no number", osd.0))?;
                    (set, qos_floors::Source::Silent)
                }
            };
            there.push((osd.0, iops, source));
        }
        match qos_floors::judge(&promised, &there) {
            Judgement::Fits => {}
            Judgement::Tight(why) => eprintln!("siphon: {why}"),
            Judgement::TooMuch(why) if force => eprintln!("siphon: {why}"),
            Judgement::TooMuch(why) => bail!("{why}; --force makes it so"),
        }
        Ok(())
    }

    /// Waits until all OSDs that are concerned go by a change.
    async fn wait_until_held(
        &self,
        selector: &Selector,
        before: &BTreeMap<Selector, Spec>,
        after: &BTreeMap<Selector, Spec>,
    ) -> Result<()> {
        let begun = Instant::now();
        self.rados.objecter().wait_latest().await?;
        let resolver = Resolver::new(self.rados.clone());
        let both = async {
            Ok::<_, client::ClientError>((
                resolver.resolve(before).await?,
                resolver.resolve(after).await?,
            ))
        };
        let change = match both.await {
            Ok((before, after)) => Change::new(&before, &after, &selector.to_string()),
            Err(e) => bail!(
                "the change is kept, but the tenants could not be looked for ({e}): it holds when the manager has told the OSDs"
            ),
        };
        if change.is_empty() {
            return Ok(());
        }
        loop {
            let map = self.rados.objecter().wait_latest().await?;
            let missing = change.missing(&change.concerned(&map), &self.dumps().await?);
            if missing.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > HELD_PATIENCE {
                let names: Vec<String> = missing.iter().map(|o| format!("osd.{}", o.0)).collect();
                bail!(
                    "the change is kept, but after {} s it does not hold on {}: is a manager active (ceph mgr stat)?",
                    HELD_PATIENCE.as_secs(),
                    names.join(" ")
                );
            }
            tokio::time::sleep(HELD_LOOK).await;
        }
    }

    async fn get(&self, selector: &str) -> Result<()> {
        if let Some(place) = Place::parse(selector) {
            return qos_fs::get(&self.rados, &place?).await;
        }
        let selector = Selector::parse(selector)?;
        match self.all().await?.get(&selector) {
            Some(spec) => println!("{}", serde_json::to_string_pretty(spec)?),
            None => bail!("there is no specification for {selector}"),
        }
        Ok(())
    }

    async fn rm(&self, selector: &str) -> Result<()> {
        if let Some(place) = Place::parse(selector) {
            return qos_fs::rm(&self.rados, &place?).await;
        }
        let selector = Selector::parse(selector)?;
        let mut all = self.all().await?;
        let before = all.clone();
        // What does not hold is not in there, and can be removed as well.
        all.remove(&selector);
        if let Selector::Template(name) = &selector
            && let Some((user, _)) = all.iter().find(|(_, s)| s.like.as_deref() == Some(name))
        {
            bail!("{user} is like {selector}");
        }
        self.mon(json!({"prefix": "config-key rm", "key": format!("{PREFIX}{selector}")})).await?;
        self.wait_until_held(&selector, &before, &all).await
    }

    async fn ls(&self) -> Result<()> {
        let all = self.all().await?;
        let number = |n: Option<u64>, per_gib: Option<u64>| match (n, per_gib) {
            (_, Some(n)) => format!("{n}/GiB"),
            (Some(n), None) => n.to_string(),
            (None, None) => "-".into(),
        };
        let mut table = vec![
            ["SELECTOR", "WEIGHT", "FLOOR", "FLOOR B/s", "CEILING", "CEILING B/s", "BURST", "LIKE"]
                .map(str::to_owned),
        ];
        for (selector, spec) in &all {
            let e = spec.effective(&all)?;
            table.push([
                selector.to_string(),
                e.weight.unwrap_or(qos::TenantSpec::WEIGHT).to_string(),
                number(e.floor_iops, e.floor_iops_per_gib),
                number(e.floor_bps, None),
                number(e.ceiling_iops, e.ceiling_iops_per_gib),
                number(e.ceiling_bps, None),
                number(e.burst_iops, None),
                spec.like.clone().map_or("-".into(), |l| format!("@{l}")),
            ]);
        }
        for (tenant, weight, floor, ceiling) in qos_fs::promised(&qos_fs::dumps(&self.rados).await?)
        {
            let rate = |r: Option<f64>| r.map_or("-".to_owned(), |r| r.to_string());
            let none = || "-".to_owned();
            let (floor, ceiling) = (rate(floor), rate(ceiling));
            let weight = weight.to_string();
            table.push([tenant, weight, floor, none(), ceiling, none(), none(), none()]);
        }
        qos_top::print(&table);
        Ok(())
    }

    async fn explain(&self, text: &str, period: f64, as_json: bool) -> Result<()> {
        if let Some(place) = Place::parse(text) {
            let period = Duration::try_from_secs_f64(period.max(0.1))?;
            let (before, begun) = (qos_fs::dumps(&self.rados).await?, Instant::now());
            tokio::time::sleep(period).await;
            let (after, seconds) =
                (qos_fs::dumps(&self.rados).await?, begun.elapsed().as_secs_f64());
            return qos_fs::explain(&place?, &before, &after, seconds, as_json);
        }
        let all = self.all().await?;
        let selector = Selector::parse(text).ok();
        let spec = selector.as_ref().and_then(|s| all.get(s));
        if let Some(Selector::Template(name)) = &selector {
            return template(name, &all, as_json);
        }
        let period = Duration::try_from_secs_f64(period.max(0.1))?;
        let (before, begun) = (self.dumps().await?, Instant::now());
        tokio::time::sleep(period).await;
        let (after, seconds) = (self.dumps().await?, begun.elapsed().as_secs_f64());
        let seen = qos_explain::tenants(&before, &after);
        let mine = |tenant: &str| match &selector {
            _ if tenant == text => true,
            Some(Selector::Image(pool, namespace, pattern)) => tenant
                .strip_prefix(&format!("{pool}/{namespace}/"))
                .is_some_and(|name| promises::spec::fits(pattern, name)),
            _ => false,
        };
        let found: Vec<&String> = seen.iter().filter(|t| mine(t)).collect();
        if found.is_empty() && spec.is_none() {
            let others: Vec<&str> = seen.iter().take(10).map(String::as_str).collect();
            let others = if others.is_empty() { "none".into() } else { others.join(" ") };
            bail!(
                "no OSD has seen {text}, and there is no specification for it; those with most: {others}"
            );
        }
        // Those that are told apart from it, and are not in what is said of it.
        let within: Vec<&String> =
            seen.iter().filter(|t| t.starts_with(&format!("{text}/"))).collect();
        let explanations: Vec<Explanation> = found
            .iter()
            .take(MOST_EXPLAINED)
            .map(|t| Explanation::new(t, &before, &after, seconds))
            .collect();
        let effective = spec.map(|s| s.effective(&all)).transpose()?;
        if as_json {
            let tenants: Vec<Value> = explanations.iter().map(Explanation::to_json).collect();
            let more = found.len() - tenants.len();
            let said = json!({"selector": text, "specification": effective, "seconds": seconds, "tenants": tenants, "more": more, "apart": within});
            println!("{said}");
            return Ok(());
        }
        if let (Some(e), Some(spec)) = (&effective, spec) {
            println!("{text}: {}", e.to_json());
            if let Some(like) = &spec.like {
                println!(
                    "of which {} is from @{like}",
                    all[&Selector::Template(like.clone())].to_json()
                );
            }
        }
        if found.is_empty() {
            println!(
                "no OSD has a tenant of it: nothing like it exists, or the manager has not told them yet"
            );
        }
        parts(&after, &mine);
        for e in &explanations {
            println!();
            e.print();
        }
        if found.len() > MOST_EXPLAINED {
            println!(
                "\n{} more tenants are like that; those above are asked for most",
                found.len() - MOST_EXPLAINED
            );
        }
        if !within.is_empty() {
            let some: Vec<&str> = within.iter().take(10).map(|t| t.as_str()).collect();
            println!(
                "\n{} of it are tenants of their own, and not in this: {}",
                within.len(),
                some.join(" ")
            );
        }
        Ok(())
    }
}

/// So many tenants of a pattern are explained.
const MOST_EXPLAINED: usize = 5;

fn template(name: &str, all: &BTreeMap<Selector, Spec>, as_json: bool) -> Result<()> {
    let Some(spec) = all.get(&Selector::Template(name.to_owned())) else {
        bail!("there is no specification for @{name}")
    };
    let users: Vec<String> = all
        .iter()
        .filter(|(_, s)| s.like.as_deref() == Some(name))
        .map(|(s, _)| s.to_string())
        .collect();
    if as_json {
        println!(
            "{}",
            json!({"selector": format!("@{name}"), "specification": spec, "users": users})
        );
        return Ok(());
    }
    println!("@{name}: {}", spec.to_json());
    println!("users: {}", if users.is_empty() { "none".into() } else { users.join(" ") });
    Ok(())
}

/// The parts that OSDs have of what is promised.
fn parts(dumps: &Dumps, mine: &dyn Fn(&str) -> bool) {
    let mut table = vec![
        ["TENANT", "OSD", "WEIGHT", "FLOOR HERE", "OF", "CEILING HERE", "OF", "OVER CEILING"]
            .map(str::to_owned),
    ];
    for (osd, dump) in dumps {
        for t in dump["tenants"].as_array().into_iter().flatten() {
            let name = t["tenant"].as_str().unwrap_or_default();
            if t["specified"] != true || !mine(name) {
                continue;
            }
            let rate = |what: &str, which: &str| {
                t[what]["iops"][which].as_f64().map_or("-".into(), |r| format!("{r:.1}"))
            };
            table.push([
                name.to_owned(),
                format!("osd.{}", osd.0),
                t["weight"].to_string(),
                rate("floor", "here"),
                rate("floor", "cluster"),
                rate("ceiling", "here"),
                rate("ceiling", "cluster"),
                t["over_ceiling"].to_string(),
            ]);
        }
    }
    if table.len() > 1 {
        qos_top::print(&table);
    }
}
