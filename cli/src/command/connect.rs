//! `nvmf connect`: every namespace of a subsystem, as nvme-cli's `connect` has it.

use super::Arguments;
use super::attach::{Attach, DiskArguments, arguments};
use crate::attach::{self, Listed, Registry, Stopped};
use crate::connect::connect;
use crate::discovery::{Outcome, SubsystemPath, kept_paths};
use crate::print::chain;
use crate::runtime::run;
use anyhow::{Result, ensure};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};
use nvmf_attached::{Attachment, State};
use std::ffi::OsString;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Connect {
    #[command(flatten)]
    attach: Attach,
}

/// The arguments of a call with `--config FILE`, with what that file says of the controller and the call does not.
pub(crate) fn expand(mut arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let takes_file = |it: &OsString| {
        it.to_str().is_some_and(|it| matches!(it, "attach" | "connect" | "serve" | "serve-vhost"))
    };
    if !arguments.iter().any(takes_file) {
        return Ok(arguments);
    }
    // What is wrong with them is said later.
    let Ok(matches) = Arguments::command().try_get_matches_from(&arguments) else { return Ok(arguments) };
    let Some(("attach" | "connect" | "serve" | "serve-vhost", matches)) = matches.subcommand() else {
        return Ok(arguments);
    };
    for option in DiskArguments::from_arg_matches(matches)?.configured()? {
        let name = option.trim_start_matches('-').split('=').next().unwrap_or_default().replace('-', "_");
        if matches.value_source(&name) != Some(ValueSource::CommandLine) {
            arguments.push(option.into());
        }
    }
    Ok(arguments)
}

impl Connect {
    pub(super) fn verbosity(&self) -> u8 {
        self.attach.verbosity()
    }

    pub(super) fn dumps(&self) -> bool {
        self.attach.dumps()
    }

    pub(crate) fn run(&self) -> Result<ExitCode> {
        let options = self.attach.options()?;
        if self.attach.names_one_disk() {
            return self.attach.run();
        }
        let nqn = options.connection.nqn;
        let host = options.connection.host.nqn.to_string();
        let there = run(async {
            let (connection, _) = connect(options.connection).await?;
            let there = connection.namespaces();
            connection.close().await;
            Ok(there)
        })?;
        ensure!(
            !there.is_empty(),
            "{nqn} has no namespace for this host: add one to it, or show it to this host, at the target"
        );
        let listed = Registry::of_this_user().list()?;
        let (mut outcome, mut is_stopped) = (Outcome::default(), false);
        for nsid in there.iter().map(|namespace| namespace.nsid) {
            let is_it = |it: &&Listed| it.disk.nqn == nqn.to_string() && it.disk.nsid == nsid.0;
            // The same disk may be attached twice, or as another host.
            let before: Vec<_> = listed.iter().filter(is_it).filter(|_| !options.duplicate).collect();
            let is_own = |it: &Listed| it.disk.host_nqn == host;
            if let (Some(Listed { disk, .. }), false) = (before.first(), before.iter().any(|&it| is_own(it)))
            {
                outcome.failures.push(format!(
                    "{disk} is attached as {}, not as {host}: with -q {} it is given this path; --duplicate-connect attaches \
                     it beside that one, and destroys a file system that both write to",
                    disk.host_nqn, disk.host_nqn
                ));
                continue;
            }
            for &before in before.iter().filter(|&&it| is_own(it)) {
                outcome.already.push(before.disk.clone());
                // A target that was given up may be there under the address of this call.
                let added = match before.disk.state {
                    // Whoever takes it over has all of its paths.
                    State::Killed | State::Unknown => Ok(()),
                    _ => self.attach.add_missing_paths(before),
                };
                let back = self.bring_back(before).map(|said| outcome.extended.extend(said));
                for error in [added, back].into_iter().filter_map(Result::err) {
                    outcome.failures.push(format!("{nqn} namespace {nsid}: {}", chain(&error)));
                    is_stopped |= error.is::<Stopped>();
                }
            }
            if is_stopped {
                break;
            }
            if !before.is_empty() {
                continue;
            }
            match attach::in_background(arguments().chain([format!("--nsid={nsid}").into()])) {
                Ok(disk) => outcome.attached.push(disk),
                Err(error) => {
                    outcome.failures.push(format!("{nqn} namespace {nsid}: {}", chain(&error)));
                    if error.is::<Stopped>() {
                        break;
                    }
                }
            }
        }
        outcome.see_again(&Registry::of_this_user().list()?);
        let ended = super::connect_all::end(&outcome, self.attach.format(), false)?;
        self.attach.dump()?;
        Ok(ended)
    }

    /// Brings a disk back that is dead: its target was connected to just now.
    fn bring_back(&self, listed: &Listed) -> Result<Option<String>> {
        let given = self.attach.whole_paths()?;
        listed.bring_back(|mut further| {
            further.retain(|option| !self.attach.says(option));
            let further = as_it_was(&listed.disk, &given).into_iter().chain(further);
            attach::in_background(arguments().chain(further.map(Into::into)))
        })
    }
}

/// What a call that has these paths has to say besides, so that the disk is the one that was attached.
fn as_it_was(disk: &Attachment, given: &[SubsystemPath]) -> Vec<String> {
    let paths = kept_paths(disk, given).into_iter().map(|path| format!("--path={}", path.text()));
    paths.chain(disk.asked_nsid.map(|nsid| format!("--nsid={nsid}"))).collect()
}
