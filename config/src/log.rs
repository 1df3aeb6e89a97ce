//! How much is logged, as `NVMF_LOG` says it to each program.

/// The levels, as the log's filter spells them.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// The filter that a value of `NVMF_LOG` means: a level, or directives such as `warn,nvmf=debug`. A word that is no level
/// would name a part of the program, and a part that there is not would switch the log off: neither is taken.
///
/// # Errors
/// It is no level, or no part of a program; the text names what there is.
pub fn log_filter(text: &str) -> Result<String, String> {
    let text = text.trim();
    // The fields of a span may have commas of their own: the filter looks at them.
    if text.contains('[') {
        return Ok(text.to_owned());
    }
    let directives: Result<Vec<String>, String> = text.split(',').map(directive).collect();
    Ok(directives?.join(","))
}

fn directive(text: &str) -> Result<String, String> {
    match text.trim().split_once('=') {
        None => Ok(level(text)?.to_owned()),
        Some((part, of_part)) if is_part(part) => Ok(format!("{part}={}", level(of_part)?)),
        Some((part, _)) => Err(format!(
            "unknown part \"{part}\" (audit, or a part of the program such as nvmf_target, nvmf_tls or nvmf_target::daemon)"
        )),
    }
}

fn level(text: &str) -> Result<&str, String> {
    let text = text.trim();
    let level = if text.eq_ignore_ascii_case("warning") { "warn" } else { text };
    match LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
        true => Ok(level),
        false => Err(format!("unknown level ({})", LEVELS.join(", "))),
    }
}

/// Whether something of ours logs under this name.
fn is_part(name: &str) -> bool {
    let root = name.split("::").next().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    name.chars().all(is_name) && (root == "audit" || root.starts_with("nvmf") || root == "nvme_proto")
}

#[cfg(test)]
mod tests {
    use super::log_filter;

    #[test]
    fn unknown_level_is_refused() {
        for word in ["verbose", "bogus", "warnings", "nvmf", "", "warn,", "nvmf=", "warn,bogus", "nvmf=loud"]
        {
            let problem = log_filter(word).expect_err(word);
            assert_eq!(problem, "unknown level (error, warn, info, debug, trace, off)");
        }
    }

    #[test]
    fn unknown_part_is_refused() {
        for text in ["bogus=", "bogus=debug", "warn,nvmf-target=debug", "=info"] {
            let problem = log_filter(text).expect_err(text);
            assert!(problem.starts_with("unknown part") && problem.contains("nvmf_target"), "{problem}");
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
            ("warning, audit=info", "warn,audit=info"),
            ("info,nvmf_target::daemon=debug,audit=off", "info,nvmf_target::daemon=debug,audit=off"),
            ("info,nvmf[queue{cntlid=1}]=trace", "info,nvmf[queue{cntlid=1}]=trace"),
        ] {
            assert_eq!(log_filter(text).as_deref(), Ok(filter));
        }
    }
}
