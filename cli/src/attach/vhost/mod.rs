//! A remote namespace as the disk of a virtual machine: vhost-user-blk, on a Unix socket.
//!
//! | file | what it does |
//! |---|---|
//! | `abi` | what a virtio block device tells its driver |
//! | `request` | what a request asks for: checked, and turned into operations |
//! | `chain` | the descriptors of a request |
//! | `transfer` | how its data go: straight, or by a copy |
//! | `inflight` | what is under way, for the next server |
//! | `guest` | the guest's memory: mapped, registered |
//! | `ring` | a virtqueue |
//! | `event` | what driver and device tell each other by |
//! | `flight` | a request under way |
//! | `server` | the thread that serves the rings |
//! | `frontend` | the thread that talks to QEMU |
//! | `notice` | telling QEMU that the disk has changed |
//!
//! A request's way: the driver puts it into a ring in the guest's memory, which is registered with the connection; the thread
//! that is kicked, or looks, sends the command, and the transport receives what is read into the guest's memory. QEMU has no part
//! in it.

mod abi;
mod chain;
mod event;
mod flight;
mod frontend;
mod guest;
mod inflight;
mod notice;
mod request;
mod ring;
mod server;
mod transfer;

use super::changes::{Changes, changes};
use super::control::{Control, End};
use super::nbd::{DiskInfo, Listener};
use super::remote::{END_TIME_MAX, Found, Origin, Remote, Wires, in_thread};
use super::seccomp;
use super::serve::{Place, Service};
use anyhow::{Context, Result, bail};
use frontend::Shared;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmf_host::Namespace;
use server::Server;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long accepting rests when the process has no descriptor left.
const REST: Duration = Duration::from_millis(100);

/// A disk that is served.
struct Up {
    found: Found,
    socket: PathBuf,
    shared: Arc<Shared>,
}

/// Connects, serves until it is told to stop, and ends cleanly.
pub(super) async fn serve(service: &mut Service<'_>) -> Result<()> {
    let origin = service.origin.clone();
    let (control, (up, is_up)) = (Arc::<Control>::default(), oneshot::channel());
    let (tell, told) = Changes::new(origin.before.as_ref());
    let wires = Wires { control: Arc::clone(&control), changes: tell, up };
    let mut ended = in_thread("nvmf-vhost", move || run(&origin, wires))?;
    let up = tokio::select! {
        biased;
        Ok(up) = is_up => up,
        ended = &mut ended => return ended?,
        () = service.stop.asked() => bail!("stopped before it was connected"),
    };
    let mut is_live = false;
    let lives = async {
        let place = Place { socket: Some(up.socket), vhost_user: true, ..Place::default() };
        service.place(&up.found, place)?;
        service.report().await?;
        is_live = true;
        let tell = async |news| up.shared.change(news);
        Ok(service.until_ended(&control, changes(told), tell).await)
    };
    let said = tokio::select! {
        said = lives => said,
        // It ends before it is asked to only when something is wrong.
        ended = &mut ended => return ended?,
    };
    let how = said.as_ref().copied().unwrap_or(End::InOrder);
    control.end(if is_live { how } else { End::AtOnce });
    let finished = timeout(END_TIME_MAX, ended).await.context("the disk's thread does not end")??;
    said.map(drop).and(finished)
}

/// The thread: connects to the namespace that is meant, and serves it until it is told to end.
fn run(origin: &Origin, wires: Wires<Up>) -> Result<()> {
    let (control, options) = (Arc::clone(&wires.control), &origin.options);
    let remote = Remote::open(origin, &wires.control, wires.changes)?;
    let found = remote.found.clone();
    let (send, messages) = channel();
    let shared = Arc::new(Shared::new(DiskInfo::from(&found.namespace), send, Arc::clone(&control)));
    let server = Server::new(remote, messages, control)?;
    let path = origin.socket(found.namespace.nsid)?;
    // Its path goes when the disk has ended: QEMU tries to connect until another server is there.
    let listener = Arc::new(origin.listen(&path)?);
    let (its_listener, its_shared) = (Arc::downgrade(&listener), Arc::clone(&shared));
    let incoming = listener.as_fd().try_clone_to_owned()?;
    // Nobody waits for it: it ends with the process.
    let its_options = options.clone();
    let _frontends = in_thread("nvmf-vhost-qemu", move || {
        seccomp::confine(&its_options, true);
        serve_frontends(&incoming, &its_listener, &its_shared);
        Ok(())
    })?;
    // Nobody hears: it is told to end.
    let _ = wires.up.send(Up { found, socket: path, shared });
    seccomp::confine(options, true);
    server.serve()
}

/// Serves frontends, one after the other, until the disk has ended. What there is too little of to serve one (descriptors, memory)
/// may be there later: QEMU waits, or connects again.
fn serve_frontends(incoming: &OwnedFd, listener: &Weak<Listener>, shared: &Arc<Shared>) {
    let mut is_logged = false;
    loop {
        let waited = poll(&mut [PollFd::new(incoming.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        let Some(listener) = listener.upgrade() else { return };
        let accepted = match waited {
            Ok(_) => listener.accept(),
            Err(Errno::EINTR) => continue,
            Err(errno) => Err(errno.into()),
        };
        drop(listener);
        let served = accepted.and_then(|stream| {
            let Some(stream) = stream else { return Ok(()) };
            stream.set_nonblocking(false)?;
            frontend::serve(shared, stream)
        });
        let Err(error) = served else {
            is_logged = false;
            continue;
        };
        if !std::mem::replace(&mut is_logged, true) {
            tracing::warn!(%error, "cannot accept a connection from QEMU, and tries again until it can");
        }
        std::thread::sleep(REST);
    }
}

/// What a guest is told of the disk's name: the first twenty digits of what the namespace is identified by.
fn id(namespace: &Namespace) -> [u8; abi::ID_LEN] {
    let names = [&namespace.uuid[..], &namespace.nguid, &namespace.eui64];
    let name = names.into_iter().find(|name| name.iter().any(|byte| *byte != 0));
    let digits: String = name.unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut id = [0; abi::ID_LEN];
    let len = digits.len().min(id.len());
    id[..len].copy_from_slice(&digits.as_bytes()[..len]);
    id
}
