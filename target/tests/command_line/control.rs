//! deploy/blktests-control, with the program that was built.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[test]
fn control_program_says_at_once_why_the_target_does_not_start() {
    let folder = TempDir::new().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_nvmf-target"));
    let mut path = vec![program.parent().unwrap().to_owned()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let begun = Instant::now();
    let output = Command::new("sh")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/blktests-control"))
        .args(["setup", "--subsysnqn", "nqn.2026-11.com.example:blktests"])
        .args(["--subsys-uuid", "7d1d7c9e-3b0a-4c55-8a53-0c6d8f5f4b11"])
        .args(["--hostnqn", "nqn.2014-08.org.nvmexpress:uuid:2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7"])
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("BLKTESTS_FOLDER", folder.path().join("new"))
        .env("BLKTESTS_ADDRESS", "192.0.2.1")
        .env("NVME_IMG_SIZE", "1M")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("192.0.2.1:4420") && said.contains("not one of this machine"), "{said}");
    assert!(!said.contains("cannot open"), "the log is there: {said}");
    assert!(begun.elapsed() < Duration::from_secs(9), "it waits for nothing: {:?}", begun.elapsed());
}
