//! Raw commands: any Admin command and any I/O command, as it is on the wire, with a bounded amount of data.
//!
//! [`Connection::raw_admin`] sends to the Admin queue, [`Connection::raw_io`] to an I/O queue. A raw command is carried
//! out once at most: it is never split at the controller's limits, and never issued again after a loss. Its namespace is the
//! one that has the NSID when it arrives. [`Device::raw_io`], and a [`Device`]'s own commands (reservations, Identify), go
//! to no other disk than the one that was opened; what of these was refused before anything was done is sent again.

use crate::driver::{AdminReply, QueueKind};
use crate::mailbox::Times;
use crate::{Connection, Device, Error};
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nsid, Sqe};
use nvmf_host::admin::AdminCommand;
use nvmf_host::{AdminData, Command};
use std::time::Instant;

/// The most data of an Admin command, in bytes.
pub const ADMIN_DATA_MAX: usize = nvmf_host::limits::ADMIN_DATA_MAX as usize;
/// The most data of an I/O command, in bytes. Blocks are read and written through a [`crate::Device`].
pub const IO_DATA_MAX: usize = 1024;

const _: () = assert!(IO_DATA_MAX <= crate::transport::IO_SLOT_DATA);

/// A command without its CID and data pointer, which the connection knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawCommand {
    sqe: Sqe,
    data: AdminData,
    sent_by: Option<Instant>,
}

impl RawCommand {
    /// A command without data, its other dwords zero.
    #[must_use]
    pub fn new(opcode: u8, nsid: Nsid) -> Self {
        Self::from_sqe(Sqe::new(opcode).with_nsid(nsid))
    }

    /// This command, without data, whatever its CID and data pointer say.
    #[must_use]
    pub fn from_sqe(sqe: Sqe) -> Self {
        Self { sqe, data: AdminData::None, sent_by: None }
    }

    /// With these command dwords 10 to 15.
    #[must_use]
    pub fn with_dwords(self, dwords: [u32; 6]) -> Self {
        Self { sqe: self.sqe.with_dwords(dwords), ..self }
    }

    /// With these command dwords 2 and 3.
    #[must_use]
    pub fn with_dwords_2_3(mut self, [cdw2, cdw3]: [u32; 2]) -> Self {
        (self.sqe.cdw2, self.sqe.cdw3) = (cdw2.into(), cdw3.into());
        self
    }

    /// Sends these bytes with it.
    #[must_use]
    pub fn sending(self, bytes: Vec<u8>) -> Self {
        Self { data: AdminData::ToController { bytes, in_capsule: false }, ..self }
    }

    /// Receives up to so many bytes.
    #[must_use]
    pub fn receiving(self, len: u32) -> Self {
        Self { data: AdminData::FromController { len }, ..self }
    }

    /// Of [`Device::raw_io`]: waits for a path until then, and no longer, and as long for a namespace that is not ready. Where a path
    /// is there by then it waits on for what is fenced. So several tries have one time together.
    #[must_use]
    pub fn to_be_sent_by(self, at: Instant) -> Self {
        Self { sent_by: Some(at), ..self }
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.sqe.opcode
    }

    /// For an I/O queue.
    pub(crate) fn for_io(self) -> Result<AdminCommand, Error> {
        let is_reserved = NvmOpcode(self.sqe.opcode) == NvmOpcode::FABRICS;
        self.check(is_reserved, IO_DATA_MAX)
    }

    /// Checks what would harm the connection itself.
    fn check(self, is_reserved: bool, data_max: usize) -> Result<AdminCommand, Error> {
        let opcode = self.sqe.opcode;
        let len = match &self.data {
            AdminData::None => 0,
            AdminData::ToController { bytes, .. } => bytes.len(),
            AdminData::FromController { len } => *len as usize,
        };
        if is_reserved {
            return Err(Error::Raw { opcode, reason: "the connection itself sends it".to_owned() });
        }
        if len > data_max {
            let reason = format!("{len} bytes of data are more than the {data_max} of a raw command");
            return Err(Error::Raw { opcode, reason });
        }
        Ok(AdminCommand { command: Command::new(self.sqe), data: self.data })
    }
}

impl Connection {
    /// Sends any Admin command but Asynchronous Event Request and those of Fabrics. Its data are at most
    /// [`ADMIN_DATA_MAX`]. A status that is not success is no error here.
    ///
    /// # Errors
    /// [`Error::Raw`]; else as [`Connection::admin`].
    pub async fn raw_admin(&self, command: RawCommand) -> Result<AdminReply, Error> {
        let opcode = AdminOpcode(command.sqe.opcode);
        let is_reserved = matches!(opcode, AdminOpcode::FABRICS | AdminOpcode::ASYNC_EVENT_REQUEST);
        self.admin(command.check(is_reserved, ADMIN_DATA_MAX)?).await
    }

    /// Sends any I/O command but those of Fabrics. Its data are at most [`IO_DATA_MAX`]. A status that is not success is
    /// no error here.
    ///
    /// # Errors
    /// [`Error::Raw`]; else as [`Connection::admin`].
    pub async fn raw_io(&self, command: RawCommand) -> Result<AdminReply, Error> {
        self.io(command.for_io()?).await
    }

    /// The same for an NSID under which there is no disk: it is not sent where one has appeared by then, on every path. What goes to a
    /// disk is sent with [`Device::raw_io`].
    ///
    /// # Errors
    /// [`Error::Raw`], also where there is a disk; else as [`Connection::admin`].
    pub async fn raw_io_without_disk(&self, command: RawCommand) -> Result<AdminReply, Error> {
        self.io_without_disk(command.sqe.nsid(), command.for_io()?).await
    }
}

impl Device {
    /// Sends any I/O command but those of Fabrics to the disk, whatever NSID it names, over a path that the disk's operations
    /// go over: it waits for one as they do. It is sent again, as they are, where the status says that nothing of it was done: over
    /// another path where one gives no access, and in the end where the namespace is not ready yet. Else as [`Connection::raw_io`].
    ///
    /// # Errors
    /// [`Error::Raw`]; [`Error::Foreign`], or [`Error::Io`] with [`Effect::Nothing`](crate::Effect::Nothing), when it was not
    /// sent; else as [`Connection::admin`].
    pub async fn raw_io(&self, command: RawCommand) -> Result<AdminReply, Error> {
        self.send_io("a raw command", command).await
    }

    /// The same under this name.
    pub(crate) async fn send_io(
        &self,
        what: &'static str,
        mut command: RawCommand,
    ) -> Result<AdminReply, Error> {
        command.sqe = command.sqe.with_nsid(self.nsid());
        let now = self.shared.shared_driver.now();
        let sent_by = command.sent_by.map(|at| now + at.saturating_duration_since(Instant::now()));
        let command = command.for_io()?;
        // One time for all tries.
        self.ask(what, QueueKind::Io, command, Times { until: self.deadline(), sent_by }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_harm_the_connection_is_refused() {
        let command = |len| RawCommand::new(2, Nsid(1)).receiving(len);
        assert!(command(4096).check(false, ADMIN_DATA_MAX).is_ok());
        let error = command(4097).check(false, ADMIN_DATA_MAX).unwrap_err();
        assert!(error.to_string().contains("4097 bytes"), "{error}");
        assert!(command(0).check(true, ADMIN_DATA_MAX).is_err());
    }
}
