//! `nvmf smart-log /dev/ublkb0`, as nvme-cli has it: what asks a controller takes the place of an attached disk for its target.

use super::Arguments;
use super::attach::is_named;
use super::connect::add_missing;
use crate::attach::{Listed, PROVE_AS_MUCH, Registry};
use crate::namespace::DiskName;
use anyhow::{Context, Result, bail, ensure};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, ValueHint};
use nvmf_attached::{AttachedPath, Attachment, Authentication, State};
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

/// Features that a namespace has: the disk's, where the call names no other (error recovery, reservations, write protection).
pub(super) const OF_A_NAMESPACE: [u8; 4] = [0x05, 0x82, 0x83, 0x84];

/// The command, which says that it takes an attached disk, if it does: in its help, its manual page and completions. When a call is
/// parsed, what the disk is reached by has taken its place.
pub(super) fn with_disk(command: Command) -> Command {
    let name = command.get_name();
    if !takes_disk(name.as_ref()) {
        return command;
    }
    let required = command.get_arguments().filter(|it| it.is_required_set() && it.get_id() != "nqn");
    let word = |it: &Arg| Some(format!(" --{} <{}>", it.get_long()?, it.get_value_names()?.join(" ")));
    let required: String = required.filter_map(word).collect();
    let others = command.get_positionals().map(|it| format!(" [{}]", it.get_id().as_str().to_uppercase()));
    let others: String = others.collect();
    let usage = format!(
        "nvmf {name} [OPTIONS]{required} <DISK>{others}\n       \
         nvmf {name} [OPTIONS]{required} --traddr <TRADDR> --nqn <NQN>{others}"
    );
    let disk = Arg::new("attached_disk")
        .value_name("DISK")
        .help("An attached disk in place of a target: its device, socket or NQN (nvmf list)")
        .value_hint(ValueHint::AnyPath)
        .value_parser(no_disk);
    command.arg(disk).override_usage(usage)
}

fn no_disk(_: &str) -> Result<String, String> {
    Err("name an attached disk (nvmf list shows those that are), or a target (-t, -a, --trsvcid, -n), and not both"
        .to_owned())
}

/// The arguments of a call, with what an attached disk is reached by in the place of its device, its socket or its NQN.
pub(super) fn expand(arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let Some(at) = place(&arguments) else { return Ok(arguments) };
    let name = &arguments[at];
    // What is left of a disk whose device is gone may name the device of another one.
    let disks = Registry::of_this_user().list()?.into_iter().filter(Listed::is_there);
    let mut named: Vec<_> = disks.map(|listed| listed.disk).filter(|disk| is_named(disk, name)).collect();
    if named.is_empty() {
        // The last word may be that of an option.
        ensure!(
            at > FIRST,
            "{} is no attached disk (nvmf list shows those that are): name one, or a target (-t, -a, --trsvcid, -n)",
            name.display()
        );
        return Ok(arguments);
    }
    let mut expanded = as_nvme_cli_names_namespaces(arguments.clone());
    expanded.remove(at);
    // What is wrong with the call is said where it is parsed.
    let parsed = Arguments::command().ignore_errors(true).try_get_matches_from(&expanded);
    let matches = parsed.as_ref().ok().and_then(ArgMatches::subcommand).map(|(_, matches)| matches);
    // A subsystem may have several.
    if let Some(nsid) = matches.and_then(given_nsid)
        && named.iter().any(|disk| disk.nsid == nsid)
    {
        named.retain(|disk| disk.nsid == nsid);
    }
    let of_namespace = is(&expanded[1], &OF_NAMESPACE);
    ensure!(
        named.len() == 1 || !of_namespace,
        "{} is the name of {} attached disks: name one by its device or socket, or by --nsid",
        name.display(),
        named.len()
    );
    let disk = named.swap_remove(0);
    let nowhere = || format!("{disk} has no path, and its controller cannot be asked");
    let path = path(&disk).with_context(nowhere)?;
    ensure!(
        !of_namespace || disk.disk.is_some(),
        "{disk} is only being attached, and it is not known yet which disk it is"
    );
    let mut added = protection(&disk, path);
    let words = words(&disk, path).with_context(nowhere)?;
    expanded.splice(at..at, words.into_iter().map(OsString::from));
    if let Some(matches) = matches {
        check_proofs(&disk, matches)?;
        added.extend(namespace(&disk, &expanded[1], matches));
        add_missing(&mut expanded, matches, added);
    }
    Ok(expanded)
}

/// Beside a disk `-n` is the namespace's number, as nvme-cli has it: the disk stands for the subsystem, whose NQN it is elsewhere.
fn as_nvme_cli_names_namespaces(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let number = |text: &OsString| {
        let text = text.to_string_lossy();
        text.strip_prefix("0x").map_or(text.parse::<u32>(), |hex| u32::from_str_radix(hex, 16)).ok()
    };
    for at in FIRST..arguments.len().saturating_sub(1) {
        if arguments[at] == "-n"
            && let Some(number) = number(&arguments[at + 1])
        {
            (arguments[at], arguments[at + 1]) = ("--nsid".into(), number.to_string().into());
        }
    }
    arguments
}

/// The namespace that the call names.
fn given_nsid(matches: &ArgMatches) -> Option<u32> {
    let nsid = matches.try_get_one("nsid").ok().flatten().copied();
    nsid.filter(|_| matches.value_source("nsid") == Some(ValueSource::CommandLine))
}

/// The options that name the disk's namespace, and which disk it is; of a controller's command only where it is about one.
fn namespace(disk: &Attachment, name: &OsStr, matches: &ArgMatches) -> Vec<String> {
    let of_namespace = is(name, &OF_NAMESPACE);
    // To set one without knowing which disk it is of is left to who names the namespace.
    let feature = matches.try_get_one::<u8>("feature_id").ok().flatten().filter(|_| name == "get-feature");
    if !of_namespace && !feature.is_some_and(|id| OF_A_NAMESPACE.contains(id)) {
        return Vec::new();
    }
    // Another namespace of its controller is another disk.
    let is_its_own = given_nsid(matches).is_none_or(|nsid| nsid == disk.nsid);
    let identity = disk.disk.as_ref().filter(|_| of_namespace && is_its_own);
    let identity = identity.map(|it| format!("--disk={}", DiskName::from(it)));
    [format!("--nsid={}", disk.nsid)].into_iter().chain(identity).collect()
}

/// # Errors
/// Less is to be proved than when it was attached: the controller that answers may be another one.
fn check_proofs(disk: &Attachment, matches: &ArgMatches) -> Result<()> {
    let is_given = |option| matches.try_get_one::<String>(option).ok().flatten().is_some();
    let is_optional = matches.try_get_one("dhchap_optional").ok().flatten() == Some(&true);
    let now = Authentication {
        required: is_given("dhchap_secret") && !is_optional,
        bidirectional: is_given("dhchap_ctrl_secret"),
    };
    let Some(before) = disk.authentication.filter(|before| !now.covers(*before)) else { return Ok(()) };
    bail!("{disk} was attached with {before}, and a command goes to it in no other way: {PROVE_AS_MUCH}")
}

/// Options that keep what is sent from being seen or changed on its way: what this path of the disk has.
fn protection(disk: &Attachment, path: &AttachedPath) -> Vec<String> {
    let mut options = path.protection.clone();
    // That of a server before paths said so, too.
    let tls = (disk.tls && path.transport == "tcp").then_some(if disk.concat { "--concat" } else { "--tls" });
    options.extend(tls.filter(|tls| options.iter().all(|option| option != tls)).map(str::to_owned));
    options
}

/// Where a disk is named: by any name as the first word, or as the last one, as a path, where nothing else names a target.
fn place(arguments: &[OsString]) -> Option<usize> {
    let command = arguments.get(1)?;
    let names_target = |argument: &OsString| {
        let text = argument.to_string_lossy();
        ["-a", "--traddr", "--path"].iter().any(|name| text.starts_with(name))
    };
    if !takes_disk(command) || arguments.iter().any(names_target) {
        return None;
    }
    let begins =
        |at: usize, with: &[u8]| arguments.get(at).is_some_and(|it| it.as_encoded_bytes().starts_with(with));
    let last = arguments.len() - 1;
    if arguments.get(FIRST).is_some_and(|it| !it.is_empty()) && !begins(FIRST, b"-") {
        return Some(FIRST);
    }
    (last >= FIRST && (begins(last, b"/") || begins(last, b"./"))).then_some(last)
}

fn takes_disk(command: &OsStr) -> bool {
    is(command, &OF_CONTROLLER) || is(command, &OF_NAMESPACE)
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

/// The options that name the disk's controller on this path.
fn words(disk: &Attachment, path: &AttachedPath) -> Option<Vec<String>> {
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
        assert_eq!(at("nvmf smart-log -H ./my.sock"), Some(3));
        assert_eq!(at("nvmf smart-log my.sock"), Some(2));
        assert_eq!(at("nvmf smart-log nqn.2026-11.com.example:a"), Some(2));
        assert_eq!(at("nvmf write /dev/ublkb0 --data /dev/ublkb1"), Some(2));
        assert_eq!(at("nvmf write -a 192.0.2.1 -n nqn.2026-11.com.example:a --data /dev/ublkb1"), None);
        assert_eq!(at("nvmf write --traddr=192.0.2.1 --data /dev/ublkb1"), None);
        assert_eq!(at("nvmf smart-log -o json"), None);
        assert_eq!(at("nvmf smart-log"), None);
        assert_eq!(at("nvmf info /dev/ublkb0"), None);
    }

    #[test]
    fn number_behind_n_is_a_namespace() {
        let of = |call: &str| {
            let words = as_nvme_cli_names_namespaces(call.split(' ').map(OsString::from).collect());
            words.join(std::ffi::OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(of("nvmf id-ns /dev/ublkb0 -n 1"), "nvmf id-ns /dev/ublkb0 --nsid 1");
        assert_eq!(of("nvmf id-ns -n 0x2 /dev/ublkb0"), "nvmf id-ns --nsid 2 /dev/ublkb0");
        let nqn = "nvmf id-ns /dev/ublkb0 -n nqn.2026-11.com.example:a";
        assert_eq!(of(nqn), nqn, "it is refused beside the disk's");
    }

    /// What is added to a call of a disk with NSID 2.
    fn added(call: &str) -> Vec<String> {
        let arguments = call.split(' ').map(OsString::from);
        let matches = Arguments::command().ignore_errors(true).get_matches_from(arguments);
        let (name, matches) = matches.subcommand().unwrap();
        let disk =
            Attachment { nsid: 2, disk: Some(nvmf_attached::Disk::default()), ..Attachment::default() };
        namespace(&disk, OsStr::new(name), matches)
    }

    #[test]
    fn identity_of_the_disk_is_held_to_unless_another_namespace_is_named() {
        let target = "-a 192.0.2.1 -n nqn.2026-11.com.example:a";
        let has_identity = |call: &str| {
            let added = added(&format!("nvmf {call} {target}"));
            assert_eq!(added[0], "--nsid=2");
            added.iter().any(|option| option.starts_with("--disk="))
        };
        assert!(
            has_identity("flush") && has_identity("flush --nsid 2") && has_identity("flush --namespace-id=2")
        );
        assert!(!has_identity("flush --nsid 3"));
        assert!(!has_identity("get-feature -f 0x84"));
        assert!(added(&format!("nvmf get-feature -f 2 {target}")).is_empty());
        assert!(added(&format!("nvmf smart-log {target}")).is_empty());
    }

    #[test]
    fn what_is_sent_is_protected_as_on_the_path_of_the_disk() {
        let plain = AttachedPath { transport: "tcp".to_owned(), ..AttachedPath::default() };
        let path = AttachedPath { protection: vec!["--data-digest".to_owned()], ..plain.clone() };
        let disk = Attachment { tls: true, ..Attachment::default() };
        assert_eq!(protection(&Attachment::default(), &path), ["--data-digest"]);
        assert_eq!(protection(&disk, &path), ["--data-digest", "--tls"]);
        assert_eq!(protection(&Attachment { concat: true, ..disk.clone() }, &plain), ["--concat"]);
        let path = AttachedPath { protection: vec!["--tls".to_owned()], ..plain.clone() };
        assert_eq!(protection(&disk, &path), ["--tls"]);
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

    #[test]
    fn help_of_each_command_names_the_disk() {
        let mut command_line = Arguments::command();
        command_line.build();
        for name in OF_CONTROLLER.iter().chain(&OF_NAMESPACE) {
            let command = command_line.find_subcommand_mut(name).unwrap_or_else(|| panic!("{name}"));
            let help = command.render_long_help().to_string();
            let usage = help.lines().find(|line| line.starts_with(&format!("Usage: nvmf {name} [OPTIONS]")));
            assert!(usage.is_some_and(|usage| usage.contains(" <DISK>")), "{help}");
            assert!(help.contains("An attached disk in place of a target"), "{help}");
        }
        let command = command_line.find_subcommand_mut("get-feature").unwrap();
        let usage = command.render_usage().to_string();
        assert!(usage.contains("[OPTIONS] --feature-id <FEATURE_ID> <DISK>\n"), "{usage}");
        let attach = command_line.find_subcommand_mut("attach").unwrap().render_usage().to_string();
        assert!(!attach.contains("DISK"), "{attach}");
    }

    #[test]
    fn disk_beside_a_target_is_refused() {
        let call = "nvmf smart-log /dev/ublkb0 -a 192.0.2.1 -n nqn.2026-11.com.example:a";
        let error = Arguments::command().try_get_matches_from(call.split(' ')).unwrap_err().to_string();
        assert!(error.contains("/dev/ublkb0") && error.contains("not both"), "{error}");
    }
}
