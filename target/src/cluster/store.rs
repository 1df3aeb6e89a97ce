//! The actions of the engine that are operations on Ceph. Everything here blocks.

use super::fences;
use core::fmt;
use core::time::Duration;
use nvmf_cluster::action::Keys;
use nvmf_cluster::{Address, BootId, Locker, Object, Reply, Snapshot};
use nvmf_rados::{Cluster, ClusterSpec, Error, LockName, Pool, Renewal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// What the lock of a lease is named.
const LEASE: &str = "lease";
/// How long the groups of a pool are looked for among all its objects.
const FIND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long those who watch an object may take to hear that it has changed.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the group's state is.
#[derive(Debug, Clone)]
pub struct Place {
    /// The cluster, and as whom it is used.
    pub cluster: ClusterSpec,
    /// The pool.
    pub pool: String,
    /// The namespace of the pool.
    pub namespace: Option<String>,
    /// The group's name.
    pub group: String,
}

impl Place {
    fn pool(&self, cluster: &Arc<Cluster>) -> Result<Pool, Error> {
        // A lease is renewed in a full pool as well: that takes no space, and hosts go on reading.
        Pool::open(cluster, &self.pool, self.namespace.as_deref())
    }

    fn name(&self, object: &Object) -> String {
        object.name(&self.group)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the group {} in the pool {}", self.group, self.pool)?;
        self.namespace.iter().try_for_each(|namespace| write!(f, "/{namespace}"))
    }
}

/// The operations. The connection of the control plane is made when it is first needed.
pub(super) struct Store {
    place: Place,
    control: Mutex<Option<Pool>>,
    may_fence: AtomicBool,
    trouble: Trouble,
}

/// Why the cluster cannot be reached, while that is so.
pub(super) type Trouble = Arc<Mutex<Option<String>>>;

impl Store {
    pub(super) fn new(place: Place, trouble: Trouble) -> Self {
        Self { place, control: Mutex::new(None), may_fence: AtomicBool::new(false), trouble }
    }

    /// The pool through the connection of the control plane.
    pub(super) fn control(&self) -> Result<Pool, Error> {
        let mut control = self.locked();
        if let Some(pool) = &*control {
            return Ok(pool.clone());
        }
        // Who cannot open an image, for want of the library, is not to take any.
        let libraries = nvmf_rados::versions();
        let connected = libraries
            .and_then(|_| Cluster::connect(&self.place.cluster))
            .and_then(|cluster| self.may_fence(&cluster).and(self.place.pool(&cluster)));
        self.note(connected.as_ref().err());
        Ok(control.insert(connected?).clone())
    }

    /// Asked once: who could not fence would serve, and could take nothing from who is dead.
    fn may_fence(&self, cluster: &Cluster) -> Result<(), Error> {
        if self.may_fence.load(Ordering::Relaxed) {
            return Ok(());
        }
        let refused = cluster.may_fence().err().filter(Error::is_refused);
        self.may_fence.store(refused.is_none(), Ordering::Relaxed);
        refused.map_or(Ok(()), Err)
    }

    /// Whether it is known why the cluster cannot be reached.
    pub(super) fn is_in_trouble(&self) -> bool {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Logs each reason once.
    fn note(&self, error: Option<&Error>) {
        let text = error.map(ToString::to_string);
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = text.as_ref().filter(|text| trouble.as_ref() != Some(text)) {
            tracing::error!("the group's pool cannot be had: {text}; it is tried again");
        }
        *trouble = text;
    }

    /// What stands there is whole between two statements.
    fn locked(&self) -> MutexGuard<'_, Option<Pool>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool through that connection; `None`: the control plane's.
    fn through(&self, cluster: Option<&Arc<Cluster>>) -> Result<Pool, Error> {
        cluster.map_or_else(|| self.control(), |cluster| self.place.pool(cluster))
    }

    pub(super) fn reconnect(&self) -> Reply {
        let old = self.locked().take();
        // Watches may hold it for a while.
        drop(old);
        replied(self.control().map(|_| Reply::Done))
    }

    pub(super) fn read(&self, cluster: Option<&Arc<Cluster>>, object: &Object, unless: Option<u64>) -> Reply {
        let read = self.through(cluster).and_then(|pool| pool.keys(&self.place.name(object), unless));
        replied(read.map(|read| match read {
            Some(keys) => Reply::Snapshot(Snapshot { version: keys.version, keys: keys.values }),
            None => Reply::Unchanged,
        }))
    }

    pub(super) fn compare_and_set(
        &self,
        cluster: Option<&Arc<Cluster>>,
        object: &Object,
        compare: &Keys,
        set: &Keys,
    ) -> Reply {
        let pool = self.through(cluster);
        let done = pool.and_then(|pool| pool.compare_and_set_all(&self.place.name(object), compare, set));
        replied(done.map(|done| if done { Reply::Done } else { Reply::Conflict }))
    }

    pub(super) fn lock(&self, object: &Object, cookie: &BootId, duration: Duration) -> Reply {
        let lock = LockName { name: LEASE, cookie: &cookie.0, description: "a gateway's lease" };
        let name = self.place.name(object);
        let locked = self.control().and_then(|pool| {
            if pool.lock(&name, lock, duration, Renewal::May)? {
                return Ok(Reply::Done);
            }
            holder(&pool, &name)
        });
        if locked.as_ref().is_err_and(|error| error.errno() == Some(nix::libc::ENOENT)) {
            // A lock makes its object, so the pool is gone. One of its name that is made anew is found by its name only.
            drop(self.locked().take());
        }
        if let Some(error) = locked.as_ref().err().filter(|error| error.is_refused())
            && self.locked().as_ref().is_some_and(|pool| pool.cluster().is_to_be_renewed())
        {
            return Reply::Outdated(error.to_string());
        }
        match replied(locked) {
            Reply::Free => Reply::Failed("the lock was free a moment later".to_owned()),
            reply => reply,
        }
    }

    pub(super) fn list_lockers(&self, object: &Object) -> Reply {
        replied(self.control().and_then(|pool| holder(&pool, &self.place.name(object))))
    }

    pub(super) fn unlock(&self, object: &Object, cookie: &BootId) {
        let lock = LockName { name: LEASE, cookie: &cookie.0, description: "" };
        // It expires by itself.
        let _ = self.control().and_then(|pool| pool.unlock(&self.place.name(object), lock));
    }

    pub(super) fn notify(&self, object: &Object) {
        // Who has not heard of it looks a little later.
        let _ = self.control().and_then(|pool| pool.notify(&self.place.name(object), &[], NOTIFY_TIMEOUT));
    }

    pub(super) fn connect(&self) -> Result<Arc<Cluster>, Reply> {
        Cluster::connect(&self.place.cluster).map_err(|error| replied(Err(error)))
    }

    /// The groups that the pool has beside this one, in any of its namespaces, as far as they are found soon.
    pub(super) fn other_groups(&self) -> Vec<String> {
        let is_wanted = |name: &str| group_of(name).is_some();
        // Who may use one namespace only is told of none.
        let found = self.control().and_then(|pool| pool.find(is_wanted, FIND_TIMEOUT)).unwrap_or_default();
        let own = (self.place.namespace.clone().unwrap_or_default(), self.object(&Object::Configuration));
        let others = found.into_iter().filter(|it| *it != own);
        let mut others: Vec<String> =
            others.filter_map(|(namespace, name)| Some(named(group_of(&name)?, &namespace))).collect();
        others.sort();
        others
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn object(&self, object: &Object) -> String {
        self.place.name(object)
    }
}

/// Fences an address; `added` hears of each time that the monitors have put it on their list.
pub(super) fn blocklist(cluster: &Cluster, address: &Address, duration: Duration, added: impl Fn()) -> Reply {
    let left = || match cluster.blocklist() {
        Ok(list) => fences::left(&list, address, SystemTime::now()),
        Err(error) => Err(error.to_string()),
    };
    let add = || cluster.blocklist_add(&address.0, duration).inspect(|()| added());
    fences::fence(address, duration, left, add).unwrap_or_else(|error| replied(Err(error)))
}

pub(super) fn wait_for_latest_osdmap(cluster: &Cluster) -> Reply {
    replied(cluster.wait_for_latest_osdmap().map(|()| Reply::Done))
}

/// The group whose configuration is in an object of that name.
fn group_of(object: &str) -> Option<&str> {
    let group = object.strip_prefix("nvmf.")?.strip_suffix(".configuration")?;
    (Object::Configuration.name(group) == object).then_some(group)
}

fn named(group: &str, namespace: &str) -> String {
    match namespace {
        "" => group.to_owned(),
        _ => format!("{group} (in the namespace {namespace})"),
    }
}

fn holder(pool: &Pool, object: &str) -> Result<Reply, Error> {
    let holders = pool.lock_holders(object, LEASE)?.into_iter();
    let mut lockers =
        holders.map(|holder| Locker { cookie: BootId(holder.cookie), address: Address(holder.address) });
    Ok(lockers.next().map_or(Reply::Free, Reply::Held))
}

fn replied(result: Result<Reply, Error>) -> Reply {
    match result {
        Ok(reply) => reply,
        Err(error) if error.is_fenced() => Reply::Blocklisted,
        Err(error) => Reply::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_known_by_its_configuration_and_named_with_its_namespace() {
        for group in ["default", "a.b"] {
            assert_eq!(group_of(&Object::Configuration.name(group)), Some(group));
        }
        for other in ["nvmf.default.map", "rbd_id.configuration", "nvmf.configuration"] {
            assert_eq!(group_of(other), None, "{other}");
        }
        assert_eq!(named("default", ""), "default");
        assert_eq!(named("default", "typo"), "default (in the namespace typo)");
        let place = |namespace: Option<&str>| Place {
            cluster: ClusterSpec { conf: None, user: "nvmf".into(), keyring: None },
            pool: "nvmf".into(),
            namespace: namespace.map(str::to_owned),
            group: "g".into(),
        };
        assert_eq!(place(None).to_string(), "the group g in the pool nvmf");
        assert_eq!(place(Some("typo")).to_string(), "the group g in the pool nvmf/typo");
    }
}
