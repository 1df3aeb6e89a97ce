//! This gateway as one of a group: the thread that drives the engine (`nvmf_cluster`), and what it says to the control
//! loop, which alone changes what is served.
//!
//! | module | what it holds |
//! |---|---|
//! | `driver` | the thread: replies, hints and the time go to the engine; its actions go to the store or the control loop |
//! | `store` | the actions that are operations on Ceph |
//! | `fences` | until when somebody is fenced, as the monitors say it |
//! | `helpers` | the threads that carry them out, as each of them may wait for as long as Ceph does |
//! | `watches` | the hints: objects of the group that are watched |
//! | `kept` | reservations and write protections, as files in the pool |
//! | `advertised` | how a gateway's record names its listeners |
//!
//! Nothing here waits for Ceph but the helpers, the thread of the lease and that of the watches.

mod advertised;
mod driver;
mod fences;
mod helpers;
mod kept;
mod store;
mod watches;

pub use advertised::Advertised;
pub use driver::{Driver, start};
pub use kept::Kept;
pub(crate) use kept::refusal;
pub use store::Place;

use core::ops::RangeInclusive;
use core::time::Duration;
use nvmf_cluster::configuration::{Change, Condition, Item};
use nvmf_cluster::{
    AnaState, ConnectedHosts, GatewayName, GroupId, Handle, Listens, Object, OpId, Reply, RequestError,
    Status, Unopened,
};
use nvmf_rados::Cluster;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Names a request of the control loop, for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The group's configuration as it was read last.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// Its version.
    pub version: u64,
    /// ANA groups, from 1 on.
    pub ana_groups: u32,
    /// What is to be served.
    pub items: BTreeMap<String, Item>,
    /// Items that cannot be read, each with its reason.
    pub unreadable: Vec<(String, String)>,
}

/// What the control loop is asked to do. What has an [`OpId`] is replied to.
#[derive(Debug)]
pub enum ToDaemon {
    /// Serve this: [`Reply::Converged`].
    Converge(OpId, Box<Shared>),
    /// Open the images of the group on this connection and no other, and give them to the workers.
    OpenImages {
        /// For the reply.
        op: OpId,
        /// The connection's name.
        handle: Handle,
        /// The ANA group.
        group: GroupId,
        /// The connection.
        cluster: Arc<Cluster>,
        /// What is kept of its namespaces, by UUID: reservations, write protections; or why it cannot be read.
        kept: Vec<(String, Result<Value, String>)>,
    },
    /// See whether the images of the group can be opened, read-only, on this connection: [`Reply::Unopened`].
    LookAtImages(OpId, GroupId, Arc<Cluster>),
    /// Show hosts this state.
    SetAna(GroupId, AnaState),
    /// Let what is under way end, then close the images.
    Drain(OpId, Handle),
    /// Give up the connection.
    Shutdown(OpId, Handle, Option<Arc<Cluster>>),
    /// Admit hosts until then, by the clock that goes on while the machine sleeps.
    Admit(Duration),
    /// Why what is stored of the configuration is not used; `None`: it is.
    Refused(Option<String>),
    /// The Controller IDs of new controllers; `None`: no controllers.
    UseControllerIds(Option<RangeInclusive<u16>>),
    /// What came of a request.
    Answer(Ticket, Result<u64, RequestError>),
    /// Where the others listen, by gateway.
    Others(BTreeMap<String, Vec<String>>),
    /// Nothing is owned here any more.
    Stopped,
}

/// What an operator, or a host, asks of the group.
#[derive(Debug)]
pub enum Request {
    /// Changes of the configuration, all or none.
    Edit(Vec<Change>),
    /// The same on a condition.
    EditIf(Vec<Change>, Condition),
    /// An ANA group goes to a gateway.
    Move(GroupId, GatewayName),
    /// A gateway is gone for good.
    Remove(GatewayName),
}

/// What the engine's thread is told.
#[derive(Debug)]
pub enum ToDriver {
    /// The result of an action.
    Reply(OpId, Reply),
    /// An object may have changed.
    Notified(Object),
    /// A connection was made, or was not.
    Connected(OpId, Handle, Result<Arc<Cluster>, Reply>),
    /// A connection is of no use any more.
    Fenced(Handle),
    /// Hosts have no command at an image any more through a connection that is to end.
    Out(OpId),
    /// Somebody asks for something.
    Request(Ticket, Request),
    /// A file is to be kept of a namespace of an ANA group, or no longer.
    Keep {
        /// The ANA group.
        group: GroupId,
        /// The file.
        name: String,
        /// Its text.
        value: Option<Value>,
        /// To be told what came of it.
        tell: Sender<Result<u64, RequestError>>,
    },
    /// The state of the group is wanted.
    Status(Sender<Status>),
    /// What cannot be opened of the groups that are served here, when that has changed.
    Unopened(BTreeMap<GroupId, Unopened>),
    /// Those of which hosts have had an operation at an image for long, when that has changed.
    Slow(BTreeSet<GroupId>),
    /// Where this gateway listens.
    Addresses(Vec<String>),
    /// Whether hosts can connect to this gateway.
    Listens(Listens),
    /// Which hosts are connected.
    Hosts(Option<ConnectedHosts>),
    /// The last version of the configuration that took something away which is still under way here.
    Unfinished(Option<u64>),
    /// Give the groups away, and leave.
    Stop,
    /// Give the groups away and take none, or no longer.
    Drain(bool),
    /// As an error in the engine would have it.
    #[cfg(test)]
    Panic,
}
