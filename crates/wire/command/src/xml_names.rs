//! Names of elements in XML that JSON does not know, as Ceph 16.2.15 prints them.

/// What a command's answer is called in XML.
pub(crate) struct Names {
    /// The outermost element; the command's words, if it is not known.
    pub root: Option<&'static str>,
    /// The elements of arrays, by the array's name; `NAME/*` is any array in NAME.
    arrays: &'static [(&'static str, &'static str)],
}

/// Arrays that have these elements in all answers.
const EVERYWHERE: &[(&str, &str)] = &[
    ("addrvec", "addr"),
    ("up", "osd"),
    ("acting", "osd"),
    ("hb_peers", "osd"),
    ("network_ping_times", "entry"),
    ("pool_statfs", "item"),
    ("num_pg_by_state", "state"),
    ("nodes", "item"),
    ("children", "child"),
    ("detail", "detail_item"),
    ("persistent", "bit_flag"),
    ("quorum_mon", "bit_flag"),
    ("enum_allowed", "value"),
    ("modules", "module"),
    ("auth_dump", "auth_entities"),
];

type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Commands, the outermost elements of their answers, and arrays of theirs.
const COMMANDS: &[Row] = &[
    ("auth get", "auth", &[("auth", "auth_entities")]),
    ("auth get-key", "auth", &[]),
    ("auth list", "auth", &[]),
    ("auth ls", "auth", &[]),
    ("auth print-key", "auth", &[]),
    ("config dump", "config", &[("config", "option")]),
    ("config get", "config", &[]),
    ("config log", "changesets", &[]),
    ("config-key dump", "config-key_store", &[]),
    ("config-key ls", "keys", &[]),
    ("device ls", "devices", &[]),
    ("df", "stats", &[]),
    (
        "features",
        "features",
        &[
            ("mon", "group"),
            ("osd", "group"),
            ("mds", "group"),
            ("mgr", "group"),
            ("client", "group"),
        ],
    ),
    ("fs dump", "fsmap", &[]),
    ("log last", "tail", &[]),
    (
        "mgr dump",
        "mgrmap",
        &[
            ("available_modules", "module"),
            ("always_on_modules/*", "module"),
            ("active_clients", "client"),
        ],
    ),
    (
        "mgr module ls",
        "modules",
        &[
            ("always_on_modules", "module"),
            ("enabled_modules", "module"),
            ("disabled_modules", "module"),
        ],
    ),
    ("mgr services", "services", &[]),
    ("mon dump", "monmap", &[("quorum", "mon")]),
    ("node ls", "nodes", &[("mon/*", "mon"), ("osd/*", "osd"), ("mds/*", "mds"), ("mgr/*", "mgr")]),
    ("osd blocked-by", "pg_info", &[]),
    ("osd blocklist ls", "blocklist", &[("blocklist", "entry")]),
    ("osd crush class ls", "crush_classes", &[("crush_classes", "class")]),
    ("osd crush dump", "crush_map", &[]),
    ("osd crush rule dump", "rules", &[]),
    ("osd crush show-tunables", "crush_map_tunables", &[]),
    ("osd crush tree", "crush_tree", &[]),
    ("osd crush weight-set ls", "weight_sets", &[]),
    ("osd df", "df", &[]),
    (
        "osd dump",
        "osdmap",
        &[("flags_set", "flag"), ("osds", "osd_info"), ("state", "state"), ("osd_xinfo", "xinfo")],
    ),
    ("osd erasure-code-profile get", "profile", &[]),
    (
        "osd erasure-code-profile ls",
        "erasure-code-profiles",
        &[("erasure-code-profiles", "profile")],
    ),
    ("osd find", "osd_location", &[]),
    ("osd ls", "osds", &[]),
    ("osd lspools", "pools", &[]),
    ("osd metadata", "osd_metadata", &[("osd_metadata", "osd")]),
    ("osd numa-status", "osds", &[]),
    ("osd ok-to-stop", "ok_to_stop", &[("ok_become_degraded", "pg")]),
    ("osd perf", "pg_info", &[("osd_perf_infos", "osd")]),
    ("osd pool application get", "pools", &[]),
    ("osd pool get", "pool", &[]),
    ("osd pool get-quota", "pool_quotas", &[]),
    ("osd pool ls", "pools", &[]),
    ("osd pool stats", "pool_stats", &[("pool_stats", "pool")]),
    ("osd safe-to-destroy", "osd_status", &[("active", "osd")]),
    ("osd stat", "osdmap", &[]),
    ("osd tree", "tree", &[]),
    ("pg dump", "pg_info", &[]),
    ("pg dump_stuck", "pg_info", &[]),
    ("pg ls", "pg_info", &[]),
    ("pg ls-by-osd", "pg_info", &[]),
    ("pg ls-by-pool", "pg_info", &[]),
    ("pg ls-by-primary", "pg_info", &[]),
    ("pg stat", "pg_info", &[]),
    ("quorum_status", "quorum_status", &[("quorum", "mon"), ("quorum_names", "mon")]),
    ("service dump", "service_map", &[]),
    (
        "status",
        "status",
        &[("quorum", "rank"), ("quorum_names", "id"), ("pgs_by_state", "pgs_by_state_element")],
    ),
    ("time-sync-status", "time_sync", &[]),
    ("versions", "version", &[]),
];

impl Names {
    /// Those of a command's answer.
    pub fn of(command: &str) -> Names {
        match COMMANDS.iter().find(|(name, ..)| *name == command) {
            Some((_, root, arrays)) => Names { root: Some(root), arrays },
            None => Names { root: None, arrays: &[] },
        }
    }

    /// What an element of an array is called, in a section.
    pub fn element<'a>(&self, array: &'a str, section: &str) -> &'a str {
        let fits = |name: &str| match name.strip_suffix("/*") {
            Some(of) => of == section,
            None => name == array,
        };
        let known = self.arrays.iter().chain(EVERYWHERE).find(|(name, _)| fits(name));
        match (known, array.strip_suffix('s')) {
            (Some((_, element)), _) => element,
            (None, Some(one)) if !one.is_empty() && !one.ends_with('s') => one,
            _ => "item",
        }
    }
}
