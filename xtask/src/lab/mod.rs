//! `cargo xtask lab`: tests against a stock Linux kernel in a virtual machine.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | the command: `list`, `run`, `shell`, `build` |
//! | `image` | the guest's boot image: built once from Debian packages, kept in the user's cache |
//! | `scenario` | the scenarios in `tests/lab/*.sh`: description, time limit and other attributes |
//! | `guest` | a guest: its start, output and time limit |
//! | `host` | commands that a scenario runs on the host |
//! | `programs` | the programs that scenarios run |
//! | `matrix` | the table of initiator, target, transport and results |

mod guest;
mod host;
mod image;
mod matrix;
mod programs;
mod scenario;

use crate::step;
use anyhow::{Context, Result, bail, ensure};
use guest::{Guest, Outcome, Verdict};
use image::Image;
use matrix::Matrix;
use programs::Programs;
use scenario::Scenario;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

pub(crate) use image::{available, possible};

#[derive(clap::Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Lists the scenarios
    List,
    /// Runs scenarios, each in a fresh guest
    Run(Run),
    /// Opens a root shell in a fresh guest, with this checkout's programs in its PATH (Ctrl-D ends it)
    Shell,
    /// Builds the guest's boot image if it is missing (needs root and a network)
    Build {
        /// Rebuild an existing image
        #[arg(long)]
        again: bool,
    },
}

#[derive(clap::Args)]
pub(crate) struct Run {
    /// Names of scenarios, as shown by `list`
    #[arg(required_unless_present_any = ["all", "quick"])]
    names: Vec<String>,
    /// Run all scenarios and write the matrix into docs/COMPLIANCE.md
    #[arg(long)]
    all: bool,
    /// Run the quick scenarios, which `cargo xtask test` also runs
    #[arg(long, conflicts_with = "all")]
    quick: bool,
    /// Number of guests to run at once, each with two emulated processors
    #[arg(long, short, default_value_t = 1)]
    jobs: usize,
    /// Show all output of the guest, not only its steps
    #[arg(long, short)]
    verbose: bool,
}

impl Lab {
    pub(crate) fn run(&self) -> Result<()> {
        match &self.command {
            Command::List => {
                for scenario in scenario::all()? {
                    println!(
                        "{:<28} {}{}",
                        scenario.name,
                        scenario.what,
                        if scenario.quick { " [quick]" } else { "" }
                    );
                }
                Ok(())
            }
            Command::Build { again } => Image::ensure(*again).map(drop),
            Command::Run(run) => run.run(),
            Command::Shell => {
                let image = Image::ensure(false)?;
                guest::shell(&image, &Programs::build()?)
            }
        }
    }
}

impl Run {
    fn run(&self) -> Result<()> {
        let mut scenarios = scenario::all()?;
        for name in &self.names {
            ensure!(
                scenarios.iter().any(|s| s.name == *name),
                "there is no scenario {name}: `cargo xtask lab list` lists them"
            );
        }
        scenarios.retain(|s| self.all || (self.quick && s.quick) || self.names.contains(&s.name));
        let image = Image::ensure(false)?;
        let programs = Programs::build()?;
        let (failed, matrix) = run_each(&image, &programs, &scenarios, self.jobs, self.verbose)?;
        if !matrix.is_empty() {
            println!("\n{}", matrix.table());
        }
        if self.all {
            matrix.write_into(&step::root().join("docs/COMPLIANCE.md"))?;
        }
        if failed.is_empty() {
            println!("all {} scenarios passed", scenarios.len());
            return Ok(());
        }
        bail!("{} of {} scenarios failed: {}", failed.len(), scenarios.len(), failed.join(", "))
    }
}

/// Runs the quick scenarios, for `cargo xtask test`.
pub(crate) fn quick() -> Result<()> {
    Run { names: Vec::new(), all: false, quick: true, jobs: 1, verbose: false }.run()
}

/// Runs one scenario, which must pass, and returns its figures.
pub(crate) fn figures(name: &str) -> Result<Vec<String>> {
    let scenarios = scenario::all()?;
    let scenario = scenarios.iter().find(|scenario| scenario.name == name);
    let scenario = scenario.with_context(|| format!("there is no scenario {name}"))?;
    let outcome = run_one(&Image::ensure(false)?, &Programs::build()?, scenario, false)?;
    ensure!(
        matches!(outcome.verdict, Verdict::Passed),
        "{name} failed: see the logs in {}",
        outcome.folder.display()
    );
    Ok(outcome.figures)
}

/// Runs scenarios, `jobs` at once; those that measure run alone, after the others.
fn run_each(
    image: &Image,
    programs: &Programs,
    scenarios: &[Scenario],
    jobs: usize,
    verbose: bool,
) -> Result<(Vec<String>, Matrix)> {
    let next = AtomicUsize::new(0);
    let ended = Mutex::new(Vec::new());
    let (together, alone): (Vec<_>, Vec<_>) = scenarios.iter().partition(|scenario| !scenario.alone);
    let run_next = |of: &[&Scenario]| -> Result<()> {
        while let Some(scenario) = of.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run_one(image, programs, scenario, verbose)?;
            ended.lock().expect("no panic happened under the lock").push((scenario.name.clone(), outcome));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(|| run_next(&together))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no scenario panics"))
    })?;
    next.store(0, Ordering::Relaxed);
    run_next(&alone)?;
    let ended = ended.into_inner().expect("no panic happened under the lock");
    let (mut failed, mut matrix) = (Vec::new(), Matrix::default());
    for scenario in scenarios {
        let Some((_, outcome)) = ended.iter().find(|(name, _)| *name == scenario.name) else { continue };
        if !matches!(outcome.verdict, Verdict::Passed) {
            failed.push(scenario.name.clone());
        }
        matrix.add(scenario, outcome);
    }
    Ok((failed, matrix))
}

fn run_one(image: &Image, programs: &Programs, scenario: &Scenario, verbose: bool) -> Result<Outcome> {
    let name = &scenario.name;
    println!("{name}: {}", scenario.what);
    let begun = Instant::now();
    let outcome = Guest::run(image, programs, scenario, verbose)?;
    let seconds = begun.elapsed().as_secs_f64();
    match &outcome.verdict {
        Verdict::Passed => println!("{name}: passed, {seconds:.0} s"),
        verdict => {
            let folder = outcome.folder.display();
            println!("{name}: FAILED after {seconds:.0} s: {verdict}; see the logs in {folder}");
        }
    }
    Ok(outcome)
}
