//! The discovery service of the built programs: its name, its counter over restarts, referrals.

use nvmf_tests::process;
use nvmf_tests::site::{Site, fails, json, succeeds};
use serde_json::Value;

fn site(name: &str) -> Site {
    Site::new(name).expect("a site")
}

/// Configures one disk over TCP, and this beside it.
fn configure(site: &Site, listener: &str, more: &str) {
    let subsystem = site.subsystem(&["memory = \"1MiB\"".to_owned()]);
    let text = format!("transport = \"tcp\"\n{listener}{subsystem}{more}");
    site.configure(&text).expect("a configuration");
}

fn log(site: &Site) -> Value {
    let mut call = site.call("discover", &["-t", "tcp", "-o", "json"]).expect("nvmf");
    json(&mut call).expect("a discovery log")
}

/// Each field of all records.
fn fields<'a>(log: &'a Value, name: &str) -> Vec<&'a str> {
    let records = log["records"].as_array().expect("records").iter();
    records.map(|record| record[name].as_str().expect("a text")).collect()
}

fn counter(log: &Value) -> u64 {
    log["genctr"].as_u64().expect("a number")
}

const REFERRAL: &str = "[[discovery.referral]]\ntransport = \"tcp\"\naddress = \"192.0.2.9\"\n";

#[test]
fn discovery_service_has_a_name_a_growing_counter_and_referrals() {
    let site = site("discovery");
    configure(&site, "", "");
    let target = site.serve().expect("a target");
    let first = log(&site);
    assert_eq!(fields(&first, "subtype"), ["nvme subsystem", "current discovery subsystem"], "{first}");
    assert_eq!(
        fields(&first, "eflags")[1],
        "explicit discovery connections, duplicate discovery information",
        "{first}"
    );
    assert!(fields(&first, "subnqn")[1].starts_with("nqn.2014-08.org.nvmexpress:uuid:"), "{first}");
    target.stop().expect("a clean stop");

    let target = site.serve().expect("a target");
    let again = log(&site);
    assert_eq!(again["records"], first["records"], "nothing was changed while it was down");
    assert!(counter(&again) > counter(&first));
    configure(&site, "", REFERRAL);
    process::signal(target.pid(), "HUP").expect("it runs");
    process::until("a referral", || log(&site)["records"].as_array().is_some_and(|all| all.len() == 3))
        .expect("it is listed");
    let second = log(&site);
    assert!(counter(&second) > counter(&again));
    assert_eq!(fields(&second, "subtype")[2], "discovery subsystem referral", "{second}");
    assert_eq!((fields(&second, "traddr")[2], fields(&second, "trsvcid")[2]), ("192.0.2.9", "8009"));
    target.stop().expect("a clean stop");

    let target = site.serve().expect("a target");
    assert_eq!(log(&site)["records"], second["records"], "as it was at the stop");
    target.stop().expect("a clean stop");
}

#[test]
fn listener_without_discovery_serves_its_disks() {
    let site = site("discovery-off");
    configure(&site, "discovery = false\n", "");
    let target = site.serve().expect("a target");
    let mut call = site.call("discover", &["-t", "tcp"]).expect("nvmf");
    fails(&mut call, &["Connect"]).expect("a message");
    target
        .until_logged("there is no subsystem nqn.2014-08.org.nvmexpress.discovery")
        .expect("a line of the log");
    let id = site.call("id-ns", &["-t", "tcp", "-n", &site.nqn, "--nsid", "1", "-o", "json"]);
    assert_eq!(json(&mut id.expect("nvmf")).expect("the disk")["nsze"], 256);
    target.stop().expect("a clean stop");
}

#[test]
fn discover_takes_nvme_clis_flags_or_says_why_not() {
    let site = site("discovery-flags");
    configure(&site, "", "");
    let target = site.serve().expect("a target");
    let call = |more: &[&str]| site.call("discover", &[&["-t", "tcp"], more].concat()).expect("nvmf");
    let file = site.path("raw").display().to_string();
    let said = succeeds(&mut call(&["--raw", &file, "--quiet"])).expect("a discovery log");
    assert_eq!(said, "", "it is in the file alone");
    let raw = std::fs::read(&file).expect("the log");
    let listed = log(&site);
    let count = listed["records"].as_array().map_or(0, Vec::len);
    assert_eq!(raw.len(), 1024 * (1 + count));
    assert_eq!(raw[..8], counter(&listed).to_le_bytes());
    assert_eq!(raw[8..16], (count as u64).to_le_bytes());
    let nqn = &raw[1024 + 256..][..site.nqn.len()];
    assert_eq!(nqn, site.nqn.as_bytes(), "SUBNQN of the first entry");
    for flag in ["--persistent", "-p", "--force"] {
        let output = process::run(&mut call(&[flag])).expect("nvmf");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains("nvmf discoverd"), "{text}");
    }
    let nqn = ["--nqn", "nqn.2014-08.org.nvmexpress.discovery", "--device", "none"];
    succeeds(&mut call(&nqn)).expect("all have this name");
    for (flag, value) in [("--nqn", "nqn.2026-11.com.example:unique"), ("--device", "/dev/nvme0")] {
        let output = process::run(&mut call(&[flag, value])).expect("nvmf");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(flag), "{text}");
    }
    let dumped = succeeds(&mut call(&["-O", "--hdr-digest"])).expect("a configuration");
    let dumped: Value = serde_json::from_str(&dumped).expect("JSON");
    let port = &dumped[0]["subsystems"][0]["ports"][0];
    assert_eq!(
        (&port["discovery"], &port["hdr_digest"]),
        (&Value::Bool(true), &Value::Bool(true)),
        "{dumped}"
    );
    // It names the same controller again.
    std::fs::write(site.path("config.json"), dumped.to_string()).expect("a file");
    let config = site.path("config.json").display().to_string();
    let folder = site.path("none").display().to_string();
    let again = site.local(&["discover", "-J", &config, "--nvme-folder", &folder, "-o", "json"]);
    assert_eq!(json(&mut again.expect("nvmf")).expect("a log")["records"], listed["records"]);
    target.stop().expect("a clean stop");
}
