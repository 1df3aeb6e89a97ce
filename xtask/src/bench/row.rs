//! The rows of the table: workloads, peers and goals.

use super::comparison::{Comparison, Measure, Peer};
use super::fio::Report;
use super::nbd::Kind;
use super::ours::{self, Export};
use super::series::{Goal, Unit};
use super::site::Site;
use super::transport::Transport;
use super::workload::Workload;
use super::{fio, idle, nbd, spdk};
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A row, as named by `--only`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Row {
    /// 4 KiB random reads, one at a time, against a bare TCP round trip
    Latency,
    /// 4 KiB random reads, 32 in flight, against SPDK's NVMe/TCP
    Spdk,
    /// 4 KiB random reads, 32 in flight, against NBD servers
    Nbd,
    /// 128 KiB sequential reads and writes, against a bare TCP stream
    Stream,
    /// `latency` over NVMe/TCP
    TcpLatency,
    /// 4 KiB random reads and writes of SPDK's perf tool, 32 in flight, on our target against SPDK's
    TcpTarget,
    /// `spdk` over NVMe/TCP, 32 and 128 in flight
    TcpSpdk,
    /// `spdk` over NVMe/TCP, both with both digests
    TcpDigests,
    /// `stream` over NVMe/TCP
    TcpStream,
    /// 128 KiB sequential reads and writes over NVMe/TCP with TLS, against the same without it
    TcpTls,
    /// 4 KiB random reads of a file, against fio's `io_uring` on the same file
    File,
    /// 4 KiB random reads, one at a time, with and without a second host with 128 in flight
    Fairness,
    /// Processor time of an idle target with a thousand queue pairs
    Idle,
    /// Memory of a connected queue pair
    Memory,
}

/// Size of the file that is read, bytes.
const FILE: u64 = 1 << 30;
/// Most warm-up reads of the file before the measurement.
const SETTLING_MAX: usize = 10;
const STREAMS: [Workload; 2] = [Workload::STREAM_IN, Workload::STREAM_OUT];

fn measure<'a>(act: impl FnMut() -> Result<f64> + 'a) -> Result<Measure<'a>, String> {
    unless(None, act)
}

/// Like `measure`, unless something is not installed.
fn unless<'a>(missing: Option<String>, act: impl FnMut() -> Result<f64> + 'a) -> Result<Measure<'a>, String> {
    match missing {
        Some(missing) => Err(missing),
        None => Ok(Box::new(act)),
    }
}

impl Row {
    /// The name of the HTML page of a job, which no other job has.
    fn page(self, workload: &Workload) -> String {
        let row = self.to_possible_value().map(|row| row.get_name().to_owned()).unwrap_or_default();
        format!("{row}-{}-{}", workload.rw, workload.iodepth)
    }

    pub(super) fn comparisons(self, site: &Site) -> Result<Vec<Comparison<'_>>> {
        let over = |transport, workload| Job { row: self, transport, workload };
        let iwarp = |workload| over(Transport::Iwarp, workload);
        let tcp = |workload| over(Transport::Tcp, workload);
        Ok(match self {
            Self::Latency => {
                vec![latency(site, iwarp(Workload::READS_ONE), Goal { least: 1.5, aim: 1.15 })]
            }
            Self::Spdk => {
                vec![against_spdk(site, iwarp(Workload::READS_MANY), Goal { least: 1.2, aim: 2.0 })]
            }
            Self::Nbd => vec![against_nbd(site, iwarp(Workload::READS_MANY))],
            Self::Stream => {
                let jobs = STREAMS.map(iwarp);
                jobs.map(|job| stream(site, job, Goal { least: 0.8, aim: 0.95 })).into()
            }
            Self::TcpLatency => {
                vec![latency(site, tcp(Workload::READS_ONE), Goal { least: 1.3, aim: 1.1 })]
            }
            Self::TcpTarget => {
                let jobs = [Workload::READS_MANY, Workload::WRITES_MANY].map(tcp);
                jobs.map(|job| under_perf(site, job, Goal { least: 1.15, aim: 1.5 })).into()
            }
            Self::TcpSpdk => {
                let jobs = [Workload::READS_MANY, Workload::READS_DEEP].map(tcp);
                jobs.map(|job| against_spdk(site, job, Goal { least: 1.2, aim: 1.5 })).into()
            }
            Self::TcpDigests => {
                let job = over(Transport::TcpDigests, Workload::READS_MANY);
                vec![against_spdk(site, job, Goal { least: 1.2, aim: 1.5 })]
            }
            Self::TcpStream => {
                let jobs = STREAMS.map(tcp);
                jobs.map(|job| stream(site, job, Goal { least: 0.85, aim: 0.95 })).into()
            }
            Self::TcpTls => {
                let jobs = STREAMS.map(|workload| over(Transport::TcpTls, workload));
                jobs.map(|job| against_plain(site, job, Goal { least: 0.5, aim: 0.8 })).into()
            }
            Self::File => vec![file(site)?],
            Self::Fairness => vec![fairness(site)],
            Self::Idle => idle_target(site),
            Self::Memory => vec![memory(site)],
        })
    }
}

/// A workload of a row on a memory disk.
#[derive(Debug, Clone, Copy)]
struct Job {
    row: Row,
    transport: Transport,
    workload: Workload,
}

impl Job {
    fn what(&self) -> String {
        format!("{}, {}, memory backend", self.workload, self.transport)
    }

    /// Runs it with our initiator on our target.
    fn run(&self, site: &Site) -> Result<Report> {
        ours::run(site, &Export::memory(self.transport), &self.workload, &self.row.page(&self.workload))
    }
}

fn latency(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let ours = move || job.run(site)?.latency_p50.context("nvmf-bench reported no latency");
    Comparison {
        what: format!("{}, round trip at the median", job.what()),
        unit: Unit::RoundTrip,
        ours: measure(ours),
        goal: None,
        peers: vec![Peer {
            name: "bare TCP ping-pong of the same sizes, busy polling",
            goal: Some(goal),
            measure: measure(move || ours::bare_round_trip(site, job.transport)),
        }],
    }
}

fn against_spdk(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let spdk = move || Ok(spdk::run(site, job.transport, &job.workload)?.iops);
    Comparison {
        what: job.what(),
        unit: Unit::Iops,
        ours: measure(move || Ok(job.run(site)?.iops)),
        goal: None,
        peers: vec![Peer {
            name: "SPDK's NVMe/TCP target and its perf tool",
            goal: Some(goal),
            measure: unless(spdk::missing(), spdk),
        }],
    }
}

/// SPDK's perf tool on our target and on SPDK's.
fn under_perf(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let ours = move || {
        let target = ours::serve(site, &Export::memory(job.transport))?;
        let report = spdk::perf(site, target.address, ours::NQN, job.transport, &job.workload)?;
        target.stop()?;
        Ok(report.iops)
    };
    let spdk = move || Ok(spdk::run(site, job.transport, &job.workload)?.iops);
    Comparison {
        what: format!("{}, under SPDK's perf tool", job.what()),
        unit: Unit::Iops,
        ours: unless(spdk::missing(), ours),
        goal: None,
        peers: vec![Peer {
            name: "SPDK's NVMe/TCP target under the same",
            goal: Some(goal),
            measure: unless(spdk::missing(), spdk),
        }],
    }
}

fn against_nbd(site: &Site, job: Job) -> Comparison<'_> {
    let with_fio = move |kind: nbd::Kind| {
        let missing = kind.missing().or_else(|| fio::missing("nbd"));
        unless(missing, move || {
            let report =
                kind.with(site, |uri| fio::run(site, "nbd", &[format!("--uri={uri}")], &job.workload));
            Ok(report?.iops)
        })
    };
    let with_ours = move || {
        let report = Kind::Nbdkit.with(site, |uri| ours::run_nbd(site, uri, &job.workload));
        Ok(report?.iops)
    };
    Comparison {
        what: job.what(),
        unit: Unit::Iops,
        ours: measure(move || Ok(job.run(site)?.iops)),
        goal: None,
        peers: vec![
            Peer {
                name: "nbdkit's memory plugin and fio's nbd engine",
                goal: Some(Goal { least: 3.0, aim: 6.0 }),
                measure: with_fio(Kind::Nbdkit),
            },
            Peer {
                name: "nbdkit's memory plugin and nvmf-bench's nbd engine",
                goal: None,
                measure: unless(Kind::Nbdkit.missing(), with_ours),
            },
            Peer {
                name: "qemu-nbd on null-co and fio's nbd engine",
                goal: None,
                measure: with_fio(Kind::QemuNbd),
            },
        ],
    }
}

fn stream(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let (target, initiator) = (site.cores.target, site.cores.initiator);
    let (from, to) = match job.workload {
        Workload::STREAM_OUT => (initiator, target),
        _ => (target, initiator),
    };
    let bare = measure(move || ours::bare_stream(site, from, to));
    bandwidth(site, job, Peer { name: "bare TCP stream the same way", goal: Some(goal), measure: bare })
}

/// Our own programs, with and without TLS.
fn against_plain(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let plain = Job { transport: Transport::Tcp, ..job };
    let of_plain = measure(move || Ok(plain.run(site)?.bytes_per_second));
    bandwidth(site, job, Peer { name: "the same without TLS", goal: Some(goal), measure: of_plain })
}

fn bandwidth<'a>(site: &'a Site, job: Job, peer: Peer<'a>) -> Comparison<'a> {
    Comparison {
        what: job.what(),
        unit: Unit::Bandwidth,
        ours: measure(move || Ok(job.run(site)?.bytes_per_second)),
        goal: None,
        peers: vec![peer],
    }
}

fn file(site: &Site) -> Result<Comparison<'_>> {
    let path = make_file(&site.folder)?;
    if fio::missing("io_uring").is_none() {
        settle(site, &path)?;
    }
    let (mine, theirs) = (path.clone(), path);
    let page = Row::File.page(&Workload::READS_MANY);
    let ours = move || Ok(ours::run(site, &Export::file(&mine), &Workload::READS_MANY, &page)?.iops);
    let fio = move || Ok(fio::on_file(site, &theirs, &Workload::READS_MANY)?.iops);
    Ok(Comparison {
        what: format!("{}, {}, a file on the local disk", Workload::READS_MANY, Transport::Iwarp),
        unit: Unit::Iops,
        ours: measure(ours),
        goal: None,
        peers: vec![Peer {
            name: "fio's io_uring engine, O_DIRECT, on the same file",
            goal: Some(Goal { least: 0.9, aim: 0.97 }),
            measure: unless(fio::missing("io_uring"), fio),
        }],
    })
}

/// Reads a new file until reads get no faster, because the disk may still be busy with writing it.
fn settle(site: &Site, path: &Path) -> Result<()> {
    let mut last = 0.0;
    for _ in 0..SETTLING_MAX {
        let iops = fio::on_file(site, path, &Workload::READS_MANY)?.iops;
        if iops < 1.1 * last {
            break;
        }
        last = iops;
    }
    Ok(())
}

/// Creates a file without holes.
fn make_file(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("disk.img");
    if std::fs::metadata(&path).is_ok_and(|file| file.len() == FILE) {
        return Ok(path);
    }
    let mut file = std::fs::File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 4) as u8).collect();
    for _ in 0..FILE >> 20 {
        file.write_all(&block).with_context(|| format!("cannot write {}", path.display()))?;
    }
    file.sync_all()?;
    Ok(path)
}

fn fairness(site: &Site) -> Comparison<'_> {
    const HEAVY: u16 = 128;
    Comparison {
        what: "4 KiB random read, depth 1, beside a host with 128 in flight, round trip at the median".into(),
        unit: Unit::RoundTrip,
        ours: measure(move || ours::beside(site, HEAVY)),
        goal: None,
        peers: vec![Peer {
            name: "the same without that host",
            goal: Some(Goal { least: 3.0, aim: 2.0 }),
            measure: measure(move || ours::beside(site, 0)),
        }],
    }
}

fn idle_target(site: &Site) -> Vec<Comparison<'_>> {
    let goal = Some(Goal { least: 0.01, aim: 0.0005 });
    let shapes = [
        ("idle target, 1,000 queue pairs connected (10 hosts, 100 each)", 10, 99),
        ("idle target, 1,000 queue pairs connected (500 hosts, 2 each)", 500, 1),
    ];
    let comparison = |(what, hosts, io_queues): (&str, _, _)| Comparison {
        what: what.into(),
        unit: Unit::Core,
        ours: measure(move || idle::processor(site, hosts, io_queues)),
        goal,
        peers: Vec::new(),
    };
    shapes.into_iter().map(comparison).collect()
}

fn memory(site: &Site) -> Comparison<'_> {
    Comparison {
        what: "resident memory of a connected queue pair, depth 128, 8 KiB in-capsule data".into(),
        unit: Unit::Memory,
        ours: measure(move || idle::memory(site)),
        // The aim is an estimate: with shared receive queues, the memory is a fraction of the minimum goal.
        goal: Some(Goal { least: 1.5 * f64::from(1 << 20), aim: 0.5 * f64::from(1 << 20) }),
        peers: Vec::new(),
    }
}
