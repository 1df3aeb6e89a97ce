//! The paths of a call: that of `-a`, those of `--path`, and those that an attached disk is given later.

use super::address::Unresolved;
use super::{NamespaceArguments, Provider, TargetArguments};
use crate::command::path::{OwnOptions, PathArgument, path};
use crate::connect::Transport;
use crate::discovery::{Place, SubsystemPath};
use crate::print::{chain, wrong_arguments};
use anyhow::{Context, Result};
use nvme_proto::Nqn;
use nvmf_initiator::PathOptions;
use nvmf_tls::read_key_file;
use std::net::{Ipv4Addr, SocketAddr};

/// A path that cannot be used with the options that are given: others may be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct RuledOut(pub(super) String);

/// How to connect to a subsystem over further paths.
#[derive(Clone, Debug)]
pub(crate) struct Further {
    target: TargetArguments,
    nqn: Nqn,
}

impl Further {
    /// The path that `--path` would name so. A name is not looked up here: the path is away until that was done.
    pub(crate) fn path(&self, name: &str) -> Result<PathOptions> {
        let path = self.target.further(name)?;
        match path.address_source(self.nqn) {
            Some(_) => path.path_to_name(self.nqn),
            None => path.one_path(self.nqn).map(|(path, _)| path),
        }
    }
}

impl NamespaceArguments {
    /// How to connect over further paths, from whatever folder, with the key that its file has now.
    pub(in crate::command) fn further(&self) -> Result<Further> {
        let mut target = self.target.clone();
        // Now: who serves the disk gives up the right to read another user's file.
        target.key = target.tls_key_file.as_deref().map(read_key_file).transpose()?;
        Ok(Further { target, nqn: self.nqn })
    }
}

impl TargetArguments {
    /// Where that is, as it is written: the first path.
    pub(crate) fn place(&self, of_discovery: bool) -> Result<Place> {
        let first = self.each_path().next().unwrap_or_else(|| self.clone());
        let address = first.traddr()?.trim_matches(['[', ']']).to_owned();
        Ok(Place { transport: first.transport.name().to_owned(), address, port: first.port(of_discovery) })
    }

    /// The paths, each with all that it has of its own or of the call.
    pub(crate) fn whole_paths(&self) -> Result<Vec<SubsystemPath>> {
        let whole = |path: Self| {
            let own = OwnOptions {
                host_traddr: path.host_traddr,
                host_iface: path.host_iface.clone(),
                tls: path.tls,
                hdr_digest: path.hdr_digest,
                data_digest: path.data_digest,
            };
            Ok(SubsystemPath { place: path.place(false)?, own })
        };
        self.each_path().map(whole).collect()
    }

    /// The paths, each with what it has for itself.
    pub(crate) fn paths(&self) -> Result<Vec<SubsystemPath>> {
        let first = self.traddr.iter().map(|_| OwnOptions::default());
        let own = first.chain(self.paths.iter().map(|path| path.own.clone()));
        let path = |(path, own): (Self, _)| Ok(SubsystemPath { place: path.place(false)?, own });
        self.each_path().zip(own).map(path).collect()
    }

    /// The paths: that of -a, and the further ones, each as if it were the only one.
    pub(super) fn each_path(&self) -> impl Iterator<Item = Self> {
        let transport = |path: &PathArgument| path.transport.unwrap_or(self.transport);
        let is_first = self.traddr.is_some();
        let mut transports = self.paths.iter().map(transport).chain(is_first.then_some(self.transport));
        let is_mixed = transports.next().is_some_and(|first| transports.any(|other| other != first));
        let further = move |path: &PathArgument| {
            let one = Self {
                traddr: Some(path.address.clone()),
                trsvcid: path.port.or(self.trsvcid),
                is_further: true,
                ..self.over(transport(path), is_mixed)
            };
            let own = &path.own;
            Self {
                host_traddr: own.host_traddr.or(one.host_traddr),
                host_iface: own.host_iface.clone().or(one.host_iface),
                tls: own.tls || one.tls,
                hdr_digest: own.hdr_digest || one.hdr_digest,
                data_digest: own.data_digest || one.data_digest,
                ..one
            }
        };
        let first = is_first.then(|| self.over(self.transport, is_mixed));
        first.into_iter().chain(self.paths.iter().map(further))
    }

    /// The options of one path. Where there are several transports, what is of another one is not meant for it; but what insists
    /// on something (`--tls`, `--crc`) is.
    fn over(&self, transport: Transport, is_mixed: bool) -> Self {
        let mut one = Self { transport, paths: Vec::new(), ..self.clone() };
        match transport {
            _ if !is_mixed => {}
            Transport::Tcp => one.provider = Provider::Auto,
            Transport::Rdma => {
                (one.hdr_digest, one.data_digest, one.host_iface) = (false, false, None);
                one.tos = one.tos.filter(|_| one.provider != Provider::Iwarp);
            }
        }
        one
    }

    /// Of each path, why it cannot be had, if this host has no key for its TLS.
    pub(crate) fn missing_keys(&self, nqn: Nqn) -> Result<Vec<Option<String>>> {
        self.each_path().map(|path| path.missing_key(nqn)).collect()
    }

    /// The paths, of which one at least can be tried now: first those that can, each in its turn. One whose name has no
    /// address now, or whose source this machine does not have, is away, as one whose controller is, and is tried again. One for
    /// whose TLS this host has no key is left out, unless there is no other.
    pub(super) fn path_options(&self, nqn: Nqn) -> Result<Vec<PathOptions>> {
        let (mut known, mut unknown, mut failed) = (Vec::new(), Vec::new(), None);
        let (mut ruled_out, mut without_key) = (Vec::new(), Vec::new());
        // Each discovery service is asked for itself.
        let count = if nqn == Nqn::DISCOVERY { 1 } else { usize::MAX };
        for path in self.each_path().take(count) {
            let within = |error: anyhow::Error| match &path.traddr {
                Some(name) if path.is_further => error.context(format!("--path {name}")),
                _ => error,
            };
            let missing_key = path.missing_key(nqn)?;
            match (path.one_path(nqn), missing_key) {
                (Ok((options, _)), Some(why)) => without_key.push((options, why)),
                (Ok((options, None)), None) => known.push(options),
                (Ok((options, Some(problem))), None) => {
                    failed.get_or_insert(within(problem));
                    unknown.push(options);
                }
                (Err(error), _) if error.is::<RuledOut>() => ruled_out.push(within(error)),
                (Err(error), _) => return Err(within(error)),
            }
        }
        if known.is_empty() && unknown.is_empty() {
            // What is to be done about the key is told by the connection.
            known.extend(without_key.drain(..).map(|(options, _)| options));
        }
        match (failed, ruled_out.first()) {
            (Some(error), _) if known.is_empty() => return Err(error),
            (_, Some(error)) if known.is_empty() => return wrong_arguments(chain(error)),
            (None, None) if known.is_empty() => self.traddr().map(drop)?,
            _ => {}
        }
        let ruled_out = ruled_out.iter().map(chain);
        for why in ruled_out.chain(without_key.into_iter().map(|(_, why)| why)) {
            tracing::warn!("a path is left out: {why}");
        }
        Ok([known, unknown].concat())
    }

    /// The only path of these options, and why it cannot be tried now.
    fn one_path(&self, nqn: Nqn) -> Result<(PathOptions, Option<anyhow::Error>)> {
        match self.address(nqn) {
            Ok(address) => Ok((self.path_to(nqn, address)?, self.missing_source()?)),
            Err(error) if error.is::<Unresolved>() => Ok((self.path_to_name(nqn)?, Some(error))),
            Err(error) => Err(error),
        }
    }

    /// The same without looking a name up: it is away until that was done.
    fn path_to_name(&self, nqn: Nqn) -> Result<PathOptions> {
        self.path_to(nqn, (Ipv4Addr::UNSPECIFIED, self.port(nqn == Nqn::DISCOVERY)).into())
    }

    fn path_to(&self, nqn: Nqn, address: SocketAddr) -> Result<PathOptions> {
        let mut options = PathOptions::new(address, self.transport()?);
        options.address_source = self.address_source(nqn);
        options.source = self.host_traddr.map(|address| (address, 0).into());
        Ok(options)
    }

    /// The options of one more path beside these, as `--path` names it. A subsystem that is reached by TLS gets none in the clear.
    fn further(&self, text: &str) -> Result<Self> {
        let mut argument = path(text).or_else(|problem| wrong_arguments(format!("{text}: {problem}")))?;
        let has_tls = self.each_path().any(|path| path.tls);
        if (has_tls || self.concat) && argument.transport.unwrap_or(self.transport) != Transport::Tcp {
            return wrong_arguments(format!(
                "{text}: the disk is reached by TLS, and over rdma there is none: add a path over tcp"
            ));
        }
        // With --concat a key is made on each connection, and none may be given.
        argument.own.tls = !self.concat && (argument.own.tls || has_tls);
        // Beside those that there are, so that it is known which options are meant for it.
        let all = Self { paths: [self.paths.clone(), vec![argument]].concat(), ..self.clone() };
        all.each_path().last().context("it is no path")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::target;
    use super::*;
    use nvmf_initiator::TransportOptions;
    use std::os::unix::fs::PermissionsExt;

    /// How a disk that was attached by this call gets further paths.
    fn further(call: &[&str]) -> Further {
        Further { target: target(call), nqn: "nqn.2026-11.com.example:disk".parse().unwrap() }
    }

    #[test]
    fn path_of_later_has_the_key_that_its_file_had() {
        let key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, key).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let file = file.to_str().unwrap();
        let nqn = "nqn.2026-11.com.example:disk".parse().unwrap();
        let target = target(&["-a", "127.0.0.1", "--tls", "--tls-key-file", file]);
        let namespace = NamespaceArguments { target, nqn, nsid: None, disk: None };
        let further = namespace.further().unwrap();
        // As for a server that may not read it any more.
        std::fs::remove_file(file).unwrap();
        further.path("127.0.0.3").unwrap();
        assert!(namespace.further().is_err());
    }

    #[test]
    fn path_beside_others_with_tls_has_it_too_or_cannot_be() {
        let key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
        let tls =
            |path: &PathOptions| matches!(&path.transport, TransportOptions::Tcp(tcp) if tcp.tls.is_some());
        let one = ["-a", "127.0.0.1", "--path", "127.0.0.2,tls", "--tls-key", key];
        for call in [&one[..], &["-a", "127.0.0.1", "--tls", "--tls-key", key]] {
            let further = further(call);
            assert!(tls(&further.path("127.0.0.3").unwrap()), "{call:?}");
            assert!(tls(&further.path("localhost").unwrap()), "{call:?}");
            let error = further.path("127.0.0.3/rdma").unwrap_err().to_string();
            assert!(error.contains("the disk is reached by TLS"), "{error}");
        }
        assert!(!tls(&further(&["-a", "127.0.0.1"]).path("127.0.0.3").unwrap()));
        // A key is made on each connection; a path that discovery lists with TLS is such a one.
        let secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
        let concat = further(&["-a", "127.0.0.1", "--concat", "-S", secret]);
        assert!(!tls(&concat.path("127.0.0.3,tls").unwrap()) && concat.path("127.0.0.3/rdma").is_err());
    }

    #[test]
    fn name_of_a_further_path_is_not_waited_for() {
        let further = further(&["-a", "127.0.0.1"]);
        assert!(further.path("localhost:4421").unwrap().address.ip().is_unspecified());
        assert_eq!(further.path("127.0.0.2:4421").unwrap().address.to_string(), "127.0.0.2:4421");
    }

    /// The paths that this call has.
    fn paths(call: &[&str]) -> Result<Vec<PathOptions>> {
        target(call).path_options("nqn.2026-11.com.example:disk".parse().unwrap())
    }

    #[test]
    fn path_has_its_own_options_and_else_those_of_the_call() {
        let found = paths(&[
            "--path",
            "127.0.0.1,host-traddr=127.0.0.5,hdr-digest",
            "--path",
            "127.0.0.2",
            "-w",
            "127.0.0.6",
        ]);
        let found = found.unwrap();
        let source = |path: &PathOptions| path.source.map(|source| source.ip().to_string()).unwrap();
        assert_eq!(found.iter().map(source).collect::<Vec<_>>(), ["127.0.0.5", "127.0.0.6"]);
        let digest =
            |path: &PathOptions| matches!(&path.transport, TransportOptions::Tcp(tcp) if tcp.header_digest);
        assert_eq!(found.iter().map(digest).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn options_of_one_transport_are_for_its_paths() {
        let found =
            paths(&["-a", "127.0.0.1", "--path", "127.0.0.2/rdma", "-g", "--provider", "iwarp"]).unwrap();
        assert!(matches!(&found[0].transport, TransportOptions::Tcp(tcp) if tcp.header_digest));
        assert!(matches!(found[1].transport, TransportOptions::Rdma));
        let error = paths(&["-a", "127.0.0.1", "--provider", "iwarp"]).unwrap_err();
        assert!(error.is::<crate::print::WrongArguments>(), "there is no path that it is for: {error}");
    }

    #[test]
    fn path_that_the_options_rule_out_is_left_out_where_there_are_others() {
        for ruled_out in [
            &["-a", "127.0.0.1", "--path", "[::1]", "-w", "127.0.0.1"][..],
            &["-a", "::1", "--path", "127.0.0.1,host-traddr=127.0.0.1", "-w", "127.0.0.1"],
            &["-a", "127.0.0.1", "--path", "127.0.0.2/rdma", "--tls"],
            &["-a", "127.0.0.1", "--path", "[fe80::1]"],
            &["-a", "fe80::1", "--path", "127.0.0.1"],
        ] {
            let found = paths(ruled_out).unwrap();
            assert_eq!(found.len(), 1, "{ruled_out:?}");
            assert_eq!(found[0].address.ip().to_string(), "127.0.0.1");
        }
        for alone in [&["-a", "::1", "-w", "127.0.0.1"][..], &["-a", "fe80::1"]] {
            let error = paths(alone).unwrap_err();
            assert!(error.is::<crate::print::WrongArguments>(), "{error}");
        }
        // An interface that is away may come back.
        let found = paths(&["-a", "127.0.0.1", "--path", "127.0.0.2,host-traddr=192.0.2.77"]).unwrap();
        assert_eq!(found.len(), 2);
        assert!(paths(&["-a", "127.0.0.2", "-w", "192.0.2.77"]).is_err());
    }
}
