//! The log, to standard error.

use crate::print::ERROR_PREFIX;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// What is logged where nothing else is asked for.
const DEFAULT: &str = "warn,nvmf=info,nvmf_initiator=info";

/// Starts the log. `NVMF_LOG` says how much is logged (`RUST_LOG` where that is not set).
pub(crate) fn start() {
    tracing_subscriber::fmt()
        .with_env_filter(filter())
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// From `NVMF_LOG`, else from `RUST_LOG`.
fn filter() -> EnvFilter {
    if let Some(text) = std::env::var("NVMF_LOG").ok().filter(|text| !text.trim().is_empty()) {
        return parse(&text).unwrap_or_else(|problem| {
            eprintln!("{ERROR_PREFIX}NVMF_LOG={text}: {problem}; info is used");
            EnvFilter::new(DEFAULT)
        });
    }
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT))
}

/// How much `NVMF_LOG` asks for. A single word that is no level would name a part of the program, and switch the log off.
fn parse(text: &str) -> Result<EnvFilter, String> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let text = text.trim();
    if text.contains(['=', ',', ':']) {
        return EnvFilter::try_new(text).map_err(|error| error.to_string());
    }
    let level = if text.eq_ignore_ascii_case("warning") { "warn" } else { text };
    if LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
        Ok(EnvFilter::new(level))
    } else {
        Err(format!("unknown level ({})", LEVELS.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn unknown_level_is_refused() {
        for word in ["verbose", "bogus", "warnings", "nvmf"] {
            let problem = parse(word).expect_err(word);
            assert_eq!(problem, "unknown level (error, warn, info, debug, trace, off)");
        }
        parse("info,nvmf=loud").expect_err("no level of a part");
    }

    #[test]
    fn levels_and_filters_are_understood() {
        for (text, filter) in [
            ("warning", "warn"),
            ("WARN", "warn"),
            (" debug ", "debug"),
            ("off", "off"),
            ("warn,nvmf=trace", "nvmf=trace,warn"),
        ] {
            assert_eq!(parse(text).expect(text).to_string(), filter);
        }
    }
}
