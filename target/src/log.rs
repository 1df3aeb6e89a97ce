//! The log: to standard error, by a thread of its own, so that a journal or terminal that takes nothing never keeps a
//! worker waiting.

use crate::visible::visible_event;
use core::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use tracing::{Level, Metadata};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written, at the most. What comes on top is dropped and counted.
const LINES_MAX: usize = 16_384;

/// Who connected, was refused, left, or changed something over the control socket: the target of these lines, which all
/// have a field of the same name. `NVMF_LOG=warn,audit=info` logs them and warnings; `journalctl -g audit=` finds them.
pub const AUDIT: &str = "audit";

/// Of these, who changed something over the control socket: written whatever else is not.
pub const CHANGE: &str = "audit::change";

/// What is logged where nothing else is asked for.
const DEFAULT: &str = "info";

static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Replaces what is logged.
type SetFilter = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

static FILTER: OnceLock<SetFilter> = OnceLock::new();

/// Starts the log. `NVMF_LOG` says how much is logged (`RUST_LOG` where that is not set). What waits is written when
/// the guard is dropped.
pub fn start() -> WorkerGuard {
    let builder =
        NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_MAX).thread_name("log");
    let (writer, guard) = builder.finish(io::stderr());
    let _ = DROPPED.set(writer.error_counter());
    // Of a log that cannot be written nothing can be said.
    let log = tracing_subscriber::fmt().with_target(false).log_internal_errors(false);
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        // The journal has its own times, and shows no colours.
        let events = Events { journal: true, colours: false, inner: writer };
        let log = log.with_writer(events).with_ansi(false).without_time();
        let log = log.with_env_filter(filter()).with_filter_reloading();
        let handle = log.reload_handle();
        let _ = FILTER.set(Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string())));
        log.init();
    } else {
        let colours = io::stderr().is_terminal();
        let log = log.with_writer(Events { journal: false, colours, inner: writer }).with_ansi(colours);
        let log = log.with_env_filter(filter()).with_filter_reloading();
        let handle = log.reload_handle();
        let _ = FILTER.set(Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string())));
        log.init();
    }
    guard
}

/// Changes what is logged, until the next start; says what it is then. `level` is what `NVMF_LOG` may be.
///
/// # Errors
/// It is no level; the text names those there are.
pub fn set_level(level: &str) -> Result<String, String> {
    let wrong = |problem| format!("log level \"{level}\": {problem}");
    let text = nvmf_config::log_filter(level).map_err(wrong)?;
    let filter = with_changes(&text).map_err(wrong)?;
    FILTER.get().ok_or("the log was not started")?(filter)?;
    Ok(text)
}

/// Prints a line to the standard error. Where nobody can read it (it is closed, or full), the program goes on.
pub fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// From `NVMF_LOG`, else from `RUST_LOG`.
fn filter() -> EnvFilter {
    if let Some(text) = std::env::var("NVMF_LOG").ok().filter(|text| !text.trim().is_empty()) {
        return parse(&text).unwrap_or_else(|problem| {
            say(format_args!("nvmf-target: NVMF_LOG={text}: {problem}; info is used"));
            EnvFilter::new(DEFAULT)
        });
    }
    let text = std::env::var("RUST_LOG").ok();
    text.and_then(|text| with_changes(&text).ok()).unwrap_or_else(|| EnvFilter::new(DEFAULT))
}

/// How much `NVMF_LOG` asks for.
fn parse(text: &str) -> Result<EnvFilter, String> {
    with_changes(&nvmf_config::log_filter(text)?)
}

/// The filter of these directives, which keeps no change from the log.
fn with_changes(directives: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(format!("{directives},{CHANGE}=info")).map_err(|error| error.to_string())
}

/// Lines that were dropped because standard error did not take them.
#[must_use]
pub fn dropped() -> usize {
    DROPPED.get().map_or(0, ErrorCounter::dropped_lines)
}

/// Writes events so that what others say in them does nothing to the terminal or the log ([`crate::visible`]), in the journal
/// with the priority in front of each line as sd-daemon(3) has it, so that `journalctl -p warning` finds it.
struct Events<W> {
    journal: bool,
    colours: bool,
    inner: W,
}

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for Events<W> {
    type Writer = EventWriter<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        let prefix = if self.journal { "<6>" } else { "" };
        EventWriter { prefix, colours: self.colours, inner: self.inner.make_writer() }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        let prefix = match *metadata.level() {
            _ if !self.journal => "",
            Level::ERROR => "<3>",
            Level::WARN => "<4>",
            Level::INFO => "<6>",
            _ => "<7>",
        };
        EventWriter { prefix, colours: self.colours, inner: self.inner.make_writer_for(metadata) }
    }
}

struct EventWriter<W> {
    prefix: &'static str,
    colours: bool,
    inner: W,
}

impl<W: Write> Write for EventWriter<W> {
    /// Takes a whole event, which may have several lines.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = visible_event(&String::from_utf8_lossy(event), self.colours);
        let mut lines = String::with_capacity(text.len() + 8);
        for line in text.split_inclusive('\n') {
            lines += self.prefix;
            lines += line;
        }
        self.inner.write_all(lines.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
