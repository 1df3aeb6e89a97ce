//! Text of others for a log or a terminal: names and paths of hosts and clients may hold characters that erase, forge or
//! reorder what is shown.

use serde_json::Value;
use std::borrow::Cow;

/// Whether a character acts on how others are shown: control characters, line and paragraph separators, and those that
/// change the direction of writing.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The line of a JSON document with such characters as JSON has them. They occur in its strings only.
#[must_use]
pub fn visible_json(line: &str) -> Cow<'_, str> {
    escaped(line, |c| c != '\n', |c, out| *out += &format!("\\u{:04x}", u32::from(c)))
}

/// The same for every text of a JSON document, each of which is to stay in its line.
pub fn visible_value(value: &mut Value) {
    match value {
        Value::String(text) => {
            *text = escaped(text, |_| true, |c, out| out.extend(c.escape_unicode())).into_owned()
        }
        Value::Array(values) => values.iter_mut().for_each(visible_value),
        Value::Object(fields) => fields.values_mut().for_each(visible_value),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The text up to so many bytes, and how many there were.
#[must_use]
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let start = &text[..text.floor_char_boundary(most)];
    Cow::Owned(format!("{start}... ({} bytes)", text.len()))
}

/// An event of the log: what follows its first line is indented, so that nothing in it looks like an event of its own.
/// Colours (`ESC [ ... m`) stay where the log has them.
#[must_use]
pub fn visible_event(event: &str, has_colours: bool) -> String {
    let mut out = String::with_capacity(event.len());
    let mut rest = event.strip_suffix('\n').unwrap_or(event);
    while let Some(at) = rest.find(acts) {
        out += &rest[..at];
        rest = &rest[at..];
        if has_colours && let Some(len) = colour(rest) {
            out += &rest[..len];
            rest = &rest[len..];
            continue;
        }
        let Some(c) = rest.chars().next() else { break };
        rest = &rest[c.len_utf8()..];
        match c {
            '\n' if rest.starts_with(' ') => out.push('\n'),
            '\n' => out += "\n  ",
            '\t' => out.push('\t'),
            other => out.extend(other.escape_unicode()),
        }
    }
    out += rest;
    if event.ends_with('\n') {
        out.push('\n');
    }
    out
}

/// How long the escape sequence for a colour is that the text begins with.
fn colour(text: &str) -> Option<usize> {
    let body = text.strip_prefix("\x1b[")?;
    let end = body.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    body[end..].starts_with('m').then_some(end + 3)
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool, write: impl Fn(char, &mut String)) -> Cow<'_, str> {
    let escapes = |c| acts(c) && is_escaped(c);
    if !text.contains(escapes) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if escapes(c) { write(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_act_are_shown() {
        let mut value = serde_json::json!(["/srv/\u{202e}gmi\u{1b}[2J\r\n b\u{2028}", { "a": "größe" }]);
        visible_value(&mut value);
        assert_eq!(value[0], "/srv/\\u{202e}gmi\\u{1b}[2J\\u{d}\\u{a} b\\u{2028}");
        assert_eq!(value[1]["a"], "größe");
    }

    #[test]
    fn json_stays_json() {
        let value = serde_json::json!({ "path": "a\u{7f}\u{202e}\u{9b}b\n" });
        let line = visible_json(&format!("{value}\n")).into_owned();
        assert!(line.is_char_boundary(line.len()) && !line.trim_end().contains(acts), "{line}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }

    #[test]
    fn event_forges_no_other() {
        let event = "INFO bad\nERROR disk lost\n  why\x1b[2Jx\u{85}\n";
        assert_eq!(visible_event(event, false), "INFO bad\n  ERROR disk lost\n  why\\u{1b}[2Jx\\u{85}\n");
        assert_eq!(
            visible_event("\x1b[32mINFO\x1b[0m \x1b[2Jx\n", true),
            "\x1b[32mINFO\x1b[0m \\u{1b}[2Jx\n"
        );
        assert_eq!(visible_event("\x1b[32mINFO\n", false), "\\u{1b}[32mINFO\n");
    }
}
