//! What is wrong with a configuration, and where.

use core::ops::Range;
use thiserror::Error;

/// What is wrong, in which line, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}{message}{}", place(*line), text(source_line))]
pub struct ConfigError {
    /// The line, from 1; 0 where there is no file.
    pub line: usize,
    /// What is wrong there and what would be right.
    pub message: String,
    /// The line itself.
    pub source_line: String,
}

impl ConfigError {
    /// At a place in `text` (a byte range; past its end means its last line).
    pub(crate) fn at(text: &str, span: &Range<usize>, message: impl Into<String>) -> Self {
        let before = text.as_bytes().get(..span.start).unwrap_or(text.as_bytes());
        let line = before.iter().filter(|&&b| b == b'\n').count();
        let source_line = text.lines().nth(line).unwrap_or_default().trim();
        let message = message.into();
        if has_secret(source_line) || has_secret(&message) {
            let message =
                "a key stands here, and is not shown: write the path of a file that holds it".to_owned();
            return Self { line: line + 1, message, source_line: String::new() };
        }
        Self { line: line + 1, message, source_line: source_line.chars().take(160).collect() }
    }

    /// Where there is no file.
    pub(crate) fn without_file(message: impl Into<String>) -> Self {
        Self { line: 0, message: message.into(), source_line: String::new() }
    }

    /// What the TOML reader found: not TOML, an unknown key, a value of the wrong type.
    pub(crate) fn syntax(text: &str, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or(0..0);
        let found = error.message().trim().replace('\n', "; ");
        match remedy(&found, text.get(span.clone()).unwrap_or_default()) {
            Some(right) => Self::at(text, &span, format!("{found}: {right}")),
            None => Self::at(text, &span, found),
        }
    }
}

/// Whether a text has a key of DH-HMAC-CHAP or TLS in it, or something that was meant as one.
fn has_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("dhhc-") || text.contains("nvmetlskey-")
}

fn place(line: usize) -> String {
    if line == 0 { String::new() } else { format!("line {line}: ") }
}

fn text(source_line: &str) -> String {
    if source_line.is_empty() { String::new() } else { format!("\n  {source_line}") }
}

/// What to write instead, where the TOML reader says only what it expected. `place` is the text that it complains of.
fn remedy(found: &str, place: &str) -> Option<String> {
    if found.starts_with("unknown field `namespace`") {
        return Some("it belongs to a subsystem: write [[subsystem.namespace]]".into());
    }
    let (_, expected) = found.strip_prefix("invalid type: ")?.rsplit_once(", expected ")?;
    if found.starts_with("invalid type: map") && !place.starts_with('{') {
        return Some(match place.strip_prefix("[[").and_then(|rest| rest.strip_suffix("]]")) {
            Some(name) => format!("there is only one: write [{name}]"),
            None if place.starts_with('[') => format!("there may be several: write [{place}]"),
            None => format!("this is part of a {place}, and none has begun: write [[{place}]] above it"),
        });
    }
    Some(
        match expected {
            "i64" => "write a whole number, without quotes",
            "a string" => "write a text, in quotes: \"…\"",
            "a boolean" => "write true or false, without quotes",
            "a sequence" => "write a list: [\"…\"]",
            _ => return None,
        }
        .into(),
    )
}
