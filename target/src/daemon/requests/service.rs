//! Connections, the log, and the drain.

use super::{Daemon, Reply};
use crate::control::protocol::Fault;
use crate::control::request::change::{Effect, Item, Outcome};
use crate::control::request::service::{
    Connection, ConnectionsAnswer, ConnectionsClose, Drain, LogLevel, LogLevelAnswer,
};
use crate::daemon::apply::Origin;
use crate::daemon::changing::Changing;
use crate::daemon::disks::error_text;
use crate::daemon::plan::connection_name;
use crate::log;
use nvmf_subsystem::{Association, TransportType};
use uuid::Uuid;

impl Daemon {
    pub(super) fn on_list(&self) -> Result<Reply, Fault> {
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

    pub(super) fn on_close(&mut self, which: &ConnectionsClose) -> Result<Reply, Fault> {
        let ConnectionsClose { subsystem, host, cntlid, all } = which;
        if subsystem.is_none() && host.is_none() && cntlid.is_none() && !all {
            return Err(Fault::refused("name a subsystem, a host or a cntlid, or say all"));
        }
        let is_one = |it: &Association| {
            subsystem.as_ref().is_none_or(|nqn| it.subsystem_nqn().to_string() == *nqn)
                && host.as_ref().is_none_or(|nqn| it.host_nqn().to_string() == *nqn)
                && cntlid.is_none_or(|cntlid| it.key().cntlid.0 == cntlid)
        };
        let parts = [
            subsystem.as_ref().map(|nqn| format!("subsystem {nqn}")),
            host.as_ref().map(|nqn| format!("host {nqn}")),
            cntlid.map(|cntlid| format!("controller {cntlid}")),
        ];
        let named = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let name = if named.is_empty() { "all" } else { &named };
        let changing = self.close("close-connections", name, is_one);
        if changing.items.iter().all(|item| item.connections.is_empty()) {
            return Err(Fault::refused("no connection is such a one: see `connections list`"));
        }
        Ok(changing.into())
    }

    /// Closes connections. The change is over when what they had under way is.
    pub(in crate::daemon) fn close(
        &mut self,
        change: &str,
        name: &str,
        is_one: impl Fn(&Association) -> bool,
    ) -> Changing {
        let (closed, connections) = {
            let registry = self.registry();
            let those = || registry.associations().filter(|it| is_one(it));
            (those().map(|it| it.key()).collect(), those().map(|it| connection_name(it)).collect())
        };
        self.registry().close(&is_one);
        self.publish();
        let item = Item { effect: Effect::ClosesConnections, connections, ..Item::done(change, name) };
        let mut changing = Changing::new(vec![item], Origin::Command, self.common.clock.now());
        changing.wait_for(0, self.closing(closed));
        changing
    }

    pub(super) fn on_log_level(&self, LogLevel { level }: &LogLevel) -> Result<Reply, Fault> {
        let level = log::set_level(level).map_err(Fault::refused)?;
        super::done(&LogLevelAnswer { level })
    }

    pub(super) fn on_drain(&mut self, Drain { end }: &Drain) -> Result<Reply, Fault> {
        if *end {
            self.draining = false;
            self.end_drain_of_group();
            self.retry_listeners();
            let down = self.listeners.iter().filter(|listener| !listener.is_up()).count();
            let message = (down > 0).then(|| format!("{down} listener(s) are still down: see `status`"));
            let outcome = Some(if down > 0 { Outcome::Waiting } else { Outcome::Done });
            let item = Item { outcome, message, ..Item::done("end-drain", "all listeners") };
            return Ok(Changing::new(vec![item], Origin::Command, self.common.clock.now()).into());
        }
        // Hosts have another way before this one ends.
        if let Some(changing) = self.begin_to_drain_gateway()? {
            return Ok(changing.into());
        }
        let mut changing = self.end_listening()?;
        for item in changing.items.iter_mut().filter(|_| self.cluster.is_some()) {
            item.message =
                Some("no other gateway is in the group: hosts reach nothing until `drain --end`".into());
        }
        Ok(changing.into())
    }

    /// Listens nowhere, and closes all connections.
    pub(in crate::daemon) fn end_listening(&mut self) -> Result<Changing, Fault> {
        if let Err(error) = self.stop_all_listeners() {
            // Half a drain is none.
            self.end_drain_of_group();
            self.retry_listeners();
            return Err(Fault::refused(error_text(&error)));
        }
        self.draining = true;
        Ok(self.close("drain", "all listeners", |_| true))
    }
}
