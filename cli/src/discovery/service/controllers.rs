//! Connections to discovery controllers: each tells its log.

use super::super::engine::{Controller, Root};
use super::super::entries::{Log, log as read};
use super::Event;
use super::limits::{ASKED_AT_ONCE, KEEP_ALIVE};
use super::look_up::apart;
use super::places::{Places, Queue};
use super::retry::Retry;
use crate::connect::reach;
use crate::print::chain;
use anyhow::Result;
use nvmf_initiator::{Discovery, DiscoveryChange, DiscoveryLog};
use std::collections::HashMap;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{JoinHandle, spawn_blocking};

/// Those that are followed.
pub(super) struct Controllers {
    follows: bool,
    tell: UnboundedSender<Event>,
    places: Places,
    tasks: HashMap<Controller, JoinHandle<()>>,
}

impl Controllers {
    /// `follows`: they are stayed connected to.
    pub(super) fn new(follows: bool, tell: UnboundedSender<Event>) -> Self {
        Self { follows, tell, places: Places::new(ASKED_AT_ONCE), tasks: HashMap::new() }
    }

    /// `root`: where the referrals to it begin; one that is named has none.
    pub(super) fn follow(&mut self, controller: Controller, root: Option<&Root>) {
        let (tell, queue) = (self.tell.clone(), self.places.queue(root));
        let task = tokio::spawn(follow(controller.clone(), self.follows, tell, queue));
        self.tasks.insert(controller, task);
    }

    pub(super) fn leave(&mut self, controller: &Controller) {
        if let Some(task) = self.tasks.remove(controller) {
            task.abort();
        }
    }
}

/// Stays connected to a discovery controller, and tells its log: at once and whenever it changes. Or tells it once.
async fn follow(controller: Controller, follows: bool, tell: UnboundedSender<Event>, queue: Queue) {
    let mut retry = Retry::new();
    loop {
        match connect(&controller, follows, &queue).await {
            Ok((log, discovery)) => {
                let _ = tell.send(said(&controller, log).await);
                let Some(discovery) = discovery else { return };
                retry = Retry::new();
                listen(&controller, discovery, &tell).await;
            }
            Err(error) => {
                let _ = tell.send(Event::ControllerAway(controller.clone()));
                let error = controller.place.explained(error);
                retry.failed(&tell, format!("discovery at {}: {}", controller.place, chain(&error)));
            }
        }
        if !follows {
            // It lists nothing now.
            let _ = tell.send(Event::Log(controller.clone(), Log::default()));
            return;
        }
        retry.wait().await;
    }
}

/// Its log, and the connection where one stays connected.
async fn connect(
    controller: &Controller,
    follows: bool,
    queue: &Queue,
) -> Result<(DiscoveryLog, Option<Discovery>)> {
    let asked = controller.clone();
    let (mut options, _place) = apart(queue, move || asked.connection()).await?;
    if !follows {
        return Ok((reach(options, nvmf_initiator::discover).await?.0, None));
    }
    (options.keep_alive, options.ctrl_loss_timeout) = (KEEP_ALIVE, None);
    let discovery = reach(options, Discovery::connect).await?.0;
    Ok((discovery.log(), Some(discovery)))
}

/// Tells what becomes of it, until it is given up.
async fn listen(controller: &Controller, mut discovery: Discovery, tell: &UnboundedSender<Event>) {
    // It may have been lost before anybody listened for that.
    if !discovery.is_live() {
        let _ = tell.send(Event::ControllerAway(controller.clone()));
    }
    loop {
        match discovery.next().await {
            DiscoveryChange::Log(log) => drop(tell.send(said(controller, log).await)),
            change => {
                let _ = tell.send(Event::ControllerAway(controller.clone()));
                if matches!(change, DiscoveryChange::GivenUp) {
                    return;
                }
            }
        }
    }
}

/// What it says. That is read on a thread apart: for each entry that is for TLS a key may be looked for, and how many there are it says.
async fn said(controller: &Controller, log: DiscoveryLog) -> Event {
    let asked = controller.clone();
    let log = spawn_blocking(move || read(&asked, &log.entries)).await;
    // Of a log that could not be read nothing is known.
    log.map_or_else(|_| Event::ControllerAway(controller.clone()), |log| Event::Log(controller.clone(), log))
}
