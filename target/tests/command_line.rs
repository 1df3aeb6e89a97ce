//! The real binary: what it says, and how it ends, when it cannot serve.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

fn target(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvmf-target"));
    command.args(arguments).env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Runs it to its end: the exit code and what it wrote to standard error.
fn fails(arguments: &[&str]) -> (i32, String) {
    let output = target(arguments).output().unwrap();
    assert!(output.stdout.is_empty(), "an error is no output");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn says(arguments: &[&str], parts: &[&str]) {
    let (code, said) = fails(arguments);
    assert_eq!(code, 1, "{said}");
    for part in parts {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
    let last = said.lines().filter(|line| line.starts_with("nvmf-target: ")).count();
    assert_eq!(last, 1, "one clear message: {said}");
}

fn image(folder: &TempDir, len: u64) -> String {
    let path = folder.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(len).unwrap();
    path.to_str().unwrap().to_owned()
}

struct Running(Child, String);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it, and waits until it says how to use it, which is when it listens.
fn serve(arguments: &[&str]) -> Running {
    let child = target(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child, String::new());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    for line in lines.by_ref() {
        running.1 += &line.unwrap();
        running.1.push('\n');
        if running.1.contains("nvme connect") {
            return running;
        }
    }
    let mut error = String::new();
    running.0.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    panic!("it ended: {error}");
}

fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, signal).unwrap();
}

const ANY_PORT: &str = "127.0.0.1:0";

#[test]
fn a_file_that_is_not_there() {
    let missing = "/nonexistent/disk.img";
    says(&["serve", "--export", missing, "--listen", ANY_PORT], &[missing, "does not exist", "create it"]);
    says(&["serve", "--config", "/nonexistent/target.toml"], &["/nonexistent/target.toml"]);
    says(&["check", "/nonexistent/target.toml"], &["/nonexistent/target.toml"]);
}

#[test]
fn a_file_that_is_no_whole_number_of_blocks() {
    let folder = TempDir::new().unwrap();
    let path = image(&folder, 1_000_000);
    says(
        &["serve", "--export", &path, "--listen", ANY_PORT, "--block-size", "4096"],
        &[&path, "1000000", "4096", "resize"],
    );
}

#[test]
fn a_file_that_another_target_serves() {
    let folder = TempDir::new().unwrap();
    let path = image(&folder, 1 << 20);
    let first = serve(&["serve", "--export", &path, "--listen", ANY_PORT]);
    assert!(first.1.contains("nvmf attach -a 127.0.0.1 -s "), "{}", first.1);
    says(&["serve", "--export", &path, "--listen", ANY_PORT], &[&path, "in use"]);
}

#[test]
fn a_port_that_is_taken_and_an_address_of_another_machine() {
    let folder = TempDir::new().unwrap();
    let path = image(&folder, 1 << 20);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    says(&["serve", "--export", &path, "--listen", &address], &[&address, "the port is taken"]);
    says(
        &["serve", "--export", &path, "--listen", "192.0.2.1:4420"],
        &["192.0.2.1:4420", "not one of this machine"],
    );
}

#[test]
fn a_configuration_with_an_unknown_key() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("target.toml");
    std::fs::write(&config, "[target]\nworkers = 1\ncolour = \"red\"\n").unwrap();
    let path = config.to_str().unwrap();
    says(&["check", path], &[path, "line 3", "colour"]);
    says(&["serve", "--config", path], &[path, "line 3", "colour"]);
}

#[test]
fn command_lines_that_make_no_sense() {
    for arguments in [
        &["serve"][..],
        &[],
        &["serve", "--export", "a", "--config", "b"],
        &["serve", "--export", "a", "--size", "big"],
    ] {
        assert_eq!(fails(arguments).0, 2, "{arguments:?}");
    }
}

fn configuration(folder: &Path, image: &str) -> String {
    let text = format!(
        "[target]\nworkers = 1\nbuffer_memory = \"8MiB\"\nconnections = 16\n\n[[listener]]\naddress = \"127.0.0.1:4420\"\n\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.com.example:disk1\"\nallow_any_host = true\n\n\
         [[subsystem.namespace]]\nnsid = 1\npath = \"{image}\"\n"
    );
    let path = folder.join("target.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn check_prints_what_would_be_served() {
    let folder = TempDir::new().unwrap();
    let config = configuration(folder.path(), &image(&folder, 1 << 20));
    let output = target(&["check", &config]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("nqn.2026-11.com.example:disk1") && said.contains("disk.img"), "{said}");
    let config = configuration(folder.path(), "/nonexistent/disk.img");
    says(&["check", &config], &["/nonexistent/disk.img", "does not exist"]);
}

#[test]
fn it_stops_when_told_and_makes_the_file_that_it_was_told_to() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("new.img");
    let path = path.to_str().unwrap();
    let mut running = serve(&["serve", "--export", path, "--size", "10MiB", "--listen", ANY_PORT]);
    assert_eq!(std::fs::metadata(path).unwrap().len(), 10 << 20);
    signal(&running.0, nix::sys::signal::Signal::SIGUSR1);
    signal(&running.0, nix::sys::signal::Signal::SIGHUP);
    signal(&running.0, nix::sys::signal::Signal::SIGTERM);
    assert!(running.0.wait().unwrap().success());
}
