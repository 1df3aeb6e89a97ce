//! What goes over the control socket: one JSON object in a line for each request, one for its answer
//! (docs/CONTROL.md).

use super::request::Request;
use clap::Subcommand as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// The version of the protocol. It is incremented when a request or an answer changes so that an older client would
/// misread it; what is only added leaves it.
pub const VERSION: u64 = 1;
/// Bytes in a line of a client, its end included: a configuration file of any size that can be served fits.
pub const LINE_MAX: usize = 1 << 20;

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What kind of fault it is.
    pub kind: FaultKind,
    /// What is wrong, and what to do.
    pub message: String,
}

/// What kind of fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The line is no request that this version knows. Nothing was changed.
    Malformed,
    /// The request cannot be carried out as it is. Nothing was changed.
    Refused,
    /// Part of it failed: the result says which.
    Failed,
    /// There are too many clients.
    Busy,
}

impl Fault {
    /// It is no request.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Malformed, message: message.into() }
    }

    /// It cannot be carried out.
    pub fn refused(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Refused, message: message.into() }
    }

    pub(super) fn busy() -> Self {
        let message = "all clients of the control socket are being served: try again";
        Self { kind: FaultKind::Busy, message: message.into() }
    }

    pub(super) fn too_long() -> Self {
        Self::malformed(format!("the line has more than {LINE_MAX} bytes"))
    }
}

/// What a request is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// [`VERSION`].
    pub version: u64,
    /// Whether all of it was done.
    pub ok: bool,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub result: Value,
    /// Why it is not, or not all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
}

impl Answer {
    /// It was done.
    #[must_use]
    pub fn done(result: Value) -> Self {
        Self { version: VERSION, ok: true, result, error: None }
    }

    /// Nothing was done.
    #[must_use]
    pub fn refused(fault: Fault) -> Self {
        Self { version: VERSION, ok: false, result: Value::Null, error: Some(fault) }
    }

    /// Part of it was not done.
    #[must_use]
    pub fn failed(result: Value, message: String) -> Self {
        Self { result, ..Self::refused(Fault { kind: FaultKind::Failed, message }) }
    }

    /// As it goes over the socket.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// Reads a request.
///
/// # Errors
/// What is wrong with it, and what is known.
pub fn parse(line: &[u8]) -> Result<Request, Fault> {
    let example = r#"such as {"version":1,"request":"status"}"#;
    let mut fields: Map<String, Value> = serde_json::from_slice(line)
        .map_err(|error| Fault::malformed(format!("this is no JSON object {example}: {error}")))?;
    match fields.remove("version") {
        Some(version) if version.as_u64() == Some(VERSION) => {}
        Some(other) => {
            return Err(Fault::malformed(format!(
                "version {other} is not known: this target speaks {VERSION}"
            )));
        }
        None => return Err(Fault::malformed(format!("there is no version: add \"version\":{VERSION}"))),
    }
    let Some(Value::String(name)) = fields.remove("request") else {
        return Err(Fault::malformed(format!("there is no request: write a line {example}")));
    };
    let known = names();
    if !known.contains(&name) {
        let known = known.join(", ");
        return Err(Fault::malformed(format!("the request \"{name}\" is not known; these are: {known}")));
    }
    let nested = name
        .rsplit(' ')
        .fold(Value::Object(fields), |inner, word| Value::Object(Map::from_iter([(word.to_owned(), inner)])));
    serde_json::from_value(nested).map_err(|error| Fault::malformed(format!("{name}: {error}")))
}

/// A request as it goes over the socket.
#[must_use]
pub fn line(request: &Request) -> String {
    let known = names();
    let mut words = Vec::new();
    let mut value = serde_json::to_value(request).unwrap_or_default();
    // One word for each level of the commands, then the fields.
    while !known.contains(&words.join(" ")) {
        let Value::Object(fields) = value else { break };
        let Some((word, inner)) = fields.into_iter().next() else { return String::new() };
        words.push(word);
        value = inner;
    }
    let head = [("version", Value::from(VERSION)), ("request", Value::from(words.join(" ")))];
    let mut line = Map::from_iter(head.map(|(key, value)| (key.to_owned(), value)));
    line.extend(value.as_object().cloned().unwrap_or_default());
    format!("{}\n", Value::Object(line))
}

/// The names of all requests: the words of `nvmf-target ctl`.
#[must_use]
pub fn names() -> &'static [String] {
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(read_names);
    &NAMES
}

fn read_names() -> Vec<String> {
    let command = Request::augment_subcommands(clap::Command::new("ctl"));
    let mut names = Vec::new();
    for command in command.get_subcommands() {
        if command.has_subcommands() {
            let inner = command.get_subcommands();
            names.extend(inner.map(|inner| format!("{} {}", command.get_name(), inner.get_name())));
        } else {
            names.push(command.get_name().to_owned());
        }
    }
    names
}
