//! `siphon rescue`: a monitor goes on alone when the others are lost for good.

use crate::cli::Rescue;
use crate::home::{self, DaemonLock};
use crate::store_tool;
use anyhow::{Context, Result, bail};
use std::path::Path;

/// Runs the command.
pub fn run(args: Rescue) -> Result<()> {
    let dir = &args.mon.role.data_dir;
    let daemon = format!("mon.{}", args.mon.name);
    if home::load(dir)?.is_none() {
        bail!("{} is no cluster's data directory", dir.display());
    }
    let dir = dir.canonicalize().with_context(|| format!("{}", dir.display()))?;
    let own = dir.join(&daemon);
    if !mon::Layout::exists(&own) {
        bail!("{} has no {daemon}", dir.display());
    }
    let _lock = DaemonLock::take(&dir, &daemon)?;
    let mut survivor = mon::Survivor::open(&own)?;
    let own_map = survivor.osd_map();
    if let Some(device) = &args.osd_maps {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        tokio::task::LocalSet::new().block_on(&runtime, learn_maps(&mut survivor, device))?;
    }
    describe(&survivor, own_map);
    if !args.yes_i_really_mean_it {
        bail!("nothing was changed: --yes-i-really-mean-it does it");
    }
    let backup = survivor.rescue(client::wall_clock())?;
    announce(&dir, &args.mon.name, &backup);
    Ok(())
}

fn names<'a>(list: impl Iterator<Item = &'a String>) -> String {
    list.map(|n| format!("mon.{n}")).collect::<Vec<_>>().join(", ")
}

/// Takes the OSD maps that follow on the monitor's from the store of an OSD.
async fn learn_maps(survivor: &mut mon::Survivor, device: &Path) -> Result<()> {
    let store = store_tool::open(device).await?;
    let own =
        osd::superblock::load(&store).await.with_context(|| format!("{}", device.display()))?;
    if own.cluster != survivor.fsid() {
        bail!("{} is of an OSD of another cluster", device.display());
    }
    while survivor.osd_map() < own.current {
        let next = survivor.osd_map().next();
        let map = osd::superblock::load_map(&store, next)
            .await
            .with_context(|| format!("{}", device.display()))?;
        let map = map.with_context(|| {
            format!(
                "osd.{} has OSD maps up to {}, but not {next}: take another OSD",
                own.whoami, own.current
            )
        })?;
        survivor.learn_osd_map(&map, client::wall_clock())?;
    }
    store.close().await?;
    Ok(())
}

fn describe(s: &mon::Survivor, own_map: types::Epoch) {
    let survey = s.survey();
    let name = s.name();
    println!("mon.{name} is a member of a group with votes of {}.", names(survey.voters.values()));
    if !survey.voters.contains_key(&survey.id) {
        println!("It has no vote itself: it may lack more than a monitor that has one.");
    }
    println!(
        "Last log entry: {}; applied: {}; newest OSD map: {own_map}.",
        survey.last, survey.applied
    );
    if s.osd_map() > own_map {
        println!("The OSD has OSD maps up to {}: they are learned.", s.osd_map());
    }
    println!();
    println!(
        "It would be the only monitor, with all that is in its log. Given up as lost: {}.",
        names(s.lost().iter())
    );
    println!(
        "Commands that were acknowledged and are not in this log are lost. If several monitors are left, compare their last log"
    );
    println!("entries, term first, and rescue the one with the greatest; no other one, ever.");
    println!(
        "No OSD may have a newer OSD map (`newest_map` of `ceph daemon osd.N status`): if one has, --osd-maps learns from it."
    );
    println!("A lost monitor's store must not be used again: remove it, and add the monitor anew.");
}

fn announce(dir: &Path, name: &str, backup: &Path) {
    println!();
    println!(
        "mon.{name} is the only monitor now. Its store as it was is kept in {}.",
        backup.display()
    );
    println!("Next: siphon mon --data-dir {} --name {name}", dir.display());
}
