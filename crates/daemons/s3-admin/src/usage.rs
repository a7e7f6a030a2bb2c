//! Requests on the usage log.

use crate::api::{AdminApi, Asked};
use crate::refusal::{Refusal, Result};
use crate::show::{self, Categories};
use s3_layout::rgw::UsageQuery;
use serde_json::Value;

fn query(asked: &Asked<'_>) -> Result<UsageQuery> {
    let p = &asked.params;
    Ok(UsageQuery {
        user: p.text("uid").to_owned(),
        bucket: p.text("bucket").to_owned(),
        start: p.epoch("start", 0)?,
        end: p.epoch("end", u64::MAX)?,
    })
}

impl AdminApi {
    pub(crate) async fn usage_get(&self, asked: &Asked<'_>) -> Result<Value> {
        let p = &asked.params;
        let log = self.records.usage(&query(asked)?).await?;
        let words = p.text("categories").split([';', ',', '=', ' ', '\t']);
        let categories = Categories(words.filter(|w| !w.is_empty()).map(str::to_owned).collect());
        let (entries, summary) = (p.flag("show-entries", true), p.flag("show-summary", true));
        Ok(show::usage(&log, entries, summary, &categories))
    }

    pub(crate) async fn usage_trim(&self, asked: &Asked<'_>) -> Result<Value> {
        let what = query(asked)?;
        let whole = what.start == 0 && what.end == u64::MAX && what.user.is_empty();
        if whole && !asked.params.flag("remove-all", false) {
            return Err(Refusal::ARGUMENT.because("remove-all removes the log of all users"));
        }
        self.records.trim_usage(&what).await?;
        Ok(Value::Null)
    }
}
