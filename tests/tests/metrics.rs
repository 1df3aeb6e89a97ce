//! The metrics of a running target.

use nvmf_config::MetricsAddress;
use nvmf_target::metrics::fetch::fetch;
use nvmf_target::metrics::scrape::Scrape;
use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{Site, random_file, succeeds};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
/// `nvmf` reads and writes this in commands of 1 MiB, the most that the target takes.
const COMMANDS: usize = 4;
const BYTES: usize = COMMANDS << 20;

/// A target with a file and a memory disk, whose metrics are on a socket in its folder.
fn site(name: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    let disks = [site.disk("disk.img", BYTES as u64), "memory = \"4MiB\"".to_owned()];
    let metrics = format!("[metrics]\nlisten = \"{}\"\n", site.path("metrics").display());
    site.configure(&(metrics + &site.subsystem(&disks))).expect("a configuration");
    let text = std::fs::read_to_string(site.path("target.toml")).expect("the configuration");
    let control = format!("[target]\ncontrol_socket = \"{}\"", site.path("control").display());
    std::fs::write(site.path("target.toml"), text.replacen("[target]", &control, 1)).expect("written");
    let target = site.serve().expect("a target");
    random_file(&site.path("data"), BYTES).expect("a file");
    (site, target)
}

fn address(site: &Site) -> MetricsAddress {
    MetricsAddress::Unix(site.path("metrics"))
}

fn scrape(site: &Site) -> Scrape {
    fetch(&address(site), PATIENCE).unwrap_or_else(|error| panic!("{error}: {error:?}"))
}

fn call(site: &Site, command: &str, nsid: &str, arguments: &[&str]) -> Command {
    site.call(command, &[&["-n", site.nqn.as_str(), "--nsid", nsid], arguments].concat()).expect("nvmf")
}

fn write(site: &Site, nsid: &str) {
    let path = site.path("data").display().to_string();
    succeeds(&mut call(site, "write", nsid, &[&path])).expect("written");
}

fn read(site: &Site, nsid: &str) {
    let path = site.path("back").display().to_string();
    succeeds(&mut call(site, "read", nsid, &[&path])).expect("read");
}

#[test]
fn counts_are_what_a_host_did() {
    let (site, target) = site("counts");
    let nothing = scrape(&site);
    assert_eq!(nothing.sum("nvmf_target_namespace_operations_total", &[]), 0.0);
    write(&site, "1");
    read(&site, "2");
    read(&site, "2");
    let seen = scrape(&site);
    for (nsid, operation, commands, bytes) in [
        ("1", "write", COMMANDS, BYTES),
        ("1", "read", 0, 0),
        ("2", "read", 2 * COMMANDS, 2 * BYTES),
        ("2", "write", 0, 0),
    ] {
        let labels = [("subsystem", site.nqn.as_str()), ("nsid", nsid), ("operation", operation)];
        let sum = |name: &str| seen.sum(name, &labels);
        assert_eq!(sum("nvmf_target_namespace_operations_total"), commands as f64, "{nsid} {operation}");
        assert_eq!(sum("nvmf_target_namespace_transferred_bytes_total"), bytes as f64, "{nsid} {operation}");
        assert_eq!(sum("nvmf_target_namespace_latency_seconds_count"), commands as f64, "{nsid} {operation}");
    }
    let of_host = |operation| {
        let labels = [("subsystem", site.nqn.as_str()), ("operation", operation)];
        seen.sum("nvmf_target_host_operations_total", &labels)
    };
    assert_eq!((of_host("write"), of_host("read")), (COMMANDS as f64, 2.0 * COMMANDS as f64));
    assert_eq!(seen.sum("nvmf_target_host_transferred_bytes_total", &[]), 3.0 * BYTES as f64);
    let served = [("nsid", "1"), ("state", "served")];
    assert_eq!(seen.sum("nvmf_target_namespace_state", &served), 1.0);
    assert_eq!(seen.sum("nvmf_target_namespace_size_bytes", &[("nsid", "1")]), BYTES as f64);
    assert_eq!(seen.sum("nvmf_target_listener_up", &[]), 1.0);
    assert_eq!(seen.sum("nvmf_target_namespace_in_flight", &[]), 0.0, "everything was answered");
    histograms_add_up(&seen);
    target.stop().expect("the target stops");
    assert!(!site.path("metrics").exists(), "its socket goes with it");
}

/// Counts of buckets never fall, and the last is the count of all.
fn histograms_add_up(seen: &Scrape) {
    let mut histograms = 0;
    for family in seen.families.iter().filter(|family| family.kind == "histogram") {
        for count in family.samples.iter().filter(|sample| sample.suffix == "_count") {
            let labels: Vec<_> =
                count.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let of = |suffix| family.samples.iter().filter(move |it| it.suffix == suffix);
            let buckets: Vec<f64> = of("_bucket").filter(|it| it.has(&labels)).map(|it| it.value).collect();
            assert!(buckets.is_sorted(), "{} {labels:?}: {buckets:?}", family.name);
            assert_eq!(buckets.last(), Some(&count.value), "{} {labels:?}", family.name);
            assert!(of("_sum").any(|it| it.has(&labels)), "{} {labels:?} has a sum", family.name);
            histograms += 1;
        }
    }
    assert!(histograms > 4, "there are histograms");
}

#[test]
fn scrapers_that_hang_cost_nobody_anything() {
    let (site, target) = site("hanging");
    let connect = || UnixStream::connect(site.path("metrics")).expect("a connection");
    // One asks again and again, and reads nothing; the others ask for nothing.
    let mut deaf = connect();
    deaf.set_nonblocking(true).expect("set");
    let mut asked = 0;
    while asked < 1 << 20 {
        match deaf.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n") {
            Ok(len) => asked += len,
            Err(_) => break,
        }
    }
    let mut silent: Vec<UnixStream> = Vec::new();
    for at in 0..1000 {
        silent.push(connect());
        if at % 250 == 0 {
            scrape(&site);
        }
    }
    write(&site, "1");
    read(&site, "1");
    let seen = scrape(&site);
    assert_eq!(
        seen.sum("nvmf_target_namespace_operations_total", &[("nsid", "1")]) as usize,
        2 * COMMANDS + 1,
        "and a flush"
    );
    assert_eq!(seen.sum("nvmf_target_command_errors_total", &[]), 0.0);
    drop(silent);
    target.stop().expect("the target stops");
}

#[test]
fn requests_for_something_else_are_refused() {
    let (site, target) = site("requests");
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n", "405"),
        ("GET /metrics HTTP/1.1\r\nHost: a\r\nX: y", "200"),
        ("nonsense\r\n", "400"),
        (&format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n", "a".repeat(20_000)), "431"),
    ] {
        let mut stream = UnixStream::connect(site.path("metrics")).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        // It may be refused before it was sent to its end.
        let _ = stream.write_all(format!("{}\r\nConnection: close\r\n\r\n", request.trim_end()).as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request:.40}: {answer:.200}");
    }
    scrape(&site);
    target.stop().expect("the target stops");
}

#[test]
fn restart_begins_anew_with_another_start_time() {
    let (site, target) = site("restart");
    write(&site, "1");
    let before = scrape(&site);
    target.stop().expect("the target stops");
    let target = site.serve().expect("a target");
    let after = scrape(&site);
    let started = |scrape: &Scrape| scrape.sum("nvmf_target_start_time_seconds", &[]);
    assert!(started(&after) > started(&before));
    assert_eq!(after.sum("nvmf_target_namespace_operations_total", &[]), 0.0);
    target.stop().expect("the target stops");
}

#[test]
fn top_prints_busy_namespaces_and_hosts() {
    let (site, target) = site("top");
    write(&site, "1");
    let program = process::program("nvmf-target").expect("built");
    let top = |arguments: &[&str]| {
        let from = site.path("metrics").display().to_string();
        let mut call = Command::new(&program);
        call.args(["top", "--from", &from, "--once", "--interval", "0.1"]).args(arguments);
        succeeds(&mut call).expect("top")
    };
    let text = top(&[]);
    assert!(text.contains("NAMESPACE") && text.contains("p50/p99") && text.contains("HOST"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&top(&["-o", "json"])).expect("JSON");
    assert_eq!(json["namespaces"].as_array().map(Vec::len), Some(2), "{json}");
    assert_eq!(json["namespaces"][0]["state"], "served");
    assert_eq!(json["hosts"][0]["subsystem"], site.nqn.as_str());
    target.stop().expect("the target stops");
}

#[test]
fn trace_names_the_slowest_commands_once() {
    let (site, target) = site("trace");
    write(&site, "1");
    let trace = || {
        let socket = site.path("control").display().to_string();
        let mut call = Command::new(process::program("nvmf-target").expect("built"));
        call.args(["ctl", "--socket", &socket, "trace", "-o", "json"]);
        let answer: serde_json::Value =
            serde_json::from_str(&succeeds(&mut call).expect("trace")).expect("JSON");
        answer["result"]["commands"].as_array().cloned().expect("commands")
    };
    let commands = trace();
    assert_eq!(commands.iter().filter(|it| it["operation"] == "write").count(), COMMANDS, "{commands:?}");
    let writes: Vec<_> = commands.iter().filter(|it| it["operation"] == "write").collect();
    let mut lbas: Vec<_> = writes.iter().map(|it| it["lba"].as_u64().expect("a number")).collect();
    lbas.sort_unstable();
    assert_eq!(lbas, [0, 256, 512, 768]);
    for write in writes {
        assert_eq!((write["nsid"].as_u64(), write["blocks"].as_u64()), (Some(1), Some(256)), "{write}");
        assert_eq!(
            (&write["subsystem"], &write["status"]),
            (&site.nqn.as_str().into(), &"ok".into()),
            "{write}"
        );
    }
    assert!(commands.is_sorted_by_key(|it| std::cmp::Reverse(it["total_us"].as_u64())), "{commands:?}");
    assert!(trace().is_empty(), "it begins anew");
    target.stop().expect("the target stops");
}
