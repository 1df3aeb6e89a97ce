//! nvme-cli's `config.json` of what was connected to, as `--dump-config` prints it.

use super::engine::{Subsystem, SubsystemPath};
use nvme_proto::Nqn;
use nvmf_initiator::HostIdentity;
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// A port's keys that nvme-cli knows. Secrets and keys are left out: they would be read on the screen and in logs.
const KEYS: [&str; 14] = [
    "host_traddr",
    "host_iface",
    "nr_io_queues",
    "nr_write_queues",
    "queue_size",
    "keep_alive_tmo",
    "reconnect_delay",
    "ctrl_loss_tmo",
    "fast_io_fail_tmo",
    "tos",
    "disable_sqflow",
    "hdr_digest",
    "data_digest",
    "tls",
];

/// The configuration of a host with these subsystems.
pub(crate) fn config(host: &HostIdentity, subsystems: &[Subsystem]) -> Value {
    let subsystems: Vec<_> = subsystems.iter().map(subsystem).collect();
    json!([{
        "hostnqn": host.nqn.as_str(), "hostid": Uuid::from_bytes(host.id.0).to_string(), "subsystems": subsystems,
    }])
}

fn subsystem(subsystem: &Subsystem) -> Value {
    let keys = |options: &[String]| -> Map<String, Value> {
        options.iter().filter_map(|option| key(option)).filter(|(key, _)| KEYS.contains(&&**key)).collect()
    };
    let is_discovery = subsystem.nqn == Nqn::DISCOVERY.as_str();
    let ports = subsystem.paths.iter().map(|SubsystemPath { place, own }| {
        let mut port = Map::new();
        port.insert("transport".to_owned(), place.transport.as_str().into());
        port.insert("traddr".to_owned(), place.address.as_str().into());
        port.insert("trsvcid".to_owned(), place.port.to_string().into());
        port.extend(keys(&subsystem.options));
        port.extend(keys(&own.options()));
        if is_discovery {
            port.insert("discovery".to_owned(), true.into());
        }
        Value::Object(port)
    });
    json!({ "nqn": subsystem.nqn, "ports": ports.collect::<Vec<_>>() })
}

/// An option as a key and its value.
fn key(option: &str) -> Option<(String, Value)> {
    let option = option.strip_prefix("--")?;
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, value.parse::<i64>().map_or_else(|_| value.into(), Value::from)),
        None => (option, Value::Bool(true)),
    };
    Some((name.replace('-', "_"), value))
}

#[cfg(test)]
mod tests {
    use super::super::engine::Place;
    use super::*;
    use crate::command::OwnOptions;
    use nvme_proto::HostId;

    #[test]
    fn options_are_keys_of_every_port_and_secrets_are_left_out() {
        let host =
            HostIdentity { nqn: "nqn.2026-11.com.example:host".parse().unwrap(), id: HostId([0x11; 16]) };
        let path = |address: &str, options: &[&str]| {
            let place = Place { transport: "tcp".to_owned(), address: address.to_owned(), port: 4420 };
            SubsystemPath { place, own: OwnOptions::of(options.iter().copied()) }
        };
        let options = [
            "--ctrl-loss-tmo=-1",
            "--hdr-digest",
            "--host-iface=eth0",
            "--dhchap-secret=DHHC-1:00:",
            "--provider=auto",
        ];
        let dumped = config(
            &host,
            &[Subsystem {
                nqn: "nqn.2026-11.com.example:a".to_owned(),
                paths: vec![path("192.0.2.1", &[]), path("2001:db8::1", &["--host-traddr=2001:db8::9"])],
                options: options.map(str::to_owned).to_vec(),
            }],
        );
        let port = |address: &str| {
            json!({ "transport": "tcp", "traddr": address, "trsvcid": "4420", "ctrl_loss_tmo": -1, "hdr_digest": true,
                    "host_iface": "eth0" })
        };
        let mut second = port("2001:db8::1");
        second["host_traddr"] = "2001:db8::9".into();
        let expected = json!([{
            "hostnqn": "nqn.2026-11.com.example:host", "hostid": "11111111-1111-1111-1111-111111111111",
            "subsystems": [{ "nqn": "nqn.2026-11.com.example:a", "ports": [port("192.0.2.1"), second] }],
        }]);
        assert_eq!(dumped, expected);
    }
}
