//! A remote disk as a backend: submit, flush and poll on the caller's own thread.

use crate::driver::{
    Driver, DriverEvent, Factory, Impacted, NamespaceState, PATHS_MAX, PathStatus, Route, SharedFences,
    StartError, address_of_loss,
};
use crate::log::Log;
use crate::sleep::{arm, sleep};
use crate::transport::{AnyTransport, Transport};
use crate::{ConnectionState, Effect, Error, Options, PathOptions};
use core::time::Duration;
use nvme_proto::{Nqn, Nsid};
use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_host::{AssociationError, ControllerInfo, Mismatch, Namespace, NamespaceIdentity};
use nvmf_memory::Memory;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// The namespaces of a controller as devices of a [`Backend`]: device `n` is namespace `n`. No thread, no lock, no allocation per
/// operation; the connection is kept only while [`Backend::poll`] is called.
///
/// A device stays the disk that it was when the backend was connected, or when its namespace first appeared: when the controller
/// shows another disk under its number, operations wait for the first ([`ConnectionState::Foreign`]), and fail in the end.
///
/// A [`RegionId`] is the number of a registration with this backend. Another backend, or a [`crate::Connection`], may have given
/// the same number to other memory: register memory with each backend that it is used with.
pub struct RemoteBackend<T: Transport> {
    driver: Driver<T>,
    nqn: Nqn,
    start: Instant,
    regions: u16,
    free_regions: Vec<RegionId>,
    log: Log,
    /// Events of the connection and its paths so far.
    happened: u64,
    /// How often a path was connected again.
    reconnects: u64,
    /// A controller that was lost might still carry something out, when that was looked at last.
    was_fenced: bool,
    /// Why the association was lost last, or could not be set up again; `None` while it is up.
    lost: Option<AssociationError>,
    /// One of its paths has TLS.
    has_tls: bool,
}

impl RemoteBackend<AnyTransport> {
    /// Connects: every queue is up and every namespace known when this returns.
    ///
    /// # Errors
    /// As [`crate::Connection::connect`].
    pub fn connect(options: &Options) -> Result<Self, Error> {
        options.check()?;
        let factory: Factory<AnyTransport> = Box::new(options.transport_factory());
        Self::connect_paths(options.open_transport()?, Some(factory), options.more_paths(), options)
    }

    /// [`RemoteBackend::resume_over`] the transport of the options.
    ///
    /// # Errors
    /// As that.
    pub fn resume(options: &Options, disk: NamespaceIdentity, impacted: &[Impacted]) -> Result<Self, Error> {
        options.check()?;
        let factory: Factory<AnyTransport> = Box::new(options.transport_factory());
        let (transport, more_paths) = (options.open_transport()?, options.more_paths());
        Self::resume_paths(transport, Some(factory), more_paths, options, disk, impacted)
    }

    /// Whether a further path may be added: what [`RemoteBackend::add_path`] refuses beside this, time may cure.
    ///
    /// # Errors
    /// When it would go in the clear and another path has TLS, or there are as many as there may be.
    pub fn may_add_path(&self, options: &Options, path: &PathOptions) -> Result<(), Error> {
        options.check_added(path, self.has_tls)?;
        if self.driver.paths().len() < PATHS_MAX {
            return Ok(());
        }
        Err(Error::System { what: "cannot add a path", reason: StartError::TooManyPaths.to_string() })
    }

    /// Adds a path to the same subsystem beside those that there are, at any time: it is connected as the others are, with what
    /// these options, those of the backend, say of every path. [`RemoteBackend::paths`] has it last.
    ///
    /// # Errors
    /// When there are too many paths, or the system lacks a resource; when one of the paths that there are, also one
    /// that was added, has TLS, and this one has none.
    pub fn add_path(&mut self, options: &Options, path: &PathOptions) -> Result<(), Error> {
        options.check_queues()?;
        let has_tls = options.check_added(path, self.has_tls)?;
        let cannot = |reason| Error::System { what: "cannot add a path", reason };
        let mut one = options.clone();
        one.paths = vec![path.clone()];
        for (route, mut factory) in one.more_paths() {
            let transport = factory().map_err(cannot)?;
            self.driver
                .add_path(transport, route, Some(factory), self.start.elapsed())
                .map_err(|error| cannot(error.to_string()))?;
        }
        self.has_tls |= has_tls;
        self.happened += 1;
        Ok(())
    }
}

impl<T: Transport> RemoteBackend<T> {
    /// The same over a transport of the caller's, which is not replaced when its device is lost. [`Options::paths`] are not
    /// looked at.
    ///
    /// # Errors
    /// As [`crate::Connection::connect`].
    pub fn connect_over(transport: T, options: &Options) -> Result<Self, Error> {
        options.check_queues()?;
        Self::connect_paths(transport, None, Vec::new(), options)
    }

    fn connect_paths(
        transport: T,
        factory: Option<Factory<T>>,
        more_paths: Vec<(Route, Factory<T>)>,
        options: &Options,
    ) -> Result<Self, Error> {
        let driver = Driver::new(transport, options.driver_config(), Duration::ZERO)
            .map_err(|error| cannot_start(options, error))?;
        let mut backend = Self::new(driver, options, factory, more_paths)?;
        let mut lost = None;
        loop {
            let worked = backend.driver.turn(backend.start.elapsed());
            match backend.driver.poll_event() {
                Some(DriverEvent::Ready { .. }) => return Ok(backend),
                Some(DriverEvent::Lost(error) | DriverEvent::AttemptFailed(error)) => lost = Some(error),
                Some(DriverEvent::GaveUp) => {
                    let paths = backend.driver.paths();
                    return Err(lost.map_or(Error::Closed { effect: Effect::Nothing }, |error| {
                        association(options, &paths, error)
                    }));
                }
                Some(_) => {}
                None if worked => {}
                None => backend.sleep(&[]),
            }
        }
    }

    /// Takes over a disk that another process of this host used until it ended, as after a loss: operations wait until a
    /// controller is connected that shows that disk, and those that change it until what the other process had sent is over. That
    /// is so when each of the controllers that are named has been reset, or its time, which counts from now, has passed. None:
    /// nothing is under way. [`Options::paths`] are not looked at.
    ///
    /// # Errors
    /// As [`crate::Connection::connect`], but for a controller that cannot be reached.
    pub fn resume_over(
        transport: T,
        options: &Options,
        disk: NamespaceIdentity,
        impacted: &[Impacted],
    ) -> Result<Self, Error> {
        options.check_queues()?;
        Self::resume_paths(transport, None, Vec::new(), options, disk, impacted)
    }

    fn resume_paths(
        transport: T,
        factory: Option<Factory<T>>,
        more_paths: Vec<(Route, Factory<T>)>,
        options: &Options,
        disk: NamespaceIdentity,
        impacted: &[Impacted],
    ) -> Result<Self, Error> {
        let driver = Driver::resume(transport, options.driver_config(), impacted, Duration::ZERO)
            .map_err(|error| cannot_start(options, error))?;
        let mut backend = Self::new(driver, options, factory, more_paths)?;
        backend.driver.open(Duration::ZERO, disk);
        Ok(backend)
    }

    fn new(
        mut driver: Driver<T>,
        options: &Options,
        factory: Option<Factory<T>>,
        more_paths: Vec<(Route, Factory<T>)>,
    ) -> Result<Self, Error> {
        if let Some(factory) = factory {
            driver.set_factory(factory);
        }
        for (route, mut factory) in more_paths {
            let transport = factory().map_err(system)?;
            driver
                .add_path(transport, route, Some(factory), Duration::ZERO)
                .map_err(|error| cannot_start(options, error))?;
        }
        Ok(Self {
            driver,
            nqn: options.nqn,
            start: Instant::now(),
            regions: 0,
            free_regions: Vec::new(),
            log: Log::of(options.nqn),
            happened: 1,
            reconnects: 0,
            was_fenced: false,
            lost: None,
            has_tls: options.has_tls(),
        })
    }

    /// Pins a namespace to the disk that was opened elsewhere: where another is in its place, operations wait for that disk, and
    /// fail in the end, or at once if it was taken away. Nothing changes for a namespace that is in use already. ([`Backend::geometry`] says how the disk is now.)
    pub fn open(&mut self, disk: NamespaceIdentity) {
        self.driver.open(self.start.elapsed(), disk);
    }

    /// Shares fences with the other backends of the same disk from now on, for whoever uses it over several at once (each from a
    /// thread of its own, say): what one of them has lost and may still be carried out, the others do not overtake. Before
    /// anything is submitted.
    pub fn share_fences(&mut self, with: &SharedFences) {
        self.driver.share_fences(with);
    }

    /// Connects again at once what is not connected, also what was given up.
    pub fn reconnect(&mut self) {
        self.driver.retry(self.start.elapsed());
        self.happened += 1;
    }

    /// Has the controllers say again which namespaces they have.
    pub fn rescan(&mut self) {
        self.driver.scan(self.start.elapsed());
    }

    /// Ends every association, and connects again, as after a loss: operations wait meanwhile.
    pub fn reset(&mut self) {
        self.driver.reset(self.start.elapsed());
        self.happened += 1;
    }

    /// How long it is from now until a time on the driver's clock, such as those in [`PathStatus`].
    #[must_use]
    pub fn until(&self, at: Duration) -> Duration {
        at.saturating_sub(self.start.elapsed())
    }

    /// What a controller says of itself: that of the first path that is connected. `None` while there is none.
    #[must_use]
    pub fn controller(&self) -> Option<&ControllerInfo> {
        self.driver.association().map(|association| association.controller())
    }

    /// What of this connection may still be carried out if this process ends, now or later, until something happens
    /// ([`RemoteBackend::happened`]): what [`RemoteBackend::resume`] wants to know then. The times count from the end. `unknown`:
    /// the time of a controller that was never connected.
    #[must_use]
    pub fn impacted(&self, unknown: Duration) -> Vec<Impacted> {
        let now = self.start.elapsed();
        let mut impacted = self.driver.impacted(now, unknown);
        impacted.iter_mut().for_each(|it| it.until = it.until.saturating_sub(now));
        impacted
    }

    /// Whether a controller that was lost may still carry out something of this connection's.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.driver.is_fenced()
    }

    /// The namespaces, as they are now.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        self.driver.association().map_or(&[], |association| association.namespaces())
    }

    /// One of them, as it is now.
    ///
    /// # Errors
    /// [`Error::NoSuchNamespace`].
    pub fn namespace(&self, nsid: Nsid) -> Result<Namespace, Error> {
        let namespaces = self.namespaces();
        let found = namespaces.iter().find(|namespace| namespace.nsid == nsid);
        found.cloned().ok_or_else(|| Error::no_such_namespace(&self.nqn, nsid, namespaces))
    }

    /// What the controller of each path shows, in the order of [`RemoteBackend::paths`]: what it says of itself, and its namespaces;
    /// `None` for a path that is not connected.
    pub fn shown(&self) -> impl Iterator<Item = Option<(&ControllerInfo, &[Namespace])>> {
        self.driver.ready_associations().map(|path| path.map(|it| (it.controller(), it.namespaces())))
    }

    /// The state of the connection.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.driver.state()
    }

    /// Why the controller was lost last, or the last attempt to connect again failed; `None` while it is connected.
    #[must_use]
    pub fn loss(&self) -> Option<&AssociationError> {
        self.lost.as_ref()
    }

    /// Grows whenever something happens to the connection, one of its paths or a namespace: a cheap way to see whether to ask again.
    #[must_use]
    pub fn happened(&self) -> u64 {
        self.happened
    }

    /// How often one of its paths was connected, the first connection not counted.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// How each path is: the one of the options' address first, then [`Options::paths`].
    #[must_use]
    pub fn paths(&self) -> Vec<PathStatus> {
        self.driver.paths()
    }

    /// The namespaces in use in whose place there is another disk now, and how it differs.
    pub fn foreign(&self) -> impl Iterator<Item = (Nsid, Mismatch)> + '_ {
        self.driver.foreign()
    }

    /// How a namespace is, as the controllers that are connected say; `None`: it was never seen.
    #[must_use]
    pub fn namespace_state(&self, nsid: Nsid) -> Option<NamespaceState> {
        self.driver.namespace_state(nsid)
    }

    /// Whether the controller was lost for good: every operation fails with [`BlockError::Gone`].
    #[must_use]
    pub fn gave_up(&self) -> bool {
        self.state() == ConnectionState::Lost
    }

    /// Sleeps until the transport has something to poll, one of `others` (at most three) is readable, or a deadline of the
    /// connection's has come.
    /// For when [`RemoteBackend::turn`] and [`Backend::poll`] found nothing to do.
    pub fn sleep(&mut self, others: &[BorrowedFd<'_>]) {
        self.sleep_for(Duration::MAX, others);
    }

    /// The same, for at most this time.
    pub fn sleep_for(&mut self, most: Duration, others: &[BorrowedFd<'_>]) {
        sleep(&mut self.driver, self.start.elapsed(), most, others);
    }

    /// Prepares a sleep of the caller's own: for how long it may be, at most; `None` when there is something to do already.
    /// It ends when what [`RemoteBackend::descriptor`] returns now is readable.
    pub fn arm(&mut self) -> Option<Duration> {
        arm(&mut self.driver, self.start.elapsed(), Duration::MAX)
    }

    /// The descriptor of the transport, and how often the transport was replaced: another may have the same number.
    /// `None` for a transport without one (virtual time).
    #[must_use]
    pub fn descriptor(&self) -> Option<(BorrowedFd<'_>, u32)> {
        Some((self.driver.fd()?, self.driver.replaced()))
    }

    /// Begins to close the connection: the controller is shut down, operations that wait fail. [`RemoteBackend::state`] is
    /// [`ConnectionState::Lost`] when it is closed.
    pub fn shutdown(&mut self) {
        self.driver.shutdown(self.start.elapsed());
    }

    /// Makes progress: what [`Backend::poll`] does first.
    pub fn turn(&mut self) -> bool {
        let worked = self.driver.turn(self.start.elapsed());
        while let Some(event) = self.driver.poll_event() {
            self.log.on_event(&event, |path| self.driver.address(path), self.driver.without_access());
            self.happened += 1;
            match event {
                DriverEvent::Ready { .. } => (self.lost, self.reconnects) = (None, self.reconnects + 1),
                DriverEvent::PathReady(..) => self.reconnects += 1,
                DriverEvent::Lost(error) | DriverEvent::AttemptFailed(error) => self.lost = Some(error),
                _ => {}
            }
        }
        let is_fenced = self.driver.is_fenced();
        if core::mem::replace(&mut self.was_fenced, is_fenced) != is_fenced {
            self.happened += 1;
        }
        worked
    }
}

fn association(options: &Options, paths: &[PathStatus], source: AssociationError) -> Error {
    let address = address_of_loss(paths, &source).unwrap_or(options.address);
    let nqn = options.nqn.to_string();
    Error::Association { nqn, address, effect: Effect::Nothing, source: Box::new(source) }
}

fn cannot_start(options: &Options, error: StartError) -> Error {
    match error {
        StartError::Association(source) => association(options, &[], source),
        error => system(error.to_string()),
    }
}

fn system(reason: String) -> Error {
    Error::System { what: "cannot start a connection", reason }
}

impl<T: Transport> Backend for RemoteBackend<T> {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        let next = RegionId(self.regions);
        let id = self.free_regions.last().copied().unwrap_or(next);
        let regions = self.regions.max(id.0.checked_add(1).ok_or(BlockError::Unsupported)?);
        self.driver.register(id, memory).map_err(|_| BlockError::Unsupported)?;
        self.free_regions.pop();
        self.regions = regions;
        Ok(id)
    }

    fn deregister(&mut self, region: RegionId) {
        self.driver.deregister(region);
        self.free_regions.push(region);
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.driver.geometry(Nsid(device.0))
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        self.driver.submit(tag, Nsid(device.0), op)
    }

    fn flush(&mut self) {
        self.driver.flush(self.start.elapsed());
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.turn();
        self.driver.poll(completions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostIdentity, TcpOptions, TlsOptions, TransportOptions};

    /// A path on which nobody answers.
    fn path(number: u8, tls: Option<TlsOptions>) -> PathOptions {
        let transport = TransportOptions::Tcp(TcpOptions::default().with_tls(tls));
        PathOptions::new(([127, 0, 0, number], 1).into(), transport)
    }

    #[test]
    fn path_in_the_clear_is_not_added_beside_one_that_was_added_with_tls() {
        let key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
        let tls = || Some(TlsOptions::new(nvmf_tls::Key::parse(key).unwrap()));
        let nqn = "nqn.2026-11.com.example:disk".parse().unwrap();
        let options =
            Options::over(path(1, None), nqn, HostIdentity { nqn, id: nvme_proto::HostId([1; 16]) });
        let identity = NamespaceIdentity {
            nsid: Nsid(1),
            subsystem_nqn: nqn.to_string(),
            uuid: [1; 16],
            nguid: [0; 16],
            eui64: [0; 8],
            geometry: Geometry::new(512, 8),
            is_flushed: true,
        };
        let mut backend = RemoteBackend::resume(&options, identity, &[]).unwrap();
        backend.add_path(&options, &path(2, None)).unwrap();
        backend.add_path(&options, &path(3, tls())).unwrap();
        let error = backend.add_path(&options, &path(4, None)).unwrap_err().to_string();
        assert!(error.contains("would go in the clear"), "{error}");
        backend.add_path(&options, &path(4, tls())).unwrap();
        assert_eq!(backend.paths().len(), 4);
    }
}
