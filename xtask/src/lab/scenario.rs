//! Scenarios: shell scripts under `tests/lab/` whose first comment lines say what they are.

use crate::step;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::time::Duration;

/// How long a scenario may take, boot included, if it does not say.
const SECONDS: u64 = 120;

/// One script, run as root in a fresh guest.
///
/// ```text
/// # What: one line for `list`
/// # Cell: INITIATOR to TARGET | OVER       a cell of the matrix (optional)
/// # Quick: yes                             `cargo xtask test` runs it (optional)
/// # Seconds: 240                           how long it may take (optional)
/// # Alone: yes                             it measures: nothing else runs beside it (optional)
/// # Known: kernel BUG at some/file.c       a fault of the guest's kernel that is not ours: when it shows, the scenario starts again (optional)
/// ```
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) what: String,
    /// Who to whom, and over what.
    pub(crate) cell: Option<(String, String)>,
    pub(crate) quick: bool,
    pub(crate) alone: bool,
    pub(crate) time_max: Duration,
    /// What the guest's kernel may say, and does now and then whoever talks to it.
    pub(crate) known: Option<String>,
}

/// Where scenarios lie, with what they share.
pub(super) fn folder() -> PathBuf {
    step::root().join("tests/lab")
}

/// All scenarios: the scripts that say what they are for.
pub(super) fn all() -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for entry in std::fs::read_dir(folder()).context("cannot read tests/lab")? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "sh") {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        scenarios.extend(Scenario::parse(path, &text)?);
    }
    scenarios.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(scenarios)
}

impl Scenario {
    /// `None` for a script that is no scenario.
    fn parse(path: PathBuf, text: &str) -> Result<Option<Self>> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let field = |key: &str| {
            let mut header = text.lines().take_while(|line| line.starts_with('#'));
            header.find_map(|line| {
                line.strip_prefix("# ")?.strip_prefix(key)?.strip_prefix(": ").map(str::trim)
            })
        };
        let Some(what) = field("What") else { return Ok(None) };
        let cell = field("Cell").map(|cell| {
            let (who, over) = cell.split_once(" | ").unwrap_or((cell, ""));
            (who.to_owned(), over.to_owned())
        });
        let seconds = match field("Seconds") {
            Some(seconds) => {
                seconds.parse().with_context(|| format!("{name}: {seconds} is no number of seconds"))?
            }
            None => SECONDS,
        };
        ensure!(seconds > 0, "{name}: it needs some time");
        let (what, quick, alone) =
            (what.to_owned(), field("Quick") == Some("yes"), field("Alone") == Some("yes"));
        let (time_max, known) = (Duration::from_secs(seconds), field("Known").map(str::to_owned));
        Ok(Some(Self { name, path, what, cell, quick, alone, time_max, known }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_says_what_it_is() {
        let text = "#!/bin/sh\n# What: a thing\n# Cell: kernel to ours | siw\n# Quick: yes\n# Seconds: 7\n\n# What: not this\n";
        let scenario = Scenario::parse("a/b.sh".into(), text).unwrap().unwrap();
        assert_eq!((scenario.name.as_str(), scenario.what.as_str()), ("b", "a thing"));
        assert_eq!(scenario.cell, Some(("kernel to ours".to_owned(), "siw".to_owned())));
        assert!(scenario.quick && scenario.time_max == Duration::from_secs(7));
        assert!(Scenario::parse("lib.sh".into(), "# shared\n").unwrap().is_none());
        assert!(Scenario::parse("x.sh".into(), "# What: x\n# Seconds: soon\n").is_err());
    }

    #[test]
    fn every_scenario_of_this_checkout_can_be_read() {
        assert!(!all().unwrap().is_empty());
    }
}
