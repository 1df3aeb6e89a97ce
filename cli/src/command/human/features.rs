//! The values of features.

use super::{FREEZING_KELVIN, part_of};
use nvme_proto::admin::features::FeatureId;

/// Which events a controller is to tell of, by their bits in Asynchronous Event Configuration; 0 to 7 stand for all of
/// them.
const EVENTS: [(&str, u8); 8] = [
    ("Discovery Log Page Change Notices", 31),
    ("Endurance Group Event Aggregate Log Change Notices", 14),
    ("LBA Status Information Notices", 13),
    ("Predictable Latency Event Aggregate Log Change Notices", 12),
    ("Asymmetric Namespace Access Change Notices", 11),
    ("Telemetry Log Notices", 10),
    ("Firmware Activation Notices", 9),
    ("Namespace Attribute Notices", 8),
];

/// The lines that explain the value of a feature, and its data.
pub(in crate::command) fn explain(id: u8, value: u32, data: &[u8]) -> Vec<String> {
    let bits = |high, low| part_of(value.into(), high, low);
    let yes = |bit| if bits(bit, bit) == 1 { "True" } else { "False" };
    let enabled = |bit| if bits(bit, bit) == 1 { "Enabled" } else { "Disabled" };
    match FeatureId(id) {
        FeatureId::ARBITRATION => vec![
            format!("\tHigh Priority Weight   (HPW): {}", bits(31, 24) + 1),
            format!("\tMedium Priority Weight (MPW): {}", bits(23, 16) + 1),
            format!("\tLow Priority Weight    (LPW): {}", bits(15, 8) + 1),
            match bits(2, 0) {
                7 => "\tArbitration Burst       (AB): No limit".to_owned(),
                burst => format!("\tArbitration Burst       (AB): {}", 1 << burst),
            },
        ],
        FeatureId::POWER_MANAGEMENT => {
            let hints = ["No Workload", "Workload #1", "Workload #2"];
            let hint = hints.get(bits(7, 5) as usize).unwrap_or(&"Reserved");
            vec![
                format!("\tWorkload Hint (WH): {} - {hint}", bits(7, 5)),
                format!("\tPower State   (PS): {}", bits(4, 0)),
            ]
        }
        FeatureId::TEMPERATURE_THRESHOLD => {
            let kinds = ["Over Temperature Threshold", "Under Temperature Threshold"];
            let kind = kinds.get(bits(21, 20) as usize).unwrap_or(&"Reserved");
            let which = match bits(19, 16) {
                0 => "Composite Temperature".to_owned(),
                sensor @ 1..=8 => format!("Temperature Sensor {sensor}"),
                15 => "All Temperature Sensors".to_owned(),
                _ => "Reserved".to_owned(),
            };
            let kelvin = bits(15, 0);
            vec![
                format!("\tThreshold Type Select         (THSEL): {} - {kind}", bits(21, 20)),
                format!("\tThreshold Temperature Select (TMPSEL): {} - {which}", bits(19, 16)),
                format!(
                    "\tTemperature Threshold         (TMPTH): {}°C ({kelvin} Kelvin)",
                    i128::from(kelvin) - FREEZING_KELVIN
                ),
            ]
        }
        FeatureId::ERROR_RECOVERY => vec![
            format!("\tDeallocated or Unwritten Logical Block Error Enable (DULBE): {}", enabled(16)),
            format!(
                "\tTime Limited Error Recovery                          (TLER): {} ms",
                bits(15, 0) * 100
            ),
        ],
        FeatureId::VOLATILE_WRITE_CACHE => {
            vec![format!("\tVolatile Write Cache Enable (WCE): {}", enabled(0))]
        }
        FeatureId::NUMBER_OF_QUEUES => vec![
            format!("\tNumber of IO Completion Queues Allocated (NCQA): {}", bits(31, 16) + 1),
            format!("\tNumber of IO Submission Queues Allocated (NSQA): {}", bits(15, 0) + 1),
        ],
        FeatureId::WRITE_ATOMICITY => vec![format!("\tDisable Normal (DN): {}", yes(0))],
        FeatureId::ASYNC_EVENT_CONFIG => {
            let line = |name: &str, is_sent| {
                let sent = if is_sent { "Send async event" } else { "Do not send async event" };
                format!("\t{name:<58}: {sent}")
            };
            let mut lines: Vec<_> =
                EVENTS.iter().map(|(name, bit)| line(name, bits(*bit, *bit) == 1)).collect();
            lines.push(line("SMART / Health Critical Warnings", bits(7, 0) != 0));
            lines
        }
        FeatureId::TIMESTAMP => {
            let mut bytes = [0; 8];
            let len = data.len().min(6);
            bytes[..len].copy_from_slice(&data[..len]);
            vec![format!("\tThe timestamp is : {} ms since 1970", u64::from_le_bytes(bytes))]
        }
        FeatureId::KEEP_ALIVE_TIMER => vec![format!("\tKeep Alive Timeout (KATO) in milliseconds: {value}")],
        FeatureId::HOST_BEHAVIOR_SUPPORT => {
            let is_on = data.first().is_some_and(|byte| byte & 1 == 1);
            vec![format!("\tHost Behavior Support: {}", if is_on { "True" } else { "False" })]
        }
        FeatureId::RESERVATION_NOTIFICATION_MASK => vec![
            format!("\tMask Reservation Preempted Notification  (RESPRE): {}", yes(3)),
            format!("\tMask Reservation Released Notification   (RESREL): {}", yes(2)),
            format!("\tMask Registration Preempted Notification (REGPRE): {}", yes(1)),
        ],
        FeatureId::RESERVATION_PERSISTENCE => {
            vec![format!("\tPersist Through Power Loss (PTPL): {}", yes(0))]
        }
        FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG => {
            let states = [
                "No Write Protect",
                "Write Protect",
                "Write Protect Until Power Cycle",
                "Permanent Write Protect",
            ];
            let state = states.get(value as usize).unwrap_or(&"Reserved");
            vec![format!("\tNamespace Write Protect: {state}")]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_explained() {
        for (id, value, line) in [
            (1, 7, "\tArbitration Burst       (AB): No limit"),
            (4, 0x10_0000 | 300, "\tTemperature Threshold         (TMPTH): 27°C (300 Kelvin)"),
            (6, 1, "\tVolatile Write Cache Enable (WCE): Enabled"),
            (7, 0x0003_0002, "\tNumber of IO Submission Queues Allocated (NSQA): 3"),
            (0xb, 1 << 8, "\tNamespace Attribute Notices                               : Send async event"),
            (0xf, 5000, "\tKeep Alive Timeout (KATO) in milliseconds: 5000"),
            (0x84, 1, "\tNamespace Write Protect: Write Protect"),
        ] {
            let lines = explain(id, value, &[]);
            assert!(lines.iter().any(|it| it == line), "{line:?} is not in {lines:?}");
        }
        assert!(explain(0xe, 0, &[1, 2]).len() == 1 && explain(0xc0, 1, &[]).is_empty());
    }
}
