//! `nvmf smart-log /dev/ublkb0`, as nvme-cli has it: what asks a controller takes the place of an attached disk for its target.

use super::attach::is_named;
use crate::attach::Registry;
use anyhow::{Context, Result, ensure};
use nvmf_attached::{Attachment, State};
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
    let mut disks = Registry::of_this_user().list()?.into_iter().map(|listed| listed.disk);
    let Some(disk) = disks.find(|disk| is_named(disk, name).unwrap_or_default()) else {
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
    let words = words(&disk, needs_namespace)
        .with_context(|| format!("{disk} has no path, and its controller cannot be asked"))?;
    let mut expanded = arguments;
    expanded.splice(at..=at, words.into_iter().map(OsString::from));
    Ok(expanded)
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

/// The options that name the disk's controller on a path that is there, if one is; and its namespace.
fn words(disk: &Attachment, namespace: bool) -> Option<Vec<String>> {
    let is_live = |path: &&nvmf_attached::AttachedPath| path.state == State::Live;
    let path = disk.paths.iter().find(is_live).or(disk.paths.first())?;
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
    words.extend((disk.tls && !disk.concat).then(|| "--tls".to_owned()));
    words.extend(namespace.then(|| format!("--nsid={}", disk.nsid)));
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Arguments;
    use clap::CommandFactory;

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
