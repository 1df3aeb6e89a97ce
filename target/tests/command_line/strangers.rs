//! What connects that is no host of the listener's transport: a line of the log says what it looks like.

use super::{ANY_PORT, Running, configuration, signal, target};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

/// The next line of the log with this in it, which comes soon.
pub(super) fn line_with(lines: &Receiver<String>, part: &str) -> String {
    loop {
        let line =
            lines.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("no line with {part}"));
        if line.contains(part) {
            return line;
        }
    }
}

/// The address in front of this, in the line that says where it listens.
fn address(line: &str, provider: &str) -> SocketAddr {
    let before = line.split(provider).next().unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{provider}: {line}"))
}

#[test]
fn stranger_is_named_and_counted_on_every_listener() {
    let folder = TempDir::new().unwrap();
    let tcp = format!("[[listener]]\naddress = \"{ANY_PORT}\"\ntransport = \"tcp\"");
    let config = configuration(folder.path(), ANY_PORT, &format!("memory = \"1MiB\"\n{tcp}"));
    let child = target(&["serve", "--config", &config]).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child, String::new());
    let stderr = BufReader::new(running.0.stderr.take().unwrap());
    let (tell, lines) = channel();
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let listening = line_with(&lines, "listening on");
    let (iwarp, tcp) = (address(&listening, " (iwarp)"), address(&listening, " (NVMe/TCP)"));
    let mut ic_req = [0; 128];
    (ic_req[2], ic_req[4]) = (128, 128);
    let http = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    for (to, bytes, says) in [
        (tcp, &b"MPA ID Req Frame\x40\x01\x00\x00"[..], "an MPA request (iWARP): the host uses -t rdma"),
        (tcp, http, "an HTTP request"),
        (iwarp, &ic_req, "an ICReq (NVMe/TCP): the host uses -t tcp"),
        (iwarp, http, "an HTTP request"),
    ] {
        let mut stranger = TcpStream::connect(to).unwrap();
        stranger.write_all(bytes).unwrap();
        let peer = stranger.local_addr().unwrap().to_string();
        let line = line_with(&lines, "connection rejected");
        assert!(line.contains(says) && line.contains(&peer), "{says}: {line}");
    }
    signal(&running.0, nix::sys::signal::Signal::SIGUSR1);
    for worker in ["worker=0", "worker=1"] {
        let line = line_with(&lines, worker);
        assert!(line.contains("rejected_parameters=2"), "{line}");
    }
}
