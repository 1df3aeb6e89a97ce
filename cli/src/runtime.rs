//! The runtime of a command.

use anyhow::Result;

/// Runs a command's future on this thread, to its end.
pub(crate) fn run<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}
