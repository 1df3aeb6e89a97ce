//! Opening the device, and making queue pairs on it.

use crate::completion::BATCH;
use crate::config::{OpenError, VerbsConfig};
use crate::ffi::{self, Channel, CompletionChannel, Device, PathChoice};
use crate::loss::Lost;
use crate::memory::{Regions, Windows};
use crate::provider::VerbsProvider;
use crate::reap::WITH_INVALIDATE_RXE;
use crate::sleep::{Source, Watched};
use core::time::Duration;
use nvmf_rdma::slots::Slots;
use std::collections::{HashMap, VecDeque};

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
        let watched = Watched::new([
            (Source::Completions, completion_channel.fd()),
            (Source::Connections, channel.fd()),
            (Source::Device, device.async_fd()),
        ])
        .map_err(os("watching its descriptors"))?;
        let path = PathChoice {
            port: config.port,
            pkey_index: config.pkey_index,
            gid_index: config.gid_index,
            traffic_class: config.traffic_class,
            min_rnr_timer: Some(config.min_rnr_timer.min(31)),
            ack_timeout: config.ack_timeout.map(|timeout| timeout.min(31)),
        };
        // Some kernels announce windows where the library makes none (bnxt_re): one that was made is the proof.
        let has_windows =
            config.memory_windows && limits.memory_windows && ffi::Window::alloc(&device).is_ok();
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
            watched,
            channel,
            completion_channel,
            transport: device.transport(),
            invalidate_flag: if limits.is_rxe { WITH_INVALIDATE_RXE } else { ffi::constants::WC_WITH_INV },
            has_windows,
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
            events_polled: None,
            slept: false,
            batch: vec![ffi::Wc::default(); BATCH],
            lost: Lost::No,
        })
    }
}
