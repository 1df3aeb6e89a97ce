//! What namespaces and hosts may do a second.

use super::{Checker, Result};
use crate::file;
use crate::model::{HostLimits, Limits};
use core::time::Duration;
use toml::Spanned;

/// Commands a second.
const IOPS_MAX: i64 = 10_000_000;
/// Bytes a second.
const BYTES_MAX: u64 = 1 << 40;
/// Below that a limit would be a limit of how often it is looked at.
const BURST_SECONDS: core::ops::RangeInclusive<f64> = 0.01..=60.0;

impl Checker<'_> {
    pub(super) fn limits(&self, spanned: &Spanned<file::Limits>) -> Result<Limits> {
        let file = spanned.as_ref();
        let iops = self.some("iops", file.iops.as_ref(), 1..=IOPS_MAX)?;
        let bytes = file.bytes_per_second.as_ref();
        let bytes_per_second =
            bytes.map(|value| self.bytes("bytes_per_second", Some(value), 1..=BYTES_MAX, 0)).transpose()?;
        if iops.is_none() && bytes_per_second.is_none() {
            return self.error(spanned, "limits has iops, bytes_per_second, or both");
        }
        let burst = match &file.burst_seconds {
            None => Limits::BURST_DEFAULT,
            Some(value) if BURST_SECONDS.contains(value.as_ref()) => Duration::from_secs_f64(*value.as_ref()),
            Some(value) => {
                let message = format!("burst_seconds is {} but must be from 0.01 to 60", value.as_ref());
                return self.error(value, message);
            }
        };
        Ok(Limits { iops, bytes_per_second, burst })
    }

    pub(super) fn host_limits(&self, hosts: &[Spanned<file::HostLimits>]) -> Result<Vec<HostLimits>> {
        let one = |spanned: &Spanned<file::HostLimits>| {
            let file = spanned.as_ref();
            Ok(HostLimits { nqn: self.nqn("nqn", &file.nqn)?, limits: self.limits(&file.limits)? })
        };
        let checked = hosts.iter().map(one).collect::<Result<Vec<_>>>()?;
        let names = hosts.iter().zip(&checked).map(|(host, v)| (host.as_ref().nqn.span(), v.nqn.to_string()));
        self.unique("nqn", names)?;
        Ok(checked)
    }
}
