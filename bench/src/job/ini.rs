//! fio's job files: sections in brackets, `name=value`, comments from `;` or `#` to the end of the line.

use super::{Given, JobError, Section};

/// Parses a job file; `file` is its name in messages.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<Section>, JobError> {
    let mut sections: Vec<Section> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let place = format!("{file}:{number}");
        let error = |reason: &str| JobError::Syntax { place: place.clone(), reason: reason.to_owned() };
        let line = without_comment(line).trim();
        if line.is_empty() {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.strip_suffix(']').ok_or_else(|| error("a section's name ends with `]`"))?;
            sections.push(Section { name: name.trim().to_owned(), options: Vec::new() });
            continue;
        }
        if line.split_whitespace().next() == Some("include") {
            return Err(error("`include` is not supported: give both files on the command line"));
        }
        let section = sections.last_mut().ok_or_else(|| error("an option before the first [section]"))?;
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        let value = expand(value.trim()).map_err(|name| {
            error(&format!(
                "the environment variable `{name}` is not set: set it, as in {name}=... nvmf-bench ..."
            ))
        })?;
        section.options.push(Given { name: name.trim().to_owned(), value, place });
    }
    Ok(sections)
}

fn without_comment(line: &str) -> &str {
    line.find([';', '#']).map_or(line, |at| &line[..at])
}

/// Replaces `${NAME}` by the environment variable, and `$ncpus` and `$pagesize` by their values.
fn expand(value: &str) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = value;
    while let Some((before, behind)) = rest.split_once("${") {
        let (name, after) = behind.split_once('}').ok_or_else(|| behind.to_owned())?;
        expanded += before;
        expanded += &std::env::var(name).map_err(|_| name.to_owned())?;
        rest = after;
    }
    expanded += rest;
    let processors = || std::thread::available_parallelism().map_or(1, usize::from).to_string();
    if expanded.contains("$ncpus") {
        expanded = expanded.replace("$ncpus", &processors());
    }
    Ok(expanded.replace("$pagesize", "4096"))
}
