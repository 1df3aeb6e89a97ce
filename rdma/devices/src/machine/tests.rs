use super::*;
use crate::{Choice, Driver, LinkLayer, PortState, Reason, choose, fixture};

fn machine(text: &str) -> Machine {
    let root = tempfile::tempdir().expect("a folder");
    let addresses = fixture::plant(text, root.path()).expect("a fixture");
    Machine::read_at(root.path(), &addresses).expect("a machine")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn software_devices_as_linux_shows_them() {
    let machine = machine(fixture::SOFTWARE);
    let [rxe, siw] = machine.devices.as_slice() else { panic!("two devices: {:?}", machine.devices) };
    assert_eq!((rxe.name.as_str(), &rxe.driver), ("rxe0", &Driver::Software("rdma_rxe")));
    assert_eq!((siw.name.as_str(), &siw.driver), ("siw0", &Driver::Software("siw")));
    assert_eq!((&rxe.node_type, &siw.node_type), (&NodeType::ChannelAdapter, &NodeType::Rnic));
    assert_eq!(rxe.firmware, None);
    let (port, iwarp) = (&rxe.ports[0], &siw.ports[0]);
    assert_eq!((&port.state, port.physical_state.as_str()), (&PortState::Active, "LinkUp"));
    assert_eq!(port.gids.iter().map(|gid| gid.index).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(
        (port.netdevs.as_slice(), iwarp.netdevs.as_slice()),
        (&["eth0".to_owned()][..], &["eth0".to_owned()][..])
    );
    assert_eq!((rxe.protocol(port), siw.protocol(iwarp)), ("RoCE v2", "iWARP"));
}

#[test]
fn an_address_is_owned_by_the_device_on_its_interface() {
    let machine = machine(fixture::SOFTWARE);
    let owner = machine.device_of(ip("10.0.2.15")).expect("an owner");
    assert_eq!((owner.device.name.as_str(), owner.netdev.name.as_str()), ("rxe0", "eth0"));
    assert_eq!(owner.gid.map(|gid| gid.index), Some(1));
    let all: Vec<_> =
        machine.owners_of(ip("10.0.2.15")).iter().map(|owner| owner.device.name.as_str()).collect();
    assert_eq!(all, ["rxe0", "siw0"]);
    assert_eq!(machine.device_of(ip("10.9.0.1")), None);
    assert_eq!(machine.device_of(ip("127.0.0.1")), None);
}

#[test]
fn a_card_takes_the_gid_of_version_2_and_of_the_vlan() {
    let machine = machine(fixture::MLX5);
    let index = |address| machine.device_of(ip(address)).and_then(|owner| owner.gid).map(|gid| gid.index);
    assert_eq!(index("192.0.2.5"), Some(3));
    assert_eq!(index("198.51.100.5"), Some(5));
    // Only version 1 is there.
    assert_eq!(index("203.0.113.5"), Some(0));
    let down = machine.device_of(ip("203.0.113.5")).expect("an owner");
    assert_eq!((&down.port.state, down.device.protocol(down.port)), (&PortState::Down, "RoCE v1"));
    assert_eq!(machine.devices[0].driver, Driver::Hardware("mlx5_core".into()));
}

#[test]
fn ip_over_infiniband_is_found_by_its_hardware_address() {
    let machine = machine(fixture::INFINIBAND);
    let owner = machine.device_of(ip("192.0.2.9")).expect("an owner");
    assert_eq!((&owner.port.link_layer, owner.port.lid), (&LinkLayer::Infiniband, 0x1f));
    assert_eq!(owner.gid.map(|gid| gid.index), Some(0));
}

#[test]
fn every_reason_is_given() {
    let (software, none) = (machine(fixture::SOFTWARE), machine(fixture::NONE));
    let why = |machine, address, verbs| match choose(machine, ip(address), verbs) {
        Choice::Iwarp(reason) => Some(reason),
        Choice::Verbs(_) => None,
    };
    assert_eq!(why(&software, "10.0.2.15", Ok(())), None);
    let unusable = why(&software, "10.0.2.15", Err("libibverbs is not installed"));
    assert!(matches!(unusable, Some(Reason::VerbsUnusable(_, "libibverbs is not installed"))));
    assert_eq!(why(&software, "10.9.0.1", Ok(())), Some(Reason::NoDeviceOn("dummy0")));
    assert_eq!(why(&software, "192.0.2.200", Ok(())), Some(Reason::NotLocal));
    assert_eq!(why(&software, "0.0.0.0", Ok(())), Some(Reason::Unspecified));
    assert_eq!(why(&none, "192.0.2.7", Ok(())), Some(Reason::NoDevice));
}

#[test]
fn iwarp_device_is_taken_only_when_it_is_asked_for() {
    let without_rxe: Vec<_> = fixture::SOFTWARE.lines().filter(|line| !line.contains("/rxe0")).collect();
    let machine = machine(&without_rxe.join("\n"));
    let choice = choose(&machine, ip("10.0.2.15"), Ok(()));
    let Choice::Iwarp(Reason::IwarpDevice(owner)) = &choice else { panic!("{choice:?}") };
    assert_eq!(owner.device.name, "siw0");
    assert!(choice.to_string().contains("provider verbs"), "{choice}");
}

#[test]
fn a_choice_says_why() {
    let machine = machine(fixture::MLX5);
    let said = choose(&machine, ip("203.0.113.5"), Ok(())).to_string();
    assert_eq!(
        said,
        "mlx5_1 port 1 lies on ens1np1, which has the address (RoCE v1, GID 0), but the port is DOWN"
    );
}

#[test]
fn this_machine_can_be_read() {
    let machine = Machine::read().expect("this machine");
    assert!(machine.netdev("lo").is_some());
}

#[test]
fn only_an_infiniband_address_holds_a_gid() {
    assert_eq!(infiniband_gid("52:54:00:12:34:56"), None);
    assert_eq!(infiniband_gid(""), None);
    let gid = infiniband_gid("00:00:10:87:fe:80:00:00:00:00:00:00:b8:59:9f:03:00:aa:cc:00");
    assert_eq!(gid.map(|gid| (gid[0], gid[15])), Some((0xfe, 0)));
}
