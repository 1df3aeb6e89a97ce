//! nvme-cli's `config.json`: hosts, the subsystems of each, and their ports.

use super::arguments::{Call, given, parse};
use super::engine::{Controller, Place, Subsystem, SubsystemPath, of_all_paths};
use super::sources::Sources;
use crate::connect::Transport;
use crate::print::chain;
use anyhow::{Context, Result, anyhow, ensure};
use clap::{CommandFactory, ValueEnum};
use nvme_proto::Nqn;
use serde_json::Value;

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

/// Hosts, the subsystems of each, and their ports. What is not understood of one port is left out with a warning: the others are
/// not worse for it.
pub(super) fn config_json(text: &str, given: &[String]) -> Result<Sources> {
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

#[cfg(test)]
mod tests {
    use super::super::sources::tests::place;
    use super::*;
    use crate::discovery::arguments::is_secret;
    use crate::discovery::engine::Disk;
    use std::path::Path;

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
}
