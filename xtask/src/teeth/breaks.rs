//! The list of breaks: which promise, what is changed, and which test must fail for it.

use crate::step;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::PathBuf;

/// A promise that is broken on purpose.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Break {
    /// What is done wrong then.
    pub(super) name: String,
    /// The rule of SEMANTICS.md.
    pub(super) rule: usize,
    /// Where.
    pub(super) file: String,
    /// What stands there once.
    pub(super) text: String,
    /// What stands there instead.
    pub(super) replacement: String,
    /// Arguments of `cargo test`, with the test's name at the end.
    pub(super) test: String,
    /// The test that the rule names, if it is a part of that one: of a conformance suite.
    stands_for: Option<String>,
}

#[derive(Deserialize)]
struct List {
    #[serde(rename = "break")]
    breaks: Vec<Break>,
}

impl Break {
    /// What the rule calls its test.
    pub(super) fn test_name(&self) -> &str {
        self.stands_for.as_deref().or_else(|| self.test.rsplit(' ').next()).unwrap_or_default()
    }

    /// The text of its file with the break in it.
    pub(super) fn apply(&self, text: &str) -> Result<String> {
        let places = text.matches(&self.text).count();
        ensure!(places == 1, "{}: its text stands {places} times in {}", self.name, self.file);
        Ok(text.replacen(&self.text, &self.replacement, 1))
    }
}

/// All breaks, by the crates that they are in, so that what one of them has built serves the next.
pub(super) fn all() -> Result<Vec<Break>> {
    let folder = step::root().join("xtask/teeth");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        let list: List = toml::from_str(&text).with_context(|| file.display().to_string())?;
        all.extend(list.breaks);
    }
    Ok(all)
}

/// The rules of SEMANTICS.md, from the first on.
pub(super) fn rules() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(step::root().join("SEMANTICS.md"))?;
    let mut rules: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.starts_with(&format!("{}. **", rules.len() + 1)) {
            rules.push(String::new());
        }
        if let Some(rule) = rules.last_mut() {
            rule.push_str(line);
            rule.push('\n');
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn breaks_fit_the_code_and_their_tests_stand_for_their_rules() {
        let (rules, mut names) = (rules().expect("SEMANTICS.md"), BTreeSet::new());
        for it in all().expect("a list") {
            let text = std::fs::read_to_string(step::root().join(&it.file)).expect(&it.file);
            it.apply(&text).expect("it can be made");
            assert_ne!(it.text, it.replacement, "{}", it.name);
            let rule = it.rule.checked_sub(1).and_then(|index| rules.get(index)).expect("a rule");
            let named = rule.contains(&format!("`{}`", it.test_name()));
            assert!(named, "{}: rule {} does not name {}", it.name, it.rule, it.test_name());
            assert!(names.insert(it.name.clone()), "{} is there twice", it.name);
        }
    }
}
