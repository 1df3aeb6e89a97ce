//! The workloads of the measurements, with fio's terms.

use super::Site;
use core::fmt;

/// A job of fio or of `nvmf-bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) rw: &'static str,
    /// Block size, bytes.
    pub(super) bs: u32,
    pub(super) iodepth: u32,
}

impl Workload {
    pub(super) const READS_ONE: Self = Self::reads(1);
    pub(super) const READS_MANY: Self = Self::reads(32);
    pub(super) const READS_DEEP: Self = Self::reads(128);
    pub(super) const WRITES_MANY: Self = Self { rw: "randwrite", bs: 4 << 10, iodepth: 32 };
    pub(super) const STREAM_IN: Self = Self { rw: "read", bs: 128 << 10, iodepth: 8 };
    pub(super) const STREAM_OUT: Self = Self { rw: "write", bs: 128 << 10, iodepth: 8 };

    /// Random reads of 4 KiB.
    pub(super) const fn reads(iodepth: u32) -> Self {
        Self { rw: "randread", bs: 4 << 10, iodepth }
    }

    /// The job's options, for fio and for `nvmf-bench`: both submit and complete as many operations at once as there are.
    pub(super) fn arguments(&self, site: &Site) -> Vec<String> {
        vec![
            format!("--rw={}", self.rw),
            format!("--bs={}", self.bs),
            format!("--iodepth={}", self.iodepth),
            format!("--iodepth_batch_submit={}", self.iodepth),
            format!("--iodepth_batch_complete_max={}", self.iodepth),
            format!("--runtime={}", site.seconds),
            format!("--ramp_time={}", site.warm_up()),
            "--time_based".into(),
        ]
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (order, direction) =
            self.rw.strip_prefix("rand").map_or(("sequential", self.rw), |direction| ("random", direction));
        write!(f, "{} KiB {order} {direction}, depth {}", self.bs >> 10, self.iodepth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_is_described() {
        assert_eq!(Workload::READS_MANY.to_string(), "4 KiB random read, depth 32");
        assert_eq!(Workload::STREAM_OUT.to_string(), "128 KiB sequential write, depth 8");
    }
}
