//! The SMART / Health log, critical warnings and their events.

use super::host::*;
use nvme_proto::Sqe;
use nvme_proto::admin::features::{FeatureId, SetFeatures};
use nvme_proto::admin::log_page::{GetLogPage, LogPageId, SmartLog};
use nvme_proto::opcode::AdminOpcode;
use nvmf_block::DeviceId;
use nvmf_subsystem::*;
use zerocopy::FromBytes;

const OK: (u8, u8) = (0, 0);
const TEMPERATURE: u32 = 0x0002_0101;
const SPARE: u32 = 0x0002_0201;
const RELIABILITY: u32 = 0x0002_0001;

fn smart(fixture: &mut Fixture, clears: bool) -> SmartLog {
    let mut command = GetLogPage::new(LogPageId::SMART, Nsid::ALL, 0, 512);
    command.retain_event = !clears;
    SmartLog::read_from_bytes(&read(&mut fixture.admin, &with_cid(command.emit(), 3), 512).unwrap()[..])
        .unwrap()
}

fn set(fixture: &mut Fixture, fid: FeatureId, word: u32) {
    let sqe = with_cid(SetFeatures::new(fid, word).emit(), 2);
    assert_eq!(code(&ask(&mut fixture.admin, &sqe)), OK);
}

fn warm(temperature: u16) -> DeviceHealth {
    DeviceHealth { temperature, wear: None }
}

fn publish(fixture: &mut Fixture, devices: impl IntoIterator<Item = (u32, DeviceHealth)>) {
    let devices = devices.into_iter().map(|(device, health)| (DeviceId(device), health)).collect();
    fixture.registry.set_health(HealthTable { hours: 7, devices });
    fixture.deliver();
}

fn request(fixture: &mut Fixture) {
    let step = capsule(&mut fixture.admin, &Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0), 0);
    assert!(matches!(step, Step::Held));
}

fn event(fixture: &mut Fixture) -> Option<u32> {
    fixture.admin.poll_step(NOW).map(|step| responded(step).dw0.get())
}

/// The devices of the namespaces 1 and 3.
fn devices(fixture: &Fixture) -> [u32; 2] {
    let table = fixture.registry.namespaces(&nqn(SUBSYSTEM)).unwrap();
    [1, 3].map(|nsid| table.get(Nsid(nsid)).unwrap().device.0)
}

#[test]
fn nothing_known_is_told_as_not_reported_and_well() {
    let mut fixture = Fixture::new();
    let log = smart(&mut fixture, true);
    assert_eq!((log.critical_warning, log.composite_temperature_kelvin.get()), (0, 0));
    assert_eq!((log.available_spare, log.available_spare_threshold, log.percentage_used), (100, 0, 0));
    set(&mut fixture, FeatureId::TEMPERATURE_THRESHOLD, 0);
    set(&mut fixture, FeatureId::TEMPERATURE_THRESHOLD, 1 << 20 | 0xffff);
    assert_eq!(smart(&mut fixture, true).critical_warning, 0, "what is not known is beyond no threshold");
}

#[test]
fn log_has_the_worst_of_the_devices_that_the_host_sees() {
    let mut fixture = Fixture::new();
    let [first, second] = devices(&fixture);
    let wear = |available_spare, available_spare_threshold, percentage_used, critical_warning| {
        Some(Wear { available_spare, available_spare_threshold, percentage_used, critical_warning })
    };
    publish(
        &mut fixture,
        [
            (first, DeviceHealth { temperature: 310, wear: wear(90, 80, 3, 0b1000) }),
            (second, DeviceHealth { temperature: 305, wear: wear(50, 10, 101, 0b0011) }),
            (900, DeviceHealth { temperature: 400, wear: wear(0, 100, 255, 0xff) }),
        ],
    );
    let log = smart(&mut fixture, true);
    assert_eq!(log.composite_temperature_kelvin.get(), 310);
    assert_eq!((log.available_spare, log.available_spare_threshold, log.percentage_used), (90, 80, 101));
    assert_eq!(log.critical_warning, 0b1001, "the temperature is measured with the host's thresholds");
    assert_eq!(u128::from_le_bytes(log.power_on_hours), 7);
}

#[test]
fn log_of_a_new_controller_has_what_was_known_before() {
    let mut fixture = Fixture::new();
    let [first, _] = devices(&fixture);
    publish(&mut fixture, [(first, warm(300))]);
    let (mut admin, ..) = Hello::admin().connect(&mut fixture.registry);
    enable(&mut admin);
    fixture.admin = admin;
    assert_eq!(smart(&mut fixture, true).composite_temperature_kelvin.get(), 300);
}

#[test]
fn temperature_at_or_beyond_a_threshold_is_a_warning() {
    let mut fixture = Fixture::new();
    let [first, _] = devices(&fixture);
    publish(&mut fixture, [(first, warm(320))]);
    for (word, warns) in [(320, true), (321, false), (1 << 20 | 320, true), (1 << 20 | 319, false)] {
        set(&mut fixture, FeatureId::TEMPERATURE_THRESHOLD, word);
        assert_eq!(smart(&mut fixture, true).critical_warning, u8::from(warns) << 1, "{word:#x}");
    }
}

#[test]
fn event_of_a_warning_comes_once_until_its_log_is_read_and_it_comes_up_again() {
    let mut fixture = Fixture::new();
    let [first, _] = devices(&fixture);
    request(&mut fixture);
    set(&mut fixture, FeatureId::TEMPERATURE_THRESHOLD, 330);
    publish(&mut fixture, [(first, warm(340))]);
    assert_eq!(event(&mut fixture), None, "the host did not ask for it");
    set(&mut fixture, FeatureId::ASYNC_EVENT_CONFIG, 1 << 1);
    assert_eq!(event(&mut fixture), Some(TEMPERATURE), "it holds");
    request(&mut fixture);
    for temperature in [341, 300, 345] {
        publish(&mut fixture, [(first, warm(temperature))]);
        assert_eq!(event(&mut fixture), None, "{temperature}");
    }
    smart(&mut fixture, false);
    publish(&mut fixture, [(first, warm(300))]);
    publish(&mut fixture, [(first, warm(350))]);
    assert_eq!(event(&mut fixture), None, "the event was retained");
    smart(&mut fixture, true);
    publish(&mut fixture, [(first, warm(351))]);
    assert_eq!(event(&mut fixture), None, "the host knows that");
    publish(&mut fixture, [(first, warm(300))]);
    publish(&mut fixture, [(first, warm(350))]);
    assert_eq!(event(&mut fixture), Some(TEMPERATURE));
}

#[test]
fn threshold_that_is_set_below_the_temperature_makes_an_event() {
    let mut fixture = Fixture::new();
    let [first, _] = devices(&fixture);
    publish(&mut fixture, [(first, warm(340))]);
    set(&mut fixture, FeatureId::ASYNC_EVENT_CONFIG, 1 << 1);
    request(&mut fixture);
    assert_eq!(event(&mut fixture), None);
    set(&mut fixture, FeatureId::TEMPERATURE_THRESHOLD, 339);
    assert_eq!(event(&mut fixture), Some(TEMPERATURE));
}

#[test]
fn events_of_wear_come_for_the_bits_that_are_asked_for() {
    for (bit, expected) in [(0, SPARE), (2, RELIABILITY), (3, RELIABILITY), (4, RELIABILITY)] {
        let mut fixture = Fixture::new();
        let [first, _] = devices(&fixture);
        request(&mut fixture);
        let of = |critical_warning| {
            let wear = Some(Wear { critical_warning, ..Wear::default() });
            [(first, DeviceHealth { temperature: 0, wear })]
        };
        set(&mut fixture, FeatureId::ASYNC_EVENT_CONFIG, 1 << bit);
        publish(&mut fixture, of(!(1 << bit)));
        assert_eq!(event(&mut fixture), None, "bit {bit}");
        publish(&mut fixture, of(1 << bit));
        assert_eq!(event(&mut fixture), Some(expected), "bit {bit}");
    }
}
