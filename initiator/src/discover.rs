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

    /// Whether it is connected now.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.connection.state() == ConnectionState::Live
    }

    /// Its log, as soon as it was read again: after a change, or a loss. `None`: it was given up.
    pub async fn changed(&mut self) -> Option<DiscoveryLog> {
        loop {
            match self.next().await {
                DiscoveryChange::Log(log) => return Some(log),
                DiscoveryChange::Away => {}
                DiscoveryChange::GivenUp => return None,
            }
        }
    }

    /// What happens to it next. After [`DiscoveryChange::Away`] a log comes as soon as it is connected again, whether or not that is
    /// another.
    pub async fn next(&mut self) -> DiscoveryChange {
        loop {
            match self.changes.next().await {
                Change::State(ConnectionState::Lost) => return DiscoveryChange::GivenUp,
                Change::State(ConnectionState::Live) => return DiscoveryChange::Log(self.log()),
                Change::State(_) => return DiscoveryChange::Away,
                Change::Namespaces if self.is_live() => {
                    return DiscoveryChange::Log(self.log());
                }
                // It is read before the connection is there again, or was there last.
                Change::Namespaces => {}
            }
        }
    }
}

/// What happens to a discovery service that one stays connected to.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum DiscoveryChange {
    /// Its log was read again.
    Log(DiscoveryLog),
    /// It was lost, and is being connected again: what it said last may not be so any more.
    Away,
    /// It was given up.
    GivenUp,
}
