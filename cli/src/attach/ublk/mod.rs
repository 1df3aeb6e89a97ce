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
//! A request's way: the driver copies what is written into its slot's buffer, which is registered with the connection;
//! the thread that is woken sends the command, receives the answer and reports it to the driver, which copies what was
//! read. No other thread has a part in it.

mod abi;
mod device;
mod operation;
mod ring;
mod server;

pub(super) use device::{available, clear_away};

use super::remote::{self, Control, END_TIME_MAX, End, Wires, changes, in_thread};
use super::serve::{Place, Service, node_opens};
use anyhow::{Context, Result, anyhow, bail};
use server::Up;
use std::fs::File;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long the kernel may take to write back what it holds when the disk is detached.
const WRITE_BACK_TIME_MAX: Duration = Duration::from_secs(15);

/// Connects, serves until it is told to stop, and ends cleanly.
pub(super) async fn serve(mut service: Service<'_>) -> Result<()> {
    let options = service.options.clone();
    let (control, (up, is_up)) = (Control::new()?, oneshot::channel());
    let (tell, told) = remote::live();
    let wires = Wires { control: control.clone(), changes: tell, up };
    let mut served = in_thread("nvmf-ublk", move || server::run(&options, wires))?;
    let up = tokio::select! {
        biased;
        Ok(up) = is_up => up,
        ended = &mut served => return ended?,
        () = service.stop.asked() => bail!("stopped before it was connected"),
    };
    let mut is_live = false;
    let lives = async {
        start(&mut service, &up).await?;
        is_live = true;
        service.until_ended(changes(told)).await;
        Ok(())
    };
    // The thread ends before the device is stopped only when something is wrong.
    let (said, served) = tokio::select! {
        said = lives => (said, Some(served)),
        ended = &mut served => (ended.map_err(Into::into).flatten(), None),
    };
    if !is_live {
        // Nobody has used it yet, and nobody is to wait for a target that is away.
        control.end(End::AtOnce);
    }
    let ended = end(&control, up.device, served).await;
    said.and(ended)
}

/// Makes the disk, and says so.
async fn start(service: &mut Service<'_>, up: &Up) -> Result<()> {
    let device = up.device;
    let node = device::node(device);
    let place =
        Place { device: Some(node.clone()), socket: None, notes: up.choice.clone().into_iter().collect() };
    service.place(&up.namespace, &up.via, place)?;
    let made = async {
        in_thread("nvmf-ublk-start", move || device::start(device))?.await??;
        node_opens(&node).await
    };
    tokio::select! {
        made = made => made?,
        () = service.stop.asked() => bail!("stopped before the disk was attached"),
    }
    service.report().await
}

/// Stops the device, waits for its thread, and deletes it.
async fn end(control: &Control, device: u32, served: Option<oneshot::Receiver<Result<()>>>) -> Result<()> {
    let mut stopped = in_thread("nvmf-ublk-stop", move || {
        // The driver writes back what nobody has open; this, also what somebody has.
        let _ = File::open(device::node(device)).and_then(|node| node.sync_all());
        device::stop(device)
    })?;
    let in_time = match timeout(WRITE_BACK_TIME_MAX, &mut stopped).await {
        Ok(stopped) => stopped?,
        Err(_) => {
            control.end(End::AtOnce);
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

/// The number of the device at this node, if it is one of ublk's.
pub(super) fn number(node: &std::path::Path) -> Option<u32> {
    node.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()
}
