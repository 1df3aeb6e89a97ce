//! Identify: all that a controller says of itself and of its namespaces, under the standard's names.
//!
//! What every user of a disk needs is known without asking, by [`Connection::controller`] and [`Device::namespace`]. The data
//! structures here are as on the wire: little-endian, which their types take care of (`identify.nsze.get()`), counts in logical
//! blocks, and "0's based" where a name ends in `_z`.

use crate::driver::QueueKind;
use crate::mailbox::Times;
use crate::{AdminReply, Connection, Device, Error};
pub use nvme_proto::admin::identify::{IdentifyController, IdentifyNamespace, LbaFormat};
pub use nvmf_host::CommandLimits;
use nvmf_host::admin;
use zerocopy::{FromBytes, Immutable, KnownLayout};

impl Connection {
    /// Identify Controller, as the controller sends it now (CNS 01h); with several paths, the first one in use.
    ///
    /// # Errors
    /// As [`Connection::admin`]; [`Error::Identify`].
    pub async fn identify(&self) -> Result<IdentifyController, Error> {
        structure("Identify Controller", &self.admin(admin::identify_controller()).await?)
    }
}

impl Device {
    /// Identify Namespace, as a controller that shows the disk that was opened sends it now (CNS 00h).
    ///
    /// # Errors
    /// [`Error::Identify`]; [`Error::Foreign`], [`Error::Io`] where that disk is not there; what ended the connection.
    pub async fn identify(&self) -> Result<IdentifyNamespace, Error> {
        let (what, command) = ("Identify Namespace", admin::identify_namespace(self.nsid()));
        let times = Times { until: self.deadline(), sent_by: None };
        structure(what, &self.ask(what, QueueKind::Admin, command, times).await?)
    }
}

/// The data structure in a reply.
fn structure<T: FromBytes + KnownLayout + Immutable>(
    what: &'static str,
    reply: &AdminReply,
) -> Result<T, Error> {
    let failed = |reason: String| Error::Identify { what, reason };
    if !reply.outcome.status.is_success() {
        return Err(failed(reply.outcome.status.to_string()));
    }
    T::read_from_bytes(&reply.data).map_err(|_| failed(format!("{} bytes", reply.data.len())))
}
