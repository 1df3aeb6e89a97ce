//! Get Log Page.

use super::{ErrorLog, Notification, features};
use crate::controller::{Content, Controller};
use crate::limits::PAGE_LEN;
use crate::ticket::Outcome;
use crate::{Nsid, Page, ana, status};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use nvme_proto::admin::ana::RETURN_GROUPS_ONLY;
use nvme_proto::admin::cross_controller_reset::REMOVE_COMPLETED;
use nvme_proto::admin::features::FeatureId;
use nvme_proto::admin::identify::{CSI_NVM, IdList};
use nvme_proto::admin::log_page::{
    CommandsSupportedLog, FirmwareSlotLog, GetLogPage, LogPageId, SmartLog, SupportedLogPages, discovery,
    effects,
};
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Sqe, Status};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of a page that has 32 bits for each of 256 identifiers.
const WORDS_LEN: u64 = 1024;
/// Scope of a feature: a namespace (FSP bit 0).
const FEATURE_SCOPE_NAMESPACE: u32 = 1 << 20;
/// Scope of a feature: the controller (FSP bit 1, which begins at bit 20).
const FEATURE_SCOPE_CONTROLLER: u32 = 1 << 21;
/// Bytes of a data unit of the SMART log: thousand blocks of 512 bytes.
const DATA_UNIT: u64 = 512_000;

const DISCOVERY_PAGES: [LogPageId; 5] = [
    LogPageId::SUPPORTED_LOG_PAGES,
    LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS,
    LogPageId::FEATURES_SUPPORTED_AND_EFFECTS,
    LogPageId::MI_COMMANDS_SUPPORTED_AND_EFFECTS,
    LogPageId::DISCOVERY,
];
const IO_PAGES: [LogPageId; 11] = [
    LogPageId::SUPPORTED_LOG_PAGES,
    LogPageId::ERROR,
    LogPageId::SMART,
    LogPageId::FIRMWARE_SLOT,
    LogPageId::CHANGED_ATTACHED_NAMESPACE_LIST,
    LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS,
    LogPageId::ANA,
    LogPageId::FEATURES_SUPPORTED_AND_EFFECTS,
    LogPageId::MI_COMMANDS_SUPPORTED_AND_EFFECTS,
    LogPageId::CROSS_CONTROLLER_RESET,
    LogPageId::RESERVATION_NOTIFICATION,
];
/// Admin commands of a controller of either type; an I/O controller has Abort and Cross-Controller Reset as well.
const ADMIN_COMMANDS: [AdminOpcode; 6] = [
    AdminOpcode::GET_LOG_PAGE,
    AdminOpcode::IDENTIFY,
    AdminOpcode::SET_FEATURES,
    AdminOpcode::GET_FEATURES,
    AdminOpcode::ASYNC_EVENT_REQUEST,
    AdminOpcode::KEEP_ALIVE,
];
const READ_COMMANDS: [NvmOpcode; 4] =
    [NvmOpcode::FLUSH, NvmOpcode::READ, NvmOpcode::COMPARE, NvmOpcode::VERIFY];
const RESERVATION_COMMANDS: [NvmOpcode; 4] = [
    NvmOpcode::RESERVATION_REGISTER,
    NvmOpcode::RESERVATION_REPORT,
    NvmOpcode::RESERVATION_ACQUIRE,
    NvmOpcode::RESERVATION_RELEASE,
];
const WRITE_COMMANDS: [NvmOpcode; 4] =
    [NvmOpcode::WRITE, NvmOpcode::WRITE_ZEROES, NvmOpcode::DATASET_MANAGEMENT, NvmOpcode::COPY];

pub(crate) fn on_get_log_page(controller: &mut Controller, sqe: &Sqe) -> Outcome {
    let command = GetLogPage::parse(sqe);
    if !pages(controller).contains(&command.lid) {
        return Err(status::INVALID_LOG_PAGE);
    }
    let (page, page_len) = page(controller, &command)?;
    let within = command.offset.is_multiple_of(4) && command.offset <= page_len;
    let len = u32::try_from(command.len).ok();
    let len = len.filter(|&len| len <= controller.association.options.transfer_len_max);
    let (Some(len), true, false) = (len, within, command.offset_is_index) else {
        return Err(status::INVALID_FIELD);
    };
    let outcome = Controller::send_page(sqe, page.starting_at(command.offset), len)?;
    if command.lid == LogPageId::RESERVATION_NOTIFICATION && controller.notifications.pop() {
        // The next one is an event of its own.
        if !command.retain_event {
            clear_event(controller, command.lid);
            controller.events.raise(Notification::Reservation);
        }
        return Ok(outcome);
    }
    if command.lid == LogPageId::CROSS_CONTROLLER_RESET && command.lsp & REMOVE_COMPLETED != 0 {
        controller.resets.remove_completed();
    }
    if !command.retain_event {
        clear_event(controller, command.lid);
    }
    Ok(outcome)
}

fn pages(controller: &Controller) -> &'static [LogPageId] {
    if controller.is_discovery() { &DISCOVERY_PAGES } else { &IO_PAGES }
}

/// The host has read the page: the next change is reported again.
fn clear_event(controller: &mut Controller, lid: LogPageId) {
    match lid {
        LogPageId::CHANGED_ATTACHED_NAMESPACE_LIST => {
            controller.changed_namespaces.clear();
            controller.events.clear(Notification::NamespaceAttributes);
        }
        LogPageId::RESERVATION_NOTIFICATION => controller.events.clear(Notification::Reservation),
        LogPageId::SMART => {
            Notification::HEALTH.iter().for_each(|(notification, _)| controller.events.clear(*notification));
        }
        LogPageId::ANA => controller.events.clear(Notification::Ana),
        LogPageId::CROSS_CONTROLLER_RESET => controller.events.clear(Notification::CrossControllerReset),
        LogPageId::DISCOVERY => controller.events.clear(Notification::DiscoveryLog),
        _ => {}
    }
}

/// The page as it is now, and its length.
fn page(controller: &Controller, command: &GetLogPage) -> Result<(Page, u64), Status> {
    Ok(match command.lid {
        LogPageId::SUPPORTED_LOG_PAGES => (supported_pages(controller), WORDS_LEN),
        LogPageId::ERROR => {
            (Page::build(|out| controller.association.errors.write(out)), ErrorLog::LEN as u64)
        }
        LogPageId::SMART => {
            // LPA bit 0 is clear: the log is about the controller, not about a namespace.
            if command.nsid != Nsid(0) && command.nsid != Nsid::ALL {
                return Err(status::INVALID_FIELD);
            }
            build(&smart(controller))
        }
        LogPageId::FIRMWARE_SLOT => build(&firmware_slot(controller)),
        LogPageId::CHANGED_ATTACHED_NAMESPACE_LIST => {
            let changed = &controller.changed_namespaces;
            build(&match changed.len() {
                0..=IdList::COUNT_MAX => IdList::new(changed.iter().map(|nsid| nsid.0)),
                _ => IdList::new([IdList::TOO_MANY_CHANGED]),
            })
        }
        LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS => build(&commands_supported(controller, command.csi)),
        LogPageId::RESERVATION_NOTIFICATION => controller.notifications.page(),
        LogPageId::CROSS_CONTROLLER_RESET => controller.resets.page(),
        LogPageId::ANA => {
            let table = controller.namespaces().ok_or(status::INVALID_LOG_PAGE)?;
            let association = &controller.association;
            let groups_only = command.lsp & RETURN_GROUPS_ONLY != 0;
            let changes = &controller.ana_changes;
            ana::log_page(table, changes, &association.host_nqn, association.port, groups_only)
        }
        LogPageId::FEATURES_SUPPORTED_AND_EFFECTS => (features_supported(controller), WORDS_LEN),
        // No NVMe-MI command is supported.
        LogPageId::MI_COMMANDS_SUPPORTED_AND_EFFECTS => (Page::build(|_| ()), WORDS_LEN),
        LogPageId::DISCOVERY => match &controller.content {
            Content::Discovery(log) => {
                let port_local = command.lsp & discovery::PORT_LOCAL_ENTRIES_ONLY != 0;
                (Page::discovery(Arc::clone(log), port_local), log.len(port_local))
            }
            Content::Namespaces(_) => return Err(status::INVALID_LOG_PAGE),
        },
        _ => return Err(status::INVALID_FIELD),
    })
}

fn build<T: IntoBytes + zerocopy::Immutable>(structure: &T) -> (Page, u64) {
    const { assert!(size_of::<T>() <= PAGE_LEN) };
    let page = Page::build(|out| out[..size_of::<T>()].copy_from_slice(structure.as_bytes()));
    (page, size_of::<T>() as u64)
}

fn supported_pages(controller: &Controller) -> Page {
    let mut log = SupportedLogPages::new_zeroed();
    for lid in pages(controller) {
        log.pages[usize::from(lid.0)] = 1.into();
    }
    if controller.is_discovery() {
        let page = &mut log.pages[usize::from(LogPageId::DISCOVERY.0)];
        *page = (page.get() | discovery::PORT_LOCAL_ENTRIES_ONLY_SUPPORTED).into();
    }
    build(&log).0
}

fn features_supported(controller: &Controller) -> Page {
    Page::build(|out| {
        for (fid, word) in (0..=u8::MAX).zip(out.chunks_exact_mut(4)) {
            if features::is_supported(controller, FeatureId(fid)) {
                let scope = match FeatureId(fid) {
                    FeatureId::RESERVATION_NOTIFICATION_MASK
                    | FeatureId::RESERVATION_PERSISTENCE
                    | FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG => FEATURE_SCOPE_NAMESPACE,
                    _ => FEATURE_SCOPE_CONTROLLER,
                };
                word.copy_from_slice(&(effects::SUPPORTED | scope).to_le_bytes());
            }
        }
    })
}

/// For another I/O command set than NVM: no I/O commands. (nvme-cli asks every controller that supports several sets
/// for the zoned one.)
fn commands_supported(controller: &Controller, csi: u8) -> CommandsSupportedLog {
    let mut log = CommandsSupportedLog::new_zeroed();
    for opcode in ADMIN_COMMANDS {
        log.admin[usize::from(opcode.0)] = effects::SUPPORTED.into();
    }
    if controller.is_discovery() {
        return log;
    }
    log.admin[usize::from(AdminOpcode::ABORT.0)] = effects::SUPPORTED.into();
    log.admin[usize::from(AdminOpcode::CROSS_CONTROLLER_RESET.0)] = effects::SUPPORTED.into();
    if csi != CSI_NVM {
        return log;
    }
    for opcode in READ_COMMANDS {
        log.io[usize::from(opcode.0)] = effects::SUPPORTED.into();
    }
    for opcode in RESERVATION_COMMANDS {
        log.io[usize::from(opcode.0)] = effects::SUPPORTED.into();
    }
    for opcode in WRITE_COMMANDS {
        log.io[usize::from(opcode.0)] = (effects::SUPPORTED | effects::LOGICAL_BLOCK_CHANGE).into();
    }
    log
}

fn firmware_slot(controller: &Controller) -> FirmwareSlotLog {
    let mut log = FirmwareSlotLog::new_zeroed();
    log.afi = 1;
    log.revisions[0] = controller.association.options.firmware;
    log
}

fn smart(controller: &Controller) -> SmartLog {
    let counters = &controller.association.counters;
    let count = |counter: &core::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let wide = |value: u64| u128::from(value).to_le_bytes();
    let mut log = SmartLog::new_zeroed();
    let health = controller.device_health();
    let wear = health.wear.unwrap_or_default();
    log.critical_warning = controller.critical_warning(&health);
    log.composite_temperature_kelvin = health.temperature.into();
    log.available_spare = wear.available_spare;
    log.available_spare_threshold = wear.available_spare_threshold;
    log.percentage_used = wear.percentage_used;
    log.power_on_hours = wide(controller.health.hours);
    log.data_units_read = wide(count(&counters.bytes_read).div_ceil(DATA_UNIT));
    log.data_units_written = wide(count(&counters.bytes_written).div_ceil(DATA_UNIT));
    log.host_read_commands = wide(count(&counters.reads));
    log.host_write_commands = wide(count(&counters.writes));
    log.media_errors = wide(count(&counters.media_errors));
    log.error_log_entries = wide(controller.association.errors.count());
    log
}
