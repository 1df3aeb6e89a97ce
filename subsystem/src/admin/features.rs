//! Get Features and Set Features.

use super::flush::flush_behind;
use super::{AdminKind, AfterFlush, reservation, write_protection};
use crate::controller::Controller;
use crate::data::{self, Fit};
use crate::limits::KEEP_ALIVE_DEFAULT_MS;
use crate::step::Work;
use crate::ticket::{Kind, Outcome, Reply};
use crate::timer::keep_alive_ms;
use crate::{HostId, Nsid, Page, status};
use core::time::Duration;
use nvme_proto::admin::async_event::notice;
use nvme_proto::admin::feature_values::{
    DISABLE_NORMAL_ATOMICITY, ErrorRecovery, PowerManagement, TemperatureThreshold, TimestampData,
    WRITE_CACHE_ENABLE,
};
use nvme_proto::admin::features::{
    EXTENDED_HOST_ID, FeatureId, GetFeatures, HOST_BEHAVIOR_LEN, QueueCounts, Select, SetFeatures,
    TIMESTAMP_LEN, capability,
};
use nvme_proto::{Sqe, Status};
use zerocopy::{FromBytes, IntoBytes};

/// Arbitration Burst: no limit.
const ARBITRATION_DEFAULT: u32 = 0b111;
/// The over-temperature threshold that is never reached.
const TEMPERATURE_DEFAULT: u16 = 0xffff;
/// Asynchronous Event Configuration, bits 7:0: critical warnings of the SMART / Health log.
pub(crate) const SMART_WARNINGS: u32 = 0xff;
/// Bytes of Host Behavior Support that mean something: ACRE, ETDAS, LBAFEE and HDISNS, which are 0 or 1, and the two
/// bytes of CDFE.
const HOST_BEHAVIOR_FIELDS: usize = 6;
const HOST_BEHAVIOR_FLAGS: usize = 4;
/// Where ACRE is in it: the host waits as long as a status says before it tries again.
const ACRE: usize = 0;
/// Where CDFE is: bit n for format n of Copy's ranges.
const CDFE: usize = 4;

/// Features that a controller of either type has; those of I/O controllers only.
const FEATURES: [FeatureId; 2] = [FeatureId::ASYNC_EVENT_CONFIG, FeatureId::KEEP_ALIVE_TIMER];
const IO_FEATURES: [FeatureId; 13] = [
    FeatureId::ARBITRATION,
    FeatureId::POWER_MANAGEMENT,
    FeatureId::TEMPERATURE_THRESHOLD,
    FeatureId::ERROR_RECOVERY,
    FeatureId::VOLATILE_WRITE_CACHE,
    FeatureId::NUMBER_OF_QUEUES,
    FeatureId::WRITE_ATOMICITY,
    FeatureId::TIMESTAMP,
    FeatureId::HOST_BEHAVIOR_SUPPORT,
    FeatureId::IO_COMMAND_SET_PROFILE,
    FeatureId::HOST_ID,
    FeatureId::RESERVATION_NOTIFICATION_MASK,
    FeatureId::RESERVATION_PERSISTENCE,
];

/// The values that live in the controller itself; the rest belong to its association or its timer.
#[derive(Debug, Clone)]
pub(crate) struct Features {
    arbitration: u32,
    power_management: u32,
    temperature_over: u16,
    temperature_under: u16,
    error_recovery: u32,
    write_atomicity: u32,
    async_event_config: u32,
    timestamp: Timestamp,
    host_behavior: [u8; HOST_BEHAVIOR_FIELDS],
}

/// What it was, and when: it goes on counting.
#[derive(Debug, Clone, Copy)]
struct Timestamp {
    millis: u64,
    since: Duration,
    by_host: bool,
}

/// What Get Features returns: DW0, or data.
enum Value {
    Dword(u32),
    HostId(HostId),
    Timestamp(TimestampData),
    HostBehavior([u8; HOST_BEHAVIOR_FIELDS]),
}

impl Features {
    /// As they are after a controller level reset.
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            arbitration: ARBITRATION_DEFAULT,
            power_management: 0,
            temperature_over: TEMPERATURE_DEFAULT,
            temperature_under: 0,
            error_recovery: 0,
            write_atomicity: 0,
            async_event_config: 0,
            timestamp: Timestamp::reset(now),
            host_behavior: [0; HOST_BEHAVIOR_FIELDS],
        }
    }

    pub(crate) fn async_event_config(&self) -> u32 {
        self.async_event_config
    }

    /// Whether that is at or beyond a threshold. A temperature that is not known (0) is not.
    pub(crate) fn is_beyond_threshold(&self, temperature: u16) -> bool {
        temperature > 0 && (temperature >= self.temperature_over || temperature <= self.temperature_under)
    }
}

/// Whether this controller has the feature.
pub(crate) fn is_supported(controller: &Controller, fid: FeatureId) -> bool {
    match fid {
        _ if FEATURES.contains(&fid) => true,
        _ if controller.is_discovery() => false,
        FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG => controller.association.options.write_protection,
        _ => IO_FEATURES.contains(&fid),
    }
}

pub(crate) fn on_get_features(controller: &Controller, now: Duration, sqe: &Sqe) -> Outcome {
    let command = GetFeatures::parse(sqe);
    if !is_supported(controller, command.fid) {
        return Err(status::INVALID_FIELD);
    }
    let value = match command.select {
        Select::CURRENT => current(controller, now, &command)?,
        // What is changed there is saved.
        Select::SAVED
            if matches!(
                command.fid,
                FeatureId::RESERVATION_PERSISTENCE | FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG
            ) =>
        {
            current(controller, now, &command)?
        }
        // Nothing else is saved: the saved value is the default.
        Select::DEFAULT | Select::SAVED => default(controller, now, &command)?,
        Select::SUPPORTED_CAPABILITIES => Value::Dword(capabilities(command.fid)),
        _ => return Err(status::INVALID_FIELD),
    };
    match value {
        Value::Dword(dword) => Ok(Reply::Done(dword.into())),
        Value::HostId(id) => send(sqe, &id.0, id.0.len()),
        Value::Timestamp(data) => send(sqe, data.as_bytes(), TIMESTAMP_LEN),
        Value::HostBehavior(bytes) => send(sqe, &bytes, HOST_BEHAVIOR_LEN),
    }
}

fn send(sqe: &Sqe, bytes: &[u8], len: usize) -> Outcome {
    let page = Page::build(|out| out[..bytes.len()].copy_from_slice(bytes));
    Controller::send_page(sqe, page, len as u32)
}

fn capabilities(fid: FeatureId) -> u32 {
    // The Host Identifier comes with Connect.
    match fid {
        FeatureId::HOST_ID => 0,
        FeatureId::RESERVATION_NOTIFICATION_MASK | FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG => {
            capability::CHANGEABLE | capability::NAMESPACE_SPECIFIC
        }
        FeatureId::RESERVATION_PERSISTENCE => {
            capability::CHANGEABLE | capability::NAMESPACE_SPECIFIC | capability::SAVEABLE
        }
        _ => capability::CHANGEABLE,
    }
}

fn current(controller: &Controller, now: Duration, command: &GetFeatures) -> Result<Value, Status> {
    let features = &controller.features;
    Ok(Value::Dword(match command.fid {
        FeatureId::ARBITRATION => features.arbitration,
        FeatureId::POWER_MANAGEMENT => features.power_management,
        FeatureId::TEMPERATURE_THRESHOLD => match threshold(command.cdw11)? {
            Threshold::Over => features.temperature_over.into(),
            Threshold::Under => features.temperature_under.into(),
        },
        FeatureId::ERROR_RECOVERY => features.error_recovery,
        FeatureId::VOLATILE_WRITE_CACHE => controller.association.write_cache().into(),
        FeatureId::NUMBER_OF_QUEUES => queue_counts(controller.association.io_queues_granted()),
        FeatureId::WRITE_ATOMICITY => features.write_atomicity,
        FeatureId::ASYNC_EVENT_CONFIG => features.async_event_config,
        FeatureId::KEEP_ALIVE_TIMER => controller.association.keep_alive_ms(),
        // The one combination of I/O command sets: NVM alone.
        FeatureId::IO_COMMAND_SET_PROFILE => 0,
        FeatureId::TIMESTAMP => return Ok(Value::Timestamp(features.timestamp.now(now))),
        FeatureId::HOST_BEHAVIOR_SUPPORT => return Ok(Value::HostBehavior(features.host_behavior)),
        FeatureId::RESERVATION_NOTIFICATION_MASK => reservation::mask(controller, command.nsid)?,
        FeatureId::RESERVATION_PERSISTENCE => reservation::persistence(controller, command.nsid)?,
        FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG => write_protection::state(controller, command.nsid)?,
        FeatureId::HOST_ID if command.cdw11 & EXTENDED_HOST_ID != 0 => {
            return Ok(Value::HostId(controller.association.host_id()));
        }
        // Fabrics knows only the Host Identifier of 128 bits.
        _ => return Err(status::INVALID_FIELD),
    }))
}

fn default(controller: &Controller, now: Duration, command: &GetFeatures) -> Result<Value, Status> {
    let features = Features::new(now);
    Ok(Value::Dword(match command.fid {
        FeatureId::ARBITRATION => features.arbitration,
        FeatureId::TEMPERATURE_THRESHOLD => match threshold(command.cdw11)? {
            Threshold::Over => features.temperature_over.into(),
            Threshold::Under => features.temperature_under.into(),
        },
        FeatureId::VOLATILE_WRITE_CACHE => WRITE_CACHE_ENABLE,
        FeatureId::NUMBER_OF_QUEUES => queue_counts(controller.association.options.io_queues_max),
        FeatureId::TIMESTAMP => return Ok(Value::Timestamp(features.timestamp.now(now))),
        FeatureId::HOST_BEHAVIOR_SUPPORT => return Ok(Value::HostBehavior(features.host_behavior)),
        FeatureId::HOST_ID => return current(controller, now, command),
        FeatureId::KEEP_ALIVE_TIMER => KEEP_ALIVE_DEFAULT_MS,
        _ => 0,
    }))
}

fn queue_counts(queues: u16) -> u32 {
    QueueCounts { submission: queues.into(), completion: queues.into() }.emit()
}

pub(crate) fn on_set_features(
    controller: &mut Controller,
    now: Duration,
    sqe: &Sqe,
    in_capsule_len: usize,
) -> Outcome {
    let command = SetFeatures::parse(sqe);
    if !is_supported(controller, command.fid) {
        return Err(status::INVALID_FIELD);
    }
    if command.fid == FeatureId::RESERVATION_PERSISTENCE {
        return reservation::set_persistence(controller, command.nsid, command.cdw11);
    }
    if command.save {
        return Err(status::FEATURE_NOT_SAVEABLE);
    }
    if command.fid == FeatureId::RESERVATION_NOTIFICATION_MASK {
        return reservation::set_mask(controller, command.nsid, command.cdw11);
    }
    // It persists, though it is not saved on request.
    if command.fid == FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG {
        return write_protection::set(controller, command.nsid, command.cdw11);
    }
    if command.nsid != Nsid(0) && command.nsid != Nsid::ALL {
        return Err(status::FEATURE_NOT_NAMESPACE_SPECIFIC);
    }
    let word = command.cdw11;
    let features = &mut controller.features;
    match command.fid {
        FeatureId::ARBITRATION => features.arbitration = word,
        // There is one power state.
        FeatureId::POWER_MANAGEMENT => {
            features.power_management = only(PowerManagement::parse(word).state == 0, word)?
        }
        FeatureId::TEMPERATURE_THRESHOLD => {
            match threshold(word)? {
                Threshold::Over => features.temperature_over = word as u16,
                Threshold::Under => features.temperature_under = word as u16,
            }
            controller.watch_health();
        }
        // No namespace gives errors for deallocated blocks.
        FeatureId::ERROR_RECOVERY => {
            features.error_recovery = only(!ErrorRecovery::parse(word).deallocated_is_error, word)?;
        }
        FeatureId::VOLATILE_WRITE_CACHE => {
            let on = word & WRITE_CACHE_ENABLE != 0;
            // Writes go through from now on, and those before become durable.
            if !on && controller.association.replace_write_cache(false) {
                return flush_behind(controller, now, Nsid(0), AfterFlush::WriteCacheOff);
            }
            controller.association.set_write_cache(on);
        }
        FeatureId::NUMBER_OF_QUEUES => return set_queue_counts(controller, word),
        FeatureId::WRITE_ATOMICITY => features.write_atomicity = word & DISABLE_NORMAL_ATOMICITY,
        FeatureId::ASYNC_EVENT_CONFIG => {
            let offered = SMART_WARNINGS | notices(controller);
            controller.features.async_event_config = only(word & !offered == 0, word)?;
            controller.watch_health();
        }
        FeatureId::KEEP_ALIVE_TIMER => {
            let kato_ms = keep_alive_ms(controller.association.controller_type(), word);
            controller.association.set_keep_alive_ms(kato_ms);
        }
        FeatureId::IO_COMMAND_SET_PROFILE if word & 0x1ff != 0 => {
            return Err(status::IO_COMMAND_SET_COMBINATION_REJECTED);
        }
        FeatureId::IO_COMMAND_SET_PROFILE => {}
        FeatureId::TIMESTAMP => return pull(sqe, AdminKind::Timestamp, TIMESTAMP_LEN, in_capsule_len),
        FeatureId::HOST_BEHAVIOR_SUPPORT => {
            return pull(sqe, AdminKind::HostBehavior, HOST_BEHAVIOR_LEN, in_capsule_len);
        }
        // The Host Identifier came with Connect, and stays.
        FeatureId::HOST_ID => return Err(status::COMMAND_SEQUENCE_ERROR),
        _ => return Err(status::INVALID_FIELD),
    }
    Ok(Reply::Done(0))
}

/// `value` if it may be.
fn only(allowed: bool, value: u32) -> Result<u32, Status> {
    if allowed { Ok(value) } else { Err(status::INVALID_FIELD) }
}

/// The notices that the controller gives: OAES, and what the Asynchronous Event Configuration may ask for.
pub(crate) fn notices(controller: &Controller) -> u32 {
    if controller.is_discovery() {
        notice::DISCOVERY_LOG_CHANGE
    } else {
        notice::ATTACHED_NAMESPACE_ATTRIBUTE | notice::ANA_CHANGE | notice::CROSS_CONTROLLER_RESET
    }
}

fn set_queue_counts(controller: &Controller, word: u32) -> Outcome {
    if word as u16 == u16::MAX || word >> 16 == u32::from(u16::MAX) {
        return Err(status::INVALID_FIELD);
    }
    let association = &controller.association;
    if association.io_queues() > 0 {
        return Err(status::COMMAND_SEQUENCE_ERROR);
    }
    // A queue of Fabrics is both.
    let QueueCounts { submission, completion } = QueueCounts::parse(word);
    let wished = u16::try_from(submission.max(completion)).unwrap_or(u16::MAX);
    let granted = association.grant_io_queues(wished);
    Ok(Reply::Done(queue_counts(granted).into()))
}

fn pull(sqe: &Sqe, kind: AdminKind, len: usize, in_capsule_len: usize) -> Outcome {
    let transfer = data::from_host(sqe, len as u32, Fit::AtLeast, in_capsule_len)?;
    Ok(Reply::Execute { kind: Kind::Admin(kind), work: Work::Parameters, transfer })
}

/// Data of Set Features.
pub(crate) fn on_parameters(
    controller: &mut Controller,
    now: Duration,
    kind: AdminKind,
    parameters: &[u8],
) -> Outcome {
    let features = &mut controller.features;
    match kind {
        AdminKind::Timestamp => {
            let data = TimestampData::read_from_bytes(parameters).expect("a Timestamp of 8 bytes");
            features.timestamp = Timestamp { millis: data.millis(), since: now, by_host: true };
        }
        AdminKind::HostBehavior => {
            let fields = parameters.first_chunk::<HOST_BEHAVIOR_FIELDS>().ok_or(status::INVALID_FIELD)?;
            if fields[..HOST_BEHAVIOR_FLAGS].iter().any(|&flag| flag > 1) {
                return Err(status::INVALID_FIELD);
            }
            features.host_behavior = *fields;
            controller.association.set_retry_delays(fields[ACRE] == 1);
            controller.association.set_copy_formats(u16::from_le_bytes([fields[CDFE], fields[CDFE + 1]]));
        }
        AdminKind::Page
        | AdminKind::Reset(_)
        | AdminKind::Asked
        | AdminKind::Protect(_)
        | AdminKind::Flush { .. } => {
            panic!("parameters for {kind:?}")
        }
    }
    Ok(Reply::Done(0))
}

impl Timestamp {
    /// Counts from a reset on.
    fn reset(now: Duration) -> Self {
        Self { millis: 0, since: now, by_host: false }
    }

    fn now(self, now: Duration) -> TimestampData {
        let elapsed = u64::try_from(now.saturating_sub(self.since).as_millis()).unwrap_or(u64::MAX);
        TimestampData::new(self.millis.saturating_add(elapsed), self.by_host)
    }
}

enum Threshold {
    Over,
    Under,
}

/// THSEL and TMPSEL: there is the composite temperature only.
fn threshold(cdw11: u32) -> Result<Threshold, Status> {
    let TemperatureThreshold { sensor, select, .. } = TemperatureThreshold::parse(cdw11);
    match (select, sensor) {
        (0, 0 | 0xf) => Ok(Threshold::Over),
        (1, 0 | 0xf) => Ok(Threshold::Under),
        _ => Err(status::INVALID_FIELD),
    }
}
