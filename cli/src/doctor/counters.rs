//! Error and congestion counters, read twice, each with a verdict.

use super::meaning::{self, Meaning, Weight};
use nvmf_rdma_devices::{Machine, sysfs};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where a counter is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// A port's `counters/`.
    Port,
    /// A port's `hw_counters/`.
    Hardware,
    /// `ethtool -S`.
    Ethtool,
    /// An interface's `statistics/`.
    Netdev,
    /// `/proc/net/snmp` and `/proc/net/netstat`.
    Tcp,
}

/// Identifies a counter: its source, the port or interface, its name.
type Key = (Source, String, String);

/// All counters at one moment.
#[derive(Debug, Default, Clone)]
pub(super) struct Reading(BTreeMap<Key, u64>);

/// The assessment of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    Ok,
    Watch,
    Bad,
}

/// A counter of errors or congestion, with its assessment.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) source: Source,
    /// `rxe0/1`, `eth0`, `tcp`.
    pub(super) on: String,
    pub(super) name: String,
    /// Since boot, or since the driver was loaded.
    pub(super) total: u64,
    /// Its growth between the two readings.
    pub(super) delta: u64,
    pub(super) verdict: Verdict,
    pub(super) meaning: &'static Meaning,
}

/// What an interface's driver counts, as `ethtool -S` prints it; `None` when the program is not there.
pub(super) type Statistics<'a> = dyn Fn(&str) -> Option<String> + 'a;

impl Reading {
    /// Reads all counters of all ports, and of the interfaces that are named.
    pub(super) fn take(root: &Path, machine: &Machine, netdevs: &[String], ethtool: &Statistics<'_>) -> Self {
        let mut reading = Self::default();
        for device in &machine.devices {
            for port in &device.ports {
                let on = format!("{}/{}", device.name, port.number);
                let folder = root
                    .join("sys/class/infiniband")
                    .join(&device.name)
                    .join("ports")
                    .join(port.number.to_string());
                reading.take_folder(Source::Port, &on, &folder.join("counters"));
                reading.take_folder(Source::Hardware, &on, &folder.join("hw_counters"));
            }
        }
        for netdev in netdevs {
            let folder = root.join("sys/class/net").join(netdev).join("statistics");
            reading.take_folder(Source::Netdev, netdev, &folder);
            for (name, value) in parse_ethtool(&ethtool(netdev).unwrap_or_default()) {
                reading.0.insert((Source::Ethtool, netdev.clone(), name), value);
            }
        }
        for file in ["proc/net/snmp", "proc/net/netstat"] {
            for (name, value) in parse_snmp(&sysfs::text(&root.join(file)).unwrap_or_default()) {
                reading.0.insert((Source::Tcp, "tcp".to_owned(), name), value);
            }
        }
        reading
    }

    fn take_folder(&mut self, source: Source, on: &str, folder: &Path) {
        for name in sysfs::names(folder).unwrap_or_default() {
            if let Some(value) = sysfs::number(&folder.join(&name)) {
                self.0.insert((source, on.to_owned(), name), value);
            }
        }
    }

    /// The counters with their assessments, after a second reading.
    pub(super) fn judge(&self, second: &Self) -> Vec<Counter> {
        let counters = second.0.iter().filter_map(|((source, on, name), &total)| {
            let meaning = meaning::of_counter(*source, name)?;
            let key = (*source, on.clone(), name.clone());
            // A reloaded driver counts from zero.
            let delta = total.saturating_sub(*self.0.get(&key).unwrap_or(&0));
            let verdict = match meaning.weight {
                Weight::Fault if delta > 0 => Verdict::Bad,
                Weight::Congestion if delta > 0 => Verdict::Watch,
                Weight::Fault if total > 0 => Verdict::Watch,
                _ => Verdict::Ok,
            };
            let (on, name) = (on.clone(), name.clone());
            Some(Counter { source: *source, on, name, total, delta, verdict, meaning })
        });
        counters.collect()
    }
}

impl Source {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::Hardware => "rdma",
            Self::Ethtool => "ethtool",
            Self::Netdev => "netdev",
            Self::Tcp => "tcp",
        }
    }
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Watch => "watch",
            Self::Bad => "bad",
        }
    }
}

impl Counter {
    /// One sentence: what it counts, and whether it is still growing.
    pub(super) fn sentence(&self) -> String {
        let meaning = self.meaning.meaning;
        match (self.total, self.delta) {
            (0, _) => format!("{meaning}: none"),
            (_, 0) => format!("{meaning}; not growing now"),
            (_, delta) => format!("{meaning}; {delta} just now"),
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "on": self.on, "source": self.source.name(), "name": self.name, "total": self.total,
            "delta": self.delta, "verdict": self.verdict.name(), "meaning": self.sentence(),
        })
    }
}

/// Runs `ethtool -S`. `None` when the program is not installed; no text when the driver counts nothing.
pub(super) fn ethtool(netdev: &str) -> Option<String> {
    let output =
        Command::new("ethtool").args(["-S", netdev]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.ok().map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The lines `     rx_discards_phy: 12` of `ethtool -S`.
fn parse_ethtool(text: &str) -> Vec<(String, u64)> {
    let lines = text.lines().filter_map(|line| {
        let (name, value) = line.rsplit_once(':')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    });
    lines.collect()
}

/// TCP's counters in the form of `/proc/net/snmp`: a line of names, then a line of values.
fn parse_snmp(text: &str) -> Vec<(String, u64)> {
    let lines: Vec<_> = text.lines().collect();
    let mut counters = Vec::new();
    for pair in lines.chunks_exact(2) {
        let (mut names, mut values) = (pair[0].split_whitespace(), pair[1].split_whitespace());
        let title = names.next();
        if matches!(title, Some("Tcp:" | "TcpExt:")) && values.next() == title {
            let known =
                names.zip(values).filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
            counters.extend(known);
        }
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_rdma_devices::fixture;
    use proptest::prelude::*;

    const ETHTOOL: &str = "NIC statistics:\n     rx_packets: 12\n     rx_discards_phy: 7\n     rx0_drops: 9\n     rx_prio3_pause: 4\n";

    fn readings(changes: &[(&str, &str)]) -> Vec<Counter> {
        let root = tempfile::tempdir().expect("a folder");
        let addresses = fixture::plant(fixture::MLX5, root.path()).expect("a fixture");
        let machine = Machine::read_at(root.path(), &addresses).expect("a machine");
        let netdevs = ["ens1np0".to_owned()];
        let read = || Reading::take(root.path(), &machine, &netdevs, &|_| Some(ETHTOOL.to_owned()));
        let first = read();
        for (path, value) in changes {
            std::fs::write(root.path().join(path), value).expect("a counter");
        }
        first.judge(&read())
    }

    fn find<'a>(counters: &'a [Counter], on: &str, name: &str) -> &'a Counter {
        counters.iter().find(|counter| counter.on == on && counter.name == name).expect(name)
    }

    #[test]
    fn growing_fault_is_bad() {
        let path = "sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer";
        let counters = readings(&[(path, "2400\n")]);
        let counter = find(&counters, "mlx5_0/1", "out_of_buffer");
        assert_eq!((counter.total, counter.delta, counter.verdict), (2400, 89, Verdict::Bad));
        assert_eq!(counter.sentence(), "messages that found no receive posted; 89 just now");
    }

    #[test]
    fn past_fault_is_watched_and_past_congestion_is_ok() {
        let counters = readings(&[]);
        assert_eq!(find(&counters, "mlx5_0/1", "out_of_sequence").verdict, Verdict::Watch);
        assert_eq!(find(&counters, "mlx5_0/1", "np_cnp_sent").verdict, Verdict::Ok);
        assert_eq!(find(&counters, "mlx5_1/1", "out_of_sequence").verdict, Verdict::Ok);
        assert_eq!(find(&counters, "ens1np0", "rx_discards_phy").verdict, Verdict::Watch);
        assert_eq!(find(&counters, "ens1np0", "rx_prio3_pause").total, 4);
    }

    #[test]
    fn reset_counter_did_not_grow() {
        let path = "sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence";
        let counters = readings(&[(path, "0\n")]);
        assert_eq!(find(&counters, "mlx5_0/1", "out_of_sequence").delta, 0);
    }

    #[test]
    fn tcp_counters_are_read_from_pairs_of_lines() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm RtoMax RetransSegs\nTcp: 1 -1 17\n";
        assert_eq!(parse_snmp(text), [("RtoAlgorithm".to_owned(), 1), ("RetransSegs".to_owned(), 17)]);
    }

    proptest! {
        #[test]
        fn no_text_stops_the_parsers(text in "(.{0,20}[:\n ]){0,12}") {
            let _ = (parse_ethtool(&text), parse_snmp(&text));
        }

        #[test]
        fn what_ethtool_prints_is_read_back(counters in prop::collection::vec(("[a-z0-9_.]{1,20}", any::<u64>()), 0..9)) {
            let text: String = counters.iter().map(|(name, value)| format!("     {name}: {value}\n")).collect();
            prop_assert_eq!(parse_ethtool(&text), counters);
        }
    }
}
