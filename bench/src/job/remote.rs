//! What a job says of a remote namespace: its URL is read, and options of another transport are refused.

use super::options::{EngineKind, JobOptions, RdmaProvider, Remote, RemoteTransport};
use super::value;
use nvme_proto::Nqn;

/// Completes what the URL says, and checks that every option has an effect. The error says what to change.
pub(super) fn complete(options: &mut JobOptions) -> Result<(), String> {
    let engine = options.engine();
    if !matches!(engine, EngineKind::Nvmf | EngineKind::NvmfAsync) {
        return match option_of_tls(&options.remote) {
            Some(option) => {
                Err(format!("{option} is for ioengine=nvmf over transport=tcp: {} has no TLS", engine.name()))
            }
            None => match option_of_authentication(&options.remote) {
                Some(option) => {
                    Err(format!("{option} is for ioengine=nvmf: {} does not authenticate", engine.name()))
                }
                None => Ok(()),
            },
        };
    }
    let remote = &mut options.remote;
    if remote.dhchap_key_file.is_none()
        && let Some(option) = option_of_authentication(remote)
    {
        return Err(format!(
            "{option} needs dhchap_key_file=FILE (nvmf gen-dhchap-key --keyfile FILE makes a secret)"
        ));
    }
    if let Some(url) = &options.filename {
        if let Some(rest) = url.strip_prefix("nvmf+tcp://") {
            if remote.transport == Some(RemoteTransport::Rdma) {
                return Err("nvmf+tcp:// is NVMe/TCP: omit transport=rdma, or write nvmf://".to_owned());
            }
            remote.transport = Some(RemoteTransport::Tcp);
            read_url(url, rest, remote)?;
        } else if let Some(rest) = url.strip_prefix("nvmf://") {
            read_url(url, rest, remote)?;
        }
    }
    match remote.transport() {
        RemoteTransport::Rdma => match option_of_tcp(remote) {
            Some(option) => Err(format!(
                "{option} is for transport=tcp (nvmf+tcp://): omit it, or use that transport (over rdma, crc=1 \
                 asks for checksums)"
            )),
            None => Ok(()),
        },
        RemoteTransport::Tcp => match remote {
            Remote { crc: true, .. } => {
                Err("crc is for transport=rdma: over tcp use hdr_digest=1 and data_digest=1".to_owned())
            }
            Remote { provider: RdmaProvider::Iwarp | RdmaProvider::Verbs, .. } => {
                Err("provider is for transport=rdma: omit it, or use that transport".to_owned())
            }
            Remote { tls: true, concat: true, .. } => {
                Err("concat is without tls: its key comes from the authentication; omit one of them"
                    .to_owned())
            }
            Remote { tls: true, tls_key_file: None, .. } => {
                Err("tls=1 needs tls_key_file=FILE (nvmf gen-tls-key --keyfile FILE makes a key)".to_owned())
            }
            Remote { tls: false, tls_key_file: Some(_), .. } => {
                Err("tls_key_file is for tls=1: add that, or omit the file".to_owned())
            }
            _ => Ok(()),
        },
    }
}

/// An option that is in use and is of TLS.
fn option_of_tls(remote: &Remote) -> Option<&'static str> {
    match remote {
        Remote { tls: true, .. } => Some("tls"),
        Remote { tls_key_file: Some(_), .. } => Some("tls_key_file"),
        Remote { concat: true, .. } => Some("concat"),
        _ => None,
    }
}

/// An option that is in use and is of authentication.
fn option_of_authentication(remote: &Remote) -> Option<&'static str> {
    match remote {
        Remote { dhchap_key_file: Some(_), .. } => Some("dhchap_key_file"),
        Remote { dhchap_ctrl_key_file: Some(_), .. } => Some("dhchap_ctrl_key_file"),
        Remote { concat: true, .. } => Some("concat"),
        _ => None,
    }
}

/// An option that is in use and is of NVMe/TCP only.
fn option_of_tcp(remote: &Remote) -> Option<&'static str> {
    let digest = match remote {
        Remote { header_digest: true, .. } => Some("hdr_digest"),
        Remote { data_digest: true, .. } => Some("data_digest"),
        _ => None,
    };
    option_of_tls(remote).or(digest)
}

/// `HOST:PORT/NQN?nsid=1`.
fn read_url(url: &str, rest: &str, remote: &mut Remote) -> Result<(), String> {
    let error = || {
        format!(
            "{url} is not a valid address: write nvmf://192.0.2.1:4420/NQN?nsid=1, over tcp nvmf+tcp://192.0.2.1:4420/NQN"
        )
    };
    let (address, rest) = rest.split_once('/').ok_or_else(error)?;
    let (nqn, query) = rest.split_once('?').unwrap_or((rest, ""));
    remote.address = Some(value::address(address).map_err(|_| error())?);
    parse_nqn(nqn)?;
    remote.nqn = Some(nqn.to_owned());
    if let Some(nsid) = query.strip_prefix("nsid=") {
        remote.nsid = Some(nsid.parse().map_err(|_| error())?);
    } else if !query.is_empty() {
        return Err(error());
    }
    Ok(())
}

/// Parses an NQN.
pub(crate) fn parse_nqn(text: &str) -> Result<Nqn, String> {
    text.parse().map_err(|_| format!("`{text}` is not a valid NQN: write nqn.YYYY-MM.domain:name"))
}
