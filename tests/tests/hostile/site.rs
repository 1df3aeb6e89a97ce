//! The target that is attacked: the built program, or another that runs already.

use core::ops::Sub;
use nvmf_tests::process::{self, Target};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

pub(crate) struct Site {
    pid: u32,
    pub(crate) tcp: SocketAddr,
    pub(crate) rdma: Option<SocketAddr>,
    own: Option<Own>,
}

/// The built program.
struct Own {
    target: Target,
    metrics: PathBuf,
    _folder: tempfile::TempDir,
}

/// What a target has said until now.
#[derive(Clone, Copy)]
pub(crate) struct Said {
    /// The sum of what it counted that is no work done.
    pub(crate) counted: f64,
    /// Lines of its log.
    pub(crate) lines: usize,
}

impl Sub for Said {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { counted: self.counted - before.counted, lines: self.lines - before.lines }
    }
}

impl Site {
    /// The target that `cargo xtask hostile` was given, or the built program.
    pub(crate) fn of_this_run() -> Self {
        let given = |name| std::env::var(name).ok();
        match given("NVMF_HOSTILE_ADDRESS").zip(given("NVMF_HOSTILE_PID")) {
            Some((address, pid)) => Self {
                pid: pid.parse().expect("a process ID"),
                tcp: address.parse().expect("an address and a port"),
                rdma: None,
                own: None,
            },
            None => Self::start(),
        }
    }

    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let address = || SocketAddr::from(([127, 0, 0, 1], process::free_port().expect("a port")));
        let (tcp, rdma, path) = (address(), address(), |name: &str| folder.path().join(name));
        let config = format!(
            "[target]\nworkers = 2\nbuffer_memory = \"16MiB\"\ncontrol_socket = \"{}\"\nstate_dir = \"{}\"\n\
             [metrics]\nlisten = \"{}\"\n[[listener]]\naddress = \"{tcp}\"\ntransport = \"tcp\"\n[[listener]]\naddress = \
             \"{rdma}\"\nprovider = \"iwarp\"\n[[subsystem]]\nnqn = \"{}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\nmemory = \"16MiB\"\nblock_size = 512\n",
            path("control").display(),
            path("state").display(),
            path("metrics").display(),
            crate::subsystem()
        );
        std::fs::write(path("target.toml"), config).expect("a file");
        let program = process::program("nvmf-target").expect("it is built");
        let target = Target::serve(&program, &path("target.toml"), tcp, &path("log")).expect("it starts");
        let (pid, metrics) = (target.pid(), path("metrics"));
        Self { pid, tcp, rdma: Some(rdma), own: Some(Own { target, metrics, _folder: folder }) }
    }

    /// `None` of a target that is not ours.
    pub(crate) fn said(&self) -> Option<Said> {
        let own = self.own.as_ref()?;
        let mut socket = UnixStream::connect(&own.metrics).expect("it gives metrics");
        socket.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
        let mut text = String::new();
        socket.read_to_string(&mut text).expect("an answer");
        let is_fault = |line: &&str| {
            ["closed", "rejected", "refused", "violations", "timeouts", "waits", "errors", "failed"]
                .iter()
                .any(|word| line.contains(word))
                && !line.starts_with('#')
        };
        let values =
            text.lines().filter(is_fault).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Some(Said { counted: values.sum(), lines: own.target.log().lines().count() })
    }

    pub(crate) fn resident(&self) -> u64 {
        process::resident(self.pid).expect("it runs")
    }

    pub(crate) fn descriptors(&self) -> usize {
        process::descriptors(self.pid).expect("it runs")
    }
}
