//! `nvmf effects-log`: which commands a controller has, and what they do.

use super::{Queue, byte, log::command, send};
use crate::command::PageOutput;
use crate::command::target::NamespaceArguments;
use crate::print::line;
use crate::runtime::run;
use anyhow::{Context, Result};
use nvme_proto::Nsid;
use nvme_proto::admin::log_page::{CommandsSupportedLog, GetLogPage, LogPageId, effects};
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use serde_json::{Map, Value, json};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// The first opcodes of vendors, of Admin and I/O commands.
const VENDOR_ADMIN: usize = 0xc0;
const VENDOR_IO: usize = 0x80;
const RULE: &str = "--------------------------------------------------------------------------------";

#[derive(clap::Args)]
pub(crate) struct EffectsLog {
    #[command(flatten)]
    target: NamespaceArguments,
    /// I/O command set: 0 is NVM
    #[arg(short = 'c', long, value_parser = byte, default_value = "0")]
    csi: u8,
    /// Say what the bits mean
    #[arg(short = 'H', long)]
    human_readable: bool,
    #[command(flatten)]
    output: PageOutput,
}

impl EffectsLog {
    pub(crate) fn run(&self) -> Result<()> {
        let id = LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS;
        let len = size_of::<CommandsSupportedLog>() as u64;
        let page = GetLogPage { csi: self.csi, ..GetLogPage::new(id, Nsid::ALL, 0, len) };
        let what = "Get Log Page (Commands Supported and Effects)";
        let reply = run(send(&self.target, Queue::Admin, what, |_| Ok(command(&page))))?;
        let log = CommandsSupportedLog::ref_from_bytes(&reply.data)
            .ok()
            .context("the controller's log is cut off")?;
        self.output.print(&reply.data, || self.json(log), || self.text(log))
    }

    fn json(&self, log: &CommandsSupportedLog) -> Value {
        let set = |kind: &str, entries: &[U32], name: fn(u8) -> &'static str| -> Map<String, Value> {
            let key = |opcode| format!("{kind}_{opcode} ({})", name(opcode));
            supported(entries).map(|(opcode, effect)| (key(opcode), effect.into())).collect()
        };
        // One for each command set, as nvme-cli has it.
        json!([{
            "command_set_identifier": self.csi,
            "admin_cmd_set": set("ACS", &log.admin, admin_name),
            "io_cmd_set": set("IOCS", &log.io, io_name),
        }])
    }

    fn text(&self, log: &CommandsSupportedLog) -> Result<()> {
        let set = match self.csi {
            0 => "NVM",
            2 => "ZNS",
            _ => "Unknown",
        };
        line(format_args!("{set} Command Set Log Page\n{RULE}"))?;
        let (admin, vendor_admin) = log.admin.split_at(VENDOR_ADMIN);
        let (io, vendor_io) = log.io.split_at(VENDOR_IO);
        let of_admin = |opcode| format!("ACS{opcode:<6}[{:<32}]", admin_name(opcode));
        let of_io = |opcode| format!("IOCS{opcode:<5}[{:<32}]", io_name(opcode));
        self.commands("Admin Commands", 0, admin, of_admin)?;
        self.commands("Vendor Specific Admin Commands", VENDOR_ADMIN as u8, vendor_admin, of_admin)?;
        self.commands("I/O Commands", 0, io, of_io)?;
        self.commands("Vendor Specific I/O Commands", VENDOR_IO as u8, vendor_io, of_io)
    }

    /// Those of one kind, if there are any.
    fn commands(&self, title: &str, first: u8, entries: &[U32], shown: impl Fn(u8) -> String) -> Result<()> {
        let mut entries = supported(entries).peekable();
        if entries.peek().is_none() {
            return Ok(());
        }
        line(title)?;
        for (opcode, effect) in entries {
            let meaning = if self.human_readable { meaning(effect) } else { String::new() };
            line(format_args!("{} {effect:08x}{meaning}", shown(first + opcode)))?;
        }
        line("")
    }
}

/// The commands that there are, by their place, with their effects.
fn supported(entries: &[U32]) -> impl Iterator<Item = (u8, u32)> + '_ {
    let entries = (0..=u8::MAX).zip(entries.iter().map(|entry| entry.get()));
    entries.filter(|(_, effect)| effect & effects::SUPPORTED != 0)
}

/// What the bits mean, in nvme-cli's words.
fn meaning(effect: u32) -> String {
    let bits = [(0, "CSUPP"), (1, "LBCC"), (2, "NCC"), (3, "NIC"), (4, "CCC"), (19, "USS")];
    let bits = bits.map(|(bit, name)| format!("  {name}{}", if effect >> bit & 1 == 1 { '+' } else { '-' }));
    let relaxed = match effect >> 14 & 0b11 {
        0 => "No CSER defined",
        1 => "No admin command for any namespace",
        _ => "Reserved CSER",
    };
    let restricted = match effect >> 16 & 0b111 {
        0 => "No command restriction",
        1 => "No other command for same namespace",
        2 => "No other command for any namespace",
        _ => "Reserved CSE",
    };
    format!("{}  {relaxed}  {restricted}", bits.concat())
}

fn admin_name(opcode: u8) -> &'static str {
    match AdminOpcode(opcode) {
        AdminOpcode::DELETE_IO_SQ => "Delete I/O Submission Queue",
        AdminOpcode::CREATE_IO_SQ => "Create I/O Submission Queue",
        AdminOpcode::GET_LOG_PAGE => "Get Log Page",
        AdminOpcode::DELETE_IO_CQ => "Delete I/O Completion Queue",
        AdminOpcode::CREATE_IO_CQ => "Create I/O Completion Queue",
        AdminOpcode::IDENTIFY => "Identify",
        AdminOpcode::ABORT => "Abort",
        AdminOpcode::SET_FEATURES => "Set Features",
        AdminOpcode::GET_FEATURES => "Get Features",
        AdminOpcode::ASYNC_EVENT_REQUEST => "Asynchronous Event Request",
        AdminOpcode::NAMESPACE_MANAGEMENT => "Namespace Management",
        AdminOpcode::FIRMWARE_COMMIT => "Firmware Commit",
        AdminOpcode::FIRMWARE_DOWNLOAD => "Firmware Image Download",
        AdminOpcode::DEVICE_SELF_TEST => "Device Self-test",
        AdminOpcode::NAMESPACE_ATTACHMENT => "Namespace Attachment",
        AdminOpcode::KEEP_ALIVE => "Keep Alive",
        AdminOpcode::DIRECTIVE_SEND => "Directive Send",
        AdminOpcode::DIRECTIVE_RECEIVE => "Directive Receive",
        AdminOpcode::CROSS_CONTROLLER_RESET => "Cross-Controller Reset",
        AdminOpcode::FORMAT_NVM => "Format NVM",
        AdminOpcode::SECURITY_SEND => "Security Send",
        AdminOpcode::SECURITY_RECEIVE => "Security Receive",
        AdminOpcode::SANITIZE => "Sanitize",
        _ => "Unknown",
    }
}

fn io_name(opcode: u8) -> &'static str {
    match NvmOpcode(opcode) {
        NvmOpcode::FLUSH => "Flush",
        NvmOpcode::WRITE => "Write",
        NvmOpcode::READ => "Read",
        NvmOpcode::WRITE_UNCORRECTABLE => "Write Uncorrectable",
        NvmOpcode::COMPARE => "Compare",
        NvmOpcode::WRITE_ZEROES => "Write Zeroes",
        NvmOpcode::DATASET_MANAGEMENT => "Dataset Management",
        NvmOpcode::VERIFY => "Verify",
        NvmOpcode::RESERVATION_REGISTER => "Reservation Register",
        NvmOpcode::RESERVATION_REPORT => "Reservation Report",
        NvmOpcode::RESERVATION_ACQUIRE => "Reservation Acquire",
        NvmOpcode::RESERVATION_RELEASE => "Reservation Release",
        NvmOpcode::COPY => "Copy",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_are_said_in_nvme_clis_words() {
        assert_eq!(
            meaning(0x0000_0003),
            "  CSUPP+  LBCC+  NCC-  NIC-  CCC-  USS-  No CSER defined  No command restriction"
        );
        assert_eq!(
            meaning(0x000a_401d),
            "  CSUPP+  LBCC-  NCC+  NIC+  CCC+  USS+  No admin command for any namespace  \
             No other command for any namespace"
        );
    }

    #[test]
    fn only_what_is_supported_is_shown_by_its_opcode() {
        let mut entries = [U32::ZERO; 256];
        (entries[0], entries[2], entries[255]) = (1.into(), 2.into(), 3.into());
        assert_eq!(supported(&entries).collect::<Vec<_>>(), [(0, 1), (255, 3)]);
    }
}
