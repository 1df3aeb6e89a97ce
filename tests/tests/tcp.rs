//! The built programs over NVMe/TCP.

use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{HOST_ID, Site, fails, json, random_file, refuses, succeeds};
use std::process::Command;

const SIZE: u64 = 8 << 20;

fn site(name: &str, transport: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    let listener = format!("transport = \"{transport}\"\n");
    site.configure(&(listener + &site.subsystem(&[site.disk("disk.img", SIZE)]))).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

fn call(site: &Site, command: &str, arguments: &[&str]) -> Command {
    site.call(command, &[&["-t", "tcp"], arguments].concat()).expect("nvmf")
}

#[test]
fn disk_is_discovered_written_and_read_with_every_option() {
    let (site, target) = site("tcp-disk", "tcp");
    let log = json(&mut call(&site, "discover", &["-o", "json"])).expect("a discovery log");
    let record = &log["records"][0];
    assert_eq!((&record["trtype"], &record["sectype"]), (&"tcp".into(), &"none".into()), "{log}");
    assert_eq!(record["trsvcid"], site.address.port().to_string().as_str(), "{log}");
    assert_eq!(record["treq"], "not specified, sq flow control disable supported", "{log}");
    assert!(record.get("rdma_prtype").is_none(), "{log}");
    let (from, to) = (site.path("from"), site.path("to"));
    let (from_text, to_text) = (from.to_str().expect("UTF-8"), to.to_str().expect("UTF-8"));
    let all: [&[&str]; 5] = [
        &[],
        &["-g"],
        &["-G", "-i", "3"],
        &["--hdr-digest", "--data-digest", "--disable-sqflow", "--tos", "16"],
        &["--disable-sqflow", "-i", "2", "--nr-write-queues", "2", "--host-iface", "lo"],
    ];
    // The log is written by a thread of its own.
    let all_are_logged = || {
        let log = target.log();
        log.matches("connected to").count() == log.matches("queue disconnected").count()
    };
    for (number, options) in all.into_iter().enumerate() {
        process::until("the end of each connection is logged", all_are_logged).expect("it is");
        let logged = target.log().len();
        // Another content each time: some bytes less.
        let bytes = random_file(&from, SIZE as usize - number * 4096).expect("a file");
        let named = [&["-n", site.nqn.as_str()], options].concat();
        succeeds(&mut call(&site, "write", &[&named[..], &[from_text]].concat())).expect("written");
        let length = bytes.len().to_string();
        let read = [&named[..], &["--length", &length, to_text]].concat();
        succeeds(&mut call(&site, "read", &read)).expect("read");
        assert!(std::fs::read(&to).expect("a file") == bytes, "{options:?}");
        std::fs::remove_file(&to).expect("a file");
        let identity =
            json(&mut call(&site, "id-ctrl", &[&named[..], &["-o", "json"]].concat())).expect("JSON");
        assert_eq!(identity["subnqn"], site.nqn.as_str());
        process::until("the end of each connection is logged", all_are_logged).expect("it is");
        let log = target.log().split_off(logged);
        let connected: Vec<_> = log.lines().filter(|line| line.contains("connected to")).collect();
        let flow_control = !options.contains(&"--disable-sqflow");
        assert!(
            !connected.is_empty()
                && connected.iter().all(|line| line.contains("without SQ flow control") != flow_control),
            "{options:?}: {log}"
        );
    }
    target.stop().expect("a clean stop");
    // The target saw no connection break: all were closed in order.
    let said = std::fs::read_to_string(site.path("log")).expect("a log");
    assert!(!said.contains("broke"), "{said}");
}

#[test]
fn attached_disk_says_its_transport() {
    let (site, target) = site("tcp-attach", "tcp");
    let disk = json(&mut call(&site, "attach", &["-n", &site.nqn, "--as", "socket", "-o", "json"]))
        .expect("attached");
    assert_eq!((&disk["transport"], disk["provider"].is_null()), (&"tcp".into(), true), "{disk}");
    let list = || succeeds(&mut site.local(&["list"]).expect("nvmf")).expect("a list");
    let row = list();
    assert!(row.contains("transport") && row.contains("  tcp  "), "{row}");
    assert!(row.contains("live"), "{row}");
    drop(target);
    nvmf_tests::process::until("it is seen that the target is gone", || list().contains("reconnecting"))
        .expect("a state");
    let target = site.serve().expect("a target");
    nvmf_tests::process::until("it is connected again", || list().contains("live")).expect("a state");
    let said = succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    assert!(said.contains(&site.nqn), "{said}");
    target.stop().expect("a clean stop");
}

#[test]
fn host_finds_the_address_that_it_asked_at() {
    for transport in ["tcp", "rdma"] {
        let mut site = Site::new("tcp-wildcard").expect("a site");
        // A port that is free on every address.
        let free = std::net::TcpListener::bind("0.0.0.0:0").and_then(|socket| socket.local_addr());
        site.address.set_port(free.expect("a port").port());
        let listener = format!("transport = \"{transport}\"\n");
        let port = site.address.port().to_string();
        let text = listener + &site.subsystem(&["memory = \"1MiB\"".to_owned()]);
        site.configure(&text).expect("a configuration");
        let file = site.path("target.toml");
        let text = std::fs::read_to_string(&file).expect("a file").replace("127.0.0.1:", "0.0.0.0:");
        std::fs::write(&file, text).expect("a file");
        let target = site.serve().expect("a target");
        for address in ["127.0.0.1", "127.0.0.2"] {
            let ask = ["discover", "-t", transport, "-a", address, "-s", &port, "-o", "json"];
            let host = format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}");
            let ask = [&ask[..], &["-q", &host, "-I", HOST_ID]].concat();
            let log = json(&mut site.local(&ask).expect("nvmf")).expect("a discovery log");
            let found: Vec<_> =
                log["records"].as_array().expect("records").iter().map(|r| r["traddr"].as_str()).collect();
            assert_eq!(found, [Some(address); 2], "the disk and discovery, {transport}: {log}");
        }
        target.stop().expect("a clean stop");
    }
}

#[test]
fn other_transport_at_the_port_is_named() {
    let (over_rdma, target) = site("tcp-mixed", "rdma");
    let named = ["-n", over_rdma.nqn.as_str()];
    fails(&mut call(&over_rdma, "id-ctrl", &named), &["over tcp", "is it NVMe/RDMA (-t rdma)"])
        .expect("a message");
    target.stop().expect("a clean stop");
    let (over_tcp, target) = site("tcp-other", "tcp");
    // rdma is the default.
    let mut call = over_tcp.call("id-ctrl", &["-n", &over_tcp.nqn]).expect("nvmf");
    fails(&mut call, &["over iwarp", "an NVMe/TCP controller: connect over tcp (-t tcp)"])
        .expect("a message");
    target.stop().expect("a clean stop");
}

#[test]
fn options_of_the_other_transport_are_refused() {
    let site = Site::new("tcp-options").expect("a site");
    let named = ["-n", site.nqn.as_str()];
    let mut iwarp = call(&site, "id-ctrl", &[&named[..], &["--provider", "iwarp"]].concat());
    refuses(&mut iwarp, &["--provider is for -t rdma"]).expect("a message");
    for (option, name) in [
        (&["-g"][..], "--hdr-digest"),
        (&["-G"], "--data-digest"),
        (&["--host-iface", "lo"], "--host-iface"),
        (&["-f", "lo"], "--host-iface"),
    ] {
        let mut rdma = site.call("id-ctrl", &[&named[..], option].concat()).expect("nvmf");
        refuses(&mut rdma, &[&format!("{name} is for -t tcp")]).expect("a message");
    }
}
