//! Opening the device, and making queue pairs on it.

use crate::completion::Claim;
use crate::config::{OpenError, VerbsConfig};
use crate::ffi::{
    self, Channel, CompletionChannel, CompletionQueue, Device, PathChoice, QueueSizes, Transport,
};
use crate::memory::{Regions, Windows};
use crate::provider::VerbsProvider;
use crate::queue_pair::{QueuePair, Staging};
use crate::reap::{WITH_INVALIDATE, WITH_INVALIDATE_RXE};
use core::time::Duration;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nvmf_rdma::slots::Slots;
use nvmf_rdma::{CompletionQueueId, QueuePairAttributes, QueuePairId, ResourceError};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;

impl VerbsProvider {
    /// Opens the device.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn new(config: VerbsConfig) -> Result<Self, OpenError> {
        let name = config.device.clone();
        let os = |what| {
            let device = name.clone();
            move |source| OpenError::Os { device, what, source }
        };
        let Some(device) = Device::open(&config.device)?.map_err(os("opening it"))? else {
            let there = ffi::device_names()?.join(", ");
            return Err(OpenError::NoDevice {
                name,
                there: if there.is_empty() { "none".to_owned() } else { there },
            });
        };
        let limits = device.limits().map_err(os("asking for its limits"))?;
        let completion_channel =
            CompletionChannel::new(&device).map_err(os("making a completion channel"))?;
        let channel = Channel::new()?
            .map_err(os("asking the connection manager (is rdma_ucm loaded? modprobe rdma_ucm)"))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| os("making an epoll descriptor")(e.into()))?;
        for fd in [completion_channel.fd(), channel.fd(), device.async_fd()] {
            let added = epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0));
            added.map_err(|e| os("watching its descriptors")(e.into()))?;
        }
        let path = PathChoice {
            port: config.port,
            pkey_index: config.pkey_index,
            gid_index: config.gid_index,
            traffic_class: config.traffic_class,
            mtu: config.path_mtu.map(|mtu| mtu as u8),
            min_rnr_timer: config.min_rnr_timer,
        };
        Ok(Self {
            queue_pairs: Slots::new(u16::MAX - 1),
            requests: Slots::new(u16::MAX - 1),
            requests_due: None,
            listeners: Slots::new(1024),
            shared_queues: Vec::new(),
            completion_queues: Vec::new(),
            windows: Windows::default(),
            regions: Regions::new(&limits),
            retired: Vec::new(),
            epoll,
            channel,
            completion_channel,
            transport: device.transport(),
            invalidate_flag: if limits.is_rxe { WITH_INVALIDATE_RXE } else { WITH_INVALIDATE },
            has_windows: limits.memory_windows && config.memory_windows,
            device,
            device_name: config.device.clone(),
            config,
            path,
            limits,
            roles: HashMap::new(),
            events: VecDeque::new(),
            attended: Vec::new(),
            dirty: Vec::new(),
            failed: Vec::new(),
            numbers: HashMap::new(),
            now: Duration::ZERO,
            heard: None,
        })
    }

    /// Entries of a completion queue.
    pub(crate) fn claim(
        &mut self,
        name: CompletionQueueId,
        entries: u32,
    ) -> Result<(Rc<CompletionQueue>, Claim), ResourceError> {
        let (channel, limit) = (Rc::clone(&self.completion_channel), self.limits.max_completions);
        if entries > limit {
            return Err(ResourceError::Limit { what: "completion queue entries", asked: entries, limit });
        }
        let queue = self.completion_queues.get_mut(name.0 as usize).ok_or(ResourceError::NoSuchQueue)?;
        queue.claim(name, entries, &channel, &self.limits).map_err(os)
    }

    pub(crate) fn release(&mut self, claim: Claim) {
        if let Some(queue) = self.completion_queues.get_mut(claim.queue().0 as usize) {
            queue.release(claim);
        }
    }

    /// A queue pair whose completions have their places.
    pub(crate) fn make_queue_pair(
        &mut self,
        attributes: &QueuePairAttributes,
        queues: [&Rc<CompletionQueue>; 2],
        sizes: QueueSizes,
        claims: [Claim; 2],
    ) -> Result<QueuePairId, ResourceError> {
        let shared = attributes.shared_receive_queue.and_then(|name| self.shared_queues.get(name.0 as usize));
        let shared = shared.map(|it| &it.hw);
        let hw = ffi::QueuePair::new(&self.device, queues[0], queues[1], shared, sizes).map_err(os)?;
        if self.transport == Transport::InfiniBand {
            hw.initialise(self.path).map_err(os)?;
        }
        let staging = Staging::new(&self.device, attributes.max_send, &hw).map_err(os)?;
        let (number, windows) = (hw.number(), self.has_windows);
        let make = |name| QueuePair::new(QueuePairId(name), *attributes, hw, staging, windows, claims);
        let name = self.queue_pairs.insert(make);
        let name = QueuePairId(name.ok_or_else(|| os(io::ErrorKind::OutOfMemory.into()))?);
        self.numbers.insert(number, name);
        Ok(name)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn os(error: io::Error) -> ResourceError {
    ResourceError::Os(error.raw_os_error().unwrap_or(libc::EIO))
}
