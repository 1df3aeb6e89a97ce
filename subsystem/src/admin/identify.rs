//! Identify: the controller says what it serves.

use super::features::notices;
use super::write_protection;
use crate::controller::Controller;
use crate::fabrics::VERSION;
use crate::io::copy;
use crate::limits::{
    ABORTS_MAX, ANA_GROUPS_MAX, ANA_TRANSITION_S, ASYNC_EVENT_REQUESTS_MAX, BLOCKS_LEN_MAX,
    COMMAND_QUIESCE_MS, COPY_RANGES_MAX, CROSS_CONTROLLER_RESETS_MAX, DMRL, DSM_BLOCKS_MAX,
    ERROR_LOG_ENTRIES, KEEP_ALIVE_GRANULARITY_100MS, NSID_MAX, PAGE_LEN, RETRY_DELAY_100MS,
};
use crate::namespace::{NamespaceDefinition, NamespaceTable};
use crate::reservation::{RESCAP_PERSISTS, RESCAP_TYPES};
use crate::ticket::Outcome;
use crate::{AnaState, Nqn, Nsid, Options, Page, TransportType, status};
use nvme_proto::admin::identify::{
    CSI_NVM, Cns, DescriptorWriter, IdList, Identify, IdentifyController, IdentifyNamespace,
    IndependentNamespace, LbaFormat, NamespaceIdType, NvmController, cmic, ctratt, fuses, independent_nsfeat,
    lpa, nsfeat, oncs, sgls, vwc,
};
use nvme_proto::{Sqe, Status};
use zerocopy::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

/// CNTRLTYPE.
const TYPE_IO: u8 = 1;
const TYPE_DISCOVERY: u8 = 2;
/// FRMW: one slot, which cannot be written.
const FIRMWARE_ONE_SLOT_READ_ONLY: u8 = 1 << 1 | 1;
/// VWC bits 2:1: a flush of all namespaces is not supported.
const VWC_NO_FLUSH_ALL: u8 = 0b10 << 1;
/// OFCS bit 0: Disconnect.
const OFCS_DISCONNECT: u16 = 1;
/// NMIC: other controllers may have it as well.
const NMIC_SHARED: u8 = 1;
/// ANACAP: the five states are reported.
const ANACAP_ALL_STATES: u8 = 0b1_1111;
/// NSATTR: write protected.
const NSATTR_WRITE_PROTECTED: u8 = 1;
/// NSTAT: ready.
const NSTAT_READY: u8 = 1;
/// DLFEAT bits 2:0 (DRB): deallocated blocks read as zeroes.
const DLFEAT_DRB_ZEROES: u8 = 0b001;
/// DLFEAT bit 3 (WZDS): Write Zeroes may deallocate.
const DLFEAT_WZDS: u8 = 1 << 3;

pub(crate) fn on_identify(controller: &Controller, sqe: &Sqe) -> Outcome {
    let command = Identify::parse(sqe);
    let page = match controller.namespaces() {
        None if command.cns == Cns::CONTROLLER => page_of(&identify_controller(controller)),
        None => return Err(status::INVALID_FIELD),
        Some(table) => io_page(controller, table, &command)?,
    };
    Controller::send_page(sqe, page, PAGE_LEN as u32)
}

fn io_page(controller: &Controller, table: &NamespaceTable, command: &Identify) -> Result<Page, Status> {
    let nsid = command.nsid;
    let host = &controller.association.host_nqn;
    let active = || table.get_for(nsid, host).ok_or(status::INVALID_NAMESPACE);
    if is_command_set_specific(command.cns) && command.csi != CSI_NVM {
        return Err(status::INVALID_FIELD);
    }
    Ok(match command.cns {
        Cns::CONTROLLER => page_of(&identify_controller(controller)),
        // A namespace that is not there is all zeroes, one that can never be there is an error.
        Cns::NAMESPACE => match table.get_for(check_nsid(nsid)?, host) {
            Some(namespace) => {
                page_of(&identify_namespace(namespace, ana_state(controller, table, namespace)))
            }
            None => zeroes(),
        },
        Cns::ACTIVE_NAMESPACES | Cns::COMMAND_SET_ACTIVE_NAMESPACES => {
            page_of(&active_list(table, host, nsid)?)
        }
        Cns::NAMESPACE_DESCRIPTORS => descriptors(active()?),
        Cns::INDEPENDENT_NAMESPACE => page_of(&independent(active()?)),
        // No protection information and no extended formats: all zeroes, as for a namespace that is not there.
        Cns::COMMAND_SET_NAMESPACE => {
            check_nsid(nsid)?;
            zeroes()
        }
        Cns::COMMAND_SET_CONTROLLER => page_of(&nvm_controller()),
        // One combination: the NVM command set alone.
        Cns::COMMAND_SETS => Page::build(|out| out[0] = 1 << CSI_NVM),
        // No namespace management, no sets, no virtualization, no granularities, no UUID list.
        _ => return Err(status::INVALID_FIELD),
    })
}

fn is_command_set_specific(cns: Cns) -> bool {
    matches!(
        cns,
        Cns::COMMAND_SET_NAMESPACE | Cns::COMMAND_SET_CONTROLLER | Cns::COMMAND_SET_ACTIVE_NAMESPACES
    )
}

fn check_nsid(nsid: Nsid) -> Result<Nsid, Status> {
    if (1..=NSID_MAX).contains(&nsid.0) { Ok(nsid) } else { Err(status::INVALID_NAMESPACE) }
}

fn ana_state(controller: &Controller, table: &NamespaceTable, namespace: &NamespaceDefinition) -> AnaState {
    table.ana().state(controller.association.port, namespace.access.ana_group)
}

fn zeroes() -> Page {
    Page::build(|_| ())
}

fn page_of(structure: &impl IdentifyPage) -> Page {
    Page::build(|out| out.copy_from_slice(structure.as_bytes()))
}

/// A structure of 4096 bytes.
trait IdentifyPage: IntoBytes + zerocopy::Immutable {}
impl IdentifyPage for IdentifyController {}
impl IdentifyPage for IdentifyNamespace {}
impl IdentifyPage for IndependentNamespace {}
impl IdentifyPage for IdList {}
impl IdentifyPage for NvmController {}

fn identify_controller(controller: &Controller) -> IdentifyController {
    let (association, identity) = (&controller.association, &controller.identity);
    let mut id = IdentifyController::new();
    IdentifyController::set_text(&mut id.sn, &identity.serial);
    IdentifyController::set_text(&mut id.mn, &identity.model);
    id.fr = association.options.firmware;
    id.subnqn = identity.nqn.to_field();
    id.cntlid = association.key.cntlid.0.into();
    id.ver = VERSION.into();
    id.mdts = association.options.transfer_len_max.ilog2() as u8 - PAGE_LEN.ilog2() as u8;
    id.cmic = cmic::MULTI_PORT | cmic::MULTI_CONTROLLER;
    id.oaes = notices(controller).into();
    id.ctratt = (ctratt::HOST_ID_128 | ctratt::TRAFFIC_BASED_KEEP_ALIVE).into();
    id.kas = KEEP_ALIVE_GRANULARITY_100MS.into();
    id.aerl_z = ASYNC_EVENT_REQUESTS_MAX as u8 - 1;
    let of_transport = match association.transport {
        TransportType::TCP => sgls::TSDBDS,
        _ => sgls::KSDBDS,
    };
    id.sgls = (sgls::SUPPORTED | sgls::SAOS | of_transport).into();
    id.iorcsz = 1.into();
    id.ioccsz = ((64 + association.in_capsule_len) / 16).into();
    id.msdbd = 1;
    id.lpa = lpa::EFFECTS | lpa::EXTENDED_DATA | lpa::SUPPORTED_LOG_PAGES;
    id.maxcmd = association.options.queue_entries_max.into();
    match controller.namespaces() {
        // DCTYPE stays "not reported": a host that reads "direct" registers (Discovery Information Management), which
        // nothing here has a use for.
        None => id.cntrltype = TYPE_DISCOVERY,
        Some(table) => {
            let instance = association.instance();
            (id.ciu, id.cirn) = (instance.uniquifier, instance.random.into());
            identify_io(&mut id, &association.options);
            let known =
                table.seen_by(&association.host_nqn).filter(|it| is_known(ana_state(controller, table, it)));
            let bytes: u128 = known.map(bytes_of).sum();
            id.tnvmcap = bytes.to_le_bytes();
        }
    }
    id
}

/// Limits of the commands that MDTS does not bound, as they move no data or little.
fn nvm_controller() -> NvmController {
    let pages = BLOCKS_LEN_MAX.ilog2() as u8 - PAGE_LEN.ilog2() as u8;
    let mut id = NvmController::new_zeroed();
    (id.vsl, id.wzsl) = (pages, pages);
    (id.dmrl, id.dmrsl, id.dmsl) = (DMRL, DSM_BLOCKS_MAX.into(), u64::from(DSM_BLOCKS_MAX).into());
    id
}

/// What only an I/O controller has.
fn identify_io(id: &mut IdentifyController, options: &Options) {
    id.cntrltype = TYPE_IO;
    id.crdt1 = RETRY_DELAY_100MS.into();
    id.elpe_z = ERROR_LOG_ENTRIES as u8 - 1;
    id.acl_z = ABORTS_MAX - 1;
    id.frmw = FIRMWARE_ONE_SLOT_READ_ONLY;
    (id.sqes, id.cqes) = (0x66, 0x44);
    id.cmic |= cmic::ANARS;
    (id.anatt, id.anacap) = (ANA_TRANSITION_S, ANACAP_ALL_STATES);
    (id.anagrpmax, id.nanagrpid) = (ANA_GROUPS_MAX.into(), ANA_GROUPS_MAX.into());
    id.nn = NSID_MAX.into();
    id.mnan = (options.namespaces_max() as u32).into();
    id.oncs = (oncs::COMPARE
        | oncs::DATASET_MANAGEMENT
        | oncs::WRITE_ZEROES
        | oncs::RESERVATIONS
        | oncs::SAVE_SELECT
        | oncs::TIMESTAMP
        | oncs::VERIFY
        | oncs::COPY)
        .into();
    id.nwpc = if options.write_protection { write_protection::NWPC } else { 0 };
    id.cdfs = copy::FORMATS.into();
    // ACWU and NACWU stay 0: of one logical block.
    id.fuses = fuses::COMPARE_AND_WRITE.into();
    // Whatever the namespaces are now: hosts read it once, and one with a volatile write cache may come later. VWCNP
    // names those without; a flush of them costs nothing.
    id.vwc = VWC_NO_FLUSH_ALL | vwc::PRESENT;
    id.ccrl = CROSS_CONTROLLER_RESETS_MAX;
    id.cqt = COMMAND_QUIESCE_MS.into();
    id.ofcs = OFCS_DISCONNECT.into();
}

fn identify_namespace(namespace: &NamespaceDefinition, state: AnaState) -> IdentifyNamespace {
    let geometry = &namespace.geometry;
    let mut id = IdentifyNamespace::new_zeroed();
    (id.nsze, id.ncap) = (geometry.blocks.into(), geometry.blocks.into());
    if is_known(state) {
        id.nuse = geometry.blocks.into();
        id.nvmcap = bytes_of(namespace).to_le_bytes();
    }
    id.anagrpid = namespace.access.ana_group.into();
    id.nmic = NMIC_SHARED;
    id.rescap = rescap(namespace);
    id.nsattr = nsattr(namespace);
    id.nguid = namespace.nguid;
    id.eui64 = namespace.eui64;
    id.lbaf[0] = LbaFormat { ms: 0.into(), lbads: geometry.block_size.ilog2() as u8, rp: 0 };
    // WZDS has to be the same for all namespaces; that Write Zeroes may deallocate does not mean that it has to.
    id.dlfeat = DLFEAT_WZDS | if geometry.zero_after_deallocate { DLFEAT_DRB_ZEROES } else { 0 };
    (id.mssrl, id.mcl) = (copy::range_blocks_max(namespace).into(), copy::blocks_max(namespace).into());
    id.msrc_z = (COPY_RANGES_MAX - 1) as u8;
    // NAWUN, NAWUPF and NACWU stay 0, as AWUN, AWUPF and ACWU do: one block is atomic, whatever the disk could do more.
    // (Linux 6.15 to 6.17 takes no namespace whose atomic write unit is larger than that of the subsystem's first.)
    let preferred = &geometry.preferred;
    id.noiob = u16::try_from(preferred.boundary).unwrap_or(0).into();
    if preferred.any() {
        id.nsfeat = nsfeat::OPTPERF_NPDG;
        (id.npwg_z, id.npwa_z) = (preferred_z(preferred.write), preferred_z(preferred.write_alignment));
        (id.npdg_z, id.npda_z) =
            (preferred_z(preferred.deallocate), preferred_z(preferred.deallocate_alignment));
        id.nows_z = preferred_z(preferred.stripe);
    }
    id
}

/// Whether it is known what a namespace uses: not where it cannot be reached.
fn is_known(state: AnaState) -> bool {
    !matches!(state, AnaState::INACCESSIBLE | AnaState::PERSISTENT_LOSS)
}

fn bytes_of(namespace: &NamespaceDefinition) -> u128 {
    u128::from(namespace.geometry.blocks) * u128::from(namespace.geometry.block_size)
}

/// Preferred blocks, 0's based; one block, which is no preference, if there are too many for the field.
fn preferred_z(blocks: u32) -> U16 {
    u16::try_from(blocks.saturating_sub(1)).unwrap_or(0).into()
}

fn rescap(namespace: &NamespaceDefinition) -> u8 {
    RESCAP_TYPES | if namespace.access.reservation_persists { RESCAP_PERSISTS } else { 0 }
}

fn nsattr(namespace: &NamespaceDefinition) -> u8 {
    if namespace.is_read_only() { NSATTR_WRITE_PROTECTED } else { 0 }
}

fn independent(namespace: &NamespaceDefinition) -> IndependentNamespace {
    let mut id = IndependentNamespace::new_zeroed();
    id.nsfeat = if namespace.geometry.volatile_write_cache { 0 } else { independent_nsfeat::VWCNP };
    id.nmic = NMIC_SHARED;
    id.rescap = rescap(namespace);
    id.anagrpid = namespace.access.ana_group.into();
    id.nsattr = nsattr(namespace);
    id.nstat = NSTAT_READY;
    id
}

/// The NSIDs above `nsid` that the host sees.
fn active_list(table: &NamespaceTable, host: &Nqn, nsid: Nsid) -> Result<IdList, Status> {
    if nsid.0 >= 0xffff_fffe {
        return Err(status::INVALID_NAMESPACE);
    }
    Ok(IdList::new(table.seen_by(host).map(|namespace| namespace.nsid.0).filter(|&id| id > nsid.0)))
}

fn descriptors(namespace: &NamespaceDefinition) -> Page {
    Page::build(|out| {
        let Some(page) = out.first_chunk_mut::<PAGE_LEN>() else { return };
        let mut writer = DescriptorWriter::new(page);
        if namespace.eui64 != [0; 8] {
            writer.push(NamespaceIdType::EUI64, &namespace.eui64);
        }
        if namespace.nguid != [0; 16] {
            writer.push(NamespaceIdType::NGUID, &namespace.nguid);
        }
        writer.push(NamespaceIdType::UUID, &namespace.uuid);
        writer.push(NamespaceIdType::CSI, &[CSI_NVM]);
    })
}
