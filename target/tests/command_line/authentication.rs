//! Secrets of DH-HMAC-CHAP, as `check` and a start find them.

use super::tls::{check, configuration, key_file, log_of_start};
use super::{says, target};
use tempfile::TempDir;

const SECRET: &str = "DHHC-1:00:9wCYVQqDvADjGIZo6q/v2SfmXZqqkNa9TcvYu97Ly3Q/gajh:";
const HOST: &str = "nqn.2026-11.com.example:host1";

fn host(secret: &str) -> String {
    format!("[[host]]\nnqn = \"{HOST}\"\ndhchap_key_file = \"{secret}\"\n")
}

#[test]
fn check_reports_a_secret_that_cannot_be_used_and_shows_none() {
    let folder = TempDir::new().unwrap();
    for (content, mode, part) in [
        (SECRET, 0o644, "chmod 600"),
        ("garbage\n", 0o600, "holds no valid secret of DH-HMAC-CHAP"),
        (&SECRET.replace("9wCY", "9wCZ"), 0o600, "checksum is wrong"),
        (&SECRET[..40], 0o600, "not valid base64"),
    ] {
        let file = key_file(&folder, content, mode);
        let config = configuration(folder.path(), "", "", &host(&file));
        says(&["check", &config], &[HOST, "cannot authenticate", part]);
        let (output, said) = check(&config);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned() + &said;
        assert!(!shown.contains("QqDvADj") && !shown.contains("garbage"), "{shown}");
    }
    let config = configuration(folder.path(), "", "", &host("/nonexistent/key"));
    says(&["check", &config], &[HOST, "/nonexistent/key", "gen-dhchap-key"]);
    let file = key_file(&folder, SECRET, 0o600);
    let (output, said) = check(&configuration(folder.path(), "", "", &host(&file)));
    assert!(output.status.success() && !said.contains("warning"), "{said}");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains(&format!("for DH-HMAC-CHAP {file}")) && !shown.contains("QqDvADj"), "{shown}");
}

#[test]
fn check_warns_of_a_host_that_need_not_authenticate() {
    let folder = TempDir::new().unwrap();
    let file = key_file(&folder, SECRET, 0o600);
    let other = host(&file).replace(HOST, "nqn.2026-11.com.example:host2");
    let (output, said) = check(&configuration(folder.path(), "", "", &other));
    assert!(output.status.success(), "{said}");
    assert!(said.contains(&format!("{HOST} needs no authentication")), "{said}");
}

/// As systemd hands it over: its folder is private, and its access lists look like permissions of the group.
#[test]
fn secret_may_be_a_systemd_credential() {
    let folder = TempDir::new().unwrap();
    let file = key_file(&folder, SECRET, 0o440);
    let config = configuration(folder.path(), "", "", &host("host1.key"));
    assert!(file.ends_with("/host1.key"));
    let mut given = target(&["check", &config]);
    let output = given.env("CREDENTIALS_DIRECTORY", folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    says(&["check", &config], &["LoadCredential=host1.key"]);
}

#[test]
fn start_goes_on_without_a_secret_unless_strict() {
    let folder = TempDir::new().unwrap();
    let nowhere = host("/nonexistent/key");
    let said = log_of_start(&configuration(folder.path(), "", "", &nowhere));
    let part = "cannot authenticate and is refused: cannot read the key file /nonexistent/key";
    assert!(said.iter().any(|line| line.contains(part)), "{said:#?}");
    let config = configuration(folder.path(), "strict = true", "", &nowhere);
    says(&["serve", "--config", &config], &[HOST, "cannot authenticate", "/nonexistent/key"]);
}
