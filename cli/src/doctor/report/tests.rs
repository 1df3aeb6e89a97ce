use super::*;
use crate::doctor::advice::{Examined, advise};
use crate::doctor::counters::Reading;
use crate::doctor::limits::Own;
use nvmf_rdma_devices::fixture;

const OWN: Own = Own { memlock: None, open_files: (1024, 4096) };
const ETHTOOL: &str = "NIC statistics:\n     rx_discards_phy: 0\n     rx_prio3_pause: 4\n";

/// The report of a machine that was written down; `later` files change between the readings.
fn with_report<T>(
    text: &str,
    later: &[(&str, &str)],
    address: &str,
    look: impl FnOnce(&Report<'_>) -> T,
) -> T {
    let root = tempfile::tempdir().expect("a folder");
    let addresses = fixture::plant(text, root.path()).expect("a fixture");
    let machine = Machine::read_at(root.path(), &addresses).expect("a machine");
    let limits = Limits::read(root.path(), OWN);
    let address = address.parse().expect("an address");
    let towards = Towards::from_source(&machine, address, Ok(address), Ok(()));
    let netdevs = crate::doctor::netdevs_to_read(&machine, Some(address));
    let read = || Reading::take(root.path(), &machine, &netdevs, &|_| Some(ETHTOOL.to_owned()));
    let first = read();
    for (path, value) in later {
        std::fs::write(root.path().join(path), value).expect("a counter");
    }
    let counters = first.judge(&read());
    let (limits, towards, counters) = (&limits, Some(&towards), counters.as_slice());
    let findings =
        advise(&Examined { machine: &machine, limits, towards, target: None, counters, has_ethtool: true });
    let interval = Duration::from_secs(1);
    look(&Report {
        machine: &machine,
        limits,
        towards,
        target: None,
        counters,
        interval,
        findings: &findings,
    })
}

#[test]
fn healthy_machine_fits_a_screen() {
    let text = with_report(fixture::SOFTWARE, &[], "10.0.2.15", |report| {
        assert!(report.is_healthy());
        report.text()
    });
    assert!(text.lines().count() <= 24, "{text}");
    for part in [
        "rxe0/1       ACTIVE LinkUp, RoCE v2, MTU 1024, software: rdma_rxe",
        "siw0/1       ACTIVE LinkUp, iWARP, software: siw",
        "on eth0 up, MTU 1500, virtio_net: 10.0.2.15",
        "GID 1 ::ffff:10.0.2.15 RoCE v2 on eth0",
        "10.0.2.15: verbs: rxe0 port 1 lies on eth0",
        "ip link set eth0 mtu 4200",
        "nothing wrong",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
}

#[test]
fn machine_without_rdma_is_healthy() {
    let text = with_report(fixture::NONE, &[], "192.0.2.7", |report| {
        assert!(report.is_healthy());
        report.text()
    });
    assert!(text.contains("192.0.2.7: iwarp: this machine has no RDMA device"), "{text}");
}

#[test]
fn faults_are_reported_with_their_fix() {
    let path = "sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer";
    with_report(fixture::MLX5, &[(path, "2400\n")], "203.0.113.5", |report| {
        assert!(!report.is_healthy());
        let text = report.text();
        for part in [
            "bad    mlx5_0/1     out_of_buffer",
            "mlx5_1 port 1: the port is DOWN (Disabled)",
            "mend: ip link set ens1np1 up",
            "2 things need mending",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    });
}

/// The shape that docs/TROUBLESHOOTING.md promises.
#[test]
fn json_has_documented_shape() {
    let value = with_report(fixture::MLX5, &[], "192.0.2.5", |report| report.json());
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&value), ["healthy", "devices", "limits", "choice", "target", "counters", "findings"]);
    let device = &value["devices"][0];
    assert_eq!(keys(device), ["name", "node_type", "node_guid", "firmware", "driver", "ports"]);
    let port = &device["ports"][0];
    assert_eq!(
        keys(port),
        [
            "port",
            "state",
            "physical_state",
            "link_layer",
            "protocol",
            "rate",
            "active_mtu",
            "lid",
            "gids",
            "netdevs"
        ]
    );
    assert_eq!((&port["active_mtu"], &port["lid"]), (&json!(1024), &json!(0)));
    assert_eq!(
        port["gids"][3],
        json!({ "index": 3, "gid": "::ffff:192.0.2.5", "type": "RoCE v2", "netdev": "ens1np0" })
    );
    let choice = &value["choice"];
    assert_eq!(keys(choice), ["address", "source", "provider", "why", "device", "port", "gid_index"]);
    assert_eq!((&choice["provider"], &choice["gid_index"]), (&json!("verbs"), &json!(3)));
    let reading = &value["counters"]["readings"][0];
    assert_eq!(keys(reading), ["on", "source", "name", "total", "delta", "verdict", "meaning"]);
    let finding = &value["findings"][0];
    assert_eq!(keys(finding), ["level", "subject", "what", "mend"]);
}

#[test]
fn infiniband_port_shows_lid_but_no_interface_mtu() {
    let value = with_report(fixture::INFINIBAND, &[], "192.0.2.9", |report| report.json());
    let port = &value["devices"][0]["ports"][0];
    assert_eq!(
        (&port["protocol"], &port["lid"], &port["active_mtu"]),
        (&json!("InfiniBand"), &json!(0x1f), &Value::Null)
    );
}
