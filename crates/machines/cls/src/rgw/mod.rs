//! The index of a gateway's bucket, and what else gateways keep in omaps (Ceph: `cls/rgw`).
//!
//! * [`keys`]: what the rows of an index are called.
//! * [`rows`]: reading and writing header and rows.
//! * [`list`], [`check`], [`change`], [`suggest`]: the index as a list of objects.
//! * [`olh`]: the versions of an object.
//! * [`bi`], [`bilog`]: raw rows, and the log of changes.
//! * [`object`], [`upload`]: calls on the objects that hold data, and on uploads in parts.
//! * [`usage`], [`gc`], [`lc`], [`reshard`]: background work.

mod bi;
mod bilog;
mod change;
mod check;
mod gc;
mod keys;
mod lc;
mod list;
mod object;
mod olh;
mod reshard;
mod rows;
mod suggest;
#[cfg(test)]
mod tests;
mod upload;
mod usage;

use crate::method::{Class, RD, RD_WR, WR, method};

/// The class.
pub static CLASS: Class = Class {
    name: "rgw",
    methods: &[
        method!("bucket_init_index", RD_WR, check::init_index),
        method!("bucket_set_tag_timeout", RD_WR, check::set_tag_timeout),
        method!("bucket_list", RD, list::list),
        method!("bucket_check_index", RD, check::check_index),
        method!("bucket_rebuild_index", RD_WR, check::rebuild_index),
        method!("bucket_update_stats", RD_WR, check::update_stats),
        method!("bucket_prepare_op", RD_WR, change::prepare),
        method!("bucket_complete_op", RD_WR, change::complete),
        method!("bucket_link_olh", RD_WR, olh::link),
        method!("bucket_unlink_instance", RD_WR, olh::unlink_instance),
        method!("bucket_read_olh_log", RD, olh::read_log),
        method!("bucket_trim_olh_log", RD_WR, olh::trim_log),
        method!("bucket_clear_olh", RD_WR, olh::clear),
        method!("obj_remove", RD_WR, object::remove),
        method!("obj_store_pg_ver", WR, object::store_pg_ver),
        method!("obj_check_attrs_prefix", RD, object::check_attrs_prefix),
        method!("obj_check_mtime", RD, object::check_mtime),
        method!("bi_get", RD, bi::get),
        method!("bi_put", RD_WR, bi::put),
        method!("bi_list", RD, bi::list),
        method!("bi_log_list", RD, bilog::list),
        method!("bi_log_trim", RD_WR, bilog::trim),
        method!("dir_suggest_changes", RD_WR, suggest::suggest_changes),
        method!("bi_log_resync", RD_WR, bilog::resync),
        method!("bi_log_stop", RD_WR, bilog::stop),
        method!("user_usage_log_add", RD_WR, usage::add),
        method!("user_usage_log_read", RD, usage::read),
        method!("user_usage_log_trim", RD_WR, usage::trim),
        method!("usage_log_clear", WR, usage::clear),
        method!("gc_set_entry", RD_WR, gc::set_entry),
        method!("gc_defer_entry", RD_WR, gc::defer_entry),
        method!("gc_list", RD, gc::list),
        method!("gc_remove", RD_WR, gc::remove),
        method!("lc_get_entry", RD, lc::get_entry),
        method!("lc_set_entry", RD_WR, lc::set_entry),
        method!("lc_rm_entry", RD_WR, lc::rm_entry),
        method!("lc_get_next_entry", RD, lc::get_next_entry),
        method!("lc_put_head", RD_WR, lc::put_head),
        method!("lc_get_head", RD, lc::get_head),
        method!("lc_list_entries", RD, lc::list_entries),
        method!("mp_upload_part_info_update", RD_WR, upload::update_part),
        method!("reshard_add", RD_WR, reshard::add),
        method!("reshard_list", RD, reshard::list),
        method!("reshard_get", RD, reshard::get),
        method!("reshard_remove", RD_WR, reshard::remove),
        method!("set_bucket_resharding", RD_WR, reshard::set_resharding),
        method!("clear_bucket_resharding", RD_WR, reshard::clear_resharding),
        method!("guard_bucket_resharding", RD, reshard::guard_resharding),
        method!("get_bucket_resharding", RD, reshard::get_resharding),
    ],
};
