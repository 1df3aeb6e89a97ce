//! An attached disk: described, listed, written by nbdcopy, detached; and what it is identified as.

use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{Site, fails, json, random_file, succeeds};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SIZE: usize = 32 << 20;

/// For how long a disk whose server was killed may wait: the quiesce time and twice the keep alive time, and to spare.
const TAKEOVER_MAX: Duration = Duration::from_secs(90);

fn site(name: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    site.configure(&site.subsystem(&[site.disk("disk.img", SIZE as u64)])).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

/// Attaches the disk: what `attach` says of it.
fn attach(site: &Site) -> Value {
    let socket = site.path("disk.sock");
    let socket = socket.to_str().expect("a plain path");
    json(&mut site.call("attach", &["-n", &site.nqn, "--socket", socket, "-o", "json"]).expect("nvmf"))
        .expect("attached")
}

fn detach(site: &Site) {
    let said = succeeds(&mut site.local(&["detach", "-n", &site.nqn]).expect("nvmf")).expect("detached");
    assert!(said.starts_with("detached ") && said.contains(&site.nqn), "{said}");
}

/// What `list` says of this site's disk.
fn listed(site: &Site) -> Option<Value> {
    let list = json(&mut site.local(&["list", "-o", "json"]).expect("nvmf")).expect("a list");
    assert_eq!(list["version"], 1);
    let disks = list["disks"].as_array().expect("disks");
    disks.iter().find(|disk| disk["nqn"] == site.nqn.as_str()).cloned()
}

fn uri(disk: &Value) -> &str {
    disk["uri"].as_str().expect("a URI")
}

/// A program of others, which must end well.
fn tool(name: &str, arguments: &[&str]) -> String {
    // Those that make and check file systems are not in every user's path.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    succeeds(Command::new(name).args(arguments).env("PATH", path)).unwrap_or_else(|error| panic!("{error:#}"))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A file system with a file in it, in a file of `SIZE` bytes.
fn file_system(site: &Site) -> std::path::PathBuf {
    let (folder, image) = (site.path("content"), site.path("fs.img"));
    std::fs::create_dir(&folder).expect("a folder");
    random_file(&folder.join("random"), 5 << 20).expect("a file");
    std::fs::File::create(&image).and_then(|file| file.set_len(SIZE as u64)).expect("an image");
    tool("mkfs.ext4", &["-q", "-F", "-d", text(&folder), text(&image)]);
    image
}

#[test]
fn an_attached_disk_is_described_listed_and_detached() {
    let (site, target) = site("listed");
    assert_eq!(listed(&site), None);
    let disk = attach(&site);
    assert_eq!((&disk["nqn"], &disk["nsid"]), (&Value::from(site.nqn.as_str()), &Value::from(1)));
    assert_eq!((&disk["size"], &disk["block_size"]), (&Value::from(SIZE), &Value::from(4096)));
    assert_eq!(disk["address"], site.address.to_string());

    // How its paths are becomes known a moment later.
    let shown = listed(&site).expect("it is in the list");
    let but_paths = |disk: &Value| {
        let mut fields = disk.as_object().expect("an object").clone();
        fields.retain(|name, _| !["version", "paths"].contains(&name.as_str()));
        fields
    };
    assert_eq!(but_paths(&shown), but_paths(&disk), "the list says what attach said");
    let info: Value = serde_json::from_str(&tool("nbdinfo", &["--json", uri(&disk)])).expect("JSON");
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], SIZE);
    assert_eq!((&export["is_read_only"], &export["can_flush"]), (&Value::from(false), &Value::from(true)));
    assert_eq!((&export["can_fua"], &export["can_trim"]), (&Value::from(true), &Value::from(true)));
    assert_eq!(export["block_size_minimum"], 4096);

    detach(&site);
    assert_eq!(listed(&site), None);
    assert!(!site.path("disk.sock").exists(), "the socket is gone");
    fails(&mut site.local(&["detach", "-n", &site.nqn]).expect("nvmf"), &["no such disk is attached"])
        .expect("a clear message");
    target.stop().expect("a stop in order");
}

#[test]
fn a_file_system_goes_there_and_back_through_nbdcopy() {
    let (site, target) = site("nbdcopy");
    let image = file_system(&site);
    let disk = attach(&site);
    tool("nbdcopy", &["--flush", text(&image), uri(&disk)]);
    let back = site.path("back.img");
    tool("nbdcopy", &[uri(&disk), text(&back)]);
    let bytes = std::fs::read(&image).expect("the image");
    assert!(std::fs::read(&back).expect("the copy") == bytes, "what was written is read");
    tool("e2fsck", &["-fn", text(&back)]);
    detach(&site);
    target.stop().expect("a stop in order");
    assert!(std::fs::read(site.path("disk.img")).expect("the disk") == bytes, "it is on the target's disk");
    tool("e2fsck", &["-fn", text(&site.path("disk.img"))]);
}

#[test]
fn a_disk_whose_server_was_killed_goes_on() {
    let (site, target) = site("killed");
    let disk = attach(&site);
    tool("nbdcopy", &["--flush", text(&file_system(&site)), uri(&disk)]);
    let pid = u32::try_from(disk["pid"].as_u64().expect("a process")).expect("a process");
    process::signal(pid, "KILL").expect("it ran");
    let goes_on = || listed(&site).is_some_and(|now| now["state"] == "live" && now["pid"] != disk["pid"]);
    // At once where the target resets the old controller; without that, when it must have noticed the loss.
    process::until_within("another server has it", TAKEOVER_MAX, goes_on).expect("it has");
    let back = site.path("back.img");
    tool("nbdcopy", &[uri(&disk), text(&back)]);
    tool("e2fsck", &["-fn", text(&back)]);
    detach(&site);
    target.stop().expect("a stop in order");
}

#[test]
fn identify_prints_json_under_the_names_of_nvme_cli() {
    let (site, target) = site("identify");
    let id = |command| {
        json(&mut site.call(command, &["-n", &site.nqn, "-o", "json"]).expect("nvmf")).expect("JSON")
    };
    let (controller, namespace) = (id("id-ctrl"), id("id-ns"));
    assert_eq!(controller["subnqn"], site.nqn.as_str());
    assert_eq!((&controller["version"], &controller["cntrltype"]), (&Value::from(1), &Value::from(1)));
    assert_eq!((&controller["sqes"], &controller["cqes"]), (&Value::from(0x66), &Value::from(0x44)));
    assert_eq!(namespace["nsze"], SIZE / 4096);
    let format = namespace["flbas"].as_u64().expect("a number") as usize & 0xf;
    assert_eq!(namespace["lbafs"][format]["ds"], 12);
    target.stop().expect("a stop in order");
}
