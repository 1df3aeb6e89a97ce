//! Opening a namespace of a local NVMe drive by its generic character device (`/dev/ngXnY`): commands go to the drive as
//! they are, past the kernel's block layer.

mod admin;

use super::block_device::Below;
use super::{FileDisk, Kind, OpenError, lock, whole_blocks};
use crate::uring::nvme::Namespace;
use admin::identify;
pub(super) use admin::smart_log;
use nvme_proto::Nsid;
use nvme_proto::admin::identify::{
    Cns, IdentifyController, IdentifyNamespace, NvmController, nsfeat, oncs, vwc,
};
use nvmf_block::{Geometry, Preferred};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use zerocopy::little_endian::U16;

/// Bytes of the unit of the drive's limits: its smallest page, of which drives have no other in practice.
const PAGE: usize = 4096;
/// Blocks of one command.
const BLOCKS_MAX: usize = 65536;
/// Bytes of one command, whatever the drive takes: the kernel needs a descriptor of each page.
const TRANSFER_MAX: usize = 512 << 10;

/// An open namespace of a drive.
#[derive(Debug)]
pub(crate) struct Drive {
    pub(crate) namespace: Namespace,
    /// The namespace's block device, which nobody else may mount or claim while it is open.
    block_device: Option<File>,
}

impl Drive {
    pub(super) fn try_clone(&self) -> std::io::Result<Self> {
        let block_device = self.block_device.as_ref().map(File::try_clone).transpose()?;
        Ok(Self { namespace: self.namespace, block_device })
    }
}

/// The name of the namespace's block device, for its generic device's: `nvme0n1` for `ng0n1`. `None`: it is no generic
/// device of a namespace.
fn block_name(rdev: u64) -> Option<String> {
    let (major, minor) = (nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev));
    let device = std::fs::canonicalize(format!("/sys/dev/char/{major}:{minor}")).ok()?;
    let generic = device.join("subsystem").canonicalize().ok()?.ends_with("nvme-generic");
    let name = device.file_name()?.to_str()?.strip_prefix("ng")?.to_owned();
    generic.then(|| format!("nvme{name}"))
}

/// The device number of the namespace's block device, by which its identity is found.
pub(super) fn block_device_number(rdev: u64) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/sys/class/block/{}/dev", block_name(rdev)?)).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(nix::sys::stat::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Opens a generic device.
pub(super) fn open(
    path: &Path,
    metadata: &std::fs::Metadata,
    asked: Option<u32>,
    read_only: bool,
) -> Result<(Kind, Geometry), OpenError> {
    let os = |source| OpenError::Os { path: path.to_owned(), source };
    let Some(block) = block_name(metadata.rdev()) else {
        return Err(OpenError::WrongKind { path: path.to_owned() });
    };
    let file = OpenOptions::new().read(true).write(!read_only).open(path).map_err(os)?;
    lock(&file, path, read_only)?;
    let block_device = claim(&PathBuf::from(format!("/dev/{block}")), read_only)?;
    let drive = |source| OpenError::Drive { path: path.to_owned(), source };
    let nsid = admin::nsid(&file).map_err(drive)?;
    let controller: IdentifyController = identify(&file, Cns::CONTROLLER, Nsid(0)).map_err(drive)?;
    let namespace: IdentifyNamespace = identify(&file, Cns::NAMESPACE, Nsid(nsid)).map_err(drive)?;
    // Drives before NVMe 1.4 or 2.0 do not have it.
    let limits = identify::<NvmController>(&file, Cns::COMMAND_SET_CONTROLLER, Nsid(0)).ok();
    let format = namespace.format().filter(|format| format.ms.get() == 0);
    let Some(format) = format else { return Err(OpenError::Format { path: path.to_owned() }) };
    let least = 1_u32 << format.lbads;
    let bytes = namespace.nsze.get().saturating_mul(least.into());
    let block_size = asked.unwrap_or(least);
    if block_size < least {
        return Err(OpenError::BlockSize { path: path.to_owned(), least, block_size });
    }
    let geometry = whole_blocks(&path.display().to_string(), bytes, Some(block_size), least)?;
    let has = |command: u16| controller.oncs.get() & command != 0;
    let (zeroes, deallocate) = (has(oncs::WRITE_ZEROES), has(oncs::DATASET_MANAGEMENT));
    let geometry = Geometry {
        volatile_write_cache: controller.vwc & vwc::PRESENT != 0,
        deallocate,
        zero_after_deallocate: deallocate && namespace.reads_zeroes_when_deallocated(),
        preferred: preferred(&namespace, block_size / least),
        ..geometry
    };
    let most = BLOCKS_MAX << format.lbads;
    let range = |limits: &NvmController| match (limits.dmrsl.get(), limits.dmsl.get()) {
        (0, 0) => u32::MAX.into(),
        (0, of_command) => of_command.min(u32::MAX.into()),
        (of_range, 0) => of_range.into(),
        (of_range, of_command) => of_command.min(of_range.into()),
    };
    let range = limits.as_ref().map_or(u32::MAX.into(), range);
    let namespace = Namespace {
        nsid,
        lbads: format.lbads,
        transfer_max: pages(controller.mdts).min(TRANSFER_MAX).min(most),
        zeroes_max: if zeroes { limits.map_or(most, |it| pages(it.wzsl)).min(most) } else { 0 },
        deallocate_max: if deallocate { range << format.lbads } else { 0 },
    };
    let drive = Some(Drive { namespace, block_device });
    // Dwords.
    let below = Below::of(metadata);
    let disk = FileDisk {
        file,
        memory_alignment: 4,
        direct: true,
        write_through: true,
        drive,
        place: None,
        below,
        served: None,
    };
    Ok((Kind::File(disk), geometry))
}

/// What the drive prefers, in blocks of `scale` blocks of its own; what is no multiple of these is no preference.
fn preferred(namespace: &IdentifyNamespace, scale: u32) -> Preferred {
    let blocks = |own: u32| if own.is_multiple_of(scale) { own / scale } else { 1 };
    let boundary = u32::from(namespace.noiob.get());
    let boundary = if boundary.is_multiple_of(scale) { boundary / scale } else { 0 };
    if namespace.nsfeat & nsfeat::OPTPERF != nsfeat::OPTPERF_NPDG {
        return Preferred { boundary, ..Preferred::default() };
    }
    let from_zero = |field: U16| blocks(u32::from(field.get()) + 1);
    Preferred {
        write: from_zero(namespace.npwg_z),
        write_alignment: from_zero(namespace.npwa_z),
        stripe: from_zero(namespace.nows_z),
        deallocate: from_zero(namespace.npdg_z),
        deallocate_alignment: from_zero(namespace.npda_z),
        boundary,
    }
}

/// A limit in pages, as a power of two; 0 is none.
fn pages(power: u8) -> usize {
    match power {
        0 => usize::MAX,
        power => PAGE.checked_shl(power.into()).unwrap_or(usize::MAX),
    }
}

/// Keeps the namespace's block device from others. It may be hidden: then nobody can have it.
fn claim(path: &Path, read_only: bool) -> Result<Option<File>, OpenError> {
    let flags = if read_only { 0 } else { libc::O_EXCL };
    match OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path) {
        Ok(file) => lock(&file, path, read_only).map(|()| Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            Err(OpenError::InUse { path: path.to_owned() })
        }
        Err(source) => Err(OpenError::Os { path: path.to_owned(), source }),
    }
}

/// Bytes of the namespace now.
///
/// # Errors
/// The system's or the drive's; or the namespace was formatted meanwhile, with other blocks.
pub(super) fn bytes(file: &File, namespace: &Namespace) -> std::io::Result<u64> {
    let identified: IdentifyNamespace = identify(file, Cns::NAMESPACE, Nsid(namespace.nsid))?;
    bytes_of(&identified, namespace)
}

fn bytes_of(identified: &IdentifyNamespace, namespace: &Namespace) -> std::io::Result<u64> {
    match identified.format() {
        Some(format) if (u32::from(format.lbads), format.ms.get()) == (namespace.lbads.into(), 0) => {
            Ok(identified.nsze.get() << namespace.lbads)
        }
        _ => Err(std::io::Error::other(
            "it was formatted with other blocks while it is served: remove the namespace, and add it again",
        )),
    }
}

/// Whether this is a generic device.
pub(super) fn is_generic(metadata: &std::fs::Metadata) -> bool {
    block_name(metadata.rdev()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_powers_of_pages() {
        assert_eq!([0, 1, 5, 200].map(pages), [usize::MAX, 8192, 131_072, usize::MAX]);
    }

    #[test]
    fn drive_prefers_what_it_says_in_blocks_of_the_disk() {
        let mut namespace: IdentifyNamespace = zerocopy::FromZeros::new_zeroed();
        assert_eq!(preferred(&namespace, 1), Preferred::default());
        (namespace.nsfeat, namespace.noiob) = (nsfeat::OPTPERF_NPDG, 256.into());
        (namespace.npwg_z, namespace.npwa_z, namespace.nows_z) = (7.into(), 7.into(), 255.into());
        (namespace.npdg_z, namespace.npda_z) = (15.into(), 4.into());
        let of_512 = preferred(&namespace, 1);
        assert_eq!((of_512.write, of_512.write_alignment, of_512.stripe, of_512.boundary), (8, 8, 256, 256));
        assert_eq!((of_512.deallocate, of_512.deallocate_alignment), (16, 5));
        let of_4096 = preferred(&namespace, 8);
        assert_eq!((of_4096.write, of_4096.write_alignment, of_4096.stripe), (1, 1, 32));
        assert_eq!((of_4096.deallocate, of_4096.deallocate_alignment, of_4096.boundary), (2, 1, 32));
    }

    #[test]
    fn namespace_that_was_formatted_is_not_counted_in_old_blocks() {
        let mut identified: IdentifyNamespace = zerocopy::FromZeros::new_zeroed();
        identified.nsze = 1000.into();
        identified.lbaf[0].lbads = 9;
        identified.lbaf[1].lbads = 12;
        let namespace = Namespace {
            nsid: 1,
            lbads: 9,
            transfer_max: 1 << 20,
            zeroes_max: 1 << 20,
            deallocate_max: 1 << 20,
        };
        assert_eq!(bytes_of(&identified, &namespace).unwrap(), 512_000);
        identified.flbas = 1;
        let error = bytes_of(&identified, &namespace).unwrap_err().to_string();
        assert!(error.contains("formatted"), "{error}");
        identified.flbas = 0;
        identified.lbaf[0].ms = 8.into();
        assert!(bytes_of(&identified, &namespace).is_err());
    }

    #[test]
    fn other_character_devices_are_no_drives() {
        let metadata = std::fs::metadata("/dev/null").unwrap();
        assert!(!is_generic(&metadata));
        let refused = open(Path::new("/dev/null"), &metadata, None, false);
        assert!(matches!(refused, Err(OpenError::WrongKind { .. })));
    }
}
