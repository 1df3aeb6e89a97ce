//! Checks that the library can be published: `nvmf-initiator`, with those of our crates that it needs.

use crate::step;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Runtimes for async code: who uses the library chooses, or has none.
const RUNTIMES: [&str; 5] = ["tokio", "async-std", "smol", "async-executor", "async-global-executor"];

/// Packs them as for a registry: what one of them needs of ours must be among them, with a version.
pub(crate) fn check() -> Result<()> {
    let metadata = metadata()?;
    let packages: Vec<&Value> =
        metadata["packages"].as_array().into_iter().flatten().filter(|it| is_publishable(it)).collect();
    for package in &packages {
        check_metadata(package)?;
        check_dependencies(package)?;
    }
    let mut arguments = vec!["package", "--quiet", "--no-verify", "--allow-dirty"];
    arguments.extend(packages.iter().filter_map(|it| it["name"].as_str()).flat_map(|name| ["-p", name]));
    step::run("packages of the library", &mut step::cargo(&arguments))
}

fn metadata() -> Result<Value> {
    let output = step::cargo(&["metadata", "--format-version", "1", "--no-deps", "--offline"]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

/// Whether its manifest does not say `publish = false`.
fn is_publishable(package: &Value) -> bool {
    package["publish"].is_null()
}

/// What a registry shows of a package.
fn check_metadata(package: &Value) -> Result<()> {
    let name = package["name"].as_str().unwrap_or_default();
    for field in ["description", "license", "repository", "rust_version"] {
        ensure!(package[field].as_str().is_some_and(|text| !text.is_empty()), "{name} has no {field}");
    }
    let keywords = package["keywords"].as_array().map_or(0, Vec::len);
    ensure!((1..=5).contains(&keywords), "{name} has {keywords} keywords instead of 1 to 5");
    if name == "nvmf-initiator" {
        ensure!(package["readme"].is_string(), "{name} has no readme");
        let targets = &package["metadata"]["docs"]["rs"]["targets"];
        ensure!(targets.is_array(), "{name} does not say for which targets it is documented");
    }
    Ok(())
}

fn check_dependencies(package: &Value) -> Result<()> {
    let required = package["dependencies"].as_array().into_iter().flatten();
    for dependency in required.filter(|it| it["kind"].is_null() && it["optional"] == false) {
        let name = dependency["name"].as_str().unwrap_or_default();
        ensure!(!RUNTIMES.contains(&name), "{} needs {name}, a runtime", package["name"]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_and_what_it_needs_of_ours_can_be_published() {
        let metadata = metadata().expect("metadata");
        let packages = metadata["packages"].as_array().expect("packages");
        let named = |name: &str| packages.iter().find(|package| package["name"] == name);
        let mut seen = vec!["nvmf-initiator".to_owned()];
        for at in 0.. {
            let Some(name) = seen.get(at).cloned() else { break };
            let package = named(&name).unwrap_or_else(|| panic!("{name} is there"));
            assert!(is_publishable(package), "{name} says `publish = false`");
            check_metadata(package).expect("its metadata");
            check_dependencies(package).expect("its dependencies");
            let ours = package["dependencies"].as_array().into_iter().flatten();
            for dependency in ours.filter(|it| it["path"].is_string() && it["kind"].is_null()) {
                assert_ne!(dependency["req"], "*", "{name} needs {} without a version", dependency["name"]);
                let dependency = dependency["name"].as_str().expect("a name").to_owned();
                if !seen.contains(&dependency) {
                    seen.push(dependency);
                }
            }
        }
        let publishable = packages.iter().filter(|package| is_publishable(package)).count();
        assert_eq!(seen.len(), publishable, "no others");
    }
}
