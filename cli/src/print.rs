//! What every part of the program prints: results, errors, sizes, JSON.

use anyhow::Result;
use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

/// What the line begins with that says why the program failed.
const ERROR_PREFIX: &str = "nvmf: ";

/// Version of what `-o json` prints; grows when a field changes its meaning or goes away.
pub(crate) const JSON_VERSION: u32 = 1;

/// Nobody reads what is printed any more. Ends the program in silence, as SIGPIPE does others.
#[derive(Debug, thiserror::Error)]
#[error("the output is closed")]
pub(crate) struct OutputClosed;

/// The arguments contradict each other, or are not meant for this command.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongArguments(pub(crate) String);

/// Fails with [`WrongArguments`].
pub(crate) fn wrong_arguments<T>(text: impl Into<String>) -> Result<T> {
    Err(WrongArguments(text.into()).into())
}

/// The standard output is for one document alone.
static IS_FOR_A_DOCUMENT: AtomicBool = AtomicBool::new(false);

/// From now on the standard output is for what [`document`] prints: everything else goes to the standard error.
pub(crate) fn leave_output_to_a_document() {
    IS_FOR_A_DOCUMENT.store(true, Ordering::Relaxed);
}

/// Prints the document that the standard output is for.
pub(crate) fn document(json: &serde_json::Value) -> Result<()> {
    let mut output = std::io::stdout().lock();
    printed(writeln!(output, "{json:#}").and_then(|()| output.flush()))
}

/// Prints text to the standard output, if that is not left to a document.
pub(crate) fn text(text: impl Display) -> Result<()> {
    if IS_FOR_A_DOCUMENT.load(Ordering::Relaxed) {
        let _ = write!(std::io::stderr(), "{text}");
        return Ok(());
    }
    let mut output = std::io::stdout().lock();
    printed(write!(output, "{text}").and_then(|()| output.flush()))
}

/// Prints bytes to the standard output, as they are.
pub(crate) fn bytes(bytes: &[u8]) -> Result<()> {
    let mut output = std::io::stdout().lock();
    printed(output.write_all(bytes).and_then(|()| output.flush()))
}

/// What became of printing to the standard output.
pub(crate) fn printed(outcome: std::io::Result<()>) -> Result<()> {
    outcome.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => OutputClosed.into(),
        _ => anyhow::Error::new(error).context("cannot write to the standard output"),
    })
}

/// Prints a line to the standard error. Where nobody can read it (it is closed, or full), the exit status says it all.
pub(crate) fn error_line(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints to the standard error what this program has to complain about, or to warn of.
pub(crate) fn complain(what: impl Display) {
    error_line(format_args!("{ERROR_PREFIX}{what}"));
}

/// Prints a line to the standard output.
pub(crate) fn line(line: impl Display) -> Result<()> {
    text(format_args!("{line}\n"))
}

/// A word as a shell takes it for one.
pub(crate) fn shell_word(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")).into(),
    }
}

/// An error and its causes in one line, without saying anything twice.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        let _ = write!(text, "{cause}");
    }
    let number = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error)
    };
    if error.chain().filter_map(number).any(|number| number == nix::libc::EMFILE) {
        text.push_str(" (raise the limit: ulimit -n 64)");
    }
    text
}

/// Prints JSON, with its version first.
pub(crate) fn print_json(mut value: serde_json::Value) -> Result<()> {
    if let Some(fields) = value.as_object_mut() {
        fields.shift_insert(0, "version".to_owned(), JSON_VERSION.into());
    }
    line(serde_json::to_string_pretty(&value)?)
}

/// Bytes as people read them.
pub(crate) fn human(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn too_many_open_files_come_with_what_to_raise() {
        let failed = |number| {
            let error: std::io::Result<()> = Err(std::io::Error::from_raw_os_error(number));
            chain(&error.context("cannot start it").unwrap_err())
        };
        assert!(failed(nix::libc::EMFILE).ends_with("(raise the limit: ulimit -n 64)"));
        assert!(!failed(nix::libc::ENOENT).contains("ulimit"));
    }
}
