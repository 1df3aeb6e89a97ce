//! `nvmf connect`: every namespace of a subsystem, as nvme-cli's `connect` has it.

use super::Arguments;
use super::attach::{Attach, DiskArguments, arguments};
use crate::attach::{self, Listed, Registry, Stopped, other_host};
use crate::connect::connect;
use crate::discovery::{Outcome, failure};
use crate::interrupt;
use crate::runtime::run;
use anyhow::{Result, ensure};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use nvmf_attached::State;
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
    let configured = DiskArguments::from_arg_matches(matches)?.configured()?;
    add_missing(&mut arguments, matches, configured);
    Ok(arguments)
}

/// Adds to a call those of these options, by their long names, that it does not give.
pub(super) fn add_missing(arguments: &mut Vec<OsString>, matches: &ArgMatches, options: Vec<String>) {
    let is_missing = |option: &String| {
        let name = option.trim_start_matches('-').split('=').next().unwrap_or_default().replace('-', "_");
        let is_known = matches.try_contains_id(&name).is_ok();
        !is_known || matches.value_source(&name) != Some(ValueSource::CommandLine)
    };
    // Behind `--` there are no options any more.
    let end = arguments.iter().position(|it| it == "--").unwrap_or(arguments.len());
    let missing: Vec<_> = options.into_iter().filter(is_missing).map(OsString::from).collect();
    arguments.splice(end..end, missing);
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
        let (nqn, host) = (options.connection.nqn, options.connection.host);
        interrupt::watch()?;
        let there = async {
            let (connection, _) = connect(options.connection).await?;
            let there = connection.namespaces();
            connection.close().await;
            Ok(there)
        };
        let there = run(async {
            tokio::select! {
                there = there => there,
                () = interrupt::asked() => Err(Stopped::Nothing.into()),
            }
        })?;
        ensure!(
            !there.is_empty(),
            "{nqn} has no namespace for this host: add one to it, or show it to this host, at the target"
        );
        let listed = Registry::of_this_user().list()?;
        let mut outcome = Outcome::default();
        for nsid in there.iter().map(|namespace| namespace.nsid).take_while(|_| !interrupt::was_asked()) {
            let is_it = |it: &&Listed| it.disk.nqn == nqn.to_string() && it.disk.nsid == nsid.0;
            // The same disk may be attached twice, or as another host.
            let before: Vec<_> = listed.iter().filter(is_it).filter(|_| !options.duplicate).collect();
            let as_others: Vec<_> =
                before.iter().filter_map(|it| Some((it, other_host(&it.disk, &host)?))).collect();
            if let (Some((Listed { disk, .. }, other)), true) =
                (as_others.first(), as_others.len() == before.len())
            {
                outcome.failures.push(format!(
                    "{disk} is attached as {}: with {} it is given this path; --duplicate-connect attaches it beside that \
                     one, and destroys a file system that both write to",
                    other.how, other.options
                ));
                continue;
            }
            for &before in before.iter().filter(|it| other_host(&it.disk, &host).is_none()) {
                outcome.already.push(before.disk.clone());
                if self.attach.insists_on_tls() && !before.disk.tls && !before.is_dead() {
                    outcome.failures.push(format!(
                        "{} is attached without TLS, and all of its paths have it or none: detach it, and connect it again",
                        before.disk
                    ));
                    continue;
                }
                // A target that was given up may be there under the address of this call.
                let added = match before.disk.state {
                    // Whoever takes it over has all of its paths, and this one.
                    State::Killed => Ok(()),
                    State::Unknown if before.is_dead() => Ok(()),
                    _ => self.attach.add_missing_paths(before),
                };
                let back = self.bring_back(before).map(|said| outcome.extended.extend(said));
                for error in [added, back].into_iter().filter_map(Result::err) {
                    outcome.failures.push(failure(nqn, nsid.0, &error));
                }
            }
            if !before.is_empty() {
                continue;
            }
            match attach::in_background(arguments().chain([format!("--nsid={nsid}").into()])) {
                Ok(disk) => outcome.attached.push(disk),
                Err(error) => outcome.failures.push(failure(nqn, nsid.0, &error)),
            }
        }
        if interrupt::was_asked() {
            outcome.failures.push("stopped: what was attached stays".to_owned());
        }
        outcome.see_again(&Registry::of_this_user().list()?);
        let ended = super::connect_all::end(&outcome, self.attach.format(), false)?;
        self.attach.dump()?;
        Ok(ended)
    }

    /// Brings a disk back that is dead: its target was connected to just now.
    fn bring_back(&self, listed: &Listed) -> Result<Option<String>> {
        listed.bring_back(|option| {
            let nsid = listed.disk.asked_nsid.map(|nsid| format!("--nsid={nsid}"));
            attach::in_background(arguments().chain([option].into_iter().chain(nsid).map(Into::into)))
        })
    }
}
