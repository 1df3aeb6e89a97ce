//! The options of `nvmf_open`: "name=value", under the names of nvme-cli where it has them.

use crate::boundary::{Fault, text};
use core::ffi::c_char;
use core::str::FromStr;
use core::time::Duration;
use nvmf_initiator::auth::Secret;
use nvmf_initiator::auth::host::Secrets;
use nvmf_initiator::tls::{Key, NVME_KEYRING, read_key_file, read_line};
use nvmf_initiator::{
    AuthenticationOptions, HostIdentity, Nqn, Options, PathOptions, PathPolicy, TlsOptions, TransportOptions,
    Uri,
};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// The texts of a list that ends with a null pointer; null: none.
///
/// # Safety
/// It is null, or such a list of texts that stay as they are while the result is used.
pub(crate) unsafe fn list<'a>(list: *const *const c_char) -> Result<Vec<&'a str>, Fault> {
    let mut texts = Vec::new();
    if list.is_null() {
        return Ok(texts);
    }
    loop {
        // SAFETY: the list goes on up to the null pointer.
        let option = unsafe { list.add(texts.len()).read() };
        if option.is_null() {
            return Ok(texts);
        }
        // SAFETY: it is a text of the caller's.
        texts.push(unsafe { text(option, "an option")? });
    }
}

/// What the options say.
#[derive(Default)]
pub(crate) struct Settings {
    /// As whom, if that is said.
    pub(crate) host: Option<HostIdentity>,
    /// How long an operation may take.
    pub(crate) timeout: Option<Duration>,
    host_nqn: Option<Nqn>,
    paths: Vec<Uri>,
    policy: PathPolicy,
    source: Option<IpAddr>,
    io_timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
    keep_alive: Option<Duration>,
    reconnect_delay: Option<Duration>,
    /// `Some(None)`: for ever.
    ctrl_loss_timeout: Option<Option<Duration>>,
    fast_io_fail_timeout: Option<Option<Duration>>,
    io_queues: Option<u16>,
    queue_size: Option<u16>,
    header_digest: bool,
    data_digest: bool,
    tls: bool,
    tls_key: Option<Key>,
    secret: Option<Secret>,
    controller_secret: Option<Secret>,
}

impl Settings {
    pub(crate) fn parse(options: &[&str]) -> Result<Self, Fault> {
        let mut settings = Self::default();
        for option in options {
            let (name, value) = option
                .split_once('=')
                .ok_or_else(|| Fault::misuse(format!("the option {option:?} is not name=value")))?;
            settings.set(name, value)?;
        }
        if let Some(nqn) = settings.host_nqn {
            let id = settings.host.or_else(|| of_nqn(&nqn)).map(|host| host.id);
            let id = id.ok_or_else(|| Fault::misuse("hostnqn= has no UUID in it: give hostid= too"))?;
            settings.host = Some(HostIdentity { nqn, id });
        }
        if settings.controller_secret.is_some() && settings.secret.is_none() {
            return Err(Fault::misuse("dhchap-ctrl-secret-file= goes with dhchap-secret-file="));
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Fault> {
        let bad = |reason: String| Fault::misuse(format!("the option {name}={value}: {reason}"));
        match name {
            "path" => self.paths.push(value.parse()?),
            "iopolicy" => {
                self.policy = match value {
                    "round-robin" => PathPolicy::RoundRobin,
                    "queue-depth" => PathPolicy::QueueDepth,
                    "latency" => PathPolicy::Latency,
                    _ => return Err(bad("it is round-robin, queue-depth or latency".to_owned())),
                }
            }
            "hostnqn" => self.host_nqn = Some(value.parse().map_err(|e| bad(format!("no NQN: {e}")))?),
            "hostid" => {
                self.host = Some(value.parse().map_err(|e: nvmf_initiator::Error| bad(e.to_string()))?);
            }
            "host-traddr" => self.source = Some(number(value).map_err(bad)?),
            "timeout" => self.timeout = Some(some_time(value).map_err(bad)?),
            "io-timeout" => self.io_timeout = Some(some_time(value).map_err(bad)?),
            "connect-timeout" => self.connect_timeout = Some(some_time(value).map_err(bad)?),
            "keep-alive-tmo" => self.keep_alive = Some(keep_alive(value).map_err(bad)?),
            "reconnect-delay" => self.reconnect_delay = Some(seconds(value).map_err(bad)?),
            "ctrl-loss-tmo" => self.ctrl_loss_timeout = Some(or_for_ever(value).map_err(bad)?),
            "fast-io-fail-tmo" => self.fast_io_fail_timeout = Some(or_for_ever(value).map_err(bad)?),
            "nr-io-queues" => self.io_queues = Some(within(value, 1, 128).map_err(bad)?),
            "queue-size" => self.queue_size = Some(within(value, 2, 1024).map_err(bad)?),
            "hdr-digest" => self.header_digest = yes(value).map_err(bad)?,
            "data-digest" => self.data_digest = yes(value).map_err(bad)?,
            "tls" => self.tls = yes(value).map_err(bad)?,
            "tls-key-file" => {
                self.tls_key = Some(read_key_file(Path::new(value)).map_err(|e| bad(e.to_string()))?);
            }
            "dhchap-secret-file" => self.secret = Some(secret(value).map_err(bad)?),
            "dhchap-ctrl-secret-file" => self.controller_secret = Some(secret(value).map_err(bad)?),
            _ => return Err(bad("there is no such option".to_owned())),
        }
        Ok(())
    }

    /// The options of a connection to what the URI names.
    pub(crate) fn connection(self, uri: &Uri) -> Result<Options, Fault> {
        let host = self.host.map_or_else(HostIdentity::of_this_machine_or_new, Ok)?;
        let mut paths = Vec::new();
        for path in &self.paths {
            if path.nqn.is_some_and(|nqn| Some(nqn) != uri.nqn) || path.nsid.is_some() {
                return Err(Fault::misuse(format!(
                    "the option path={path}: it leads to the same subsystem: write its address alone"
                )));
            }
            paths.push(self.path(path)?);
        }
        let is_known = |path: &PathOptions| !path.address.ip().is_unspecified();
        let mut options = match (uri.options(host), uri.nqn) {
            (Ok(options), _) => options,
            // Its name has no address now, and is looked up again. Another path begins.
            (Err(_), Some(nqn)) if paths.iter().any(is_known) => {
                paths.push(self.path(uri)?);
                paths.sort_by_key(|path| !is_known(path));
                Options::over(paths.remove(0), nqn, host)
            }
            (Err(error), _) => return Err(error.into()),
        };
        options.transport = self.transport(options.transport.clone())?;
        options.source = self.source.map(|source| SocketAddr::new(source, 0));
        options.paths = paths;
        options.path_policy = self.policy;
        set(&mut options.io_timeout, self.io_timeout);
        set(&mut options.keep_alive, self.keep_alive);
        set(&mut options.reconnect_delay, self.reconnect_delay);
        set(&mut options.ctrl_loss_timeout, self.ctrl_loss_timeout);
        set(&mut options.fast_io_fail_timeout, self.fast_io_fail_timeout);
        set(&mut options.io_queues, self.io_queues);
        set(&mut options.queue_depth, self.queue_size);
        options.connect_timeout = self.connect_timeout.or(options.connect_timeout);
        options.authentication = self.secret.map(|host| {
            AuthenticationOptions::new(Secrets { host, controller: self.controller_secret.clone() })
        });
        Ok(options)
    }

    fn path(&self, uri: &Uri) -> Result<PathOptions, Fault> {
        let mut path = uri.path()?;
        path.transport = self.transport(path.transport)?;
        path.source = self.source.map(|source| SocketAddr::new(source, 0));
        Ok(path)
    }

    fn transport(&self, transport: TransportOptions) -> Result<TransportOptions, Fault> {
        let of_tcp = self.header_digest || self.data_digest || self.tls || self.tls_key.is_some();
        match transport {
            TransportOptions::Tcp(mut tcp) => {
                (tcp.header_digest, tcp.data_digest) = (self.header_digest, self.data_digest);
                tcp.tls = match &self.tls_key {
                    Some(key) => Some(TlsOptions::new(key.clone())),
                    None => self.tls.then(|| TlsOptions::of_keyring(NVME_KEYRING)),
                };
                Ok(TransportOptions::Tcp(tcp))
            }
            TransportOptions::Rdma if of_tcp => {
                Err(Fault::misuse("TLS and digests are of nvme+tcp:// alone: leave them out, or use that"))
            }
            rdma => Ok(rdma),
        }
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn of_nqn(nqn: &Nqn) -> Option<HostIdentity> {
    nqn.as_str().rsplit_once(":uuid:").and_then(|(_, uuid)| uuid.parse().ok())
}

fn number<T: FromStr<Err: core::fmt::Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| error.to_string())
}

fn within(value: &str, least: u16, most: u16) -> Result<u16, String> {
    let number = value.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("it is a number from {least} to {most}"))
}

fn seconds(value: &str) -> Result<Duration, String> {
    let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "it is no time in seconds, from 0 on".to_owned())
}

/// A time in which something can be done.
fn some_time(value: &str) -> Result<Duration, String> {
    seconds(value)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "it is no time in seconds, above 0".to_owned())
}

/// A Keep Alive Timeout: on the wire it is milliseconds, of which 0 turn it off.
fn keep_alive(value: &str) -> Result<Duration, String> {
    let time = some_time(value)?;
    match (1..=u128::from(u32::MAX)).contains(&time.as_millis()) {
        true => Ok(time),
        false => Err("it is from 0.001 to 4294967 seconds".to_owned()),
    }
}

fn or_for_ever(value: &str) -> Result<Option<Duration>, String> {
    if value == "-1" {
        return Ok(None);
    }
    seconds(value).map(Some).map_err(|reason| format!("{reason}, nor -1"))
}

fn yes(value: &str) -> Result<bool, String> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("it is yes or no".to_owned()),
    }
}

fn secret(path: &str) -> Result<Secret, String> {
    let line = read_line(Path::new(path), true).map_err(|error| error.to_string())?;
    Secret::parse(&line).map_err(|error| error.to_string())
}
