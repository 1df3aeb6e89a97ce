//! Saying what an operation waits for, when it takes long, and what it has waited for, when that did not come.

use super::target::NamespaceArguments;
use crate::namespace::ana_name;
use crate::print::complain;
use core::pin::pin;
use core::time::Duration;
use nvme_proto::Nsid;
use nvme_proto::admin::log_page::AnaState;
use nvmf_block::BlockError;
use nvmf_initiator::{Connection, ConnectionState, Effect, Error, PathStatus};
use tokio::time::timeout;

/// How long an operation may take before it is said what it waits for.
const QUIET: Duration = Duration::from_secs(3);

/// What operations on one namespace may wait for.
pub(super) struct Waiting {
    connection: Connection,
    nsid: Nsid,
    disk: String,
    /// How long it waits.
    patience: String,
}

impl Waiting {
    pub(super) fn new(arguments: &NamespaceArguments, connection: &Connection, nsid: Nsid) -> Self {
        Self {
            connection: connection.clone(),
            nsid,
            disk: format!("{} namespace {nsid}", arguments.nqn),
            patience: arguments.target.patience(),
        }
    }

    /// The result of an operation. As soon as that takes long it is said what it waits for, and again when that is
    /// another thing.
    pub(super) async fn tell<T>(&self, operation: impl Future<Output = T>) -> T {
        let mut operation = pin!(operation);
        let mut said = None;
        loop {
            if let Ok(result) = timeout(QUIET, &mut operation).await {
                return result;
            }
            let now = self.what();
            if let Some(what) = now.as_ref().filter(|_| now != said) {
                let Self { disk, patience, .. } = self;
                complain(format_args!(
                    "waits for a path to {disk}: {what}. This waits {patience}: have one of them lead there, or end this, and name \
                     another with --path"
                ));
            }
            said = now;
        }
    }

    /// Why an operation was not sent, where that is because no path was there.
    pub(super) fn not_sent(&self, error: &Error) -> Option<String> {
        let Error::Io { effect: Effect::Nothing, source: BlockError::Gone, .. } = error else { return None };
        let Self { disk, patience, .. } = self;
        let what = self.what()?;
        Some(format!("no path leads to {disk}: {what}. Nothing was done; this waits for one {patience}"))
    }

    /// How each path is, where none leads to the namespace.
    fn what(&self) -> Option<String> {
        let paths = self.connection.paths();
        let access =
            |path: &PathStatus| path.access.iter().find(|(nsid, _)| *nsid == self.nsid).map(|(_, it)| *it);
        let is_foreign = self.connection.foreign().iter().any(|(nsid, _)| *nsid == self.nsid);
        // As another namespace it may show another disk all the same.
        let shows_another = |path: &PathStatus| is_foreign && path.state == ConnectionState::Foreign;
        let leads = |path: &PathStatus| {
            let given = matches!(access(path), Some(AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED));
            path.lost.is_none() && given && !shows_another(path)
        };
        let how = |path: &PathStatus| {
            let how = match (&path.lost, access(path)) {
                (Some(lost), _) => format!("is away ({lost})"),
                _ if shows_another(path) => "shows another disk".to_owned(),
                (None, Some(access)) => format!("is {} (ANA)", ana_name(access)),
                (None, None) => "is being connected".to_owned(),
            };
            format!("the one over {} {how}", path.address)
        };
        (!paths.iter().any(leads)).then(|| paths.iter().map(how).collect::<Vec<_>>().join("; "))
    }
}
