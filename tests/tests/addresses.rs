//! Addresses that are taken from a target while it listens there, in a network namespace of its own.

use nvmf_tests::network::{apart, ip};
use nvmf_tests::process;
use nvmf_tests::site::{Site, json};
use serde_json::Value;
use std::time::Duration;

const ADDRESS: &str = "192.0.2.1";
/// A look each two seconds, and two of them.
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn listener_whose_address_or_link_is_lost_is_down_until_it_is_back_and_serves_again_at_once() {
    if let Err(error) = apart("front0", ADDRESS) {
        eprintln!("left out: no network namespace can be made here: {error:#}");
        return;
    }
    let site = Site::new("addresses").expect("a site");
    let front = format!("[[listener]]\naddress = \"{ADDRESS}\"\ntransport = \"tcp\"\n");
    let text = format!("transport = \"tcp\"\n{front}{}", site.subsystem(&["memory = \"1MiB\"".to_owned()]));
    site.configure(&text).expect("a configuration");
    let (path, socket) = (site.path("target.toml"), site.path("control.sock"));
    let text = std::fs::read_to_string(&path).expect("the configuration");
    let with = format!("[target]\ncontrol_socket = \"{}\"", socket.display());
    std::fs::write(&path, text.replace("[target]", &with)).expect("a configuration");
    let target = site.serve().expect("a target");
    let program = process::program("nvmf-target").expect("nvmf-target");
    let status = |words: &[&str]| process::ctl(&program, &socket, words, LIMIT).expect("an answer");
    let front = || -> Value { status(&["status"]).1["result"]["listeners"][1].clone() };
    let is_up = || front()["up"] == true;
    assert!(is_up(), "{}", front());

    for (away, back, why) in [
        (
            "address delete 192.0.2.1/24 dev front0",
            "address add 192.0.2.1/24 dev front0",
            "no longer one of this machine",
        ),
        ("link set behind0 down", "link set behind0 up", "the link front0 of its address is down"),
        ("link set front0 down", "link set front0 up", "the link front0 of its address is down"),
    ] {
        ip(away).expect(away);
        process::until_within("it is down", LIMIT, || !is_up()).expect(away);
        let fault = front()["fault"].as_str().unwrap_or_default().to_owned();
        assert!(fault.contains(why), "{away}: {fault}");
        assert_eq!(status(&["status", "--check"]).0.code(), Some(3), "{away}");
        ip(back).expect(back);
        process::until_within("it is up", LIMIT, is_up).expect(back);
        assert_eq!(front()["fault"], Value::Null, "{back}");
    }
    // The socket is the one of before.
    let mut call = site.local(&["discover", "-a", ADDRESS, "-t", "tcp", "-o", "json"]).expect("nvmf");
    let port = front()["address"].as_str().and_then(|address| Some(address.rsplit_once(':')?.1.to_owned()));
    call.args(["-s", &port.expect("a port")]);
    assert!(json(&mut call).expect("a log")["records"].as_array().is_some_and(|records| !records.is_empty()));
    assert_eq!(target.log().matches("listening on").count(), 1, "{}", target.log());
    target.stop().expect("a clean stop");
}
