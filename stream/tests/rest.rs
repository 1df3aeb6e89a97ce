//! Accepting when the process is out of descriptors. In a process of its own, whose limit it lowers.

use core::time::Duration;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvmf_stream::{Deadline, HalfOpenLimits, Listener, Poller, StreamConfig};
use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

#[test]
fn accept_rests_while_descriptors_are_short() {
    let mut poller = Poller::new().unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let (mut listener, address) =
        Listener::open(&poller, 3u64, address, 4, HalfOpenLimits::default()).unwrap();
    let peer = TcpStream::connect(address).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // The lowest that is free.
    let free = File::open("/dev/null").unwrap().as_raw_fd();
    setrlimit(Resource::RLIMIT_NOFILE, free as u64, hard).unwrap();
    let accepted = listener.accept(&StreamConfig::default(), &poller);
    let reported = poller.poll();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert!(accepted.is_none());
    assert_eq!(reported, 0, "the queue is not empty, and must not wake anybody");
    assert_eq!(listener.shortage.take().and_then(|error| error.raw_os_error()), Some(libc::EMFILE));
    let mut rest = listener.rest.expect("a rest");
    assert_eq!(rest.at(), Duration::ZERO, "its clock is started by who knows the time");
    rest.start(Duration::from_secs(5));
    assert!(matches!(rest, Deadline::At(time) if time > Duration::from_secs(5)));
    listener.resume(&poller);
    assert_eq!((poller.poll(), poller.ready(0).0, listener.rest), (1, 3, None));
    let stream = listener.accept(&StreamConfig::default(), &poller).expect("the connection that waited");
    assert_eq!(stream.peer_address().unwrap(), peer.local_addr().unwrap());
}
