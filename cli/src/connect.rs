//! Connecting to a controller, over the transport that the options name and the provider that reaches it.

use crate::print::chain;
use anyhow::{Context, Result, bail};
use nvme_proto::Nqn;
use nvmf_host::AssociationError;
use nvmf_host::association::QueueFailure;
use nvmf_initiator::{Connection, Error, Options, Preference, TransportOptions};
use nvmf_rdma_any::ProviderSelection;

/// What carries the commands.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Rdma,
    Tcp,
}

/// Connects; and over what that is.
pub(crate) async fn connect(options: Options) -> Result<(Connection, Via)> {
    let sources = options.paths.iter().filter(|path| path.address.ip().is_unspecified());
    for source in sources.filter_map(|path| path.address_source.as_ref()) {
        tracing::warn!(
            "the name {} does not resolve: the other paths are used",
            source.name().unwrap_or_default()
        );
    }
    reach(options, Connection::connect).await
}

/// Connects in the caller's way. Over RDMA with `auto`, where nobody answers over an RDMA device, userspace iWARP is tried too: a
/// target that started before its device was there listens on that.
pub(crate) async fn reach<T>(
    options: Options,
    mut connect: impl AsyncFnMut(Options) -> Result<T, Error>,
) -> Result<(T, Via)> {
    if let TransportOptions::Tcp(tcp) = &options.transport {
        let concat = options.authentication.as_ref().is_some_and(|it| it.concat);
        let tls = tcp.tls.is_some() || concat && options.nqn != Nqn::DISCOVERY;
        return Ok((connect(options).await.context("over tcp")?, Via::Tcp { tls }));
    }
    let source = options.source.map(|source| source.ip());
    let crc = options.crc;
    let first = ProviderSelection::towards(options.address, source, options.provider, crc, options.verbs)?;
    let also_iwarp = options.provider == Preference::Auto && matches!(first, ProviderSelection::Verbs { .. });
    if options.verbs.traffic_class.is_some() && matches!(first, ProviderSelection::Iwarp { .. }) {
        tracing::warn!("--tos has no effect over {first}: it is for RDMA devices and -t tcp");
    }
    let over = |selection: &ProviderSelection| format!("over {selection}");
    let failure = match connect(options.clone()).await {
        Ok(connection) => return Ok((connection, Via::Rdma(first))),
        Err(error) if also_iwarp && nobody_answers(&error) => error,
        Err(error) => return Err(error).context(over(&first)),
    };
    let mut options = options;
    options.provider = Preference::Iwarp;
    match connect(options).await {
        Ok(connection) => {
            let failure = chain(&failure.into());
            tracing::warn!(
                "nobody answers {} ({failure}): iwarp is used; --provider iwarp does so at once",
                over(&first)
            );
            Ok((connection, Via::Rdma(ProviderSelection::Iwarp { crc })))
        }
        Err(second) if nobody_answers(&second) => {
            bail!("{}: {}; nor does anybody answer over iwarp", over(&first), chain(&failure.into()))
        }
        Err(second) => {
            let (failure, second) = (chain(&failure.into()), chain(&second.into()));
            bail!("{}: {failure}; over iwarp: {second}", over(&first))
        }
    }
}

/// Whether nothing listens at the address, as far as can be told.
pub(crate) fn is_unreachable(error: &Error) -> bool {
    let Error::Association { source, .. } = error else { return false };
    matches!(&**source, AssociationError::Queue { failure: QueueFailure::Unreachable(_), .. })
}

/// Whether no NVMe/RDMA target took the connection of the first queue.
fn nobody_answers(error: &Error) -> bool {
    let Error::Association { source, .. } = error else { return false };
    let AssociationError::Queue { qid, failure } = &**source else { return false };
    let answered = matches!(failure, QueueFailure::Rejected(rejection) if rejection.0.is_some());
    qid.is_admin() && !answered
}

/// What a connection goes over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Via {
    /// NVMe/RDMA over this provider.
    Rdma(ProviderSelection),
    /// NVMe/TCP, with TLS or without.
    Tcp { tls: bool },
}

impl Transport {
    /// As nvme-cli calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        }
    }
}

impl Via {
    /// The transport.
    pub(crate) fn transport(&self) -> Transport {
        match self {
            Self::Rdma(_) => Transport::Rdma,
            Self::Tcp { .. } => Transport::Tcp,
        }
    }

    /// Whether with TLS.
    pub(crate) fn tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true })
    }

    /// The RDMA provider, if there is one.
    pub(crate) fn provider(&self) -> Option<String> {
        match self {
            Self::Rdma(provider) => Some(provider.to_string()),
            Self::Tcp { .. } => None,
        }
    }
}
