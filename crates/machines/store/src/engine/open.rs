//! Making a store and opening one.

use super::replay::{Step, steps};
use super::state::State;
use super::{Disk, checkpoint, commit, prepare, state};
use crate::alloc::{Image, image_pages};
use crate::commit::CommitLine;
use crate::dev::{AlignedBuf, Device};
use crate::error::StoreError;
use crate::log::LogReader;
use crate::options::Options;
use crate::superblock::{LABEL_MAX, LOG_START, LogPos, Superblock};
use crate::types::{BLOCK, Coll};
use crate::window::Window;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::rc::Rc;
use tokio::sync::Notify;

/// Smallest device a store is made on.
const DEVICE_MIN: u64 = 16 << 20;
/// Steps of the log that are replayed at a time: their objects are brought in together.
const WINDOW_STEPS: usize = 4096;
/// So many bytes of it, unless one batch has more.
const WINDOW_BYTES: u64 = 8 << 20;
/// Smallest log.
const LOG_MIN: u64 = 1 << 20;

/// Makes an empty store. `store_id` should be random; `label` is the owner's.
pub(crate) async fn mkfs(
    dev: &Device,
    opts: &Options,
    store_id: u64,
    label: Bytes,
) -> Result<(), StoreError> {
    if label.len() > LABEL_MAX {
        return Err(StoreError::TooBig("label"));
    }
    if dev.size() < DEVICE_MIN {
        return Err(StoreError::Foreign(format!("{} bytes are too few for a store", dev.size())));
    }
    let log_len = match opts.log_size {
        0 => (dev.size() / 32).clamp(4 * LOG_MIN, 1 << 30),
        n => n.clamp(LOG_MIN, dev.size() / 2),
    };
    let sb = Superblock {
        store_id,
        label,
        device: dev.size(),
        log_len: log_len.next_multiple_of(BLOCK),
        generation: 1,
        tail: LogPos { at: 0, seq: 1, prev_crc: store_id as u32 },
        next_id: 0,
        tree_blocks: 0,
        root: None,
    };
    // The other copy is wiped, so that a store that was here before is not taken for this one.
    let other = BLOCK - sb.place();
    dev.write(other, smallvec::smallvec![AlignedBuf::zeroed(BLOCK as usize).freeze()], false)
        .await?;
    dev.write(sb.place(), smallvec::smallvec![sb.encode()], false).await?;
    dev.flush().await?;
    Ok(())
}

/// Opens a store: reads the superblock and the allocation map and replays the log.
pub(crate) async fn open(dev: Device, opts: Options) -> Result<Rc<Disk>, StoreError> {
    let sb = read_superblock(&dev).await?;
    if sb.device > dev.size() {
        return Err(StoreError::Foreign(format!(
            "the store was made on a device of {} bytes, this one has {}",
            sb.device,
            dev.size()
        )));
    }
    let mut stop_before = None;
    let st = loop {
        match replay(&dev, &sb, &opts, stop_before).await? {
            Replayed::Done(st) => break *st,
            Replayed::LastIsTorn(pos) => {
                // The last write to the log reached the device, data that belongs to it did not: it
                // was never acknowledged. Start over without it, and make sure that it stays dead.
                tracing::info!("dropping log batch {}: its data is incomplete", pos.seq);
                stop_before = Some(pos.seq);
                let wiped = smallvec::smallvec![AlignedBuf::zeroed(BLOCK as usize).freeze()];
                dev.write(LOG_START + pos.at % sb.log_len, wiped, false).await?;
            }
        }
    };
    // What was read may have been in a volatile cache only. It counts as durable from here on.
    dev.flush().await?;
    let disk = Rc::new(Disk {
        dev,
        dirty_max: Cell::new(opts.dirty_max),
        steps: super::steps::Steps::new(&opts),
        opts,
        state: RefCell::new(st),
        line: CommitLine::new(),
        data: Cell::new(0),
        sb: RefCell::new(sb),
        work: Notify::new(),
        checkpoint: Notify::new(),
        prepare: Notify::new(),
        progress: Notify::new(),
        closing: Cell::new(false),
        running: Cell::new(false),
        pace: RefCell::default(),
        failed: RefCell::new(None),
        tasks: Cell::new(3),
        checkpoints: Cell::new(0),
    });
    let task = Task(disk.clone());
    tokio::task::spawn_local(async move { commit::run(&task.0).await });
    let task = Task(disk.clone());
    tokio::task::spawn_local(async move { checkpoint::run(&task.0).await });
    let task = Task(disk.clone());
    tokio::task::spawn_local(async move { prepare::run(&task.0).await });
    disk.checkpoint.notify_one();
    Ok(disk)
}

/// A background task's hold on the store. If the task panics, code that waits for it must not wait
/// forever.
struct Task(Rc<Disk>);

impl Drop for Task {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(StoreError::Failed("a background task of the store panicked".into()));
        }
        self.0.ended();
    }
}

pub(crate) async fn read_superblock(dev: &Device) -> Result<Superblock, StoreError> {
    if dev.size() < DEVICE_MIN {
        return Err(StoreError::Foreign("the device is too small to hold a store".into()));
    }
    let both = dev.read(0, 2 * BLOCK as usize).await?;
    let half = BLOCK as usize;
    Superblock::choose([&both.slice(..half), &both.slice(half..)])
}

enum Replayed {
    Done(Box<State>),
    /// The batch there refers to data that is not on the device.
    LastIsTorn(LogPos),
}

async fn replay(
    dev: &Device,
    sb: &Superblock,
    opts: &Options,
    stop_before: Option<u64>,
) -> Result<Replayed, StoreError> {
    let image = load_image(dev, sb).await?;
    let mut st = State::new(dev.clone(), sb, image, opts);
    let (from, end) = (State::coll_key(Coll(0)), [state::tag::COLL + 1]);
    let mut at = Some(from);
    while let Some(start) = at {
        let page = st.now(|st| st.rows(Bound::Included(&start), &end, 1024))?;
        for (k, v) in page.rows {
            let id: [u8; 8] = k
                .get(1..)
                .and_then(|b| b.try_into().ok())
                .ok_or_else(|| crate::codec::corrupt("collection row"))?;
            st.colls.insert(Coll(u64::from_be_bytes(id)), Window::decode_row(&v)?);
        }
        at = page.next;
    }
    let mut log = LogReader::new(dev.clone(), sb);
    let mut last = None;
    let mut ended = false;
    while !ended {
        // Some batches at a time: what their steps need is read at the same time.
        let mut window: Vec<Step> = Vec::new();
        let mut batches: Vec<(LogPos, usize)> = Vec::new();
        let start = log.pos().at;
        while window.len() < WINDOW_STEPS && log.pos().at - start < WINDOW_BYTES {
            let next = if stop_before == Some(log.pos().seq) { None } else { log.next().await? };
            let Some((pos, payload)) = next else {
                ended = true;
                break;
            };
            window.extend(steps(&payload)?);
            batches.push((pos, window.len()));
        }
        st.prefetch(dev, &window).await;
        let mut window = window.into_iter();
        let mut done = 0;
        for (pos, end) in batches {
            st.replay = Some(FxHashMap::default());
            window.by_ref().take(end - done).try_for_each(|step| st.replay(&step))?;
            done = end;
            last = Some(pos);
        }
        tokio::task::yield_now().await;
    }
    if let (Some(pos), Some(fresh)) = (last, st.replay.take()) {
        for (block, crc) in fresh {
            let bytes = dev.read(block * BLOCK, BLOCK as usize).await?;
            if crc32c::crc32c(&bytes) != crc {
                return Ok(Replayed::LastIsTorn(pos));
            }
        }
    }
    st.replay = None;
    st.head = log.pos();
    for at in log.beyond().await? {
        tracing::info!("dropping a log batch behind {}, which is not there", log.pos().seq);
        dev.write(
            LOG_START + at,
            smallvec::smallvec![AlignedBuf::zeroed(BLOCK as usize).freeze()],
            false,
        )
        .await?;
    }
    Ok(Replayed::Done(Box::new(st)))
}

async fn load_image(dev: &Device, sb: &Superblock) -> Result<Image, StoreError> {
    let mut image = Image::new(sb.blocks(), sb.store_id);
    let pages = image_pages(sb.blocks());
    let mut p = 0;
    while p < pages {
        let n = (pages - p).min(256);
        let bytes = dev.read(sb.map_start() + p * 2 * BLOCK, (n * 2 * BLOCK) as usize).await?;
        for i in 0..n as usize {
            let place = |k: usize| {
                bytes.slice((2 * i + k) * BLOCK as usize..(2 * i + k + 1) * BLOCK as usize)
            };
            image.load((p + i as u64) as u32, [place(0), place(1)], sb.generation);
        }
        p += n;
    }
    // Not data, ever: superblocks, log and this map. The image says nothing about them.
    image.hide(sb.data_start());
    Ok(image)
}
