//! `nvmf list-ns`, `nvmf list-ctrl` and `nvmf ns-descs`: what a controller lists.

use super::identify::page;
use super::raw::{byte, half, word};
use super::target::NamespaceArguments;
use super::{PageOutput, TargetArguments};
use crate::connect::connect;
use crate::print::line;
use crate::runtime::run;
use anyhow::Result;
use nvme_proto::admin::identify::{Cns, ControllerList, Descriptors, IdList, LEN, NamespaceIdType};
use nvme_proto::opcode::AdminOpcode;
use nvme_proto::{Nqn, Nsid};
use nvmf_initiator::raw::RawCommand;
use nvmf_initiator::{AdminReply, Connection};
use serde_json::{Value, json};
use uuid::Uuid;
use zerocopy::IntoBytes;

/// The allocated namespaces of one I/O command set.
const COMMAND_SET_ALLOCATED_NAMESPACES: Cns = Cns(0x1a);

/// A controller of a subsystem.
#[derive(clap::Args)]
struct ControllerArguments {
    #[command(flatten)]
    target: TargetArguments,
    /// NQN of the subsystem
    #[arg(short = 'n', long)]
    nqn: Nqn,
}

#[derive(clap::Args)]
pub(crate) struct ListNs {
    #[command(flatten)]
    controller: ControllerArguments,
    /// Begin with this namespace
    #[arg(long = "namespace-id", visible_alias = "nsid", value_parser = word, default_value = "1")]
    nsid: u32,
    /// Those that are allocated, whether this controller has them or not
    #[arg(long)]
    all: bool,
    /// Those of this I/O command set alone: 0 is NVM
    #[arg(long, value_parser = byte)]
    csi: Option<u8>,
    #[command(flatten)]
    output: PageOutput,
}

#[derive(clap::Args)]
pub(crate) struct ListCtrl {
    #[command(flatten)]
    controller: ControllerArguments,
    /// Begin with this controller
    #[arg(long, value_parser = half, default_value = "0")]
    cntid: u16,
    /// Those that have this namespace; 0: all of the subsystem
    #[arg(long = "namespace-id", visible_alias = "nsid", value_parser = word, default_value = "0")]
    nsid: u32,
    #[command(flatten)]
    output: PageOutput,
}

#[derive(clap::Args)]
pub(crate) struct NsDescs {
    #[command(flatten)]
    namespace: NamespaceArguments,
    #[command(flatten)]
    output: PageOutput,
}

/// Has a controller identify something.
pub(super) async fn identify(
    connection: &Connection,
    cns: Cns,
    nsid: Nsid,
    cntid: u16,
    csi: u8,
) -> Result<AdminReply> {
    let dwords = [u32::from(cns.0) | u32::from(cntid) << 16, u32::from(csi) << 24, 0, 0, 0, 0];
    let command = RawCommand::new(AdminOpcode::IDENTIFY.0, nsid).with_dwords(dwords);
    Ok(connection.raw_admin(command.receiving(LEN as u32)).await?)
}

impl ControllerArguments {
    fn identify(&self, cns: Cns, nsid: Nsid, cntid: u16, csi: u8) -> Result<AdminReply> {
        let options = self.target.options(self.nqn)?;
        run(async {
            let (connection, _) = connect(options).await?;
            let reply = identify(&connection, cns, nsid, cntid, csi).await;
            connection.close().await;
            reply
        })
    }
}

/// Prints identifiers with their places in the list, as nvme-cli does.
fn print_numbered(ids: impl Iterator<Item = u32>) -> Result<()> {
    for (at, id) in ids.enumerate() {
        // C's `%#x` gives 0 no prefix.
        let shown = if id == 0 { "0".to_owned() } else { format!("{id:#x}") };
        line(format_args!("[{at:>4}]:{shown}"))?;
    }
    Ok(())
}

impl ListNs {
    pub(crate) fn run(&self) -> Result<()> {
        let cns = match (self.all, self.csi) {
            (true, None) => Cns::ALLOCATED_NAMESPACES,
            (false, None) => Cns::ACTIVE_NAMESPACES,
            (true, Some(_)) => COMMAND_SET_ALLOCATED_NAMESPACES,
            (false, Some(_)) => Cns::COMMAND_SET_ACTIVE_NAMESPACES,
        };
        // The command asks for those above one.
        let reply =
            self.controller.identify(cns, Nsid(self.nsid.saturating_sub(1)), 0, self.csi.unwrap_or(0))?;
        let list: IdList = page(&reply, "Identify (a list of namespaces)")?;
        let ids = || list.iter();
        self.output.print(
            list.as_bytes(),
            || json!({ "nsid_list": ids().map(|nsid| json!({ "nsid": nsid })).collect::<Vec<_>>() }),
            || print_numbered(ids()),
        )
    }
}

impl ListCtrl {
    pub(crate) fn run(&self) -> Result<()> {
        let cns = if self.nsid == 0 { Cns::SUBSYSTEM_CONTROLLERS } else { Cns::NAMESPACE_CONTROLLERS };
        let reply = self.controller.identify(cns, Nsid(self.nsid), self.cntid, 0)?;
        let list: ControllerList = page(&reply, "Identify (a list of controllers)")?;
        let ids = || list.iter().map(|id| u32::from(id.0));
        let json = || {
            let ids: Vec<_> = ids().map(|id| json!({ "ctrl_id": id })).collect();
            json!({ "num_ctrl": ids.len(), "ctrl_list": ids })
        };
        self.output.print(list.as_bytes(), json, || print_numbered(ids()))
    }
}

impl NsDescs {
    pub(crate) fn run(&self) -> Result<()> {
        let options = self.namespace.options()?;
        let (nsid, reply) = run(async {
            let (connection, _) = connect(options).await?;
            let reply = async {
                let nsid = self.namespace.choose(&connection.namespaces())?;
                Ok((nsid, identify(&connection, Cns::NAMESPACE_DESCRIPTORS, nsid, 0, 0).await?))
            };
            let reply = reply.await;
            connection.close().await;
            reply
        })?;
        let descriptors: [u8; LEN] = page(&reply, "Identify (the descriptors of a namespace)")?;
        self.output.print(
            &descriptors,
            || json!({ "ns-descs": names(&descriptors).map(Name::json).collect::<Vec<_>>() }),
            || {
                line(format_args!("NVME Namespace Identification Descriptors NS {}:", nsid.0))?;
                names(&descriptors).try_for_each(|name| line(format_args!("{:<8}: {}", name.kind, name.text)))
            },
        )
    }
}

/// A name of a namespace.
struct Name {
    /// Where it stands among the bytes.
    at: usize,
    code: u8,
    len: usize,
    /// nvme-cli's word for what it is.
    kind: &'static str,
    text: String,
}

impl Name {
    fn json(self) -> Value {
        json!({ "loc": self.at, "nidt": self.code, "nidl": self.len, "Type": self.kind, self.kind: self.text })
    }
}

/// The names of kinds that are known.
fn names(descriptors: &[u8]) -> impl Iterator<Item = Name> {
    let mut at = 0;
    Descriptors::new(descriptors).filter_map(move |descriptor| {
        let (here, id) = (at, descriptor.id);
        at += 4 + id.len();
        let hex = || id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (kind, text) = match descriptor.kind {
            NamespaceIdType::EUI64 => ("eui64", hex()),
            NamespaceIdType::NGUID => ("nguid", hex()),
            NamespaceIdType::UUID => ("uuid", Uuid::from_slice(id).ok()?.to_string()),
            NamespaceIdType::CSI => ("csi", if id == [0] { "0".to_owned() } else { format!("{:#x}", id[0]) }),
            _ => return None,
        };
        Some(Name { at: here, code: descriptor.kind.0, len: id.len(), kind, text })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme_proto::admin::identify::DescriptorWriter;

    #[test]
    fn names_are_shown_as_nvme_cli_shows_them() {
        let mut bytes = [0; LEN];
        let mut writer = DescriptorWriter::new(&mut bytes);
        writer.push(NamespaceIdType::EUI64, &[0, 1, 2, 3, 4, 5, 6, 0xff]);
        writer.push(NamespaceIdType(9), &[1, 2]);
        writer.push(NamespaceIdType::UUID, &[0x11; 16]);
        writer.push(NamespaceIdType::CSI, &[0]);
        let shown: Vec<_> = names(&bytes).map(Name::json).collect();
        assert_eq!(
            shown,
            [
                json!({ "loc": 0, "nidt": 1, "nidl": 8, "Type": "eui64", "eui64": "00010203040506ff" }),
                json!({ "loc": 18, "nidt": 3, "nidl": 16, "Type": "uuid", "uuid": "11111111-1111-1111-1111-111111111111" }),
                json!({ "loc": 38, "nidt": 4, "nidl": 1, "Type": "csi", "csi": "0" }),
            ]
        );
    }
}
