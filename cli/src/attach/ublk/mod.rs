//! A remote namespace as `/dev/ublkbN`, through the kernel's ublk driver.
//!
//! | file | what it does |
//! |---|---|
//! | `abi` | what the driver and its server say to each other |
//! | `ring` | saying it, through io_uring |
//! | `device` | a device's life: added, started, stopped, deleted |
//! | `operation` | what a request asks for |
//! | `server` | the thread that serves its requests |
//!
//! A request's way: the driver copies what is written into its slot's buffer, which is registered with the connection; the thread that is
//! woken sends the command, receives the answer and reports it to the driver, which copies what was read. No other thread has a part in it.

mod abi;
mod device;
mod operation;
mod ring;
mod server;

pub(super) use device::{available, clear_away};

use super::serve::{Place, Post, node_opens};
use crate::namespace::choose;
use anyhow::{Context, Result, anyhow, bail};
use nvmf_initiator::ConnectionState;
use server::{Abandon, Up, Wires};
use std::fs::File;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// How long the kernel may take to write back what it holds when the disk is detached.
const WRITE_BACK_TIME_MAX: Duration = Duration::from_secs(15);
/// How long the thread may take to end: a flush, and the end of the connection.
const END_TIME_MAX: Duration = Duration::from_secs(40);

/// Connects, serves until it is told to stop, and ends in order.
pub(super) async fn serve(mut post: Post<'_>) -> Result<()> {
    let (options, nsid) = (post.options.connection.clone(), post.options.nsid);
    let (abandon, (up, is_up)) = (Abandon::new()?, oneshot::channel());
    let (state, mut states) = watch::channel(ConnectionState::Live);
    let wires = Wires { abandon: abandon.clone(), state, up };
    let (nqn, registry) = (options.nqn, post.registry.clone());
    let mut served = in_thread("nvmf-ublk", move || {
        server::run(
            &options,
            |backend| {
                let nsid = choose(&nqn, nsid, backend.namespaces())?;
                registry.refuse_twice(&nqn, nsid)?;
                Ok(backend.namespace(nsid)?)
            },
            wires,
        )
    })?;
    let up = tokio::select! {
        biased;
        Ok(up) = is_up => up,
        ended = &mut served => return ended?,
        () = post.stop.asked() => bail!("stopped before it was connected"),
    };
    let lives = async {
        start(&mut post, &up).await?;
        until_stopped(&mut post, &mut states).await
    };
    // The thread ends before the device is stopped only when something is wrong.
    let (said, served) = tokio::select! {
        said = lives => (said, Some(served)),
        ended = &mut served => (ended.map_err(Into::into).flatten(), None),
    };
    let ended = end(&abandon, up.device, served).await;
    post.registry.remove_entry(std::process::id());
    said.and(ended)?;
    post.registry.remove(std::process::id());
    Ok(())
}

/// Makes the disk, and says so.
async fn start(post: &mut Post<'_>, up: &Up) -> Result<()> {
    let device = up.device;
    in_thread("nvmf-ublk-start", move || device::start(device))?.await??;
    let node = device::node(device);
    node_opens(&node).await?;
    post.report(&up.namespace, Place { device: Some(node), socket: None, note: None })
}

/// Keeps the registry true until somebody wants the disk to go.
async fn until_stopped(post: &mut Post<'_>, states: &mut watch::Receiver<ConnectionState>) -> Result<()> {
    loop {
        tokio::select! {
            () = post.stop.asked() => return Ok(()),
            Ok(()) = states.changed() => {
                let state = *states.borrow_and_update();
                post.is(state);
            }
        }
    }
}

/// Stops the device, waits for its thread, and deletes it.
async fn end(abandon: &Abandon, device: u32, served: Option<oneshot::Receiver<Result<()>>>) -> Result<()> {
    let mut stopped = in_thread("nvmf-ublk-stop", move || {
        // The driver writes back what nobody has open; this, also what somebody has.
        let _ = File::open(device::node(device)).and_then(|node| node.sync_all());
        device::stop(device)
    })?;
    let in_time = match timeout(WRITE_BACK_TIME_MAX, &mut stopped).await {
        Ok(stopped) => stopped?,
        Err(_) => {
            abandon.ask();
            timeout(WRITE_BACK_TIME_MAX, stopped)
                .await
                .context("the kernel does not let the disk go")???;
            Err(anyhow!("the target does not answer: what it was not sent is lost"))
        }
    };
    let ended = match served {
        Some(served) => timeout(END_TIME_MAX, served).await.context("the disk's thread does not end")??,
        None => Ok(()),
    };
    device::delete(device)?;
    in_time.and(ended)
}

/// Runs what blocks on a thread of its own, which nobody waits for when the process ends.
fn in_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<oneshot::Receiver<Result<T>>> {
    let (done, is_done) = oneshot::channel();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || drop(done.send(body())))?;
    Ok(is_done)
}

/// The number of the device at this node, if it is one of ublk's.
pub(super) fn number(node: &std::path::Path) -> Option<u32> {
    node.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()
}
