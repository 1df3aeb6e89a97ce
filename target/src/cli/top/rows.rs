//! What happened between two looks at the metrics.

use crate::metrics::scrape::{Family, Scrape};
use crate::metrics::text::OTHER;
use core::time::Duration;
use serde::Serialize;

/// What `top` shows. It is also what `-o json` prints.
#[derive(Debug, Serialize)]
pub(super) struct Rows {
    /// Seconds between the looks.
    pub(super) interval_s: f64,
    /// The busiest first.
    pub(super) namespaces: Vec<NamespaceRow>,
    /// The busiest first.
    pub(super) hosts: Vec<HostRow>,
}

/// Reads and writes.
#[derive(Debug, Default, Serialize)]
pub(super) struct Rates {
    pub(super) reads_per_s: f64,
    pub(super) writes_per_s: f64,
    pub(super) others_per_s: f64,
    pub(super) read_bytes_per_s: f64,
    pub(super) write_bytes_per_s: f64,
    /// Since the start of the target.
    pub(super) errors: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct NamespaceRow {
    pub(super) subsystem: String,
    pub(super) nsid: String,
    pub(super) state: String,
    pub(super) size_bytes: f64,
    pub(super) rates: Rates,
    /// In microseconds; `null` where there was none in the interval.
    pub(super) read_p50_us: Option<f64>,
    pub(super) read_p99_us: Option<f64>,
    pub(super) write_p50_us: Option<f64>,
    pub(super) write_p99_us: Option<f64>,
    pub(super) in_flight: f64,
    pub(super) oldest_operation_s: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct HostRow {
    pub(super) host: String,
    pub(super) subsystem: String,
    pub(super) queues: f64,
    /// `null` where the host is not connected.
    pub(super) idle_s: Option<f64>,
    pub(super) rates: Rates,
}

type Labels<'a> = [(&'a str, &'a str)];

/// Two looks at the metrics.
struct Looks<'a> {
    before: &'a Scrape,
    now: &'a Scrape,
    seconds: f64,
}

impl Looks<'_> {
    /// How often a second. A target that was started again begins at zero.
    fn rate(&self, name: &str, labels: &Labels<'_>) -> f64 {
        let (before, now) = (self.before.sum(name, labels), self.now.sum(name, labels));
        (if now >= before { now - before } else { now }) / self.seconds
    }

    fn rates(&self, of: &str, labels: &Labels<'_>) -> Rates {
        let rate = |what: &str, operation: &str| {
            let labels: Vec<_> = labels.iter().copied().chain([("operation", operation)]).collect();
            self.rate(&format!("nvmf_target_{of}_{what}_total"), &labels)
        };
        Rates {
            reads_per_s: rate("operations", "read"),
            writes_per_s: rate("operations", "write"),
            others_per_s: rate("operations", "flush") + rate("operations", "other"),
            read_bytes_per_s: rate("transferred_bytes", "read"),
            write_bytes_per_s: rate("transferred_bytes", "write"),
            errors: self.now.sum(&format!("nvmf_target_{of}_errors_total"), labels),
        }
    }

    /// The time that this share of the operations in between did not exceed, in microseconds.
    fn quantile(&self, share: f64, labels: &Labels<'_>) -> Option<f64> {
        const NAME: &str = "nvmf_target_namespace_latency_seconds";
        let family = self.now.family(NAME)?;
        let buckets = family.samples.iter().filter(|it| it.suffix == "_bucket" && it.has(labels));
        let counts: Vec<(f64, f64)> = buckets
            .map(|bucket| {
                let le = bucket.label("le");
                let all: Vec<_> = labels.iter().copied().chain([("le", le)]).collect();
                let bound = if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap_or(f64::INFINITY) };
                (bound, self.rate(&format!("{NAME}_bucket"), &all) * self.seconds)
            })
            .collect();
        let wanted = counts.last()?.1 * share;
        if wanted <= 0.0 {
            return None;
        }
        let at = counts.iter().position(|&(_, count)| count >= wanted)?;
        let (from, before) = if at == 0 { (0.0, 0.0) } else { counts[at - 1] };
        let (to, count) = counts[at];
        let part = if to.is_finite() { (to - from) * (wanted - before) / (count - before) } else { 0.0 };
        Some((from + part) * 1e6)
    }

    fn namespace(&self, subsystem: &str, nsid: &str) -> NamespaceRow {
        let labels = [("subsystem", subsystem), ("nsid", nsid)];
        let of = |operation| [labels[0], labels[1], ("operation", operation)];
        let state = ["stuck", "missing", "served"].into_iter().find(|state| {
            self.now.sum("nvmf_target_namespace_state", &[labels[0], labels[1], ("state", state)]) > 0.0
        });
        let gauge = |name: &str| self.now.sum(&format!("nvmf_target_namespace_{name}"), &labels);
        NamespaceRow {
            subsystem: subsystem.to_owned(),
            nsid: nsid.to_owned(),
            state: state.unwrap_or_default().to_owned(),
            size_bytes: gauge("size_bytes"),
            rates: self.rates("namespace", &labels),
            read_p50_us: self.quantile(0.5, &of("read")),
            read_p99_us: self.quantile(0.99, &of("read")),
            write_p50_us: self.quantile(0.5, &of("write")),
            write_p99_us: self.quantile(0.99, &of("write")),
            in_flight: gauge("in_flight"),
            oldest_operation_s: gauge("oldest_operation_seconds"),
        }
    }

    fn host(&self, host: &str, subsystem: &str) -> HostRow {
        let labels = [("host", host), ("subsystem", subsystem)];
        let idle = self.now.family("nvmf_target_host_idle_seconds");
        HostRow {
            host: host.to_owned(),
            subsystem: subsystem.to_owned(),
            queues: self.now.sum("nvmf_target_host_queues", &labels),
            idle_s: idle.and_then(|it| it.samples.iter().find(|it| it.has(&labels))).map(|it| it.value),
            rates: self.rates("host", &labels),
        }
    }
}

/// The values of two labels in a family, each pair once.
fn pairs<'a>(family: Option<&'a Family>, one: &str, two: &str) -> Vec<(&'a str, &'a str)> {
    let samples = family.map_or(&[][..], |family| &family.samples);
    let mut pairs: Vec<_> = samples.iter().map(|it| (it.label(one), it.label(two))).collect();
    pairs.dedup();
    pairs
}

impl Rates {
    fn bytes(&self) -> f64 {
        self.read_bytes_per_s + self.write_bytes_per_s
    }

    fn operations(&self) -> f64 {
        self.reads_per_s + self.writes_per_s + self.others_per_s
    }

    fn is_nothing(&self) -> bool {
        self.operations() == 0.0 && self.errors == 0.0
    }

    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        other.bytes().total_cmp(&self.bytes()).then(other.operations().total_cmp(&self.operations()))
    }
}

impl Rows {
    /// What happened between two looks, so long apart.
    pub(super) fn between(before: &Scrape, now: &Scrape, interval: Duration) -> Self {
        let looks = Looks { before, now, seconds: interval.as_secs_f64() };
        let counted = pairs(now.family("nvmf_target_namespace_operations"), "subsystem", "nsid");
        let mut namespaces: Vec<_> = counted.iter().map(|(nqn, nsid)| looks.namespace(nqn, nsid)).collect();
        namespaces.retain(|row| row.nsid != OTHER || !row.rates.is_nothing());
        namespaces.sort_by(|a, b| a.rates.cmp(&b.rates));
        let counted = pairs(now.family("nvmf_target_host_errors"), "host", "subsystem");
        let mut hosts: Vec<_> = counted.iter().map(|(host, nqn)| looks.host(host, nqn)).collect();
        hosts.retain(|row| row.host != OTHER || !row.rates.is_nothing() || row.queues > 0.0);
        hosts.sort_by(|a, b| a.rates.cmp(&b.rates));
        Self { interval_s: looks.seconds, namespaces, hosts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(reads: u64, fast: u64) -> Scrape {
        let of = "subsystem=\"s\",nsid=\"1\"";
        let bucket = |le: &str, count| {
            format!(
                "nvmf_target_namespace_latency_seconds_bucket{{le=\"{le}\",{of},operation=\"read\"}} {count}\n"
            )
        };
        let text = format!(
            "# TYPE nvmf_target_namespace_operations counter\n\
             nvmf_target_namespace_operations_total{{{of},operation=\"read\"}} {reads}\n\
             # TYPE nvmf_target_namespace_latency_seconds histogram\n{}{}{}# EOF\n",
            bucket("0.0001", fast),
            bucket("0.0002", reads),
            bucket("+Inf", reads),
        );
        Scrape::parse(&text).unwrap()
    }

    #[test]
    fn rates_and_quantiles_are_those_of_the_interval() {
        let rows = Rows::between(&scrape(1000, 1000), &scrape(1200, 1100), Duration::from_secs(2));
        let row = &rows.namespaces[0];
        assert_eq!((row.nsid.as_str(), row.rates.reads_per_s), ("1", 100.0));
        assert_eq!((row.read_p50_us, row.write_p50_us), (Some(100.0), None));
        assert!((row.read_p99_us.unwrap() - 198.0).abs() < 0.01);
    }

    #[test]
    fn target_that_was_started_again_has_no_negative_rate() {
        let rows = Rows::between(&scrape(1000, 1000), &scrape(10, 10), Duration::from_secs(1));
        assert_eq!(rows.namespaces[0].rates.reads_per_s, 10.0);
    }
}
