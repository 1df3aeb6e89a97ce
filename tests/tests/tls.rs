//! The built programs over NVMe/TCP with TLS.

use nvmf_tests::process::{self, Target, until};
use nvmf_tests::site::{HOST_ID, Site, fails, json, random_file, refuses, succeeds};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const SIZE: usize = 2 << 20;

fn host() -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}")
}

/// A path of the site, as text.
fn path(site: &Site, name: &str) -> String {
    site.path(name).to_str().expect("UTF-8").to_owned()
}

/// Makes a key file with `nvmf gen-tls-key`.
fn new_key(site: &Site, name: &str, hmac: &str) -> String {
    let file = path(site, name);
    let made = site.local(&["gen-tls-key", "--hmac", hmac, "--keyfile", &file]);
    succeeds(&mut made.expect("nvmf")).expect("a key");
    file
}

/// A target with this `tls`, that knows the key of the tests' host.
fn site(name: &str, tls: &str, hmac: &str) -> (Site, Target, String) {
    let site = Site::new(name).expect("a site");
    let key = new_key(&site, "key", hmac);
    serve(site, tls, key)
}

fn serve(site: Site, tls: &str, key: String) -> (Site, Target, String) {
    let listener = format!("transport = \"tcp\"\ntls = \"{tls}\"\n");
    let known = format!("[[host]]\nnqn = \"{}\"\ntls_key_file = \"{key}\"\n", host());
    let disk = site.disk("disk.img", SIZE as u64);
    site.configure(&(listener + &known + &site.subsystem(&[disk]))).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target, key)
}

fn call(site: &Site, command: &str, arguments: &[&str]) -> Command {
    site.call(command, &[&["-t", "tcp"], arguments].concat()).expect("nvmf")
}

/// The identity of version 1 of the tests' host with the key in this file.
fn identity(site: &Site, key: &str) -> String {
    let arguments = ["check-tls-key", "--keyfile", key, "-n", &host(), "-c", &site.nqn, "-I", "1"];
    succeeds(&mut site.local(&arguments).expect("nvmf")).expect("an identity").trim().to_owned()
}

/// Reloads, and waits until the log has a line with this after that.
fn reload(site: &Site, target: &Target, says: &str) {
    let before = log(site).len();
    process::signal(target.pid(), "HUP").expect("a reload");
    process::until("the reload is logged", || log(site)[before..].contains(says)).expect("a line of the log");
}

fn log(site: &Site) -> String {
    std::fs::read_to_string(site.path("log")).expect("a log")
}

/// The disk is written and read.
fn uses_the_disk(site: &Site, options: &[&str]) {
    let (from, to) = (path(site, "from"), path(site, "to"));
    let bytes = random_file(&site.path("from"), SIZE).expect("a file");
    let named = [&["-n", site.nqn.as_str()], options].concat();
    succeeds(&mut call(site, "write", &[&named[..], &[&from]].concat())).expect("written");
    succeeds(&mut call(site, "read", &[&named[..], &["--length", "2MiB", &to]].concat())).expect("read");
    assert!(std::fs::read(&to).expect("a file") == bytes, "{options:?}");
    std::fs::remove_file(&to).expect("a file");
}

#[test]
fn disk_is_discovered_and_used_with_either_suite() {
    for hmac in ["1", "2"] {
        let (site, target, key) = site(&format!("tls-disk-{hmac}"), "required", hmac);
        let with_key = ["--tls", "--tls-key-file", &key];
        let log =
            json(&mut call(&site, "discover", &[&with_key[..], &["-o", "json"]].concat())).expect("a log");
        let record = &log["records"][0];
        assert_eq!(
            (&record["sectype"], &record["treq"]),
            (&"tls13".into(), &"required, sq flow control disable supported".into()),
            "{log}"
        );
        for options in [&[][..], &["-i", "3", "--hdr-digest", "--data-digest"], &["--disable-sqflow"]] {
            uses_the_disk(&site, &[&with_key[..], options].concat());
        }
        target.stop().expect("a clean stop");
    }
}

#[test]
fn port_that_allows_tls_takes_hosts_without_it() {
    let (site, target, key) = site("tls-allowed", "allowed", "1");
    uses_the_disk(&site, &[]);
    uses_the_disk(&site, &["--tls", "--tls-key-file", &key]);
    let log = json(&mut call(&site, "discover", &["-o", "json"])).expect("a discovery log");
    let record = &log["records"][0];
    assert_eq!(
        (&record["sectype"], &record["treq"]),
        (&"none".into(), &"not specified, sq flow control disable supported".into()),
        "{log}"
    );
    target.stop().expect("a clean stop");
}

#[test]
fn host_without_the_right_key_is_told_and_logged() {
    let (site, target, key) = site("tls-wrong", "required", "1");
    let (named, other) = (["-n", site.nqn.as_str()], new_key(&site, "other", "1"));
    let longer = new_key(&site, "longer", "2");
    let with = |more: &[&str]| call(&site, "id-ctrl", &[&named[..], more].concat());
    fails(&mut with(&[]), &["TLS", "--tls"]).expect("a message");
    for (file, alert) in [(&other, "decrypt_error"), (&longer, "unknown_psk_identity")] {
        fails(&mut with(&["--tls", "--tls-key-file", file]), &[alert, "same key"]).expect("a message");
    }
    let (nqn, port) = ("nqn.2026-11.com.example:stranger", site.address.port().to_string());
    let to = ["id-ctrl", "-t", "tcp", "-a", "127.0.0.1", "-s", &port, "-q", nqn, "-I", HOST_ID];
    let stranger = [&to[..], &named, &["--tls", "--tls-key-file", &key]].concat();
    fails(&mut site.local(&stranger).expect("nvmf"), &["unknown_psk_identity"]).expect("a message");
    for line in [
        "no TLS on a port that requires it",
        "the peer has another key than the one known here for \"NVMe0R01 ",
        // With the digest that `nvmf check-tls-key -I 1` shows.
        &format!("(it also offers \"{}\")", identity(&site, &other)),
        "the host has one for SHA-384",
        "no key is configured for host nqn.2026-11.com.example:stranger",
    ] {
        target.until_logged(line).expect("a line of the log");
    }
    // Nobody else suffers.
    uses_the_disk(&site, &["--tls", "--tls-key-file", &key]);
    target.stop().expect("a clean stop");
}

#[test]
fn tls_to_a_port_without_it_is_told_and_logged() {
    let (site, target, key) = site("tls-off", "off", "1");
    let options = ["-n", site.nqn.as_str(), "--tls", "--tls-key-file", &key];
    fails(&mut call(&site, "id-ctrl", &options), &["is it a port with TLS"]).expect("a message");
    target.until_logged("a TLS ClientHello on a port without TLS").expect("a line of the log");
    uses_the_disk(&site, &[]);
    target.stop().expect("a clean stop");
}

#[test]
fn key_file_that_others_may_read_is_not_used() {
    let site = Site::new("tls-mode").expect("a site");
    let key = new_key(&site, "key", "1");
    std::fs::set_permissions(&key, Permissions::from_mode(0o644)).expect("permissions");
    let named = ["-n", site.nqn.as_str(), "--tls", "--tls-key-file", &key];
    fails(&mut call(&site, "id-ctrl", &named), &["chmod 600"]).expect("a message");
    let (site, target, key) = serve(site, "required", key);
    target.until_logged(&format!("chmod 600 {key}")).expect("a line of the log");
    // What is mended is taken up by a reload.
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("permissions");
    process::signal(target.pid(), "HUP").expect("a reload");
    until("the key is known", || {
        call(&site, "id-ctrl", &["-n", &site.nqn, "--tls", "--tls-key-file", &key])
            .output()
            .is_ok_and(|output| output.status.success())
    })
    .expect("a key");
    target.stop().expect("a clean stop");
}

#[test]
fn keys_are_made_and_checked_as_others_do() {
    let site = Site::new("tls-keys").expect("a site");
    let run = |arguments: &[&str]| succeeds(&mut site.local(arguments).expect("nvmf")).expect("success");
    let secret = "5512dbb6737d0106f65975b773dfb011ffc344bcf442e2dd6d8bc4870b5d5b03";
    let key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    assert_eq!(run(&["gen-tls-key", "--secret", secret]).trim(), key);
    let whose = ["-n", "nqn.psk-test-host", "-c", "nqn.psk-test-subsys"];
    let check = |more: &[&str]| {
        run(&[&["check-tls-key"], &whose[..], &["--keydata", key], more].concat()).trim().to_owned()
    };
    assert_eq!(check(&[]), "NVMe0R01 nqn.psk-test-host nqn.psk-test-subsys");
    assert_eq!(
        check(&["--identity", "1"]),
        "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU="
    );
    let fail = |arguments: &[&str], words: &[&str]| {
        fails(&mut site.local(arguments).expect("nvmf"), words).expect("a message");
    };
    let refuse = |arguments: &[&str], words: &[&str]| {
        refuses(&mut site.local(arguments).expect("nvmf"), words).expect("a message");
    };
    refuse(&["gen-tls-key", "--secret", "5512"], &["it must have 32"]);
    refuse(&["gen-tls-key", "--secret", "xy"], &["hexadecimal"]);
    assert_eq!(run(&["check-tls-key", "--keydata", key]).trim(), "Key is valid (HMAC 1, length 32)");
    let damaged = key.replace("VRL", "VRM");
    fail(&[&["check-tls-key", "--keydata", &damaged], &whose[..]].concat(), &["checksum"]);
    let file = new_key(&site, "key", "2");
    fail(&["gen-tls-key", "--keyfile", &file], &["cannot write the key file", "remove it, or name another"]);
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    assert!(run(&[&["check-tls-key", "--keyfile", &file], &whose[..]].concat()).starts_with("NVMe0R02 "));
}

/// As a start does.
#[test]
fn host_whose_key_cannot_be_read_at_a_reload_is_refused() {
    let (site, target, key) = site("tls-revoked", "required", "1");
    let own = path(&site, "own");
    std::fs::copy(&key, &own).expect("the host's own file");
    let with_key = ["-n", site.nqn.as_str(), "--tls", "--tls-key-file", &own];
    let connect = || call(&site, "id-ctrl", &with_key);
    succeeds(&mut connect()).expect("a connection");
    std::fs::remove_file(&key).expect("the target's file");
    reload(&site, &target, "with 1 error");
    target.until_logged("has no key for TLS and is refused").expect("a line of the log");
    fails(&mut connect(), &["unknown_psk_identity"]).expect("a message");
    let line = format!("the key of host {} could not be read", host());
    target.until_logged(&line).expect("a line of the log");
    std::fs::copy(&own, &key).expect("the target's file");
    reload(&site, &target, "reloaded");
    succeeds(&mut connect()).expect("a connection");
    target.stop().expect("a clean stop");
}

#[test]
fn last_host_that_is_removed_is_refused() {
    let (site, target, key) = site("tls-last", "required", "1");
    let text = std::fs::read_to_string(site.path("target.toml")).expect("a configuration");
    let (before, rest) = text.split_once("[[host]]").expect("a host");
    let (_, after) = rest.split_once("[[subsystem]]").expect("a subsystem");
    std::fs::write(site.path("target.toml"), format!("{before}[[subsystem]]{after}")).expect("a file");
    reload(&site, &target, "reloaded");
    target.until_logged("no host has a key").expect("a line of the log");
    let with_key = ["-n", site.nqn.as_str(), "--tls", "--tls-key-file", &key];
    fails(&mut call(&site, "id-ctrl", &with_key), &["unknown_psk_identity"]).expect("a message");
    let line = format!("no key is configured for host {}", host());
    target.until_logged(&line).expect("a line of the log");
    target.stop().expect("a clean stop");
}

#[test]
fn tls_in_use_is_shown() {
    let (site, target, key) = site("tls-shown", "allowed", "1");
    target.until_logged("(NVMe/TCP, TLS allowed)").expect("a line of the log");
    for (tls, options) in [(false, &[][..]), (true, &["--tls", "--tls-key-file", &key])] {
        let socket = path(&site, "disk.sock");
        let named = ["-n", site.nqn.as_str(), "--socket", &socket];
        let before = log(&site).len();
        let said = succeeds(&mut call(&site, "attach", &[&named[..], options].concat())).expect("attached");
        assert_eq!(said.contains("over tcp with TLS,"), tls, "{said}");
        let list = json(&mut site.local(&["list", "-o", "json"]).expect("nvmf")).expect("a list");
        assert_eq!((&list["disks"][0]["transport"], &list["disks"][0]["tls"]), (&"tcp".into(), &tls.into()));
        let shown = succeeds(&mut site.local(&["list"]).expect("nvmf")).expect("a list");
        assert_eq!(shown.contains("tcp+tls"), tls, "{shown}");
        process::signal(target.pid(), "USR1").expect("a report");
        let reported =
            |line: &str| line.contains("controller, last heard of") && line.contains(&format!("tls={tls}"));
        until("the controller is reported", || log(&site)[before..].lines().any(reported)).expect("a line");
        assert_eq!(log(&site)[before..].contains("entries over TLS"), tls, "{}", log(&site));
        succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    }
    target.stop().expect("a clean stop");
}

#[test]
fn port_that_requires_tls_is_known_to_doctor() {
    let (site, target, _) = site("tls-doctor", "required", "1");
    let port = site.address.port().to_string();
    let ask = ["doctor", "-t", "tcp", "-a", "127.0.0.1", "-s", &port];
    let output = process::run(&mut site.local(&ask).expect("nvmf")).expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("it requires TLS") && !text.contains("no target answers"), "{text}");
    let output = process::run(site.local(&ask).expect("nvmf").args(["-o", "json"])).expect("it ends");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let asked = &value["target"];
    assert_eq!(
        (&asked["answers"], &asked["tls_required"], asked["records"].is_null()),
        (&true.into(), &true.into(), true),
        "{value}"
    );
    target.stop().expect("a clean stop");
}

/// Its disks are attached over the other paths, and over all where the key is named.
#[test]
fn listed_path_for_whose_tls_the_host_has_no_key_is_left_out() {
    let site = Site::new("tls-listed").expect("a site");
    let key = new_key(&site, "key", "1");
    let port = process::free_port().expect("a port");
    let listeners = format!(
        "transport = \"tcp\"\n[[listener]]\naddress = \"127.0.0.1:{port}\"\ntransport = \"tcp\"\ntls = \"required\"\n"
    );
    let known = format!("[[host]]\nnqn = \"{}\"\ntls_key_file = \"{key}\"\n", host());
    let disk = site.disk("disk.img", SIZE as u64);
    site.configure(&(listeners + &known + &site.subsystem(&[disk]))).expect("a configuration");
    let target = site.serve().expect("a target");
    let listed = || json(&mut site.local(&["list", "-o", "json"]).expect("nvmf")).expect("a list");
    let states = || -> Vec<String> {
        let disks = listed();
        let paths = disks["disks"][0]["paths"].as_array().cloned().unwrap_or_default();
        paths.iter().map(|path| path["state"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let detach = || succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    let with_tls = format!("127.0.0.1:{port},tls");
    for (command, arguments) in [
        ("connect-all", &["--as", "socket"][..]),
        ("attach", &["-n", &site.nqn, "--as", "socket", "--path", &with_tls]),
    ] {
        let output = process::run(&mut call(&site, command, arguments)).expect("nvmf");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}");
        for part in ["a path is left out", &format!("tcp 127.0.0.1 port {port}"), "--tls-key-file"] {
            assert_eq!(said.matches(part).count(), 1, "{command}: {part}: {said}");
        }
        assert_eq!(states(), ["live"], "{command}");
        // What is attached already is not told to be without it as a failure either.
        succeeds(&mut call(&site, "connect-all", &["--as", "socket"])).expect("nothing to do");
        detach();
    }
    let mut service = call(&site, "discoverd", &["--policy", &path(&site, "none.toml")]);
    std::fs::write(site.path("none.toml"), "as = \"socket\"\n").expect("a policy");
    let mut service = service.spawn().expect("nvmf starts");
    until("the service has attached it", || states() == ["live"]).unwrap_or_else(|_| panic!("{}", listed()));
    process::signal(service.id(), "TERM").expect("it runs");
    assert!(process::end(&mut service).expect("it ends").success());
    detach();
    let with_key = ["--as", "socket", "--tls-key-file", &key];
    let output = process::run(&mut call(&site, "connect-all", &with_key)).expect("nvmf");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("INFO"), "{said}");
    until("both paths are there", || states() == ["live"; 2]).unwrap_or_else(|_| panic!("{}", listed()));
    detach();
    // Where no path is left, it is an error, and says what is to be done.
    let alone = ["-n", &site.nqn, "--as", "socket", "--tls"];
    fails(&mut call(&site, "attach", &alone), &["--tls-key-file"]).expect("a message");
    target.stop().expect("a clean stop");
}

/// Its process has its arguments for as long as the disk is attached.
#[test]
fn key_as_an_argument_of_attach_is_refused() {
    let site = Site::new("tls-argument").expect("a site");
    let secret = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    for more in [&[][..], &["--foreground"]] {
        let arguments = [&["-n", site.nqn.as_str(), "--tls", "--tls-key", secret], more].concat();
        refuses(&mut call(&site, "attach", &arguments), &["--tls-key-file"]).expect("a message");
    }
}

#[test]
fn wrong_arguments_of_tls_have_exit_code_2() {
    let site = Site::new("tls-arguments").expect("a site");
    let said = |command: &str, arguments: &[&str]| {
        let output = process::run(&mut call(&site, command, arguments)).expect("it ends");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        text
    };
    let nqn = ["-n", site.nqn.as_str()];
    for (more, part) in [
        (&["--tls", "--tls-key", "1234"][..], "NVMeTLSkey-1:"),
        (&["--tls", "--tls-key", "NVMeTLSkey-1:01:VRLb:"], "--tls-key"),
        (&["--keyring", ".nvme"], "--tls"),
        (&["-i", "128", "-W", "127"], "--nr-write-queues 127"),
        (&["-w", "::1"], "--host-traddr ::1"),
        (&["--concat"], "--dhchap-secret"),
        (&["-S", "DHHC-1:00:x:"], "not valid base64"),
        (&["--dhchap-ctrl-secret", "DHHC-1:00:x:"], "--dhchap-secret"),
        (&["-P", "4"], "no queues for polling"),
        (&["--tls", "--tls-key-identity", "NVMe1R01 a b"], "--tls-identity-version"),
    ] {
        let text = said("id-ctrl", &[&nqn[..], more].concat());
        assert!(text.contains(part), "{more:?}: {text}");
    }
    refuses(&mut site.local(&["tls-key", "--whatever"]).expect("nvmf"), &["nvmf gen-tls-key"])
        .expect("a message");
    let (port, nqn) = (site.address.port().to_string(), site.nqn.as_str());
    let tos = ["id-ctrl", "-a", "127.0.0.1", "-s", &port, "-n", nqn, "--provider", "iwarp", "-T", "8"];
    refuses(&mut site.local(&tos).expect("nvmf"), &["--tos"]).expect("a message");
}

#[test]
fn missing_keyring_leaves_no_key_file() {
    let site = Site::new("tls-keyring").expect("a site");
    let file = path(&site, "new.key");
    let keyring = ["--insert", "--keyring", ".no-such-keyring"];
    let whose = ["-n", "nqn.psk-test-host", "-c", "nqn.psk-test-subsys"];
    let make = [&["gen-tls-key", "--keyfile", &file], &keyring[..], &whose].concat();
    fails(&mut site.local(&make).expect("nvmf"), &["there is no keyring .no-such-keyring"])
        .expect("a message");
    assert!(!site.path("new.key").exists());
    let named = ["-n", site.nqn.as_str(), "--tls", "--keyring", ".no-such-keyring"];
    fails(&mut call(&site, "id-ctrl", &named), &["no keyring .no-such-keyring", "--tls-key-file"])
        .expect("a message");
}

/// Nothing listens there: every test has a port of its own, and 127.0.0.77 has none.
#[test]
fn discovery_over_tcp_says_which_port_it_asked() {
    let site = Site::new("tls-discover").expect("a site");
    for command in ["discover", "connect-all"] {
        let ask = [command, "-t", "tcp", "-a", "127.0.0.77", "-q", &host(), "-I", HOST_ID];
        fails(&mut site.local(&ask).expect("nvmf"), &["8009", "-s 4420"]).expect("a message");
    }
}

#[test]
fn tls_to_a_port_of_nvme_rdma_is_told() {
    let site = Site::new("tls-rdma").expect("a site");
    let key = new_key(&site, "key", "1");
    site.configure(&site.subsystem(&[site.disk("disk.img", SIZE as u64)])).expect("a configuration");
    let target = site.serve().expect("a target");
    let options = ["-n", site.nqn.as_str(), "--tls", "--tls-key-file", &key];
    fails(&mut call(&site, "id-ctrl", &options), &["is it a port with TLS", "-t rdma"]).expect("a message");
    target.stop().expect("a clean stop");
}
