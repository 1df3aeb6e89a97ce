//! Files that are read because somebody asks for it: the configuration, and the keys that it names. A thread of its own
//! reads them, because a file system that hangs would keep the control loop waiting.

use super::apply::Origin;
use super::changing::Changing;
use super::{Daemon, authentication, keys, read_config};
use crate::control::protocol::Fault;
use crate::limits::OPEN_TIMEOUT;
use core::time::Duration;
use nvmf_config::{Config, Host};
use nvmf_subsystem::Nqn;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Threads that read, at the most: each of those that are left waits for a file system.
const READING_MAX: usize = 16;

/// The keys of all hosts, with what cannot be had of them.
pub(super) struct ReadKeys {
    /// For TLS; `None`: they stay as they are.
    pub(super) tls: Option<(nvmf_tls::Keys, Vec<keys::KeyFault>)>,
    /// For DH-HMAC-CHAP.
    pub(super) secrets: (BTreeMap<Nqn, nvmf_auth::controller::Keys>, Vec<authentication::KeyFault>),
}

impl ReadKeys {
    /// Blocks.
    fn read(hosts: &[Host]) -> Self {
        Self { tls: Some(keys::read_keys(hosts)), secrets: authentication::read_keys(hosts) }
    }
}

/// What is to be read.
pub(super) enum Wanted {
    /// A configuration from its file, and its keys.
    File(PathBuf),
    /// The keys of a configuration.
    Keys(Box<Config>),
}

/// A configuration that is being read.
pub(super) struct Reading {
    told: Receiver<anyhow::Result<(Config, ReadKeys)>>,
    /// In the order in which they were asked for.
    number: u64,
    until: Duration,
}

/// Those that were asked for.
#[derive(Default)]
pub(super) struct Readings {
    /// The last that was asked for, and the last that was applied.
    asked: u64,
    applied: u64,
    /// Held by each thread.
    threads: Arc<()>,
}

/// What is said of a file that would take everything away.
pub(super) const EMPTIES: &str = "the file has neither a [[listener]] nor a [[subsystem]], as one that was cut off by \
     accident: everything stays as it is. What is to go is removed by `nvmf-target ctl subsystem remove` and `listener \
     remove`";

impl Daemon {
    /// Whether this would take away everything that is served.
    pub(super) fn empties(&self, asked: &Config) -> bool {
        asked.is_empty() && !self.config.is_empty()
    }

    /// Begins to read a configuration, which is applied then.
    pub(super) fn read(&mut self, wanted: Wanted) -> Result<Changing, Fault> {
        if Arc::strong_count(&self.readings.threads) > READING_MAX {
            return Err(Fault::refused("too many files are being read that do not answer"));
        }
        let (tell, told) = channel();
        let (waker, held) = (self.common.waker.clone(), Arc::clone(&self.readings.threads));
        let body = move || {
            let config = match wanted {
                Wanted::File(path) => read_config(&path),
                Wanted::Keys(config) => Ok(*config),
            };
            let _ = tell.send(config.map(|config| {
                let keys = ReadKeys::read(&config.hosts);
                (config, keys)
            }));
            drop(held);
            waker.wake();
        };
        let started = std::thread::Builder::new().name("read-files".into()).spawn(body);
        started.map_err(|_| Fault::refused("the system has no thread left"))?;
        let now = self.common.clock.now();
        self.readings.asked += 1;
        let mut changing = Changing::new(Vec::new(), Origin::File, now);
        changing.reading = Some(Reading { told, number: self.readings.asked, until: now + OPEN_TIMEOUT });
        Ok(changing)
    }

    /// Applies what has been read.
    pub(super) fn advance_reading(&mut self, changing: &mut Changing, now: Duration) {
        let Some(reading) = changing.reading.take() else { return };
        let refused = match reading.told.try_recv() {
            Ok(Ok((config, _))) if self.empties(&config) => EMPTIES.to_owned(),
            Ok(Ok((config, keys))) if self.readings.applied < reading.number => {
                self.readings.applied = reading.number;
                *changing = self.apply_file(&config, keys);
                return;
            }
            Ok(Ok(_)) => "a file that was asked for later was read first".to_owned(),
            Ok(Err(error)) => format!("{error:#}"),
            Err(TryRecvError::Empty) if now < reading.until => {
                changing.reading = Some(reading);
                return;
            }
            Err(_) => format!(
                "the configuration or a key that it names cannot be read: its file system has not answered for {} s",
                OPEN_TIMEOUT.as_secs()
            ),
        };
        changing.refused = Some(Fault::refused(refused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Waker;
    use crate::daemon::changing::Asker;
    use crate::sockets::Sockets;

    const TEXT: &str = "[target]\nworkers = 1\nbuffer_memory = \"8MiB\"\n\
        [[listener]]\naddress = \"127.0.0.1:0\"\n\
        [[subsystem]]\nnqn = \"nqn.2026-11.com.example:read\"\nallow_any_host = true\n\
        [[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n";

    /// A named pipe that nobody writes to stands for a file system that does not answer.
    #[test]
    fn configuration_that_cannot_be_read_holds_nothing_and_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let path = folder.path().join(name);
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
            path
        };
        let (first, second) = (pipe("first"), pipe("second"));
        let config = Config::parse(TEXT).unwrap();
        let mut daemon = Daemon::start(config, None, Waker::default(), Sockets::default()).unwrap();
        let mut late = daemon.read(Wanted::File(first.clone())).unwrap();
        late.reading.as_mut().unwrap().until = Duration::ZERO;
        daemon.await_changes(late, Asker::Reload);
        daemon.end_changes();
        assert_eq!(daemon.reload_errors, 1, "it is refused");
        let reading = daemon.read(Wanted::File(second.clone())).unwrap();
        daemon.await_changes(reading, Asker::Reload);
        assert!(daemon.is_changing() && daemon.exports().len() == 1);
        std::fs::write(&first, "").unwrap();
        std::fs::write(&second, format!("{TEXT}[[subsystem.namespace]]\nnsid = 2\nmemory = \"1MiB\"\n"))
            .unwrap();
        daemon.end_changes();
        assert_eq!((daemon.exports().len(), daemon.reload_errors), (2, 0));
        daemon.stop(Duration::ZERO);
    }
}
