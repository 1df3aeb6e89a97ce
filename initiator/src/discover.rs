//! The discovery service: what a target exports.

use crate::{Change, Changes, Connection, ConnectionState, Error, Options};
use nvme_proto::Nqn;
use nvmf_host::DiscoveryLog;

/// Asks the discovery service at the options' address what it knows of.
///
/// # Errors
/// As [`Connection::connect`].
pub async fn discover(options: Options) -> Result<DiscoveryLog, Error> {
    let connection =
        Connection::connect(Options { nqn: Nqn::DISCOVERY, persistent: false, ..options }).await?;
    let log = connection.discovery_log();
    connection.close().await;
    Ok(log)
}

/// A discovery service that one stays connected to. It says when its log changes; when it was lost, it is connected again and its log
/// read anew.
#[derive(Debug)]
pub struct Discovery {
    connection: Connection,
    changes: Changes,
}

impl Discovery {
    /// Connects to the discovery service at the options' address.
    ///
    /// # Errors
    /// As [`Connection::connect`].
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let options = Options { nqn: Nqn::DISCOVERY, persistent: true, ..options };
        let connection = Connection::connect(options).await?;
        Ok(Self { changes: connection.changes(), connection })
    }

    /// Its log, as it was read last.
    #[must_use]
    pub fn log(&self) -> DiscoveryLog {
        self.connection.discovery_log()
    }

    /// Its log, as soon as it was read again: after a change, or a loss. `None`: it was given up.
    pub async fn changed(&mut self) -> Option<DiscoveryLog> {
        loop {
            match self.changes.next().await {
                Change::Namespaces => return Some(self.log()),
                Change::State(ConnectionState::Lost) => return None,
                Change::State(_) => {}
            }
        }
    }
}
