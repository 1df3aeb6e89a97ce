//! `nvmf-target ctl`, on a target that runs.

use super::{ANY_PORT, Running, configuration, target};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A target with a control socket, in a folder of its own.
pub(super) struct Controlled {
    folder: TempDir,
    running: Running,
}

impl Controlled {
    pub(super) fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let config = configuration(folder.path(), ANY_PORT, "memory = \"1MiB\"");
        let text = std::fs::read_to_string(&config).unwrap();
        let socket = socket(folder.path());
        let key = format!("[target]\ncontrol_socket = \"{}\"\n", socket.display());
        std::fs::write(&config, text.replace("[target]\n", &key)).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let child = target(&["serve", "--config", &config]).stderr(log).spawn().unwrap();
        let controlled = Self { folder, running: Running(child, String::new()) };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !controlled.log().contains("control socket ") {
            assert!(Instant::now() < deadline, "{}", controlled.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        controlled
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub(super) fn ctl(&self, arguments: &[&str]) -> Output {
        ctl(&socket(self.folder.path()), arguments)
    }

    /// What a request that is carried out prints.
    pub(super) fn prints(&self, arguments: &[&str]) -> String {
        let output = self.ctl(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(socket(self.folder.path())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

fn ctl(socket: &Path, arguments: &[&str]) -> Output {
    let mut command = target(&["ctl", "--socket", socket.to_str().unwrap()]);
    command.args(arguments).stdout(Stdio::piped()).output().unwrap()
}

fn says(stream: &mut UnixStream, line: &str) -> String {
    stream.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

const STATUS: &str = "{\"version\":1,\"request\":\"status\"}\n";

#[test]
fn status_shows_what_is_served() {
    let controlled = Controlled::start();
    let text = controlled.prints(&["status"]);
    for part in
        ["up (iwarp)", "nqn.2026-11.com.example:disk1", "namespace 1: served, memory", "1048576 bytes"]
    {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    let json = controlled.prints(&["status", "-o", "json"]);
    assert!(json.starts_with("{\"version\":1,\"ok\":true,\"result\":{"), "{json}");
}

#[test]
fn wrong_line_is_answered_with_what_is_known() {
    let controlled = Controlled::start();
    let mut stream = controlled.connect();
    for (line, part) in [
        ("status\n", "no JSON object"),
        ("[]\n", "no JSON object"),
        ("{\"request\":\"status\"}\n", "add \\\"version\\\":1"),
        ("{\"version\":2,\"request\":\"status\"}\n", "speaks 1"),
        ("{\"version\":1}\n", "there is no request"),
        ("{\"version\":1,\"request\":\"stats\"}\n", "these are: status"),
        ("{\"version\":1,\"request\":\"status\",\"nsid\":1}\n", "unknown field `nsid`"),
    ] {
        let answer = says(&mut stream, line);
        assert!(answer.contains("\"ok\":false") && answer.contains("\"kind\":\"malformed\""), "{answer}");
        assert!(answer.contains(part), "`{part}` is not in: {answer}");
    }
    assert!(says(&mut stream, STATUS).contains("\"ok\":true"), "the connection goes on");
}

#[test]
fn file_in_the_place_of_the_socket_stays() {
    let folder = TempDir::new().unwrap();
    let config = configuration(folder.path(), ANY_PORT, "memory = \"1MiB\"");
    let disk = folder.path().join("precious.img");
    std::fs::write(&disk, "precious").unwrap();
    let text = std::fs::read_to_string(&config).unwrap();
    let key = format!("[target]\ncontrol_socket = \"{}\"\n", disk.display());
    std::fs::write(&config, text.replace("[target]\n", &key)).unwrap();
    let output = target(&["serve", "--config", &config]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("is something else, and stays"), "{said}");
    assert_eq!(std::fs::read_to_string(&disk).unwrap(), "precious");
}

#[test]
fn saved_configuration_is_written_to_what_is_no_file() {
    let it = Controlled::start();
    let fifo = it.folder.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let reader = {
        let fifo = fifo.clone();
        std::thread::spawn(move || std::fs::read_to_string(fifo))
    };
    it.prints(&["save", fifo.to_str().unwrap()]);
    assert!(reader.join().unwrap().unwrap().contains("[[subsystem]]"));
    assert!(!std::fs::symlink_metadata(&fifo).unwrap().is_file());
}

#[test]
fn line_without_end_is_refused() {
    let controlled = Controlled::start();
    let mut stream = controlled.connect();
    let piece = vec![b'x'; 64 << 10];
    // It is closed at the limit: what comes on top meets a closed socket.
    while stream.write_all(&piece).is_ok() {}
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.contains("more than 1048576 bytes"), "{answer}");
    assert!(controlled.ctl(&["status"]).status.success());
}

#[test]
fn file_that_is_too_large_is_explained() {
    let controlled = Controlled::start();
    let file = controlled.folder.path().join("large.toml");
    std::fs::write(&file, "# filler\n".repeat(200_000)).unwrap();
    let output = controlled.ctl(&["apply", file.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("a target takes 1048576"), "{said}");
    // Another client that writes it all finds the answer, and no broken pipe.
    let mut stream = controlled.connect();
    stream.write_all(&vec![b'x'; 3 << 20]).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert!(answer.contains("more than 1048576 bytes"), "{answer}");
}

#[test]
fn names_of_others_do_nothing_to_log_and_terminal() {
    let controlled = Controlled::start();
    let path = "/nonexistent/\u{1b}[2J\u{202e}gmi\nERROR forged";
    let output = controlled.ctl(&["namespace", "add", "nqn.2026-11.com.example:disk1", path]);
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("\\u{202e}"), "{said}");
    let deadline = Instant::now() + Duration::from_secs(10);
    while !controlled.log().contains("nonexistent") && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    for text in [said, controlled.log()] {
        assert!(text.contains("nonexistent") && !text.contains(['\u{1b}', '\u{202e}']), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("ERROR forged")), "{text}");
    }
}

#[test]
fn listener_at_any_port_is_saved_with_the_one_that_it_has() {
    let controlled = Controlled::start();
    controlled.prints(&["listener", "add", "127.0.0.1:0", "--transport", "tcp"]);
    let text = controlled.prints(&["save"]);
    let of_tcp = text.split("[[listener]]").find(|it| it.contains("transport = \"tcp\"")).unwrap();
    assert!(of_tcp.contains("127.0.0.1:") && !of_tcp.contains("127.0.0.1:0\""), "{text}");
}

#[test]
fn clients_that_ask_nothing_make_way() {
    let controlled = Controlled::start();
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(controlled.connect());
    }
    controlled.prints(&["status"]);
    let last = idle.last_mut().unwrap();
    assert!(says(last, STATUS).contains("\"ok\":true"), "those that came last are still served");
}

#[test]
fn client_that_reads_nothing_keeps_no_other_waiting() {
    let controlled = Controlled::start();
    let mut stream = controlled.connect();
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let lines = STATUS.repeat(1000);
    // Until neither side takes more.
    while stream.write_all(lines.as_bytes()).is_ok() {}
    controlled.prints(&["status"]);
}

#[test]
fn clients_that_read_nothing_make_way() {
    let controlled = Controlled::start();
    let lines = STATUS.repeat(1000);
    let stuck: Vec<_> = (0..16)
        .map(|_| {
            let mut stream = controlled.connect();
            stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
            while stream.write_all(lines.as_bytes()).is_ok() {}
            stream
        })
        .collect();
    let since = Instant::now();
    while !controlled.ctl(&["status"]).status.success() {
        assert!(since.elapsed() < Duration::from_secs(6), "until their time to read is over");
    }
    drop(stuck);
}

#[test]
fn audit_of_a_request_is_bounded() {
    let controlled = Controlled::start();
    let long = "x".repeat(500_000);
    for request in [
        format!("{{\"version\":1,\"request\":\"log-level\",\"level\":\"{long}\"}}\n"),
        format!("{{\"version\":1,\"request\":\"subsystem remove\",\"nqn\":\"{long}\"}}\n"),
    ] {
        assert!(says(&mut controlled.connect(), &request).contains("\"ok\":false"));
    }
    let log = controlled.log();
    assert!(log.contains("control: {") && log.contains("xxx... (500"), "{}", &log[..log.len().min(4000)]);
    assert!(log.lines().all(|line| line.len() < 8192));
}

#[test]
fn absent_target_is_explained() {
    let folder = TempDir::new().unwrap();
    let output = ctl(&socket(folder.path()), &["status"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
    for part in ["no target answers at", "systemctl start nvmf-target", "--socket"] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

#[test]
fn socket_of_a_killed_target_is_taken_over_and_of_a_running_one_is_not() {
    let mut controlled = Controlled::start();
    let config = controlled.folder.path().join("target.toml");
    let output = target(&["serve", "--config", config.to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("belongs to another target that runs"), "{said}");
    controlled.prints(&["status"]);
    controlled.running.0.kill().unwrap();
    controlled.running.0.wait().unwrap();
    assert!(socket(controlled.folder.path()).exists());
    let said = String::from_utf8(controlled.ctl(&["status"]).stderr).unwrap();
    assert!(said.contains("no target answers at"), "{said}");
    let child =
        target(&["serve", "--config", config.to_str().unwrap()]).stderr(Stdio::null()).spawn().unwrap();
    let mut again = Running(child, String::new());
    let deadline = Instant::now() + Duration::from_secs(30);
    while !controlled.ctl(&["status"]).status.success() {
        assert!(Instant::now() < deadline && again.0.try_wait().unwrap().is_none());
    }
}
