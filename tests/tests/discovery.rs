//! The discovery service of the built programs: its name, its counter over restarts, referrals.

use nvmf_tests::process;
use nvmf_tests::site::{Site, fails, json};
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
    assert!(target.log().contains("there is no subsystem nqn.2014-08.org.nvmexpress.discovery"));
    let id = site.call("id-ns", &["-t", "tcp", "-n", &site.nqn, "--nsid", "1", "-o", "json"]);
    assert_eq!(json(&mut id.expect("nvmf")).expect("the disk")["nsze"], 256);
    target.stop().expect("a clean stop");
}
