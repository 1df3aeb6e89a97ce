//! `cargo xtask lab`: tests against stock Linux kernels in a virtual machine.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | the command: `list`, `run`, `shell`, `build` |
//! | `image` | the guest's boot image: built once from Debian packages, kept in the user's cache |
//! | `scenario` | the scenarios in `tests/lab/*.sh`: description, kernels, time limit and other attributes |
//! | `guest` | a guest: its start, output and time limit |
//! | `machine` | the emulator's command line; a scenario's second machine |
//! | `host` | commands that a scenario runs on the host |
//! | `programs` | the programs that scenarios run |
//! | `matrix` | the table of initiator, target, transport, kernel and results |

mod guest;
mod host;
mod image;
mod machine;
mod matrix;
mod programs;
mod scenario;

use crate::{packages, step};
use anyhow::{Context, Result, bail, ensure};
use guest::{Guest, Outcome, Verdict};
use image::{Image, Kernel};
use machine::Clock;
use matrix::Matrix;
use programs::Programs;
use scenario::{Case, Scenario};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

pub(crate) use image::{available, possible};
pub(crate) use machine::{has_flag, is_emulated};

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
    Shell {
        /// Kernel of the guest
        #[arg(long, default_value_t = Kernel::Stable)]
        kernel: Kernel,
    },
    /// Builds the guest's boot image if it is missing (needs root and a network)
    Build {
        /// Rebuild an existing image
        #[arg(long)]
        again: bool,
    },
}

#[derive(clap::Args, Default)]
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
    /// Run on this kernel only (default: on each kernel that a scenario's header names)
    #[arg(long, conflicts_with = "all")]
    kernel: Option<Kernel>,
    /// Number of guests to run at once, each with two emulated processors
    #[arg(long, short, default_value_t = 1)]
    jobs: usize,
    /// Take nvmf-target and nvmf from this folder, instead of building them (release)
    #[arg(long, value_name = "FOLDER", conflicts_with = "all")]
    programs: Option<PathBuf>,
    /// Tie the guest's clock to the instructions that its emulated processors execute: what else this machine does changes no figure,
    /// and a scenario takes several times as long
    #[arg(long, conflicts_with = "all")]
    instruction_clock: bool,
    /// Show all output of the guest, not only its steps
    #[arg(long, short)]
    verbose: bool,
}

impl Lab {
    pub(crate) fn run(&self) -> Result<()> {
        match &self.command {
            Command::List => {
                for scenario in scenario::all()? {
                    let quick = if scenario.quick { " [quick]" } else { "" };
                    let kernels: Vec<_> = scenario.kernels.iter().map(Kernel::to_string).collect();
                    println!("{:<28} {} [{}]{quick}", scenario.name, scenario.what, kernels.join(", "));
                }
                Ok(())
            }
            Command::Build { again } => Image::ensure(*again).map(drop),
            Command::Run(run) => run.run(),
            Command::Shell { kernel } => {
                let image = Image::ensure(false)?;
                guest::shell(&image, *kernel, &Programs::build()?)
            }
        }
    }
}

impl Run {
    fn run(&self) -> Result<()> {
        let scenarios = scenario::all()?;
        for name in &self.names {
            ensure!(
                scenarios.iter().any(|s| s.name == *name),
                "there is no scenario {name}: `cargo xtask lab list` lists them"
            );
        }
        let cases = self.cases(&scenarios);
        if cases.iter().any(|case| case.scenario.ceph) {
            packages::ensure(&[packages::LAB, packages::CEPH])?;
        }
        let image = Image::ensure(false)?;
        let mut programs = match &self.programs {
            Some(folder) => Programs::in_folder(folder.clone()),
            None => Programs::build()?,
        };
        if cases.iter().any(|case| case.scenario.systemd) {
            image.systemd_root()?;
            programs = programs.with_packages()?;
        }
        let (failed, matrix) = run_each(&image, &programs, &cases, self.jobs, self.verbose)?;
        if !matrix.is_empty() {
            println!("\n{}", matrix.table());
        }
        if self.all {
            matrix.write_into(&step::root().join("docs/COMPLIANCE.md"))?;
        }
        if failed.is_empty() {
            println!("all {} scenarios passed", cases.len());
            return Ok(());
        }
        bail!("{} of {} scenarios failed: {}", failed.len(), cases.len(), failed.join(", "))
    }

    /// What was asked for: scenarios on each kernel of their headers, or on the kernel of the command line. A scenario
    /// that was named runs on that one whatever its header says.
    fn cases<'a>(&self, scenarios: &'a [Scenario]) -> Vec<Case<'a>> {
        let clock = if self.instruction_clock { Clock::Instructions } else { Clock::Host };
        let mut cases = Vec::new();
        for scenario in scenarios {
            let named = self.names.contains(&scenario.name);
            if !(named || self.all || (self.quick && scenario.quick)) {
                continue;
            }
            let kernels = match self.kernel {
                Some(kernel) if named || scenario.kernels.contains(&kernel) => vec![kernel],
                Some(_) => vec![],
                None => scenario.kernels.clone(),
            };
            cases.extend(kernels.into_iter().map(|kernel| Case { scenario, kernel, clock }));
        }
        cases
    }
}

/// Runs the quick scenarios, for `cargo xtask test`.
pub(crate) fn quick() -> Result<()> {
    Run { quick: true, ..Run::default() }.run()
}

/// Runs one scenario on the stable kernel, which must pass, and returns its figures.
pub(crate) fn figures(name: &str) -> Result<Vec<String>> {
    let scenarios = scenario::all()?;
    let scenario = scenarios.iter().find(|scenario| scenario.name == name);
    let scenario = scenario.with_context(|| format!("there is no scenario {name}"))?;
    let case = Case { scenario, kernel: Kernel::Stable, clock: Clock::Host };
    let outcome = run_one(&Image::ensure(false)?, &Programs::build()?, case, false)?;
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
    cases: &[Case<'_>],
    jobs: usize,
    verbose: bool,
) -> Result<(Vec<String>, Matrix)> {
    let next = AtomicUsize::new(0);
    let ended = Mutex::new(Vec::new());
    let (together, alone): (Vec<_>, Vec<_>) = cases.iter().copied().partition(|case| !case.scenario.alone);
    let run_next = |of: &[Case<'_>]| -> Result<()> {
        while let Some(&case) = of.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run_one(image, programs, case, verbose)?;
            ended.lock().expect("no panic happened under the lock").push((case.name(), outcome));
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
    for case in cases {
        let name = case.name();
        let Some((_, outcome)) = ended.iter().find(|(ended, _)| *ended == name) else { continue };
        if !matches!(outcome.verdict, Verdict::Passed) {
            failed.push(name);
        }
        matrix.add(case.scenario, outcome);
    }
    Ok((failed, matrix))
}

fn run_one(image: &Image, programs: &Programs, case: Case<'_>, verbose: bool) -> Result<Outcome> {
    let name = case.name();
    println!("{name}: {}", case.scenario.what);
    let begun = Instant::now();
    let outcome = Guest::run(image, programs, case, verbose)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(names: &[&str], quick: bool, kernel: Option<Kernel>) -> Vec<String> {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        let run = Run { names, quick, kernel, ..Run::default() };
        run.cases(&scenario::all().unwrap()).iter().map(Case::name).collect()
    }

    #[test]
    fn scenario_runs_on_the_kernels_of_its_header() {
        assert_eq!(
            cases(&["kernel-to-ours-tcp"], false, None),
            ["kernel-to-ours-tcp", "kernel-to-ours-tcp-backports"]
        );
        assert_eq!(cases(&["kernel-to-ours-siw-iwarp"], false, None), ["kernel-to-ours-siw-iwarp"]);
    }

    #[test]
    fn kernel_of_the_command_line_is_the_only_one() {
        let backports = Some(Kernel::Backports);
        assert_eq!(cases(&["kernel-to-ours-tcp"], false, backports), ["kernel-to-ours-tcp-backports"]);
        assert_eq!(cases(&["blktests-rdma"], false, backports), ["blktests-rdma-backports"], "it was named");
        let quick = cases(&[], true, backports);
        assert!(quick.contains(&"tls-records-backports".to_owned()));
        assert!(
            quick.iter().all(|name| name.ends_with("-backports") && !name.contains("power-cut")),
            "{quick:?}"
        );
    }
}
