//! Discovery that is announced by multicast DNS, in a network namespace of its own.

use mdns_sd::{ServiceDaemon, ServiceEvent};
use nvmf_tests::site::{Site, json};
use nvmf_tests::{network, process};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::{Duration, Instant};

const ADDRESS: &str = "192.0.2.1";
/// Probing and announcing take about two seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// A network that only this thread and its children are in, with an interface that nobody is behind.
fn network() -> anyhow::Result<()> {
    network::apart("announced0", ADDRESS)
}

/// Threads of the test come and go in the network of the one that makes them.
#[test]
fn discovery_is_announced_while_the_target_runs() {
    if let Err(error) = network() {
        eprintln!("left out: no network namespace can be made here: {error}");
        return;
    }
    let site = Site::new("mdns").expect("a site");
    let subsystem = site.subsystem(&["memory = \"1MiB\"".to_owned()]);
    let real = format!("[[listener]]\naddress = \"{ADDRESS}\"\ntransport = \"tcp\"\ndiscovery_only = true\n");
    let text = format!("transport = \"tcp\"\n{real}{subsystem}[discovery]\nmdns = true\n");
    site.configure(&text).expect("a configuration");
    let browser = ServiceDaemon::new().expect("a browser");
    let events = browser.browse("_nvme-disc._tcp.local.").expect("a search");
    let until = Instant::now() + LIMIT;
    let next = || events.recv_timeout(until.saturating_duration_since(Instant::now())).expect("in time");

    let target = site.serve().expect("a target");
    let found = loop {
        if let ServiceEvent::ServiceResolved(found) = next() {
            break found;
        }
    };
    assert_eq!(found.get_port(), 8009, "the listener on loopback is not announced: {found:?}");
    let addresses: Vec<_> = found.get_addresses_v4().iter().map(ToString::to_string).collect();
    assert_eq!((addresses, found.get_property_val_str("p")), (vec![ADDRESS.to_owned()], Some("tcp")));
    let mut call = site.call("discover", &["-t", "tcp", "-o", "json"]).expect("nvmf");
    let log = json(&mut call).expect("a discovery log");
    let current = |record: &&serde_json::Value| record["subtype"] == "current discovery subsystem";
    let current = log["records"].as_array().expect("records").iter().find(current).expect("it is listed");
    assert_eq!(found.get_property_val_str("nqn"), current["subnqn"].as_str());

    target.stop().expect("a clean stop");
    loop {
        match next() {
            ServiceEvent::ServiceRemoved(_, name) => break assert_eq!(name, found.get_fullname()),
            event => assert!(!matches!(event, ServiceEvent::ServiceFound(..)), "{event:?}"),
        }
    }
    browser.shutdown().expect("the browser ends");
}

/// What `nvmf list` has of the disks.
fn listed(site: &Site) -> Vec<serde_json::Value> {
    let list = json(&mut site.local(&["list", "-o", "json"]).expect("nvmf")).expect("a list");
    list["disks"].as_array().expect("disks").clone()
}

/// The announcements of a target, as `nvmf discoverd` hears them: nobody tells it where the discovery controller is.
#[test]
fn service_attaches_what_an_announced_target_has() {
    if let Err(error) = network() {
        eprintln!("left out: no network namespace can be made here: {error}");
        return;
    }
    let site = Site::new("mdns-service").expect("a site");
    let subsystem = site.subsystem(&["memory = \"1MiB\"".to_owned()]);
    let real = format!("[[listener]]\naddress = \"{ADDRESS}\"\ntransport = \"tcp\"\n");
    let text = format!("transport = \"tcp\"\n{real}{subsystem}[discovery]\nmdns = true\n");
    site.configure(&text).expect("a configuration");
    let (policy, notify) = (site.path("discoverd.toml"), site.path("notify"));
    std::fs::write(&policy, "as = \"socket\"\nmdns = true\ndetach_delay_s = 1\n").expect("a policy");
    let ready = UnixDatagram::bind(&notify).expect("a socket");
    ready.set_read_timeout(Some(process::TIMEOUT)).expect("a time-out");
    // No file of nvme-cli's names a controller.
    let mut call = site.local(&["discoverd", "--nvme-folder"]).expect("nvmf");
    call.arg(site.path("none")).arg("--policy").arg(&policy);
    call.env("NOTIFY_SOCKET", &notify).stdin(Stdio::null()).stdout(Stdio::null());
    let mut service = call.spawn().expect("nvmf starts");
    ready.recv(&mut [0; 4096]).expect("it is ready");
    assert_eq!(listed(&site).len(), 0);

    let target = site.serve().expect("a target");
    let is_live = || listed(&site).first().is_some_and(|disk| disk["state"] == "live");
    process::until_within("its disk is attached", LIMIT, is_live).expect("it is");
    let disk = &listed(&site)[0];
    assert_eq!(disk["nqn"].as_str(), Some(site.nqn.as_str()));
    assert!(disk["address"].as_str().is_some_and(|address| address.starts_with(ADDRESS)), "{disk}");

    process::signal(service.id(), "TERM").expect("it runs");
    assert!(process::end(&mut service).expect("it ends").success());
    nvmf_tests::site::succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    target.stop().expect("a clean stop");
}
