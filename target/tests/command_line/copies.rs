//! Disks that bear one UUID: copies that kept the attribute, beside their originals.

use super::{ANY_PORT, Running, configuration, image, says, serve, signal, target};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A file that has its UUID, and its copy. None where the file system has no attributes.
fn original_and_copy(folder: &TempDir) -> Option<(String, String)> {
    let path = image(folder, 1 << 20);
    let mut first = serve(&["serve", "--export", &path, "--listen", ANY_PORT]);
    signal(&first.0, nix::sys::signal::Signal::SIGTERM);
    assert!(first.0.wait().unwrap().success());
    let copy = folder.path().join("copy.img").to_str().unwrap().to_owned();
    assert!(Command::new("cp").args(["-a", &path, &copy]).status().unwrap().success());
    let has_attributes = Command::new("cp")
        .args(["--preserve=xattr", "--attributes-only", &path, &format!("{copy}.attributes")])
        .stderr(Stdio::null())
        .status();
    has_attributes.unwrap().success().then_some((path, copy))
}

/// The two as namespaces 1 and 2, with these lines of their own; namespace 3 is served whatever becomes of them.
fn both(folder: &Path, disks: &(String, String), lines: [&str; 2]) -> String {
    let (first, second) = disks;
    let second = format!("[[subsystem.namespace]]\nnsid = 2\npath = \"{second}\"\n{}", lines[1]);
    let third = "[[subsystem.namespace]]\nnsid = 3\nmemory = \"1MiB\"";
    configuration(folder, ANY_PORT, &format!("path = \"{first}\"\n{}{second}{third}", lines[0]))
}

/// What a start says until it listens.
fn start(config: &str) -> Vec<String> {
    let child = target(&["serve", "--config", config]).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child, String::new());
    let lines = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    lines.take_while(|line| !line.contains("listening on")).collect()
}

fn served(said: &[String]) -> Vec<u32> {
    let nsid = |nsid: &u32| {
        said.iter().any(|line| line.contains(&format!(" namespace {nsid}: ")) && line.contains("UUID"))
    };
    (1..=3).filter(nsid).collect()
}

#[test]
fn copy_and_original_are_both_refused_at_each_start() {
    let folder = TempDir::new().unwrap();
    let Some(disks) = original_and_copy(&folder) else { return };
    let config = both(folder.path(), &disks, ["", ""]);
    for _ in 0..8 {
        let said = start(&config);
        assert_eq!(served(&said), [3], "{said:#?}");
        for (nsid, other) in [(1, 2), (2, 1)] {
            let parts =
                [format!("not served: namespace {nsid} of"), format!("is that of namespace {other} of")];
            let refused = |line: &&String| parts.iter().all(|part| line.contains(part));
            let line = said.iter().find(refused).unwrap_or_else(|| panic!("{parts:?}: {said:#?}"));
            assert!(line.contains("neither is served") && line.contains("user.nvmf.uuid"), "{line}");
        }
    }
    says(&["check", &config], &["namespace 1 of", "namespace 2 of", "neither is served", "uuid ="]);
}

#[test]
fn copy_with_a_uuid_of_its_own_is_served_beside_its_original() {
    let folder = TempDir::new().unwrap();
    let Some(disks) = original_and_copy(&folder) else { return };
    let uuid = "uuid = \"c0ffee00-0000-4000-8000-000000000002\"\n";
    let config = both(folder.path(), &disks, ["", uuid]);
    assert!(target(&["check", "--quiet", &config]).output().unwrap().status.success());
    assert_eq!(served(&start(&config)), [1, 2, 3]);
}

#[test]
fn copy_that_a_reload_adds_is_refused_and_its_original_stays() {
    let folder = TempDir::new().unwrap();
    let Some(disks) = original_and_copy(&folder) else { return };
    let only = format!("path = \"{}\"\n[[subsystem.namespace]]\nnsid = 3\nmemory = \"1MiB\"", disks.0);
    let config = configuration(folder.path(), ANY_PORT, &only);
    let child = target(&["serve", "--config", &config]).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child, String::new());
    let mut lines = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let started: Vec<_> = lines.by_ref().take_while(|line| !line.contains("listening on")).collect();
    assert_eq!(served(&started), [1, 3], "{started:#?}");
    both(folder.path(), &disks, ["", ""]);
    signal(&running.0, nix::sys::signal::Signal::SIGHUP);
    let said: Vec<_> = lines.by_ref().take_while(|line| !line.contains("reloaded")).collect();
    assert_eq!(served(&said), [0; 0], "{said:#?}");
    let refused =
        |line: &&String| line.contains("not served: namespace 2 of") && line.contains("of namespace 1 of");
    let line = said.iter().find(refused).unwrap_or_else(|| panic!("{said:#?}"));
    assert!(!line.contains("neither"), "the original is served: {line}");
}
