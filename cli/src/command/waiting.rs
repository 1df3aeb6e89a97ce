//! Saying what an operation waits for, when it takes long.

use super::target::NamespaceArguments;
use crate::namespace::ana_name;
use crate::print::complain;
use core::pin::pin;
use core::time::Duration;
use nvme_proto::Nsid;
use nvme_proto::admin::log_page::AnaState;
use nvmf_initiator::{Connection, ConnectionState, PathStatus};
use tokio::time::timeout;

/// How long an operation may take before it is said what it waits for.
const QUIET: Duration = Duration::from_secs(3);

/// What operations on one namespace may wait for.
pub(super) struct Waiting {
    connection: Connection,
    nsid: Nsid,
    disk: String,
    advice: String,
}

impl Waiting {
    pub(super) fn new(arguments: &NamespaceArguments, connection: &Connection, nsid: Nsid) -> Self {
        let until = match arguments.target.patience() {
            Some(seconds) => format!("for up to {seconds} s"),
            None => "without end".to_owned(),
        };
        Self {
            connection: connection.clone(),
            nsid,
            disk: format!("{} namespace {nsid}", arguments.nqn),
            advice: format!(
                "This waits {until} (--ctrl-loss-tmo): have one of them lead there, or end this, and name another with --path"
            ),
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
                complain(format_args!("waits for a path to {}: {what}. {}", self.disk, self.advice));
            }
            said = now;
        }
    }

    /// How each path is, where none leads to the namespace.
    fn what(&self) -> Option<String> {
        let paths = self.connection.paths();
        let access =
            |path: &PathStatus| path.access.iter().find(|(nsid, _)| *nsid == self.nsid).map(|(_, it)| *it);
        let leads = |path: &PathStatus| {
            let given = matches!(access(path), Some(AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED));
            path.state == ConnectionState::Live && given
        };
        let how = |path: &PathStatus| {
            let how = match (&path.lost, access(path)) {
                (Some(lost), _) => format!("is away ({lost})"),
                (None, Some(access)) => format!("is {} (ANA)", ana_name(access)),
                (None, None) => "is being connected".to_owned(),
            };
            format!("the one over {} {how}", path.address)
        };
        (!paths.iter().any(leads)).then(|| paths.iter().map(how).collect::<Vec<_>>().join("; "))
    }
}
