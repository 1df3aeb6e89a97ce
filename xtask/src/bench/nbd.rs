//! NBD servers as peers: nbdkit's memory plugin, and qemu-nbd with a memory disk.

use super::site::{Server, Site, free_address};
use crate::step;
use anyhow::Result;
use std::net::SocketAddr;

/// Size of the disk in bytes, the same as ours.
const SIZE: u64 = 64 << 20;

/// An NBD server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Nbdkit,
    QemuNbd,
}

impl Kind {
    pub(super) fn missing(self) -> Option<String> {
        let (program, package) = match self {
            Self::Nbdkit => ("nbdkit", "nbdkit"),
            Self::QemuNbd => ("qemu-nbd", "qemu-utils"),
        };
        (!step::on_path(program)).then(|| format!("not here: install {package}"))
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
        site.serve(&mut command, address)
    }

    /// Runs a server during a measurement, which gets its URI.
    pub(super) fn with<T>(self, site: &Site, measure: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        let address = free_address()?;
        let _server = self.serve(site, address)?;
        measure(&format!("nbd://{address}/"))
    }
}
