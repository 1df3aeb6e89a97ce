//! Where the daemon listens, and tries to.

use super::apply::{Origin, Unmade, failed};
use super::changing::Pending;
use super::disks::error_text;
use super::listening::Listening;
use super::plan::fixed;
use super::worker_group::{Selection, WorkerGroup, select, takes_tcp_port, want_one_tcp_port};
use super::workers::{WorkerThread, raise_descriptor_limit};
use super::{Daemon, StartError};
use crate::barrier::Scope;
use crate::control::request::change::Outcome;
use crate::exec::transport::ListenAt;
use crate::limits::{ANSWER_TIMEOUT, OTHER_DESCRIPTORS};
use crate::machine;
use crate::mailbox::ThreadMessage;
use crate::message::WorkerId;
use crate::ports::ports;
use crate::sockets::Sockets;
use nvmf_config::{Listener, Transport};
use nvmf_rdma::ListenError;
use nvmf_rdma_any::ProviderSelection;
use nvmf_stream::HalfOpenLimits;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::channel;

impl Daemon {
    /// Whether a start could listen anywhere, or with `strict` everywhere, as far as can be told without listening.
    pub(super) fn try_addresses(&self) -> Result<(), StartError> {
        let mut fault = None;
        for listener in self.listeners.iter().map(|listener| &listener.config) {
            let address = listener.address;
            if self.sockets.have(address) {
                return Ok(());
            }
            if !takes_tcp_port(listener) {
                // Of a device, only listening itself tells.
                return Ok(());
            }
            match machine::try_address(address).map_err(|source| StartError::Listen { address, source }) {
                Ok(()) if !self.config.target.strict => return Ok(()),
                Ok(()) => {}
                Err(error) if self.config.target.strict => return Err(error),
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// Listens where it does not yet, and returns the places of the listeners that could not, and why.
    pub(super) fn listen_where_down(&mut self) -> Vec<(usize, StartError)> {
        let down: Vec<usize> =
            (0..self.listeners.len()).filter(|&at| !self.listeners[at].listens()).collect();
        let results = down.iter().copied().map(|at| self.listen_where_configured(at));
        results.zip(&down).filter_map(|(result, &at)| Some((at, result.err()?))).collect()
    }

    fn listen_where_configured(&mut self, at: usize) -> Result<(), StartError> {
        let address = self.listeners[at].config.address;
        let selection = select(&self.listeners[at].config);
        let selection = selection.map_err(|source| StartError::Provider { address, source })?;
        self.listen(at, selection).map_err(|error| self.explained(at, error))
    }

    /// A port that another listener of ours has is not another program's.
    fn explained(&self, at: usize, error: StartError) -> StartError {
        let listener = &self.listeners[at].config;
        let has_it = |it: &&Listening| it.listens() && want_one_tcp_port(&it.config, listener);
        match (error, self.listeners.iter().find(has_it)) {
            (StartError::Listen { address, source }, Some(other))
                if source.kind() == io::ErrorKind::AddrInUse =>
            {
                let by_rdma = [listener, &other.config].iter().any(|it| it.transport == Transport::Rdma);
                StartError::OwnPort { address, other: other.describe(), by_rdma }
            }
            (error, _) => error,
        }
    }

    /// The number of a configured listener's port.
    pub(super) fn port_of(&self, listener: &Listener) -> Option<u16> {
        let is_it = |it: &&Listening| fixed(&it.config) == fixed(listener);
        self.listeners.iter().find(is_it).map(Listening::port)
    }

    /// One more place to listen.
    pub(super) fn add_listener(
        &mut self,
        listener: &Listener,
        origin: Origin,
    ) -> Result<Vec<Pending>, Unmade> {
        let port = self
            .last_port
            .checked_add(1)
            .ok_or_else(|| failed("no port number is left: restart the target"))?;
        self.last_port = port;
        self.common.tls.set_mode(port, listener.tls);
        for group in &listener.ana_groups {
            self.registry().set_ana_state(port, group.id, group.state).map_err(failed)?;
        }
        self.set_group_states_of(port);
        self.listeners.push(Listening::new(listener.clone(), port));
        self.config.listeners.push(listener.clone());
        self.raise_descriptor_limit();
        let at = self.listeners.len() - 1;
        if self.draining {
            let message = "no connection is taken until `drain --end`".to_owned();
            return Err(Unmade { outcome: Outcome::Waiting, message });
        }
        if let Some(message) = self.waits_for() {
            return Err(Unmade { outcome: Outcome::Waiting, message });
        }
        match self.listen_where_configured(at) {
            Ok(()) => {
                // The port that the system chose is the one that hosts know, and is saved.
                if origin == Origin::Command {
                    let address = self.listeners[at].address;
                    self.listeners[at].config.address = address;
                    self.config.listeners[at].address = address;
                }
                Ok(Vec::new())
            }
            Err(error) if origin != Origin::Command => {
                self.log_listen_fault(at, &error);
                Err(Unmade { outcome: Outcome::Waiting, message: error_text(&error) })
            }
            Err(error) => {
                self.listeners.pop();
                self.config.listeners.pop();
                Err(failed(error_text(&error)))
            }
        }
    }

    /// Listens there no more. The connections that came in through it close: they could not come back.
    pub(super) fn remove_listener(&mut self, listener: &Listener) -> Result<Vec<Pending>, Unmade> {
        let is_it = |it: &Listening| fixed(&it.config) == fixed(listener);
        let Some(at) = self.listeners.iter().position(is_it) else { return Ok(Vec::new()) };
        let removed = self.listeners.remove(at);
        self.config.listeners.remove(at);
        self.publish_ports().map_err(|error| failed(error_text(&error)))?;
        self.stop_listening(&removed);
        let closed = self.keys_of(|it| it.port() == removed.port);
        self.registry().close(|it| it.port() == removed.port);
        self.publish();
        Ok(self.closing(closed))
    }

    /// The states of ANA groups there.
    pub(super) fn set_ana_groups(&mut self, listener: &Listener) -> Result<Vec<Pending>, Unmade> {
        let is_it = |it: &Listening| fixed(&it.config) == fixed(listener);
        let Some(at) = self.listeners.iter().position(is_it) else { return Ok(Vec::new()) };
        self.set_groups(at, &listener.ana_groups)
    }

    /// Which addresses may connect from now on. Connections that are there stay.
    pub(super) fn set_allowed(&mut self, listener: &Listener) -> Result<Vec<Pending>, Unmade> {
        let is_it = |it: &Listening| fixed(&it.config) == fixed(listener);
        let Some(at) = self.listeners.iter().position(is_it) else { return Ok(Vec::new()) };
        self.config.listeners[at].allow.clone_from(&listener.allow);
        self.listeners[at].config.allow.clone_from(&listener.allow);
        let Listening { port, config, .. } = &self.listeners[at];
        for worker in self.workers_of(&self.listeners[at]) {
            let message = ThreadMessage::Allow { port: *port, allow: config.allow.clone() };
            self.common.mailboxes.send(worker, message);
        }
        let barrier = self.common.mailboxes.barrier(Scope::notices());
        Ok(vec![Pending::new(barrier, "a worker has not taken it over".to_owned())])
    }

    /// The workers that listen for it.
    fn workers_of(&self, listening: &Listening) -> Vec<WorkerId> {
        let serves = |group: &&WorkerGroup| listening.providers.contains(&group.selection);
        self.groups.iter().filter(serves).map(|group| group.first).collect()
    }

    fn stop_listening(&self, listening: &Listening) {
        // Nor does systemd keep the socket for the next start: hosts would wait there.
        Sockets::forget(listening.address);
        for worker in self.workers_of(listening) {
            self.common.mailboxes.send(worker, ThreadMessage::StopListening { port: listening.port });
        }
    }

    /// Listens nowhere until [`Daemon::retry_listeners`].
    pub(super) fn stop_all_listeners(&mut self) -> Result<(), StartError> {
        for at in 0..self.listeners.len() {
            self.stop_listening(&self.listeners[at]);
            self.listeners[at].providers.clear();
        }
        self.publish_ports()
    }

    /// Lets go of the sockets that systemd handed over and that no listener wants.
    pub(super) fn release_sockets(&mut self) {
        let over_tcp = self.listeners.iter().filter(|listener| takes_tcp_port(&listener.config));
        let wanted: Vec<SocketAddr> = over_tcp.map(|listener| listener.address).collect();
        self.sockets.keep_only(&wanted);
    }

    /// Tries again where it is down.
    pub(super) fn retry_listeners(&mut self) {
        if self.draining || !self.may_listen() {
            return;
        }
        let before: Vec<bool> = self.listeners.iter().map(Listening::listens).collect();
        for (at, error) in self.listen_where_down() {
            self.log_listen_fault(at, &error);
        }
        for (listener, _) in
            self.listeners.iter().zip(before).filter(|(now, before)| now.listens() && !before)
        {
            tracing::info!("listening on {}", listener.describe());
        }
    }

    pub(super) fn log_listen_fault(&mut self, at: usize, error: &StartError) {
        self.log_fault(at, &format!("{}; it is tried again every few seconds", error_text(error)));
    }

    /// An RDMA device may appear after the start (a driver that loads late, `rdma link add`). Hosts that have a
    /// device try verbs, so a listener with provider auto takes it then, and goes on serving those that came over
    /// iWARP.
    pub(super) fn look_for_devices(&mut self) {
        for at in 0..self.listeners.len() {
            if !self.listeners[at].may_find_a_device() {
                continue;
            }
            let Ok(selection @ Selection::Rdma(ProviderSelection::Verbs { .. })) =
                select(&self.listeners[at].config)
            else {
                continue;
            };
            self.take_device(at, selection);
        }
    }

    fn take_device(&mut self, at: usize, selection: Selection) {
        let text = selection.to_string();
        match self.listen(at, selection) {
            Ok(()) => {
                tracing::info!("an RDMA device has appeared: listening on {}", self.listeners[at].describe());
            }
            Err(error) => {
                let error = error_text(&error);
                let fault = format!(
                    "{} could be served by {text} now, but not without a restart (systemctl restart \
                     nvmf-target): {error}",
                    self.listeners[at].address
                );
                self.log_fault(at, &fault);
            }
        }
    }

    /// Once for each text.
    fn log_fault(&mut self, at: usize, text: &str) {
        let listener = &mut self.listeners[at];
        if listener.fault.as_deref() != Some(text) {
            tracing::error!("{text}");
            listener.fault = Some(text.to_owned());
        }
    }

    fn listen(&mut self, at: usize, selection: Selection) -> Result<(), StartError> {
        let group = match self.groups.iter().position(|group| group.selection == selection) {
            Some(group) => group,
            None => self.add_group(selection.clone())?,
        };
        // Hosts that connect at once must find the port: without it they would be told to go away for good.
        self.listeners[at].providers.push(selection);
        self.publish_ports()?;
        let (port, allow) = (self.listeners[at].port, self.listeners[at].config.allow.clone());
        let first = self.groups[group].first;
        self.common.mailboxes.send(first, ThreadMessage::Allow { port, allow });
        match self.listen_by(group, self.listeners[at].address, port) {
            Ok(taken) => {
                self.listeners[at].address = taken;
                self.listeners[at].fault = None;
                self.publish_ports()
            }
            Err(error) => {
                self.listeners[at].providers.pop();
                self.publish_ports()?;
                Err(error)
            }
        }
    }

    fn listen_by(&mut self, group: usize, address: SocketAddr, port: u16) -> Result<SocketAddr, StartError> {
        let WorkerGroup { first, ref selection, .. } = self.groups[group];
        // An RDMA device listens by itself.
        if matches!(selection, Selection::Rdma(ProviderSelection::Verbs { .. })) {
            return self.listen_at(first, ListenAt::Address(address), port);
        }
        let socket = self.sockets.listen(address).map_err(|source| StartError::Listen { address, source })?;
        let listen_at = ListenAt::Socket(socket);
        let bound = listen_at.address();
        self.listen_at(first, listen_at, port).inspect_err(|_| Sockets::forget(bound))
    }

    fn listen_at(&self, worker: WorkerId, at: ListenAt, port: u16) -> Result<SocketAddr, StartError> {
        let address = at.address();
        let (tell, told) = channel();
        self.common.mailboxes.send(worker, ThreadMessage::Listen { at, port, done: tell });
        match told.recv_timeout(ANSWER_TIMEOUT) {
            Ok(Ok(taken)) => Ok(taken),
            Ok(Err(ListenError { address, source })) => Err(StartError::Listen { address, source }),
            Err(_) => {
                Err(StartError::Listen { address, source: io::Error::other("the worker does not answer") })
            }
        }
    }

    /// A connection takes a descriptor, and the soft limit is often 1024.
    pub(super) fn raise_descriptor_limit(&self) {
        let connections = u64::from(self.config.target.connections);
        let of_groups: u64 = self.groups.iter().map(|group| group.descriptors(connections)).sum();
        let half_open = self.config.listeners.len() * HalfOpenLimits::default().max;
        let disks: usize = self.config.subsystems.iter().map(|subsystem| subsystem.namespaces.len()).sum();
        raise_descriptor_limit(of_groups + (half_open + disks) as u64 + OTHER_DESCRIPTORS);
    }

    /// Starts the workers of a provider that none has yet. Returns the place of their group.
    fn add_group(&mut self, selection: Selection) -> Result<usize, StartError> {
        let workers = self.config.target.workers;
        let workers = if self.groups.is_empty() { workers } else { workers.div_ceil(2) };
        let group = WorkerGroup::new(selection, WorkerId(self.workers.len()), workers);
        self.groups.push(group);
        self.raise_descriptor_limit();
        match self.start_group(self.groups.len() - 1) {
            Ok(()) => Ok(self.groups.len() - 1),
            Err(error) => {
                self.groups.pop();
                Err(error)
            }
        }
    }

    /// Starts a group's workers and gives them the disks.
    pub(super) fn start_group(&mut self, at: usize) -> Result<(), StartError> {
        let group = &self.groups[at];
        let mut started = Vec::new();
        for id in group.ids() {
            let thread = WorkerThread::start(id, group, &self.common);
            match thread {
                Ok(thread) => started.push(thread),
                Err(error) => {
                    // They have neither disks nor connections: nothing is lost with them.
                    for id in group.ids().take(started.len()) {
                        self.common.mailboxes.send(id, ThreadMessage::Finish);
                    }
                    started.into_iter().for_each(|worker| drop(worker.thread.join()));
                    return Err(error);
                }
            }
        }
        self.workers.extend(started);
        self.common.mailboxes.set_workers(self.workers.len(), self.common.clock.now());
        self.attach_all(at);
        Ok(())
    }

    fn publish_ports(&mut self) -> Result<(), StartError> {
        let up = self.listeners.iter().filter_map(|it| Some((it.port, it.served(&self.config.target)?)));
        let ports = ports(&up.collect::<Vec<_>>());
        let set = self.registry().set_ports(ports);
        set.map_err(|error| StartError::Definition(Box::new(error)))?;
        self.publish();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Waker;
    use nvmf_config::Config;
    use nvmf_rdma_any::VerbsOptions;

    /// A daemon with a memory disk that listens over userspace iWARP.
    fn daemon() -> Daemon {
        let text = "[target]\nworkers = 1\nbuffer_memory = \"8MiB\"\n\
            [[listener]]\naddress = \"127.0.0.1:0\"\n\
            [[subsystem]]\nnqn = \"nqn.2026-11.com.example:late\"\nallow_any_host = true\n\
            [[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n";
        let config = Config::parse(text).expect("a configuration");
        Daemon::start(config, None, Waker::default(), Sockets::default()).expect("a daemon")
    }

    fn verbs(device: &str) -> Selection {
        let options = VerbsOptions::default();
        Selection::Rdma(ProviderSelection::Verbs { device: device.into(), port: 1, options })
    }

    #[test]
    fn listener_goes_on_without_a_device_that_appeared_and_cannot_be_used() {
        let mut daemon = daemon();
        let before = daemon.listeners[0].describe();
        for _ in 0..2 {
            daemon.take_device(0, verbs("appeared0"));
            let listener = &daemon.listeners[0];
            let fault = listener.fault.as_deref().unwrap_or_default();
            assert!(fault.contains("verbs on appeared0") && fault.contains("restart"), "{fault}");
            assert_eq!(listener.describe(), before);
            assert!(listener.may_find_a_device(), "it is tried again");
            assert_eq!((daemon.groups.len(), daemon.workers.len()), (1, 1));
        }
        assert!(daemon.addresses().iter().all(|&address| std::net::TcpStream::connect(address).is_ok()));
        daemon.stop(std::time::Duration::ZERO);
    }
}
