//! The results, as text and as JSON.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// A latency distribution, with three significant digits.
pub(super) struct Latency(Histogram<u64>);

/// Everything over one provider; bandwidths in bytes per second.
pub(super) struct Measured {
    /// SEND, round trip.
    pub(super) send: Latency,
    /// RDMA WRITE, one way.
    pub(super) write: Latency,
    /// RDMA WRITE by this side.
    pub(super) write_out: f64,
    /// RDMA WRITE by the other side.
    pub(super) write_in: f64,
    /// RDMA READ by this side.
    pub(super) read_in: f64,
    /// RDMA READ by the other side.
    pub(super) read_out: f64,
}

impl Latency {
    const MAX: u64 = 60_000_000_000;

    pub(super) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, Self::MAX, 3).expect("the bounds are right"))
    }

    /// Records one round trip, unless it belongs to the warm-up.
    pub(super) fn record(&mut self, counts: bool, took: Duration) {
        if counts {
            self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(Self::MAX));
        }
    }

    /// Minimum, median, 99 % and 99.9 % quantiles, maximum; in microseconds.
    fn figures(&self) -> [(&'static str, f64); 5] {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        let (min, max) = (self.0.min() as f64 / 1e3, self.0.max() as f64 / 1e3);
        [("min", min), ("median", at(0.5)), ("p99", at(0.99)), ("p99.9", at(0.999)), ("max", max)]
    }

    fn json(&self) -> Value {
        let mut fields: serde_json::Map<_, _> =
            self.figures().iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        fields.insert("count".to_owned(), self.0.len().into());
        fields.into()
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (_, value) in self.figures() {
            let _ = write!(text, "{value:>10.1}");
        }
        let _ = write!(text, "   of {}", self.0.len());
        text
    }
}

impl Measured {
    const MIB: f64 = 1_048_576.0;

    /// Latencies in µs, bandwidths in MiB/s.
    pub(super) fn json(&self) -> Value {
        json!({
            "send_round_trip_us": self.send.json(), "write_one_way_us": self.write.json(),
            "write_out_mib_s": self.write_out / Self::MIB, "write_in_mib_s": self.write_in / Self::MIB,
            "read_out_mib_s": self.read_out / Self::MIB, "read_in_mib_s": self.read_in / Self::MIB,
        })
    }

    pub(super) fn text(&self) -> String {
        let mib = |bytes: f64| format!("{:>10.1}", bytes / Self::MIB);
        let names: String = self.send.figures().iter().map(|(name, _)| format!("{name:>10}")).collect();
        format!(
            "  µs                {names}\n  SEND, round trip  {}\n  WRITE, one way    {}\n\
             \x20 MiB/s                  out        in   (64 KiB, 16 at once)\n  WRITE             {}{}\n  READ              {}{}",
            self.send.text(),
            self.write.text(),
            mib(self.write_out),
            mib(self.write_in),
            mib(self.read_out),
            mib(self.read_in),
        )
    }
}
