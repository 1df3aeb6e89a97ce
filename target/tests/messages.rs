//! The messages that docs/ tells operators to look for are those that the target writes.

use std::path::Path;

/// Where the target's messages are written.
const SOURCES: [&str; 11] = [
    "target/src",
    "subsystem/src",
    "auth/src",
    "backend/src",
    "cluster/src",
    "config/src",
    "rdma",
    "stream/src",
    "tcp/src",
    "tls/src",
    "nvme-proto/src",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Without line breaks.
fn document(name: &str) -> String {
    let text = std::fs::read_to_string(root().join("docs").join(name)).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The text of every source file, with string literals that a backslash breaks put together again.
fn sources(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines().map(str::trim_start) {
                let (line, end) = line.strip_suffix('\\').map_or((line, "\n"), |line| (line, ""));
                into.push_str(line);
                into.push_str(end);
            }
        }
    }
}

/// What stands between two marks, each time.
fn between<'a>(text: &'a str, mark: &str) -> Vec<&'a str> {
    text.split(mark).skip(1).step_by(2).collect()
}

fn part<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let text = &text[text.find(from).unwrap_or_else(|| panic!("{from}"))..];
    &text[..text.find(to).unwrap_or_else(|| panic!("{to}"))]
}

#[test]
fn documented_messages_are_those_of_the_target() {
    let mut said = String::new();
    SOURCES.iter().for_each(|folder| sources(&root().join(folder), &mut said));
    let (operations, troubleshooting) = (document("OPERATIONS.md"), document("TROUBLESHOOTING.md"));
    let alarms = between(part(&operations, "Lines worth an alarm", "explains them"), "`");
    let messages = between(part(&troubleshooting, "## The target does not start", "## Before blaming"), "**");
    assert!(alarms.len() > 8 && messages.len() > 50, "{alarms:?} {messages:?}");
    // In the documents, backquotes may stand for what the message has none around.
    let is_said = |message: &&str| said.contains(*message) || said.contains(&message.replace('`', ""));
    let unknown: Vec<_> = alarms.into_iter().chain(messages).filter(|message| !is_said(message)).collect();
    assert!(unknown.is_empty(), "in docs/, and no message of the target's: {unknown:#?}");
}
