//! Doing it for as long as it runs: signals, announcements on the network, and what systemd is told.

use super::super::mdns::{Announced, Browser};
use super::super::policy::Policy;
use super::limits::LOOK;
use super::{Begin, Service};
use crate::interrupt;
use crate::print::chain;
use anyhow::{Context, Result};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

/// Attaches what discovery controllers list, and detaches what they list no more, until it is stopped.
pub(crate) async fn follow(read: impl Fn() -> Result<Begin>) -> Result<()> {
    interrupt::watch()?;
    let Begin { sources, policy } = read()?;
    let (announced, mut announcements) = watch::channel(Announced::default());
    let mut browser = start_browser(&policy, &announced)?;
    let mut service = Service::new(policy, true);
    let mut reload = signal(SignalKind::hangup())?;
    service.begin(sources)?;
    notify(&[NotifyState::Ready]);
    let mut status = Status::default();
    loop {
        status.tell(service.engine.counts());
        let wait =
            service.engine.poll_timeout().map_or(LOOK, |at| at.saturating_sub(service.start.elapsed()));
        tokio::select! {
            () = interrupt::asked() => break,
            _ = reload.recv() => match read() {
                Ok(Begin { sources, policy }) => {
                    browser = match (browser, policy.mdns) {
                        (Some(browser), true) => Some(browser),
                        (None, true) => start_browser(&policy, &announced)?,
                        (_, false) => {
                            announced.send_modify(Announced::clear);
                            None
                        }
                    };
                    service.on_reload(sources, policy);
                }
                Err(error) => tracing::error!("nothing is changed: {}", chain(&error)),
            },
            Ok(()) = announcements.changed() => {
                service.on_announced(announcements.borrow_and_update().places());
            }
            event = service.events.recv() => {
                let event = event.context("nothing is under way")?;
                service.on_event(event);
            }
            () = sleep(wait.min(LOOK)) => service.on_timeout(),
        }
    }
    // Its disks stay: others look after them.
    notify(&[NotifyState::Stopping]);
    drop(browser);
    Ok(())
}

fn start_browser(policy: &Policy, tell: &watch::Sender<Announced>) -> Result<Option<Browser>> {
    policy.mdns.then(|| Browser::start(tell)).transpose()
}

/// What systemd was told last of how it goes.
#[derive(Default)]
struct Status(String);

impl Status {
    fn tell(&mut self, (controllers, disks): (usize, usize)) {
        let status = format!("{controllers} discovery controllers, {disks} disks");
        if status != self.0 {
            notify(&[NotifyState::Status(&status)]);
            self.0 = status;
        }
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "systemd does not listen");
    }
}
