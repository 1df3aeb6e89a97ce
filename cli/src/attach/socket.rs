//! A remote namespace behind an NBD server: for whoever comes to its socket, or for the kernel's own client.
//!
//! One thread does it all: it reads requests, sends commands to the target, and answers.

use super::block_device::{announce_again, set_read_only};
use super::changes::{Change, Changes, News, changes};
use super::control::{Control, End};
use super::nbd::kernel::Kernel;
use super::nbd::{DiskInfo, Server};
use super::registry;
use super::remote::{AskedBy, END_TIME_MAX, FINISH_TIME_MAX, Found, Origin, Remote, Wires, in_thread};
use super::seccomp;
use super::serve::{Place, Service, node_opens};
use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long the kernel may take to write back what it holds when the disk is detached.
const WRITE_BACK_TIME_MAX: Duration = Duration::from_secs(15);

/// How long the requests of the kernel's client wait for another server when this one was killed.
const PATIENCE_MIN: Duration = Duration::from_secs(60);
const PATIENCE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long the kernel's client may take to see that the socket of a server that was killed is dead.
const TAKE_OVER_TIME_MAX: Duration = Duration::from_secs(10);
const TAKE_OVER_POLL: Duration = Duration::from_millis(10);

/// Who is served.
enum Clients {
    /// Whoever comes to the socket.
    Socket,
    /// The kernel, on the other end of this one. It is said when it is gone.
    Kernel(UnixStream, oneshot::Sender<()>),
}

/// A disk that is served.
#[derive(Debug)]
struct Up {
    found: Found,
    socket: Option<PathBuf>,
}

/// The thread of a disk, as others see it.
struct Thread {
    control: Arc<Control>,
    changes: watch::Receiver<Change>,
    /// How it ended.
    ended: oneshot::Receiver<Result<()>>,
}

/// Serves whoever comes to the socket. `note` says why there is no more than a socket, where more was wanted.
pub(super) async fn serve(service: &mut Service<'_>, note: Option<String>) -> Result<()> {
    let (mut thread, up) = start(service, Clients::Socket).await?;
    let mut is_live = false;
    let lives = async {
        let place = Place { socket: up.socket, note, ..Place::default() };
        service.place(&up.found, place)?;
        service.report().await?;
        is_live = true;
        // Its clients are told by the thread, when they connect.
        let tell = async |_| Ok(());
        Ok(service.until_ended(&thread.control, changes(thread.changes.clone()), tell).await)
    };
    let said = tokio::select! {
        said = lives => said,
        // It ends before it is asked to only when something is wrong.
        ended = &mut thread.ended => return ended?,
    };
    let how = said.as_ref().copied().unwrap_or(End::InOrder);
    let ended = thread.end(if is_live { how } else { End::AtOnce }).await;
    said.map(drop).and(ended)
}

/// Gives the kernel's client a socket to this process, and with it the machine a `/dev/nbdN`.
///
/// One socket, however many I/O queues there are: their requests travel side by side on it. With several the kernel
/// takes a socket whose requests wait for a target for dead, fails them or sends them again on another, and they are
/// carried out here all the same when the target is back.
pub(super) async fn serve_device(service: &mut Service<'_>) -> Result<()> {
    let (ours, its) = UnixStream::pair()?;
    let (gone, is_gone) = oneshot::channel();
    let owner = registry::owner(service.origin.mark);
    let its_owner = owner.clone();
    let (mut thread, up, node) = match service.origin.before.as_ref().and_then(|before| before.device.clone())
    {
        Some(node) => {
            let its_node = node.clone();
            let ours = spawn_blocking(move || take_over(&its_node, &its_owner)).await??;
            let (thread, up) = start(service, Clients::Kernel(ours, gone)).await?;
            (thread, up, node)
        }
        None => {
            let (thread, up) = start(service, Clients::Kernel(ours, gone)).await?;
            let info = DiskInfo::from(&up.found.namespace);
            let patience = service.origin.options.connection.ctrl_loss_timeout;
            let patience = patience.unwrap_or(PATIENCE_MAX).clamp(PATIENCE_MIN, PATIENCE_MAX);
            let made =
                spawn_blocking(move || Kernel::open()?.connect(&info, its.as_fd(), &its_owner, patience));
            let node = made.await??;
            (thread, up, node)
        }
    };
    let place = Place { device: Some(node.clone()), ..Place::default() };
    let takes_over = service.origin.before.is_some();
    let lives = async {
        service.place(&up.found, place)?;
        if !takes_over {
            // It came before it was written down whose it is.
            announce_again(&node);
            tokio::select! {
                opens = node_opens(&node) => opens?,
                () = service.stop.asked() => bail!("stopped before the disk was attached"),
            }
        }
        service.report().await?;
        let tell = async |news| {
            let (node, owner) = (node.clone(), owner.clone());
            let tell = move || match news {
                News::Size(bytes) => Kernel::open()?.resize(&node, bytes, &owner),
                // Of the flags it takes at the start it takes none later.
                News::ReadOnly(read_only) => set_read_only(&node, read_only),
            };
            spawn_blocking(tell).await?
        };
        Ok(service.until_ended(&thread.control, changes(thread.changes.clone()), tell).await)
    };
    let said = tokio::select! {
        said = lives => said,
        // The kernel has failed what it waited for. The connection ends without it, so that nothing of it is done
        // later.
        Ok(()) = is_gone => {
            let _ = thread.end(End::AtOnce).await;
            bail!("the kernel's nbd client is gone: its device was disconnected")
        }
        ended = &mut thread.ended => return ended?,
    };
    if let Ok(End::HandOver) = said {
        return thread.end(End::HandOver).await;
    }
    let (how, ended) = take_away(node).await;
    let finished = thread.end(how).await;
    said.map(drop).and(ended).and(finished)
}

/// Gives the kernel's client another socket in place of that of a server that was killed: the other end of it. The kernel takes
/// it once it has seen the end of the old one.
fn take_over(node: &Path, owner: &str) -> Result<UnixStream> {
    let deadline = Instant::now() + TAKE_OVER_TIME_MAX;
    loop {
        let (ours, its) = UnixStream::pair()?;
        Kernel::open()?.reconnect(node, its.as_fd(), owner)?;
        drop(its);
        // What the kernel does not take has nobody on its other end now.
        let mut watched = [PollFd::new(ours.as_fd(), PollFlags::empty())];
        poll(&mut watched, PollTimeout::ZERO)?;
        if !watched[0].revents().is_some_and(|found| found.contains(PollFlags::POLLHUP)) {
            return Ok(ours);
        }
        ensure!(
            Instant::now() < deadline,
            "the kernel's nbd client does not give up the socket of {}",
            node.display()
        );
        std::thread::sleep(TAKE_OVER_POLL);
    }
}

/// Writes back what the kernel still holds of the disk, and takes it away. Where the target was waited for in vain, the
/// thread is not to wait for it again.
async fn take_away(node: PathBuf) -> (End, Result<()>) {
    let held = node.clone();
    let written = timeout(WRITE_BACK_TIME_MAX, spawn_blocking(|| File::open(held)?.sync_all())).await;
    let how = if written.is_ok() { End::InOrder } else { End::AtOnce };
    let gone = spawn_blocking(move || Kernel::open()?.disconnect(&node)).await;
    let all = || {
        gone??;
        written
            .context("the target does not answer: what it was not sent is lost")??
            .context("the kernel could not write back all that it held: it is lost")
    };
    (how, all())
}

/// Starts the thread, and waits until it serves.
async fn start(service: &mut Service<'_>, clients: Clients) -> Result<(Thread, Up)> {
    let origin = service.origin.clone();
    let (control, (up, is_up)) = (Arc::<Control>::default(), oneshot::channel());
    let (tell, changes) = Changes::new(origin.before.as_ref());
    let wires = Wires { control: Arc::clone(&control), changes: tell, up };
    let mut ended = in_thread("nvmf-nbd", move || run(&origin, clients, wires))?;
    tokio::select! {
        biased;
        Ok(up) = is_up => Ok((Thread { control, changes, ended }, up)),
        ended = &mut ended => Err(ended?.err().unwrap_or_else(|| anyhow!("the disk's thread has ended"))),
        () = service.stop.asked() => bail!("stopped before it was connected"),
    }
}

impl Thread {
    /// Has it end, and waits for that.
    async fn end(&mut self, how: End) -> Result<()> {
        self.control.end(how);
        timeout(END_TIME_MAX, &mut self.ended).await.context("the disk's thread does not end")??
    }
}

/// The thread: connects to the namespace that is meant, and serves it until it is told to end.
fn run(origin: &Origin, clients: Clients, wires: Wires<Up>) -> Result<()> {
    let (control, options) = (Arc::clone(&wires.control), &origin.options);
    let mut remote = Remote::open(origin, &wires.control, wires.changes)?;
    let disk =
        DiskInfo { block_status: options.socket.block_status, ..DiskInfo::from(&remote.found.namespace) };
    let mut server = Server::new(disk, remote.device())?;
    let (mut socket, mut gone) = (None, None);
    match clients {
        Clients::Kernel(stream, tell) => {
            server.add(stream)?;
            gone = Some(tell);
        }
        Clients::Socket => {
            let path = origin.socket(remote.found.namespace.nsid)?;
            server.listen(origin.listen(&path)?)?;
            socket = Some(path);
        }
    }
    let up = Up { found: remote.found.clone(), socket };
    // Nobody hears: it is told to end.
    let _ = wires.up.send(up);
    seccomp::confine(options, true);
    let start = Instant::now();
    let mut end_by = None;
    let until = loop {
        let now = start.elapsed();
        match control.asked() {
            End::NotYet => {}
            End::InOrder | End::HandOver if end_by.is_none() => {
                server.close();
                end_by = Some(now + FINISH_TIME_MAX);
            }
            End::InOrder | End::HandOver => {}
            End::AtOnce => {
                drop(server);
                remote.close();
                return Ok(());
            }
        }
        if let Some(at) = end_by
            && (server.is_empty() || at <= now)
        {
            break start + at;
        }
        let disk = remote.properties();
        server.change(disk.bytes, disk.read_only);
        let worked = server.turn(now, &mut remote.backend);
        control.counters().set_clients(server.clients());
        if server.is_deserted()
            && let Some(gone) = gone.take()
        {
            let _ = gone.send(());
        }
        if remote.may_sleep(worked, AskedBy::Clients) {
            let until = [server.poll_timeout(), end_by].into_iter().flatten().min();
            let most = until.map_or(Duration::MAX, |at| at.saturating_sub(now));
            remote.sleep(most, server.arm());
        }
    };
    let nothing_is_under_way = server.is_empty();
    drop(server);
    if control.asked() == End::HandOver {
        remote.hand_over(nothing_is_under_way);
        return Ok(());
    }
    remote.finish(until)
}
