//! Job files in TOML: `[global]` with options for all jobs, and a `[[job]]` with a `name` for each job. The options
//! have fio's names.
//!
//! ```toml
//! [global]
//! ioengine = "io_uring"
//! direct = true
//! bs = ["4k", "8k"]   # the same as "4k,8k"
//!
//! [[job]]
//! name = "random-reads"
//! rw = "randread"
//! iodepth = 32
//! ```

use super::{Given, JobError, Section};
use toml::Value;

/// Parses a job file; `file` is its name in messages.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<Section>, JobError> {
    let error = |reason: String| JobError::Syntax { place: file.to_owned(), reason };
    let table: toml::Table = text.parse().map_err(|reason: toml::de::Error| error(reason.to_string()))?;
    let mut sections = Vec::new();
    if let Some(global) = table.get("global") {
        sections.push(section(file, "global", global)?);
    }
    for (name, value) in &table {
        match (name.as_str(), value) {
            ("global", _) => {}
            ("job", Value::Array(jobs)) => {
                for (job, number) in jobs.iter().zip(1..) {
                    let name = job.get("name").and_then(Value::as_str);
                    let name = name.map_or_else(|| format!("job{number}"), str::to_owned);
                    sections.push(section(file, &name, job)?);
                }
            }
            _ => return Err(error(format!("`{name}` is not part of a job file: use [global] and [[job]]"))),
        }
    }
    Ok(sections)
}

fn section(file: &str, name: &str, value: &Value) -> Result<Section, JobError> {
    let place = format!("{file}: {name}");
    let syntax = |reason: String| JobError::Syntax { place: place.clone(), reason };
    let table = value.as_table().ok_or_else(|| syntax("the value must be a table".to_owned()))?;
    let mut options = Vec::new();
    for (option, value) in table {
        if option == "name" && name != "global" {
            continue;
        }
        let value = written(value).ok_or_else(|| {
            syntax(format!("{option}: the value must be a string, a number, true, false, or a list of these"))
        })?;
        options.push(Given { name: option.replace('-', "_"), value, place: place.clone() });
    }
    Ok(Section { name: name.to_owned(), options })
}

/// A value in the form of fio's job files.
fn written(value: &Value) -> Option<String> {
    Some(match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(on) => u8::from(*on).to_string(),
        Value::Array(values) => values.iter().map(written).collect::<Option<Vec<_>>>()?.join(","),
        Value::Datetime(_) | Value::Table(_) => return None,
    })
}
