//! The properties of a controller, under the registers' names.

use super::part_of;

/// The lines that explain a property.
pub(in crate::command) fn explain(name: &str, value: u64) -> Vec<String> {
    let bits = |high, low| part_of(value, high, low);
    let yes = |bit| if bits(bit, bit) == 1 { "Yes" } else { "No" };
    let page = |bits: u64| format!("{} bytes", 1_u64 << (12 + bits.min(15)));
    let entry = |bits: u64| format!("{} bytes", 1_u64 << bits);
    let shutdowns = ["No notification", "Normal shutdown", "Abrupt shutdown"];
    let rows: Vec<(&str, String)> = match name {
        "cap" => vec![
            ("Controller Ready Independent of Media Supported (CRIMS)", yes(60).to_owned()),
            ("Controller Ready With Media Supported (CRWMS)", yes(59).to_owned()),
            ("NVM Subsystem Shutdown Supported (NSSS)", yes(58).to_owned()),
            ("Controller Memory Buffer Supported (CMBS)", yes(57).to_owned()),
            ("Persistent Memory Region Supported (PMRS)", yes(56).to_owned()),
            ("Memory Page Size Maximum (MPSMAX)", page(bits(55, 52))),
            ("Memory Page Size Minimum (MPSMIN)", page(bits(51, 48))),
            ("Boot Partition Support (BPS)", yes(45).to_owned()),
            ("NVM command set Supported (CSS)", yes(37).to_owned()),
            ("One or more I/O Command Sets Supported (CSS)", yes(43).to_owned()),
            ("No I/O Command Set (CSS)", yes(44).to_owned()),
            ("NVM Subsystem Reset Supported (NSSRS)", yes(36).to_owned()),
            ("Timeout (TO)", format!("{} ms", bits(31, 24) * 500)),
            ("Contiguous Queues Required (CQR)", yes(16).to_owned()),
            ("Maximum Queue Entries Supported (MQES)", (bits(15, 0) + 1).to_string()),
        ],
        "vs" => vec![("NVMe specification", format!("{}.{}.{}", bits(31, 16), bits(15, 8), bits(7, 0)))],
        "cc" => {
            let sets = match bits(6, 4) {
                0 => "NVM Command Set",
                6 => "All supported I/O Command Sets",
                7 => "Admin Command Set only",
                _ => "Reserved",
            };
            let shutdown = shutdowns.get(bits(15, 14) as usize).unwrap_or(&"Reserved");
            vec![
                ("I/O Completion Queue Entry Size (IOCQES)", entry(bits(23, 20))),
                ("I/O Submission Queue Entry Size (IOSQES)", entry(bits(19, 16))),
                ("Shutdown Notification (SHN)", (*shutdown).to_owned()),
                ("Memory Page Size (MPS)", page(bits(10, 7))),
                ("I/O Command Set Selected (CSS)", sets.to_owned()),
                ("Enable (EN)", yes(0).to_owned()),
            ]
        }
        "csts" => {
            let status = ["Normal operation", "Shutdown is under way", "Shutdown is complete"];
            let status = status.get(bits(3, 2) as usize).unwrap_or(&"Reserved");
            vec![
                ("Shutdown Type (ST): of the NVM subsystem", yes(6).to_owned()),
                ("Processing Paused (PP)", yes(5).to_owned()),
                ("NVM Subsystem Reset Occurred (NSSRO)", yes(4).to_owned()),
                ("Shutdown Status (SHST)", (*status).to_owned()),
                ("Controller Fatal Status (CFS)", yes(1).to_owned()),
                ("Ready (RDY)", yes(0).to_owned()),
            ]
        }
        "crto" => vec![
            ("Controller Ready Independent of Media Timeout (CRIMT)", format!("{} ms", bits(31, 16) * 500)),
            ("Controller Ready With Media Timeout (CRWMT)", format!("{} ms", bits(15, 0) * 500)),
        ],
        _ => Vec::new(),
    };
    rows.into_iter().map(|(what, value)| format!("\t{what}: {value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::explain;

    #[test]
    fn properties_are_explained() {
        for (name, value, line) in [
            ("cap", 0x20_0a01_03ff, "\tMaximum Queue Entries Supported (MQES): 1024"),
            ("cap", 0x20_0a01_03ff, "\tTimeout (TO): 5000 ms"),
            ("vs", 0x0002_0100, "\tNVMe specification: 2.1.0"),
            ("cc", 0x0046_0001, "\tI/O Submission Queue Entry Size (IOSQES): 64 bytes"),
            ("csts", 0xd, "\tShutdown Status (SHST): Reserved"),
        ] {
            let lines = explain(name, value);
            assert!(lines.iter().any(|it| it == line), "{line:?} is not in {lines:?}");
        }
    }
}
