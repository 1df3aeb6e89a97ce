//! Who uses a block device.

use std::fmt;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A user of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum User {
    /// The kernel: a file system, swap, another device.
    Kernel(String),
    /// A process that has it open.
    Process(String),
}

impl User {
    /// Whether it may be gone in a moment: udev opens a device whenever it changes.
    pub(super) fn comes_and_goes(&self) -> bool {
        matches!(self, Self::Process(_))
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Kernel(what) | Self::Process(what)) = self;
        f.write_str(what)
    }
}

/// Who uses the device at `node`, or a partition of it; none when it can be detached. The
/// process `server` serves it, and does not count.
pub(super) fn users(node: &Path, server: u32) -> Vec<User> {
    let mut users: Vec<_> = in_kernel(node).into_iter().map(User::Kernel).collect();
    users.extend(openers(&with_partitions(node), server).into_iter().map(User::Process));
    users
}

/// What the kernel uses the device for, or a partition of it, in words.
pub(super) fn in_kernel(node: &Path) -> Vec<String> {
    let nodes = with_partitions(node);
    let mut users = mounts(&nodes);
    users.extend(swaps(&nodes));
    users.extend(holders(&nodes));
    if users.is_empty() && is_claimed(node) {
        users.push("the kernel (mounted in another mount namespace?)".to_owned());
    }
    users
}

/// Its node, and those of its partitions.
fn with_partitions(node: &Path) -> Vec<PathBuf> {
    let mut nodes = vec![node.to_owned()];
    let Some(name) = name(node) else { return nodes };
    let entries = fs::read_dir(format!("/sys/class/block/{name}")).into_iter().flatten().flatten();
    let is_partition = |entry: &fs::DirEntry| entry.path().join("partition").exists();
    nodes.extend(entries.filter(is_partition).map(|entry| Path::new("/dev").join(entry.file_name())));
    nodes
}

fn name(node: &Path) -> Option<&str> {
    node.file_name()?.to_str()
}

/// The numbers of a device, as the kernel writes them: `major:minor`.
fn numbers(node: &Path) -> Option<String> {
    let text = fs::read_to_string(format!("/sys/class/block/{}/dev", name(node)?)).ok()?;
    Some(text.trim_end().to_owned())
}

fn mounts(nodes: &[PathBuf]) -> Vec<String> {
    let numbers: Vec<_> = nodes.iter().filter_map(|node| numbers(node)).collect();
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(|line| mounted(line, nodes, &numbers)).collect()
}

/// Where a line of mountinfo says that one of these devices is mounted.
fn mounted(line: &str, nodes: &[PathBuf], numbers: &[String]) -> Option<String> {
    let (fields, source) = line.split_once(" - ")?;
    let fields: Vec<_> = fields.split(' ').collect();
    let (number, place) = (*fields.get(2)?, *fields.get(4)?);
    // Some file systems have a device number of their own, but name their device.
    let source = source.split(' ').nth(1)?;
    let ours =
        numbers.iter().any(|ours| ours == number) || nodes.iter().any(|node| node == Path::new(source));
    ours.then(|| format!("mounted on {}", unescape(place)))
}

/// A path as the kernel writes it into its tables, with `\040` for a space.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn swaps(nodes: &[PathBuf]) -> Vec<String> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let swaps = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let ours = swaps.filter(|swap| nodes.iter().any(|node| node == Path::new(&unescape(swap))));
    ours.map(|swap| format!("swap on {swap}")).collect()
}

/// Devices on top of it: device mapper's, RAID's.
fn holders(nodes: &[PathBuf]) -> Vec<String> {
    let names = nodes.iter().filter_map(|node| name(node));
    let folders = names.filter_map(|name| fs::read_dir(format!("/sys/class/block/{name}/holders")).ok());
    folders
        .flatten()
        .flatten()
        .map(|entry| format!("part of {}", entry.file_name().to_string_lossy()))
        .collect()
}

/// Processes that have it open.
fn openers(nodes: &[PathBuf], server: u32) -> Vec<String> {
    let mut openers = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let opens = |file: fs::DirEntry| fs::read_link(file.path()).is_ok_and(|path| nodes.contains(&path));
        if pid != server && files.into_iter().any(opens) {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            openers.push(format!("open in {} (process {pid})", command.trim_end()));
        }
    }
    openers
}

/// Whether the kernel has it open exclusively.
fn is_claimed(node: &Path) -> bool {
    let opened = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_EXCL).open(node);
    opened.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_is_found_by_number_or_name() {
        let nodes = [PathBuf::from("/dev/ublkb0"), PathBuf::from("/dev/ublkb0p1")];
        let numbers = ["259:0".to_owned(), "259:1".to_owned()];
        let line = "36 35 259:1 / /mnt/a\\040b rw,noatime master:1 - ext4 /dev/root rw";
        assert_eq!(mounted(line, &nodes, &numbers).as_deref(), Some("mounted on /mnt/a b"));
        let line = "36 35 0:52 / /mnt rw - btrfs /dev/ublkb0 rw";
        assert_eq!(mounted(line, &nodes, &numbers).as_deref(), Some("mounted on /mnt"));
        let line = "36 35 259:10 / /mnt rw - ext4 /dev/ublkb01 rw";
        assert_eq!(mounted(line, &nodes, &numbers), None);
        assert_eq!(mounted("", &nodes, &numbers), None);
    }

    #[test]
    fn process_that_has_it_open_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let this = std::process::id();
        let path = file.path().canonicalize().unwrap();
        assert!(
            openers(std::slice::from_ref(&path), 0)
                .iter()
                .any(|said| said.contains(&format!("process {this}")))
        );
        assert!(openers(&[path], this).is_empty());
    }
}
