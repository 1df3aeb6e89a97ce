//! What this machine has: its name, its addresses, what is mounted, what systemd hides.

use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, sockopt};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// The user that the unit runs the target as (deploy/nvmf-target.service).
const SERVICE_USER: &str = "nvmf";

/// Whether the address is one that this machine can listen on.
#[must_use]
pub fn has_address(ip: IpAddr) -> bool {
    Addresses::read().is_ok_and(|addresses| addresses.obstacle(ip) != Some(Obstacle::Gone))
}

/// Why nobody comes to an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// It is none of this machine.
    Gone,
    /// This link, which has it, is down.
    LinkDown(String),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the address is no longer one of this machine (ip address)"),
            Self::LinkDown(link) => write!(f, "the link {link} of its address is down (ip link)"),
        }
    }
}

/// The addresses of this machine, as they were when they were read.
#[derive(Debug)]
pub struct Addresses(Vec<Address>);

#[derive(Debug)]
struct Address {
    ip: IpAddr,
    link: String,
    /// What the kernel does not know the state of, such as loopback and tunnels, is.
    is_link_up: bool,
}

impl Addresses {
    /// Reads them.
    ///
    /// # Errors
    /// What the system said.
    pub fn read() -> io::Result<Self> {
        let address = |interface: nix::ifaddrs::InterfaceAddress| {
            let storage = interface.address?;
            let v4 = storage.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            let ip = v4.or_else(|| storage.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
            let wanted = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
            Some(Address { ip, link: interface.interface_name, is_link_up: interface.flags.contains(wanted) })
        };
        Ok(Self(nix::ifaddrs::getifaddrs()?.filter_map(address).collect()))
    }

    /// Why nobody comes to an address, as far as this machine knows.
    #[must_use]
    pub fn obstacle(&self, ip: IpAddr) -> Option<Obstacle> {
        // All of 127.0.0.0/8 is this machine, whatever the interface lists.
        if ip.is_unspecified() || ip.is_loopback() {
            return None;
        }
        let ip = ip.to_canonical();
        let mut links = self.0.iter().filter(|address| address.ip == ip).peekable();
        let Some(first) = links.peek() else {
            // What is local by a route of its own, or may be listened on all the same (ip_nonlocal_bind), is in no list.
            let error = try_address(SocketAddr::new(ip, 0)).err()?;
            return (error.kind() == io::ErrorKind::AddrNotAvailable).then_some(Obstacle::Gone);
        };
        let link = first.link.clone();
        links.all(|address| !address.is_link_up).then_some(Obstacle::LinkDown(link))
    }
}

/// Bytes of memory that this process has, as the kernel counts them.
#[must_use]
pub fn resident_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * nvmf_memory::PAGE as u64
}

/// Whether the address is one of this machine, and nobody listens on its TCP port.
///
/// # Errors
/// Why not.
pub fn try_address(address: SocketAddr) -> io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    socket::setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    if address.is_ipv6() {
        socket::setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    Ok(socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?)
}

/// Where the block device of this number is mounted, if it is.
#[must_use]
pub fn mount_point(device: u64) -> Option<PathBuf> {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    mount_point_in(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, &format!("{major}:{minor}"))
}

/// proc_pid_mountinfo(5): the third field is the device, the fifth where it is mounted.
fn mount_point_in(mountinfo: &str, device: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split(' ');
        (fields.nth(2)? == device).then_some(())?;
        fields.nth(1).map(PathBuf::from)
    })
}

/// What to add to a message about a path, when systemd started this process and its unit may be why the path cannot
/// be had.
#[must_use]
pub fn sandbox_hint(path: &Path) -> Option<&'static str> {
    std::env::var_os("INVOCATION_ID")?;
    hint(path)
}

/// The same where the unit's user looks at the path without being in the unit: `sudo -u nvmf nvmf-target check`.
#[must_use]
pub fn service_hint(path: &Path, user: &str) -> Option<&'static str> {
    sandbox_hint(path).or_else(|| if user == SERVICE_USER { hint(path) } else { None })
}

fn hint(path: &Path) -> Option<&'static str> {
    let hidden = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];
    if hidden.iter().any(|folder| path.starts_with(folder)) {
        return Some(
            "the unit hides /home, /root, /tmp and /var/tmp from the service: move the file below /srv",
        );
    }
    let open = ["/srv", "/dev", "/var/lib/nvmf"];
    (!open.iter().any(|folder| path.starts_with(folder))).then_some(
        "to the service, what lies outside /srv and /dev is read-only, unless the unit says otherwise: \
         `systemctl edit nvmf-target`, [Service], ReadWritePaths=",
    )
}

/// What tells this machine from others, over restarts: its machine ID (machine-id(5)), else its host name.
#[must_use]
pub fn name() -> String {
    ["/etc/machine-id", "/proc/sys/kernel/hostname"].into_iter().find_map(name_in).unwrap_or_default()
}

/// The machine ID is "uninitialized" before the first boot, and empty in some images.
fn name_in(file: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let name = text.trim();
    (!name.is_empty() && name != "uninitialized").then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_without_an_id_has_its_host_name() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("machine-id");
        let name_of = |text: &str| {
            std::fs::write(&file, text).unwrap();
            name_in(file.to_str().unwrap())
        };
        assert_eq!(name_of("").or_else(|| name_of("uninitialized\n")), None);
        assert_eq!(name_of("0123456789abcdef\n").as_deref(), Some("0123456789abcdef"));
        assert_eq!((name_in("/nonexistent"), name().is_empty()), (None, false));
    }

    #[test]
    fn mounted_device_is_found_by_number() {
        let text = "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n\
                    36 22 8:1 /sub /mnt/data rw - ext4 /dev/sda1 rw\n";
        assert_eq!(mount_point_in(text, "8:1"), Some("/mnt/data".into()));
        assert_eq!(mount_point_in(text, "8:16"), None);
    }

    #[test]
    fn hidden_and_read_only_paths_have_hints() {
        assert!(hint(Path::new("/home/d.img")).unwrap().contains("hides"));
        assert!(hint(Path::new("/mnt/d.img")).unwrap().contains("ReadWritePaths"));
        assert_eq!(hint(Path::new("/srv/d.img")), None);
        assert_eq!(hint(Path::new("/dev/sda")), None);
        assert!(service_hint(Path::new("/tmp/d.img"), "nvmf").unwrap().contains("hides"));
        assert!(service_hint(Path::new("/opt/d.img"), "nvmf").unwrap().contains("read-only"));
        assert_eq!(service_hint(Path::new("/srv/d.img"), "nvmf"), None);
    }

    #[test]
    fn loopback_and_wildcards_are_local() {
        assert!(has_address([127, 0, 0, 1].into()) && has_address([0, 0, 0, 0].into()));
        assert!(!has_address([192, 0, 2, 1].into()), "that network is for documentation");
    }

    #[test]
    fn address_that_is_gone_or_has_only_links_that_are_down_has_an_obstacle() {
        let address = |host, link: &str, is_link_up| Address {
            ip: [192, 0, 2, host].into(),
            link: link.to_owned(),
            is_link_up,
        };
        let all = [address(1, "eth0", true), address(2, "eth1", false), address(3, "eth1", false)];
        let addresses = Addresses(all.into_iter().chain([address(3, "eth2", true)]).collect());
        let of = |host| addresses.obstacle([192, 0, 2, host].into());
        assert_eq!((of(1), of(3), of(4)), (None, None, Some(Obstacle::Gone)));
        assert_eq!(of(2), Some(Obstacle::LinkDown("eth1".to_owned())));
        assert_eq!(addresses.obstacle("::ffff:192.0.2.1".parse().unwrap()), None, "as the interface has it");
        assert_eq!(addresses.obstacle("::".parse().unwrap()), None);
    }
}
