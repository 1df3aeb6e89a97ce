//! The built programs with secure channel concatenation: an authentication that makes the key for TLS.

use nvme_proto::Nsid;
use nvmf_initiator::auth::Secret;
use nvmf_initiator::auth::host::Secrets;
use nvmf_initiator::{AuthenticationOptions, Connection, Options, TcpOptions, TransportOptions, block_on};
use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{HOST_ID, Site, fails, random_file, refuses, succeeds};
use std::process::Command;

const SIZE: usize = 1 << 20;

fn host() -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}")
}

fn path(site: &Site, name: &str) -> String {
    site.path(name).to_str().expect("UTF-8").to_owned()
}

fn new_secret(site: &Site, name: &str) -> String {
    let file = path(site, name);
    succeeds(&mut site.local(&["gen-dhchap-key", "--keyfile", &file]).expect("nvmf")).expect("a secret");
    file
}

fn configure(site: &Site, target: &str, listener: &str, host_lines: &str) {
    let disk = site.disk("disk.img", SIZE as u64);
    let text = format!(
        "[target]\nworkers = 2\nbuffer_memory = \"16MiB\"\n{target}\n[[listener]]\naddress = \"{}\"\n\
         transport = \"tcp\"\n{listener}\n[[host]]\nnqn = \"{}\"\n{host_lines}\n{}",
        site.address,
        host(),
        site.subsystem(&[disk])
    );
    std::fs::write(site.path("target.toml"), text).expect("a configuration");
}

/// A target whose listener has this TLS, and that knows the tests' host by the secret in the file; with more lines for the
/// host.
fn site(name: &str, tls: &str, more: &str) -> (Site, Target, String) {
    let site = Site::new(name).expect("a site");
    let key = new_secret(&site, "key");
    let listener = format!("tls = \"{tls}\"");
    let groups = "dhchap_groups = [\"null\", \"ffdhe2048\"]";
    configure(&site, groups, &listener, &format!("dhchap_key_file = \"{key}\"\n{more}"));
    let target = site.serve().expect("a target");
    (site, target, key)
}

fn call(site: &Site, command: &str, options: &[&str]) -> Command {
    let named = ["-t", "tcp", "-n", site.nqn.as_str()];
    site.call(command, &[&named, options].concat()).expect("nvmf")
}

fn log(site: &Site) -> String {
    std::fs::read_to_string(site.path("log")).expect("a log")
}

/// The disk is written and read.
fn uses_the_disk(site: &Site, options: &[&str]) {
    let (from, to) = (path(site, "from"), path(site, "to"));
    let bytes = random_file(&site.path("from"), SIZE).expect("a file");
    succeeds(&mut call(site, "write", &[options, &[&from]].concat())).expect("written");
    succeeds(&mut call(site, "read", &[options, &["--length", "1MiB", &to]].concat())).expect("read");
    assert!(std::fs::read(&to).expect("a file") == bytes, "{options:?}");
    std::fs::remove_file(&to).expect("a file");
}

fn library(site: &Site, key: &str) -> (Options, Secrets) {
    let text = std::fs::read_to_string(key).expect("a secret");
    let secrets = Secrets { host: Secret::parse(text.trim()).expect("a secret"), controller: None };
    let mut options = site.options(1).expect("options");
    options.host.nqn = host().parse().expect("an NQN");
    options.transport = TransportOptions::Tcp(TcpOptions::default());
    options.authentication = Some(AuthenticationOptions::new(secrets.clone()).with_concat(true));
    (options, secrets)
}

#[test]
fn disk_is_used_over_tls_by_the_key_that_the_authentication_made() {
    for (tls, more) in [("concat", ""), ("allowed", ""), ("allowed", "require_concat = true")] {
        let (site, target, key) = site("concat-used", tls, more);
        uses_the_disk(&site, &["-S", &key, "--concat", "-i", "3"]);
        let log = log(&site);
        assert!(log.contains("entries over TLS"), "{log}");
        let secret = std::fs::read_to_string(&key).expect("a secret");
        assert!(!log.contains(&secret[10..26]), "the log shows the secret");
        target.stop().expect("a clean stop");
    }
}

#[test]
fn both_sides_prove_themselves_and_make_a_key() {
    let site = Site::new("concat-both").expect("a site");
    let (own, controller, other) =
        (new_secret(&site, "own"), new_secret(&site, "controller"), new_secret(&site, "other"));
    let keys = format!("dhchap_key_file = \"{own}\"\ndhchap_ctrl_key_file = \"{controller}\"");
    configure(
        &site,
        "dhchap_hashes = [\"sha256\"]\ndhchap_groups = [\"ffdhe3072\"]",
        "tls = \"concat\"",
        &keys,
    );
    let target = site.serve().expect("a target");
    uses_the_disk(&site, &["-S", &own, "--dhchap-ctrl-secret", &controller, "--concat"]);
    let wrong = ["-S", &own, "--dhchap-ctrl-secret", &other, "--concat"];
    fails(&mut call(&site, "id-ctrl", &wrong), &["did not prove that it has"]).expect("a message");
    let wrong = ["-S", &other, "--concat"];
    fails(&mut call(&site, "id-ctrl", &wrong), &["the controller refused"]).expect("a message");
    target.until_logged("its response is wrong").expect("a line of the log");
    target.stop().expect("a clean stop");
}

/// By the listener, or by the host.
#[test]
fn host_in_the_clear_is_refused_where_a_channel_is_required() {
    for (tls, more) in [("concat", ""), ("allowed", "require_concat = true")] {
        let (site, target, key) = site("concat-clear", tls, more);
        fails(&mut call(&site, "id-ctrl", &["-S", &key]), &["--concat"]).expect("a message");
        fails(&mut call(&site, "id-ctrl", &[]), &["--concat"]).expect("a message");
        uses_the_disk(&site, &["-S", &key, "--concat"]);
        fails(&mut call(&site, "id-ctrl", &["-S", &key]), &["--concat"]).expect("a message");
        // Discovery stays in the clear: without it hosts would not find the subsystem.
        let port = site.address.port().to_string();
        let ask = ["discover", "-t", "tcp", "-a", "127.0.0.1", "-s", &port, "-q", &host(), "-I", HOST_ID];
        let found = succeeds(&mut site.local(&ask).expect("nvmf")).expect("records");
        assert!(found.contains(&site.nqn), "{found}");
        target.stop().expect("a clean stop");
    }
}

#[test]
fn host_without_a_secret_is_refused_at_a_listener_with_concat() {
    let (site, target, key) = site("concat-stranger", "concat", "");
    let (mut options, _) = library(&site, &key);
    options.authentication = None;
    options.host.nqn = "nqn.2026-11.com.example:stranger".parse().expect("an NQN");
    let error = block_on(Connection::connect(options)).map(drop).expect_err("it is refused");
    let error = format!("{:#}", anyhow::Error::from(error));
    assert!(error.contains("Connect Invalid Host"), "{error}");
    target.until_logged("must use TLS here").expect("a line of the log");
    target.stop().expect("a clean stop");
}

#[test]
fn concatenation_without_tls_is_a_mismatch() {
    let (site, target, key) = site("concat-off", "off", "");
    fails(&mut call(&site, "id-ctrl", &["-S", &key, "--concat"]), &["cannot do it here"]).expect("a message");
    target.until_logged("it wants a secure channel").expect("a line of the log");
    target.stop().expect("a clean stop");
}

#[test]
fn every_association_makes_a_key_of_its_own() {
    let (site, mut target, key) = site("concat-again", "concat", "");
    let (options, secrets) = library(&site, &key);
    let connection = block_on(Connection::connect(options)).expect("connected");
    let device = connection.open(Nsid(1)).expect("a device");
    block_on(device.write_from(0, &[7; 4096])).expect("written");
    // A new key in place of the present one; the connections stay.
    for _ in 0..3 {
        let begun = || block_on(connection.authenticate_again(secrets.clone())).expect("authenticated");
        process::until("it is begun", begun).expect("authenticated");
    }
    let mut read = [0; 4096];
    block_on(device.read_to(0, &mut read)).expect("read");
    // A target that was restarted knows no generated key: the host authenticates anew.
    target.kill().expect("killed");
    let target = site.serve().expect("a target");
    block_on(device.write_from(4096, &[8; 4096])).expect("written after a reconnect");
    block_on(device.read_to(4096, &mut read)).expect("read");
    assert_eq!(read, [8; 4096]);
    block_on(connection.close());
    target.stop().expect("a clean stop");
}

#[test]
fn wrong_arguments_of_concat_are_named() {
    let site = Site::new("concat-arguments").expect("a site");
    let key = new_secret(&site, "key");
    for (arguments, part) in
        [(&["--concat"][..], "--dhchap-secret"), (&["-S", &key, "--concat", "--tls"], "--tls")]
    {
        let output = process::run(&mut call(&site, "id-ctrl", arguments)).expect("it ends");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(part), "{arguments:?}: {text}");
    }
    let rdma = ["-n", site.nqn.as_str(), "-S", &key, "--concat"];
    refuses(&mut site.call("id-ctrl", &rdma).expect("nvmf"), &["--concat is for -t tcp"]).expect("a message");
}
