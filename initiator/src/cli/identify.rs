//! `nvmf id-ctrl` and `nvmf id-ns`.

use super::target::{NamespaceArguments, run};
use super::{Format, Output, TargetArguments, print_json};
use anyhow::{Result, bail};
use nvme_proto::Nqn;
use nvme_proto::admin::identify::{IdentifyController, IdentifyNamespace};
use nvmf_host::admin;
use nvmf_initiator::{AdminReply, Connection};
use serde_json::{Value, json};
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
            let connection = Connection::connect(options).await?;
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
            let connection = Connection::connect(options).await?;
            let nsid = self.namespace.choose(&connection)?;
            connection.open(nsid)?;
            let page: IdentifyNamespace =
                page(&connection.admin(admin::identify_namespace(nsid)).await?, "Identify Namespace")?;
            connection.close().await;
            Ok(namespace(&page, nsid.0))
        })?;
        print(&self.output, "NVME Identify Namespace:", value)
    }
}

fn page<T: FromBytes>(reply: &AdminReply, what: &str) -> Result<T> {
    if !reply.outcome.status.is_success() {
        bail!("the controller refused {what}: {}", reply.outcome.status);
    }
    match T::read_from_prefix(&reply.data) {
        Ok((page, _)) => Ok(page),
        Err(_) => bail!("the controller answered {what} with {} bytes instead of 4096", reply.data.len()),
    }
}

fn print(output: &Output, title: &str, value: Value) -> Result<()> {
    if output.format == Format::Json {
        return print_json(value);
    }
    println!("{title}");
    for (name, value) in value.as_object().into_iter().flatten() {
        println!("{name:<10}: {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    Ok(())
}

/// Identify Controller under nvme-cli's names.
fn controller(id: &IdentifyController) -> Value {
    let text = IdentifyController::text;
    json!({
        "vid": id.vid.get(), "ssvid": id.ssvid.get(), "sn": text(&id.sn), "mn": text(&id.mn), "fr": text(&id.fr),
        "rab": id.rab, "cmic": id.cmic, "mdts": id.mdts, "cntlid": id.cntlid.get(), "ver": id.ver.get(),
        "oaes": id.oaes.get(), "ctratt": id.ctratt.get(), "cntrltype": id.cntrltype, "oacs": id.oacs.get(),
        "acl": id.acl, "aerl": id.aerl, "frmw": id.frmw, "lpa": id.lpa, "elpe": id.elpe, "npss": id.npss,
        "kas": id.kas.get(), "sqes": id.sqes, "cqes": id.cqes, "maxcmd": id.maxcmd.get(), "nn": id.nn.get(),
        "oncs": id.oncs.get(), "fuses": id.fuses.get(), "fna": id.fna, "vwc": id.vwc, "awun": id.awun.get(),
        "awupf": id.awupf.get(), "nwpc": id.nwpc, "acwu": id.acwu.get(), "sgls": id.sgls.get(), "mnan": id.mnan.get(),
        "subnqn": text(&id.subnqn), "ioccsz": id.ioccsz.get(), "iorcsz": id.iorcsz.get(), "icdoff": id.icdoff.get(),
        "fcatt": id.fcatt, "msdbd": id.msdbd, "ofcs": id.ofcs.get(),
    })
}

/// Identify Namespace under nvme-cli's names.
fn namespace(id: &IdentifyNamespace, nsid: u32) -> Value {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let formats: Vec<_> = id.lbaf[..=usize::from(id.nlbaf_z).min(63)]
        .iter()
        .map(|format| json!({ "ms": format.ms.get(), "ds": format.lbads, "rp": format.rp }))
        .collect();
    json!({
        "nsid": nsid, "nsze": id.nsze.get(), "ncap": id.ncap.get(), "nuse": id.nuse.get(), "nsfeat": id.nsfeat,
        "nlbaf": id.nlbaf_z, "flbas": id.flbas, "mc": id.mc, "dpc": id.dpc, "dps": id.dps, "nmic": id.nmic,
        "rescap": id.rescap, "fpi": id.fpi, "dlfeat": id.dlfeat, "noiob": id.noiob.get(), "nsattr": id.nsattr,
        "nguid": hex(&id.nguid), "eui64": hex(&id.eui64), "lbafs": formats,
    })
}
