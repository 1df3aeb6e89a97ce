//! `nvmf-target ctl disk`, on a target that runs.

use super::ctl::Controlled;
use std::os::unix::fs::{FileExt, MetadataExt};

#[test]
fn created_disk_can_be_served_and_cloned() {
    let controlled = Controlled::start();
    let at = |name: &str| controlled.folder().join(name).to_str().unwrap().to_owned();
    let (disk, full, clone) = (at("disk.img"), at("full.img"), at("clone.img"));
    let said = controlled.prints(&["disk", "create", &disk, "--size", "4MiB"]);
    assert!(said.contains("4194304 bytes, empty"), "{said}");
    assert_eq!(std::fs::metadata(&disk).unwrap().mode() & 0o777, 0o600);
    let said = controlled.prints(&["disk", "create", &full, "--size", "1MiB", "--preallocate", "-o", "json"]);
    assert!(said.contains("\"content\":\"preallocated\"") && said.contains("\"bytes\":1048576"), "{said}");
    assert!(std::fs::metadata(&full).unwrap().blocks() >= 2048);

    let file = std::fs::OpenOptions::new().write(true).open(&disk).unwrap();
    file.write_all_at(&[7; 4096], 1 << 20).unwrap();
    let added =
        controlled.prints(&["namespace", "add", "nqn.2026-11.com.example:disk1", &disk, "--read-only"]);
    assert!(added.contains("done"), "{added}");
    controlled.prints(&["disk", "clone", &disk, &clone, "--copy"]);
    assert!(std::fs::read(&disk).unwrap() == std::fs::read(&clone).unwrap());
    let log = controlled.log();
    assert!(log.contains("disk create") && log.contains("disk clone") && log.contains("clone.img"), "{log}");
}

#[test]
fn disk_that_cannot_be_made_is_refused_by_name() {
    let controlled = Controlled::start();
    let folder = controlled.folder().to_str().unwrap().to_owned();
    let at = |name: &str| format!("{folder}/{name}");
    let there = at("target.toml");
    for (arguments, part) in [
        (&["create", "disk.img", "--size", "1MiB"][..], "no absolute path"),
        (&["create", "/dev/shm/disk.img", "--size", "1MiB"], "not made below /dev"),
        (&["create", &there, "--size", "1MiB"], "target.toml exists"),
        (&["create", &at("disk.img"), "--size", "1 elephant"], "size"),
        (&["create", &at("disk.img"), "--size", "1000"], "multiple of 512"),
        (&["create", &at("none/disk.img"), "--size", "1MiB"], "none/disk.img"),
        (&["clone", &at("none.img"), &at("disk.img")], "none.img"),
        (&["clone", &folder, &at("disk.img")], "not a regular file"),
    ] {
        let output = controlled.ctl(&[&["disk"][..], arguments].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(part), "`{part}` is not in: {said}");
    }
    assert!(!controlled.folder().join("disk.img").exists());
}
