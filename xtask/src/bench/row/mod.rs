//! The rows of the table: workloads, peers and goals.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | the names of the rows |
//! | `remote` | a memory disk of our target with our initiator, against bare TCP, SPDK, and ours in other conditions |
//! | `nbd` | NBD servers, and a disk that `nvmf attach` serves on a socket |
//! | `file` | a file on the local disk |
//! | `target` | the target alone: fairness, idle connections, memory |

mod file;
mod nbd;
mod remote;
mod target;

use super::comparison::{Comparison, Measure};
use super::fio::Report;
use super::ours::{self, Client, Export, Polling};
use super::series::Goal;
use super::site::Site;
use super::transport::Transport;
use super::workload::Workload;
use anyhow::Result;
use clap::ValueEnum;
use core::fmt;

/// A row, as named by `--only`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Row {
    /// 4 KiB random reads, one at a time, against a bare TCP round trip
    Latency,
    /// 4 KiB random reads, 32 in flight, against the same bytes over bare TCP, on iWARP and over NVMe/TCP
    Exchange,
    /// 4 KiB random reads and writes, 32 in flight, against SPDK's NVMe/TCP
    Spdk,
    /// 4 KiB random reads, 32 in flight, against NBD servers
    Nbd,
    /// 128 KiB sequential reads and writes, against a bare TCP stream
    Stream,
    /// 4 KiB random reads with the defaults on both sides, also by the async library, against busy polling
    Defaults,
    /// 4 KiB random reads over two paths, 64 in flight, against one path
    Paths,
    /// 4 KiB random reads with the defaults, while another process wants both cores, against sleeping at once
    Load,
    /// 1 GiB read by the library into a program's memory, against `nvmf read`
    Read,
    /// A disk that `nvmf attach` serves on a socket, under fio, nbdcopy and qemu-img bench, against nbdkit's
    Disk,
    /// `latency` over NVMe/TCP
    TcpLatency,
    /// 4 KiB random reads and writes of SPDK's perf tool, 32 in flight, on our target against SPDK's
    TcpTarget,
    /// `spdk` over NVMe/TCP, and reads with 128 in flight
    TcpSpdk,
    /// `spdk` over NVMe/TCP, both with both digests
    TcpDigests,
    /// `stream` over NVMe/TCP
    TcpStream,
    /// 128 KiB sequential reads and writes over NVMe/TCP with TLS, against the same without it
    TcpTls,
    /// 4 KiB random reads of a file with the defaults, against fio's `io_uring` on the same file
    File,
    /// 4 KiB random reads, one at a time, with and without a second host with 128 in flight
    Fairness,
    /// Processor time of an idle target with a thousand queue pairs
    Idle,
    /// Memory of a connected queue pair
    Memory,
}

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
    /// A job with busy polling on both sides.
    fn busy(self, transport: Transport, workload: Workload) -> Job {
        Job { row: self, transport, workload, polling: Polling::Busy, client: Client::OwnThread }
    }

    pub(super) fn comparisons(self, site: &Site) -> Result<Vec<Comparison<'_>>> {
        let iwarp = |workload| self.busy(Transport::Iwarp, workload);
        let tcp = |workload| self.busy(Transport::Tcp, workload);
        Ok(match self {
            Self::Latency => {
                vec![remote::latency(site, iwarp(Workload::READS_ONE), Goal { least: 1.5, aim: 1.15 })]
            }
            Self::Exchange => {
                let jobs = [iwarp(Workload::READS_MANY), tcp(Workload::READS_MANY)];
                jobs.map(|job| remote::against_exchange(site, job, Goal { least: 0.7, aim: 0.85 })).into()
            }
            Self::Spdk => {
                let jobs = [Workload::READS_MANY, Workload::WRITES_MANY].map(iwarp);
                jobs.map(|job| remote::against_spdk(site, job, Goal { least: 1.2, aim: 2.0 })).into()
            }
            Self::Nbd => nbd::servers(site, iwarp(Workload::READS_MANY)),
            Self::Stream => {
                let jobs = STREAMS.map(iwarp);
                jobs.map(|job| remote::stream(site, job, Goal { least: 0.8, aim: 0.95 })).into()
            }
            Self::Defaults => remote::defaults(site, self),
            Self::Paths => {
                let jobs = [iwarp(Workload::reads(64)), tcp(Workload::reads(64))];
                jobs.map(|job| remote::over_two_paths(site, job, Goal { least: 1.0, aim: 1.5 })).into()
            }
            Self::Load => {
                let jobs = [1, 16].map(|iodepth| iwarp(Workload::reads(iodepth)));
                jobs.map(|job| remote::under_load(site, job, Goal { least: 0.8, aim: 1.0 })).into()
            }
            Self::Read => remote::reads(site, Goal { least: 0.9, aim: 1.0 }),
            Self::Disk => nbd::attached(site, Goal { least: 1.0, aim: 1.5 }),
            Self::TcpLatency => {
                vec![remote::latency(site, tcp(Workload::READS_ONE), Goal { least: 1.3, aim: 1.1 })]
            }
            Self::TcpTarget => {
                let jobs = [Workload::READS_MANY, Workload::WRITES_MANY].map(tcp);
                jobs.map(|job| remote::under_perf(site, job, Goal { least: 1.15, aim: 1.5 })).into()
            }
            Self::TcpSpdk => {
                let jobs = [Workload::READS_MANY, Workload::WRITES_MANY, Workload::READS_DEEP].map(tcp);
                jobs.map(|job| remote::against_spdk(site, job, Goal { least: 1.2, aim: 1.5 })).into()
            }
            Self::TcpDigests => {
                let job = self.busy(Transport::TcpDigests, Workload::READS_MANY);
                vec![remote::against_spdk(site, job, Goal { least: 1.2, aim: 1.5 })]
            }
            Self::TcpStream => {
                let jobs = STREAMS.map(tcp);
                jobs.map(|job| remote::stream(site, job, Goal { least: 0.85, aim: 0.95 })).into()
            }
            Self::TcpTls => {
                let jobs = STREAMS.map(|workload| self.busy(Transport::TcpTls, workload));
                jobs.map(|job| remote::against_plain(site, job, Goal { least: 0.5, aim: 0.8 })).into()
            }
            Self::File => file::depths(site, Goal { least: 0.95, aim: 1.0 })?,
            Self::Fairness => vec![target::fairness(site)],
            Self::Idle => target::idle(site),
            Self::Memory => vec![target::memory(site)],
        })
    }
}

/// A workload of a row.
#[derive(Debug, Clone, Copy)]
struct Job {
    row: Row,
    transport: Transport,
    workload: Workload,
    polling: Polling,
    client: Client,
}

impl Job {
    /// What is measured on a memory disk.
    fn what(&self) -> String {
        format!("{}, {}, memory backend{self}", self.workload, self.transport)
    }

    /// The name of its HTML page, which no other job has.
    fn page(&self) -> String {
        let row = self.row.to_possible_value().map(|row| row.get_name().to_owned()).unwrap_or_default();
        let Workload { rw, iodepth, .. } = self.workload;
        let words = self.to_string().replace(", ", "-").replace(' ', "-");
        format!("{row}-{}-{rw}-{iodepth}{words}", self.transport.page())
    }

    /// Runs it with our initiator on our target, which has this disk.
    fn run_on(&self, site: &Site, export: &Export) -> Result<Report> {
        ours::run(site, export, self.client, &self.workload, &self.page())
    }

    /// Runs it on a memory disk.
    fn run(&self, site: &Site) -> Result<Report> {
        self.run_on(site, &Export::memory(self.transport, self.polling))
    }
}

/// How it differs from busy polling on both sides, each detail after a comma.
impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.client == Client::Async {
            f.write_str(", async library")?;
        }
        f.write_str(match self.polling {
            Polling::Busy => "",
            Polling::Default => ", defaults",
            Polling::Interrupt => ", sleeping",
        })
    }
}
