//! `cargo xtask bench`: our figures against others', measured in turn on this machine, and the table of docs/PERFORMANCE.md.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod` | the command |
//! | `row` | what is measured, against whom, and what it must reach |
//! | `contest` | both sides in turn, round by round |
//! | `series` | medians, ratios, goals |
//! | `site` | cores, folder, programs, servers |
//! | `workload` | what both sides do, in fio's words |
//! | `ours` | our target and our clients; bare TCP |
//! | `fio`, `nbd`, `spdk` | the peers, and how their reports are read |
//! | `rxe` | the kernel lab's figures |
//! | `idle` | what connections cost that do nothing |
//! | `machine`, `table`, `plot` | what is printed and written |

mod contest;
mod fio;
mod idle;
mod machine;
mod nbd;
mod ours;
mod plot;
mod row;
mod rxe;
mod series;
mod site;
mod spdk;
mod table;
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
    /// Only these rows, and the document stays as it is
    #[arg(long, value_name = "ROW", num_args = 1.., value_delimiter = ',')]
    only: Vec<Row>,
    /// How often each side is measured, in turn
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// How long each measurement takes
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How long an idle target is watched
    #[arg(long, default_value_t = 20)]
    idle_seconds: u64,
    /// Core of whoever serves, core of whoever asks
    #[arg(long, default_value = "0,1")]
    cores: Cores,
    /// Also the kernel lab's scenario figures-rxe
    #[arg(long)]
    lab: bool,
    /// Put the pages with plots of nvmf-bench's last rounds here
    #[arg(long, value_name = "FOLDER")]
    html: Option<PathBuf>,
    /// Where the file lies that the row `file` reads: a folder on the disk that is to be measured
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl Bench {
    pub(crate) fn run(&self) -> Result<()> {
        ensure!(
            self.rounds > 0 && self.seconds > 0 && self.idle_seconds > 0,
            "rounds and seconds are at least 1"
        );
        ensure!(step::on_path("taskset"), "taskset is missing: install util-linux");
        let build = ["build", "--release", "-p", "nvmf-target", "-p", "nvmf-bench"];
        step::run("building nvmf-target and nvmf-bench (release)", &mut step::cargo(&build))?;
        let site = self.site()?;
        let mut entries = Vec::new();
        for row in Row::value_variants() {
            if self.only.is_empty() || self.only.contains(row) {
                for contest in row.contests(&site)? {
                    entries.extend(contest.run(self.rounds)?);
                }
            }
        }
        if self.lab {
            entries.extend(rxe::measure()?);
        }
        let machine = machine::facts(self.cores)?;
        let table = Table { machine, rounds: self.rounds, seconds: self.seconds, entries };
        println!("\n{}", table.text());
        // Part of the table is for the eye; the document gets all of it or none.
        if self.only.is_empty() {
            table.write_into(&step::root().join("docs/PERFORMANCE.md"))?;
            plot::write(&table.entries, &step::root().join("docs/performance.svg"))?;
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
