//! `cargo xtask bench`: alternating measurements of this project and its peers on this machine, for the table in
//! docs/PERFORMANCE.md.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | the command |
//! | `row` | the rows of the table: workloads, peers and goals |
//! | `comparison` | alternating measurements of all sides |
//! | `series` | medians, ratios, goals |
//! | `site` | cores, folders, programs and servers |
//! | `workload` | the workloads, with fio's terms |
//! | `transport` | the transports, with each program's terms |
//! | `ours` | this project's target and clients, and bare TCP |
//! | `fio`, `nbd`, `spdk` | the peers, and parsers of their reports |
//! | `copy` | programs that use an NBD disk |
//! | `read` | reads of a whole disk, by `nvmf read` and by the library |
//! | `interrupts` | where a disk's interrupts arrive |
//! | `kernel` | the kernel lab's figures |
//! | `idle` | the cost of idle connections |
//! | `machine`, `table`, `plot` | the output: description of the machine, table and chart |

mod comparison;
mod copy;
mod fio;
mod idle;
mod interrupts;
mod kernel;
mod machine;
mod nbd;
mod ours;
mod plot;
mod read;
mod row;
mod series;
mod site;
mod spdk;
mod table;
mod transport;
mod workload;

use crate::step;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use row::Row;
use site::{Cores, Site};
use std::path::PathBuf;
use table::Table;

#[derive(clap::Args)]
pub(crate) struct Bench {
    /// Measure only these rows; docs/PERFORMANCE.md is not updated
    #[arg(long, value_name = "ROW", num_args = 1.., value_delimiter = ',')]
    only: Vec<Row>,
    /// Number of rounds; each round measures every side once
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Duration of the measurement of an idle target, in seconds
    #[arg(long, default_value_t = 60)]
    idle_seconds: u64,
    /// Cores of the target and of the initiator
    #[arg(long, default_value = "0,1")]
    cores: Cores,
    /// Also run the kernel lab's scenarios figures-rxe, figures-tcp, figures-tls, figures-ublk, figures-vhost
    /// and figures-failover
    #[arg(long)]
    lab: bool,
    /// Write HTML pages with plots of nvmf-bench's last rounds into this folder
    #[arg(long, value_name = "FOLDER")]
    html: Option<PathBuf>,
    /// Folder for the file of the row `file`, on the disk to measure
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl Bench {
    pub(crate) fn run(&self) -> Result<()> {
        ensure!(
            self.rounds > 0 && self.seconds > 0 && self.idle_seconds > 0,
            "--rounds, --seconds and --idle-seconds must be at least 1"
        );
        ensure!(step::on_path("taskset"), "taskset is missing: install util-linux");
        let build = ["build", "--release", "-p", "nvmf-target", "-p", "nvmf-cli", "-p", "nvmf-bench"];
        step::run("building nvmf-target, nvmf and nvmf-bench (release)", &mut step::cargo(&build))?;
        let site = self.site()?;
        let mut entries = Vec::new();
        for row in Row::value_variants() {
            if self.only.is_empty() || self.only.contains(row) {
                for comparison in row.comparisons(&site)? {
                    entries.extend(comparison.run(self.rounds)?);
                }
            }
        }
        let lab = if self.lab { kernel::measure()? } else { Vec::new() };
        let machine = machine::facts(self.cores)?;
        let table = Table { machine, rounds: self.rounds, seconds: self.seconds, entries, lab };
        println!("\n{}", table.text());
        // An incomplete table is only printed, not written into the document.
        if self.only.is_empty() {
            table.write_into(&step::root().join("docs/PERFORMANCE.md"))?;
            plot::write(
                &[&table.entries[..], &table.lab[..]].concat(),
                &step::root().join("docs/performance.svg"),
            )?;
        }
        Ok(())
    }

    fn site(&self) -> Result<Site> {
        let build = step::root().join(".build");
        let folder = self.folder.clone().unwrap_or_else(|| build.join("bench"));
        for folder in [Some(&folder), self.html.as_ref()].into_iter().flatten() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        Ok(Site {
            cores: self.cores,
            seconds: self.seconds,
            idle_seconds: self.idle_seconds,
            folder: std::path::absolute(folder)?,
            programs: build.join("release"),
            html: self.html.as_deref().map(std::path::absolute).transpose()?,
        })
    }
}
