//! Admin commands to a drive, by the kernel's ioctl; they block.
#![expect(
    unsafe_code,
    reason = "an ioctl with a pointer in its argument has no safe wrapper; see the SAFETY comments"
)]

use nvme_proto::admin::identify::{Cns, Identify};
use nvme_proto::{Nsid, Sqe};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use zerocopy::{FromBytes, FromZeros, IntoBytes, KnownLayout};

/// How long a drive may take, in milliseconds.
const TIMEOUT_MS: u32 = 10_000;

/// The kernel's `struct nvme_passthru_cmd`.
#[derive(Debug, Default)]
#[repr(C)]
struct Passthrough {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<Passthrough>() == 72);

mod ioctl {
    nix::ioctl_none!(nsid, b'N', 0x40);
    nix::ioctl_readwrite!(admin, b'N', 0x41, super::Passthrough);
}

/// The number of the namespace on its drive.
pub(super) fn nsid(file: &File) -> io::Result<u32> {
    // SAFETY: it has no argument.
    let nsid = unsafe { ioctl::nsid(file.as_raw_fd()) }?;
    Ok(nsid.cast_unsigned())
}

/// Identify, whose data is always a page. The kernel allows it to whoever may open the device (Linux 6.2); before, to root.
pub(super) fn identify<T: FromBytes + IntoBytes + FromZeros + KnownLayout>(
    file: &File,
    cns: Cns,
    nsid: Nsid,
) -> io::Result<T> {
    const { assert!(size_of::<T>() == 4096, "the drive fills a page") }
    read_into(file, &Identify::new(cns, nsid).emit())
}

/// The SMART / Health Information log page of the drive, 512 bytes (NVMe Base, "SMART / Health Information"). The kernel
/// wants `CAP_SYS_ADMIN` for it.
///
/// # Errors
/// The system's error, or the drive's status.
pub(crate) fn smart_log(file: &File) -> io::Result<[u8; 512]> {
    const GET_LOG_PAGE: u8 = 0x02;
    const SMART: u32 = 0x02;
    let dwords = 512 / 4 - 1;
    read_into(
        file,
        &Sqe::new(GET_LOG_PAGE).with_nsid(Nsid::ALL).with_dwords([SMART | dwords << 16, 0, 0, 0, 0, 0]),
    )
}

/// Carries out a command that fills a `T`: no drive may have more to transfer for it.
fn read_into<T: FromBytes + IntoBytes + FromZeros + KnownLayout>(file: &File, sqe: &Sqe) -> io::Result<T> {
    let mut data = T::new_zeroed();
    let bytes = data.as_mut_bytes();
    let mut command = Passthrough {
        opcode: sqe.opcode,
        nsid: sqe.nsid().0,
        address: bytes.as_mut_ptr() as u64,
        data_len: u32::try_from(bytes.len()).expect("a page"),
        cdw10_15: sqe.dwords(),
        timeout_ms: TIMEOUT_MS,
        ..Passthrough::default()
    };
    // SAFETY: the command is of the layout that the kernel reads, and names `data`, which is as long as it says and as what the
    // command has the drive transfer, and lives until the call is over: the kernel waits for the drive.
    let status = unsafe { ioctl::admin(file.as_raw_fd(), &raw mut command) }?;
    match status {
        0 => Ok(data),
        status => Err(io::Error::other(format!("the drive answers with NVMe status {status:#x}"))),
    }
}
