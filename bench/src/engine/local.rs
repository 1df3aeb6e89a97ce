//! Files, block devices, memory and nothing.

use super::{Engine, EngineError};
use crate::job::{EngineKind, Extent, Job, JobOptions};
use crate::workload::Random;
use core::time::Duration;
use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec};
use nvmf_block::{Backend, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_memory::Memory;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What a memory or null disk has when the job does not say: 1 GiB.
const SIZE_DEFAULT: u64 = 1 << 30;
/// Bytes written at once when a file is laid out.
const LAY_OUT_LEN: usize = 1 << 20;

/// The one device of every devices here.
const DEVICE: DeviceId = DeviceId(0);

/// One disk as a device.
pub struct Local(Devices);

impl Local {
    /// Devices for a job of this depth.
    ///
    /// # Errors
    /// [`EngineError::Devices`].
    pub fn new(disk: &Disk, depth: u32) -> Result<Self, EngineError> {
        // Room for a flush beside the job's own operations.
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

/// Opens the disk of a job's `number`-th thread, or finds it among those that are open; lays its file out when that is missing or too
/// short. `read_only` when no job writes.
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
    // Memory has no name of its own: threads of one section share it, and so do sections that name the same.
    let name = match options.engine() {
        EngineKind::IoUring => path.display().to_string(),
        _ => format!("{} {}", options.engine().name(), options.filename.as_ref().unwrap_or(&job.name)),
    };
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

/// The bytes that a disk needs for `size` bytes of every thread.
fn needed(options: &JobOptions, size: u64) -> u64 {
    let increment = options.offset_increment.of(size).saturating_mul(u64::from(options.numjobs) - 1);
    size.saturating_add(options.offset.of(size)).saturating_add(increment)
}

/// The file of a thread: as named, else as fio names it.
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

/// Makes the file `size` bytes long: filled with random bytes if it is going to be read.
fn lay_out(path: &Path, size: u64, fill: bool) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let have = file.metadata()?.len();
    if fill {
        eprintln!("nvmf-bench: laying out {} ({} MiB)", path.display(), size >> 20);
        write_random(&mut file, size - have)?;
    } else {
        nix::fcntl::posix_fallocate(&file, 0, i64::try_from(size).unwrap_or(i64::MAX))?;
    }
    file.sync_all()
}

fn write_random(file: &mut File, len: u64) -> io::Result<()> {
    let mut random = Random::new(len, 0);
    let mut bytes = vec![0; LAY_OUT_LEN];
    let mut left = len;
    while left > 0 {
        bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
        let part = usize::try_from(left).map_or(LAY_OUT_LEN, |left| left.min(LAY_OUT_LEN));
        file.write_all(&bytes[..part])?;
        left -= part as u64;
    }
    Ok(())
}
