//! Each promise of SEMANTICS.md names tests, and the tests that it names exist.
//!
//! A promise is a paragraph that begins with a bold sentence. Before the next one comes `Test:` or `Tests:`, with the
//! tests in backquotes to the end of its paragraph: a place (a path, the folder of a crate, `cargo xtask ceph`), then
//! names of tests there, in both of two places that "and" joins. A place without a name stands for all tests that are there. `No test yet` says that there is none.

use anyhow::{Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// Fewer promises than this are found only if the document is written in another way now.
const PROMISES_MIN: usize = 60;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// A paragraph's text behind `Test:` or `Tests:`.
fn tests(paragraph: &str) -> Option<&str> {
    paragraph.split_once("Tests:").or_else(|| paragraph.split_once("Test:")).map(|(_, behind)| behind)
}

/// What stands in backquotes, with the lines of a name joined, and what stands before each.
fn quoted(text: &str) -> impl Iterator<Item = (String, &str)> {
    let words: Vec<_> = text.split('`').collect();
    let pairs = words.chunks_exact(2).map(|pair| (pair[1], pair[0].trim()));
    let pairs = pairs.map(|(word, before)| (word.split_whitespace().collect::<Vec<_>>().join(" "), before));
    pairs.collect::<Vec<_>>().into_iter()
}

/// The number of a rule that begins with this paragraph.
fn number(paragraph: &str) -> Option<usize> {
    paragraph.split_once(". **")?.0.parse().ok()
}

/// The path that a place means, if the word is one.
fn place(word: &str) -> Option<PathBuf> {
    let path = match word {
        "cargo xtask ceph" => root().join("xtask/src/ceph"),
        _ => root().join(word.strip_prefix("nvmf-").unwrap_or(word)),
    };
    let module = path.with_extension("rs");
    [path, module].into_iter().find(|path| path.exists())
}

/// The texts of the Rust files and scripts in a place.
fn sources(place: &Path, found: &mut Vec<String>) -> Result<()> {
    if place.is_dir() {
        for entry in fs::read_dir(place)? {
            sources(&entry?.path(), found)?;
        }
    } else if place.extension().is_some_and(|extension| extension == "rs" || extension == "sh") {
        found.push(fs::read_to_string(place)?);
    }
    Ok(())
}

/// Whether this text defines the test: a function of Rust or of a script, or the name of a scenario.
fn defines(text: &str, name: &str) -> bool {
    let name = name.rsplit("::").next().unwrap_or(name);
    let function = text.contains(&format!("fn {name}(")) || text.contains(&format!("fn {name}<"));
    function || text.contains(&format!("\n{name}() ")) || text.contains(&format!("name: \"{name}\""))
}

/// Checks the tests that a promise names.
fn exist(named: &str) -> Result<()> {
    let (mut places, mut words) = (Vec::new(), 0);
    for (word, before) in quoted(named) {
        words += 1;
        if let Some(place) = place(&word) {
            if before != "and" {
                places.clear();
            }
            places.push(place);
            continue;
        }
        ensure!(!places.is_empty(), "`{word}` is no place, and stands behind none");
        for place in &places {
            let mut texts = Vec::new();
            sources(place, &mut texts)?;
            ensure!(
                texts.iter().any(|text| defines(text, &word)),
                "{} has no test `{word}`",
                place.display()
            );
        }
    }
    ensure!(words > 0, "no test is named");
    Ok(())
}

#[test]
fn promises_name_tests_that_exist() -> Result<()> {
    let text = fs::read_to_string(root().join("SEMANTICS.md"))?;
    let (mut promises, mut rules, mut promise, mut is_tested) = (0, 0, "", true);
    let mut wrong = Vec::new();
    for paragraph in text.split("\n\n").map(str::trim).chain(["**"]) {
        if let Some(number) = number(paragraph) {
            rules += 1;
            ensure!(number == rules, "rule {number} stands where {rules} is expected");
        }
        if number(paragraph).is_some() || paragraph.starts_with("**") {
            promises += 1;
            wrong.extend((!is_tested).then(|| format!("{promise}\n  names no test")));
            (promise, is_tested) = (paragraph.lines().next().unwrap_or_default(), false);
        }
        is_tested |= paragraph.contains("No test yet");
        if let Some(named) = tests(paragraph) {
            is_tested = true;
            wrong.extend(exist(named).err().map(|error| format!("{promise}\n  {error}")));
        }
    }
    ensure!(wrong.is_empty(), "SEMANTICS.md:\n{}", wrong.join("\n"));
    ensure!(promises >= PROMISES_MIN, "only {promises} promises were found");
    Ok(())
}
