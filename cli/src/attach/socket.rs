//! A remote namespace behind an NBD server: for whoever comes to its socket, or for the kernel's own client.

use super::guard;
use super::nbd::kernel::Kernel;
use super::nbd::{Disk, Server, transmit};
use super::registry;
use super::serve::{Place, Post, node_opens};
use crate::namespace::choose;
use anyhow::{Context, Result, bail};
use nvme_proto::Nsid;
use nvmf_host::Namespace;
use nvmf_initiator::{Connection, ConnectionState, Device};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

/// How long requests under way may take when the disk is detached, and then a flush.
const FINISH_TIME_MAX: Duration = Duration::from_secs(15);

/// Serves whoever comes to the socket. `note` says why there is no more than a socket, where more was wanted.
pub(super) async fn serve(mut post: Post<'_>, note: Option<String>) -> Result<()> {
    let Some((connection, device)) = connect(&mut post).await? else {
        bail!("stopped before it was connected");
    };
    let default = || post.registry.default_socket(&post.options.connection.nqn.to_string(), device.nsid().0);
    let socket = match &post.options.socket {
        Some(path) => std::path::absolute(path)?,
        None => default(),
    };
    let server = Server::bind(&socket).await?;
    let place = Place { device: None, socket: Some(socket.clone()), note };
    if let Err(error) = post.report(&namespace(&connection, device.nsid())?, place) {
        let _ = std::fs::remove_file(&socket);
        return Err(error);
    }
    server.serve(device.clone(), until_stopped(&mut post, &connection), FINISH_TIME_MAX).await;
    finish(&post, connection, device).await
}

/// Gives the kernel's client sockets to this process, and with them the machine a `/dev/nbdN`.
pub(super) async fn serve_device(mut post: Post<'_>) -> Result<()> {
    let Some((connection, device)) = connect(&mut post).await? else {
        bail!("stopped before it was connected");
    };
    let (mut clients, (closing, closed)) = (JoinSet::new(), watch::channel(false));
    let mut theirs = Vec::new();
    // The kernel has a queue for each socket.
    for _ in 0..post.options.connection.io_queues {
        let (ours, its) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (ours, device, closed) =
            (tokio::net::UnixStream::from_std(ours)?, device.clone(), closed.clone());
        clients.spawn(async move { transmit(ours, &device, closed).await });
        theirs.push(its);
    }
    let info = device.info();
    let owner = registry::owner(std::process::id());
    let its_owner = owner.clone();
    let made = spawn_blocking(move || {
        let sockets: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
        Kernel::open()?.connect(&info, &sockets, &its_owner)
    });
    let node = made.await??;
    let lives = async {
        let guard = guard::over(&node, &owner)?;
        node_opens(&node).await?;
        let place = Place { device: Some(node.clone()), socket: None, note: None };
        post.report(&namespace(&connection, device.nsid())?, place)?;
        until_stopped(&mut post, &connection).await;
        Ok(guard)
    };
    let said: Result<_> = lives.await;
    let ended = take_away(node).await;
    closing.send_replace(true);
    let all_gone = async { while clients.join_next().await.is_some() {} };
    let _ = timeout(FINISH_TIME_MAX, all_gone).await;
    let (mut guard, line) = said?;
    drop(line);
    let _ = guard.wait();
    ended.and(finish(&post, connection, device).await)
}

/// Writes back what the kernel still holds of the disk, and takes it away.
async fn take_away(node: PathBuf) -> Result<()> {
    let held = node.clone();
    let written = timeout(FINISH_TIME_MAX, spawn_blocking(|| File::open(held)?.sync_all())).await;
    spawn_blocking(move || Kernel::open()?.disconnect(&node)).await??;
    written
        .context("the target does not answer: what it was not sent is lost")??
        .context("the kernel could not write back all that it held: it is lost")
}

/// Connects to the namespace; `None` when it was stopped meanwhile.
async fn connect(post: &mut Post<'_>) -> Result<Option<(Connection, Device)>> {
    let options = post.options.connection.clone();
    let connection = tokio::select! {
        connected = Connection::connect(options) => connected?,
        () = post.stop.asked() => return Ok(None),
    };
    let nsid = choose(&post.options.connection.nqn, post.options.nsid, &connection.namespaces())?;
    let device = connection.open(nsid)?;
    post.registry.refuse_twice(&post.options.connection.nqn, nsid)?;
    Ok(Some((connection, device)))
}

fn namespace(connection: &Connection, nsid: Nsid) -> Result<Namespace> {
    let namespaces = connection.namespaces();
    namespaces.into_iter().find(|namespace| namespace.nsid == nsid).context("the namespace is gone")
}

/// Keeps the registry true until somebody wants the disk to go.
async fn until_stopped(post: &mut Post<'_>, connection: &Connection) {
    let mut state = ConnectionState::Live;
    loop {
        tokio::select! {
            () = post.stop.asked() => return,
            now = connection.state_after(state) => state = now,
        }
        post.is(state);
    }
}

/// Flushes, and closes the connection.
async fn finish(post: &Post<'_>, connection: Connection, device: Device) -> Result<()> {
    let pid = std::process::id();
    let flushed = timeout(FINISH_TIME_MAX, device.flush()).await;
    post.registry.remove_entry(pid);
    flushed
        .context("it took too long")
        .and_then(|flushed| Ok(flushed?))
        .context("the last flush failed: what was not flushed before may be lost")?;
    let _ = timeout(FINISH_TIME_MAX, connection.close()).await;
    post.registry.remove(pid);
    Ok(())
}
