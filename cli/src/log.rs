//! The log, to standard error.

use crate::print::complain;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// What is logged where nothing else is asked for.
const DEFAULT: &str = "warn,nvmf=info,nvmf_initiator=info";
/// The same of a command that prints for people what became of it.
const DEFAULT_OF_PRINTER: &str = "warn";

/// Starts the log. `NVMF_LOG` says how much is logged, else `-v`, which is given so many times, else `RUST_LOG`. `prints`: what
/// happens is printed anyway.
pub(crate) fn start(verbosity: u8, prints: bool) {
    tracing_subscriber::fmt()
        .with_env_filter(filter(verbosity, prints))
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        // Where the log cannot be written (/run is full), to say so there too would end the thread that serves the disk.
        .log_internal_errors(false)
        .init();
}

fn filter(verbosity: u8, prints: bool) -> EnvFilter {
    if let Some(text) = std::env::var("NVMF_LOG").ok().filter(|text| !text.trim().is_empty()) {
        return parse(&text).unwrap_or_else(|problem| {
            complain(format_args!("NVMF_LOG={text}: {problem}; info is used"));
            EnvFilter::new(DEFAULT)
        });
    }
    match verbosity {
        0 => {}
        1 => return EnvFilter::new("info,nvmf=debug"),
        _ => return EnvFilter::new("trace"),
    }
    let default = if prints { DEFAULT_OF_PRINTER } else { DEFAULT };
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default))
}

/// How much `NVMF_LOG` asks for.
fn parse(text: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(nvmf_config::log_filter(text)?).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn levels_and_filters_are_understood() {
        for (text, filter) in
            [("WARNING", "warn"), ("Debug", "debug"), ("warn,nvmf=trace", "nvmf=trace,warn")]
        {
            assert_eq!(parse(text).expect(text).to_string(), filter);
        }
        parse("info,nvmf=loud").expect_err("no level of a part");
        parse("loud").expect_err("no level");
    }
}
