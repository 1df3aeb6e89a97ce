//! This crate's folder bears cargo's default output name: refuse to build into it.
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    let crate_dir = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    assert!(
        crate_dir.is_empty() || !Path::new(&out).starts_with(&crate_dir),
        "cargo is building into `{crate_dir}`, the daemon's own source folder, which `cargo clean` would then delete. \
         Run cargo from inside the repository (its .cargo/config.toml sets target-dir = \".build\"), or set CARGO_TARGET_DIR."
    );
}
