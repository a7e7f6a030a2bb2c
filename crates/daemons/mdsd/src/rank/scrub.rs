//! Scrub: whether what is at rest fits together. Each directory's counts are those of its entries,
//! and each inode says where it is.
//!
//! The file system goes on meanwhile. What does not fit is looked at again after a flush: it is
//! damage if it stays so while the directory does not change.

use super::damage::Damage;
use crate::at_rest;
use crate::store::{Store, StoreError};
use cephfs::{Fnode, FragInfo, NestInfo};
use mds::{Dentry, DirFrag, Ino, Inode, Name, Split};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use types::Errno;

/// Entries that are read at a time.
const PAGE: u32 = 512;
/// How often a directory that changes is looked at.
const ATTEMPTS: u32 = 5;
/// Scrubs at a time.
const SCRUBS_MAX: usize = 16;

/// A scrub that runs.
pub struct Scrub {
    pub path: String,
    pub recursive: bool,
    /// Directories that are known and not looked at yet.
    pub left: Cell<usize>,
    stop: Cell<bool>,
}

/// Those that run, by tag, and how the last ones ended.
#[derive(Default)]
pub struct Scrubs {
    pub running: RefCell<BTreeMap<String, Rc<Scrub>>>,
    /// Directories and other inodes that were looked at since the server began.
    pub checked: Cell<u64>,
}

/// A directory to be looked at, and the inode that its entry has.
struct Todo {
    ino: Ino,
    path: String,
    /// Where the entry is; nothing for the root.
    entry: Option<(DirFrag, Name)>,
}

/// What was found wrong: what it is about, and why.
type Found = Vec<(&'static str, Ino, String, String)>;

/// What a directory says of itself, and what its entries come to.
struct Counted {
    version: u64,
    said: (FragInfo, NestInfo),
    stat: FragInfo,
    rstat: NestInfo,
}

impl Counted {
    /// Of a directory with one object, or several if a stock server split it.
    fn new(heads: &[Fnode]) -> Counted {
        let mut said = (FragInfo::default(), NestInfo::default());
        for head in heads {
            said.0.nfiles += head.fragstat.nfiles;
            said.0.nsubdirs += head.fragstat.nsubdirs;
            said.1.rbytes += head.rstat.rbytes;
            said.1.rfiles += head.rstat.rfiles;
            said.1.rsubdirs += head.rstat.rsubdirs;
        }
        let version = heads.iter().map(|head| head.version).max().unwrap_or(0);
        Counted { version, said, stat: FragInfo::default(), rstat: NestInfo::default() }
    }

    fn add(&mut self, entry: &Dentry) {
        let Dentry::Primary(inode) = entry else {
            self.stat.nfiles += 1;
            return;
        };
        match inode.is_dir() {
            true => self.stat.nsubdirs += 1,
            false => self.stat.nfiles += 1,
        }
        self.rstat.rbytes += inode.rstat.rbytes;
        self.rstat.rfiles += inode.rstat.rfiles;
        self.rstat.rsubdirs += inode.rstat.rsubdirs;
    }

    /// Why it does not fit, if it does not. `inode` is the one above it.
    fn misfit(&self, inode: Option<&Inode>) -> Option<String> {
        let (stat, rstat) = &self.said;
        let counts = |s: &FragInfo| (s.nfiles, s.nsubdirs);
        let sums = |r: &NestInfo| (r.rbytes, r.rfiles, r.rsubdirs);
        if counts(stat) != counts(&self.stat) {
            let ((files, dirs), (f, d)) = (counts(stat), counts(&self.stat));
            return Some(format!(
                "it says {files} files and {dirs} directories, and has {f} and {d}"
            ));
        }
        if sums(rstat) != sums(&self.rstat) {
            let (said, found) = (sums(rstat), sums(&self.rstat));
            return Some(format!(
                "bytes, files and directories below: it says {said:?}, they are {found:?}"
            ));
        }
        let inode = inode?;
        let above = (inode.dirstat.files, inode.dirstat.subdirs);
        (above != counts(stat)).then(|| format!("its inode says {above:?} entries"))
    }
}

/// What a scrub needs of the rank.
pub trait Host: 'static {
    fn store(&self) -> &Store;
    fn scrubs(&self) -> &Scrubs;
    /// Has everything written to its place at rest; false if that cannot be.
    fn flush(&self) -> impl Future<Output = bool>;
    fn damaged(&self, damage: Damage);
    fn is_closed(&self) -> bool;
    /// Whether a directory is this rank's: what others have may not be at rest.
    fn is_mine(&self, ino: Ino) -> bool;
}

impl Scrubs {
    /// Ends all.
    pub fn abort(&self) {
        self.running.borrow().values().for_each(|s| s.stop.set(true));
    }
}

/// Begins a scrub of what is at a path. Its tag, or the errno that the command is answered.
pub async fn start<H: Host>(
    host: &Rc<H>,
    path: &str,
    recursive: bool,
    tag: &str,
) -> Result<(), Errno> {
    if host.scrubs().running.borrow().len() >= SCRUBS_MAX {
        return Err(Errno::EBUSY);
    }
    if host.scrubs().running.borrow().contains_key(tag) {
        return Err(Errno::EEXIST);
    }
    if !host.flush().await {
        return Err(Errno::EAGAIN);
    }
    let todo = find(host.store(), path).await?;
    if !host.is_mine(todo.ino) {
        return Err(Errno::EXDEV);
    }
    let scrub = Rc::new(Scrub {
        path: path.to_owned(),
        recursive,
        left: Cell::new(1),
        stop: Cell::new(false),
    });
    host.scrubs().running.borrow_mut().insert(tag.to_owned(), scrub.clone());
    let (me, tag) = (host.clone(), tag.to_owned());
    tokio::task::spawn_local(async move {
        walk(&me, &scrub, todo).await;
        me.scrubs().running.borrow_mut().remove(&tag);
    });
    Ok(())
}

/// The directory at a path, at rest. Of something else, the directory that it is in.
async fn find(store: &Store, path: &str) -> Result<Todo, Errno> {
    let errno = |e: StoreError| Errno(e.errno());
    let mut at = Todo { ino: Ino::ROOT, path: String::new(), entry: None };
    let mut objects = objects_of(&store.read_base(Ino::ROOT).await.map_err(errno)?);
    for name in path.split('/').filter(|n| !n.is_empty()) {
        let name = Name::copy_from_slice(name.as_bytes());
        let mut found = None;
        for frag in objects {
            if let Some(entry) = store.read_entry(frag, &name).await.map_err(errno)? {
                found = Some((frag, entry));
                break;
            }
        }
        match found {
            Some((frag, Dentry::Primary(inode))) if inode.is_dir() => {
                objects = objects_of(&inode);
                at = below(&at, frag, inode.ino, name);
            }
            Some(_) => return Ok(at),
            None => return Err(Errno::ENOENT),
        }
    }
    Ok(at)
}

/// An entry, also if the directory was joined since it was found.
async fn entry_at(store: &Store, at: DirFrag, name: &Name) -> Result<Option<Dentry>, StoreError> {
    match store.read_entry(at, name).await? {
        None if at != DirFrag::whole(at.ino) => {
            match store.read_entry(DirFrag::whole(at.ino), name).await {
                Err(StoreError::Split(_)) => Ok(None),
                entry => entry,
            }
        }
        entry => Ok(entry),
    }
}

async fn walk<H: Host>(host: &Rc<H>, scrub: &Scrub, first: Todo) {
    let mut stack = vec![first];
    while let Some(todo) = stack.pop() {
        if scrub.stop.get() || host.is_closed() {
            return;
        }
        let (dirs, found) = check(&**host, &todo).await;
        host.scrubs().checked.set(host.scrubs().checked.get() + 1);
        for (kind, ino, path, why) in found {
            tracing::warn!("scrub: {path}: {why}");
            host.damaged(Damage { kind, ino, path: Some(path), why });
        }
        if scrub.recursive {
            stack.extend(dirs.into_iter().filter(|d| host.is_mine(d.ino)));
        }
        scrub.left.set(stack.len());
    }
}

/// Looks at a directory: the directories in it, and what does not fit.
async fn check<H: Host>(host: &H, todo: &Todo) -> (Vec<Todo>, Found) {
    let mut before: Option<(u64, Found)> = None;
    for attempt in 1.. {
        match look_at(host, todo).await {
            Ok((version, dirs, found)) => {
                let same = before.as_ref().is_some_and(|(v, f)| *v == version && *f == found);
                // What keeps changing cannot be judged this time.
                if found.is_empty() || same {
                    return (dirs, found);
                }
                if attempt == ATTEMPTS {
                    return (dirs, Found::new());
                }
                before = Some((version, found));
            }
            // It was removed meanwhile.
            Err(e) if e.errno() == Errno::ENOENT.0 => return Default::default(),
            Err(StoreError::Client(_)) if host.is_closed() => return Default::default(),
            Err(e) if attempt == ATTEMPTS => {
                let found = ("dir_frag", todo.ino, todo.shown(), e.to_string());
                return (Vec::new(), vec![found]);
            }
            Err(_) => {}
        }
        if !host.flush().await {
            break;
        }
    }
    Default::default()
}

async fn look_at<H: Host>(host: &H, todo: &Todo) -> Result<(u64, Vec<Todo>, Found), StoreError> {
    let mut found = Found::new();
    let inode = match &todo.entry {
        None => None,
        Some((at, name)) => match entry_at(host.store(), *at, name).await? {
            Some(Dentry::Primary(inode)) if inode.ino == todo.ino => Some(inode),
            _ => return Ok((0, Vec::new(), found)),
        },
    };
    let frags = match &inode {
        Some(inode) => objects_of(inode),
        None => objects_of(&host.store().read_base(todo.ino).await?),
    };
    let mut heads = Vec::with_capacity(frags.len());
    for frag in &frags {
        let Some(head) = host.store().read_head(*frag).await? else {
            let why = "the directory has no object".to_owned();
            return Ok((0, Vec::new(), vec![("dir_frag", todo.ino, todo.shown(), why)]));
        };
        heads.push(head);
    }
    let mut counted = Counted::new(&heads);
    let (mut dirs, mut after) = (Vec::new(), None);
    let mut frags = frags.into_iter();
    let Some(mut frag) = frags.next() else { return Ok((0, dirs, found)) };
    loop {
        let (page, end) = host.store().read_page(frag, after.as_ref(), PAGE).await?;
        for (name, entry) in &page {
            counted.add(entry);
            let Dentry::Primary(child) = entry else { continue };
            host.scrubs().checked.set(host.scrubs().checked.get() + 1);
            let at = below(todo, frag, child.ino, name.clone());
            if let Some(why) = misplaced(host.store(), todo.ino, name, child).await? {
                found.push(("backtrace", child.ino, at.shown(), why));
            }
            if child.is_dir() {
                dirs.push(at);
            }
        }
        after = page.last().map(|(name, _)| name.clone());
        if end || after.is_none() {
            let Some(next) = frags.next() else { break };
            (frag, after) = (next, None);
        }
    }
    if let Some(why) = counted.misfit(inode.as_deref()) {
        found.push(("dir_frag", todo.ino, todo.shown(), why));
    }
    Ok((counted.version, dirs, found))
}

/// Where the entries of a directory are.
fn objects_of(inode: &Inode) -> Vec<DirFrag> {
    match inode.split {
        Split::Yes => {
            let frags = at_rest::fragments(inode).into_iter();
            frags.map(|f| DirFrag { ino: inode.ino, frag: mds::Frag(f.0) }).collect()
        }
        Split::No | Split::Joined => vec![DirFrag::whole(inode.ino)],
    }
}

/// Whether an inode says that it is elsewhere.
async fn misplaced(
    store: &Store,
    dir: Ino,
    name: &Name,
    inode: &Inode,
) -> Result<Option<String>, StoreError> {
    let pools: Vec<i64> = inode.layout.iter().map(|l| l.pool).collect();
    Ok(match store.read_backtrace(inode.ino, &pools).await? {
        Some((at, as_name)) if at == dir && as_name == *name => None,
        Some((at, as_name)) => {
            Some(format!("its backtrace says {:#x}/{}", at.0, String::from_utf8_lossy(&as_name)))
        }
        None => Some("it has no backtrace".to_owned()),
    })
}

impl Todo {
    fn shown(&self) -> String {
        if self.path.is_empty() { "/".to_owned() } else { self.path.clone() }
    }
}

fn below(at: &Todo, frag: DirFrag, ino: Ino, name: Name) -> Todo {
    let path = format!("{}/{}", at.path, String::from_utf8_lossy(&name));
    Todo { ino, path, entry: Some((frag, name)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mds::{DirStat, NestStat};

    fn inode(mode: u32, rstat: NestStat) -> Dentry {
        Dentry::Primary(Box::new(Inode { mode, rstat, ..Inode::default() }))
    }

    #[test]
    fn counts_that_do_not_fit_are_found() {
        let file = inode(0o100_644, NestStat { rbytes: 5, rfiles: 1, ..NestStat::default() });
        let dir = inode(0o40_755, NestStat { rfiles: 3, rsubdirs: 2, ..NestStat::default() });
        let head = Fnode {
            fragstat: FragInfo { nfiles: 2, nsubdirs: 1, ..FragInfo::default() },
            rstat: NestInfo { rbytes: 5, rfiles: 4, rsubdirs: 2, ..NestInfo::default() },
            ..Fnode::default()
        };
        let link = Dentry::Remote { ino: Ino(5), d_type: 8 };
        let counted = |head: &Fnode, entries: &[&Dentry]| {
            let mut c = Counted::new(std::slice::from_ref(head));
            entries.iter().for_each(|e| c.add(e));
            c
        };
        let all = counted(&head, &[&file, &dir, &link]);
        let mut above = Inode {
            dirstat: DirStat { files: 2, subdirs: 1, ..DirStat::default() },
            ..Inode::default()
        };
        assert_eq!(all.misfit(None), None);
        assert_eq!(all.misfit(Some(&above)), None);
        above.dirstat.files = 3;
        assert!(all.misfit(Some(&above)).unwrap().contains("its inode says"));
        assert!(counted(&head, &[&file, &dir]).misfit(None).unwrap().contains("and has 1 and 1"));
        let head = Fnode { rstat: NestInfo { rbytes: 6, ..head.rstat }, ..head };
        assert!(
            counted(&head, &[&file, &dir, &link])
                .misfit(None)
                .unwrap()
                .contains("they are (5, 4, 2)")
        );
    }
}
