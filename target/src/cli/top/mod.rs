//! `nvmf-target top`: which namespaces and hosts are busy, from the target's metrics.

mod rows;
mod table;

use crate::daemon::read_config;
use crate::metrics::fetch::fetch;
use anyhow::{Context, bail};
use clap::Args;
use core::time::Duration;
use nvmf_config::MetricsAddress;
use rows::Rows;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

/// How long the target may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Rows where the height of the terminal is not known.
const ROWS: usize = 40;

/// What `top` is told.
#[derive(Debug, Args)]
pub(super) struct Top {
    /// Where the metrics are: ADDRESS:PORT or the path of a socket, as `listen` in [metrics] has it.
    #[arg(long, value_name = "ADDRESS", value_parser = metrics_address)]
    from: Option<MetricsAddress>,
    /// The target's configuration, which says where they are.
    #[arg(long, value_name = "FILE", default_value = "/etc/nvmf/target.toml", conflicts_with = "from")]
    config: PathBuf,
    /// Seconds between two looks.
    #[arg(long, short, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    interval: Duration,
    /// Look once (over one interval), print, and end.
    #[arg(long)]
    once: bool,
    /// How it is printed.
    #[arg(long, short, default_value = "normal", value_enum)]
    output_format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people.
    Normal,
    /// A JSON object for each look, one in a line.
    Json,
}

fn metrics_address(text: &str) -> Result<MetricsAddress, String> {
    if text.starts_with('/') {
        return Ok(MetricsAddress::Unix(text.into()));
    }
    text.parse().map(MetricsAddress::Tcp).map_err(|_| format!("`{text}` is neither ADDRESS:PORT nor a path"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("an interval is 0.1 to 3600 seconds".to_owned())
    }
}

impl Top {
    fn address(&self) -> anyhow::Result<MetricsAddress> {
        if let Some(address) = &self.from {
            return Ok(address.clone());
        }
        let config = read_config(&self.config)?;
        let Some(listen) = config.metrics.and_then(|metrics| metrics.listen) else {
            bail!(
                "{} has no listen in [metrics]: add it, restart the target, or name the address with --from",
                self.config.display()
            );
        };
        Ok(listen)
    }

    /// Looks, and prints, until it is stopped.
    ///
    /// # Errors
    /// The metrics cannot be had.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let address = self.address()?;
        let look =
            || fetch(&address, PATIENCE).with_context(|| format!("cannot read the metrics on {address}"));
        let live = !self.once && self.output_format == Format::Normal && io::stdout().is_terminal();
        let (mut before, mut since) = (look()?, Instant::now());
        loop {
            std::thread::sleep(self.interval);
            let (now, at) = (look()?, Instant::now());
            let rows = Rows::between(&before, &now, at - since);
            let mut text = match self.output_format {
                Format::Json => serde_json::to_string(&rows)?,
                Format::Normal => table::draw(&rows, if live { height() } else { usize::MAX }),
            };
            if live {
                // Home, and what was there before is cleared line by line: the picture does not flicker.
                text = format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"));
            } else {
                text.push('\n');
            }
            if let Err(error) = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
                // Whoever read it has seen enough.
                return if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error.into()) };
            }
            if self.once {
                return Ok(());
            }
            (before, since) = (now, at);
        }
    }
}

fn height() -> usize {
    rustix::termios::tcgetwinsize(io::stdout()).map_or(ROWS, |size| usize::from(size.ws_row)).max(8)
}
