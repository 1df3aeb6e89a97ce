//! Files, block devices, memory and null disks.

use super::{Engine, EngineError};
use crate::job::{EngineKind, Extent, Job, JobOptions};
use crate::message::say;
use crate::report::bytes_binary;
use crate::workload::Random;
use core::time::Duration;
use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec};
use nvmf_block::{Backend, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_memory::Memory;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Size of a memory or null disk if the job does not give one: 1 GiB.
const SIZE_DEFAULT: u64 = 1 << 30;
/// Bytes per write when a file is created.
const FILL_LEN: usize = 1 << 20;

/// The only device of each [`Local`].
const DEVICE: DeviceId = DeviceId(0);

/// A local disk.
pub struct Local(Devices);

impl Local {
    /// Attaches the disk, with queues for a job of this depth.
    ///
    /// # Errors
    /// [`EngineError::Devices`].
    pub fn new(disk: &Disk, depth: u32) -> Result<Self, EngineError> {
        // One more than the job's operations, for a flush.
        let mut devices = Devices::new(DevicesOptions { depth: depth.saturating_add(1) })?;
        devices.attach(DEVICE, disk)?;
        Ok(Self(devices))
    }
}

impl Backend for Local {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, nvmf_block::BlockError> {
        self.0.register(memory)
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.0.geometry(device)
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        self.0.submit(tag, device, op)
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.0.poll(completions);
    }
}

impl Engine for Local {
    fn device(&self) -> DeviceId {
        DEVICE
    }

    fn wait(&mut self, most: Duration) {
        self.0.wait(Some(most));
    }
}

/// Opens the disk of thread `number` of a job, or returns it if it is in `open`. Creates or extends the file if it is
/// missing or too short. `read_only` is set when no job writes.
///
/// # Errors
/// [`EngineError`].
pub fn open_disk(
    job: &Job,
    number: u32,
    read_only: bool,
    open: &mut HashMap<String, Disk>,
) -> Result<Disk, EngineError> {
    let options = &job.options;
    let path = path(job, number);
    // Memory disks are shared by the threads of a section, and by sections with the same filename.
    let name = match options.engine() {
        EngineKind::IoUring => path.display().to_string(),
        _ => format!("{} {}", options.engine().name(), options.filename.as_ref().unwrap_or(&job.name)),
    };
    if options.engine() == EngineKind::IoUring && options.invalidate {
        drop_pages(&path);
    }
    if let Some(disk) = open.get(&name) {
        return Ok(disk.clone());
    }
    let size = match options.size {
        Some(Extent::Bytes(bytes)) => Some(needed(options, bytes)),
        _ => None,
    };
    let block_size = (!options.bs_least().is_multiple_of(4096)).then_some(512);
    let disk = match options.engine() {
        EngineKind::Memory => {
            Disk::open(&DiskSpec::Memory { size: size.unwrap_or(SIZE_DEFAULT) }, block_size, false)?
        }
        EngineKind::Null => {
            Disk::open(&DiskSpec::Null { size: size.unwrap_or(SIZE_DEFAULT) }, block_size, false)?
        }
        _ => open_path(&path, size, options, block_size, read_only)?,
    };
    open.insert(name, disk.clone());
    Ok(disk)
}

/// Drops a file's clean pages from the page cache, so that they are read from the disk. This is best effort, as in fio.
fn drop_pages(path: &Path) {
    if let Ok(file) = File::open(path) {
        let _ = nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}

/// The size that a disk needs so that every thread has `size` bytes.
fn needed(options: &JobOptions, size: u64) -> u64 {
    let increment = options.offset_increment.of(size).saturating_mul(u64::from(options.numjobs) - 1);
    size.saturating_add(options.offset.of(size)).saturating_add(increment)
}

/// The file of a thread: `filename`, or fio's default name.
fn path(job: &Job, number: u32) -> PathBuf {
    let name = job.options.filename.clone().unwrap_or_else(|| format!("{}.{number}.0", job.name));
    job.options
        .directory
        .as_ref()
        .map_or_else(|| PathBuf::from(&name), |folder| Path::new(folder).join(&name))
}

fn open_path(
    path: &Path,
    size: Option<u64>,
    options: &JobOptions,
    block_size: Option<u32>,
    read_only: bool,
) -> Result<Disk, EngineError> {
    let metadata = std::fs::metadata(path);
    let is_short = match &metadata {
        Ok(metadata) => metadata.is_file() && size.is_some_and(|size| metadata.len() < size),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if is_short {
        let size = size.ok_or_else(|| {
            EngineError::Option(format!("{} does not exist: give its size=", path.display()))
        })?;
        let size = size.next_multiple_of(512);
        lay_out(path, size, options.rw.reads)
            .map_err(|source| EngineError::LayOut { path: path.display().to_string(), source })?;
    }
    let spec = DiskSpec::Path { path: path.to_owned(), create: None };
    let disk = if options.direct || metadata.is_ok_and(|metadata| !metadata.is_file()) {
        Disk::open(&spec, block_size, read_only)?
    } else {
        Disk::open_buffered(path, block_size, read_only)?
    };
    Ok(disk)
}

/// Extends the file to `size` bytes, filled with random bytes if the job reads. When that fails, the file is as it was.
fn lay_out(path: &Path, size: u64, fill: bool) -> io::Result<()> {
    let is_new = !path.exists();
    let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let have = file.metadata()?.len();
    let name = path.display();
    let [from, to] = [have, size].map(|bytes| bytes_binary(bytes as f64));
    if is_new {
        say(format_args!("creating {name} ({to})"));
    } else {
        say(format_args!("extending {name} from {from} to {to}"));
    }
    let outcome = extend(&mut file, have, size, fill);
    if outcome.is_err() {
        // The first error is the one that is reported.
        let _ = if is_new { std::fs::remove_file(path) } else { file.set_len(have) };
    }
    outcome
}

/// Has the file system set the whole file aside first, so that a full one is noticed before anything is written.
fn extend(file: &mut File, have: u64, size: u64, fill: bool) -> io::Result<()> {
    nix::fcntl::posix_fallocate(&file, 0, i64::try_from(size).unwrap_or(i64::MAX))?;
    if fill {
        file.seek(SeekFrom::Start(have))?;
        write_random(file, size - have)?;
    }
    file.sync_all()
}

fn write_random(file: &mut File, len: u64) -> io::Result<()> {
    let mut random = Random::new(len, 0);
    let mut bytes = vec![0; FILL_LEN];
    let mut left = len;
    while left > 0 {
        bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
        let part = usize::try_from(left).map_or(FILL_LEN, |left| left.min(FILL_LEN));
        file.write_all(&bytes[..part])?;
        left -= part as u64;
    }
    Ok(())
}
