//! Where a command's data are: checks its SGL against the bytes that the command moves and those in the capsule.

use crate::status;
use crate::step::{Keyed, Remote, Source, Transfer};
use nvme_proto::fabrics::discovery::TransportType;
use nvme_proto::fabrics::fabrics_type;
use nvme_proto::{Sgl, Sqe, Status};

/// The bits of PSDT in the flags of a command.
const PSDT: u8 = 0b11 << 6;
/// The bits of FUSE.
const FUSE: u8 = 0b11;

/// How long the SGL must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// As long as the data.
    Exact,
    /// At least as long as the data: hosts describe larger buffers for Admin commands, Dataset Management and Connect.
    AtLeast,
}

/// A descriptor that the transport does not have becomes one that nobody has: a command that needs its data fails, any
/// other ignores it. NVMe/RDMA has keyed descriptors, NVMe/TCP those of the transport; both have data in the capsule.
pub(crate) fn keep_to_transport(sqe: &mut Sqe, transport: TransportType) {
    const UNKNOWN: u8 = 0xff;
    let foreign = match sqe.sgl.parse() {
        Ok(Sgl::Keyed { .. }) => transport == TransportType::TCP,
        Ok(Sgl::Transport { .. }) => transport != TransportType::TCP,
        _ => false,
    };
    if foreign {
        sqe.sgl.kind = UNKNOWN;
    }
}

/// Data from the host.
pub(crate) fn from_host(sqe: &Sqe, len: u32, fit: Fit, in_capsule_len: usize) -> Result<Transfer, Status> {
    let source = match sqe.sgl.parse().map_err(Status::with_dnr)? {
        Sgl::Keyed { address, len: room, key, .. } => {
            check_len(len, room, fit)?;
            Source::Remote(Remote::Keyed(Keyed { address, key }))
        }
        Sgl::InCapsule { offset, len: room } => {
            check_len(len, room, fit)?;
            // ICDOFF is 0: offsets count from the end of the submission queue entry.
            let offset = u32::try_from(offset).map_err(|_| status::SGL_OFFSET_INVALID)?;
            let end = offset.checked_add(room).ok_or(status::SGL_OFFSET_INVALID)?;
            if usize::try_from(end).is_ok_and(|end| end <= in_capsule_len) {
                Source::InCapsule { offset }
            } else {
                return Err(status::SGL_OFFSET_INVALID);
            }
        }
        // MSDBD is 1: there is nothing that a list of descriptors could hold.
        Sgl::InCapsuleList { .. } => return Err(status::INVALID_SGL_COUNT),
        Sgl::Transport { len: room } => {
            check_len(len, room, fit)?;
            check_dwords(len)?;
            Source::Remote(Remote::Transport)
        }
    };
    Ok(Transfer::FromHost { len, source })
}

/// Data to the host. They cannot go into a capsule.
pub(crate) fn to_host(sqe: &Sqe, len: u32, fit: Fit) -> Result<Transfer, Status> {
    match sqe.sgl.parse().map_err(Status::with_dnr)? {
        Sgl::Keyed { address, len: room, key, .. } => {
            check_len(len, room, fit)?;
            Ok(Transfer::ToHost { len, sink: Remote::Keyed(Keyed { address, key }) })
        }
        Sgl::Transport { len: room } => {
            check_len(len, room, fit)?;
            check_dwords(len)?;
            Ok(Transfer::ToHost { len, sink: Remote::Transport })
        }
        Sgl::InCapsuleList { .. } => Err(status::INVALID_SGL_COUNT),
        Sgl::InCapsule { .. } => Err(status::SGL_DESCRIPTOR_TYPE_INVALID),
    }
}

fn check_len(len: u32, room: u32, fit: Fit) -> Result<(), Status> {
    let fits = match fit {
        Fit::Exact => len == room,
        Fit::AtLeast => len <= room,
    };
    if fits { Ok(()) } else { Err(status::DATA_SGL_LENGTH_INVALID) }
}

/// The PDUs of NVMe/TCP move whole dwords, and the messages of an authentication have a length in bytes.
fn check_dwords(len: u32) -> Result<(), Status> {
    if len.is_multiple_of(4) { Ok(()) } else { Err(status::INVALID_FIELD) }
}

/// The remote key that the host asks to have invalidated with the response, whatever that response is.
pub(crate) fn key_to_invalidate(sqe: &Sqe) -> Option<u32> {
    match sqe.sgl.parse() {
        Ok(Sgl::Keyed { len, key, invalidate: true, .. }) if len > 0 => Some(key),
        _ => None,
    }
}

/// Admin and I/O commands over Fabrics have an SGL (PSDT 01b). For Fabrics commands the standard has PSDT 00b (no data)
/// and 10b, and hosts send 01b. Only I/O commands may be `fusable`.
pub(crate) fn check_flags(sqe: &Sqe, fusable: bool) -> Result<(), Status> {
    let is_fabrics = fabrics_type(sqe).is_some();
    let psdt = if is_fabrics { 0b00..=0b10 } else { 0b01..=0b01 };
    let known = if fusable && !is_fabrics { PSDT | FUSE } else { PSDT };
    if psdt.contains(&sqe.psdt()) && sqe.flags & !known == 0 { Ok(()) } else { Err(status::INVALID_FIELD) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme_proto::SglDescriptor;

    fn with(sgl: SglDescriptor) -> Sqe {
        let mut sqe = Sqe::new(1);
        sqe.sgl = sgl;
        sqe
    }

    #[test]
    fn in_capsule_data_lie_within_the_capsule() {
        for (offset, len, capsule, good) in [
            (0, 512, 512, true),
            (512, 512, 1024, true),
            (1, 512, 512, false),
            (0, 512, 0, false),
            (0, 512, 511, false),
            (u64::MAX, 512, 4096, false),
            (u64::from(u32::MAX), 512, 4096, false),
            (u64::MAX - 511, 512, 4096, false),
        ] {
            let result = from_host(&with(SglDescriptor::in_capsule(offset, len)), len, Fit::Exact, capsule);
            let expected = if good {
                let source = Source::InCapsule { offset: u32::try_from(offset).unwrap() };
                Ok(Transfer::FromHost { len, source })
            } else {
                Err(status::SGL_OFFSET_INVALID)
            };
            assert_eq!(result, expected, "{offset}+{len} of {capsule}");
        }
    }

    #[test]
    fn data_to_the_host_need_memory_of_the_host() {
        assert_eq!(
            to_host(&with(SglDescriptor::in_capsule(0, 512)), 512, Fit::Exact),
            Err(status::SGL_DESCRIPTOR_TYPE_INVALID)
        );
        let keyed = SglDescriptor::keyed(0x1000, 512, 7, false);
        let sink = Remote::Keyed(Keyed { address: 0x1000, key: 7 });
        assert_eq!(to_host(&with(keyed), 512, Fit::Exact), Ok(Transfer::ToHost { len: 512, sink }));
    }

    #[test]
    fn lists_and_foreign_descriptors_are_refused_by_name() {
        for (sgl, status) in [
            (SglDescriptor::in_capsule_list(0, 32), status::INVALID_SGL_COUNT),
            (
                SglDescriptor { address: 0.into(), rest: [0; 7], kind: 0x10 },
                status::SGL_DESCRIPTOR_TYPE_INVALID,
            ),
            (
                SglDescriptor { address: 0.into(), rest: [0; 7], kind: 0x41 },
                status::SGL_DESCRIPTOR_TYPE_INVALID,
            ),
        ] {
            assert_eq!(from_host(&with(sgl), 512, Fit::Exact, 4096), Err(status), "{sgl:?}");
            assert_eq!(to_host(&with(sgl), 512, Fit::Exact), Err(status), "{sgl:?}");
        }
    }

    #[test]
    fn each_transport_has_its_own_descriptors() {
        let keyed = SglDescriptor::keyed(0x1000, 512, 7, true);
        let transport = SglDescriptor::transport(512);
        let data = |sgl, of| {
            let mut sqe = with(sgl);
            keep_to_transport(&mut sqe, of);
            let pair = (from_host(&sqe, 512, Fit::Exact, 0).is_ok(), to_host(&sqe, 512, Fit::Exact).is_ok());
            assert_eq!(key_to_invalidate(&sqe).is_some(), pair.0 && sgl == keyed);
            pair
        };
        assert_eq!(data(keyed, TransportType::RDMA), (true, true));
        assert_eq!(data(transport, TransportType::TCP), (true, true));
        assert_eq!(data(keyed, TransportType::TCP), (false, false));
        assert_eq!(data(transport, TransportType::RDMA), (false, false));
    }

    #[test]
    fn data_in_pdus_of_their_own_are_whole_dwords() {
        for (len, good) in [(3, false), (4, true), (4095, false), (4096, true)] {
            let refusal = (!good).then_some(status::INVALID_FIELD);
            let transport = with(SglDescriptor::transport(len));
            assert_eq!(from_host(&transport, len, Fit::Exact, 0).err(), refusal, "{len}");
            assert_eq!(to_host(&transport, len, Fit::Exact).err(), refusal, "{len}");
            let keyed = with(SglDescriptor::keyed(0x1000, len, 7, false));
            assert!(
                from_host(&keyed, len, Fit::Exact, 0).is_ok() && to_host(&keyed, len, Fit::Exact).is_ok()
            );
        }
    }

    #[test]
    fn only_a_keyed_descriptor_with_data_is_invalidated() {
        assert_eq!(key_to_invalidate(&with(SglDescriptor::keyed(0, 1, 9, true))), Some(9));
        assert_eq!(key_to_invalidate(&with(SglDescriptor::keyed(0, 0, 9, true))), None);
        assert_eq!(key_to_invalidate(&with(SglDescriptor::keyed(0, 1, 9, false))), None);
        assert_eq!(key_to_invalidate(&with(SglDescriptor::in_capsule(0, 1))), None);
    }

    #[test]
    fn check_flags_wants_an_sgl_and_fuses_only_io_commands() {
        for (flags, of_io, of_admin, of_fabrics) in [
            (0x40, true, true, true),
            (0x00, false, false, true),
            (0x80, false, false, true),
            (0xc0, false, false, false),
            (0x41, true, false, false),
            (0x42, true, false, false),
            (0x44, false, false, false),
        ] {
            let is_good = |opcode, io| check_flags(&Sqe { flags, ..Sqe::new(opcode) }, io).is_ok();
            let good = (is_good(0x01, true), is_good(0x01, false), is_good(0x7f, true));
            assert_eq!(good, (of_io, of_admin, of_fabrics), "{flags:#x}");
        }
    }
}
