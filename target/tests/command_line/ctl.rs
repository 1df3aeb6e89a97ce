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
fn change_is_in_the_log_at_any_level() {
    let controlled = Controlled::start();
    for level in ["warn", "off", "error,nvmf_target=warn", "audit=off"] {
        assert_eq!(controlled.prints(&["log-level", level]).trim(), level);
    }
    for wrong in ["bogus=", "bogus=debug", "nvmf_target=loud", "verbose"] {
        let output = controlled.ctl(&["log-level", wrong]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("unknown"), "{wrong}: {said}");
        assert!(said.contains("warn, info") || said.contains("such as nvmf_target"), "{said}");
    }
    let audits = || controlled.log().matches("audit=\"change\"").count();
    let deadline = Instant::now() + Duration::from_secs(30);
    while audits() < 8 {
        assert!(Instant::now() < deadline, "{}", controlled.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn plan_says_of_keys_what_apply_does() {
    let controlled = Controlled::start();
    let text = std::fs::read_to_string(controlled.folder().join("target.toml")).unwrap();
    let asked = controlled.folder().join("asked.toml");
    for (key, part) in [("tls_key_file", "no key for TLS"), ("dhchap_key_file", "cannot authenticate")] {
        let host =
            format!("[[host]]\nnqn = \"nqn.2026-11.com.example:host1\"\n{key} = \"/nonexistent/key\"\n");
        std::fs::write(&asked, format!("{text}\n{host}")).unwrap();
        for (command, word) in [("plan", "FAILS"), ("apply", "FAILED")] {
            let output = controlled.ctl(&[command, asked.to_str().unwrap()]);
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(!output.status.success(), "{command}: {said}");
            for part in [word, part, "/nonexistent/key"] {
                assert!(said.contains(part), "{command}: `{part}` is not in: {said}");
            }
        }
        // The file that it is served with has it already.
        let output = controlled.ctl(&["plan", asked.to_str().unwrap()]);
        assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains(part));
    }
}

#[test]
fn listener_with_tls_is_added_to_a_target_without() {
    let controlled = Controlled::start();
    let said = controlled.prints(&["listener", "add", "127.0.0.1:0", "-t", "tcp", "--tls", "required"]);
    assert!(said.contains("done") && said.contains("no host has a key"), "{said}");
    let status = controlled.prints(&["status"]);
    assert!(status.contains("TLS required"), "{status}");
    assert!(controlled.prints(&["save"]).contains("tls = \"required\""));
}

#[test]
fn refusal_by_address_names_the_listener() {
    let controlled = Controlled::start();
    controlled.prints(&["listener", "add", "127.0.0.1:0", "-t", "tcp", "--allow", "192.0.2.0/24"]);
    let status: serde_json::Value =
        serde_json::from_str(&controlled.prints(&["status", "-o", "json"])).unwrap();
    let listeners = status["result"]["listeners"].as_array().unwrap();
    let tcp = listeners.iter().find(|listener| listener["transport"] == "tcp").unwrap();
    let address = tcp["address"].as_str().unwrap().to_owned();
    let _refused = std::net::TcpStream::connect(&address).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let line = format!("`allow` of the listener at {address}");
    while !controlled.log().lines().any(|it| it.contains(&line) && it.contains("audit=\"refuse\"")) {
        assert!(Instant::now() < deadline, "{}", controlled.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn plan_and_status_say_what_is_set_of_a_namespace() {
    let controlled = Controlled::start();
    let text = std::fs::read_to_string(controlled.folder().join("target.toml")).unwrap();
    let asked = controlled.folder().join("asked.toml");
    let keys = "ana_group = 2\nhosts = [\"nqn.2026-11.com.example:host1\"]\nlimits = { iops = 1000 }\n";
    std::fs::write(&asked, format!("{text}\n{keys}")).unwrap();
    let plan = controlled.prints(&["plan", asked.to_str().unwrap()]);
    for part in ["ana_group: not set -> 2", "limits.iops: not set -> 1000", "hosts: not set -> "] {
        assert!(plan.contains(part), "`{part}` is not in: {plan}");
    }
    controlled.prints(&["apply", asked.to_str().unwrap()]);
    let status = controlled.prints(&["status"]);
    assert!(status.contains(", ANA group 2, for 1 host(s) only, at most 1000 commands/s"), "{status}");
    let json: serde_json::Value =
        serde_json::from_str(&controlled.prints(&["status", "-o", "json"])).unwrap();
    let namespace = &json["result"]["subsystems"][0]["namespaces"][0];
    assert_eq!((&namespace["ana_group"], &namespace["limit_iops"]), (&2.into(), &1000.into()));
}

#[test]
fn answers_say_what_to_do() {
    let controlled = Controlled::start();
    let nqn = "nqn.2026-11.com.example:disk1";
    let missing = controlled.folder().join("missing/disk.img");
    let missing = missing.to_str().unwrap();
    let folder = missing.strip_suffix("/disk.img").unwrap();
    let cases = [
        (&["namespace", "add", nqn, missing][..], "ctl disk create"),
        (&["disk", "create", missing, "--size", "1MiB"], &format!("make the folder {folder} first")),
        (&["subsystem", "add", "nqn.2026-11.com.example:two", "--host", "nonsense"], "the name of a host"),
    ];
    for (arguments, part) in cases {
        let output = controlled.ctl(arguments);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!output.status.success() && said.contains(part), "`{part}` is not in: {said}");
    }
    controlled.prints(&["listener", "set", ANY_PORT, "--allow", "127.0.0.0/8"]);
    let opened = controlled.prints(&["listener", "set", ANY_PORT]);
    assert!(opened.contains("from anywhere"), "{opened}");
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
