//! What Identify says of the controller and its namespaces, and what makes it unusable.

use super::{AssociationConfig, AssociationError, ControllerInfo, Gate, Purpose};
use crate::io::CommandLimits;
use crate::{Cntlid, Namespace, Nqn, Nsid, limits};
use alloc::string::String;
use core::time::Duration;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;
use nvme_proto::admin::identify::{
    CSI_NVM, Descriptors, IdentifyController, IdentifyNamespace, IndependentNamespace, NamespaceIdType,
    NvmController, cmic, ctratt, fuses, independent_nsfeat, lpa, nsfeat, oncs, sgls, vwc,
};
use nvme_proto::fabrics::discovery::TransportType;
use nvmf_block::{Geometry, Preferred};
use zerocopy::FromBytes;

/// NSATTR bit 0: currently write protected.
const WRITE_PROTECTED: u8 = 1 << 0;
/// DLFEAT bit 3: Write Zeroes takes the Deallocate bit.
const WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;
/// CDFS bit 0: Copy takes source ranges of format 0.
const COPY_FORMAT_0: u16 = 1 << 0;
/// Bytes that MDTS and its like count in powers of two: MPSMIN is 0, as the set-up refuses any other.
const PAGE: u64 = 4096;

/// SGLS bits 1:0: SGLs are supported, of any alignment or of whole dwords.
const SGL_SUPPORT: u32 = 0b11;

/// CNTRLTYPE; 0 comes from controllers older than the field.
mod controller_type {
    pub(super) const IO: u8 = 1;
    pub(super) const DISCOVERY: u8 = 2;
}

/// What the set-up needs of Identify Controller.
#[derive(Debug, Default)]
pub(super) struct ControllerIdentity {
    /// MAXCMD; 0 when it does not say.
    pub(super) commands_max: u16,
    /// AERL.
    pub(super) event_request_limit: u8,
    /// OAES.
    pub(super) events: u32,
    /// CTRATT.TBKAS.
    pub(super) traffic_based_keep_alive: bool,
    /// LPA: log pages can be read from an offset on.
    pub(super) extended_logs: bool,
    /// Blocks in a Compare and Write, where the namespace says nothing (ACWU); `None`: not supported.
    compare_and_write_blocks: Option<u32>,
    /// Copy takes source ranges of format 0.
    copies: bool,
    nvm: NvmLimits,
}

/// Identify Controller of the NVM command set; zeroes are "no limit".
#[derive(Debug, Default)]
struct NvmLimits {
    verify_bytes: u64,
    write_zeroes_bytes: u64,
    deallocate_ranges: u8,
    deallocate_blocks: u32,
    /// All ranges of a command together: what is beyond is not deallocated, with success.
    deallocate_command_blocks: u64,
}

/// Reads Identify Controller: checks that the controller can be used, fills in `info`.
pub(super) fn controller(
    data: &[u8],
    config: &AssociationConfig,
    info: &mut ControllerInfo,
) -> Result<ControllerIdentity, AssociationError> {
    let identify = IdentifyController::ref_from_bytes(data).map_err(|_| AssociationError::Malformed {
        what: "Identify Controller",
        problem: "it is not 4096 bytes",
    })?;
    check(identify, config, info).map_err(AssociationError::Gate)?;
    describe(identify, config, info);
    Ok(ControllerIdentity {
        commands_max: identify.maxcmd.get(),
        event_request_limit: identify.aerl_z,
        events: identify.oaes.get(),
        traffic_based_keep_alive: identify.ctratt.get() & ctratt::TRAFFIC_BASED_KEEP_ALIVE != 0,
        extended_logs: identify.lpa & lpa::EXTENDED_DATA != 0,
        compare_and_write_blocks: (identify.fuses.get() & fuses::COMPARE_AND_WRITE != 0)
            .then(|| u32::from(identify.acwu_z.get()) + 1),
        copies: identify.oncs.get() & oncs::COPY != 0 && identify.cdfs.get() & COPY_FORMAT_0 != 0,
        nvm: NvmLimits::default(),
    })
}

/// The same checks as kernel hosts make.
fn check(
    identify: &IdentifyController,
    config: &AssociationConfig,
    info: &ControllerInfo,
) -> Result<(), Gate> {
    let cntlid = Cntlid(identify.cntlid.get());
    if cntlid != info.cntlid {
        return Err(Gate::ControllerId { identify: cntlid, connect: info.cntlid });
    }
    let io = config.purpose == Purpose::Io;
    let wanted = if io { controller_type::IO } else { controller_type::DISCOVERY };
    if identify.cntrltype != 0 && identify.cntrltype != wanted {
        return Err(Gate::ControllerType(identify.cntrltype));
    }
    let required = if config.transport == TransportType::TCP { SGL_SUPPORT } else { sgls::KSDBDS };
    if identify.sgls.get() & required == 0 {
        return Err(Gate::Sgls(identify.sgls.get()));
    }
    if !io {
        // The rest is about I/O queues, which discovery controllers do not have.
        return Ok(());
    }
    match identify {
        _ if identify.kas.get() == 0 => Err(Gate::KeepAlive),
        _ if identify.ioccsz.get() < 4 => Err(Gate::CommandCapsule(identify.ioccsz.get())),
        _ if identify.iorcsz.get() < 1 => Err(Gate::ResponseCapsule(identify.iorcsz.get())),
        _ if identify.icdoff.get() != 0 => Err(Gate::InCapsuleOffset(identify.icdoff.get())),
        _ => Ok(()),
    }
}

fn describe(identify: &IdentifyController, config: &AssociationConfig, info: &mut ControllerInfo) {
    let text = |field: &[u8]| String::from(IdentifyController::text(field));
    info.serial = text(&identify.sn);
    info.model = text(&identify.mn);
    info.firmware = text(&identify.fr);
    // UTF-8 up to its NUL, unlike the texts above. Some controllers give none.
    info.subsystem_nqn =
        Nqn::from_field(&identify.subnqn).map_or_else(|_| String::new(), |nqn| nqn.as_str().into());
    info.transfer_bytes_max = power_of_pages(identify.mdts)
        .and_then(|bytes| u32::try_from(bytes).ok())
        .map_or(limits::TRANSFER_BYTES_MAX, |bytes| bytes.min(limits::TRANSFER_BYTES_MAX));
    let in_capsule = identify.ioccsz.get().saturating_mul(16).saturating_sub(64);
    // NVMe/TCP has them without a bit of their own.
    let offsets = config.transport == TransportType::TCP || identify.sgls.get() & sgls::SAOS != 0;
    info.in_capsule_bytes = if offsets { in_capsule.min(limits::IN_CAPSULE_BYTES_MAX) } else { 0 };
    info.descriptors_max = identify.msdbd;
    info.optional_commands = identify.oncs.get();
    info.volatile_write_cache = identify.vwc & vwc::PRESENT != 0;
    info.keep_alive_grain = Duration::from_millis(100) * u32::from(identify.kas.get());
    info.retry_delays = [identify.crdt1, identify.crdt2, identify.crdt3]
        .map(|hundred_ms| Duration::from_millis(100) * u32::from(hundred_ms.get()));
    info.command_quiesce = Duration::from_millis(identify.cqt.get().into());
    info.instance = (identify.ciu != 0).then(|| ControllerInstance {
        cntlid: info.cntlid,
        uniquifier: identify.ciu,
        random: identify.cirn.get(),
    });
    info.ana = identify.cmic & cmic::ANARS != 0;
    info.ana_transition = Duration::from_secs(identify.anatt.into());
}

/// MDTS and its like: 2^n pages; 0 is no limit.
fn power_of_pages(exponent: u8) -> Option<u64> {
    if exponent == 0 {
        return None;
    }
    // More than a u64 can hold is no limit either.
    1u64.checked_shl(exponent.into()).and_then(|pages| pages.checked_mul(PAGE))
}

impl ControllerIdentity {
    /// Reads Identify Controller of the NVM command set; what cannot be read sets no limit.
    pub(super) fn set_nvm_limits(&mut self, data: &[u8]) {
        let Ok(nvm) = NvmController::ref_from_bytes(data) else { return };
        self.nvm = NvmLimits {
            verify_bytes: power_of_pages(nvm.vsl).unwrap_or(0),
            write_zeroes_bytes: power_of_pages(nvm.wzsl).unwrap_or(0),
            deallocate_ranges: nvm.dmrl,
            deallocate_blocks: nvm.dmrsl.get(),
            deallocate_command_blocks: nvm.dmsl.get(),
        };
    }

    fn command_limits(&self, info: &ControllerInfo, block_size: u32, dlfeat: u8) -> CommandLimits {
        let has = |command: u16| info.optional_commands & command != 0;
        let nonzero = |value: u64, no_limit: u64| if value == 0 { no_limit } else { value };
        // Where the controller sets no limit of its own, one command does no more than a transfer: it has to end within the time
        // that a command may take.
        let blocks = |bytes: u64| {
            let bytes = nonzero(bytes, info.transfer_bytes_max.into());
            u32::try_from(bytes / u64::from(block_size))
                .unwrap_or(u32::MAX)
                .clamp(1, limits::COMMAND_BLOCKS_MAX)
        };
        let deallocate = has(oncs::DATASET_MANAGEMENT);
        // Nothing is written, so more than a transfer; but it has to end, too.
        let deallocate_command_blocks =
            nonzero(self.nvm.deallocate_command_blocks, limits::DEALLOCATE_BYTES_MAX / u64::from(block_size));
        let deallocate_blocks = nonzero(self.nvm.deallocate_blocks.into(), u64::MAX)
            .min(deallocate_command_blocks)
            .clamp(1, u32::MAX.into()) as u32;
        CommandLimits {
            transfer_blocks: blocks(info.transfer_bytes_max.into()),
            write_zeroes_blocks: if has(oncs::WRITE_ZEROES) {
                blocks(self.nvm.write_zeroes_bytes)
            } else {
                0
            },
            write_zeroes_deallocate: dlfeat & WRITE_ZEROES_DEALLOCATES != 0,
            verify_blocks: if has(oncs::VERIFY) { blocks(self.nvm.verify_bytes) } else { 0 },
            deallocate_blocks: if deallocate { deallocate_blocks } else { 0 },
            deallocate_command_blocks,
            deallocate_ranges: nonzero(self.nvm.deallocate_ranges.into(), limits::DSM_RANGES_MAX as u64)
                as u16,
            compare: has(oncs::COMPARE),
            compare_and_write_blocks: 0,
            copy_blocks: 0,
            in_capsule_bytes: info.in_capsule_bytes,
        }
    }
}

impl Namespace {
    /// Reads Identify Namespace. `None` for one that is inactive or has a format that we cannot use: blocks with metadata, or of a size that no
    /// block device has, or more of them than one can have.
    pub(super) fn identify(
        nsid: Nsid,
        data: &[u8],
        identity: &ControllerIdentity,
        info: &ControllerInfo,
    ) -> Option<Self> {
        let identify = IdentifyNamespace::ref_from_bytes(data).ok()?;
        let format = identify.format()?;
        let blocks = identify.nsze.get();
        if blocks == 0 || format.ms.get() != 0 {
            return None;
        }
        let block_size = 1 << format.lbads;
        // Offsets are signed wherever the disk is served.
        blocks.checked_mul(block_size.into()).filter(|&bytes| bytes <= i64::MAX as u64)?;
        let mut command_limits = identity.command_limits(info, block_size, identify.dlfeat);
        if let Some(of_controller) = identity.compare_and_write_blocks {
            let nacwu = Some(identify.nacwu.get()).filter(|_| identify.nsfeat & nsfeat::ATOMIC != 0);
            // 0 refers to the controller's.
            let blocks = nacwu.filter(|&nacwu| nacwu > 0).map_or(of_controller, |nacwu| u32::from(nacwu) + 1);
            command_limits.compare_and_write_blocks = blocks.min(command_limits.transfer_blocks);
        }
        if identity.copies {
            command_limits.copy_blocks = identify.mcl.get().min(identify.mssrl.get().into());
        }
        // OPTPERF is bits 5:4 since NVMe 2.1, and bit 4 alone before. Each value of it but 0 says that NPWG is valid.
        let optimal_mask = if info.version >= (2, 1, 0) { nsfeat::OPTPERF } else { nsfeat::OPTPERF_NPDG };
        let optimal = identify.nsfeat & optimal_mask != 0;
        let deallocation = optimal && identify.nsfeat & nsfeat::OPTPERF_NPDG != 0;
        let blocks_of = |valid: bool, field_z: u16| if valid { u32::from(field_z) + 1 } else { 1 };
        let geometry = Geometry {
            preferred: Preferred {
                write: blocks_of(optimal, identify.npwg_z.get()),
                write_alignment: blocks_of(optimal, identify.npwa_z.get()),
                stripe: blocks_of(optimal, identify.nows_z.get()),
                deallocate: blocks_of(deallocation, identify.npdg_z.get()),
                deallocate_alignment: blocks_of(deallocation, identify.npda_z.get()),
                boundary: identify.noiob.get().into(),
            },
            volatile_write_cache: info.volatile_write_cache,
            deallocate: command_limits.deallocate_blocks > 0,
            zero_after_deallocate: identify.reads_zeroes_when_deallocated(),
            read_only: identify.nsattr & WRITE_PROTECTED != 0,
            ..Geometry::new(block_size, blocks)
        };
        Some(Self {
            nsid,
            geometry,
            nguid: identify.nguid,
            eui64: identify.eui64,
            uuid: [0; 16],
            ana_group: identify.anagrpid.get(),
            limits: command_limits,
        })
    }

    /// Reads Identify Namespace, independent of the command set: a namespace may lack the controller's volatile write cache.
    pub(super) fn read_independent(&mut self, data: &[u8]) {
        if let Ok(independent) = IndependentNamespace::ref_from_bytes(data)
            && independent.nsfeat & independent_nsfeat::VWCNP != 0
        {
            self.geometry.volatile_write_cache = false;
        }
    }

    /// Reads the identification descriptors. `None` for a namespace of another command set than NVM.
    pub(super) fn describe(mut self, data: &[u8]) -> Option<Self> {
        for descriptor in Descriptors::new(data) {
            match (descriptor.kind, descriptor.id) {
                (NamespaceIdType::UUID, id) => self.uuid = id.try_into().unwrap_or(self.uuid),
                (NamespaceIdType::CSI, [csi]) if *csi != CSI_NVM => return None,
                _ => {}
            }
        }
        Some(self)
    }
}
