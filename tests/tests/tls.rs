//! The built programs over NVMe/TCP with TLS.

use nvmf_tests::process::Target;
use nvmf_tests::site::{HOST_ID, Site, fails, json, random_file, succeeds};
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
    let log = log(&site);
    for line in [
        "no TLS on a port that requires it",
        "the peer has another key than the one known here for \"NVMe0R01 ",
        "the host has one for SHA-384",
        "no key is configured for host nqn.2026-11.com.example:stranger",
    ] {
        assert!(log.contains(line), "{line} is not in the log:\n{log}");
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
    assert!(log(&site).contains("a TLS ClientHello on a port without TLS"), "{}", log(&site));
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
    assert!(log(&site).contains(&format!("chmod 600 {key}")), "{}", log(&site));
    // What is mended is taken up by a reload.
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("permissions");
    nvmf_tests::process::signal(target.pid(), "HUP").expect("a reload");
    nvmf_tests::process::until("the key is known", || {
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
    fail(&["gen-tls-key", "--secret", "5512"], &["it must have 32"]);
    fail(&["gen-tls-key", "--secret", "xy"], &["hexadecimal"]);
    let damaged = key.replace("VRL", "VRM");
    fail(&[&["check-tls-key", "--keydata", &damaged], &whose[..]].concat(), &["checksum"]);
    fail(&["check-tls-key", "--keydata", key], &["--subsysnqn"]);
    let file = new_key(&site, "key", "2");
    fail(&["gen-tls-key", "--keyfile", &file], &["cannot write the key file"]);
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    assert!(run(&[&["check-tls-key", "--keyfile", &file], &whose[..]].concat()).starts_with("NVMe0R02 "));
}
