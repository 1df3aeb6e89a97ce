//! `nvmf id-ctrl` and `nvmf id-ns`.

mod fields;

use super::human::hex;
use super::human::identify::explain;
use super::lists::identify;
use super::raw::dump;
use super::target::NamespaceArguments;
use super::{PageOutput, TargetArguments};
use crate::connect::connect;
use crate::namespace::uuid;
use crate::print::line;
use crate::runtime::run;
use anyhow::{Result, bail};
use core::mem::offset_of;
use nvme_proto::admin::identify::{Cns, IdentifyController, IdentifyNamespace};
use nvme_proto::{Nqn, Nsid};
use nvmf_host::admin;
use nvmf_initiator::AdminReply;
use serde_json::Value;
use zerocopy::{FromBytes, IntoBytes};

#[derive(clap::Args)]
pub(crate) struct IdCtrl {
    #[command(flatten)]
    target: TargetArguments,
    /// NQN of the subsystem
    #[arg(short = 'n', long)]
    nqn: Nqn,
    #[command(flatten)]
    shown: Shown,
}

#[derive(clap::Args)]
pub(crate) struct IdNs {
    #[command(flatten)]
    namespace: NamespaceArguments,
    /// Also one that is allocated and not attached to this controller: of the NSID that is given
    #[arg(long, requires = "nsid")]
    force: bool,
    #[command(flatten)]
    shown: Shown,
}

/// What is shown of a structure, and how.
#[derive(clap::Args, Clone, Copy)]
struct Shown {
    /// Say what the bits of each field mean
    #[arg(short = 'H', long)]
    human_readable: bool,
    /// Show the vendor's bytes, too
    #[arg(short = 'v', long)]
    vendor_specific: bool,
    #[command(flatten)]
    output: PageOutput,
}

impl IdCtrl {
    pub(crate) fn run(&self) -> Result<()> {
        let options = self.target.options(self.nqn)?;
        let page: IdentifyController = run(async {
            let (connection, _) = connect(options).await?;
            let page = page(&connection.admin(admin::identify_controller()).await?, "Identify Controller")?;
            connection.close().await;
            Ok(page)
        })?;
        let vendor = offset_of!(IdentifyController, vs);
        self.shown.print("NVME Identify Controller:", page.as_bytes(), vendor, || fields::controller(&page))
    }
}

impl IdNs {
    pub(crate) fn run(&self) -> Result<()> {
        let options = self.namespace.options()?;
        let (page, nsid, uuid): (IdentifyNamespace, _, _) = run(async {
            let (connection, _) = connect(options).await?;
            if let (true, Some(nsid)) = (self.force, self.namespace.nsid.map(Nsid)) {
                let reply = identify(&connection, Cns::ALLOCATED_NAMESPACE, nsid, 0, 0).await;
                connection.close().await;
                return Ok((page(&reply?, "Identify (an allocated namespace)")?, nsid.0, None));
            }
            let namespaces = connection.namespaces();
            let nsid = self.namespace.choose(&namespaces)?;
            connection.open(nsid)?;
            let uuid = namespaces.iter().find(|namespace| namespace.nsid == nsid).and_then(uuid);
            let page = page(&connection.admin(admin::identify_namespace(nsid)).await?, "Identify Namespace")?;
            connection.close().await;
            Ok((page, nsid.0, uuid))
        })?;
        let (title, vendor) =
            (format!("NVME Identify Namespace {nsid}:"), offset_of!(IdentifyNamespace, vendor));
        let fields = || fields::namespace(&page, nsid, uuid.as_deref());
        self.shown.print(&title, page.as_bytes(), vendor, fields)
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

impl Shown {
    /// Prints a structure, in which the vendor's bytes begin at `vendor`.
    fn print(self, title: &str, page: &[u8], vendor: usize, fields: impl Fn() -> Value) -> Result<()> {
        self.output.print(page, &fields, || {
            line(title)?;
            text(&fields(), self.human_readable)?;
            if self.vendor_specific {
                line("vs[]:")?;
                dump(&page[vendor..], false)?;
            }
            Ok(())
        })
    }
}

fn text(value: &Value, human_readable: bool) -> Result<()> {
    let fields = value;
    for (name, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Array(states) if name == "psds" => {
                for (number, state) in states.iter().enumerate() {
                    line(power_state(number, state))?;
                }
            }
            Value::Array(lines) if name == "vs" => {
                if !lines.is_empty() {
                    let lines: Vec<&str> = lines.iter().filter_map(Value::as_str).collect();
                    line(format_args!("vs        : {}", lines.join("")))?;
                }
            }
            Value::Array(formats) => {
                let flbas = fields["flbas"].as_u64().unwrap_or_default();
                let upper = if formats.len() > 16 { flbas >> 1 & 0x30 } else { 0 };
                for (number, format) in formats.iter().enumerate() {
                    let shown = if human_readable { explained_lba_format } else { lba_format };
                    line(shown(number, format, number as u64 == (flbas & 0xf | upper)))?;
                }
            }
            Value::Null => {}
            value => {
                line(format_args!("{name:<10}: {}", field(name, value)))?;
                let number = value.as_u64().filter(|_| human_readable);
                let lines = number.map_or_else(Vec::new, |number| explain(name, number));
                if !lines.is_empty() {
                    line(format_args!("{}\n", lines.join("\n")))?;
                }
            }
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

/// The same in words.
fn explained_lba_format(number: usize, format: &Value, is_in_use: bool) -> String {
    let part = |name: &str| format[name].as_u64().unwrap_or_default();
    let in_use = if is_in_use { " (in use)" } else { "" };
    let performance = ["Best", "Better", "Good", "Degraded"][part("rp") as usize & 3];
    format!(
        "LBA Format {number:>2} : Metadata Size: {:<3} bytes - Data Size: {:<2} bytes - Relative Performance: {} \
         {performance}{in_use}",
        part("ms"),
        1_u64 << part("ds").min(63),
        hex(part("rp")),
    )
}

/// A power state, in three lines.
fn power_state(number: usize, state: &Value) -> String {
    let part = |name: &str| state[name].as_u64().unwrap_or_default();
    // Hundredths of a watt, or ten-thousandths.
    let most = match (part("max_power"), part("max_power_scale")) {
        (power, 0) => format!("{}.{:02}W", power / 100, power % 100),
        (power, _) => format!("{}.{:04}W", power / 10_000, power % 10_000),
    };
    // Scale 1 is ten-thousandths of a watt, 2 hundredths; 0 says that the power is not reported.
    let power = |power: u64, scale| match scale {
        1 => format!("{}.{:04}W", power / 10_000, power % 10_000),
        2 => format!("{}.{:02}W", power / 100, power % 100),
        _ => "-".to_owned(),
    };
    let operational = if part("non-operational_state") == 1 { "non-operational" } else { "operational" };
    format!(
        "ps {number:>7} : mp:{most} {operational} enlat:{} exlat:{} rrt:{} rrl:{}\n\
         {:12}rwt:{} rwl:{} idle_power:{} active_power:{}\n\
         {:12}active_power_workload:{}",
        part("entry_lat"),
        part("exit_lat"),
        part("read_tput"),
        part("read_lat"),
        "",
        part("write_tput"),
        part("write_lat"),
        power(part("idle_power"), part("idle_scale")),
        power(part("active_power"), part("active_scale")),
        "",
        match part("active_power_work") {
            0 => "-".to_owned(),
            workload => workload.to_string(),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use zerocopy::FromZeros as _;

    #[test]
    fn fields_are_printed_as_nvme_cli_prints_them() {
        let mut id = IdentifyController::new_zeroed();
        (id.ver, id.oncs, id.sqes) = (0x0002_0000.into(), 0x1d.into(), 0x66);
        id.ieee = [0x28, 0x38, 0];
        let controller = fields::controller(&id);
        let printed = |name: &str| field(name, &controller[name]);
        assert_eq!(
            (printed("ver"), printed("oncs"), printed("sqes")),
            ("0x20000".into(), "0x1d".into(), "0x66".into())
        );
        assert_eq!(
            (printed("ieee"), printed("cntlid"), printed("mdts")),
            ("003828".into(), "0".into(), "0".into())
        );
        for name in IN_HEX {
            let there = !controller[name].is_null()
                || !fields::namespace(&IdentifyNamespace::new_zeroed(), 1, None)[name].is_null();
            assert!(there, "{name}");
        }
        let format = lba_format(1, &json!({ "ms": 0, "ds": 12, "rp": 2 }), true);
        assert_eq!(format, "lbaf  1 : ms:0   lbads:12 rp:0x2 (in use)");
    }

    #[test]
    fn power_states_are_printed_with_their_units() {
        let text = power_state(
            1,
            &json!({
                "max_power": 950, "max_power_scale": 0, "non-operational_state": 1, "entry_lat": 5, "exit_lat": 6,
                "read_tput": 1, "read_lat": 2, "write_tput": 3, "write_lat": 4, "idle_power": 500,
                "idle_scale": 1, "active_power": 5, "active_power_work": 0, "active_scale": 0,
            }),
        );
        assert_eq!(
            text,
            "ps       1 : mp:9.50W non-operational enlat:5 exlat:6 rrt:1 rrl:2\n            \
             rwt:3 rwl:4 idle_power:0.0500W active_power:-\n            active_power_workload:-"
        );
    }
}
