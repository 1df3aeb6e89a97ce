//! `nvmf id-ctrl` and `nvmf id-ns`.

use super::target::NamespaceArguments;
use super::{Format, Output, TargetArguments};
use crate::connect::connect;
use crate::namespace::uuid;
use crate::print::{line, print_json};
use crate::runtime::run;
use anyhow::{Result, bail};
use nvme_proto::Nqn;
use nvme_proto::admin::identify::{IdentifyController, IdentifyNamespace};
use nvmf_host::admin;
use nvmf_initiator::AdminReply;
use serde_json::{Value, json};
use uuid::Uuid;
use zerocopy::FromBytes;

#[derive(clap::Args)]
pub(crate) struct IdCtrl {
    #[command(flatten)]
    target: TargetArguments,
    /// NQN of the subsystem
    #[arg(short = 'n', long)]
    nqn: Nqn,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args)]
pub(crate) struct IdNs {
    #[command(flatten)]
    namespace: NamespaceArguments,
    #[command(flatten)]
    output: Output,
}

impl IdCtrl {
    pub(crate) fn run(&self) -> Result<()> {
        let options = self.target.options(self.nqn)?;
        let value = run(async {
            let (connection, _) = connect(options).await?;
            let page: IdentifyController =
                page(&connection.admin(admin::identify_controller()).await?, "Identify Controller")?;
            connection.close().await;
            Ok(controller(&page))
        })?;
        print(&self.output, "NVME Identify Controller:", value)
    }
}

impl IdNs {
    pub(crate) fn run(&self) -> Result<()> {
        let options = self.namespace.options()?;
        let value = run(async {
            let (connection, _) = connect(options).await?;
            let namespaces = connection.namespaces();
            let nsid = self.namespace.choose(&namespaces)?;
            connection.open(nsid)?;
            let uuid = namespaces.iter().find(|namespace| namespace.nsid == nsid).and_then(uuid);
            let page: IdentifyNamespace =
                page(&connection.admin(admin::identify_namespace(nsid)).await?, "Identify Namespace")?;
            connection.close().await;
            Ok(namespace(&page, nsid.0, uuid.as_deref()))
        })?;
        let title = format!("NVME Identify Namespace {}:", value["nsid"]);
        print(&self.output, &title, value)
    }
}

/// What a command read.
pub(super) fn page<T: FromBytes>(reply: &AdminReply, what: &str) -> Result<T> {
    if !reply.outcome.status.is_success() {
        bail!("the controller refused {what}: {}", reply.outcome.status);
    }
    match T::read_from_prefix(&reply.data) {
        Ok((page, _)) => Ok(page),
        Err(_) => bail!(
            "the controller answered {what} with {} bytes instead of {}",
            reply.data.len(),
            size_of::<T>()
        ),
    }
}

/// Fields that nvme-cli prints in hexadecimal digits: bits, identifiers, and the namespace's sizes.
const IN_HEX: [&str; 37] = [
    "vid", "ssvid", "cmic", "cntlid", "ver", "rtd3r", "rtd3e", "oaes", "ctratt", "rrls", "oacs", "frmw",
    "lpa", "avscc", "apsta", "rpmbs", "hctma", "sanicap", "sqes", "cqes", "oncs", "fuses", "fna", "vwc",
    "sgls", "fcatt", "nsze", "ncap", "nuse", "nsfeat", "flbas", "mc", "dpc", "dps", "nmic", "rescap", "fpi",
];

fn print(output: &Output, title: &str, value: Value) -> Result<()> {
    if output.format == Format::Json {
        return print_json(value);
    }
    line(title)?;
    let fields = &value;
    for (name, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Array(formats) => {
                let flbas = fields["flbas"].as_u64().unwrap_or_default();
                let upper = if formats.len() > 16 { flbas >> 1 & 0x30 } else { 0 };
                for (number, format) in formats.iter().enumerate() {
                    line(lba_format(number, format, number as u64 == (flbas & 0xf | upper)))?;
                }
            }
            Value::Null => {}
            value => line(format_args!("{name:<10}: {}", field(name, value)))?,
        }
    }
    Ok(())
}

/// A value as nvme-cli prints it.
fn field(name: &str, value: &Value) -> String {
    match (value.as_u64(), value) {
        (Some(number), _) if name == "ieee" => format!("{number:06x}"),
        // C's `%#x` gives 0 no prefix.
        (Some(number), _) if number != 0 && IN_HEX.contains(&name) => format!("{number:#x}"),
        (None, Value::String(text)) => text.clone(),
        _ => value.to_string(),
    }
}

/// An LBA format, one of those that the namespace has.
fn lba_format(number: usize, format: &Value, is_in_use: bool) -> String {
    let part = |name: &str| format[name].as_u64().unwrap_or_default();
    let in_use = if is_in_use { " (in use)" } else { "" };
    format!("lbaf {number:>2} : ms:{:<3} lbads:{:<2} rp:{:#x}{in_use}", part("ms"), part("ds"), part("rp"))
}

/// Identify Controller under nvme-cli's names, in its order.
fn controller(id: &IdentifyController) -> Value {
    let text = IdentifyController::text;
    let [first, second, third] = id.ieee;
    let mut fields = json!({
        "vid": id.vid.get(), "ssvid": id.ssvid.get(), "sn": text(&id.sn), "mn": text(&id.mn), "fr": text(&id.fr),
        "rab": id.rab, "ieee": u32::from_le_bytes([first, second, third, 0]), "cmic": id.cmic, "mdts": id.mdts,
        "cntlid": id.cntlid.get(), "ver": id.ver.get(), "rtd3r": id.rtd3r.get(), "rtd3e": id.rtd3e.get(),
        "oaes": id.oaes.get(), "ctratt": id.ctratt.get(), "rrls": id.rrls.get(), "cntrltype": id.cntrltype,
        "fguid": Uuid::from_bytes(id.fguid).to_string(), "crdt1": id.crdt1.get(), "crdt2": id.crdt2.get(),
        "crdt3": id.crdt3.get(), "ciu": id.ciu, "cirn": id.cirn.get(), "nvmsr": id.nvmsr, "vwci": id.vwci, "mec": id.mec, "oacs": id.oacs.get(),
        "acl": id.acl_z, "aerl": id.aerl_z, "frmw": id.frmw, "lpa": id.lpa, "elpe": id.elpe_z, "npss": id.npss_z,
        "avscc": id.avscc, "apsta": id.apsta, "wctemp": id.wctemp.get(), "cctemp": id.cctemp.get(),
        "mtfa": id.mtfa.get(), "hmpre": id.hmpre.get(), "hmmin": id.hmmin.get(),
    });
    let rest = json!({
        "tnvmcap": number(id.tnvmcap), "unvmcap": number(id.unvmcap), "rpmbs": id.rpmbs.get(),
        "edstt": id.edstt.get(), "dsto": id.dsto, "fwug": id.fwug, "kas": id.kas.get(), "hctma": id.hctma.get(),
        "mntmt": id.mntmt.get(), "mxtmt": id.mxtmt.get(), "sanicap": id.sanicap.get(),
        "hmminds": id.hmminds.get(), "hmmaxd": id.hmmaxd.get(), "nsetidmax": id.nsetidmax.get(),
        "endgidmax": id.endgidmax.get(), "anatt": id.anatt, "anacap": id.anacap,
        "anagrpmax": id.anagrpmax.get(), "nanagrpid": id.nanagrpid.get(), "pels": id.pels.get(),
        "domainid": id.domainid.get(), "megcap": number(id.megcap), "cqt": id.cqt.get(), "sqes": id.sqes, "cqes": id.cqes,
        "maxcmd": id.maxcmd.get(), "nn": id.nn.get(), "oncs": id.oncs.get(), "fuses": id.fuses.get(),
        "fna": id.fna, "vwc": id.vwc, "awun": id.awun_z.get(), "awupf": id.awupf_z.get(), "icsvscc": id.icsvscc,
        "nwpc": id.nwpc, "acwu": id.acwu_z.get(), "sgls": id.sgls.get(), "mnan": id.mnan.get(),
        "subnqn": text(&id.subnqn), "ioccsz": id.ioccsz.get(), "iorcsz": id.iorcsz.get(),
        "icdoff": id.icdoff.get(), "fcatt": id.fcatt, "msdbd": id.msdbd, "ofcs": id.ofcs.get(), "ccrl": id.ccrl,
    });
    if let (Value::Object(fields), Value::Object(rest)) = (&mut fields, rest) {
        fields.extend(rest);
    }
    fields
}

/// A 16-byte number. One beyond 64 bits, which JSON readers would round, is capped.
fn number(bytes: [u8; 16]) -> u64 {
    u64::try_from(u128::from_le_bytes(bytes)).unwrap_or(u64::MAX)
}

/// Identify Namespace under nvme-cli's names, in its order; numbers stand as on the wire, 0's based where the standard
/// has it so. The UUID is not of this page, but of the Namespace Identification Descriptors.
fn namespace(id: &IdentifyNamespace, nsid: u32, uuid: Option<&str>) -> Value {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let formats: Vec<_> = id.lbaf[..=usize::from(id.nlbaf_z).min(63)]
        .iter()
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
        "anagrpid": id.anagrpid.get(), "nsattr": id.nsattr, "nvmsetid": id.nvmsetid.get(),
        "endgid": id.endgid.get(), "nguid": hex(&id.nguid), "eui64": hex(&id.eui64), "uuid": uuid, "lbafs": formats,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros as _;

    #[test]
    fn fields_are_printed_as_nvme_cli_prints_them() {
        let mut id = IdentifyController::new_zeroed();
        (id.ver, id.oncs, id.sqes) = (0x0002_0000.into(), 0x1d.into(), 0x66);
        id.ieee = [0x28, 0x38, 0];
        let fields = controller(&id);
        let printed = |name: &str| field(name, &fields[name]);
        assert_eq!(
            (printed("ver"), printed("oncs"), printed("sqes")),
            ("0x20000".into(), "0x1d".into(), "0x66".into())
        );
        assert_eq!(
            (printed("ieee"), printed("cntlid"), printed("mdts")),
            ("003828".into(), "0".into(), "0".into())
        );
        (id.ciu, id.cirn, id.cqt, id.ccrl) = (7, u64::MAX.into(), 5000.into(), 4);
        let fields = controller(&id);
        let reset = ["ciu", "cirn", "cqt", "ccrl"].map(|name| fields[name].as_u64());
        assert_eq!(reset, [Some(7), Some(u64::MAX), Some(5000), Some(4)]);
        for name in IN_HEX {
            let there = !fields[name].is_null()
                || !namespace(&IdentifyNamespace::new_zeroed(), 1, None)[name].is_null();
            assert!(there, "{name}");
        }
        let format = lba_format(1, &json!({ "ms": 0, "ds": 12, "rp": 2 }), true);
        assert_eq!(format, "lbaf  1 : ms:0   lbads:12 rp:0x2 (in use)");
    }
}
