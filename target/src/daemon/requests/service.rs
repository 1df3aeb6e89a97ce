//! Connections, the log, and the drain.

use super::Daemon;
use super::change::changed;
use crate::control::protocol::{Answer, Fault};
use crate::control::request::change::{Effect, Item, Outcome};
use crate::control::request::service::{
    Connection, ConnectionsAnswer, ConnectionsClose, Drain, LogLevel, LogLevelAnswer,
};
use crate::daemon::disks::error_text;
use crate::daemon::plan::connection_name;
use crate::log;
use nvmf_subsystem::{Association, TransportType};
use uuid::Uuid;

impl Daemon {
    pub(super) fn on_list(&self) -> Result<Answer, Fault> {
        let now = self.common.clock.now();
        let listener = |port: u16| {
            let of_port = self.listeners.iter().find(|listener| listener.port() == port);
            of_port.map(|listener| listener.address().to_string())
        };
        let associations: Vec<_> = self.registry().associations().cloned().collect();
        let connections = associations.iter().map(|it| Connection {
            name: connection_name(it),
            host_id: Uuid::from_bytes(it.host_id().0).to_string(),
            listener: listener(it.port()),
            transport: if it.transport() == TransportType::TCP { "tcp" } else { "rdma" }.to_owned(),
            tls: it.is_secure(),
            io_queues: it.io_queues(),
            idle_s: now.saturating_sub(it.last_activity()).as_secs(),
            closing: it.is_closing(),
        });
        super::done(&ConnectionsAnswer { connections: connections.collect() })
    }

    pub(super) fn on_close(&mut self, which: &ConnectionsClose) -> Result<Answer, Fault> {
        let ConnectionsClose { subsystem, host, cntlid, all } = which;
        if subsystem.is_none() && host.is_none() && cntlid.is_none() && !all {
            return Err(Fault::refused("name a subsystem, a host or a cntlid, or say all"));
        }
        let is_one = |it: &Association| {
            subsystem.as_ref().is_none_or(|nqn| it.subsystem_nqn().to_string() == *nqn)
                && host.as_ref().is_none_or(|nqn| it.host_nqn().to_string() == *nqn)
                && cntlid.is_none_or(|cntlid| it.key().cntlid.0 == cntlid)
        };
        let item = self.close("close-connections", "connections", is_one);
        if item.connections.is_empty() {
            return Err(Fault::refused("no connection is such a one: see `connections list`"));
        }
        changed(vec![item])
    }

    /// Closes connections, and waits until what they had under way is over.
    fn close(&mut self, change: &str, name: &str, is_one: impl Fn(&Association) -> bool) -> Item {
        let (closed, connections) = {
            let registry = self.registry();
            let those = || registry.associations().filter(|it| is_one(it));
            (those().map(|it| it.key()).collect(), those().map(|it| connection_name(it)).collect())
        };
        self.registry().close(&is_one);
        self.publish();
        let pending: Vec<_> = self.closing(closed).into_iter().map(|pending| (0, pending)).collect();
        let mut items = [Item {
            change: change.to_owned(),
            name: name.to_owned(),
            effect: Effect::ClosesConnections,
            connections,
            note: None,
            outcome: Some(Outcome::Done),
            message: None,
        }];
        self.await_pending(&pending, &mut items);
        let [item] = items;
        item
    }

    pub(super) fn on_log_level(&self, LogLevel { level }: &LogLevel) -> Result<Answer, Fault> {
        let level = log::set_level(level).map_err(Fault::refused)?;
        super::done(&LogLevelAnswer { level })
    }

    pub(super) fn on_drain(&mut self, Drain { end }: &Drain) -> Result<Answer, Fault> {
        if *end {
            self.draining = false;
            self.retry_listeners();
            let down = self.listeners.iter().filter(|listener| !listener.is_up()).count();
            let message = (down > 0).then(|| format!("{down} listener(s) are still down: see `status`"));
            return changed(vec![Item {
                change: "end-drain".to_owned(),
                name: "all listeners".to_owned(),
                effect: Effect::None,
                connections: Vec::new(),
                note: None,
                outcome: Some(if down > 0 { Outcome::Waiting } else { Outcome::Done }),
                message,
            }]);
        }
        self.draining = true;
        self.stop_all_listeners().map_err(|error| Fault::refused(error_text(&error)))?;
        changed(vec![self.close("drain", "all listeners", |_| true)])
    }
}
