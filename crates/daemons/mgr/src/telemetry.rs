//! Settings of reports about the cluster; `commands::telemetry` makes them.

use serde_json::Value;

/// The operator's settings.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Channels that are on.
    pub channels: Vec<String>,
    /// What an operator says of the cluster, by name.
    pub ident: Vec<(String, Value)>,
}

impl Settings {
    /// From the configuration.
    pub fn read(conf: &conf::Config) -> Self {
        let channels = [
            ("basic", "mgr/telemetry/channel_basic"),
            ("crash", "mgr/telemetry/channel_crash"),
            ("device", "mgr/telemetry/channel_device"),
            ("ident", "mgr/telemetry/channel_ident"),
            ("perf", "mgr/telemetry/channel_perf"),
        ];
        let ident = [
            ("contact", "mgr/telemetry/contact"),
            ("description", "mgr/telemetry/description"),
            ("organization", "mgr/telemetry/organization"),
        ];
        let on = channels.into_iter().filter(|(_, option)| conf.bool(option));
        let said = |option| match conf.str(option) {
            text if text.is_empty() => Value::Null,
            text => text.into(),
        };
        Settings {
            channels: on.map(|(name, _)| name.to_owned()).collect(),
            ident: ident.map(|(name, option)| (name.to_owned(), said(option))).into(),
        }
    }
}
