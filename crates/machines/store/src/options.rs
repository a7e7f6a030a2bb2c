//! What can be tuned when a store is opened.

/// Tunables. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Writes up to this size carry their data in the log and reach their place later; larger ones
    /// go to fresh extents once.
    pub deferred_max: u64,
    /// Budget of the data cache.
    pub data_cache: u64,
    /// Budget of the object record cache (clean records; dirty ones are bounded by `dirty_max`).
    pub onode_cache: u64,
    /// Budget of the metadata tree's node cache.
    pub node_cache: u64,
    /// Deferred data and dirty metadata beyond this start a checkpoint.
    pub dirty_max: u64,
    /// A checkpoint starts when this many bytes of log are in use; 0 means two fifths of the log.
    pub log_checkpoint: u64,
    /// Log size at mkfs; 0 chooses by the device size.
    pub log_size: u64,
    /// Allocate the lowest free blocks instead of going onwards over the device. Blocks are reused
    /// at once then, which brings faults of reuse to light; meant for tests.
    pub reuse_soon: bool,
    /// For so many microseconds a checkpoint that rests has the processor at a time; for four times
    /// as many one that has no time to.
    pub step_us: u64,
    /// So many microseconds it rests after that, if checkpoints are seldom, and neither writers
    /// will soon have to wait nor anybody waits for it. 0: never.
    pub rest_us: u64,
}

/// How much memory a store may use. It can change while the store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// See [`Options::data_cache`].
    pub data_cache: u64,
    /// See [`Options::onode_cache`].
    pub onode_cache: u64,
    /// See [`Options::node_cache`].
    pub node_cache: u64,
    /// See [`Options::dirty_max`].
    pub dirty_max: u64,
}

impl Options {
    /// The budgets among the options.
    pub fn budgets(&self) -> Budgets {
        let Options { data_cache, onode_cache, node_cache, dirty_max, .. } = *self;
        Budgets { data_cache, onode_cache, node_cache, dirty_max }
    }

    /// These options with other budgets.
    pub fn with_budgets(self, budgets: Budgets) -> Options {
        let Budgets { data_cache, onode_cache, node_cache, dirty_max } = budgets;
        Options { data_cache, onode_cache, node_cache, dirty_max, ..self }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            deferred_max: 64 << 10,
            data_cache: 256 << 20,
            onode_cache: 64 << 20,
            node_cache: 64 << 20,
            dirty_max: 256 << 20,
            log_checkpoint: 0,
            log_size: 0,
            reuse_soon: false,
            step_us: 50,
            rest_us: 1000,
        }
    }
}
