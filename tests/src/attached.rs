//! Attached disks of a site: attached and detached, and as `nvmf list` and the system show them and their processes.

use crate::process::{self, Target};
use crate::site::{Site, json};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes in the disk of [`site`].
pub const SIZE: u64 = 1 << 20;

/// A site, and its target with one disk.
///
/// # Panics
/// It does not start.
#[must_use]
pub fn site(name: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    site.configure(&site.subsystem(&[site.disk("disk.img", SIZE)])).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

/// A call of `attach` that gives a socket.
///
/// # Panics
/// `nvmf` was not built.
#[must_use]
pub fn attaching(site: &Site, more: &[&str]) -> Command {
    let arguments = [&["-n", site.nqn.as_str(), "--as", "socket", "-o", "json"], more].concat();
    site.call("attach", &arguments).expect("nvmf")
}

/// Attaches the disk: what `attach` says of it.
///
/// # Panics
/// It fails.
pub fn attach(site: &Site, more: &[&str]) -> Value {
    json(&mut attaching(site, more)).expect("attached")
}

/// A call of `detach`.
///
/// # Panics
/// `nvmf` was not built.
#[must_use]
pub fn detach(site: &Site, arguments: &[&str]) -> Command {
    site.local(&[&["detach"], arguments].concat()).expect("nvmf")
}

/// What `nvmf list` says of each.
///
/// # Panics
/// It fails.
#[must_use]
pub fn listed(site: &Site) -> Vec<Value> {
    let list = json(&mut site.local(&["list", "-o", "json"]).expect("nvmf")).expect("a list");
    list["disks"].as_array().expect("disks").clone()
}

/// The process that serves a disk; 0 while none does.
///
/// # Panics
/// It is no number.
#[must_use]
pub fn pid(disk: &Value) -> u32 {
    match &disk["pid"] {
        Value::Null => 0,
        pid => pid.as_u64().and_then(|pid| pid.try_into().ok()).expect("a process"),
    }
}

/// A disk's socket.
///
/// # Panics
/// It has none.
#[must_use]
pub fn socket(disk: &Value) -> &Path {
    Path::new(disk["socket"].as_str().expect("a socket"))
}

/// The state of the first disk; empty where there is none.
#[must_use]
pub fn state(site: &Site) -> String {
    listed(site).first().and_then(|disk| disk["state"].as_str().map(str::to_owned)).unwrap_or_default()
}

/// The states of a disk's paths.
#[must_use]
pub fn path_states(disk: &Value) -> Vec<String> {
    let paths = disk["paths"].as_array().cloned().unwrap_or_default();
    paths.iter().map(|path| path["state"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Whether a process has ended.
#[must_use]
pub fn is_gone(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let has_ended = stat.rsplit(')').next().is_none_or(|rest| {
        let rest = rest.trim_start();
        rest.is_empty() || rest.starts_with('Z')
    });
    // The first thread may end before the others, and with these what the process has open.
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    has_ended && threads() <= 1
}

/// The processes whose parent is this one.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_each = threads.map(|thread: std::fs::DirEntry| {
        let path: PathBuf = thread.path().join("children");
        std::fs::read_to_string(path).unwrap_or_default()
    });
    of_each.collect::<String>().split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Kills a disk's server and its guard, so that nobody starts another.
///
/// # Panics
/// They do not run, or do not end.
pub fn kill_with_guard(server: u32) {
    // Stopped, it starts no other guard.
    process::signal(server, "STOP").expect("it runs");
    let guards = children(server);
    assert_eq!(guards.len(), 1, "a server has a guard");
    process::signal(guards[0], "KILL").expect("it runs");
    process::until("the guard has ended", || is_gone(guards[0])).expect("it has");
    process::signal(server, "KILL").expect("it runs");
    process::until("the server has ended", || is_gone(server)).expect("it has");
}
