//! From what is written to what it means: every value against its bounds, and against the others.

use crate::ConfigError;
use crate::file;
use crate::identity;
use crate::model::{
    Backing, Config, DuplicateHostId, Hosts, Listener, Namespace, Poll, ProviderChoice, Subsystem, Target,
    VerbsOptions,
};
use core::fmt::Display;
use core::ops::RangeInclusive;
use core::str::FromStr;
use nvme_proto::nqn::Nqn;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use toml::Spanned;
use uuid::Uuid;

/// The model name that hosts see when none is given.
const MODEL: &str = "nvmf namespace";
/// NSIDs that a subsystem can have.
const NSID_MAX: i64 = 1024;

type Result<T> = core::result::Result<T, ConfigError>;

pub(crate) fn check(text: &str, file: &file::File) -> Result<Config> {
    let checker = Checker { text };
    let target = checker.target(&file.target)?;
    if file.listener.is_empty() {
        let message = "no [[listener]]: add one with address = \"ADDRESS:4420\", or nobody can connect";
        return Err(ConfigError::at(text, &(0..0), message));
    }
    let listeners = file.listener.iter().map(|l| checker.listener(l)).collect::<Result<Vec<_>>>()?;
    checker.unique(
        "address",
        file.listener.iter().zip(&listeners).map(|(l, v)| (l.as_ref().address.span(), v.address)),
    )?;
    let subsystems = file.subsystem.iter().map(|s| checker.subsystem(s)).collect::<Result<Vec<_>>>()?;
    checker.unique(
        "nqn",
        file.subsystem.iter().zip(&subsystems).map(|(s, v)| (s.as_ref().nqn.span(), v.nqn.to_string())),
    )?;
    let paths = file.subsystem.iter().flat_map(|s| &s.as_ref().namespace);
    checker.unique(
        "path",
        paths.filter_map(|n| n.as_ref().path.as_ref()).map(|p| (p.span(), p.as_ref().display().to_string())),
    )?;
    Ok(Config { target, listeners, subsystems })
}

pub(crate) fn export(
    path: &Path,
    create: Option<u64>,
    address: SocketAddr,
    nqn: Option<Nqn>,
) -> Result<Config> {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let nqn = nqn.unwrap_or_else(|| Nqn::from_uuid(identity::export_nqn(&whole.to_string_lossy())));
    let backing = Backing::Path { path: whole, create };
    let uuid = identity::namespace_uuid(&nqn, 1);
    let namespace = Namespace { nsid: 1, backing, block_size: None, read_only: false, uuid };
    let subsystem = Subsystem {
        serial: identity::serial(&nqn),
        model: MODEL.to_owned(),
        nqn,
        hosts: Hosts::Any,
        namespaces: vec![namespace],
    };
    let listener = Listener { address, provider: ProviderChoice::Auto, verbs: VerbsOptions::default() };
    Ok(Config { target: Target::default(), listeners: vec![listener], subsystems: vec![subsystem] })
}

struct Checker<'a> {
    text: &'a str,
}

impl Checker<'_> {
    fn error<T, S>(&self, value: &Spanned<S>, message: impl Into<String>) -> Result<T> {
        Err(ConfigError::at(self.text, &value.span(), message))
    }

    /// A number of one key, within its bounds.
    fn number<N: TryFrom<i64>>(
        &self,
        key: &str,
        value: Option<&Spanned<i64>>,
        bounds: RangeInclusive<i64>,
        default: N,
    ) -> Result<N> {
        let Some(value) = value else { return Ok(default) };
        match N::try_from(*value.as_ref()) {
            Ok(number) if bounds.contains(value.as_ref()) => Ok(number),
            _ => self.error(
                value,
                format!(
                    "{key} is {} but must be from {} to {}",
                    value.as_ref(),
                    bounds.start(),
                    bounds.end()
                ),
            ),
        }
    }

    /// A number that may be left out.
    fn some<N: TryFrom<i64> + Default>(
        &self,
        key: &str,
        value: Option<&Spanned<i64>>,
        bounds: RangeInclusive<i64>,
    ) -> Result<Option<N>> {
        value.map(|value| self.number(key, Some(value), bounds, N::default())).transpose()
    }

    /// One of a few words.
    fn word<T: Copy>(
        &self,
        key: &str,
        value: Option<&Spanned<String>>,
        words: &[(&str, T)],
        default: T,
    ) -> Result<T> {
        let Some(value) = value else { return Ok(default) };
        if let Some((_, meaning)) = words.iter().find(|(word, _)| word == value.as_ref()) {
            return Ok(*meaning);
        }
        let choices = words.iter().map(|(word, _)| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        self.error(value, format!("{key} is \"{}\" but must be one of {choices}", value.as_ref()))
    }

    /// A text that is read as something else.
    fn read<T: FromStr<Err: Display>>(&self, key: &str, value: &Spanned<String>, right: &str) -> Result<T> {
        value.as_ref().parse().or_else(|e: T::Err| {
            self.error(value, format!("{key} \"{}\": {e}; write {right}", value.as_ref()))
        })
    }

    fn unique<K: Hash + Eq + Display + Clone>(
        &self,
        key: &str,
        values: impl Iterator<Item = (core::ops::Range<usize>, K)>,
    ) -> Result<()> {
        let mut seen = HashMap::new();
        for (span, value) in values {
            if let Some(first) = seen.insert(value.clone(), span.clone()) {
                let line = ConfigError::at(self.text, &first, "").line;
                return Err(ConfigError::at(
                    self.text,
                    &span,
                    format!("{key} {value} stands in line {line} already: each may stand once"),
                ));
            }
        }
        Ok(())
    }

    fn target(&self, file: &file::Target) -> Result<Target> {
        let default = Target::default();
        let polls = [("adaptive", Poll::Adaptive), ("busy", Poll::Busy), ("interrupt", Poll::Interrupt)];
        let policies = [("report", DuplicateHostId::Report), ("refuse", DuplicateHostId::Refuse)];
        let spin_us = self.number("spin_us", file.spin_us.as_ref(), 0..=10_000, 50_u64)?;
        let in_capsule_data = self.bytes(
            "in_capsule_data",
            file.in_capsule_data.as_ref(),
            0..=16384,
            u64::from(default.in_capsule_data),
        )?;
        if let Some(value) = &file.in_capsule_data
            && in_capsule_data % 512 != 0
        {
            return self
                .error(value, format!("in_capsule_data is {in_capsule_data} but must be a multiple of 512"));
        }
        let transfer_max = self.bytes(
            "transfer_max",
            file.transfer_max.as_ref(),
            4096..=1 << 20,
            u64::from(default.transfer_max),
        )?;
        if let Some(value) = &file.transfer_max
            && !transfer_max.is_power_of_two()
        {
            return self.error(
                value,
                "transfer_max must be a power of two, such as \"1MiB\": NVMe can say no other",
            );
        }
        let backend = transfer_max * 4;
        let buffer_memory = self.bytes(
            "buffer_memory",
            file.buffer_memory.as_ref(),
            backend..=1 << 38,
            default.buffer_memory,
        )?;
        Ok(Target {
            workers: self.number("workers", file.workers.as_ref(), 1..=64, default.workers)?,
            poll: self.word("poll", file.poll.as_ref(), &polls, default.poll)?,
            spin: Duration::from_micros(spin_us),
            in_capsule_data: narrow(in_capsule_data),
            queue_depth: self.number(
                "queue_depth",
                file.queue_depth.as_ref(),
                2..=1024,
                default.queue_depth,
            )?,
            io_queues: self.number("io_queues", file.io_queues.as_ref(), 1..=128, default.io_queues)?,
            transfer_max: narrow(transfer_max),
            buffer_memory,
            connections: self.number(
                "connections",
                file.connections.as_ref(),
                2..=65535,
                default.connections,
            )?,
            duplicate_host_id: self.word(
                "duplicate_host_id",
                file.duplicate_host_id.as_ref(),
                &policies,
                default.duplicate_host_id,
            )?,
        })
    }

    fn bytes(
        &self,
        key: &str,
        value: Option<&Spanned<file::Size>>,
        bounds: RangeInclusive<u64>,
        default: u64,
    ) -> Result<u64> {
        match value {
            None => Ok(default),
            Some(value) if bounds.contains(&value.as_ref().0) => Ok(value.as_ref().0),
            Some(value) => {
                let (low, high) = (bounds.start(), bounds.end());
                self.error(
                    value,
                    format!("{key} is {} bytes but must be from {low} to {high}", value.as_ref().0),
                )
            }
        }
    }

    fn listener(&self, file: &Spanned<file::Listener>) -> Result<Listener> {
        let file = file.as_ref();
        let providers = [
            ("auto", ProviderChoice::Auto),
            ("iwarp", ProviderChoice::Iwarp),
            ("verbs", ProviderChoice::Verbs),
        ];
        let right = "an IP address and a port, such as \"192.0.2.1:4420\" or \"[2001:db8::1]:4420\"";
        Ok(Listener {
            address: self.read("address", &file.address, right)?,
            provider: self.word("provider", file.provider.as_ref(), &providers, ProviderChoice::Auto)?,
            verbs: self.verbs(&file.verbs)?,
        })
    }

    fn verbs(&self, file: &file::Verbs) -> Result<VerbsOptions> {
        if let Some(value) = &file.path_mtu {
            return self.error(
                value,
                "path_mtu is not a target's to choose: a connection's two ends must agree, and the host's end decides. Remove it; \
                 to have smaller packets, lower the MTU of the network interface",
            );
        }
        Ok(VerbsOptions {
            gid_index: self.some("gid_index", file.gid_index.as_ref(), 0..=255)?,
            pkey_index: self.some("pkey_index", file.pkey_index.as_ref(), 0..=65535)?,
            dscp: self.some("dscp", file.dscp.as_ref(), 0..=63)?,
            retry_count: self.some("retry_count", file.retry_count.as_ref(), 0..=7)?,
            rnr_retry_count: self.some("rnr_retry_count", file.rnr_retry_count.as_ref(), 0..=7)?,
            ack_timeout: self.some("ack_timeout", file.ack_timeout.as_ref(), 1..=31)?,
            memory_windows: file.memory_windows.as_ref().map(|value| *value.as_ref()),
        })
    }

    fn subsystem(&self, spanned: &Spanned<file::Subsystem>) -> Result<Subsystem> {
        let file = spanned.as_ref();
        let nqn = self.nqn("nqn", &file.nqn)?;
        if nqn == Nqn::DISCOVERY {
            return self.error(
                &file.nqn,
                "this NQN is the discovery service's, which every listener has anyway: choose another",
            );
        }
        if file.namespace.is_empty() {
            let message =
                "the subsystem has no [[subsystem.namespace]]: add one with nsid = 1 and path = \"…\"";
            return self.error(spanned, message);
        }
        let namespaces =
            file.namespace.iter().map(|n| self.namespace(&nqn, n)).collect::<Result<Vec<_>>>()?;
        self.unique(
            "nsid",
            file.namespace.iter().map(|n| (n.as_ref().nsid.span(), *n.as_ref().nsid.as_ref())),
        )?;
        Ok(Subsystem {
            serial: self.ascii("serial", file.serial.as_ref(), 20)?.unwrap_or_else(|| identity::serial(&nqn)),
            model: self.ascii("model", file.model.as_ref(), 40)?.unwrap_or_else(|| MODEL.to_owned()),
            hosts: self.hosts(spanned)?,
            nqn,
            namespaces,
        })
    }

    fn nqn(&self, key: &str, value: &Spanned<String>) -> Result<Nqn> {
        self.read(key, value, "a name such as \"nqn.2026-11.com.example:disk1\"")
    }

    /// Deny by default: a subsystem says who may connect, one way or the other.
    fn hosts(&self, spanned: &Spanned<file::Subsystem>) -> Result<Hosts> {
        let file = spanned.as_ref();
        let any = file.allow_any_host.as_ref().filter(|any| *any.as_ref());
        match (any, &file.allowed_hosts) {
            (Some(any), Some(_)) => {
                self.error(any, "allow_any_host = true makes allowed_hosts mean nothing: keep one of the two")
            }
            (Some(_), None) => Ok(Hosts::Any),
            (None, Some(hosts)) if !hosts.as_ref().is_empty() => hosts
                .as_ref()
                .iter()
                .map(|h| self.nqn("allowed_hosts", h))
                .collect::<Result<_>>()
                .map(Hosts::Only),
            (None, _) => {
                let message = "nobody may connect to this subsystem: add allowed_hosts = [\"the host's NQN\"] (on the host: \
                               `nvmf show-hostnqn`, or cat /etc/nvme/hostnqn), or allow_any_host = true";
                self.error(spanned, message)
            }
        }
    }

    fn ascii(&self, key: &str, value: Option<&Spanned<String>>, most: usize) -> Result<Option<String>> {
        let Some(value) = value else { return Ok(None) };
        let text = value.as_ref();
        if text.is_empty() || text.len() > most || !text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
            return self.error(value, format!("{key} must be 1 to {most} printable ASCII characters"));
        }
        Ok(Some(text.clone()))
    }

    fn namespace(&self, nqn: &Nqn, spanned: &Spanned<file::Namespace>) -> Result<Namespace> {
        let file = spanned.as_ref();
        let nsid = self.number("nsid", Some(&file.nsid), 1..=NSID_MAX, 0)?;
        let block_size = match &file.block_size {
            None => None,
            Some(value) if [512, 1024, 2048, 4096].contains(&value.as_ref().0) => {
                Some(narrow(value.as_ref().0))
            }
            Some(value) => return self.error(value, "block_size must be 512, 1024, 2048 or 4096"),
        };
        let uuid = match &file.uuid {
            Some(text) => {
                *self.read::<Uuid>("uuid", text, "32 hexadecimal digits, as `uuidgen` prints")?.as_bytes()
            }
            None => identity::namespace_uuid(nqn, nsid),
        };
        Ok(Namespace {
            nsid,
            backing: self.backing(spanned)?,
            block_size,
            read_only: file.read_only.unwrap_or(false),
            uuid,
        })
    }

    fn backing(&self, spanned: &Spanned<file::Namespace>) -> Result<Backing> {
        let file = spanned.as_ref();
        let backing = match (&file.path, &file.memory, &file.null) {
            (Some(path), None, None) if path.as_ref().is_absolute() => {
                let create = file.size.as_ref().map(|size| self.device_size("size", size)).transpose()?;
                return Ok(Backing::Path { path: path.as_ref().clone(), create });
            }
            (Some(path), None, None) => {
                return self.error(path, "path must be absolute: the daemon does not start where you are");
            }
            (None, Some(size), None) => Backing::Memory { size: self.device_size("memory", size)? },
            (None, None, Some(size)) => Backing::Null { size: self.device_size("null", size)? },
            _ => {
                let message = "a namespace has exactly one of path = \"/dev/… or /srv/…\", memory = \"1GiB\" (lost at stop), null = \"1TiB\"";
                return self.error(spanned, message);
            }
        };
        match &file.size {
            Some(size) => self.error(size, "size goes with path: memory and null say their size themselves"),
            None => Ok(backing),
        }
    }

    fn device_size(&self, key: &str, size: &Spanned<file::Size>) -> Result<u64> {
        match size.as_ref().0 {
            0 => self.error(size, format!("{key} is 0: a namespace has at least one block")),
            bytes if bytes % 512 != 0 => {
                self.error(size, format!("{key} is {bytes} bytes, which is no multiple of 512"))
            }
            bytes => Ok(bytes),
        }
    }
}

/// Narrows what was just checked against bounds that fit.
fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("bounds were checked")
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
