//! The Identify data structures under the names that they have in nvme-cli's JSON, in its order. What nvme-cli does not
//! show bears the standard's abbreviation. Numbers stand as on the wire, 0's based where the standard has it so.

use nvme_proto::admin::identify::{IdentifyController, IdentifyNamespace, PowerStateDescriptor};
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// Identify Controller.
pub(super) fn controller(id: &IdentifyController) -> Value {
    let text = IdentifyController::text;
    let [first, second, third] = id.ieee;
    let parts = [
        json!({
            "vid": id.vid.get(), "ssvid": id.ssvid.get(), "sn": text(&id.sn), "mn": text(&id.mn), "fr": text(&id.fr),
            "rab": id.rab, "ieee": u32::from_le_bytes([first, second, third, 0]), "cmic": id.cmic, "mdts": id.mdts,
            "cntlid": id.cntlid.get(), "ver": id.ver.get(), "rtd3r": id.rtd3r.get(), "rtd3e": id.rtd3e.get(),
            "oaes": id.oaes.get(), "ctratt": id.ctratt.get(), "rrls": id.rrls.get(), "bpcap": id.bpcap,
            "nssl": id.nssl.get(), "plsi": id.plsi, "cntrltype": id.cntrltype,
            "fguid": Uuid::from_bytes(id.fguid).to_string(), "crdt1": id.crdt1.get(), "crdt2": id.crdt2.get(),
            "crdt3": id.crdt3.get(), "crcap": id.crcap, "ciu": id.ciu, "cirn": id.cirn.get(), "nvmsr": id.nvmsr,
            "vwci": id.vwci, "mec": id.mec,
        }),
        json!({
            "oacs": id.oacs.get(), "acl": id.acl_z, "aerl": id.aerl_z, "frmw": id.frmw, "lpa": id.lpa,
            "elpe": id.elpe_z, "npss": id.npss_z, "avscc": id.avscc, "apsta": id.apsta, "wctemp": id.wctemp.get(),
            "cctemp": id.cctemp.get(), "mtfa": id.mtfa.get(), "hmpre": id.hmpre.get(), "hmmin": id.hmmin.get(),
            "tnvmcap": number(id.tnvmcap), "unvmcap": number(id.unvmcap), "rpmbs": id.rpmbs.get(),
            "edstt": id.edstt.get(), "dsto": id.dsto, "fwug": id.fwug, "kas": id.kas.get(),
            "hctma": id.hctma.get(), "mntmt": id.mntmt.get(), "mxtmt": id.mxtmt.get(),
            "sanicap": id.sanicap.get(), "hmminds": id.hmminds.get(), "hmmaxd": id.hmmaxd.get(),
            "nsetidmax": id.nsetidmax.get(), "endgidmax": id.endgidmax.get(), "anatt": id.anatt,
            "anacap": id.anacap, "anagrpmax": id.anagrpmax.get(), "nanagrpid": id.nanagrpid.get(),
            "pels": id.pels.get(), "domainid": id.domainid.get(), "kpioc": id.kpioc,
            "mptfawr": id.mptfawr.get(), "megcap": number(id.megcap), "tmpthha": id.tmpthha, "cqt": id.cqt.get(),
            "cdpa": id.cdpa.get(), "mup": id.mup.get(), "ipmsr": id.ipmsr.get(), "msmt": id.msmt.get(),
        }),
        json!({
            "sqes": id.sqes, "cqes": id.cqes, "maxcmd": id.maxcmd.get(), "nn": id.nn.get(),
            "oncs": id.oncs.get(), "fuses": id.fuses.get(), "fna": id.fna, "vwc": id.vwc,
            "awun": id.awun_z.get(), "awupf": id.awupf_z.get(), "icsvscc": id.icsvscc, "nwpc": id.nwpc,
            "acwu": id.acwu_z.get(), "ocfs": id.cdfs.get(), "sgls": id.sgls.get(), "mnan": id.mnan.get(),
            "maxdna": number(id.maxdna), "maxcna": id.maxcna.get(), "oaqd": id.oaqd.get(), "rhiri": id.rhiri,
            "hirt": id.hirt, "cmmrtd": id.cmmrtd.get(), "nmmrtd": id.nmmrtd.get(), "minmrtg": id.minmrtg,
            "maxmrtg": id.maxmrtg, "trattr": id.trattr, "mcudmq": id.mcudmq.get(),
            "mnsudmq": id.mnsudmq.get(), "mcmr": id.mcmr.get(), "nmcmr": id.nmcmr.get(),
            "mcdqpc": id.mcdqpc.get(), "subnqn": text(&id.subnqn), "ioccsz": id.ioccsz.get(),
            "iorcsz": id.iorcsz.get(), "icdoff": id.icdoff.get(), "fcatt": id.fcatt, "msdbd": id.msdbd,
            "ofcs": id.ofcs.get(), "dctype": id.dctype, "ccrl": id.ccrl,
            "psds": id.psd.iter().take(usize::from(id.npss_z) + 1).map(power_state).collect::<Vec<_>>(),
        }),
    ];
    let fields = parts.into_iter().filter_map(|part| match part {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    Value::Object(fields.flatten().collect::<Map<_, _>>())
}

/// A power state.
fn power_state(state: &PowerStateDescriptor) -> Value {
    json!({
        "max_power": state.mp.get(), "max_power_scale": state.flags & 1,
        "non-operational_state": state.flags >> 1 & 1, "entry_lat": state.enlat.get(),
        "exit_lat": state.exlat.get(), "read_tput": state.rrt, "read_lat": state.rrl, "write_tput": state.rwt,
        "write_lat": state.rwl, "idle_power": state.idlp.get(), "idle_scale": state.ips >> 6,
        "active_power": state.actp.get(), "active_power_work": state.apws & 7, "active_scale": state.apws >> 6,
        "emerg_power_fail_recover_time": state.epfrt, "emerg_power_fail_recover_scale": state.epfrfqvts & 0xf,
        "force_quiesce_vault_time": state.fqvt, "force_quiesce_vault_scale": state.epfrfqvts >> 4,
        "emerg_power_fail_vault_time": state.epfvt, "emerg_power_fail_vault_scale": state.epfvts & 0xf,
    })
}

/// Identify Namespace. The UUID is not of this structure, but of the Namespace Identification Descriptors.
pub(super) fn namespace(id: &IdentifyNamespace, nsid: u32, uuid: Option<&str>) -> Value {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    // Those with unique attributes (NULBAF) come behind the others.
    let formats: Vec<_> = id
        .lbaf
        .iter()
        .take(usize::from(id.nlbaf_z) + 1 + usize::from(id.nulbaf))
        .map(|format| json!({ "ms": format.ms.get(), "ds": format.lbads, "rp": format.rp }))
        .collect();
    json!({
        "nsid": nsid, "nsze": id.nsze.get(), "ncap": id.ncap.get(), "nuse": id.nuse.get(), "nsfeat": id.nsfeat,
        "nlbaf": id.nlbaf_z, "flbas": id.flbas, "mc": id.mc, "dpc": id.dpc, "dps": id.dps, "nmic": id.nmic,
        "rescap": id.rescap, "fpi": id.fpi, "dlfeat": id.dlfeat, "nawun": id.nawun.get(),
        "nawupf": id.nawupf.get(), "nacwu": id.nacwu.get(), "nabsn": id.nabsn.get(), "nabo": id.nabo.get(),
        "nabspf": id.nabspf.get(), "noiob": id.noiob.get(), "nvmcap": number(id.nvmcap),
        "npwg": id.npwg_z.get(), "npwa": id.npwa_z.get(), "npdg": id.npdg_z.get(), "npda": id.npda_z.get(),
        "nows": id.nows_z.get(), "mssrl": id.mssrl.get(), "mcl": id.mcl.get(), "msrc": id.msrc_z,
        "kpios": id.kpios, "nulbaf": id.nulbaf, "kpiodaag": id.kpiodaag.get(), "anagrpid": id.anagrpid.get(),
        "nsattr": id.nsattr, "nvmsetid": id.nvmsetid.get(), "endgid": id.endgid.get(), "nguid": hex(&id.nguid),
        "eui64": hex(&id.eui64), "uuid": uuid, "lbafs": formats, "vs": vendor_text(&id.vendor),
    })
}

/// The vendor's bytes up to the first zero, 16 a line; those that are no visible ASCII are dots.
fn vendor_text(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let letter = |&byte: &u8| if byte.is_ascii_graphic() { char::from(byte) } else { '.' };
    bytes.chunks(16).map(|line| line.iter().map(letter).collect()).collect()
}

/// A number of 16 bytes: exact up to 64 bits. Beyond, the nearest that JSON's readers can hold.
fn number(bytes: [u8; 16]) -> Value {
    let number = u128::from_le_bytes(bytes);
    u64::try_from(number).map_or_else(|_| Value::from(number as f64), Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;
    use zerocopy::FromBytes as _;

    /// A structure whose byte at each offset differs from its neighbours', so that a field from a wrong place shows.
    fn numbered() -> [u8; 4096] {
        std::array::from_fn(|at| (at % 251) as u8 + 1)
    }

    /// What the standard has in these bytes.
    fn wire(bytes: &[u8], place: Range<usize>) -> u64 {
        bytes[place].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    fn assert_fields(json: &Value, bytes: &[u8], fields: &[(&str, usize, usize)]) {
        for &(name, first, last) in fields {
            assert_eq!(json[name], wire(bytes, first..last + 1), "{name}, bytes {last}:{first}");
        }
    }

    /// Name, first byte and last byte in the standard's figure of the Identify Controller data structure.
    const CONTROLLER: &[(&str, usize, usize)] = &[
        ("vid", 0, 1),
        ("ssvid", 2, 3),
        ("rab", 72, 72),
        ("ieee", 73, 75),
        ("cmic", 76, 76),
        ("mdts", 77, 77),
        ("cntlid", 78, 79),
        ("ver", 80, 83),
        ("rtd3r", 84, 87),
        ("rtd3e", 88, 91),
        ("oaes", 92, 95),
        ("ctratt", 96, 99),
        ("rrls", 100, 101),
        ("bpcap", 102, 102),
        ("nssl", 104, 107),
        ("plsi", 110, 110),
        ("cntrltype", 111, 111),
        ("crdt1", 128, 129),
        ("crdt2", 130, 131),
        ("crdt3", 132, 133),
        ("crcap", 134, 134),
        ("ciu", 135, 135),
        ("cirn", 136, 143),
        ("nvmsr", 253, 253),
        ("vwci", 254, 254),
        ("mec", 255, 255),
        ("oacs", 256, 257),
        ("acl", 258, 258),
        ("aerl", 259, 259),
        ("frmw", 260, 260),
        ("lpa", 261, 261),
        ("elpe", 262, 262),
        ("npss", 263, 263),
        ("avscc", 264, 264),
        ("apsta", 265, 265),
        ("wctemp", 266, 267),
        ("cctemp", 268, 269),
        ("mtfa", 270, 271),
        ("hmpre", 272, 275),
        ("hmmin", 276, 279),
        ("rpmbs", 312, 315),
        ("edstt", 316, 317),
        ("dsto", 318, 318),
        ("fwug", 319, 319),
        ("kas", 320, 321),
        ("hctma", 322, 323),
        ("mntmt", 324, 325),
        ("mxtmt", 326, 327),
        ("sanicap", 328, 331),
        ("hmminds", 332, 335),
        ("hmmaxd", 336, 337),
        ("nsetidmax", 338, 339),
        ("endgidmax", 340, 341),
        ("anatt", 342, 342),
        ("anacap", 343, 343),
        ("anagrpmax", 344, 347),
        ("nanagrpid", 348, 351),
        ("pels", 352, 355),
        ("domainid", 356, 357),
        ("kpioc", 358, 358),
        ("mptfawr", 360, 361),
        ("tmpthha", 384, 384),
        ("cqt", 386, 387),
        ("cdpa", 388, 389),
        ("mup", 390, 391),
        ("ipmsr", 392, 393),
        ("msmt", 394, 395),
        ("sqes", 512, 512),
        ("cqes", 513, 513),
        ("maxcmd", 514, 515),
        ("nn", 516, 519),
        ("oncs", 520, 521),
        ("fuses", 522, 523),
        ("fna", 524, 524),
        ("vwc", 525, 525),
        ("awun", 526, 527),
        ("awupf", 528, 529),
        ("icsvscc", 530, 530),
        ("nwpc", 531, 531),
        ("acwu", 532, 533),
        ("ocfs", 534, 535),
        ("sgls", 536, 539),
        ("mnan", 540, 543),
        ("maxcna", 560, 563),
        ("oaqd", 564, 567),
        ("rhiri", 568, 568),
        ("hirt", 569, 569),
        ("cmmrtd", 570, 571),
        ("nmmrtd", 572, 573),
        ("minmrtg", 574, 574),
        ("maxmrtg", 575, 575),
        ("trattr", 576, 576),
        ("mcudmq", 578, 579),
        ("mnsudmq", 580, 581),
        ("mcmr", 582, 583),
        ("nmcmr", 584, 585),
        ("mcdqpc", 586, 587),
        ("ioccsz", 1792, 1795),
        ("iorcsz", 1796, 1799),
        ("icdoff", 1800, 1801),
        ("fcatt", 1802, 1802),
        ("msdbd", 1803, 1803),
        ("ofcs", 1804, 1805),
        ("dctype", 1806, 1806),
        ("ccrl", 1807, 1807),
    ];

    /// The same of the Identify Namespace data structure.
    const NAMESPACE: &[(&str, usize, usize)] = &[
        ("nsze", 0, 7),
        ("ncap", 8, 15),
        ("nuse", 16, 23),
        ("nsfeat", 24, 24),
        ("nlbaf", 25, 25),
        ("flbas", 26, 26),
        ("mc", 27, 27),
        ("dpc", 28, 28),
        ("dps", 29, 29),
        ("nmic", 30, 30),
        ("rescap", 31, 31),
        ("fpi", 32, 32),
        ("dlfeat", 33, 33),
        ("nawun", 34, 35),
        ("nawupf", 36, 37),
        ("nacwu", 38, 39),
        ("nabsn", 40, 41),
        ("nabo", 42, 43),
        ("nabspf", 44, 45),
        ("noiob", 46, 47),
        ("npwg", 64, 65),
        ("npwa", 66, 67),
        ("npdg", 68, 69),
        ("npda", 70, 71),
        ("nows", 72, 73),
        ("mssrl", 74, 75),
        ("mcl", 76, 79),
        ("msrc", 80, 80),
        ("kpios", 81, 81),
        ("nulbaf", 82, 82),
        ("kpiodaag", 84, 87),
        ("anagrpid", 92, 95),
        ("nsattr", 99, 99),
        ("nvmsetid", 100, 101),
        ("endgid", 102, 103),
    ];

    #[test]
    fn controller_fields_are_at_the_offsets_of_the_standard() {
        let mut bytes = numbered();
        bytes[4..72].fill(b' ');
        bytes[4..9].copy_from_slice(b"SN 17");
        bytes[24..29].copy_from_slice(b"model");
        bytes[64..67].copy_from_slice(b"1.0");
        bytes[112..128].copy_from_slice(&0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes());
        bytes[280..296].copy_from_slice(&(1_u128 << 40).to_le_bytes());
        bytes[296..312].copy_from_slice(&u128::from(u64::MAX).to_le_bytes());
        bytes[368..384].copy_from_slice(&(1_u128 << 100).to_le_bytes());
        bytes[544..560].copy_from_slice(&7_u128.to_le_bytes());
        bytes[768..1024].fill(0);
        bytes[768..783].copy_from_slice(b"nqn.2026-11.x:y");
        let json = controller(&IdentifyController::read_from_bytes(&bytes).expect("4096 bytes"));
        assert_fields(&json, &bytes, CONTROLLER);
        for (name, value) in [
            ("sn", json!("SN 17")),
            ("mn", json!("model")),
            ("fr", json!("1.0")),
            ("fguid", json!("00112233-4455-6677-8899-aabbccddeeff")),
            ("tnvmcap", json!(1_u64 << 40)),
            ("unvmcap", json!(u64::MAX)),
            ("megcap", json!(2_f64.powi(100))),
            ("maxdna", json!(7)),
            ("subnqn", json!("nqn.2026-11.x:y")),
        ] {
            assert_eq!(json[name], value, "{name}");
        }
        // Those above, and "psds": nothing is shown that is not compared here.
        assert_eq!(json.as_object().map(Map::len), Some(CONTROLLER.len() + 10));
    }

    #[test]
    fn power_states_are_as_many_as_the_controller_has() {
        let mut bytes = [0; 4096];
        bytes[263] = 1;
        let second = 2048 + 32;
        bytes[second..second + 2].copy_from_slice(&900_u16.to_le_bytes());
        bytes[second + 3] = 0b11;
        bytes[second + 4..second + 8].copy_from_slice(&70_000_u32.to_le_bytes());
        bytes[second + 8..second + 12].copy_from_slice(&80_000_u32.to_le_bytes());
        bytes[second + 12..second + 16].copy_from_slice(&[1, 2, 3, 4]);
        bytes[second + 16..second + 19].copy_from_slice(&[50, 0, 0b0100_0000]);
        bytes[second + 20..second + 23].copy_from_slice(&[60, 0, 0b1000_0101]);
        bytes[second + 23..second + 28].copy_from_slice(&[6, 7, 8, 0x21, 0x03]);
        let json = controller(&IdentifyController::read_from_bytes(&bytes).expect("4096 bytes"));
        assert_eq!(json["psds"].as_array().map(Vec::len), Some(2));
        assert_eq!(json["psds"][0]["max_power"], 0);
        assert_eq!(
            json["psds"][1],
            json!({
                "max_power": 900, "max_power_scale": 1, "non-operational_state": 1, "entry_lat": 70_000,
                "exit_lat": 80_000, "read_tput": 1, "read_lat": 2, "write_tput": 3, "write_lat": 4,
                "idle_power": 50, "idle_scale": 1, "active_power": 60, "active_power_work": 5, "active_scale": 2,
                "emerg_power_fail_recover_time": 6, "emerg_power_fail_recover_scale": 1,
                "force_quiesce_vault_time": 7, "force_quiesce_vault_scale": 2,
                "emerg_power_fail_vault_time": 8, "emerg_power_fail_vault_scale": 3,
            })
        );
        // Whatever a controller says, no more states than the structure has.
        bytes[263] = 255;
        let json = controller(&IdentifyController::read_from_bytes(&bytes).expect("4096 bytes"));
        assert_eq!(json["psds"].as_array().map(Vec::len), Some(32));
    }

    #[test]
    fn namespace_fields_are_at_the_offsets_of_the_standard() {
        let mut bytes = numbered();
        (bytes[25], bytes[82]) = (1, 1);
        bytes[48..64].copy_from_slice(&(1_u128 << 30).to_le_bytes());
        bytes[104..120].copy_from_slice(&0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes());
        bytes[120..128].copy_from_slice(&0x0123_4567_89ab_cdef_u64.to_be_bytes());
        bytes[128..140].copy_from_slice(&[0, 0, 9, 2, 8, 0, 12, 0, 64, 0, 12, 1]);
        bytes[384..404].copy_from_slice(b"vendor's 16 and\n...\0");
        let json =
            namespace(&IdentifyNamespace::read_from_bytes(&bytes).expect("4096 bytes"), 5, Some("a UUID"));
        assert_fields(&json, &bytes, NAMESPACE);
        for (name, value) in [
            ("nsid", json!(5)),
            ("nvmcap", json!(1_u64 << 30)),
            ("nguid", json!("00112233445566778899aabbccddeeff")),
            ("eui64", json!("0123456789abcdef")),
            ("uuid", json!("a UUID")),
            (
                "lbafs",
                json!([{ "ms": 0, "ds": 9, "rp": 2 }, { "ms": 8, "ds": 12, "rp": 0 }, { "ms": 64, "ds": 12, "rp": 1 }]),
            ),
            ("vs", json!(["vendor's.16.and.", "..."])),
        ] {
            assert_eq!(json[name], value, "{name}");
        }
        assert_eq!(json.as_object().map(Map::len), Some(NAMESPACE.len() + 7));
        (bytes[25], bytes[82]) = (255, 255);
        let json = namespace(&IdentifyNamespace::read_from_bytes(&bytes).expect("4096 bytes"), 5, None);
        assert_eq!(json["lbafs"].as_array().map(Vec::len), Some(64));
    }
}
