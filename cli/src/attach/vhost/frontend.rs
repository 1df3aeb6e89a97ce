//! The thread that talks to a frontend (QEMU): it says what the disk is, and hands its memory and rings to the thread that
//! serves them.

use super::abi::{self, F_FLUSH, F_RING_EVENT_IDX, QUEUE_SIZE_MAX, QUEUES_MAX};
use super::guest::SharedRegion;
use super::inflight::{self, Area};
use super::ring::RingSetUp;
use super::server::Message;
use crate::attach::changes::News;
use crate::attach::control::Control;
use crate::attach::nbd::DiskInfo;
use anyhow::{Context, anyhow, bail};
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut as Requests,
};

/// What both threads, and whoever hears that the disk has changed, know.
pub(super) struct Shared {
    /// As it was at the start.
    disk: DiskInfo,
    bytes: AtomicU64,
    read_only: AtomicBool,
    /// Where the frontend is told that the configuration has changed.
    notices: Mutex<Option<UnixStream>>,
    messages: Mutex<Sender<Message>>,
    control: Arc<Control>,
}

impl Shared {
    pub(super) fn new(disk: DiskInfo, messages: Sender<Message>, control: Arc<Control>) -> Self {
        let (bytes, read_only) = (AtomicU64::new(disk.bytes), AtomicBool::new(disk.read_only));
        Self { disk, bytes, read_only, notices: Mutex::new(None), messages: Mutex::new(messages), control }
    }

    /// The disk has changed: the frontend is told, if it listens, and the guest by it.
    pub(super) fn change(&self, news: News) -> anyhow::Result<()> {
        match news {
            News::Size(bytes) => self.bytes.store(bytes, Ordering::Release),
            News::ReadOnly(read_only) => {
                self.read_only.store(read_only, Ordering::Release);
                // It is one of the features, which QEMU asks for when it connects, and a driver when it starts.
                bail!("virtio cannot tell a driver that runs: the guest sees it when QEMU is started again");
            }
        }
        let notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        match &*notices {
            Some(socket) => super::notice::configuration_changed(socket).context("QEMU does not hear of it"),
            None => Ok(()),
        }
    }

    /// The disk as it is now.
    fn disk(&self) -> DiskInfo {
        let (bytes, read_only) = (self.bytes.load(Ordering::Acquire), self.read_only.load(Ordering::Acquire));
        DiskInfo { bytes, read_only, ..self.disk }
    }

    fn send(&self, message: Message) {
        // Nobody takes it: the process ends.
        let _ = self.messages.lock().unwrap_or_else(PoisonError::into_inner).send(message);
        self.control.wake();
    }

    /// Has the other thread do something, and waits for what it says.
    fn ask<T>(&self, message: impl FnOnce(SyncSender<T>) -> Message) -> anyhow::Result<T> {
        let (tell, told) = sync_channel(1);
        self.send(message(tell));
        told.recv().map_err(|_| anyhow!("the disk is not served any more"))
    }
}

/// Serves one frontend until it goes. What it had under way has ended then.
///
/// # Errors
/// Nothing of it was served: the process has no descriptor left.
pub(super) fn serve(shared: &Arc<Shared>, stream: UnixStream) -> io::Result<()> {
    let peeked = stream.try_clone()?;
    let frontend = Arc::new(Mutex::new(Frontend::new(Arc::clone(shared))));
    let mut handler = BackendReqHandler::from_stream(stream, frontend);
    let ended = loop {
        match super::notice::socket_that_comes(&peeked) {
            Ok(Some(socket)) => {
                *shared.notices.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
            }
            Ok(None) => {}
            Err(error) => break Error::SocketError(error),
        }
        if let Err(error) = handler.handle_request() {
            break error;
        }
    };
    *shared.notices.lock().unwrap_or_else(PoisonError::into_inner) = None;
    // Where that says nothing any more, the disk ends, and the process with it.
    let _ = shared.ask(Message::Gone);
    match ended {
        Error::Disconnected | Error::PartialMessage => tracing::info!("QEMU has gone"),
        error => tracing::error!("the connection to QEMU is closed: {error}"),
    }
    Ok(())
}

/// What a frontend has said of a ring.
#[derive(Default)]
struct RingState {
    size: u16,
    addresses: Option<[u64; 3]>,
    base: u16,
    call: Option<File>,
    is_started: bool,
}

struct Frontend {
    shared: Arc<Shared>,
    rings: Vec<RingState>,
    features: u64,
    inflight: Option<Area>,
}

impl Frontend {
    fn new(shared: Arc<Shared>) -> Self {
        let rings = (0..QUEUES_MAX).map(|_| RingState::default()).collect();
        Self { shared, rings, features: 0, inflight: None }
    }

    fn ring(&mut self, index: u32) -> Result<&mut RingState> {
        self.rings.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// Has the other thread do something that may fail.
    fn ask(&self, message: impl FnOnce(SyncSender<anyhow::Result<()>>) -> Message) -> Result<()> {
        self.shared.ask(message).flatten().map_err(|error| failed(&error))
    }

    fn configuration(&self) -> [u8; 64] {
        abi::configuration(&self.shared.disk())
    }
}

fn failed(error: &anyhow::Error) -> Error {
    let chain = crate::print::chain(error);
    tracing::error!("{chain}");
    Error::ReqHandlerError(io::Error::other(chain))
}

fn unsupported<T>() -> Result<T> {
    Err(Error::InvalidOperation("not offered"))
}

impl Requests for Frontend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        unsupported()
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(abi::features(&self.shared.disk()))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !abi::features_ever(&self.shared.disk) != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        self.shared.send(Message::WriteThrough(features & F_FLUSH == 0));
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<vhost::VhostUserMemoryRegionBase>>> {
        let shared = regions.iter().zip(files).map(|(region, file)| SharedRegion {
            guest_address: region.guest_phys_addr,
            user_address: region.user_addr,
            len: region.memory_size,
            file,
            offset: region.mmap_offset,
        });
        let shared = shared.collect();
        self.ask(|reply| Message::Memory(shared, reply)).map(|()| None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|size| size.is_power_of_two() && *size <= QUEUE_SIZE_MAX);
        self.ring(index)?.size = size.ok_or(Error::InvalidParam)?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        self.ring(index)?.addresses = Some([descriptor, available, used]);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.ring(index)?.base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        Ok(())
    }

    /// Stops a ring: it waits for what is under way.
    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.ring(index)?;
        let base =
            self.shared.ask(|reply| Message::Stop(index as u16, reply)).map_err(|error| failed(&error))?;
        let ring = self.ring(index)?;
        if std::mem::take(&mut ring.is_started) {
            ring.base = base;
        }
        Ok(VhostUserVringState::new(index, ring.base.into()))
    }

    /// Starts a ring.
    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        // Without one, somebody would have to look all the time.
        let kick = kick.ok_or(Error::InvalidOperation("a ring without a kick"))?;
        let (features, number) = (self.features, u16::from(index));
        let inflight = self.inflight.clone();
        let ring = self.ring(index.into())?;
        let [descriptors, available, used] =
            ring.addresses.ok_or(Error::InvalidOperation("a ring without addresses"))?;
        let (size, base) = (ring.size, ring.base);
        let call = ring.call.as_ref().map(File::try_clone).transpose().map_err(Error::SocketError)?;
        let inflight = match &inflight {
            Some(area) => Some(area.queue(number, size).ok_or(Error::InvalidParam)?),
            None => None,
        };
        let event_idx = features & F_RING_EVENT_IDX != 0;
        let set_up = RingSetUp { size, descriptors, available, used, base, kick, call, event_idx, inflight };
        self.ask(|reply| Message::Start(number, Box::new(set_up), reply))?;
        self.ring(index.into())?.is_started = true;
        if features & abi::F_PROTOCOL_FEATURES == 0 {
            self.shared.send(Message::Enable(number, true));
        }
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        let ring = self.ring(index.into())?;
        ring.call = call.as_ref().map(File::try_clone).transpose().map_err(Error::SocketError)?;
        self.shared.send(Message::Call(index.into(), call));
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _: Option<File>) -> Result<()> {
        self.ring(index.into()).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    }

    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(QUEUES_MAX.into())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?;
        self.shared.send(Message::Enable(index as u16, enable));
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let mut space = self.configuration().to_vec();
        let (offset, size) = (offset as usize, size as usize);
        let end = offset.checked_add(size).filter(|end| *end <= 256).ok_or(Error::InvalidParam)?;
        space.resize(256, 0);
        Ok(space[offset..end].to_vec())
    }

    /// Nothing of it can be set.
    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        unsupported()
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        unsupported()
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        unsupported()
    }

    fn get_inflight_fd(&mut self, asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, entries) = (asked.num_queues, asked.queue_size);
        if !(1..=QUEUES_MAX).contains(&queues) || !(1..=QUEUE_SIZE_MAX).contains(&entries) {
            return Err(Error::InvalidParam);
        }
        let len = inflight::len(queues, entries) as u64;
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("vhost-user-inflight", flags)
            .map_err(|error| Error::ReqHandlerError(error.into()))?;
        let file = File::from(file);
        file.set_len(len).map_err(Error::ReqHandlerError)?;
        Ok((VhostUserInflight::new(len, 0, queues, entries), file))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let (offset, queues, entries) = (given.mmap_offset, given.num_queues, given.queue_size);
        if queues > QUEUES_MAX || entries > QUEUE_SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        self.inflight = Some(Area::map(&file, offset, queues, entries).map_err(|error| failed(&error))?);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        unsupported()
    }

    fn add_mem_region(
        &mut self,
        _: &VhostUserSingleMemoryRegion,
        _: File,
        _: Option<bool>,
    ) -> Result<Option<vhost::VhostUserMemoryRegionBase>> {
        unsupported()
    }

    fn remove_mem_region(&mut self, _: &VhostUserSingleMemoryRegion) -> Result<()> {
        unsupported()
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        unsupported()
    }

    fn check_device_state(&mut self) -> Result<()> {
        unsupported()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        unsupported()
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        unsupported()
    }
}
