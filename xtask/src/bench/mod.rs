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
//! | `pace` | how near to each other both cores are |
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
mod pace;
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
use comparison::Entry;
use nvmf_tests::cleanup::Cleanup;
use pace::Pace;
use row::Row;
use site::{Cores, Site};
use std::path::PathBuf;
use table::Table;

/// How many cores other work may keep busy beside a measurement.
const OTHER_WORK_MAX: f64 = 0.05;

#[derive(clap::Args)]
pub(crate) struct Bench {
    /// Measure only these rows
    #[arg(long, value_name = "ROW", num_args = 1.., value_delimiter = ',')]
    only: Vec<Row>,
    /// Write the table and its chart into docs/PERFORMANCE.md and docs/performance.svg. Needs cores that nothing else uses
    #[arg(long, conflicts_with = "only")]
    publish: bool,
    /// Number of rounds; each round measures every side once. In six, each is first, second or third equally often
    #[arg(long, default_value_t = 6)]
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
    /// Print the commands that are run
    #[arg(long, short)]
    verbose: bool,
    /// Also run the kernel lab's scenarios figures-rxe, figures-tcp, figures-tls, figures-ublk-rxe, figures-ublk-tcp, figures-vhost,
    /// figures-failover and figures-load
    #[arg(long)]
    lab: bool,
    /// Write HTML pages with plots of nvmf-bench's last rounds into this folder
    #[arg(long, value_name = "FOLDER")]
    html: Option<PathBuf>,
    /// Folder on the disk to measure: the row `file` makes a file of 1 GiB there, in a folder that is removed at the end
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
        pace::check(self.cores)?;
        let build = ["build", "--release", "-p", "nvmf-target", "-p", "nvmf-cli", "-p", "nvmf-bench"];
        step::run("building nvmf-target, nvmf and nvmf-bench (release)", &mut step::cargo(&build))?;
        let other_work = machine::other_work(self.cores)?;
        if other_work > OTHER_WORK_MAX {
            let text = format!(
                "other work keeps {other_work:.2} of the cores {} busy: what is measured beside it says little",
                self.cores
            );
            ensure!(!self.publish, "{text}, and is not published");
            eprintln!("{text}");
        }
        let site = self.site()?;
        let mut pace = Pace::of(self.cores)?;
        let mut entries = Vec::new();
        for row in Row::value_variants() {
            if self.only.is_empty() || self.only.contains(row) {
                match row.comparisons(&site) {
                    Ok(all) => {
                        for comparison in all {
                            entries.extend(comparison.run(self.rounds, self.cores, &mut pace));
                        }
                    }
                    Err(error) => {
                        let name = row.to_possible_value().map_or(String::new(), |it| it.get_name().into());
                        eprintln!("{name}: did not run: {error:#}");
                        entries.push(Entry::of_failure(name, &error));
                    }
                }
            }
        }
        let lab = if self.lab { kernel::measure() } else { Vec::new() };
        let machine = format!("{}. {}", machine::facts(&site, other_work)?, pace.said());
        let table = Table { machine, rounds: self.rounds, seconds: self.seconds, entries, lab };
        println!("\n{}", table.text());
        let all = [&table.entries[..], &table.lab[..]].concat();
        let failed = all.iter().filter(|entry| entry.failed).count();
        ensure!(failed == 0, "{failed} line(s) of the table could not be measured");
        if self.publish {
            table.write_into(&step::root().join("docs/PERFORMANCE.md"))?;
            plot::write(&all, &step::root().join("docs/performance.svg"))?;
        }
        Ok(())
    }

    fn site(&self) -> Result<Site> {
        let build = step::root().join(".build");
        let folder = std::path::absolute(self.folder.clone().unwrap_or_else(|| build.join("bench")))?;
        for folder in [Some(&folder), self.html.as_ref()].into_iter().flatten() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let folder = tempfile::Builder::new().prefix("nvmf-bench-").tempdir_in(&folder)?.keep();
        let name = folder.to_str().context("the folder's name is not UTF-8")?;
        let cleanup = Cleanup::new("rm -rf \"$1\"", &[name])?;
        Ok(Site {
            cores: self.cores,
            seconds: self.seconds,
            idle_seconds: self.idle_seconds,
            hugepages: spdk::has_hugepages(),
            verbose: self.verbose,
            folder,
            _cleanup: cleanup,
            programs: build.join("release"),
            html: self.html.as_deref().map(std::path::absolute).transpose()?,
        })
    }
}
