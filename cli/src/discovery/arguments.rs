//! Controllers and subsystems as options of `nvmf`, and how to connect to them.

use super::engine::{Controller, Disk, Place, Subsystem, SubsystemPath};
use crate::command::{DISCOVERY_PORT, PORT, TargetArguments};
use crate::connect::is_unreachable;
use crate::print::chain;
use anyhow::{Error, Result, anyhow};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use nvme_proto::Nqn;
use nvmf_initiator::Options;
use std::path::PathBuf;
use std::str::FromStr;

/// Options that say where a controller is: not to be handed on to others.
const OF_ONE_PLACE: [&str; 6] = ["transport", "traddr", "trsvcid", "nqn", "paths", "config"];
/// Options that say which key TLS has.
const OF_TLS_KEY: [&str; 4] = ["--tls-key-file=", "--tls-key=", "--tls-identity-version=", "--keyring="];

/// nvme-cli's options for a controller, without a command.
#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true, disable_help_flag = true)]
pub(super) struct Call {
    #[command(flatten)]
    pub(super) target: TargetArguments,
    #[arg(short = 'n', long)]
    nqn: Option<Nqn>,
    /// Where secrets among the options are from.
    #[arg(long, hide = true)]
    config: Option<PathBuf>,
}

/// The options that are given, by their long names, but for those that say where a controller is.
pub(crate) fn given(matches: &ArgMatches) -> Vec<String> {
    let mut options = Vec::new();
    let call = Call::command();
    for (argument, id, long) in given_of(&call, matches) {
        if OF_ONE_PLACE.contains(&id) {
            continue;
        }
        if matches!(argument.get_action(), ArgAction::SetTrue) {
            options.push(format!("--{long}"));
            continue;
        }
        let values = matches.get_raw(id).into_iter().flatten();
        options.extend(values.map(|value| format!("--{long}={}", value.to_string_lossy())));
    }
    options
}

/// The options of a command that are given in its call: each with its ID and its long name.
pub(crate) fn given_of<'a>(
    command: &'a Command,
    matches: &'a ArgMatches,
) -> impl Iterator<Item = (&'a Arg, &'a str, &'a str)> {
    command.get_arguments().filter_map(|argument| {
        let (id, long) = (argument.get_id().as_str(), argument.get_long()?);
        let is_given = matches.try_contains_id(id).unwrap_or_default()
            && matches.value_source(id) == Some(ValueSource::CommandLine);
        is_given.then_some((argument, id, long))
    })
}

/// The discovery controller that these options name.
pub(crate) fn controller(arguments: &[String]) -> Result<Controller> {
    let (call, matches) = parse(arguments)?;
    Ok(Controller { place: call.target.place(true)?, options: given(&matches) })
}

pub(super) fn parse(arguments: &[String]) -> Result<(Call, ArgMatches)> {
    let matches = Call::command().try_get_matches_from(arguments);
    let in_a_line = |error: clap::Error| {
        // Of what is missing, the lines that follow say what it is.
        let text = error.to_string();
        let paragraph: Vec<_> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
        anyhow!("{}", paragraph.join(" ").trim_start_matches("error: "))
    };
    let matches = matches.map_err(in_a_line)?;
    let call = Call::from_arg_matches(&matches).map_err(in_a_line)?;
    Ok((call, matches))
}

/// The keys that a host has for TLS; `None`: its options cannot be used with that.
pub(super) struct Keys(Option<TargetArguments>);

pub(super) fn is_secret(option: &str) -> bool {
    let option =
        option.strip_prefix("--dhchap-secret=").or_else(|| option.strip_prefix("--dhchap-ctrl-secret="));
    option.is_some_and(crate::command::is_secret)
}

/// Has no key named where nothing has TLS: it is for those of the paths that are listed with TLS.
fn drop_idle_key(arguments: &mut Vec<String>, has_tls: bool) {
    arguments.retain(|option| has_tls || !OF_TLS_KEY.iter().any(|of_key| option.starts_with(of_key)));
}

impl Place {
    fn arguments(&self) -> [String; 3] {
        let Self { transport, address, port } = self;
        [format!("--transport={transport}"), format!("--traddr={address}"), format!("--trsvcid={port}")]
    }
}

impl Place {
    /// Why no discovery controller could be asked there. The port that is asked where none is named is not one where disks are served.
    pub(crate) fn explained(&self, error: Error) -> Error {
        let is_unreached = error.downcast_ref().is_some_and(is_unreachable);
        if is_unreached && (self.transport.as_str(), self.port) == ("tcp", DISCOVERY_PORT) {
            return anyhow!(
                "{}; discovery over tcp asks port {DISCOVERY_PORT}, with -s {PORT} one where disks are served",
                chain(&error)
            );
        }
        error
    }
}

impl SubsystemPath {
    /// As `--path` takes it.
    pub(crate) fn text(&self) -> String {
        let Place { transport, address, port } = &self.place;
        let address = if address.contains(':') { format!("[{address}]") } else { address.clone() };
        let own = self.own.options().iter().map(|option| option.replacen("--", ",", 1)).collect::<String>();
        format!("{address}:{port}/{transport}{own}")
    }
}

impl Controller {
    /// The keys that this host has for TLS with what it lists.
    pub(super) fn keys(&self) -> Keys {
        let place = Place { transport: "tcp".to_owned(), ..self.place.clone() };
        let arguments = [&place.arguments()[..], &self.options, &["--tls".to_owned()]].concat();
        Keys(parse(&arguments).ok().map(|(call, _)| call.target))
    }

    /// How to connect to it.
    pub(crate) fn connection(&self) -> Result<Options> {
        let mut arguments = [&self.place.arguments()[..], &self.options].concat();
        drop_idle_key(&mut arguments, self.options.iter().any(|option| option == "--tls"));
        // A host's key in a file is for all that it connects to, and few discovery controllers ask for it. One that has to
        // prove who it is must.
        let is_of_file = arguments.iter().any(|option| option.starts_with("--config="));
        let must = |option: &String| option == "--concat" || option.starts_with("--dhchap-ctrl-secret=");
        if is_of_file && !arguments.iter().any(must) {
            arguments.push("--dhchap-optional".to_owned());
        }
        parse(&arguments)?.0.target.options(Nqn::DISCOVERY)
    }
}

impl Keys {
    /// Whether there is one for this subsystem. What is wrong with the options an attempt to connect tells.
    pub(super) fn have_one_for(&self, nqn: Nqn) -> bool {
        let missing = self.0.as_ref().and_then(|target| target.missing_keys(nqn).ok());
        missing.into_iter().flatten().all(|missing| missing.is_none())
    }
}

impl Subsystem {
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut paths = self.paths.iter().peekable();
        // What that of `--traddr` has is for the others, too.
        let plain = paths.next_if(|path| path.own.is_empty());
        let first = plain.into_iter().flat_map(|path| path.place.arguments());
        let first = first.collect::<Vec<_>>();
        let further = paths.map(|path| format!("--path={}", path.text()));
        let mut arguments = first.into_iter().chain(further).chain(self.options.iter().cloned()).collect();
        drop_idle_key(&mut arguments, self.has_tls() || self.options.iter().any(|option| option == "--tls"));
        arguments
    }

    /// The same without the paths for whose TLS this host has no key, and why each is left out. Where no other would be left, they
    /// are not: an attempt to connect tells what is to be done.
    pub(super) fn with_keys(&self) -> (Self, Vec<String>) {
        // What is wrong with the options is told by that attempt, too.
        let missing = self.missing_keys().unwrap_or_else(|_| vec![None; self.paths.len()]);
        let has_key = |(path, why): (&SubsystemPath, &Option<String>)| why.is_none().then(|| path.clone());
        let paths: Vec<_> = self.paths.iter().zip(&missing).filter_map(has_key).collect();
        if paths.is_empty() {
            return (self.clone(), Vec::new());
        }
        (Self { paths, ..self.clone() }, missing.into_iter().flatten().collect())
    }

    fn missing_keys(&self) -> Result<Vec<Option<String>>> {
        parse(&self.arguments())?.0.target.missing_keys(self.nqn()?)
    }

    fn nqn(&self) -> Result<Nqn> {
        Nqn::from_str(&self.nqn).map_err(|error| anyhow!("{} is no NQN: {error}", self.nqn))
    }

    /// How to connect to it.
    pub(crate) fn connection(&self) -> Result<Options> {
        parse(&self.arguments())?.0.target.options(self.nqn()?)
    }

    /// The options of `nvmf attach` for one of its namespaces. Secrets that a file has are read there again: others see a command's
    /// arguments.
    pub(crate) fn attach(&self, disk: &Disk) -> Vec<String> {
        let mut arguments = self.arguments();
        if arguments.iter().any(|option| option.starts_with("--config=")) {
            arguments.retain(|option| !is_secret(option));
        }
        arguments.extend([format!("--nqn={}", disk.nqn), format!("--nsid={}", disk.nsid)]);
        arguments
    }
}
