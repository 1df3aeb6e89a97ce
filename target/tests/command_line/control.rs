//! deploy/blktests-control, with the program that was built.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

/// Has the control program set up a target at an address that this machine does not have.
fn set_up(folder: &Path, variables: &[(&str, &str)]) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_nvmf-target"));
    let mut path = vec![program.parent().unwrap().to_owned()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    Command::new("sh")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/blktests-control"))
        .args(["setup", "--subsysnqn", "nqn.2026-11.com.example:blktests"])
        .args(["--subsys-uuid", "7d1d7c9e-3b0a-4c55-8a53-0c6d8f5f4b11"])
        .args(["--hostnqn", "nqn.2014-08.org.nvmexpress:uuid:2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7"])
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("BLKTESTS_FOLDER", folder)
        .env("BLKTESTS_ADDRESS", "192.0.2.1")
        .env("NVME_IMG_SIZE", "1M")
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

#[test]
fn control_program_says_at_once_why_the_target_does_not_start() {
    let folder = TempDir::new().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, KEY).unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let tls = [("BLKTESTS_TLS", "required"), ("BLKTESTS_TLS_KEY_FILE", key.to_str().unwrap())];
    let over_tcp = [&[("BLKTESTS_TRANSPORT", "tcp")], &tls[..]].concat();
    let cases = [(&[][..], "provider = \"auto\""), (&over_tcp, "transport = \"tcp\"\ntls = \"required\"")];
    for (variables, listener) in cases {
        let new = folder.path().join(format!("new-{}", variables.len()));
        let begun = Instant::now();
        let output = set_up(&new, variables);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("192.0.2.1:4420") && said.contains("not one of this machine"), "{said}");
        assert!(!said.contains("cannot open"), "the log is there: {said}");
        assert!(begun.elapsed() < Duration::from_secs(9), "it waits for nothing: {:?}", begun.elapsed());
        let config = std::fs::read_to_string(new.join("target.toml")).unwrap();
        assert!(config.contains(listener), "{config}");
    }
}

#[test]
fn control_program_refuses_another_transport() {
    let folder = TempDir::new().unwrap();
    let output = set_up(&folder.path().join("new"), &[("BLKTESTS_TRANSPORT", "fc")]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("rdma or tcp"), "{said}");
}
