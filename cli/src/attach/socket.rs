//! A remote namespace behind an NBD server: for whoever comes to its socket, or for the kernel's own client.
//!
//! One thread does it all: it reads requests, sends commands to the target, and answers.

use super::AttachOptions;
use super::guard;
use super::nbd::kernel::Kernel;
use super::nbd::{DiskInfo, Listener, Server};
use super::registry::{self, Registry};
use super::remote::{self, Control, END_TIME_MAX, End, FINISH_TIME_MAX, Remote, Wires, changes, in_thread};
use super::serve::{Place, Service, node_opens};
use crate::connect::Via;
use anyhow::{Context, Result, anyhow, bail};
use nvmf_host::Namespace;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long the kernel may take to write back what it holds when the disk is detached.
const WRITE_BACK_TIME_MAX: Duration = Duration::from_secs(15);

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
    namespace: Namespace,
    via: Via,
    choice: Option<String>,
    socket: Option<PathBuf>,
}

/// The thread of a disk, as others see it.
struct Thread {
    control: Arc<Control>,
    changes: watch::Receiver<super::serve::Change>,
    /// How it ended.
    ended: oneshot::Receiver<Result<()>>,
}

/// Serves whoever comes to the socket. `note` says why there is no more than a socket, where more was wanted.
pub(super) async fn serve(mut service: Service<'_>, note: Option<String>) -> Result<()> {
    let (mut thread, up) = start(&mut service, Clients::Socket).await?;
    let mut is_live = false;
    let lives = async {
        let place =
            Place { device: None, socket: up.socket, notes: note.into_iter().chain(up.choice).collect() };
        service.place(&up.namespace, &up.via, place)?;
        service.report().await?;
        is_live = true;
        service.until_ended(changes(thread.changes.clone())).await;
        Ok(())
    };
    let said = tokio::select! {
        said = lives => said,
        // It ends before it is asked to only when something is wrong.
        ended = &mut thread.ended => return ended?,
    };
    let ended = thread.end(if is_live { End::InOrder } else { End::AtOnce }).await;
    said.and(ended)
}

/// Gives the kernel's client a socket to this process, and with it the machine a `/dev/nbdN`.
///
/// One socket, however many I/O queues there are: their requests travel side by side on it. With several the kernel
/// takes a socket whose requests wait for a target for dead, fails them or sends them again on another, and they are
/// carried out here all the same when the target is back.
pub(super) async fn serve_device(mut service: Service<'_>) -> Result<()> {
    let (ours, its) = UnixStream::pair()?;
    let (gone, is_gone) = oneshot::channel();
    let (mut thread, up) = start(&mut service, Clients::Kernel(ours, gone)).await?;
    let info = DiskInfo::from(&up.namespace);
    let owner = registry::owner(std::process::id());
    let its_owner = owner.clone();
    let made = spawn_blocking(move || Kernel::open()?.connect(&info, its.as_fd(), &its_owner));
    let node = made.await??;
    let place = Place { device: Some(node.clone()), socket: None, notes: up.choice.into_iter().collect() };
    let lives = async {
        service.place(&up.namespace, &up.via, place)?;
        let guard = guard::over(&node, &owner)?;
        tokio::select! {
            opens = node_opens(&node) => opens?,
            () = service.stop.asked() => bail!("stopped before the disk was attached"),
        }
        service.report().await?;
        service.until_ended(changes(thread.changes.clone())).await;
        Ok(guard)
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
    let (how, ended) = take_away(node).await;
    let finished = thread.end(how).await;
    let (mut guard, pipe) = said?;
    drop(pipe);
    let _ = guard.wait();
    ended.and(finished)
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
    let options = service.options.clone();
    let (control, (up, is_up)) = (Control::new()?, oneshot::channel());
    let (tell, changes) = remote::live();
    let wires = Wires { control: Arc::clone(&control), changes: tell, up };
    let mut ended = in_thread("nvmf-nbd", move || run(&options, clients, wires))?;
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
fn run(options: &AttachOptions, clients: Clients, wires: Wires<Up>) -> Result<()> {
    let control = Arc::clone(&wires.control);
    let mut remote = Remote::connect(options, wires.control, wires.changes)?;
    let mut server = Server::new(DiskInfo::from(&remote.namespace), remote.device())?;
    let (mut socket, mut gone) = (None, None);
    match clients {
        Clients::Kernel(stream, tell) => {
            server.add(stream)?;
            gone = Some(tell);
        }
        Clients::Socket => {
            let (nqn, nsid) = (options.connection.nqn.as_str(), remote.namespace.nsid.0);
            let path = options.socket.path.clone();
            let path = path.unwrap_or_else(|| Registry::of_this_user().default_socket(nqn, nsid));
            server.listen(Listener::bind(&path, &options.socket)?)?;
            socket = Some(path);
        }
    }
    let (namespace, via) = (remote.namespace.clone(), remote.via.clone());
    let up = Up { namespace, via, choice: remote.choice.clone(), socket };
    // Nobody hears: it is told to end.
    let _ = wires.up.send(up);
    let start = Instant::now();
    let mut end_by = None;
    let until = loop {
        let now = start.elapsed();
        match control.asked() {
            End::NotYet => {}
            End::InOrder if end_by.is_none() => {
                server.close();
                end_by = Some(now + FINISH_TIME_MAX);
            }
            End::InOrder => {}
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
        let worked = server.turn(now, &mut remote.backend);
        if server.is_deserted()
            && let Some(gone) = gone.take()
        {
            let _ = gone.send(());
        }
        if remote.may_sleep(worked) {
            let until = [server.poll_timeout(), end_by].into_iter().flatten().min();
            let most = until.map_or(Duration::MAX, |at| at.saturating_sub(now));
            remote.sleep(most, server.arm());
        }
    };
    drop(server);
    remote.finish(until)
}
