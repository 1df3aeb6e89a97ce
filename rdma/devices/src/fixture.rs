//! Machines that were written down, for tests: a text becomes a tree of files.
//!
//! A line is `PATH = TEXT` (a file), `PATH -> TARGET` (a symbolic link) or `@ NETDEV ADDRESS` (an IP address); `#`
//! begins a comment.

use crate::InterfaceAddress;
use std::io;
use std::path::Path;

/// A `ConnectX` with one RoCE port on `ens1np0`, and one whose cable is out.
pub const MLX5: &str = include_str!("../fixtures/mlx5.txt");
/// Soft-RoCE and Soft-iWARP on `eth0`, as Linux 6.12 shows them.
pub const SOFTWARE: &str = include_str!("../fixtures/software.txt");
/// An InfiniBand port with IP over InfiniBand.
pub const INFINIBAND: &str = include_str!("../fixtures/infiniband.txt");
/// No RDMA at all.
pub const NONE: &str = include_str!("../fixtures/none.txt");

/// Makes the files below `root`; gives the addresses.
///
/// # Errors
/// When the files cannot be made or a line is not in the form.
pub fn plant(text: &str, root: &Path) -> io::Result<Vec<InterfaceAddress>> {
    let mut addresses = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("not a line of a fixture: {line}"));
        if let Some(rest) = line.strip_prefix("@ ") {
            let (netdev, address) = rest.split_once(' ').ok_or_else(wrong)?;
            let address = address.trim().parse().map_err(|_| wrong())?;
            addresses.push(InterfaceAddress { netdev: netdev.to_owned(), address });
        } else if let Some((path, target)) = line.split_once(" -> ") {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().ok_or_else(wrong)?)?;
            std::os::unix::fs::symlink(target, path)?;
        } else {
            let (path, content) = line.split_once(" = ").ok_or_else(wrong)?;
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().ok_or_else(wrong)?)?;
            std::fs::write(path, format!("{}\n", content.replace("\\n", "\n")))?;
        }
    }
    Ok(addresses)
}
