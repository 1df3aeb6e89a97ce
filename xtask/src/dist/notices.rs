//! Licences of the crates in the programs: whoever passes a program on passes these on.

use super::stage::PROGRAMS;
use crate::step;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::Path;

/// The crates with their licences, then each text once.
pub(super) fn text() -> Result<String> {
    let output = step::cargo(&["metadata", "--format-version", "1", "--locked"])
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")?;
    let crates = crates(&metadata);
    let mut text = String::from("The programs contain these crates, which crates.io has:\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in &crates {
        let field = |name: &str| package[name].as_str().unwrap_or("-");
        let name = format!("{} {}", field("name"), field("version"));
        let _ = writeln!(text, "{name:<40} {}", field("license"));
        let folder = Path::new(field("manifest_path")).parent().context("a manifest lies in a folder")?;
        for licence in licences(folder)? {
            texts.entry(licence).or_default().push(name.clone());
        }
    }
    for (licence, names) in texts {
        let _ = write!(text, "\n{}\n{}\n\n{}\n", "-".repeat(80), names.join(", "), licence.trim_end());
    }
    Ok(text)
}

/// What the programs depend on, other than this workspace's crates, by name.
fn crates(metadata: &Value) -> Vec<&Value> {
    let list = |value: &'_ Value| value.as_array().map_or(&[][..], Vec::as_slice).to_vec();
    let id_of = |value: &Value| value["id"].as_str().unwrap_or_default().to_owned();
    let nodes: HashMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (id_of(&node), node)).collect();
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let is_ours = |package: &Value| package["source"].is_null();
    let is_program = |package: &Value| {
        let targets = package["targets"].as_array().map_or(&[][..], Vec::as_slice);
        targets.iter().any(|target| {
            let is_library = target["kind"][0] == "cdylib";
            is_library || target["kind"][0] == "bin" && PROGRAMS.iter().any(|name| target["name"] == *name)
        })
    };
    let mut found: BTreeSet<String> = BTreeSet::new();
    let mut next: Vec<String> =
        packages.iter().filter(|it| is_ours(it) && is_program(it)).map(id_of).collect();
    while let Some(id) = next.pop() {
        let Some(node) = nodes.get(&id).filter(|_| found.insert(id.clone())) else { continue };
        // Without what only builds or tests it.
        let is_in_it = |dep: &Value| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let deps = list(&node["deps"]);
        next.extend(
            deps.iter().filter(|dep| is_in_it(dep)).filter_map(|dep| dep["pkg"].as_str().map(str::to_owned)),
        );
    }
    let mut crates: Vec<&Value> =
        packages.iter().filter(|package| !is_ours(package) && found.contains(&id_of(package))).collect();
    crates.sort_by_key(|package| (package["name"].as_str(), package["version"].as_str()));
    crates
}

/// The texts in a crate's folder.
fn licences(folder: &Path) -> Result<Vec<String>> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read {}: run cargo fetch", folder.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file() && is_licence(&path.file_name().unwrap_or_default().to_string_lossy()))
        .collect();
    files.sort();
    Ok(files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect())
}

fn is_licence(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"]
        .iter()
        .any(|start| name.starts_with(start))
}
