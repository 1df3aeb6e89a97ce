//! More connections than the process has descriptors for.

use super::strangers::line_with;
use super::{ANY_PORT, Running, configuration, signal};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;
use tempfile::TempDir;

const LISTENERS: usize = 5;

/// A host gets in, the log says what to do, and it is counted.
#[test]
fn silent_connections_without_end_leave_a_descriptor_for_a_host() {
    let folder = TempDir::new().unwrap();
    // One machine has half of the half-open connections of a listener at the most.
    let listener = |at| format!("[[listener]]\naddress = \"127.0.0.{at}:0\"\ntransport = \"tcp\"\n");
    let tcp: String = (1..=LISTENERS).map(listener).collect();
    let config = configuration(folder.path(), ANY_PORT, &format!("memory = \"1MiB\"\n{tcp}"));
    // This process has an end of each connection.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let program = env!("CARGO_BIN_EXE_nvmf-target");
    let child = Command::new("sh")
        .args(["-c", "ulimit -n 2048 && exec \"$0\" serve --config \"$1\"", program, &config])
        .env_remove("NVMF_LOG")
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut running = Running(child, String::new());
    let stderr = BufReader::new(running.0.stderr.take().unwrap());
    let (tell, lines) = channel();
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
    line_with(&lines, "descriptors may be needed, 2048 are allowed");
    let listening = line_with(&lines, "listening on");
    let shown: Vec<&str> = listening.split(" (NVMe/TCP)").collect();
    let to: Vec<SocketAddr> =
        shown[..LISTENERS].iter().map(|before| before.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    let patience = Duration::from_secs(5);
    // Until one is not accepted and the kernel queues no more, where the target has the fault.
    let silent = (0..2500).map_while(|at| TcpStream::connect_timeout(&to[at % LISTENERS], patience).ok());
    let _silent: Vec<TcpStream> = silent.collect();
    let mut host = TcpStream::connect_timeout(&to[0], patience).expect("a connection");
    let mut ic_req = [0; 128];
    (ic_req[2], ic_req[4]) = (128, 128);
    host.write_all(&ic_req).unwrap();
    host.set_read_timeout(Some(patience)).unwrap();
    let mut ic_resp = [0; 128];
    host.read_exact(&mut ic_resp).expect("ICResp");
    assert_eq!(ic_resp[0], 1);
    line_with(&lines, "no connection can be accepted: Too many open files (os error 24): raise the limit");
    signal(&running.0, nix::sys::signal::Signal::SIGUSR1);
    let counters = line_with(&lines, "half_open_closed=");
    assert!(counters.contains("accepts_failed="), "{counters}");
}
