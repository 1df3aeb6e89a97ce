//! A disk: opened, described, closed.

use crate::boundary::{Fault, call_int, text};
use crate::fork;
use crate::memory::Registered;
use crate::options;
use core::ffi::c_char;
use core::slice;
use libc::c_int;
use nvmf_initiator::queue::Queue;
use nvmf_initiator::{Connection, ConnectionState, Device, Error, Uri, block_on};
use std::time::Instant;

/// A remote namespace that is connected to.
pub struct nvmf_disk {
    pub(crate) queue: Queue,
    pub(crate) memory: Registered,
    /// An operation may go on after its call has returned.
    pub(crate) has_timeout: bool,
    /// Of which process it is: [`fork::generation`].
    process: u32,
}

/// The state of a disk's connection.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum nvmf_state {
    /// It was lost and is being set up again: operations wait.
    Connecting = 0,
    /// Operations flow.
    Live = 1,
    /// It is connected, and another disk is where this one was: operations wait, and fail in the end. None goes to the other disk.
    Foreign = 2,
    /// It was given up: operations fail with -ENOLINK.
    Lost = 3,
}

/// What a disk is. Later versions may add members at the end.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct nvmf_info {
    /// Bytes in the disk. They may grow while it is open.
    pub size: u64,
    /// Bytes in a block, a power of two from 512 to 65536.
    pub block_size: u32,
    /// Bytes that one command moves. Longer operations are split, and then not atomic as a whole.
    pub max_transfer: u32,
    /// Bytes that nvmf_compare_and_write() takes at most; 0: the disk has no such operation.
    pub max_compare_and_write: u32,
    /// Writes of a multiple of so many bytes, aligned to it, cost the disk least.
    pub preferred_write: u32,
    /// Number of the namespace.
    pub nsid: u32,
    /// nvmf_state.
    pub state: u32,
    /// Universally unique identifier, in the order in which it is written; zeroes: none.
    pub uuid: [u8; 16],
    /// Namespace globally unique identifier, in the order in which it is written; zeroes: none.
    pub nguid: [u8; 16],
    /// IEEE extended unique identifier, in the order in which it is written; zeroes: none.
    pub eui64: [u8; 8],
    /// Writes fail with -EROFS.
    pub read_only: bool,
    /// What was written may be lost with the target's power until nvmf_flush(), or without NVMF_FUA.
    pub volatile_cache: bool,
    /// nvmf_discard() gives space back.
    pub discards: bool,
    /// What was discarded reads as zeroes.
    pub discards_to_zeroes: bool,
    /// nvmf_write_zeroes() works.
    pub writes_zeroes: bool,
    /// nvmf_compare() works.
    pub compares: bool,
    /// nvmf_copy() works.
    pub copies: bool,
    /// Zero.
    pub reserved: bool,
}

/// Connects to a namespace, and stores the disk at *disk, for nvmf_close().
///
/// It does not refuse a disk that this machine has attached (nvmf list): a file system on that would not learn of what is written here.
///
/// uri: nvme+tcp://ADDRESS[:PORT]/NQN[/NSID] or nvme+rdma://...; the namespace may be left out where there is one only.
///
/// options: "name=value" each, behind the last one a null pointer; null: none. Times are seconds, with a fraction where that is
/// wanted:
///
///   path=URI                  a further path to the same subsystem, without NQN; any number of them
///   iopolicy=NAME             round-robin, queue-depth (default) or latency
///   hostnqn=NQN, hostid=UUID  as whom; by default as this machine (/etc/nvme), which gets an identity where it has none
///   host-traddr=ADDRESS       from which of this machine's addresses
///   timeout=S                 an operation that has not ended by then fails with -ETIMEDOUT, and what was not sent of it
///                             is never sent; what was, goes on, and others of its blocks wait for its end; by default none.
///                             So does nvmf_open() itself
///   io-timeout=S              a command that is not answered by then ends its connection; 30
///   connect-timeout=S         for each connection, and for each answer while it is set up; 10 over TCP, 3 over RDMA, and
///                             60 for an answer
///   keep-alive-tmo=S          Keep Alive Timeout; 5
///   reconnect-delay=S         before the first attempt to connect again; 1
///   ctrl-loss-tmo=S           how long to try, before operations fail for good; 600, -1 is for ever
///   fast-io-fail-tmo=S        how long operations wait for a reconnect before they fail; -1 (default): for its end
///   nr-io-queues=N            1; queue-size=N  128
///   hdr-digest=yes, data-digest=yes       checksums of NVMe/TCP
///   tls-key-file=FILE         TLS with this key; tls=yes  with one of the kernel's keyring
///   dhchap-secret-file=FILE   authentication; dhchap-ctrl-secret-file=FILE  also of the controller
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_open(
    uri: *const c_char,
    options: *const *const c_char,
    disk: *mut *mut nvmf_disk,
) -> c_int {
    call_int(|| {
        if disk.is_null() {
            return Err(Fault::misuse("disk is null: there is no place for the result"));
        }
        // SAFETY: the caller's texts and list stay as they are until this returns.
        let (uri, options) = unsafe { (text(uri, "uri")?, options::list(options)?) };
        let opened = open(uri, &options)?;
        // SAFETY: it is not null, and the caller says that a pointer may be written there.
        unsafe { disk.write(Box::into_raw(Box::new(opened))) };
        Ok(0)
    })
}

fn open(uri: &str, options: &[&str]) -> Result<nvmf_disk, Fault> {
    let uri: Uri = uri.parse()?;
    let settings = options::Settings::parse(options)?;
    let (timeout, begun) = (settings.timeout, Instant::now());
    let mut options = settings.connection(&uri)?;
    options.open_timeout = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
    let connection = block_on(Connection::connect(options)).map_err(|error| {
        let is_late = timeout.is_some_and(|timeout| begun.elapsed() >= timeout);
        let mut fault = Fault::from(error);
        if is_late {
            fault.errno = libc::ETIMEDOUT;
        }
        fault
    })?;
    let nsid = match uri.nsid {
        Some(nsid) => nsid,
        None => match &connection.namespaces()[..] {
            [one] => one.nsid,
            [] => {
                return Err(Fault::misuse(format!(
                    "{uri} has no namespace for this host, or none of a size and format that can be used (blocks of 512 bytes to \
                     64 KiB without metadata)"
                )));
            }
            all => {
                let there: Vec<_> = all.iter().map(|namespace| namespace.nsid.to_string()).collect();
                let message = format!(
                    "{uri} has {} namespaces for this host ({}): write /NSID behind it",
                    all.len(),
                    there.join(", ")
                );
                return Err(Fault::misuse(message));
            }
        },
    };
    let device = connection.open(nsid)?;
    let device = timeout.map_or_else(|| device.clone(), |timeout| device.with_timeout(timeout));
    Ok(nvmf_disk {
        queue: Queue::new(device)?,
        memory: Registered::default(),
        has_timeout: timeout.is_some(),
        process: fork::generation(),
    })
}

/// Closes a disk, shuts its controller down and frees its memory (nvmf_alloc()). Operations that have not ended fail, and their
/// completions are not returned. Null does nothing, nor does a disk of the process that this one was forked off from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_close(disk: *mut nvmf_disk) {
    call_int(|| {
        if !disk.is_null() {
            // SAFETY: it is of `nvmf_open`, and not closed.
            unsafe { open_disk(disk)? };
            // SAFETY: as above, and no other call uses it now or later.
            let disk = unsafe { Box::from_raw(disk) };
            let connection = disk.queue.device().connection();
            block_on(connection.close());
        }
        Ok(0)
    });
}

/// Fills *info in: the first size bytes of it, for which the caller passes sizeof(struct nvmf_info). What this version does not know of is
/// zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_identify(disk: *const nvmf_disk, info: *mut nvmf_info, size: usize) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        if info.is_null() {
            return Err(Fault::misuse("info is null"));
        }
        let known = identify(disk);
        // SAFETY: it has no padding, and lives until the end of this function.
        let bytes = unsafe { slice::from_raw_parts((&raw const known).cast::<u8>(), size_of::<nvmf_info>()) };
        let (to, len) = (info.cast::<u8>(), bytes.len().min(size));
        // SAFETY: the caller has `size` bytes there.
        unsafe {
            to.copy_from_nonoverlapping(bytes.as_ptr(), len);
            to.add(len).write_bytes(0, size - len);
        }
        Ok(0)
    })
}

fn identify(disk: &nvmf_disk) -> nvmf_info {
    let device = disk.queue.device();
    let connection = device.connection();
    let geometry = device.geometry();
    let namespace = device.namespace();
    let limits = namespace.as_ref().map(|namespace| namespace.limits);
    let state = match connection.state() {
        ConnectionState::Live => nvmf_state::Live,
        ConnectionState::Foreign => nvmf_state::Foreign,
        ConnectionState::Lost => nvmf_state::Lost,
        // Connecting: I/O waits.
        _ => nvmf_state::Connecting,
    };
    nvmf_info {
        size: geometry.bytes(),
        block_size: geometry.block_size,
        max_transfer: connection.controller().transfer_bytes_max,
        max_compare_and_write: device.compare_and_write_max(),
        preferred_write: geometry.preferred.write.saturating_mul(geometry.block_size),
        nsid: device.nsid().0,
        state: state as u32,
        uuid: namespace.as_ref().map_or([0; 16], |namespace| namespace.uuid),
        nguid: namespace.as_ref().map_or([0; 16], |namespace| namespace.nguid),
        eui64: namespace.as_ref().map_or([0; 8], |namespace| namespace.eui64),
        read_only: geometry.read_only,
        volatile_cache: geometry.volatile_write_cache,
        discards: geometry.deallocate,
        discards_to_zeroes: geometry.zero_after_deallocate,
        writes_zeroes: limits.is_some_and(|limits| limits.write_zeroes_blocks > 0),
        compares: limits.is_some_and(|limits| limits.compare),
        copies: limits.is_some_and(|limits| limits.copy_blocks > 0),
        reserved: false,
    }
}

/// The caller's disk.
///
/// # Safety
/// It is null, or of `nvmf_open` and not closed while the result is used.
pub(crate) unsafe fn open_disk<'a>(disk: *const nvmf_disk) -> Result<&'a nvmf_disk, Fault> {
    // SAFETY: the caller's promise.
    let disk = unsafe { disk.as_ref() }.ok_or_else(|| Fault::misuse("disk is null"))?;
    match disk.process == fork::generation() {
        true => Ok(disk),
        false => Err(Fault::misuse(
            "the disk was opened by the process that this one was forked off from: open one here",
        )),
    }
}

impl nvmf_disk {
    pub(crate) fn device(&self) -> &Device {
        self.queue.device()
    }

    /// That these bytes are on the disk.
    pub(crate) fn check(&self, what: &str, offset: u64, len: u64) -> Result<(), Fault> {
        let size = self.device().geometry().bytes();
        match offset.checked_add(len).is_some_and(|end| end <= size) {
            true => Ok(()),
            false => Err(Fault::misuse(format!(
                "{what} of {len} bytes at byte {offset}: the disk has {size} bytes"
            ))),
        }
    }
}

// Every call may come from any thread.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<nvmf_disk>();
    shared::<Error>();
};
// A structure that is copied byte by byte has no padding.
const _: () = assert!(size_of::<nvmf_info>() == 8 + 6 * 4 + 16 + 16 + 8 + 8);
