//! A remote namespace, driven by the job's own thread.

use super::{Engine, EngineError};
use crate::job::remote::parse_nqn;
use crate::job::{JobOptions, RdmaProvider, Remote, RemoteTransport};
use core::time::Duration;
use nvme_proto::{Nqn, Nsid};
use nvmf_attached::DiskLock;
use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_initiator::auth::Secret;
use nvmf_initiator::auth::host::Secrets;
use nvmf_initiator::transport::AnyTransport;
use nvmf_initiator::{
    AuthenticationOptions, ConnectionState, HostIdentity, Options, Preference, RemoteBackend, TcpOptions,
    TlsOptions, TransportOptions,
    tls::{read_key_file, read_line},
};
use nvmf_memory::Memory;
use std::path::PathBuf;
use std::time::Instant;

/// Longest wait for an orderly disconnect.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A remote namespace, driven by the calling thread.
pub struct OwnThread {
    backend: RemoteBackend<AnyTransport>,
    device: DeviceId,
}

impl OwnThread {
    /// Connects to the target and selects the namespace.
    ///
    /// # Errors
    /// [`EngineError::Remote`], [`EngineError::Option`].
    pub fn connect(options: &JobOptions) -> Result<Self, EngineError> {
        let (its_options, nsid) = connect_options(options)?;
        let backend = RemoteBackend::connect(&its_options)?;
        let first = backend.namespaces().first().map(|namespace| namespace.nsid);
        let nsid = nsid.or(first).ok_or_else(|| {
            EngineError::Option(format!(
                "{} has no namespace for this host: check the target's configuration",
                its_options.nqn
            ))
        })?;
        check_attached(options, &its_options.nqn, nsid, backend.namespace(nsid)?.uuid)?;
        Ok(Self { backend, device: DeviceId(nsid.0) })
    }
}

impl Backend for OwnThread {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        self.backend.register(memory)
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.backend.geometry(device)
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        self.backend.submit(tag, device, op)
    }

    fn flush(&mut self) {
        self.backend.flush();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.backend.poll(completions);
    }
}

impl Engine for OwnThread {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn wait(&mut self, most: Duration) {
        self.backend.sleep_for(most, &[]);
    }

    fn close(&mut self) {
        self.backend.shutdown();
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while self.backend.state() != ConnectionState::Lost && Instant::now() < deadline {
            if !self.backend.turn() {
                self.backend.sleep_for(CLOSE_TIMEOUT / 100, &[]);
            }
        }
    }
}

/// Refuses to write to a namespace that is attached to this machine as a disk, as fio refuses a mounted device.
pub(super) fn check_attached(
    options: &JobOptions,
    nqn: &Nqn,
    nsid: Nsid,
    uuid: [u8; 16],
) -> Result<(), EngineError> {
    if options.allow_mounted_write
        || !(options.rw.writes || options.rw.trims)
        || !DiskLock::is_taken(nqn, nsid, uuid).map_err(EngineError::Attachment)?
    {
        return Ok(());
    }
    let namespace = format!("{nqn} namespace {nsid}");
    Err(EngineError::Attached { namespace, holder: nvmf_attached::holder(nqn, nsid, uuid) })
}

/// The key, if TLS is wanted.
fn tls(remote: &Remote) -> Result<Option<TlsOptions>, EngineError> {
    let Some(path) = remote.tls_key_file.as_deref().filter(|_| remote.tls) else { return Ok(None) };
    let key = read_key_file(path).map_err(|error| EngineError::Option(error.to_string()))?;
    Ok(Some(TlsOptions::new(key)))
}

/// How to authenticate, if a secret is given.
fn authentication(remote: &Remote) -> Result<Option<AuthenticationOptions>, EngineError> {
    let read = |path: &PathBuf| {
        let line = read_line(path, true).map_err(|error| EngineError::Option(error.to_string()))?;
        Secret::parse(&line).map_err(|error| EngineError::Option(format!("{}: {error}", path.display())))
    };
    let Some(path) = &remote.dhchap_key_file else { return Ok(None) };
    let controller = remote.dhchap_ctrl_key_file.as_ref().map(read).transpose()?;
    let secrets = Secrets { host: read(path)?, controller };
    Ok(Some(AuthenticationOptions::new(secrets).with_concat(remote.concat)))
}

/// The connection's options, and the namespace if the job names one.
pub(super) fn connect_options(options: &JobOptions) -> Result<(Options, Option<Nsid>), EngineError> {
    let missing = |what: &str| {
        EngineError::Option(format!(
            "{what} is missing: give --address=HOST:PORT and --nqn=NQN, or --filename=nvmf://HOST:PORT/NQN"
        ))
    };
    let remote = &options.remote;
    let parse = |nqn: &str| parse_nqn(nqn).map_err(EngineError::Option);
    let address = remote.address.as_ref().ok_or_else(|| missing("the target's address"))?;
    let nqn = parse(remote.nqn.as_deref().ok_or_else(|| missing("the subsystem's NQN"))?)?;
    let machine = HostIdentity::of_this_machine_or_new()?;
    let host = match &remote.hostnqn {
        Some(nqn) => HostIdentity { nqn: parse(nqn)?, ..machine },
        None => machine,
    };
    // A queue with n entries has at most n - 1 commands in flight.
    let entries = u16::try_from(options.iodepth.saturating_add(1)).unwrap_or(u16::MAX);
    let transport = match remote.transport() {
        RemoteTransport::Rdma => TransportOptions::Rdma,
        RemoteTransport::Tcp => TransportOptions::Tcp(
            TcpOptions::default()
                .with_digests(remote.header_digest, remote.data_digest)
                .with_tls(tls(remote)?),
        ),
    };
    let mut first = address.clone();
    (first.transport, first.nqn) = (transport.clone(), Some(nqn));
    let mut connect = first.options(host)?;
    for further in &remote.paths {
        let mut path = further.path()?;
        path.transport = transport.clone();
        connect.paths.push(path);
    }
    connect.authentication = authentication(remote)?;
    connect.disable_flow_control = remote.disable_flow_control;
    connect.provider = match remote.provider {
        RdmaProvider::Auto => Preference::Auto,
        RdmaProvider::Iwarp => Preference::Iwarp,
        RdmaProvider::Verbs => Preference::Verbs,
    };
    connect.crc = remote.crc;
    connect.io_queues = 1;
    connect.queue_depth = entries.clamp(128, 1024);
    connect.spin = options.spin;
    // A job is of one disk: nobody puts it back for a benchmark.
    connect.wait_for_disk = false;
    Ok((connect, remote.nsid.map(Nsid)))
}
