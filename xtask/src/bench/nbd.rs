//! NBD servers as peers: nbdkit's memory plugin, and qemu-nbd with a memory disk; and a disk of ours on an NBD socket.

use super::ours::{self, Export, Polling};
use super::site::{Server, Site, free_address};
use super::transport::Transport;
use crate::step;
use anyhow::Result;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

/// Size of the disk in bytes, the same as ours.
const SIZE: u64 = 64 << 20;
/// Size of a disk on a socket in bytes: one copy of it takes long, compared with the start of the program that copies.
pub(super) const SOCKET_SIZE: u64 = 256 << 20;

/// An NBD server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Nbdkit,
    QemuNbd,
}

impl Kind {
    pub(super) fn missing(self) -> Option<String> {
        match self {
            Self::Nbdkit => missing("nbdkit", "nbdkit"),
            Self::QemuNbd => missing("qemu-nbd", "qemu-utils"),
        }
    }

    fn serve(self, site: &Site, address: SocketAddr) -> Result<Server> {
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let core = site.cores.target;
        let mut command = match self {
            Self::Nbdkit => {
                let mut command = site.on(core, "nbdkit");
                command.args(["--foreground", "--exit-with-parent", "--ipaddr", &host, "--port", &port]);
                command.args(["memory", &SIZE.to_string()]);
                command
            }
            Self::QemuNbd => {
                let mut command = site.on(core, "qemu-nbd");
                command.args(["--persistent", "--bind", &host, "--port", &port, "--shared=8"]);
                command.args(["--image-opts", &format!("driver=null-co,size={SIZE},read-zeroes=on")]);
                command
            }
        };
        site.serve(&mut command, || TcpStream::connect(address).is_ok())
    }

    /// Runs a server during a measurement, which gets its URI.
    pub(super) fn with<T>(self, site: &Site, measure: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        let address = free_address()?;
        let _server = self.serve(site, address)?;
        measure(&format!("nbd://{address}/"))
    }
}

/// What to install, if the program is not there.
pub(super) fn missing(program: &str, package: &str) -> Option<String> {
    (!step::on_path(program)).then(|| format!("not here: install {package}"))
}

/// Serves a memory disk on a Unix socket with nbdkit during a measurement, which gets its URI. Every process may use
/// both cores.
pub(super) fn with_nbdkit_socket<T>(site: &Site, measure: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    let socket = site.folder.join("nbdkit.sock");
    let mut command = site.on_both("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
    command.args(["memory", &SOCKET_SIZE.to_string()]);
    with_socket(site, &mut command, &socket, measure)
}

/// Attaches a memory disk of our target on a Unix socket, with the defaults, during a measurement, which gets its URI.
/// Every process may use both cores.
pub(super) fn with_attached_disk<T>(site: &Site, measure: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    let namespace = format!("memory = \"{}MiB\"", SOCKET_SIZE >> 20);
    let export = Export { namespace, ..Export::memory(Transport::Iwarp, Polling::Default) };
    let target = ours::serve_on_both(site, &export)?;
    let socket = site.folder.join("attached.sock");
    let (host, port) = (target.address.ip().to_string(), target.address.port().to_string());
    let mut command = site.on_both(site.ours("nvmf"));
    command.args(["attach", "--foreground", "-t", "rdma", "--provider", "iwarp", "-a", &host, "-s", &port]);
    command.args(["-n", ours::NQN, "--as", "socket", "--socket"]).arg(&socket);
    command.env("NVMF_RUNTIME_DIR", site.folder.join("attached"));
    let result = with_socket(site, &mut command, &socket, measure)?;
    target.stop()?;
    Ok(result)
}

/// Runs a server on a socket during a measurement, after every block of its disk was written.
fn with_socket<T>(
    site: &Site,
    command: &mut Command,
    socket: &Path,
    measure: impl FnOnce(&str) -> Result<T>,
) -> Result<T> {
    // Left by a run that was killed.
    let _ = std::fs::remove_file(socket);
    let server = site.serve(command, || UnixStream::connect(socket).is_ok())?;
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    ours::fill_nbd(site, &uri)?;
    let result = measure(&uri)?;
    drop(server);
    let _ = std::fs::remove_file(socket);
    Ok(result)
}
