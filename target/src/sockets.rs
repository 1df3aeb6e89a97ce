//! Listening sockets that outlive the process: systemd hands them over at the start, and keeps those that are opened.
//!
//! A host that connects while the target restarts finds a socket that listens: its connection waits there until the
//! next process accepts it. The sockets come from a socket unit (systemd.socket(5)), or are this target's own from
//! before the restart (`FileDescriptorStoreMax=` in the unit, sd_pid_notify_with_fds(3)). Outside of systemd there are
//! none, and none are kept.

use crate::limits::BACKLOG;
use crate::notify;
use listenfd::ListenFd;
use socket2::SockRef;
use std::io;
use std::net::{SocketAddr, TcpListener};

/// How the names of sockets begin that this target has systemd keep.
const OURS: &str = "listener-";

/// The sockets that were handed over and are not in use yet.
#[derive(Debug, Default)]
pub struct Sockets {
    handed_over: Vec<HandedOver>,
}

#[derive(Debug)]
struct HandedOver {
    socket: TcpListener,
    address: SocketAddr,
    /// What systemd calls it.
    name: String,
}

impl HandedOver {
    /// Whether it is this target's own, from before a restart; a socket unit's otherwise.
    fn is_ours(&self) -> bool {
        self.name.starts_with(OURS)
    }

    /// Nobody accepts its connections: hosts must be refused, not wait.
    fn let_go(self) {
        if self.is_ours() {
            notify::remove_stored(&self.name);
            tracing::info!("no longer listening on {}", self.address);
        } else {
            tracing::warn!(
                "systemd's socket on {} is not used: no [[listener]] over TCP has this address; hosts that connect \
                 to it wait in vain (ListenStream= of nvmf-target.socket)",
                self.address
            );
        }
    }
}

impl Sockets {
    /// Those that systemd passed to this process. To be called once, before there are other threads: it changes the
    /// environment.
    #[must_use]
    pub fn of_this_process() -> Self {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut passed = ListenFd::from_env();
        let mut handed_over = Vec::new();
        for at in 0..passed.len() {
            let name = names.next().unwrap_or_default().to_owned();
            let Ok(Some(socket)) = passed.take_tcp_listener(at) else { continue };
            match socket.local_addr() {
                Ok(address) if SockRef::from(&socket).is_listener().unwrap_or(false) => {
                    handed_over.push(HandedOver { socket, address, name });
                }
                _ => {}
            }
        }
        Self { handed_over }
    }

    /// Whether one for this address was handed over.
    #[must_use]
    pub fn have(&self, address: SocketAddr) -> bool {
        self.handed_over.iter().any(|it| it.address == address)
    }

    /// A socket that listens on an address, whose port may be 0: the one that was handed over, or a new one, which
    /// systemd is asked to keep.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn listen(&mut self, address: SocketAddr) -> io::Result<TcpListener> {
        if let Some(at) = self.handed_over.iter().position(|it| it.address == address) {
            return Ok(self.handed_over.swap_remove(at).socket);
        }
        let socket = nvmf_stream::listen(address, BACKLOG)?;
        notify::store(&socket, &name(socket.local_addr()?));
        Ok(socket)
    }

    /// Nobody listens on this address any more: hosts are refused, also while the target restarts.
    pub fn forget(address: SocketAddr) {
        notify::remove_stored(&name(address));
    }

    /// Lets go of those that are for no address of these.
    pub fn keep_only(&mut self, addresses: &[SocketAddr]) {
        let (kept, rest) = self.handed_over.drain(..).partition(|it| addresses.contains(&it.address));
        self.handed_over = kept;
        rest.into_iter().for_each(HandedOver::let_go);
    }
}

/// What systemd is to call the socket of an address: such a name has no colon.
fn name(address: SocketAddr) -> String {
    format!("{OURS}{address}").replace(':', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handed_over(name: &str) -> (Sockets, SocketAddr) {
        let socket = nvmf_stream::listen(([127, 0, 0, 1], 0).into(), 1).unwrap();
        let address = socket.local_addr().unwrap();
        let handed_over = vec![HandedOver { socket, address, name: name.to_owned() }];
        (Sockets { handed_over }, address)
    }

    #[test]
    fn address_is_served_by_the_socket_that_was_handed_over() {
        let (mut sockets, address) = handed_over("nvmf-target.socket");
        assert!(sockets.have(address));
        assert_eq!(sockets.listen(address).unwrap().local_addr().unwrap(), address);
        assert!(!sockets.have(address), "it is in use");
    }

    #[test]
    fn socket_of_no_listener_is_closed() {
        let (mut sockets, address) = handed_over(&name("127.0.0.1:4420".parse().unwrap()));
        sockets.keep_only(&[address]);
        assert!(sockets.have(address));
        sockets.keep_only(&[]);
        assert!(std::net::TcpStream::connect(address).is_err());
    }

    #[test]
    fn name_of_a_socket_is_one_that_systemd_takes() {
        assert_eq!(name("192.0.2.1:4420".parse().unwrap()), "listener-192.0.2.1-4420");
        assert_eq!(name("[2001:db8::1]:8009".parse().unwrap()), "listener-[2001-db8--1]-8009");
    }
}
