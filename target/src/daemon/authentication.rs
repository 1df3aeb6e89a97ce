//! In-band authentication (DH-HMAC-CHAP): the keys of hosts, and the threads that compute with them.
//!
//! An exponentiation takes milliseconds, in the largest group some tens of them, and anyone may ask for one. So it is
//! done by few threads, which serve machines in turn: who asks for many delays its own.

use super::reading::ReadKeys;
use super::{Daemon, StartError};
use crate::mailbox::Mailboxes;
use crate::message::{Answered, Origin};
use crate::transport::tcp::TlsPorts;
use nvmf_auth::controller::{Generated, Keys, Task};
use nvmf_auth::{Group, Hash, Names, Secret, SecretError, Terms, system_random};
use nvmf_config::{Config, Host, Target};
use nvmf_subsystem::{Answer, Authentication, Nqn};
use nvmf_tls::{FileError, Psk, read_line};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use thiserror::Error;

/// Threads that compute, at the most.
const THREADS_MAX: usize = 4;

/// A secret that cannot be had.
#[derive(Debug, Error)]
pub enum SecretFault {
    /// Its file.
    #[error(transparent)]
    File(#[from] FileError),
    /// What is in it.
    #[error("{} holds no valid secret of DH-HMAC-CHAP: {cause}", .path.display())]
    Secret {
        /// Which file.
        path: PathBuf,
        /// Why not.
        cause: SecretError,
    },
    /// A name of a credential, but there are none.
    #[error(
        "{} is the name of a systemd credential, but this service was given none: add LoadCredential={}:PATH to the unit, \
         or write an absolute path", .0.display(), .0.display()
    )]
    NoCredentials(PathBuf),
}

/// Reads a secret: from a file that nobody else may read, or the systemd credential of a name without a folder.
///
/// # Errors
/// [`SecretFault`].
pub(crate) fn read_secret(path: &Path) -> Result<Secret, SecretFault> {
    let line = if path.is_absolute() {
        read_line(path, true)?
    } else {
        let folder = std::env::var_os("CREDENTIALS_DIRECTORY");
        let folder = folder.ok_or_else(|| SecretFault::NoCredentials(path.to_owned()))?;
        // systemd protects the folder; its access lists show as permissions of the group.
        read_line(&Path::new(&folder).join(path), false)?
    };
    Secret::parse(&line).map_err(|cause| SecretFault::Secret { path: path.to_owned(), cause })
}

/// The keys of all hosts that must authenticate. Shared with the threads that compute.
#[derive(Debug, Default)]
pub(super) struct HostKeys(RwLock<BTreeMap<Nqn, Keys>>);

impl HostKeys {
    fn set(&self, keys: BTreeMap<Nqn, Keys>) -> BTreeMap<Nqn, Keys> {
        std::mem::replace(&mut self.0.write().unwrap_or_else(PoisonError::into_inner), keys)
    }

    /// Whether the host has these keys now.
    fn has(&self, host: &Nqn, keys: Option<&Keys>) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(host) == keys
    }

    /// All keys, with another one of this host.
    pub(super) fn with(&self, host: Nqn, controller: bool, secret: Secret) -> BTreeMap<Nqn, Keys> {
        let mut all = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        let keys = all.entry(host).or_insert(Keys { host: None, controller: None });
        *(if controller { &mut keys.controller } else { &mut keys.host }) = Some(secret);
        all
    }

    fn of(&self, names: &Names) -> Option<Keys> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&names.host).cloned()
    }
}

/// What cannot be had of a host's keys.
#[derive(Debug)]
pub(super) struct KeyFault {
    host: Nqn,
    fault: SecretFault,
}

impl KeyFault {
    fn log(&self) {
        tracing::error!("host {} cannot authenticate and is refused: {}", self.host, self.fault);
    }

    /// Which host, and what is to be said of it.
    pub(super) fn said(&self) -> (Nqn, String) {
        (self.host, format!("it cannot authenticate and is refused: {}", self.fault))
    }
}

/// Which hosts must authenticate. One whose key cannot be had must as well, and cannot.
fn policy(target: &Target, hosts: &[Host], shared: &[Nqn]) -> Authentication {
    let hashes: Vec<Hash> = target.dhchap_hashes.iter().filter_map(|&id| Hash::of_id(id)).collect();
    let groups: Vec<Group> = target.dhchap_groups.iter().filter_map(|&id| Group::of_id(id)).collect();
    let terms = Terms::new(&hashes, &groups).expect("a configuration names one of each");
    let concatenate = hosts.iter().filter(|host| host.require_concat).map(|host| host.nqn).collect();
    let hosts = hosts.iter().filter(|host| host.dhchap_key_file.is_some()).map(|host| host.nqn);
    Authentication {
        hosts: hosts.chain(shared.iter().copied()).map(|nqn| (nqn, terms)).collect(),
        concatenate,
        discovery: target.dhchap_discovery,
    }
}

pub(super) fn read_keys(hosts: &[Host]) -> (BTreeMap<Nqn, Keys>, Vec<KeyFault>) {
    let (mut keys, mut faults) = (BTreeMap::new(), Vec::new());
    for host in hosts {
        let Some(path) = &host.dhchap_key_file else { continue };
        let mut read = |path: &PathBuf| {
            read_secret(path).map_err(|fault| faults.push(KeyFault { host: host.nqn, fault })).ok()
        };
        let own = read(path);
        let controller = host.dhchap_ctrl_key_file.as_ref().and_then(&mut read);
        keys.insert(host.nqn, Keys { host: own, controller });
    }
    (keys, faults)
}

/// The keys, and who must authenticate. What cannot be had is logged; with `strict`, nothing may be missing.
pub(super) fn start(config: &Config) -> Result<(Arc<HostKeys>, Authentication), StartError> {
    let (keys, faults) = read_keys(&config.hosts);
    for fault in faults {
        if config.target.strict {
            return Err(StartError::Secret { host: fault.host.to_string(), source: fault.fault });
        }
        fault.log();
    }
    let host_keys = HostKeys::default();
    host_keys.set(keys);
    Ok((Arc::new(host_keys), policy(&config.target, &config.hosts, &[])))
}

impl Daemon {
    /// Uses these keys: for authentications that come from now on. A host that has lost its key, or has been given
    /// one that it never proved, loses its associations. Returns what cannot be had, of which host.
    pub(super) fn set_secrets(
        &mut self,
        (keys, faults): (BTreeMap<Nqn, Keys>, Vec<KeyFault>),
    ) -> Vec<(Nqn, String)> {
        faults.iter().for_each(KeyFault::log);
        let last = self.common.host_keys.set(keys);
        // A key for TLS is worth no more than the secret that it came from.
        self.common.tls.retain_generated(|host| self.common.host_keys.has(host, last.get(host)));
        // Hashes and groups change with [target], at the next restart.
        let shared = self.hosts_with_shared_keys();
        self.registry().set_authentication(policy(&self.config.target, &self.config.hosts, &shared));
        self.publish();
        faults.iter().map(KeyFault::said).collect()
    }

    /// Takes over the `[[host]]` sections that are asked for, with the keys that were read for them. Returns what cannot be
    /// had, of which host.
    pub(super) fn set_hosts_with_keys(&mut self, hosts: &[Host], keys: ReadKeys) -> Vec<(Nqn, String)> {
        self.config.hosts = hosts.to_vec();
        let mut faults = keys.tls.map(|keys| self.set_tls_keys(keys)).unwrap_or_default();
        faults.extend(self.set_secrets(keys.secrets));
        faults
    }
}

/// The threads that compute.
pub(super) struct Pool {
    waiting: Mutex<Waiting>,
    wake: Condvar,
    /// Where keys for TLS go that authentications make.
    tls: Arc<TlsPorts>,
}

struct Job {
    origin: Origin,
    names: Names,
    task: Task,
}

/// What waits to be computed. A queue of a host has one at a time, so there are no more than connections.
#[derive(Default)]
struct Waiting {
    /// By machine, the next one first.
    machines: VecDeque<(IpAddr, VecDeque<Job>)>,
    /// Whose work is under way.
    running: Vec<IpAddr>,
    closed: bool,
}

impl Waiting {
    fn push(&mut self, machine: IpAddr, job: Job) {
        match self.machines.iter_mut().find(|(other, _)| *other == machine) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.machines.push_back((machine, VecDeque::from([job]))),
        }
    }

    /// The next job: of the machine whose turn it is. One machine never has all threads.
    fn take(&mut self, threads: usize) -> Option<(IpAddr, Job)> {
        let most = threads.saturating_sub(1).max(1);
        let under_way = |machine| self.running.iter().filter(|&&other| other == machine).count();
        let at = self.machines.iter().position(|(machine, _)| under_way(*machine) < most)?;
        let (machine, mut jobs) = self.machines.remove(at)?;
        let job = jobs.pop_front()?;
        if !jobs.is_empty() {
            self.machines.push_back((machine, jobs));
        }
        self.running.push(machine);
        Some((machine, job))
    }
}

impl Pool {
    /// Starts the threads. They end with [`Pool::close`].
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start<D: Send + 'static>(
        keys: &Arc<HostKeys>,
        mailboxes: &Arc<Mailboxes<D>>,
        tls: Arc<TlsPorts>,
    ) -> io::Result<Arc<Self>> {
        let pool = Arc::new(Self { waiting: Mutex::default(), wake: Condvar::new(), tls });
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = cpus.div_ceil(2).min(THREADS_MAX);
        for number in 0..threads {
            let (pool, keys, mailboxes) = (Arc::clone(&pool), Arc::clone(keys), Arc::downgrade(mailboxes));
            let name = format!("auth-{number}");
            std::thread::Builder::new().name(name).spawn(move || pool.run(threads, &keys, &mailboxes))?;
        }
        Ok(pool)
    }

    /// Takes a task.
    pub(super) fn push(&self, machine: IpAddr, names: Names, task: Task, origin: Origin) {
        self.waiting().push(machine, Job { origin, names, task });
        self.wake.notify_one();
    }

    /// Ends the threads.
    pub(super) fn close(&self) {
        self.waiting().closed = true;
        self.wake.notify_all();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a key for TLS known before the host hears of it.
    fn keep(&self, names: &Names, generated: &Generated) {
        match Psk::generated(generated.key.bytes(), &names.host, &names.subsystem) {
            Ok(psk) => self.tls.insert_generated(names.host, names.subsystem, psk, generated.replaces),
            Err(error) => tracing::error!("host {} cannot have a key for TLS: {error}", names.host),
        }
    }

    fn run<D>(&self, threads: usize, keys: &HostKeys, mailboxes: &Weak<Mailboxes<D>>) {
        let mut waiting = self.waiting();
        while !waiting.closed {
            let Some((machine, Job { origin, names, task })) = waiting.take(threads) else {
                waiting = self.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(waiting);
            let own = keys.of(&names);
            let computed = task.run(own.as_ref(), &mut system_random);
            if let Some(generated) = computed.generated() {
                self.keep(&names, generated);
                // A reload has changed the host's secret meanwhile.
                if !keys.has(&names.host, own.as_ref()) {
                    self.tls.retain_generated(|host| *host != names.host);
                }
            }
            if let Some(mailboxes) = mailboxes.upgrade() {
                let answer = Answer::Authenticate(computed);
                let Origin { worker, place, serial } = origin;
                mailboxes.answer(worker, Answered { place, serial, answer });
            }
            waiting = self.waiting();
            if let Some(at) = waiting.running.iter().position(|&other| other == machine) {
                waiting.running.swap_remove(at);
            }
            // A thread that passed this machine over may go on.
            self.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::place::Place;
    use crate::message::WorkerId;
    use nvmf_auth::controller::Controller;
    use nvmf_auth::host::{Host, Next};

    fn names() -> Names {
        Names { host: "nqn.host".parse().unwrap(), subsystem: "nqn.disk".parse().unwrap() }
    }

    fn job(number: u64) -> Job {
        let terms = Terms::default();
        let Next::Send(message) = Host::start(names(), terms, 1).1 else { panic!("no message") };
        let task = Controller::new(names(), terms).on_message(&message).unwrap();
        let origin = Origin { worker: WorkerId(0), place: Place::new(0, 0, 0), serial: number };
        Job { origin, names: names(), task }
    }

    #[test]
    fn machines_take_turns_and_none_has_all_threads() {
        let mut waiting = Waiting::default();
        let machine = |last| IpAddr::from([192, 0, 2, last]);
        for number in 0..10 {
            waiting.push(machine(1), job(number));
        }
        waiting.push(machine(2), job(100));
        let take = |waiting: &mut Waiting| waiting.take(2).map(|(machine, job)| (machine, job.origin.serial));
        assert_eq!(take(&mut waiting), Some((machine(1), 0)));
        assert_eq!(take(&mut waiting), Some((machine(2), 100)));
        assert_eq!(take(&mut waiting), None, "one of two threads is for others");
        waiting.running.clear();
        waiting.push(machine(3), job(200));
        assert_eq!(take(&mut waiting), Some((machine(1), 1)));
        waiting.running.clear();
        assert_eq!(take(&mut waiting), Some((machine(3), 200)), "before the next of the first");
    }

    #[test]
    fn name_without_a_folder_is_a_credential() {
        let error = read_secret(Path::new("no-such-credential")).unwrap_err().to_string();
        assert!(error.contains("LoadCredential=no-such-credential"), "{error}");
    }
}
