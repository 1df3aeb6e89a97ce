//! What is wrong with a configuration, and where.

use core::ops::Range;
use thiserror::Error;

/// What is wrong, in which line, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {message}\n  {source_line}")]
pub struct ConfigError {
    /// The line, from 1.
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
        let source_line = text.lines().nth(line).unwrap_or_default().trim().chars().take(160).collect();
        Self { line: line + 1, message: message.into(), source_line }
    }

    /// What the TOML reader found: not TOML, an unknown key, a value of the wrong type.
    pub(crate) fn syntax(text: &str, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or(0..0);
        Self::at(text, &span, error.message().trim().replace('\n', "; "))
    }
}
