//! What carries the commands: RDMA, TCP, TLS.

use super::paths::RuledOut;
use super::{Provider, TargetArguments};
use crate::connect::Transport;
use crate::print::wrong_arguments;
use anyhow::Result;
use nvme_proto::Nqn;
use nvmf_initiator::{TcpOptions, TlsOptions, TransportOptions};
use nvmf_tls::{Key, KeyringError, NVME_KEYRING, TlsKeyring, Version, read_key_file};

/// A key that was given as an argument.
fn parse_key(text: &str) -> Result<Key> {
    Key::parse(text).or_else(|error| {
        let is_number = text.trim_start_matches("0x").bytes().all(|byte| byte.is_ascii_hexdigit());
        wrong_arguments(if is_number {
            format!(
                "--tls-key {text}: here it is the key itself (NVMeTLSkey-1:…), not the number of a key in the keyring as \
                 of nvme-cli: leave it out, and --tls takes this host's key from the keyring"
            )
        } else {
            format!("--tls-key: {error}")
        })
    })
}

impl TargetArguments {
    /// What carries the commands, as the flags say.
    pub(super) fn transport(&self) -> Result<TransportOptions> {
        match self.transport {
            Transport::Tcp if self.provider != Provider::Auto => {
                wrong_arguments("--provider is for -t rdma: leave it out, or use that transport")
            }
            Transport::Tcp if self.crc => {
                let text = "--crc is for -t rdma: over tcp use --hdr-digest and --data-digest";
                Err(RuledOut(text.to_owned()).into())
            }
            Transport::Tcp => {
                let mut tcp = TcpOptions::default();
                tcp.header_digest = self.hdr_digest;
                tcp.data_digest = self.data_digest;
                tcp.tos = self.tos;
                tcp.interface = self.host_iface.clone();
                tcp.tls = self.tls_options()?;
                Ok(TransportOptions::Tcp(tcp))
            }
            Transport::Rdma if self.tos.is_some() && self.provider == Provider::Iwarp => wrong_arguments(
                "--tos is for -t tcp and for RDMA devices: userspace iWARP does not set it; leave it out",
            ),
            Transport::Rdma => match self.option_of_tcp() {
                Some(option) => Err(RuledOut(format!(
                    "{option} is for -t tcp: leave it out, or use that transport (over rdma, --crc asks for checksums)"
                ))
                .into()),
                None => Ok(TransportOptions::Rdma),
            },
        }
    }

    /// An option that was given and is of NVMe/TCP only.
    fn option_of_tcp(&self) -> Option<&'static str> {
        let options = [
            ("--tls", self.tls),
            ("--concat", self.concat),
            ("--hdr-digest", self.hdr_digest),
            ("--data-digest", self.data_digest),
            ("--host-iface", self.host_iface.is_some()),
        ];
        options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }

    /// Whether no path goes in the clear.
    pub(in crate::command) fn insists_on_tls(&self) -> bool {
        self.tls || self.concat
    }

    /// The key, if TLS is wanted.
    fn tls_options(&self) -> Result<Option<TlsOptions>> {
        if !self.tls {
            return Ok(None);
        }
        let options = match (&self.key, &self.tls_key_file, &self.tls_key) {
            (Some(key), ..) => TlsOptions::new(key.clone()),
            (None, Some(path), _) => TlsOptions::new(read_key_file(path)?),
            (None, None, Some(text)) => TlsOptions::new(parse_key(text)?),
            (None, None, None) => TlsOptions::of_keyring(self.keyring()),
        };
        Ok(Some(match self.identity_version() {
            None => options,
            Some(version) => options.with_version(version),
        }))
    }

    fn keyring(&self) -> &str {
        self.keyring.as_deref().unwrap_or(NVME_KEYRING)
    }

    fn identity_version(&self) -> Option<Version> {
        self.tls_identity_version.map(|version| if version == 0 { Version::V0 } else { Version::V1 })
    }

    /// Why this path cannot be had, which is for TLS, if this host has no key for it. That a keyring cannot be looked into now
    /// is another matter.
    pub(super) fn missing_key(&self, nqn: Nqn) -> Result<Option<String>> {
        let is_of_keyring = self.tls && self.tls_key_file.is_none() && self.tls_key.is_none();
        if self.transport != Transport::Tcp || !is_of_keyring {
            return Ok(None);
        }
        let (host, version) = (self.host()?.nqn, self.identity_version());
        let found = TlsKeyring::open(self.keyring()).and_then(|it| it.keys_of(&host, &nqn, version));
        let Err(error @ (KeyringError::Missing(_) | KeyringError::NoKey { .. })) = found else {
            return Ok(None);
        };
        let place = self.place(false)?;
        Ok(Some(format!(
            "{place}: it is for TLS, and this host has no key for that: {error}; or name a file with the key (--tls-key-file)"
        )))
    }

    /// That what is said of TLS is said of a path with TLS.
    pub(super) fn check_tls(&self) -> Result<()> {
        let is_of_tls = self.tls_key_file.is_some()
            || self.tls_key.is_some()
            || self.tls_identity_version.is_some()
            || self.keyring.is_some();
        if is_of_tls && !self.each_path().any(|path| path.tls) {
            return wrong_arguments(
                "--tls-key-file, --tls-key, --tls-identity-version and --keyring go with --tls: add it, or leave them out",
            );
        }
        Ok(())
    }
}
