//! The real binary: what it says, and how it ends, when it cannot serve.

mod authentication;
mod check;
mod control;
mod copies;
mod ctl;
mod descriptors;
mod disk;
mod strangers;
mod tls;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

fn target(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvmf-target"));
    // What the tests' own surroundings set would change what it says.
    command.env_remove("JOURNAL_STREAM").env_remove("INVOCATION_ID");
    command
        .args(arguments)
        .env_remove("RUST_LOG")
        .env_remove("NVMF_LOG")
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null());
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
fn missing_path_is_refused() {
    let missing = "/nonexistent/disk.img";
    says(&["serve", "--export", missing, "--listen", ANY_PORT], &[missing, "does not exist", "create it"]);
    let device = "/dev/disk/by-id/nonexistent";
    says(&["serve", "--export", device, "--listen", ANY_PORT], &[device, "does not exist", "lsblk"]);
    // A file in /dev is in memory, and gone with the next boot.
    let sized = ["serve", "--export", device, "--size", "16MiB", "--listen", ANY_PORT];
    says(&sized, &[device, "not created below /dev"]);
    assert!(!Path::new(device).exists());
    let said = fails(&sized).1;
    assert!(!said.contains("line 1"), "there is no file: {said}");
    says(&["serve", "--config", "/nonexistent/target.toml"], &["/nonexistent/target.toml"]);
    says(&["check", "/nonexistent/target.toml"], &["/nonexistent/target.toml"]);
}

#[test]
fn odd_sized_file_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = image(&folder, 1_000_000);
    says(
        &["serve", "--export", &path, "--listen", ANY_PORT, "--block-size", "4096"],
        &[&path, "1000000", "4096", "resize", "choose a smaller block size"],
    );
    let odd = image(&folder, 1000);
    let said = fails(&["serve", "--export", &odd, "--listen", ANY_PORT]).1;
    assert!(said.contains("512-byte blocks: resize it") && !said.contains("smaller"), "{said}");
}

#[test]
fn file_of_another_target_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = image(&folder, 1 << 20);
    let first = serve(&["serve", "--export", &path, "--listen", ANY_PORT]);
    assert!(first.1.contains("nvmf attach -a 127.0.0.1 -s "), "{}", first.1);
    says(&["serve", "--export", &path, "--listen", ANY_PORT], &[&path, "in use"]);
}

#[test]
fn two_listeners_over_tcp_on_one_port_are_told_so() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("target.toml");
    // A port that is free now may be another program's a moment later.
    for _ in 0..20 {
        let port = TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap().port();
        let text = format!(
            "[target]\nworkers = 1\nbuffer_memory = \"8MiB\"\nconnections = 16\nstrict = true\n\
             [[listener]]\naddress = \"0.0.0.0:{port}\"\ntransport = \"tcp\"\n\
             [[listener]]\naddress = \"127.0.0.1:{port}\"\ntransport = \"tcp\"\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.com.example:disk1\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n"
        );
        std::fs::write(&path, text).unwrap();
        let (code, said) = fails(&["serve", "--config", path.to_str().unwrap()]);
        if said.contains("the port is taken") {
            continue;
        }
        assert!(code == 1 && said.contains("has the TCP port; give one of the two another port"), "{said}");
        return;
    }
    panic!("no port is free");
}

/// The NQN is what follows on the line that begins so.
fn exported_nqn(running: &Running) -> String {
    let nqn = running.1.lines().find_map(|line| line.strip_prefix("Exported as ")).unwrap();
    assert!(
        running.1.contains(&format!(" -n {nqn}\n")),
        "one can copy it to the end of the line: {}",
        running.1
    );
    nqn.to_owned()
}

#[test]
fn exported_path_keeps_its_nqn_over_a_restart() {
    let folder = TempDir::new().unwrap();
    let path = image(&folder, 1 << 20);
    let nqn = || exported_nqn(&serve(&["serve", "--export", &path, "--listen", ANY_PORT]));
    assert_eq!(nqn(), nqn());
}

#[test]
fn exported_memory_has_an_nqn_of_its_own_at_each_start() {
    let nqn = || exported_nqn(&serve(&["serve", "--memory", "1MiB", "--listen", ANY_PORT]));
    assert_ne!(nqn(), nqn());
}

#[test]
fn unusable_address_is_refused() {
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
fn start_that_fails_creates_no_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("new.img");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in ["192.0.2.1:4420", &taken.local_addr().unwrap().to_string()] {
        let arguments = ["serve", "--export", path.to_str().unwrap(), "--size", "10MiB", "--listen", address];
        says(&arguments, &[address]);
        assert!(!path.exists(), "{address}");
    }
}

#[test]
fn every_missing_disk_is_named_in_the_order_of_the_file() {
    let folder = TempDir::new().unwrap();
    let more: String = (2..6)
        .map(|nsid| format!("[[subsystem.namespace]]\nnsid = {nsid}\npath = \"/nonexistent/{nsid}.img\"\n"))
        .collect();
    let config = configuration(folder.path(), ANY_PORT, &format!("path = \"/nonexistent/1.img\"\n{more}"));
    let said = fails(&["serve", "--config", &config]).1;
    let places: Vec<_> = (1..6).map(|nsid| said.find(&format!("/nonexistent/{nsid}.img does not"))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{said}");
}

#[test]
fn unknown_key_is_refused_with_its_line() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("target.toml");
    std::fs::write(&config, "[target]\nworkers = 1\ncolour = \"red\"\n").unwrap();
    let path = config.to_str().unwrap();
    says(&["check", path], &[path, "line 3", "colour"]);
    says(&["serve", "--config", path], &[path, "line 3", "colour"]);
}

#[test]
fn senseless_command_line_is_refused() {
    for arguments in [
        &["serve"][..],
        &[],
        &["serve", "--export", "a", "--config", "b"],
        &["serve", "--export", "a", "--size", "big"],
        &["serve", "--memory", "1MiB", "--size", "2MiB"],
        &["serve", "--memory", "1MiB", "--listen", "4455"],
    ] {
        assert_eq!(fails(arguments).0, 2, "{arguments:?}");
    }
}

fn configuration(folder: &Path, address: &str, namespace: &str) -> String {
    let text = format!(
        "[target]\nworkers = 1\nbuffer_memory = \"8MiB\"\nconnections = 16\n\n[[listener]]\naddress = \
         \"{address}\"\n\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.com.example:disk1\"\nallow_any_host = true\n\n\
         [[subsystem.namespace]]\nnsid = 1\n{namespace}\n"
    );
    let path = folder.join("target.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn memory_with_a_fixed_uuid_is_warned_of() {
    let folder = TempDir::new().unwrap();
    let uuid = "uuid = \"c0ffee00-0000-4000-8000-000000000001\"";
    let warning = "its contents are lost at a restart, its identity is not";
    let config = configuration(folder.path(), ANY_PORT, &format!("memory = \"1MiB\"\n{uuid}"));
    let output = target(&["check", &config]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains(warning));
    let child = target(&["serve", "--config", &config]).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child, String::new());
    let lines = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let said: Vec<_> = lines.take_while(|line| !line.contains("listening on")).collect();
    assert!(said.iter().any(|line| line.contains(warning)), "{said:#?}");
    let config = configuration(folder.path(), ANY_PORT, "memory = \"1MiB\"");
    let output = target(&["check", &config]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!String::from_utf8(output.stderr).unwrap().contains(warning));
}

#[test]
fn hidden_path_under_systemd_is_explained() {
    let folder = TempDir::new().unwrap();
    let config = configuration(folder.path(), ANY_PORT, "path = \"/home/nonexistent.img\"");
    let output = target(&["serve", "--config", &config]).env("INVOCATION_ID", "0").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the unit hides /home") && said.contains("below /srv"), "{said}");
    says(&["serve", "--config", &config], &["/home/nonexistent.img does not exist"]);
}

#[test]
fn journal_lines_have_priorities() {
    let folder = TempDir::new().unwrap();
    let path = image(&folder, 1 << 20);
    let config = configuration(
        folder.path(),
        ANY_PORT,
        &format!(
            "path = \"{path}\"\nsize = \"2MiB\"\n[[subsystem.namespace]]\nnsid = 2\npath = \"/nonexistent/2\""
        ),
    );
    let mut child = target(&["serve", "--config", &config])
        .env("JOURNAL_STREAM", "8:1")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut running = Running(child, String::new());
    let mut seen = Vec::new();
    for line in lines {
        let listens = line.contains("listening on");
        seen.push(line);
        if listens {
            signal(&running.0, nix::sys::signal::Signal::SIGTERM);
        }
    }
    assert!(running.0.wait().unwrap().success());
    for (priority, part) in [("<3>", "/nonexistent/2"), ("<4>", "`size`"), ("<6>", "listening on")] {
        assert!(
            seen.iter().any(|l| l.starts_with(priority) && l.contains(part)),
            "{priority} {part}: {seen:#?}"
        );
    }
    assert!(seen.iter().all(|line| line.starts_with('<')), "{seen:#?}");
}

#[test]
fn stuck_log_blocks_nothing() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    let mut command = target(&["serve", "--memory", "1MiB", "--listen", ANY_PORT]);
    let mut child = command.stdout(Stdio::piped()).stderr(writer).spawn().unwrap();
    // The writing end that the command still holds.
    drop(command);
    let stdout = child.stdout.take().unwrap();
    let running = Running(child, String::new());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
    });
    loop {
        let line = told.recv_timeout(Duration::from_secs(30)).expect("it starts though its log is stuck");
        if line.contains("nvme connect") {
            break;
        }
    }
    signal(&running.0, nix::sys::signal::Signal::SIGTERM);
    let ended = told.recv_timeout(Duration::from_secs(30));
    assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "it ends");
    drop(reader);
}

/// systemd waits for these: without them `systemctl reload` returns at once, or never.
#[test]
fn reload_reports_to_systemd() {
    let folder = TempDir::new().unwrap();
    let path = image(&folder, 1 << 20);
    let namespace = format!("path = \"{path}\"");
    let config = configuration(folder.path(), ANY_PORT, &namespace);
    let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let child = target(&["serve", "--config", &config])
        .env("NOTIFY_SOCKET", folder.path().join("notify"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let running = Running(child, String::new());
    let told = |what: &str| loop {
        let mut message = [0; 4096];
        let len = socket.recv(&mut message).unwrap_or_else(|error| panic!("{what}: {error}"));
        let message = String::from_utf8_lossy(&message[..len]).into_owned();
        if message.contains(what) {
            return message;
        }
    };
    let ready = told("READY=1");
    assert!(ready.contains("(iwarp): 1 namespace(s)"), "{ready}");
    configuration(folder.path(), ANY_PORT, &format!("{namespace}\nblock_size = 512"));
    signal(&running.0, nix::sys::signal::Signal::SIGHUP);
    assert!(told("RELOADING=1").contains("MONOTONIC_USEC="));
    let ready = told("READY=1");
    // It stays so: another line is told only when it is another one.
    let status = ready.lines().find(|line| line.starts_with("STATUS=")).unwrap();
    assert!(status.contains("1 error(s) at the last reload"), "{status}");
    configuration(folder.path(), ANY_PORT, &namespace);
    signal(&running.0, nix::sys::signal::Signal::SIGHUP);
    told("RELOADING=1");
    let ready = told("READY=1");
    assert!(!ready.contains("reload"), "{ready}");
}

#[test]
fn serve_with_size_creates_the_file_and_stops_on_sigterm() {
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
