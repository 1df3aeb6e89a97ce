//! How much is logged, as `NVMF_LOG` says it to each program.

/// The levels, as the log's filter spells them.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// The filter that a value of `NVMF_LOG` means: a level, or directives such as `warn,nvmf=debug`, which are not checked
/// here. A single word that is no level would name a part of the program, and switch the log off.
///
/// # Errors
/// It is no level; the text names those there are.
pub fn log_filter(text: &str) -> Result<&str, String> {
    let text = text.trim();
    if text.contains(['=', ',', ':']) {
        return Ok(text);
    }
    let level = if text.eq_ignore_ascii_case("warning") { "warn" } else { text };
    if LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
        Ok(level)
    } else {
        Err(format!("unknown level ({})", LEVELS.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::log_filter;

    #[test]
    fn unknown_level_is_refused() {
        for word in ["verbose", "bogus", "warnings", "nvmf", ""] {
            let problem = log_filter(word).expect_err(word);
            assert_eq!(problem, "unknown level (error, warn, info, debug, trace, off)");
        }
    }

    #[test]
    fn levels_and_directives_are_understood() {
        for (text, filter) in [
            ("warning", "warn"),
            ("WARN", "WARN"),
            (" debug ", "debug"),
            ("off", "off"),
            ("warn,nvmf=trace", "warn,nvmf=trace"),
        ] {
            assert_eq!(log_filter(text), Ok(filter));
        }
    }
}
