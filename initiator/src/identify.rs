//! Identify: all that a controller says of itself and of its namespaces, under the standard's names.
//!
//! What every user of a disk needs is known without asking, by [`Connection::controller`] and [`Device::namespace`]. The data
//! structures here are as on the wire: little-endian, which their types take care of (`identify.nsze.get()`), counts in logical
//! blocks, and "0's based" where a name ends in `_z`.

use crate::{Connection, Device, Error};
pub use nvme_proto::admin::identify::{IdentifyController, IdentifyNamespace, LbaFormat};
pub use nvmf_host::CommandLimits;
use nvmf_host::admin::{self, AdminCommand};
use zerocopy::{FromBytes, Immutable, KnownLayout};

impl Connection {
    /// Identify Controller, as the controller sends it now (CNS 01h); with several paths, the first one in use.
    ///
    /// # Errors
    /// As [`Connection::admin`]; [`Error::Identify`].
    pub async fn identify(&self) -> Result<IdentifyController, Error> {
        self.ask_identify("Identify Controller", admin::identify_controller()).await
    }

    async fn ask_identify<T: FromBytes + KnownLayout + Immutable>(
        &self,
        what: &'static str,
        command: AdminCommand,
    ) -> Result<T, Error> {
        let reply = self.admin(command).await?;
        let failed = |reason: String| Error::Identify { what, reason };
        if !reply.outcome.status.is_success() {
            return Err(failed(reply.outcome.status.to_string()));
        }
        T::read_from_bytes(&reply.data).map_err(|_| failed(format!("{} bytes", reply.data.len())))
    }
}

impl Device {
    /// Identify Namespace, as the controller sends it now (CNS 00h).
    ///
    /// # Errors
    /// As [`Connection::admin`]; [`Error::Identify`].
    pub async fn identify(&self) -> Result<IdentifyNamespace, Error> {
        let command = admin::identify_namespace(self.nsid());
        self.connection().ask_identify("Identify Namespace", command).await
    }
}
