//! `nvmf connect-all` and `nvmf discoverd`: attaching what discovery controllers list.

use super::attach::warn_of_paths;
use super::refused::{AbsentOfDiscovery, NoRawLog};
use super::{Format, Output, OwnOptions, TargetArguments, Verbosity, given_options};
use crate::attach::Form;
use crate::discovery::{
    Begin, Controller, Outcome, Place, Policy, Sources, Subsystem, SubsystemPath, attach_all, config, follow,
};
use crate::print::{complain, document, line, print_json};
use crate::runtime::run;
use anyhow::{Result, ensure};
use clap::ValueEnum;
use nvmf_attached::{AttachedPath, Attachment};
use serde_json::json;
use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Where discovery begins, if no address is given.
#[derive(clap::Args, Clone)]
pub(super) struct SourceArguments {
    /// nvme-cli's config.json, instead of the one in --nvme-folder; `none`: it is not read
    #[arg(short = 'J', long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder with nvme-cli's discovery.conf and config.json, which are read where no address is given
    #[arg(long, value_name = "FOLDER", default_value = "/etc/nvme")]
    nvme_folder: PathBuf,
}

/// What nvme-cli's `discover` and `connect-all` have besides.
#[derive(clap::Args)]
pub(super) struct DiscoveryArguments {
    /// Do not say what is attached already
    #[arg(long)]
    quiet: bool,
    /// Print nvme-cli's config.json of the controllers afterwards, without secrets and keys, and nothing else to the standard output
    #[arg(short = 'O', long)]
    dump_config: bool,
    #[command(flatten)]
    _absent: AbsentOfDiscovery,
}

impl DiscoveryArguments {
    pub(super) fn dumps(&self) -> bool {
        self.dump_config
    }

    /// Prints the configuration, if that is asked for.
    pub(super) fn dump(&self, target: &TargetArguments, subsystems: &[Subsystem]) -> Result<()> {
        if self.dump_config { document(&config(&target.host()?, subsystems)) } else { Ok(()) }
    }
}

#[derive(clap::Args)]
pub(crate) struct ConnectAll {
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    sources: SourceArguments,
    #[command(flatten)]
    discovery: DiscoveryArguments,
    #[command(flatten)]
    _no_raw: NoRawLog,
    /// Form of the disks
    #[arg(long = "as", value_enum, default_value_t = Form::Auto)]
    form: Form,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    verbosity: Verbosity,
}

#[derive(clap::Args)]
pub(crate) struct Discoverd {
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    sources: SourceArguments,
    /// Which subsystems are attached, and what becomes of those that are gone
    #[arg(long, value_name = "FILE", default_value = Policy::FILE)]
    policy: PathBuf,
}

impl SourceArguments {
    /// The controller that is named, else those of the files.
    pub(super) fn read(&self, target: &TargetArguments) -> Result<Sources> {
        let options = given_options();
        if !target.names_a_target() {
            return Sources::read(&self.nvme_folder, self.config.as_deref(), &options);
        }
        ensure!(
            self.config.as_ref().is_none_or(|file| file.as_os_str() == "none"),
            "a configuration file (-J) is read where no address is given: leave out one of -J and -a"
        );
        let controller = Controller { place: target.place(true)?, options };
        Ok(Sources { controllers: vec![controller], ..Sources::default() })
    }

    /// What is said where nothing names a controller.
    pub(super) fn check(&self, sources: &Sources) -> Result<()> {
        let nothing = || {
            let file = self.nvme_folder.join("discovery.conf");
            format!("nothing says where to begin: give an address (-a), or a line in {}", file.display())
        };
        match sources.problems.is_empty() {
            true => ensure!(!sources.is_empty(), "{}", nothing()),
            false => ensure!(!sources.is_empty(), "{}", sources.problems.join("; ")),
        }
        Ok(())
    }
}

impl ConnectAll {
    pub(super) fn verbosity(&self) -> u8 {
        self.verbosity.level()
    }

    pub(super) fn dumps(&self) -> bool {
        self.discovery.dumps()
    }

    pub(crate) fn run(&self) -> Result<ExitCode> {
        let sources = self.sources.read(&self.target)?;
        self.sources.check(&sources)?;
        let form = self.form.to_possible_value().map(|form| form.get_name().to_owned()).unwrap_or_default();
        let policy = Policy::default().in_form(form);
        let problems = sources.problems.clone();
        let mut outcome = run(attach_all(Begin { sources, policy }))?;
        outcome.failures.splice(0..0, problems);
        if outcome.subsystems == 0 && outcome.failures.is_empty() && !outcome.left_out.is_empty() {
            outcome.failures.push("no subsystem is listed that this host can use".to_owned());
        }
        let ended = end(&outcome, self.output.format, self.discovery.quiet)?;
        self.discovery.dump(&self.target, &subsystems(&outcome))?;
        Ok(ended)
    }
}

/// What is attached now, with the paths of each subsystem.
fn subsystems(outcome: &Outcome) -> Vec<Subsystem> {
    let mut found: Vec<Subsystem> = Vec::new();
    let options = given_options();
    for disk in outcome.attached.iter().chain(&outcome.already) {
        if !found.iter().any(|it| it.nqn == disk.nqn) {
            let (nqn, options) = (disk.nqn.clone(), options.clone());
            found.push(Subsystem { nqn, paths: Vec::new(), options });
        }
        let path = |path: &AttachedPath| {
            let (address, port) = path.host_and_port();
            let transport = path.transport.clone();
            let place = Place { transport, address: address.to_owned(), port: port? };
            let host_traddr = path.source.as_ref().and_then(|source| source.parse().ok());
            Some(SubsystemPath { place, own: OwnOptions { host_traddr, ..OwnOptions::default() } })
        };
        let Some(subsystem) = found.iter_mut().find(|it| it.nqn == disk.nqn) else { continue };
        for path in disk.paths.iter().filter_map(path) {
            if !subsystem.paths.contains(&path) {
                subsystem.paths.push(path);
            }
        }
    }
    found
}

/// Prints what became of it, and unless it is to be quiet what was so before; the exit status.
pub(super) fn end(outcome: &Outcome, format: Format, is_quiet: bool) -> Result<ExitCode> {
    print(outcome, format, is_quiet)?;
    for what in &outcome.left_out {
        complain(what);
    }
    for failure in &outcome.failures {
        complain(failure);
    }
    Ok(if outcome.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(outcome: &Outcome, format: Format, is_quiet: bool) -> Result<()> {
    let Outcome { attached, already, extended, failures, subsystems, left_out: _ } = outcome;
    if format == Format::Json {
        let disks = |disks: &[Attachment]| disks.iter().map(Attachment::json).collect::<Vec<_>>();
        return print_json(
            json!({ "attached": disks(attached), "already": disks(already), "failures": failures }),
        );
    }
    // What was brought back is said of it alone.
    let is_back = |disk: &Attachment| extended.iter().any(|more| more.ends_with(&format!(": {disk}")));
    for disk in already.iter().filter(|disk| !is_quiet && !is_back(disk)) {
        line(format_args!("attached already: {disk}"))?;
    }
    for more in extended {
        line(more)?;
    }
    for disk in attached {
        line(format_args!("attached {disk}"))?;
        warn_of_paths(disk);
    }
    if attached.is_empty() && already.is_empty() && failures.is_empty() {
        match subsystems {
            0 => line("no subsystem is listed")?,
            _ => line("no subsystem that is listed has a namespace that this host can use")?,
        }
    }
    Ok(())
}

impl Discoverd {
    pub(crate) fn run(&self) -> Result<()> {
        let was_there = Cell::new(false);
        let begin = || {
            let sources = self.sources.read(&self.target)?;
            for problem in &sources.problems {
                tracing::warn!("{problem}");
            }
            let is_there = self.policy.exists();
            // Without one from the start everything is attached. That one is gone is more likely a mistake than meant so.
            ensure!(
                is_there || !was_there.get(),
                "{} is gone: put it back, or restart the service to go on without it",
                self.policy.display()
            );
            let policy = Policy::read(&self.policy)?;
            was_there.set(is_there);
            if !policy.mdns {
                self.sources.check(&sources)?;
            }
            Ok(Begin { sources, policy })
        };
        run(follow(begin))
    }
}
