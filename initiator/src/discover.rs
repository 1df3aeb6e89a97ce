//! The discovery service: what a target exports.

use crate::{Connection, Error, Options};
use nvme_proto::Nqn;
use nvmf_host::DiscoveryLog;

/// Asks the discovery service at the options' address what it knows of.
///
/// # Errors
/// As [`Connection::connect`].
pub async fn discover(options: Options) -> Result<DiscoveryLog, Error> {
    let connection = Connection::connect(Options { nqn: Nqn::DISCOVERY, ..options }).await?;
    let log = connection.discovery_log();
    connection.close().await;
    Ok(log)
}
