//! What of a call lasts as long as its disk: whoever takes the disk over has that, too, but for what its own call says.

use super::attach::DiskArguments;
use super::connect::add_missing;
use super::{Arguments, expand};
use crate::attach::{AttachOptions, Form};
use crate::discovery::given;
use anyhow::{Context, Result};
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use nvmf_initiator::PathOptions;
use std::ffi::OsString;

/// Options of connections that are neither one path's nor keys.
const LASTING: [&str; 14] = [
    "--iopolicy",
    "--provider",
    "--crc",
    "--tos",
    "--nr-io-queues",
    "--nr-write-queues",
    "--hdr-digest",
    "--data-digest",
    "--disable-sqflow",
    "--queue-size",
    "--keep-alive-tmo",
    "--reconnect-delay",
    "--ctrl-loss-tmo",
    "--fast-io-fail-tmo",
];

/// Those that are given.
fn lasting(matches: &ArgMatches) -> Vec<String> {
    let lasts = |option: &String| {
        let name = option.split('=').next().unwrap_or_default();
        LASTING.contains(&name)
    };
    given(matches).into_iter().filter(lasts).collect()
}

/// The options of a disk that this process's call names.
pub(super) fn options() -> Result<AttachOptions> {
    with(&[], &[])
}

/// The same with these besides, as far as it does not give them. `found`: its paths, of which no name is looked up again.
pub(super) fn with(more: &[String], found: &[PathOptions]) -> Result<AttachOptions> {
    of(expand(std::env::args_os().collect())?, more, found)
}

fn of(mut arguments: Vec<OsString>, more: &[String], found: &[PathOptions]) -> Result<AttachOptions> {
    let parsed = |arguments: &[OsString]| Arguments::command().try_get_matches_from(arguments);
    if let Some((_, matches)) = parsed(&arguments)?.subcommand() {
        add_missing(&mut arguments, matches, more.to_vec());
    }
    let matches = parsed(&arguments)?;
    let (name, matches) = matches.subcommand().context("no command")?;
    let disk = DiskArguments::from_arg_matches(matches)?.with_found(found);
    let disk = if name == "serve-vhost" { disk.in_form(Form::Vhost) } else { disk };
    Ok(AttachOptions { lasting: lasting(matches), ..disk.options()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_initiator::{AddressSource, PathPolicy, TransportOptions};

    fn of_words(call: &str, more: &[&str]) -> Result<AttachOptions> {
        let words = call.split(' ').map(OsString::from).collect();
        of(words, &more.iter().map(|&it| it.to_owned()).collect::<Vec<_>>(), &[])
    }

    #[test]
    fn options_last_unless_the_call_gives_them() {
        let call = "nvmf attach -t tcp -a 192.0.2.1 -n nqn.2026-11.com.example:disk --as socket";
        let first = of_words(&format!("{call} --iopolicy latency -k 2 -G -l -1"), &[]).unwrap();
        let words = ["--iopolicy=latency", "--data-digest", "--keep-alive-tmo=2", "--ctrl-loss-tmo=-1"];
        assert_eq!(first.lasting, words);
        let next =
            of_words(&format!("{call} -l 600 -W 0 -I 00000000-0000-0000-0000-000000000001"), &words).unwrap();
        assert_eq!(next.connection.path_policy, PathPolicy::Latency);
        let lasting = ["--nr-write-queues=0", "--data-digest", "--keep-alive-tmo=2", "--ctrl-loss-tmo=600"];
        assert_eq!(next.lasting[..1], words[..1]);
        assert_eq!(next.lasting[1..], lasting);
    }

    /// The name is none that anybody could look up.
    #[test]
    fn names_that_were_found_are_not_looked_up_again() {
        let words = "nvmf attach -t tcp -a storage.invalid -n nqn.2026-11.com.example:disk --as socket";
        let call = |found: &[PathOptions]| {
            of(words.split(' ').map(OsString::from).collect(), &["--data-digest".to_owned()], found)
        };
        let mut path = of_words(&words.replace("storage.invalid", "localhost"), &[]).unwrap().connection;
        path.address = "192.0.2.7:4420".parse().unwrap();
        path.address_source = Some(AddressSource::of_name("storage.invalid", || None));
        let found: Vec<_> = path.all_paths().collect();
        let again = call(&found).unwrap().connection;
        assert_eq!(again.address, path.address);
        assert!(matches!(&again.transport, TransportOptions::Tcp(tcp) if tcp.data_digest));
        assert_eq!(again.address_source.unwrap().name(), Some("storage.invalid"), "it may move");
    }

    #[test]
    fn neither_keys_nor_places_last() {
        let call = "nvmf attach -t tcp -a 192.0.2.1 -w 192.0.2.9 -n nqn.2026-11.com.example:disk --as socket --tls --keyring k";
        assert!(of_words(call, &[]).unwrap().lasting.is_empty());
    }

    /// A later version may have dropped one, or the call another transport that has none of it.
    #[test]
    fn option_that_the_call_cannot_have_is_an_error() {
        let call = "nvmf attach -a 192.0.2.1 -n nqn.2026-11.com.example:disk --as socket";
        assert!(of_words(call, &["--gone=1"]).is_err());
        assert!(of_words(call, &["--data-digest"]).is_err());
    }
}
