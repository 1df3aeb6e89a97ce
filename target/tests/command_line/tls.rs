//! Keys for TLS, as `check` and a start find them.

use super::{ANY_PORT, Running, fails, says, target};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};
use tempfile::TempDir;

const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:\n";
const HOST: &str = "nqn.2026-11.com.example:host1";

pub(super) fn key_file(folder: &TempDir, content: &str, mode: u32) -> String {
    let path = folder.path().join("host1.key");
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn host(key: &str) -> String {
    format!("[[host]]\nnqn = \"{HOST}\"\ntls_key_file = \"{key}\"\n")
}

/// A configuration with a listener over NVMe/TCP, with these lines in `[target]` and in the listener.
pub(super) fn configuration(folder: &Path, target: &str, listener: &str, more: &str) -> String {
    let text = format!(
        "[target]\nworkers = 1\nbuffer_memory = \"8MiB\"\nconnections = 16\n{target}\n\
         [[listener]]\naddress = \"{ANY_PORT}\"\ntransport = \"tcp\"\n{listener}\n{more}\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.com.example:disk1\"\nallowed_hosts = [\"{HOST}\"]\n\
         [[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n"
    );
    let path = folder.join("target.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

pub(super) fn check(config: &str) -> (Output, String) {
    let output = target(&["check", config]).output().unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    (output, said)
}

/// The log of a start, up to the line that says where it listens.
pub(super) fn log_of_start(config: &str) -> Vec<String> {
    let child = target(&["serve", "--config", config]).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child, String::new());
    let lines = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    for line in lines {
        let listens = line.contains("listening on");
        said.push(line);
        if listens {
            return said;
        }
    }
    panic!("it does not listen: {said:#?}");
}

#[test]
fn check_reports_a_key_that_cannot_be_used() {
    let folder = TempDir::new().unwrap();
    let derived = format!("NVMe1R01 {HOST} nqn.2026-11.com.example:disk1 iSbjiStwJ= {KEY}");
    for (content, mode, part) in [
        (KEY, 0o644, "chmod 600"),
        ("garbage\n", 0o600, "holds no valid key"),
        (&derived, 0o600, "not the configured key"),
    ] {
        let file = key_file(&folder, content, mode);
        let config = configuration(folder.path(), "", "tls = \"required\"", &host(&file));
        says(&["check", &config], &[HOST, &file, part]);
    }
    let config = configuration(folder.path(), "", "tls = \"required\"", &host("/nonexistent/key"));
    says(&["check", &config], &[HOST, "/nonexistent/key", "gen-tls-key"]);
    let keyring = "tls_keyring = \".no-such-keyring\"";
    let config = configuration(folder.path(), keyring, "tls = \"required\"", "");
    says(&["check", &config], &["tls_keyring in [target]", "there is no keyring .no-such-keyring"]);
    let config = configuration(folder.path(), "", "tls = \"required\"", "");
    says(&["check", &config], &["no host has a key", "[[host]]"]);
}

#[test]
fn check_shows_tls_and_keys() {
    let folder = TempDir::new().unwrap();
    let file = key_file(&folder, KEY, 0o600);
    let config = configuration(folder.path(), "", "tls = \"required\"", &host(&file));
    let (output, said) = check(&config);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !said.contains("warning"), "{said}");
    assert!(shown.contains("over tcp, TLS required\n"), "{shown}");
    assert!(shown.contains(&format!("host {HOST}: key for TLS {file}\n")), "{shown}");
    let (_, said) = check(&configuration(folder.path(), "", "", &host(&file)));
    assert!(said.contains(&format!("the key of host {HOST} is for nothing")), "{said}");
}

/// Every subsystem is served on every listener.
#[test]
fn check_warns_of_a_listener_that_does_not_require_tls() {
    let folder = TempDir::new().unwrap();
    let key = host(&key_file(&folder, KEY, 0o600));
    let warning = "TLS protects no subsystem that is served on";
    let second = |lines: &str| {
        let more = format!("[[listener]]\naddress = \"127.0.0.1:45099\"\n{lines}\n{key}");
        check(&configuration(folder.path(), "", "tls = \"required\"", &more)).1
    };
    for (lines, part) in [
        ("", "127.0.0.1:45099 over rdma as well"),
        ("transport = \"tcp\"", "127.0.0.1:45099 over tcp as well"),
        ("transport = \"tcp\"\ntls = \"allowed\"", "127.0.0.1:45099 over tcp, TLS allowed as well"),
    ] {
        let said = second(lines);
        assert!(said.contains(warning) && said.contains(part), "{said}");
    }
    for lines in ["discovery_only = true", "transport = \"tcp\"\ntls = \"required\""] {
        let said = second(lines);
        assert!(!said.contains(warning), "{lines}: {said}");
    }
}

#[test]
fn start_goes_on_without_what_tls_lacks_unless_strict() {
    let folder = TempDir::new().unwrap();
    let nowhere = host("/nonexistent/key");
    let plain = format!("[[listener]]\naddress = \"{ANY_PORT}\"\n");
    for (target, more, part) in [
        ("tls_keyring = \".no-such-keyring\"", "", "tls_keyring in [target]"),
        (
            "",
            nowhere.as_str(),
            "has no key for TLS and is refused: cannot read the key file /nonexistent/key",
        ),
        // As after a reload that revoked the last key, and a restart.
        ("", plain.as_str(), "no host has a key"),
    ] {
        let config = configuration(folder.path(), target, "tls = \"required\"", more);
        let said = log_of_start(&config);
        assert!(said.iter().any(|line| line.contains(part)), "{part}: {said:#?}");
        assert!(said.last().is_some_and(|line| line.contains("(NVMe/TCP, TLS required)")), "{said:#?}");
        let config =
            configuration(folder.path(), &format!("strict = true\n{target}"), "tls = \"required\"", more);
        let part = part.split(" and is refused").next().unwrap();
        says(&["serve", "--config", &config], &[part]);
        let (_, said) = fails(&["serve", "--config", &config]);
        assert!(said.matches("cannot read the key file").count() <= 1, "said twice: {said}");
    }
}

#[test]
fn start_line_tells_the_memory_of_each_transport() {
    let folder = TempDir::new().unwrap();
    let line = |more: &str| log_of_start(&configuration(folder.path(), "", "", more)).pop().unwrap();
    let tcp = line("");
    assert!(tcp.contains("MiB of memory a worker") && tcp.contains("whatever the number of queues"), "{tcp}");
    assert!(!tcp.contains("I/O queues of"), "{tcp}");
    let both = line(&format!("[[listener]]\naddress = \"{ANY_PORT}\"\n"));
    assert!(
        both.contains("over iwarp ") && both.contains("I/O queues of 128 entries, each with 36 "),
        "{both}"
    );
    assert!(both.contains(", over NVMe/TCP "), "{both}");
}
