//! `nvmf smart-log /dev/ublkb0`, as nvme-cli has it: what asks a controller takes the place of an attached disk for its target.

use super::Arguments;
use super::attach::is_named;
use super::connect::add_missing;
use crate::attach::{Listed, Registry};
use crate::namespace::DiskName;
use anyhow::{Context, Result, ensure};
use clap::{ArgMatches, CommandFactory};
use nvmf_attached::{AttachedPath, Attachment, State};
use std::ffi::{OsStr, OsString};

/// Commands that ask a controller.
const OF_CONTROLLER: [&str; 12] = [
    "id-ctrl",
    "list-ns",
    "list-ctrl",
    "show-regs",
    "smart-log",
    "get-log",
    "ana-log",
    "error-log",
    "effects-log",
    "get-feature",
    "set-feature",
    "admin-passthru",
];
/// Commands that ask a namespace: the disk's, where the call names no other.
const OF_NAMESPACE: [&str; 14] = [
    "id-ns",
    "ns-descs",
    "resv-register",
    "resv-acquire",
    "resv-release",
    "resv-report",
    "copy",
    "io-passthru",
    "read",
    "write",
    "write-zeroes",
    "flush",
    "dsm",
    "compare",
];

/// Where the arguments of a command begin.
const FIRST: usize = 2;

/// The arguments of a call, with what an attached disk is reached by in the place of its device or socket.
pub(super) fn expand(arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let Some(at) = place(&arguments) else { return Ok(arguments) };
    let name = &arguments[at];
    // What is left of a disk whose device is gone may name the device of another one.
    let mut disks = Registry::of_this_user().list()?.into_iter().filter(Listed::is_there);
    let named = disks.find(|listed| is_named(&listed.disk, name).unwrap_or_default());
    let Some(disk) = named.map(|listed| listed.disk) else {
        // The last word may be that of an option.
        ensure!(
            at > FIRST,
            "{} is no attached disk (nvmf list shows those that are): name one, or a target (-t, -a, --trsvcid, -n)",
            name.display()
        );
        return Ok(arguments);
    };
    let is_given = |argument: &OsString| {
        let text = argument.to_string_lossy();
        ["--nsid", "--namespace-id"].iter().any(|name| text.starts_with(name))
    };
    let needs_namespace = is(&arguments[1], &OF_NAMESPACE) && !arguments.iter().any(is_given);
    let nowhere = || format!("{disk} has no path, and its controller cannot be asked");
    let path = path(&disk).with_context(nowhere)?;
    let words = words(&disk, path, needs_namespace).with_context(nowhere)?;
    let mut expanded = arguments;
    expanded.splice(at..=at, words.into_iter().map(OsString::from));
    // What is wrong with the call is said where it is parsed.
    let parsed = Arguments::command().ignore_errors(true).try_get_matches_from(&expanded);
    if let Ok(Some((_, matches))) = parsed.as_ref().map(ArgMatches::subcommand) {
        add_missing(&mut expanded, matches, protection(&disk, path));
    }
    Ok(expanded)
}

/// Options that keep what is sent from being seen or changed on its way: what this path of the disk has.
fn protection(disk: &Attachment, path: &AttachedPath) -> Vec<String> {
    let mut options = path.protection.clone();
    if disk.concat {
        options.push("--concat".to_owned());
    }
    options
}

/// Where a disk is named: first or last, as a path, where nothing else names a target.
fn place(arguments: &[OsString]) -> Option<usize> {
    let command = arguments.get(1)?;
    let names_target = |argument: &OsString| {
        let text = argument.to_string_lossy();
        ["-a", "--traddr", "--path"].iter().any(|name| text.starts_with(name))
    };
    if !(is(command, &OF_CONTROLLER) || is(command, &OF_NAMESPACE)) || arguments.iter().any(names_target) {
        return None;
    }
    let is_path = |&at: &usize| arguments.get(at).is_some_and(|it| it.as_encoded_bytes().starts_with(b"/"));
    [FIRST, arguments.len() - 1].into_iter().find(is_path)
}

fn is(command: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|&name| command == name)
}

/// A path to it: the best one that is there, if one is.
fn path(disk: &Attachment) -> Option<&AttachedPath> {
    let rank = |path: &&AttachedPath| match (path.state, path.ana_state.as_deref()) {
        (State::Live, None | Some("optimized")) => 0,
        (State::Live, Some("non-optimized")) => 1,
        (State::Live, _) => 2,
        _ => 3,
    };
    disk.paths.iter().min_by_key(rank)
}

/// The options that name the disk's controller on this path; and its namespace.
fn words(disk: &Attachment, path: &AttachedPath, namespace: bool) -> Option<Vec<String>> {
    let (address, port) = path.host_and_port();
    let mut words = vec![
        format!("--transport={}", path.transport),
        format!("--traddr={}", path.name.as_deref().unwrap_or(address)),
        format!("--trsvcid={}", port?),
        format!("--nqn={}", disk.nqn),
        format!("--hostnqn={}", disk.host_nqn),
        format!("--hostid={}", disk.host_id),
    ];
    words.extend(path.source.iter().map(|source| format!("--host-traddr={source}")));
    words.extend(path.interface.iter().map(|name| format!("--host-iface={name}")));
    if namespace {
        words.push(format!("--nsid={}", disk.nsid));
        words.extend(disk.disk.as_ref().map(|it| format!("--disk={}", DiskName::from(it))));
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_is_named_where_no_target_is() {
        let at = |call: &str| place(&call.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(at("nvmf smart-log /dev/ublkb0"), Some(2));
        assert_eq!(at("nvmf smart-log -H /dev/ublkb0"), Some(3));
        assert_eq!(at("nvmf write /dev/ublkb0 --data /dev/ublkb1"), Some(2));
        assert_eq!(at("nvmf write -a 192.0.2.1 -n nqn.2026-11.com.example:a --data /dev/ublkb1"), None);
        assert_eq!(at("nvmf write --traddr=192.0.2.1 --data /dev/ublkb1"), None);
        assert_eq!(at("nvmf smart-log"), None);
        assert_eq!(at("nvmf info /dev/ublkb0"), None);
    }

    #[test]
    fn what_is_sent_is_protected_as_on_the_path_of_the_disk() {
        let plain = AttachedPath::default();
        let path = AttachedPath { protection: vec!["--data-digest".to_owned()], ..plain.clone() };
        let disk = Attachment { concat: true, ..Attachment::default() };
        assert_eq!(protection(&Attachment::default(), &path), ["--data-digest"]);
        assert_eq!(protection(&disk, &path), ["--data-digest", "--concat"]);
        assert!(protection(&Attachment::default(), &plain).is_empty());
    }

    #[test]
    fn controller_that_gives_access_is_asked() {
        let there = |state, ana_state: Option<&str>| AttachedPath {
            state,
            ana_state: ana_state.map(str::to_owned),
            ..AttachedPath::default()
        };
        let paths = [
            there(State::Reconnecting, None),
            there(State::Live, Some("inaccessible")),
            there(State::Live, Some("non-optimized")),
            there(State::Live, Some("optimized")),
        ];
        for count in 1..=paths.len() {
            let disk = Attachment { paths: paths[..count].to_vec(), ..Attachment::default() };
            assert_eq!(path(&disk), Some(&paths[count - 1]));
        }
        assert_eq!(path(&Attachment::default()), None);
    }

    #[test]
    fn each_command_exists_and_takes_a_target() {
        let command_line = Arguments::command();
        for name in OF_CONTROLLER.iter().chain(&OF_NAMESPACE) {
            let command = command_line.find_subcommand(name).unwrap_or_else(|| panic!("{name}"));
            let has = |id: &str| command.get_arguments().any(|argument| argument.get_id() == id);
            assert!(has("traddr") && has("nqn"), "{name}");
            assert!(has("nsid") || !OF_NAMESPACE.contains(name), "{name}");
        }
    }
}
