//! Addresses of names, looked up again as long as a connection lives.

use core::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Where a target's address is read again before each reconnect: its name may lead elsewhere by then.
#[derive(Clone)]
pub struct AddressSource {
    read: Arc<dyn Fn() -> Option<SocketAddr> + Send + Sync>,
    name: Option<Arc<str>>,
}

/// A name's address, as it was found last.
#[derive(Default)]
struct Found {
    is_under_way: bool,
    address: Option<SocketAddr>,
}

impl AddressSource {
    /// Reads it with this, on the connection's thread: it must not block. `None` keeps the address that is known.
    pub fn new(read: impl Fn() -> Option<SocketAddr> + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), name: None }
    }

    /// Has this look up a name, on a thread of its own: it may block. What it finds is for the next attempt.
    pub fn of_name(name: &str, look_up: impl Fn() -> Option<SocketAddr> + Send + Sync + 'static) -> Self {
        let (look_up, found) = (Arc::new(look_up), Arc::new(Mutex::new(Found::default())));
        let read = move || {
            let (look_up, result) = (Arc::clone(&look_up), Arc::clone(&found));
            let mut last = found.lock().unwrap_or_else(PoisonError::into_inner);
            if !core::mem::replace(&mut last.is_under_way, true) {
                let body = move || {
                    let address = look_up();
                    let mut last = result.lock().unwrap_or_else(PoisonError::into_inner);
                    *last = Found { is_under_way: false, address: address.or(last.address) };
                };
                // Without a thread the next attempt tries again.
                last.is_under_way = std::thread::Builder::new().spawn(body).is_ok();
            }
            last.address
        };
        Self { name: Some(name.into()), ..Self::new(read) }
    }

    /// The name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn read(&self) -> Option<SocketAddr> {
        (self.read)()
    }
}

impl fmt::Debug for AddressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSource").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Whether an address is not known yet: it is the unspecified one, and somebody says later what it is.
pub(crate) fn is_unknown(address: SocketAddr, source: Option<&AddressSource>) -> bool {
    source.is_some() && address.ip().is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn name_is_looked_up_elsewhere_for_the_next_attempt() {
        let (tell, told) = channel::<Option<SocketAddr>>();
        let told = Mutex::new(told);
        let source = AddressSource::of_name("a", move || told.lock().unwrap().recv().unwrap());
        let here: SocketAddr = "192.0.2.1:4420".parse().unwrap();
        assert_eq!(source.read(), None, "nobody waits for it");
        tell.send(Some(here)).unwrap();
        while source.read().is_none() {
            std::thread::yield_now();
        }
        tell.send(None).unwrap();
        assert_eq!((source.read(), source.name()), (Some(here), Some("a")), "what was found last counts");
    }
}
