//! Where discovery begins: nvme-cli's `discovery.conf` and `config.json`, and the options of a call.

use super::engine::{Controller, Disk, Place, Subsystem};
use crate::command::TargetArguments;
use anyhow::{Context, Result, anyhow, ensure};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser};
use nvme_proto::Nqn;
use nvmf_initiator::Options;
use serde_json::{Map, Value};
use std::io::ErrorKind;
use std::path::Path;
use std::str::FromStr;

/// Options of a line in `discovery.conf` that say nothing here: discovery controllers are followed by `nvmf discoverd`.
const WITHOUT_MEANING: [&str; 5] = ["--persistent", "-p", "--quiet", "--force", "--matching"];
/// Options that say where a controller is: not to be handed on to others.
const OF_ONE_PLACE: [&str; 5] = ["transport", "traddr", "trsvcid", "nqn", "paths"];

/// nvme-cli's options for a controller, without a command.
#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true, disable_help_flag = true)]
struct Call {
    #[command(flatten)]
    target: TargetArguments,
    #[arg(short = 'n', long)]
    nqn: Option<Nqn>,
}

/// What is found in files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    pub(crate) controllers: Vec<Controller>,
    pub(crate) subsystems: Vec<Subsystem>,
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
    pub(crate) fn is_empty(&self) -> bool {
        self.controllers.is_empty() && self.subsystems.is_empty()
    }

    /// The subsystem with this controller. A host's, if one is said: what another one is told does not count.
    fn of_host(&self, host: Option<Nqn>, nqn: Nqn, place: &Place) -> Option<&Subsystem> {
        let is_other = |option: &String| {
            let named = option.strip_prefix("--hostnqn=");
            named.zip(host).is_some_and(|(named, host)| named != host.as_str())
        };
        let is_it = |it: &&Subsystem| {
            it.nqn == nqn.as_str() && it.places.contains(place) && !it.options.iter().any(is_other)
        };
        self.subsystems.iter().find(is_it)
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
                let found = config_json(&text, given).with_context(|| json.display().to_string())?;
                sources.controllers.extend(found.controllers);
                sources.subsystems = found.subsystems;
            }
            None => ensure!(named.is_none(), "{} is not there", json.display()),
        }
        Ok(sources)
    }
}

/// What nvme-cli's `config.json` says of a controller, as options; none where it does not name it. Of a host, if that is said.
pub(crate) fn options_of(file: &Path, host: Option<Nqn>, nqn: Nqn, place: &Place) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let sources = config_json(&text, &[]).with_context(|| file.display().to_string())?;
    Ok(sources.of_host(host, nqn, place).map(|it| it.options.clone()).unwrap_or_default())
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

/// Hosts, the subsystems of each, and their ports.
fn config_json(text: &str, given: &[String]) -> Result<Sources> {
    let hosts: Vec<Value> = match serde_json::from_str(text).context("it is not JSON")? {
        Value::Array(hosts) => hosts,
        _ => return Err(anyhow!("it is not a list of hosts, as `nvme config --scan --dump` writes it")),
    };
    let mut sources = Sources::default();
    for host in &hosts {
        let of_host = options(host, &["hostnqn", "hostid"]);
        for subsystem in list(host, "subsystems") {
            let nqn = subsystem.get("nqn").and_then(Value::as_str).unwrap_or(Nqn::DISCOVERY.as_str());
            let mut places = Vec::new();
            let mut of_all = Vec::new();
            for port in list(subsystem, "ports") {
                let of_port = port.as_object().cloned().unwrap_or_default();
                let arguments = [given, &of_host, &of_ports(&of_port)].concat();
                let (call, matches) = parse(&arguments).with_context(|| format!("a port of {nqn}"))?;
                let is_discovery = nqn == Nqn::DISCOVERY.as_str()
                    || port.get("discovery").and_then(Value::as_bool) == Some(true);
                let (place, options) = (call.target.place(is_discovery)?, self::given(&matches));
                if is_discovery {
                    sources.controllers.push(Controller { place, options });
                } else {
                    places.push(place);
                    of_all = options;
                }
            }
            if !places.is_empty() {
                sources.subsystems.push(Subsystem { nqn: nqn.to_owned(), places, options: of_all });
            }
        }
    }
    Ok(sources)
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn options(value: &Value, names: &[&str]) -> Vec<String> {
    let of = |name: &&str| Some(format!("--{name}={}", value.get(*name)?.as_str()?));
    names.iter().filter_map(of).collect()
}

/// A port's keys as options. What nvme-cli does not hand on, nor does this.
fn of_ports(port: &Map<String, Value>) -> Vec<String> {
    let mut options = Vec::new();
    for (key, value) in port {
        let name = match key.as_str() {
            "discovery" | "persistent" | "duplicate_connect" | "nr_poll_queues" | "tls_key" | "keyring" => {
                continue;
            }
            "dhchap_key" => "dhchap-secret".to_owned(),
            "dhchap_ctrl_key" => "dhchap-ctrl-secret".to_owned(),
            key => key.replace('_', "-"),
        };
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

    /// As `--path` takes it.
    fn path(&self) -> String {
        let Self { transport, address, port } = self;
        let is_v6 = address.contains(':');
        let address = if is_v6 { format!("[{address}]") } else { address.clone() };
        format!("--path={address}:{port}/{transport}")
    }
}

impl Controller {
    /// How to connect to it.
    pub(crate) fn connection(&self) -> Result<Options> {
        let arguments = [&self.place.arguments()[..], &self.options].concat();
        parse(&arguments)?.0.target.options(Nqn::DISCOVERY)
    }
}

impl Subsystem {
    fn arguments(&self) -> Vec<String> {
        let first = self.places.first().into_iter().flat_map(Place::arguments);
        let others = self.places.iter().skip(1).map(Place::path);
        first.chain(others).chain(self.options.iter().cloned()).collect()
    }

    /// How to connect to it.
    pub(crate) fn connection(&self) -> Result<Options> {
        let nqn = Nqn::from_str(&self.nqn).map_err(|error| anyhow!("{} is no NQN: {error}", self.nqn))?;
        parse(&self.arguments())?.0.target.options(nqn)
    }

    /// The options of `nvmf attach` for one of its namespaces.
    pub(crate) fn attach(&self, disk: &Disk) -> Vec<String> {
        let mut arguments = self.arguments();
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
        assert_eq!(subsystem.places, [place("tcp", "192.0.2.1", 4420), place("tcp", "2001:db8::2", 4421)]);
        assert!(subsystem.options.contains(&"--ctrl-loss-tmo=-1".to_owned()), "{:?}", subsystem.options);
        let arguments = subsystem.attach(&Disk { nqn: subsystem.nqn.clone(), nsid: 3 });
        assert!(arguments.contains(&"--path=[2001:db8::2]:4421/tcp".to_owned()), "{arguments:?}");
        assert!(arguments.contains(&"--nsid=3".to_owned()) && arguments.contains(&"--hdr-digest".to_owned()));
        for broken in ["", "{}", "[{\"subsystems\":[{\"nqn\":\"a\",\"ports\":[{\"transport\":\"fc\"}]}]}]"] {
            assert!(config_json(broken, &[]).is_err(), "{broken}");
        }
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
            found.options.iter().find(|option| option.contains("keep-alive")).cloned()
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
