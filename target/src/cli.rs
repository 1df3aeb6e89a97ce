//! The command line.

mod check;
mod ctl;
mod top;

pub use ctl::NotWell;

use crate::control::Control;
use crate::control::socket::Socket;
use crate::daemon::{Daemon, read_config};
use crate::log::say;
use crate::machine;
use crate::sockets::Sockets;
use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use nvme_proto::Nqn;
use nvmf_config::{Backing, Config, Transport, size};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use uuid::Uuid;

/// The exit status for wrong arguments, as clap's.
const USAGE: u8 = 2;

/// Exports disks and files over NVMe/RDMA and NVMe/TCP.
#[derive(Debug, Parser)]
#[command(name = "nvmf-target", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve what a configuration file says, or one file or device with no configuration at all.
    Serve(Box<Serve>),
    /// Check a configuration file, and whether this user could serve it on this machine; print what would be served.
    Check {
        /// The configuration file.
        file: PathBuf,
        /// Print nothing when all is well.
        #[arg(long, short)]
        quiet: bool,
        /// Check the file alone: no disk and no address that it names.
        #[arg(long)]
        syntax_only: bool,
    },
    /// Show which namespaces and hosts are busy, how fast disks answer, and what fails ([metrics] must be on).
    Top(top::Top),
    /// Ask a running target, or change what it serves, over its control socket (docs/CONTROL.md).
    Ctl(ctl::Ctl),
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["config", "export", "memory"]))]
struct Serve {
    /// The configuration file (see deploy/target.toml).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A file, block device or image of Ceph (`rbd:POOL/IMAGE`) to export, to any host that reaches the address.
    #[arg(long, value_name = "PATH")]
    export: Option<PathBuf>,
    /// Export memory of this size instead; it is gone when the target stops.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    /// If the file is not there, create it (sparse) with this size, such as 10GiB.
    #[arg(long, value_parser = size::parse, conflicts_with_all = ["memory", "config"])]
    size: Option<u64>,
    /// Where to listen.
    #[arg(
        long,
        value_name = "ADDRESS[:PORT]",
        default_value = "127.0.0.1:4420",
        value_parser = address,
        conflicts_with = "config"
    )]
    listen: SocketAddr,
    /// What hosts connect with.
    #[arg(long, default_value = "rdma", value_enum, conflicts_with = "config")]
    transport: TransportName,
    /// The subsystem's NQN; by default one that stays the same for the same path on this machine.
    #[arg(long, conflicts_with = "config")]
    nqn: Option<Nqn>,
    /// Bytes in a logical block.
    #[arg(long, value_name = "BYTES", conflicts_with = "config", value_parser = block_size)]
    block_size: Option<u32>,
    /// Refuse writes.
    #[arg(long, conflicts_with = "config")]
    read_only: bool,
}

/// A transport, as nvme-cli calls it.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum TransportName {
    /// NVMe/RDMA.
    Rdma,
    /// NVMe/TCP.
    Tcp,
}

impl From<TransportName> for Transport {
    fn from(name: TransportName) -> Self {
        match name {
            TransportName::Rdma => Self::Rdma,
            TransportName::Tcp => Self::Tcp,
        }
    }
}

/// An address or a name, with a port or without: 4420 then.
fn address(text: &str) -> Result<SocketAddr, String> {
    let error = || format!("`{text}` is no address of a machine: write 192.0.2.1:4420 or [2001:db8::1]:4420");
    if let Ok(ip) = text.trim_matches(['[', ']']).parse() {
        return Ok(SocketAddr::new(ip, 4420));
    }
    // The resolver would read a lone number as an IPv4 address: 4455 as 0.0.17.103.
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    if host.bytes().all(|b| b.is_ascii_digit() || b == b'.') && host.parse::<Ipv4Addr>().is_err() {
        return Err(error());
    }
    let with_port = if text.contains(':') { text.to_owned() } else { format!("{text}:4420") };
    let found: Vec<SocketAddr> = with_port.to_socket_addrs().map_err(|_| error())?.collect();
    found.iter().find(|address| address.is_ipv4()).or(found.first()).copied().ok_or_else(error)
}

fn block_size(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ (512 | 1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err("a block has 512, 1024, 2048 or 4096 bytes".into()),
    }
}

impl Serve {
    fn config(&self) -> anyhow::Result<Config> {
        if let Some(path) = &self.config {
            return read_config(path);
        }
        let path = self.export.clone().unwrap_or_else(|| "memory".into());
        // Another start's memory is another disk: hosts must not take the one for the other.
        let machine = match self.memory {
            Some(_) => Uuid::new_v4().to_string(),
            None => machine::name(),
        };
        let mut config = Config::export(&path, self.size, self.listen, self.nqn, &machine)
            .with_context(|| format!("cannot export {}", path.display()))?;
        for listener in &mut config.listeners {
            listener.transport = self.transport.into();
        }
        for namespace in config.subsystems.iter_mut().flat_map(|subsystem| &mut subsystem.namespaces) {
            namespace.block_size = self.block_size;
            namespace.read_only = self.read_only;
            if let Some(size) = self.memory {
                namespace.backing = Backing::Memory { size };
            }
        }
        Ok(config)
    }
}

/// Does what the command line says, with the listening sockets that systemd passed to the process.
///
/// # Errors
/// One message for the user: what failed, on what, and what to do.
pub fn run(cli: &Cli, sockets: Sockets) -> anyhow::Result<()> {
    match &cli.command {
        Command::Check { file, quiet, syntax_only } => check::check(file, *quiet, *syntax_only),
        Command::Top(top) => top.run(),
        Command::Ctl(ctl) => ctl::ctl(ctl),
        Command::Serve(serve) => {
            // The signals are ours before anything else is: a stop or a reload during the start is not lost.
            let mut control = Control::new().context("cannot take over the signals")?;
            let config = serve.config()?;
            // Whoever is told of it may be in another folder.
            let path = serve.config.as_deref().map(std::path::absolute).transpose()?;
            let socket = Socket::of(&config.target)?;
            let nqn = config.subsystems.first().map(|subsystem| subsystem.nqn);
            let daemon = Daemon::start(config, path, control.waker(), sockets)?;
            if serve.config.is_none()
                && let (Some(nqn), Some(address)) = (nqn, daemon.addresses().first())
            {
                let text = how_to_use(nqn, *address, serve.transport.into()) + "\n";
                if let Err(error) = print(&text) {
                    tracing::warn!(%error, "how to use the disk cannot be printed");
                }
            }
            if let Some(socket) = socket {
                control.serve(socket).context("the control socket cannot be served")?;
            }
            daemon.serve(&mut control)
        }
    }
}

/// Prints what is wrong with the command line, or what it asks to be told of itself (`--help`); the exit status.
#[must_use]
pub fn answer(answer: &clap::Error) -> ExitCode {
    let printed = read_or_left(answer.print());
    match printed {
        _ if answer.use_stderr() => ExitCode::from(USAGE),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("nvmf-target: cannot write to the standard output: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints to the standard output. Who reads no further (`| head`) has what they want.
fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    read_or_left(output.write_all(text.as_bytes()).and_then(|()| output.flush()))
}

fn read_or_left(printed: io::Result<()>) -> io::Result<()> {
    printed.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

fn how_to_use(nqn: Nqn, address: SocketAddr, transport: Transport) -> String {
    let (ip, port) = match address.ip() {
        ip if ip.is_unspecified() => ("ADDRESS".to_owned(), address.port()),
        ip => (ip.to_string(), address.port()),
    };
    let (option, name) = match transport {
        Transport::Rdma => ("", "rdma"),
        Transport::Tcp => ("-t tcp ", "tcp"),
    };
    format!(
        "Exported as {nqn}\n\
         On the host:\n  \
         nvmf discover {option}-a {ip} -s {port}\n  \
         nvmf attach {option}-a {ip} -s {port} -n {nqn}\n\
         or with the kernel's initiator:\n  \
         nvme connect -t {name} -a {ip} -s {port} -n {nqn}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn address_without_port_or_by_name_is_accepted() {
        assert_eq!(address("192.0.2.1"), Ok("192.0.2.1:4420".parse().unwrap()));
        assert_eq!(address("[::1]:5000"), Ok("[::1]:5000".parse().unwrap()));
        assert_eq!(address("::1"), Ok("[::1]:4420".parse().unwrap()));
        assert_eq!(address("localhost:5000").map(|a| (a.ip().is_loopback(), a.port())), Ok((true, 5000)));
        assert_eq!(address("localhost").map(|a| a.port()), Ok(4420));
        for wrong in ["127.0.0.1:port", "", "4455", "4455:4420", ":4420", "127.1", "192.0.2.300"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
