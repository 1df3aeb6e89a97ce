//! Which provider, on which device, and how it is chosen.

use crate::AnyProvider;
use core::fmt;
use nvmf_iwarp::{Crc, IwarpConfig, IwarpProvider};
use nvmf_rdma::{PrivateData, Provider};
use nvmf_rdma_devices::{Choice, Machine, Reason, choose, source_towards};
use nvmf_verbs::{VerbsConfig, VerbsProvider};
use std::io;
use std::net::{IpAddr, SocketAddr};
use thiserror::Error;

/// What the user asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preference {
    /// Verbs where an InfiniBand or RoCE device owns the address, else iwarp.
    #[default]
    Auto,
    /// Userspace iWARP over TCP.
    Iwarp,
    /// An RDMA device, or nothing.
    Verbs,
}

/// How connections over a device are set up, where the user chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerbsOptions {
    /// See [`VerbsConfig::pkey_index`].
    pub pkey_index: Option<u16>,
    /// See [`VerbsConfig::gid_index`].
    pub gid_index: Option<u8>,
    /// See [`VerbsConfig::traffic_class`].
    pub traffic_class: Option<u8>,
    /// See [`VerbsConfig::retry_count`].
    pub retry_count: Option<u8>,
    /// See [`VerbsConfig::rnr_retry_count`].
    pub rnr_retry_count: Option<u8>,
    /// See [`VerbsConfig::min_rnr_timer`].
    pub min_rnr_timer: Option<u8>,
    /// See [`VerbsConfig::ack_timeout`].
    pub ack_timeout: Option<u8>,
    /// See [`VerbsConfig::memory_windows`].
    pub memory_windows: Option<bool>,
}

/// What one provider is opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// How many keys of commands may be valid at once (iwarp keeps a table of them).
    pub keys: Option<usize>,
    /// See [`VerbsConfig::completion_vector`].
    pub completion_vector: u32,
    /// See [`VerbsConfig::rejection`].
    pub rejection: PrivateData,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { keys: None, completion_vector: 0, rejection: PrivateData::EMPTY }
    }
}

/// A provider and its device. Threads with the same selection can hand requests to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderSelection {
    /// Userspace iWARP over TCP.
    Iwarp {
        /// It asks for CRCs; otherwise there are some where the peer asks.
        crc: bool,
    },
    /// A port of a device.
    Verbs {
        /// Its name.
        device: String,
        /// From 1.
        port: u8,
        /// What was chosen.
        options: VerbsOptions,
    },
}

impl fmt::Display for ProviderSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iwarp { crc: false } => f.write_str("iwarp"),
            Self::Iwarp { crc: true } => f.write_str("iwarp with CRCs"),
            Self::Verbs { device, .. } => write!(f, "verbs on {device}"),
        }
    }
}

/// No provider, or not the one that was asked for.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Verbs were asked for, and the address has none.
    #[error(
        "{address} cannot be reached by verbs: {why}. Name an address that an RDMA device owns (`nvmf doctor` lists them), or take provider iwarp or auto"
    )]
    NoDevice {
        /// The address.
        address: IpAddr,
        /// What is missing.
        why: String,
    },
    /// CRCs were asked for over an iWARP device.
    #[error(
        "{device} is an iWARP device: whether it uses CRCs is its driver's choice. Leave the CRCs to it, or take provider iwarp, which uses them when it is asked to"
    )]
    NoCrc {
        /// The device.
        device: String,
    },
    /// There is no route to the address.
    #[error("there is no route to {address}")]
    NoRoute {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The device, or its libraries.
    #[error(transparent)]
    Verbs(#[from] nvmf_verbs::OpenError),
    /// The machine could not be asked.
    #[error("cannot look for RDMA devices")]
    Machine(#[source] io::Error),
    /// The system refused.
    #[error("userspace iWARP cannot start")]
    Iwarp(#[source] io::Error),
}

impl ProviderSelection {
    /// The selection of a local address. With `crc`, a checksum that goes with the data is insisted on: userspace iWARP
    /// asks for MPA's, and InfiniBand and RoCE always have one.
    ///
    /// # Errors
    /// [`OpenError::NoDevice`] and [`OpenError::NoCrc`] when verbs were asked for.
    pub fn of(
        local: IpAddr,
        preference: Preference,
        crc: bool,
        options: VerbsOptions,
    ) -> Result<Self, OpenError> {
        if preference == Preference::Iwarp {
            return Ok(Self::Iwarp { crc });
        }
        let machine = Machine::read().map_err(OpenError::Machine)?;
        let usable = nvmf_verbs::usable().map_err(|error| error.to_string());
        let owner = match choose(&machine, local, usable.as_ref().copied().map_err(String::as_str)) {
            Choice::Verbs(owner) => owner,
            // Who asks for verbs gets the device, whatever it is.
            Choice::Iwarp(Reason::IwarpDevice(owner)) if preference == Preference::Verbs => {
                if crc {
                    return Err(OpenError::NoCrc { device: owner.device.name.clone() });
                }
                owner
            }
            Choice::Iwarp(_) if preference == Preference::Auto => return Ok(Self::Iwarp { crc }),
            Choice::Iwarp(why) => {
                return Err(OpenError::NoDevice { address: local, why: why.to_string() });
            }
        };
        let (device, port) = (owner.device.name.clone(), u8::try_from(owner.port.number).unwrap_or(1));
        Ok(Self::Verbs { device, port, options })
    }

    /// The selection for a remote address: that of the local address from which the kernel would send to it.
    ///
    /// # Errors
    /// As [`ProviderSelection::of`], and [`OpenError::NoRoute`].
    pub fn towards(
        remote: SocketAddr,
        source: Option<IpAddr>,
        preference: Preference,
        crc: bool,
        options: VerbsOptions,
    ) -> Result<Self, OpenError> {
        if preference == Preference::Iwarp {
            return Ok(Self::Iwarp { crc });
        }
        let local = match source {
            Some(source) => source,
            None => match source_towards(remote) {
                Ok(local) => local,
                // Connecting reports better what is wrong with the address.
                Err(_) if preference == Preference::Auto => return Ok(Self::Iwarp { crc }),
                Err(source) => return Err(OpenError::NoRoute { address: remote, source }),
            },
        };
        Self::of(local, preference, crc, options)
    }

    /// A provider for one thread. A selection opens as many as are asked for, one after another where a device went
    /// away.
    ///
    /// # Errors
    /// The device, its libraries or the system refuse.
    pub fn open(&self, open: OpenOptions) -> Result<AnyProvider, OpenError> {
        match self {
            Self::Iwarp { crc } => {
                let default = IwarpConfig::default();
                let config = IwarpConfig {
                    crc: if *crc { Crc::On } else { Crc::Auto },
                    keys_max: open.keys.unwrap_or(default.keys_max),
                    ..default
                };
                IwarpProvider::new(config).map(AnyProvider::from).map_err(OpenError::Iwarp)
            }
            Self::Verbs { device, port, options } => {
                let default = VerbsConfig::new(device.clone());
                let config = VerbsConfig {
                    port: *port,
                    pkey_index: options.pkey_index,
                    gid_index: options.gid_index,
                    traffic_class: options.traffic_class,
                    retry_count: options.retry_count.unwrap_or(default.retry_count),
                    rnr_retry_count: options.rnr_retry_count.unwrap_or(default.rnr_retry_count),
                    min_rnr_timer: options.min_rnr_timer.unwrap_or(default.min_rnr_timer),
                    ack_timeout: options.ack_timeout,
                    memory_windows: options.memory_windows.unwrap_or(default.memory_windows),
                    completion_vector: open.completion_vector,
                    rejection: open.rejection.as_bytes().to_vec(),
                    ..default
                };
                let provider = VerbsProvider::new(config)?;
                if !provider.capabilities().strict_keys {
                    tracing::warn!(
                        "{device} cannot give each command a key that reaches its bytes alone: a peer may reach more of this \
                         side's data memory than it was shown, so use {device} with trusted peers only"
                    );
                }
                Ok(provider.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_device() {
        let local = IpAddr::from([127, 0, 0, 1]);
        let of = |preference, crc| ProviderSelection::of(local, preference, crc, VerbsOptions::default());
        for crc in [false, true] {
            assert_eq!(of(Preference::Auto, crc).expect("a selection"), ProviderSelection::Iwarp { crc });
        }
        let verbs = of(Preference::Verbs, false).expect_err("no device");
        assert!(verbs.to_string().contains("provider iwarp"), "{verbs}");
    }
}
