//! What is said beside the report, on the standard error.

use std::fmt::Display;
use std::io::Write;

/// Prints a line to the standard error. Where nobody can read it (it is closed, or full), the run goes on.
pub fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "nvmf-bench: {line}");
}
