//! `cargo xtask fuzz`: runs the fuzz targets one after the other.

use crate::step;
use anyhow::{Context, Result, bail};
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Fuzz {
    /// Duration of each target, in seconds
    #[arg(long, default_value_t = 600)]
    seconds: u32,
    /// Targets to run; by default all
    targets: Vec<String>,
}

impl Fuzz {
    pub(crate) fn run(&self) -> Result<()> {
        if !step::on_path("cargo-fuzz") && Command::new("cargo-fuzz").arg("--version").output().is_err() {
            bail!("cargo-fuzz is not installed: cargo install cargo-fuzz");
        }
        let all = self.all_targets()?;
        let targets = if self.targets.is_empty() { &all } else { &self.targets };
        for target in targets {
            let limit = format!("-max_total_time={}", self.seconds);
            let seeds = format!("fuzz/corpus/{target}");
            // New corpus entries go into this folder, separate from the committed seeds.
            let found = step::root().join(".build/fuzz").join(target);
            std::fs::create_dir_all(&found).with_context(|| format!("cannot make {}", found.display()))?;
            let mut fuzz = Command::new("cargo");
            fuzz.current_dir(step::root());
            fuzz.args(["+nightly", "fuzz", "run", "--features", "libfuzzer", target]);
            fuzz.arg(found).args([&seeds, "--", &limit, "-rss_limit_mb=2048", "-max_len=8192"]);
            step::run(&format!("fuzz {target}"), &mut fuzz)?;
        }
        Ok(())
    }

    fn all_targets(&self) -> Result<Vec<String>> {
        let folder = step::root().join("fuzz/fuzz_targets");
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let mut names: Vec<_> =
            entries.filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned())).collect();
        names.sort();
        Ok(names)
    }
}
