//! Attached disks on a machine where something fails: a server that is stopped, a folder that takes nothing, or is gone.

use nvmf_tests::attached::{attach, attaching, detach, listed, pid, site, state};
use nvmf_tests::process;
use nvmf_tests::site::{Site, fails, json, succeeds};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The file of the only entry with this extension instead of its own.
fn of_entry(site: &Site, extension: &str) -> PathBuf {
    let files = std::fs::read_dir(site.registry()).expect("a folder").flatten();
    let mut entries =
        files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|it| it == "json"));
    entries.next().expect("an entry").with_extension(extension)
}

#[test]
fn list_that_could_not_be_written_is_true_once_it_can() {
    let (site, mut target) = site("unwritten");
    attach(&site, &["--ctrl-loss-tmo", "0"]);
    let (draft, log) = (of_entry(&site, "draft"), of_entry(&site, "log"));
    std::fs::create_dir(&draft).expect("nothing is there");
    target.kill().expect("it ran");
    let is_said = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("the list does not show"));
    process::until("it cannot be written", is_said).expect("it cannot");
    assert_ne!(state(&site), "lost");
    std::fs::remove_dir(&draft).expect("it is empty");
    process::until("the list is true", || state(&site) == "lost").expect("it is");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
}

#[test]
fn disk_of_a_stopped_server_is_detached_when_that_goes_on() {
    let (site, target) = site("stopped");
    let server = pid(&attach(&site, &[]));
    process::signal(server, "STOP").expect("it runs");
    let begun = Instant::now();
    let said = ["does not answer within 5s", &format!("kill -CONT {server}")];
    fails(&mut detach(&site, &["--all"]), &said).expect("a clear message");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    process::signal(server, "CONT").expect("it runs");
    process::until("it is detached", || listed(&site).is_empty()).expect("it is");
    target.stop().expect("a clean stop");
}

#[test]
fn folder_named_from_the_callers_own_is_the_same_for_the_server() {
    let (site, target) = site("relative");
    let mut call = attaching(&site, &[]);
    json(call.env("NVMF_RUNTIME_DIR", "run").current_dir(site.path(""))).expect("attached");
    // With its absolute name.
    assert_eq!((listed(&site).len(), state(&site).as_str()), (1, "live"));
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn disk_is_detached_by_its_nqn_from_a_folder_that_is_gone() {
    let (site, target) = site("gone");
    attach(&site, &[]);
    let call = detach(&site, &[&site.nqn]);
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@""#]).arg(site.path("gone"));
    shell.arg(call.get_program()).args(call.get_args());
    shell.envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
    succeeds(&mut shell).expect("detached");
    assert!(listed(&site).is_empty());
    target.stop().expect("a clean stop");
}
