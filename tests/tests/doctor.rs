//! `nvmf doctor` as a program: what it says of this machine, and two of them that measure the provider between them.

use nvmf_tests::process::{Target, free_port, program, run};
use nvmf_tests::site::Site;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// `nvmf doctor --listen`; killed when dropped.
struct Listener {
    child: Child,
    address: SocketAddr,
}

impl Listener {
    fn start() -> Self {
        let mut command = Command::new(program("nvmf").expect("nvmf"));
        command.args(["doctor", "--listen", "127.0.0.1:0", "--provider", "iwarp"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("a listener");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("what it says");
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(' ').next());
        let address = address.and_then(|address| address.parse().ok());
        Self { child, address: address.unwrap_or_else(|| panic!("no address in: {line}")) }
    }

    fn ping(&self) -> Output {
        ping(self.address)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn doctor(arguments: &[&str]) -> Output {
    run(Command::new(program("nvmf").expect("nvmf")).arg("doctor").args(arguments)).expect("an end in time")
}

fn ping(address: SocketAddr) -> Output {
    let address = address.to_string();
    doctor(&["--ping", &address, "--provider", "iwarp", "--count", "200", "--time", "1", "-o", "json"])
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error} in {output:?}"))
}

#[test]
fn two_of_them_measure_latency_and_bandwidth() {
    let listener = Listener::start();
    // One after the other: the first leaves nothing behind that the second would miss.
    for _ in 0..2 {
        let output = listener.ping();
        assert!(output.status.success(), "{output:?}");
        let value = json(&output);
        assert_eq!(value["version"], 1);
        let ping = &value["pings"][0];
        assert_eq!(ping["provider"], "iwarp");
        let measured = &ping["measured"];
        for what in ["send_round_trip_us", "write_one_way_us"] {
            let latency = &measured[what];
            // On a busy machine the time is over first.
            assert!(latency["count"].as_u64().is_some_and(|count| (1..=200).contains(&count)), "{value}");
            let figures: Vec<f64> = ["min", "median", "p99", "p99.9", "max"]
                .iter()
                .map(|name| latency[name].as_f64().unwrap_or_else(|| panic!("no {name} in {value}")))
                .collect();
            assert!(figures[0] > 0.0 && figures.is_sorted(), "{value}");
        }
        for what in ["write_out_mib_s", "write_in_mib_s", "read_out_mib_s", "read_in_mib_s"] {
            assert!(measured[what].as_f64().is_some_and(|rate| rate > 0.0), "{what} in {value}");
        }
    }
}

#[test]
fn without_a_listener_it_says_what_to_start() {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port().expect("a port")));
    let output = ping(address);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("nvmf doctor --listen {address}")), "{said}");
    assert!(json(&output)["pings"][0]["error"].is_string());
}

#[test]
fn strangers_cost_a_listener_nothing() {
    let listener = Listener::start();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096][..], b""] {
        let mut stranger = TcpStream::connect(listener.address).expect("a connection");
        // It may have hung up already.
        let _ = stranger.write_all(bytes);
    }
    let output = listener.ping();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_stranger_that_listens_is_told_from_a_doctor() {
    let stranger = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = stranger.local_addr().expect("an address");
    let answer = std::thread::spawn(move || {
        let (mut connection, _) = stranger.accept().expect("a connection");
        connection.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out");
        connection.write_all(b"SSH-2.0-OpenSSH_9.9 and so on, and so on\r\n").expect("an answer");
    });
    let output = ping(address);
    answer.join().expect("it was asked");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("nvmf doctor --listen {address}")), "{said}");
}

/// What is found depends on the machine; the shape and the exit status do not.
#[test]
fn this_machine_is_examined() {
    let output = doctor(&["127.0.0.1", "-o", "json"]);
    let value = json(&output);
    let healthy = value["healthy"].as_bool().expect("healthy or not");
    assert_eq!(output.status.code(), Some(i32::from(!healthy)), "{value}");
    assert_eq!(value["choice"]["address"], "127.0.0.1");
    assert!(value["devices"].is_array() && value["findings"].is_array());
    assert_eq!(value["counters"]["seconds"], 1.0);
    let text = doctor(&["127.0.0.1"]);
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("provider   127.0.0.1: ") && text.contains("limits     memlock "), "{text}");
}

#[test]
fn address_is_tried() {
    let site = Site::new("doctor").expect("a site");
    let address = site.address.to_string();
    let output = doctor(&[&address, "-o", "json"]);
    let value = json(&output);
    assert_eq!(output.status.code(), Some(1), "whoever names an address expects a target: {value}");
    assert_eq!(
        (&value["target"]["answers"], &value["target"]["address"]),
        (&false.into(), &address.as_str().into())
    );
    let text = doctor(&[&address]);
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains(&format!("target     {address} does not answer")), "{text}");
    assert!(text.contains("no target answers") && text.contains("firewall"), "{text}");

    site.configure(&site.subsystem(&[site.disk("disk.img", 1 << 20)])).expect("a configuration");
    let target = site.serve().expect("a target");
    let value = json(&doctor(&[&address, "-o", "json"]));
    assert_eq!((&value["target"]["answers"], &value["target"]["provider"]), (&true.into(), &"iwarp".into()));
    target.stop().expect("a clean stop");
}

/// A site whose target listens over this transport.
fn serving(transport: &str) -> (Site, Target) {
    let site = Site::new("doctor-transport").expect("a site");
    let disk = site.subsystem(&[site.disk("disk.img", 1 << 20)]);
    site.configure(&format!("transport = \"{transport}\"\n{disk}")).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

#[test]
fn transport_that_answers_is_named() {
    for (right, wrong) in [("tcp", "rdma"), ("rdma", "tcp")] {
        let (site, target) = serving(right);
        let address = site.address.to_string();
        let (ip, port) = (site.address.ip().to_string(), site.address.port().to_string());
        let output = doctor(&[&address]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&format!("{address} answers over {right}")), "{text}");
        assert!(text.contains("2 records in") && text.contains(&format!("(-t {right})")), "{text}");
        // Either way to name the port.
        let asked = json(&doctor(&[&ip, "-s", &port, "-t", right, "-o", "json"]));
        assert_eq!(
            (&asked["target"]["answers"], &asked["target"]["transport"]),
            (&true.into(), &right.into()),
            "{asked}"
        );
        assert_eq!(asked["target"]["tried"].as_array().map(Vec::len), Some(1), "{asked}");
        // Whoever names a transport expects it to be there, on this machine too.
        let output = doctor(&["-a", &ip, "-s", &port, "-t", wrong, "-o", "json"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = json(&output)["target"]["error"].to_string();
        assert!(error.contains(&format!("-t {right}")), "{error}");
        target.stop().expect("a clean stop");
    }
}

#[test]
fn provider_is_used_and_options_that_contradict_are_refused() {
    let (site, target) = serving("rdma");
    let address = site.address.to_string();
    let asked = json(&doctor(&[&address, "--provider", "iwarp", "-o", "json"]));
    assert_eq!((&asked["target"]["provider"], asked["choice"].is_null()), (&"iwarp".into(), true), "{asked}");
    let asked = json(&doctor(&["127.0.0.1", "--provider", "verbs", "-o", "json"]));
    assert_eq!(asked["target"]["answers"], false, "{asked}");
    assert!(asked["target"]["error"].to_string().contains("verbs"), "{asked}");
    for arguments in [
        &[address.as_str(), "-t", "tcp", "--provider", "iwarp"][..],
        &[&address, "-s", "1"],
        &["-t", "tcp"],
        &["-s", "4420"],
        &["-a", "127.0.0.1", "127.0.0.1"],
    ] {
        assert_eq!(doctor(arguments).status.code(), Some(2), "{arguments:?}");
    }
    target.stop().expect("a clean stop");
}

#[test]
fn what_cannot_be_found_out_has_a_status_of_its_own() {
    let output = doctor(&["no-such-name.invalid"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("neither an IP address nor a name"));
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    assert_eq!(doctor(&["--listen", &address, "--provider", "iwarp"]).status.code(), Some(2));
}
