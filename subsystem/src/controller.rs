//! The controller of an association: part of its Admin queue.

use crate::admin::{
    AdminKind, AfterFlush, Events, Features, Notification, Resets, abort, features, flush, identify,
    log_page, reset,
};
use crate::ana::{self, AnaChanges};
use crate::association::{Association, ControllerType, Notice};
use crate::data::{self, Fit};
use crate::discovery::DiscoveryLog;
use crate::fabrics::{self, Change, Properties};
use crate::flight::Flight;
use crate::health::{DeviceHealth, HealthTable, warning};
use crate::limits::ENABLE_TIMEOUT;
use crate::namespace::NamespaceTable;
use crate::reservation::Notifications;
use crate::status::{self, Direction};
use crate::step::{Step, Violation};
use crate::subsystem::Identity;
use crate::ticket::{Kind, Outcome, Reply};
use crate::timer::KeepAlive;
use crate::{Nsid, Page, Work};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::time::Duration;
use nvme_proto::Sqe;
use nvme_proto::admin::cross_controller_reset::ResetStatus;
use nvme_proto::fabrics::fabrics_type;
use nvme_proto::fabrics::property::Configuration;
use nvme_proto::opcode::{AdminOpcode, FabricsType};
use nvmf_block::BlockError;

/// The controller of one association.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) association: Arc<Association>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) content: Content,
    pub(crate) properties: Properties,
    pub(crate) features: Features,
    pub(crate) events: Events,
    pub(crate) notifications: Notifications,
    pub(crate) resets: Resets,
    pub(crate) keep_alive: KeepAlive,
    pub(crate) ana_changes: AnaChanges,
    /// Namespaces that changed since the host read their list.
    pub(crate) changed_namespaces: BTreeSet<Nsid>,
    /// By when the host has to enable the controller for the first time. None: it did.
    enable_by: Option<Duration>,
    /// The host has not authenticated: neither the Keep Alive timer nor that for enabling runs.
    awaits_authentication: bool,
    /// It did not.
    enable_expired: bool,
    /// [`Step::CloseIoQueues`] is to be given.
    close_io_queues: bool,
    /// What is known of the devices.
    pub(crate) health: Arc<HealthTable>,
    /// Critical warnings that the host wants to hear of and that hold.
    warned: u8,
}

/// What the controller serves.
#[derive(Debug)]
pub(crate) enum Content {
    Namespaces(Arc<NamespaceTable>),
    Discovery(Arc<DiscoveryLog>),
}

impl Controller {
    pub(crate) fn new(
        now: Duration,
        association: Arc<Association>,
        identity: Arc<Identity>,
        content: Content,
        health: Arc<HealthTable>,
    ) -> Self {
        Self {
            association,
            identity,
            content,
            properties: Properties::default(),
            features: Features::new(now),
            events: Events::default(),
            notifications: Notifications::default(),
            resets: Resets::default(),
            keep_alive: KeepAlive::default(),
            ana_changes: AnaChanges::default(),
            changed_namespaces: BTreeSet::new(),
            enable_by: Some(now.saturating_add(ENABLE_TIMEOUT)),
            awaits_authentication: false,
            enable_expired: false,
            close_io_queues: false,
            health,
            warned: 0,
        }
    }

    pub(crate) fn association(&self) -> &Arc<Association> {
        &self.association
    }

    /// The host has to authenticate first: until then, the time for that is the only one. A host that computes sends no
    /// Keep Alive.
    pub(crate) fn await_authentication(&mut self) {
        self.enable_by = None;
        self.awaits_authentication = true;
    }

    /// The host has authenticated, for the first time.
    pub(crate) fn on_authenticated(&mut self, now: Duration) {
        if self.association.set_authenticated() {
            self.enable_by = Some(now.saturating_add(ENABLE_TIMEOUT));
            self.awaits_authentication = false;
            self.association.touch(now);
        }
    }

    /// The namespaces; none on a discovery controller.
    pub(crate) fn namespaces(&self) -> Option<&NamespaceTable> {
        match &self.content {
            Content::Namespaces(table) => Some(table),
            Content::Discovery(_) => None,
        }
    }

    pub(crate) fn is_discovery(&self) -> bool {
        self.association.controller_type == ControllerType::Discovery
    }

    /// Any command of the Admin queue.
    pub(crate) fn on_command(&mut self, now: Duration, sqe: &Sqe, in_capsule_len: usize) -> Outcome {
        if let Some(fctype) = fabrics_type(sqe) {
            return self.on_fabrics(now, fctype, sqe);
        }
        // Until CSTS.RDY, only Fabrics commands.
        if !self.association.is_enabled() {
            return Err(status::COMMAND_SEQUENCE_ERROR);
        }
        match AdminOpcode(sqe.opcode) {
            AdminOpcode::IDENTIFY => identify::on_identify(self, sqe),
            AdminOpcode::GET_LOG_PAGE => log_page::on_get_log_page(self, sqe),
            AdminOpcode::GET_FEATURES => features::on_get_features(self, now, sqe),
            AdminOpcode::SET_FEATURES => features::on_set_features(self, now, sqe, in_capsule_len),
            AdminOpcode::ASYNC_EVENT_REQUEST => self.events.on_request(sqe.cid()),
            // The capsule has restarted the timer already.
            AdminOpcode::KEEP_ALIVE => Ok(Reply::Done(0)),
            AdminOpcode::ABORT if !self.is_discovery() => Ok(abort::on_abort(self, sqe)),
            AdminOpcode::CROSS_CONTROLLER_RESET if !self.is_discovery() => reset::on_reset(self, sqe),
            _ => Err(status::INVALID_OPCODE),
        }
    }

    fn on_fabrics(&mut self, now: Duration, fctype: FabricsType, sqe: &Sqe) -> Outcome {
        match fctype {
            FabricsType::PROPERTY_GET => self.properties.get(sqe, &self.association).map(Reply::Done),
            FabricsType::PROPERTY_SET => {
                let to = self.properties.check_set(sqe)?;
                let from = self.properties.configuration();
                if self.properties.change_to(to) == (Change::Shutdown { normal: true }) {
                    return flush::flush_behind(self, now, Nsid(0), AfterFlush::Configure { from, to });
                }
                self.configure(now, from, to);
                Ok(Reply::Done(0))
            }
            FabricsType::CONNECT => Err(status::COMMAND_SEQUENCE_ERROR),
            FabricsType::DISCONNECT => fabrics::check_disconnect(sqe, true).map(|()| Reply::Done(0)),
            _ => Err(fabrics::unsupported(fctype)),
        }
    }

    /// Sets CC to `to`, if it still is `from`.
    pub(crate) fn configure(&mut self, now: Duration, from: Configuration, to: Configuration) {
        if self.properties.configuration() != from {
            return;
        }
        match self.properties.set(to) {
            Change::None => {}
            Change::Enabled => {
                self.enable_by = None;
                self.association.set_enabled(true);
            }
            Change::Shutdown { .. } => self.stop_io(),
            Change::Reset => {
                self.stop_io();
                // A controller level reset: every setting gets its default again; the connection stays.
                self.features = Features::new(now);
                self.events.reset();
                self.warned = 0;
                self.changed_namespaces.clear();
                self.ana_changes = AnaChanges::default();
                self.notifications = Notifications::default();
                self.resets.clear();
                self.association.reset_features();
            }
        }
    }

    /// Stops serving I/O: the I/O queues close.
    fn stop_io(&mut self) {
        self.association.reset();
        self.close_io_queues = self.association.io_queues() > 0;
    }

    /// Data of Set Features.
    pub(crate) fn on_parameters(&mut self, now: Duration, kind: AdminKind, parameters: &[u8]) -> Outcome {
        features::on_parameters(self, now, kind, parameters)
    }

    /// The work of an Admin command is done, or failed on the device.
    pub(crate) fn on_done(
        &mut self,
        now: Duration,
        kind: AdminKind,
        result: Result<(), BlockError>,
    ) -> Outcome {
        match (kind, result) {
            (AdminKind::Flush { nsid, then }, result) => flush::on_flushed(self, now, nsid, then, result),
            (_, Ok(())) => Ok(Reply::Done(0)),
            (_, Err(error)) => Err(status::of_block_error(error, Direction::Read)),
        }
    }

    /// Answers with `page`, `len` bytes of it.
    pub(crate) fn send_page(sqe: &Sqe, page: Page, len: u32) -> Outcome {
        let transfer = data::to_host(sqe, len, Fit::AtLeast)?;
        Ok(Reply::Execute { kind: Kind::Admin(AdminKind::Page), work: Work::Page(Box::new(page)), transfer })
    }

    pub(crate) fn on_notice(&mut self, notice: &Notice) {
        match (&mut self.content, notice) {
            (Content::Namespaces(old), Notice::Namespaces(new)) if new.replaces(old) => {
                let Association { host_nqn: host, port, .. } = &*self.association;
                let changed = old.changed_in(new, host).next().is_some();
                self.changed_namespaces.extend(old.changed_in(new, host));
                let ana_changed = ana::has_changed(old, new, host, *port);
                if changed || ana_changed {
                    self.ana_changes.count(old, new, host, *port);
                }
                *old = Arc::clone(new);
                if changed {
                    self.events.raise(Notification::NamespaceAttributes);
                }
                if ana_changed {
                    self.events.raise(Notification::Ana);
                }
                self.watch_health();
            }
            (Content::Namespaces(table), Notice::Reservation { subsystem, nsid, notices })
                if *subsystem == table.subsystem()
                    && table.get_for(*nsid, &self.association.host_nqn).is_some() =>
            {
                for (host, notice) in notices.iter() {
                    if *host == self.association.host_id && self.notifications.add(*nsid, *notice) {
                        self.events.raise(Notification::Reservation);
                    }
                }
            }
            (Content::Namespaces(_), Notice::Health(new)) => {
                self.health = Arc::clone(new);
                self.watch_health();
            }
            (_, Notice::Reset { by, impacted, successful }) if *by == self.association.key => {
                let status = if *successful { ResetStatus::SUCCESSFUL } else { ResetStatus::FAILED };
                reset::on_over(self, impacted, status);
            }
            (Content::Discovery(old), Notice::Discovery(view)) if old.is_older_than(view) => {
                let new = old.renewed(view, &self.association.host_nqn);
                let changed = !new.finds_the_same(old);
                *old = Arc::new(new);
                if changed {
                    self.events.raise(Notification::DiscoveryLog);
                }
            }
            _ => {}
        }
    }

    /// What is known of the devices behind the namespaces that the host sees.
    pub(crate) fn device_health(&self) -> DeviceHealth {
        let host = &self.association.host_nqn;
        self.namespaces().map(|namespaces| self.health.behind(namespaces, host)).unwrap_or_default()
    }

    /// Critical Warning of the SMART / Health log.
    pub(crate) fn critical_warning(&self, health: &DeviceHealth) -> u8 {
        let of_drives = health.wear.map_or(0, |wear| wear.critical_warning);
        let temperature = match self.features.is_beyond_threshold(health.temperature) {
            true => warning::TEMPERATURE,
            false => 0,
        };
        of_drives & (warning::SPARE | warning::RELIABILITY) | temperature
    }

    /// Tells the host of critical warnings that have come up since. Only those that it wants to hear of are looked for.
    pub(crate) fn watch_health(&mut self) {
        let wanted = (self.features.async_event_config() & features::SMART_WARNINGS) as u8;
        if wanted == 0 {
            self.warned = 0;
            return;
        }
        let holds = self.critical_warning(&self.device_health()) & wanted;
        let new = holds & !self.warned;
        self.warned = holds;
        for (notification, of) in Notification::HEALTH {
            if new & of != 0 {
                self.events.raise(notification);
            }
        }
    }

    pub(crate) fn poll_step(&mut self, flight: &mut Flight) -> Option<Step> {
        if let Some(violation) = self.keep_alive.expired() {
            return Some(Step::CloseAssociation(violation));
        }
        if self.enable_expired {
            return Some(Step::CloseAssociation(Violation::EnableTimeout(ENABLE_TIMEOUT)));
        }
        if let Some((cid, status, dw0)) = self.events.poll(self.features.async_event_config()) {
            return Some(Step::Respond(flight.end(cid, status, dw0.into(), None)));
        }
        if core::mem::take(&mut self.close_io_queues) {
            return Some(Step::CloseIoQueues);
        }
        self.association.is_closing().then_some(Step::CloseQueue)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        if self.awaits_authentication {
            return None;
        }
        let keep_alive = self.keep_alive.deadline(&self.association);
        let enable_by = self.enable_by.filter(|_| !self.enable_expired);
        keep_alive.into_iter().chain(enable_by).min()
    }

    pub(crate) fn on_timeout(&mut self, now: Duration) {
        if self.awaits_authentication {
            return;
        }
        self.keep_alive.on_timeout(now, &self.association);
        self.enable_expired |= self.enable_by.is_some_and(|deadline| now >= deadline);
    }
}
