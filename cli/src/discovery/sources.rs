//! Where discovery begins: nvme-cli's `discovery.conf` and `config.json`, and the options of a call.

use super::engine::{Controller, Disk, Place, Subsystem, SubsystemPath, of_all_paths};
use crate::attach::Listed;
use crate::command::TargetArguments;
use crate::connect::Transport;
use crate::print::chain;
use anyhow::{Context, Result, anyhow, ensure};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, ValueEnum};
use nvme_proto::Nqn;
use nvmf_attached::AttachedPath;
use nvmf_initiator::{HostIdentity, Options};
use serde_json::Value;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Options of a line in `discovery.conf` that say nothing here: discovery controllers are followed by `nvmf discoverd`.
const WITHOUT_MEANING: [&str; 5] = ["--persistent", "-p", "--quiet", "--force", "--matching"];
/// Keys of a port in `config.json` that say nothing here.
const WITHOUT_MEANING_IN_JSON: [&str; 7] = [
    "discovery",
    "persistent",
    "duplicate_connect",
    "nr_poll_queues",
    "tls_key",
    "keyring",
    "tls_configured_key",
];
/// Keys of a host in it that are options for its subsystems.
const OF_HOST: [&str; 4] = ["hostnqn", "hostid", "dhchap_key", "dhchap_ctrl_key"];
/// Options that say where a controller is: not to be handed on to others.
const OF_ONE_PLACE: [&str; 6] = ["transport", "traddr", "trsvcid", "nqn", "paths", "config"];

/// nvme-cli's options for a controller, without a command.
#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true, disable_help_flag = true)]
struct Call {
    #[command(flatten)]
    target: TargetArguments,
    #[arg(short = 'n', long)]
    nqn: Option<Nqn>,
    /// Where secrets among the options are from.
    #[arg(long, hide = true)]
    config: Option<PathBuf>,
}

/// What is found in files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    pub(crate) controllers: Vec<Controller>,
    pub(crate) subsystems: Vec<Subsystem>,
    /// What `config.json` says of its hosts, as options.
    pub(crate) hosts: Vec<Vec<String>>,
}

/// The options that are given, by their long names, but for those that say where a controller is.
pub(crate) fn given(matches: &ArgMatches) -> Vec<String> {
    let mut options = Vec::new();
    for argument in Call::command().get_arguments() {
        let (id, Some(long)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        let is_given = matches.try_contains_id(id).unwrap_or_default()
            && matches.value_source(id) == Some(ValueSource::CommandLine);
        if !is_given || OF_ONE_PLACE.contains(&id) {
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

/// The discovery controller that these options name.
pub(crate) fn controller(arguments: &[String]) -> Result<Controller> {
    let (call, matches) = parse(arguments)?;
    Ok(Controller { place: call.target.place(true)?, options: given(&matches) })
}

fn parse(arguments: &[String]) -> Result<(Call, ArgMatches)> {
    let matches = Call::command().try_get_matches_from(arguments);
    let in_a_line = |error: clap::Error| {
        let text = error.to_string();
        anyhow!("{}", text.lines().next().unwrap_or_default().trim_start_matches("error: "))
    };
    let matches = matches.map_err(in_a_line)?;
    let call = Call::from_arg_matches(&matches).map_err(in_a_line)?;
    Ok((call, matches))
}

impl Sources {
    /// Says beside secrets which file they are from.
    fn name_file(&mut self, file: &Path) {
        let controllers = self.controllers.iter_mut().map(|controller| &mut controller.options);
        let subsystems = self.subsystems.iter_mut().map(|subsystem| &mut subsystem.options);
        for options in
            controllers.chain(subsystems).filter(|options| options.iter().any(|option| is_secret(option)))
        {
            options.push(format!("--config={}", file.display()));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.controllers.is_empty() && self.subsystems.is_empty()
    }

    /// The options for the controller there, else those of its host. Of the host that is said: what another one is told does not
    /// count.
    fn of_host(&self, host: Option<Nqn>, nqn: Nqn, place: &Place) -> Option<Vec<String>> {
        let is_meant = |options: &[String]| {
            let named = options.iter().find_map(|option| option.strip_prefix("--hostnqn="));
            named.zip(host).is_none_or(|(named, host)| named == host.as_str())
        };
        let of = |it: &Subsystem| {
            let path = it.paths.iter().find(|path| path.place == *place)?;
            Some([&it.options[..], &path.options].concat())
        };
        let mut subsystems =
            self.subsystems.iter().filter(|it| it.nqn == nqn.as_str() && is_meant(&it.options));
        let host = || self.hosts.iter().find(|options| is_meant(options)).cloned();
        subsystems.find_map(of).or_else(host)
    }

    /// From nvme-cli's files in this folder, as far as they are there. `given` are options of the call: those of a line go before them.
    pub(crate) fn read(folder: &Path, config: Option<&Path>, given: &[String]) -> Result<Self> {
        let mut sources = Self::default();
        if let Some(text) = read(&folder.join("discovery.conf"))? {
            let path = folder.join("discovery.conf");
            sources.controllers = discovery_conf(&text, given).with_context(|| path.display().to_string())?;
        }
        let named = config.map(Path::to_owned);
        let json = named.clone().unwrap_or_else(|| folder.join("config.json"));
        if named.as_deref() == Some(Path::new("none")) {
            return Ok(sources);
        }
        match read(&json)? {
            Some(text) => {
                let mut found = config_json(&text, given).with_context(|| json.display().to_string())?;
                found.name_file(&std::path::absolute(&json)?);
                sources.controllers.extend(found.controllers);
                (sources.subsystems, sources.hosts) = (found.subsystems, found.hosts);
            }
            None => ensure!(named.is_none(), "{} is not there", json.display()),
        }
        Ok(sources)
    }
}

/// What nvme-cli's `config.json` says of a controller, as options, else of its host. `of_path`: also those that are of one path only.
pub(crate) fn options_of(
    file: &Path,
    host: Option<Nqn>,
    nqn: Nqn,
    place: &Place,
    of_path: bool,
) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let sources = config_json(&text, &[]).with_context(|| file.display().to_string())?;
    let options = sources.of_host(host, nqn, place).unwrap_or_default();
    Ok(if of_path { options } else { of_all_paths(&options) })
}

fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// A discovery controller a line, named by options.
fn discovery_conf(text: &str, given: &[String]) -> Result<Vec<Controller>> {
    let mut controllers = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.split('#').next().unwrap_or_default();
        let words = line.split_whitespace().filter(|word| !WITHOUT_MEANING.contains(word));
        let words: Vec<_> = words.map(str::to_owned).collect();
        if words.is_empty() {
            continue;
        }
        let arguments = [given, &words].concat();
        controllers.push(controller(&arguments).with_context(|| format!("line {number}"))?);
    }
    Ok(controllers)
}

/// Hosts, the subsystems of each, and their ports. What is not understood of one port is left out with a warning: the others are
/// not worse for it.
fn config_json(text: &str, given: &[String]) -> Result<Sources> {
    let hosts: Vec<Value> = match serde_json::from_str(text).context("it is not JSON")? {
        Value::Array(hosts) => hosts,
        _ => return Err(anyhow!("it is not a list of hosts, as `nvme config --scan --dump` writes it")),
    };
    let mut sources = Sources::default();
    for host in &hosts {
        let of_host = of_keys(host, Some(&OF_HOST));
        sources.hosts.push(of_host.clone());
        for subsystem in list(host, "subsystems") {
            let nqn = subsystem.get("nqn").and_then(Value::as_str).unwrap_or(Nqn::DISCOVERY.as_str());
            let (mut paths, mut of_all) = (Vec::new(), None);
            for port in list(subsystem, "ports") {
                let is_discovery = nqn == Nqn::DISCOVERY.as_str()
                    || port.get("discovery").and_then(Value::as_bool) == Some(true);
                match config_port(port, is_discovery, &[given, &of_host].concat()) {
                    Ok((place, options)) if is_discovery => {
                        sources.controllers.push(Controller { place, options });
                    }
                    Ok((place, options)) => {
                        paths.push(SubsystemPath::new(place, &options));
                        of_all.get_or_insert_with(|| of_all_paths(&options));
                    }
                    Err(error) => {
                        let address = port.get("traddr").and_then(Value::as_str).unwrap_or("?");
                        tracing::warn!("the port {address} of {nqn} is left out: {}", chain(&error));
                    }
                }
            }
            if let Some(options) = of_all {
                sources.subsystems.push(Subsystem { nqn: nqn.to_owned(), paths, options });
            }
        }
    }
    Ok(sources)
}

/// Where a port is, and its options beside these.
fn config_port(port: &Value, is_discovery: bool, options: &[String]) -> Result<(Place, Vec<String>)> {
    let transport = port.get("transport").and_then(Value::as_str).unwrap_or_default();
    ensure!(
        transport.is_empty() || Transport::from_str(transport, true).is_ok(),
        "nvmf has no transport `{transport}`, only tcp and rdma"
    );
    let (call, matches) = parse(&[options, &of_keys(port, None)].concat())?;
    Ok((call.target.place(is_discovery)?, given(&matches)))
}

fn is_secret(option: &str) -> bool {
    let option =
        option.strip_prefix("--dhchap-secret=").or_else(|| option.strip_prefix("--dhchap-ctrl-secret="));
    option.is_some_and(crate::command::is_secret)
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// Keys as options, of these names or all. What nvme-cli does not hand on, nor does this; what nobody knows is left out with a warning.
fn of_keys(value: &Value, names: Option<&[&str]>) -> Vec<String> {
    let call = Call::command();
    let is_known = |name: &str| {
        let mut arguments = call.get_arguments().filter(|argument| !argument.is_hide_set());
        arguments.any(|argument| argument.get_long() == Some(name))
    };
    let mut options = Vec::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        if names.is_some_and(|names| !names.contains(&key.as_str()))
            || WITHOUT_MEANING_IN_JSON.contains(&&**key)
        {
            continue;
        }
        let name = match key.as_str() {
            "dhchap_key" => "dhchap-secret".to_owned(),
            "dhchap_ctrl_key" => "dhchap-ctrl-secret".to_owned(),
            key => key.replace('_', "-"),
        };
        if !is_known(&name) {
            tracing::warn!("`{key}` means nothing to nvmf: it is left out");
            continue;
        }
        match value {
            Value::Bool(true) => options.push(format!("--{name}")),
            Value::String(text) => options.push(format!("--{name}={text}")),
            Value::Number(number) => options.push(format!("--{name}={number}")),
            _ => {}
        }
    }
    options
}

impl Place {
    fn arguments(&self) -> [String; 3] {
        let Self { transport, address, port } = self;
        [format!("--transport={transport}"), format!("--traddr={address}"), format!("--trsvcid={port}")]
    }
}

impl SubsystemPath {
    /// As `--path` takes it.
    pub(crate) fn text(&self) -> String {
        let Place { transport, address, port } = &self.place;
        let address = if address.contains(':') { format!("[{address}]") } else { address.clone() };
        let own = self.options.iter().map(|option| option.replacen("--", ",", 1)).collect::<String>();
        format!("{address}:{port}/{transport}{own}")
    }
}

/// Gives an attached disk those of these paths that it does not have, if it is this host's; how many those are.
pub(crate) fn add_missing_paths(
    listed: &Listed,
    host: &HostIdentity,
    paths: &[SubsystemPath],
) -> Result<usize> {
    if listed.disk.host_nqn != host.nqn.as_str() {
        return Ok(0);
    }
    let is_there = |path: &&SubsystemPath| listed.disk.paths.iter().any(|attached| path.is_at(attached));
    // A disk that was attached over TLS is reached in no other way.
    let insists = listed.disk.tls;
    let is_able = |path: &&SubsystemPath| !insists || path.place.transport == "tcp";
    let mut missing: Vec<_> = paths.iter().filter(|path| !is_there(path) && is_able(path)).cloned().collect();
    let mut failed = None;
    for path in &mut missing {
        if insists && !path.has_tls() {
            path.options.push("--tls".to_owned());
        }
        if let Err(error) = listed.add_path(&path.text()) {
            // The others are not worse for it.
            failed.get_or_insert(error.context(format!("the path over {}", path.place)));
        }
    }
    failed.map_or(Ok(missing.len()), Err)
}

impl SubsystemPath {
    /// Whether an attached disk has it as this path.
    fn is_at(&self, attached: &AttachedPath) -> bool {
        let (address, port) = attached.host_and_port();
        let Place { transport, address: own, port: own_port } = &self.place;
        let option = |name: &str| self.options.iter().find_map(|option| option.strip_prefix(name));
        // One that says nothing of where it begins is every path there, as nvme-cli has it.
        let begins = |own: Option<&str>, attached: &Option<String>| own.is_none() || own == attached.as_deref();
        (port, &attached.transport) == (Some(*own_port), transport)
            && (address == own || attached.name.as_ref() == Some(own))
            && begins(option("--host-traddr="), &attached.source)
            && begins(option("--host-iface="), &attached.interface)
    }
}

impl Controller {
    /// How to connect to it.
    pub(crate) fn connection(&self) -> Result<Options> {
        let mut arguments = [&self.place.arguments()[..], &self.options].concat();
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

impl Subsystem {
    fn arguments(&self) -> Vec<String> {
        let mut paths = self.paths.iter().peekable();
        // What that of `--traddr` has is for the others, too.
        let plain = paths.next_if(|path| path.options.is_empty());
        let first = plain.into_iter().flat_map(|path| path.place.arguments());
        let first = first.collect::<Vec<_>>();
        let further = paths.map(|path| format!("--path={}", path.text()));
        first.into_iter().chain(further).chain(self.options.iter().cloned()).collect()
    }

    /// How to connect to it.
    pub(crate) fn connection(&self) -> Result<Options> {
        let nqn = Nqn::from_str(&self.nqn).map_err(|error| anyhow!("{} is no NQN: {error}", self.nqn))?;
        parse(&self.arguments())?.0.target.options(nqn)
    }

    /// Gives an attached disk of it those of its paths that it does not have; how many those are.
    pub(super) fn add_missing_paths(&self, listed: &Listed) -> Result<usize> {
        let host = parse(&self.arguments())?.0.target.host()?;
        add_missing_paths(listed, &host, &self.paths)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn place(transport: &str, address: &str, port: u16) -> Place {
        Place { transport: transport.to_owned(), address: address.to_owned(), port }
    }

    #[test]
    fn discovery_conf_has_a_controller_a_line() {
        let text = "# comment\n\n--transport=tcp --traddr=192.0.2.1 --persistent # the first\n\
                    -t tcp -a 2001:db8::1 -s 4420 --hdr-digest -k 30\n--transport=rdma -a name";
        let found =
            discovery_conf(text, &["--data-digest".to_owned(), "--transport=tcp".to_owned()]).unwrap();
        assert_eq!(found[0].place, place("tcp", "192.0.2.1", 8009));
        assert_eq!(found[0].options, ["--data-digest"]);
        assert_eq!(found[1].place, place("tcp", "2001:db8::1", 4420));
        assert_eq!(found[1].options, ["--hdr-digest", "--data-digest", "--keep-alive-tmo=30"]);
        assert_eq!(found[2].place, place("rdma", "name", 4420));
        let error = format!("{:#}", discovery_conf("-t tcp -a a\n-t tcp --no-such", &[]).unwrap_err());
        assert!(error.contains("line 2") && error.contains("--no-such"), "{error}");
        assert!(discovery_conf("-t tcp", &[]).is_err(), "it names no address");
    }

    #[test]
    fn config_json_has_controllers_and_subsystems() {
        let text = r#"[{"hostnqn":"nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111",
            "subsystems":[
              {"nqn":"nqn.2014-08.org.nvmexpress.discovery","ports":[{"transport":"tcp","traddr":"192.0.2.1","trsvcid":"8009"}]},
              {"nqn":"nqn.2026-11.com.example:a","ports":[
                {"transport":"tcp","traddr":"192.0.2.1","trsvcid":"4420","ctrl_loss_tmo":-1,"hdr_digest":true},
                {"transport":"tcp","traddr":"2001:db8::2","trsvcid":"4421","ctrl_loss_tmo":-1,"hdr_digest":true}]}]}]"#;
        let found = config_json(text, &[]).unwrap();
        assert_eq!(found.controllers[0].place, place("tcp", "192.0.2.1", 8009));
        let subsystem = &found.subsystems[0];
        let places: Vec<_> = subsystem.paths.iter().map(|path| path.place.clone()).collect();
        assert_eq!(places, [place("tcp", "192.0.2.1", 4420), place("tcp", "2001:db8::2", 4421)]);
        assert!(subsystem.options.contains(&"--ctrl-loss-tmo=-1".to_owned()), "{:?}", subsystem.options);
        let arguments = subsystem.attach(&Disk { nqn: subsystem.nqn.clone(), nsid: 3 });
        let path = "--path=[2001:db8::2]:4421/tcp,hdr-digest".to_owned();
        assert!(arguments.contains(&path) && arguments.contains(&"--nsid=3".to_owned()), "{arguments:?}");
        for broken in ["", "{}"] {
            assert!(config_json(broken, &[]).is_err(), "{broken}");
        }
    }

    /// A host with one subsystem, with these ports.
    fn config(host: &str, ports: &Value) -> Sources {
        let mut config: Value = serde_json::from_str(host).unwrap();
        config["subsystems"] = serde_json::json!([{ "nqn": "nqn.2026-11.com.example:a", "ports": ports }]);
        config_json(&serde_json::json!([config]).to_string(), &[]).unwrap()
    }

    const HOST: &str = r#"{"hostnqn":"nqn.2026-11.com.example:host"}"#;

    #[test]
    fn each_port_has_options_of_its_own() {
        let ports = serde_json::json!([
            { "transport": "tcp", "traddr": "192.0.2.1", "trsvcid": "4420", "host_traddr": "192.0.2.5", "keep_alive_tmo": 7 },
            { "transport": "tcp", "traddr": "198.51.100.1", "trsvcid": "4421", "host_iface": "eth1", "tls": true },
            { "transport": "rdma", "traddr": "203.0.113.1", "trsvcid": "4420", "keep_alive_tmo": 9 },
        ]);
        let found = config(HOST, &ports);
        let arguments = found.subsystems[0].arguments();
        assert_eq!(
            arguments,
            [
                "--path=192.0.2.1:4420/tcp,host-traddr=192.0.2.5",
                "--path=198.51.100.1:4421/tcp,host-iface=eth1,tls",
                "--path=203.0.113.1:4420/rdma",
                "--hostnqn=nqn.2026-11.com.example:host",
                "--keep-alive-tmo=7"
            ],
            "what is of the whole connection is as the first has it"
        );
        parse(&arguments).expect("arguments of a call");
        let nqn = "nqn.2026-11.com.example:a".parse().unwrap();
        let meant = found.of_host(None, nqn, &place("tcp", "198.51.100.1", 4421)).unwrap();
        assert!(
            meant.contains(&"--tls".to_owned()) && !meant.contains(&"--host-traddr=192.0.2.5".to_owned())
        );
    }

    #[test]
    fn path_is_that_of_an_attached_disk_if_it_leads_from_the_same_place_to_the_same_place() {
        let attached = AttachedPath {
            address: "192.0.2.1:4420".to_owned(),
            transport: "tcp".to_owned(),
            name: Some("storage-a".to_owned()),
            interface: Some("eth0".to_owned()),
            ..AttachedPath::default()
        };
        let is_at = |transport, address, options: &[&str]| {
            let options = options.iter().map(|&option| option.to_owned()).collect();
            SubsystemPath { place: place(transport, address, 4420), options }.is_at(&attached)
        };
        assert!(is_at("tcp", "192.0.2.1", &[]) && is_at("tcp", "storage-a", &["--host-iface=eth0"]));
        assert!(!is_at("tcp", "192.0.2.1", &["--host-iface=eth1"]) && !is_at("tcp", "storage-b", &[]));
        assert!(!is_at("rdma", "192.0.2.1", &[]) && !is_at("tcp", "192.0.2.1", &["--host-traddr=192.0.2.9"]));
    }

    #[test]
    fn port_or_key_that_is_not_known_leaves_the_others_as_they_are() {
        let ports = serde_json::json!([
            { "transport": "fc", "traddr": "nn-0x10:pn-0x20", "host_traddr": "nn-0x11:pn-0x21" },
            { "transport": "tcp", "traddr": "192.0.2.1", "trsvcid": "no port" },
            { "transport": "tcp", "traddr": "192.0.2.2", "tls_key_identity": "NVMe1R01 x y", "of_2030": [1], "hdr_digest": true },
            { "transport": "loop" },
        ]);
        let found = config(HOST, &ports);
        let paths: Vec<_> = found.subsystems[0].paths.iter().map(SubsystemPath::text).collect();
        assert_eq!(paths, ["192.0.2.2:4420/tcp,hdr-digest"]);
        assert_eq!(config(HOST, &serde_json::json!([{ "transport": "fc" }])).subsystems, []);
    }

    #[test]
    fn key_of_the_host_is_that_of_its_ports_unless_they_have_their_own() {
        let host = r#"{"hostnqn":"nqn.2026-11.com.example:host","dhchap_key":"DHHC-1:00:host","dhchap_ctrl_key":"DHHC-1:00:ctrl"}"#;
        let ports = serde_json::json!([{ "transport": "tcp", "traddr": "192.0.2.1" }]);
        let mut found = config(host, &ports);
        let secrets = ["--dhchap-secret=DHHC-1:00:host", "--dhchap-ctrl-secret=DHHC-1:00:ctrl"];
        let has = |options: &[String], secret: &str| options.iter().any(|option| option == secret);
        assert!(secrets.iter().all(|secret| has(&found.subsystems[0].options, secret)));
        let (other, nqn) = (place("tcp", "192.0.2.9", 4420), "nqn.2026-11.com.example:b".parse().unwrap());
        let said = found.of_host(None, nqn, &other).unwrap();
        assert!(secrets.iter().all(|secret| has(&said, secret)), "of a controller that is not in the file");
        found.name_file(Path::new("/etc/nvme/config.json"));
        let disk = Disk { nqn: "nqn.2026-11.com.example:a".to_owned(), nsid: 1 };
        let arguments = found.subsystems[0].attach(&disk);
        assert!(
            has(&arguments, "--config=/etc/nvme/config.json")
                && !arguments.iter().any(|option| is_secret(option)),
            "{arguments:?}"
        );
        let own = serde_json::json!([{ "transport": "tcp", "traddr": "192.0.2.1", "dhchap_key": "DHHC-1:00:port" }]);
        assert!(has(&config(host, &own).subsystems[0].options, "--dhchap-secret=DHHC-1:00:port"));
    }

    #[test]
    fn discovery_controller_need_not_ask_for_the_key_of_the_host() {
        let text = r#"[{"hostnqn":"nqn.2026-11.com.example:host","hostid":"11111111-1111-1111-1111-111111111111",
            "dhchap_key":"DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:","subsystems":[{
            "nqn":"nqn.2014-08.org.nvmexpress.discovery","ports":[{"transport":"tcp","traddr":"127.0.0.1"}]}]}]"#;
        let mut found = config_json(text, &[]).unwrap();
        found.name_file(Path::new("/etc/nvme/config.json"));
        let options = found.controllers[0].connection().unwrap();
        assert!(!options.authentication.expect("a key").insist);
        let subsystem = Subsystem {
            nqn: "nqn.2026-11.com.example:a".to_owned(),
            paths: vec![SubsystemPath::new(place("tcp", "127.0.0.1", 4420), &[])],
            options: of_all_paths(&found.controllers[0].options),
        };
        assert!(subsystem.connection().unwrap().authentication.expect("a key").insist);
    }

    #[test]
    fn options_are_those_of_the_host_that_is_meant() {
        let nqn = |name: &str| format!("nqn.2026-11.com.example:{name}").parse::<Nqn>().unwrap();
        let of = |host: &str, seconds: u32| {
            format!(
                r#"{{"hostnqn":"{}","subsystems":[{{"nqn":"{}","ports":[
                {{"transport":"tcp","traddr":"192.0.2.1","trsvcid":"4420","keep_alive_tmo":{seconds}}}]}}]}}"#,
                nqn(host).as_str(),
                nqn("disk").as_str()
            )
        };
        let sources = config_json(&format!("[{},{}]", of("a", 11), of("b", 22)), &[]).unwrap();
        let said = |host| {
            let found = sources.of_host(host, nqn("disk"), &place("tcp", "192.0.2.1", 4420))?;
            found.into_iter().find(|option| option.contains("keep-alive"))
        };
        assert_eq!(said(Some(nqn("a"))).as_deref(), Some("--keep-alive-tmo=11"));
        assert_eq!(said(Some(nqn("b"))).as_deref(), Some("--keep-alive-tmo=22"));
        assert_eq!(
            said(None).as_deref(),
            Some("--keep-alive-tmo=11"),
            "the first, as whose host it then connects"
        );
        assert_eq!(said(Some(nqn("c"))), None);
    }

    #[test]
    fn files_that_are_not_there_name_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Sources::read(folder.path(), None, &[]).unwrap(), Sources::default());
        assert!(Sources::read(folder.path(), Some(&folder.path().join("other.json")), &[]).is_err());
        assert_eq!(Sources::read(folder.path(), Some(Path::new("none")), &[]).unwrap(), Sources::default());
    }
}
