//! What the clients do.

use crate::measure::Measure;
use crate::pace::Pace;
use fs_client::{FsError, Kind, Mount, path};
use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;
use types::Errno;

/// Permissions of files.
const MODE: u32 = 0o644;

/// An operation on all files of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Makes an empty file, as open and close do.
    Create,
    /// Reads attributes, and compares them.
    Stat,
    /// Removes a file.
    Unlink,
}

impl Op {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Op::Create => "create",
            Op::Stat => "stat",
            Op::Unlink => "unlink",
        }
    }
}

/// The files of one client.
#[derive(Clone)]
pub struct Files {
    /// Their directory.
    pub dir: String,
    /// Number of the client, part of the names.
    pub client: usize,
    /// How many.
    pub count: usize,
}

impl Files {
    fn name(&self, n: usize) -> String {
        format!("c{:03}.{n:07}", self.client)
    }

    fn path(&self, n: usize) -> String {
        format!("{}/{}", self.dir, self.name(n))
    }
}

fn note(
    measure: &mut Measure,
    op: &'static str,
    start: Instant,
    began: Instant,
    result: Result<(), String>,
) {
    match result {
        Ok(()) => measure.done(op, start.elapsed(), began.elapsed(), 0),
        Err(why) => measure.failed(op, why),
    }
}

/// Does it to all files, one after the other. `rate` makes an open loop.
pub async fn all_files(
    mount: &Mount,
    files: &Files,
    op: Op,
    mut pace: Pace,
    start: Instant,
) -> Measure {
    let mut measure = Measure::default();
    for n in 0..files.count {
        let began = pace.wait(start).await;
        let at = path(files.path(n));
        let result = match op {
            Op::Create => mount.create_file(&at, MODE).await,
            Op::Unlink => mount.unlink(&at).await,
            Op::Stat => match mount.stat(&at).await {
                Ok(s) => {
                    if (s.kind(), s.size, s.permissions()) != (Kind::File, 0, MODE) {
                        let found = format!("{:?}, {} bytes, {:o}", s.kind(), s.size, s.mode);
                        let why = format!("{}: an empty file was made, {found}", files.path(n));
                        measure.wrong(op.name(), why);
                        continue;
                    }
                    Ok(())
                }
                Err(e) if e.is(Errno::ENOENT) => {
                    let why = format!("{} was made, and is not there", files.path(n));
                    measure.wrong(op.name(), why);
                    continue;
                }
                Err(e) => Err(e),
            },
        };
        let result = result.map_err(|e| format!("{}: {e}", files.path(n)));
        note(&mut measure, op.name(), start, began, result);
    }
    measure
}

async fn names(mount: &Mount, dir: &str, found: &mut Vec<Vec<u8>>) -> Result<(), FsError> {
    let mut reader = mount.read_dir(&path(dir)).await?;
    while let Some(page) = reader.next().await? {
        found.extend(page.into_iter().map(|e| e.name.to_vec()));
    }
    Ok(())
}

/// Compares a directory with the files that are to be there, which must be all of it if `whole`.
fn compare(found: Vec<Vec<u8>>, there: &[Files], whole: bool) -> Result<(), String> {
    let expected: HashSet<Vec<u8>> =
        there.iter().flat_map(|f| (0..f.count).map(|n| f.name(n).into_bytes())).collect();
    let count = found.len();
    let found: HashSet<Vec<u8>> = found.into_iter().collect();
    if found.len() != count {
        return Err(format!("{} names came twice", count - found.len()));
    }
    if let Some(name) = expected.difference(&found).next() {
        let name = String::from_utf8_lossy(name);
        return Err(format!("{name} was made, and is not in the directory of {count}"));
    }
    if whole && let Some(name) = found.difference(&expected).next() {
        let name = String::from_utf8_lossy(name);
        return Err(format!("{name} is in the directory, and should not be there"));
    }
    Ok(())
}

/// Reads a directory with the attributes of all entries, and compares the names.
pub async fn read(
    mount: &Mount,
    dir: &str,
    there: &[Files],
    whole: bool,
    start: Instant,
) -> Measure {
    let mut measure = Measure::default();
    let began = Instant::now();
    let mut found = Vec::new();
    match names(mount, dir, &mut found).await {
        Err(e) => measure.failed("readdir", format!("{dir}: {e}")),
        Ok(()) => {
            let took = began.elapsed();
            match compare(found, there, whole) {
                Ok(()) => measure.done("readdir", start.elapsed(), took, 0),
                Err(why) => measure.wrong("readdir", format!("{dir}: {why}")),
            }
        }
    }
    measure
}

/// Creates files for a while; how many were made is left in `made`.
pub async fn create_for(
    mount: &Mount,
    dir: &str,
    length: Duration,
    start: Instant,
    made: Rc<Cell<usize>>,
) -> Measure {
    let mut measure = Measure::default();
    let files = Files { dir: dir.to_owned(), client: 999, count: usize::MAX };
    while start.elapsed() < length {
        let began = Instant::now();
        let result = mount.create_file(&path(files.path(made.get())), MODE).await;
        made.set(made.get() + 1);
        note(&mut measure, "create", start, began, result.map_err(|e| e.to_string()));
    }
    measure
}

/// Removes what [`create_for`] made.
pub async fn unlink_made(mount: &Mount, dir: &str, count: usize) -> Result<(), FsError> {
    let files = Files { dir: dir.to_owned(), client: 999, count };
    for n in 0..count {
        match mount.unlink(&path(files.path(n))).await {
            Err(e) if e.is(Errno::ENOENT) => {}
            other => other?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_compared_name_by_name() {
        let files = |client, count| Files { dir: "/d".into(), client, count };
        let there = [files(0, 2), files(1, 1)];
        let names = |all: &[&str]| all.iter().map(|n| n.as_bytes().to_vec()).collect::<Vec<_>>();
        let all = ["c000.0000000", "c000.0000001", "c001.0000000"];
        compare(names(&all), &there, true).unwrap();
        let more = [&all[..], &["x"]].concat();
        compare(names(&more), &there, false).unwrap();
        let said = compare(names(&more), &there, true).unwrap_err();
        assert!(said.contains("x is in the directory"), "{said}");
        let said = compare(names(&all[..2]), &there, false).unwrap_err();
        assert!(said.contains("c001.0000000 was made"), "{said}");
        let twice = [&all[..], &all[..1]].concat();
        assert!(compare(names(&twice), &there, false).unwrap_err().contains("1 names came twice"));
    }
}
