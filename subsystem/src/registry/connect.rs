//! Connect: whether a host may have a controller or a queue.

use super::associations::Associations;
use super::{DISCOVERY, Registry};
use crate::association::{AssociationParts, ControllerType};
use crate::authentication::Demand;
use crate::controller::{Content, Controller};
use crate::discovery::Through;
use crate::fabrics::{Admission, Admitted, ConnectRequest, DuplicateHost, Refusal, Role};
use crate::io::Io;
use crate::limits::{ADMIN_QUEUE_ENTRIES_MAX, HOST_CONTROLLERS_SHARE, UNAUTHENTICATED_MAX};
use crate::orphans::Orphans;
use crate::subsystem::Identity;
use crate::timer::keep_alive_ms;
use crate::{
    Association, AssociationKey, Cntlid, Counters, DuplicateHostId, HostId, Link, Nqn, Options, Port,
    PortConcatenation, Qid, SecureChannel, SubsystemId,
};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use nvme_proto::fabrics::connect::Connect;
use nvmf_auth::Concatenation;

/// A Connect, its names read.
struct Names {
    host_nqn: Nqn,
    host_id: HostId,
    subsystem_nqn: Nqn,
    cntlid: Cntlid,
}

impl Names {
    fn is_host_of(&self, association: &Association) -> bool {
        association.host_nqn == self.host_nqn && association.host_id == self.host_id
    }
}

impl Registry {
    /// Admits or refuses a Connect. Pass the answer to [`crate::Queue::on_admission`]; if the connection is gone by
    /// then, an admitted queue must still be reported to [`Registry::close_queue`].
    ///
    /// `silence_counts` is false while the caller may not have read all that hosts have sent, having stood still itself:
    /// then no association ends because it is silent.
    pub fn connect(&mut self, now: Duration, request: &ConnectRequest, silence_counts: bool) -> Admission {
        let (mut duplicate_host_id, mut closed, mut lost) = (None, None, Vec::new());
        let outcome =
            self.admit(now, request, silence_counts, &mut duplicate_host_id, &mut closed, &mut lost);
        Admission { outcome, duplicate_host_id, closed, lost }
    }

    fn admit(
        &mut self,
        now: Duration,
        request: &ConnectRequest,
        silence_counts: bool,
        duplicate: &mut Option<DuplicateHost>,
        closed: &mut Option<AssociationKey>,
        lost: &mut Vec<AssociationKey>,
    ) -> Result<Admitted, Refusal> {
        let (command, link) = (request.command(), request.link);
        if self.ports.is_none() {
            return Err(Refusal::Starting);
        }
        check_command(&command, link, &self.options)?;
        let names = read_names(request)?;
        check_key(link, &names)?;
        if !command.qid.is_admin() {
            return self.admit_io(now, &command, link, &names);
        }
        if names.host_id.is_zero() {
            return Err(Refusal::HostId);
        }
        if names.cntlid != Cntlid::DYNAMIC {
            return Err(Refusal::StaticController(names.cntlid));
        }
        let place = self.place(&names, link)?;
        *duplicate = self.duplicate_host(place.id, &names);
        if place.controller_type == ControllerType::Io {
            self.end_lost(now, place.id, &names, silence_counts, lost)?;
        }
        let last = self.last_association(place.id, &names);
        if let Some(last) = last.as_ref().filter(|last| last.orphans.refuse_connect(now)) {
            return Err(Refusal::Orphans(last.key.cntlid));
        }
        match duplicate {
            Some(duplicate) if self.options.duplicate_host_id == DuplicateHostId::Refuse => {
                Err(Refusal::DuplicateHostId(duplicate.clone()))
            }
            _ => {
                let orphans = last.map(|last| Arc::clone(&last.orphans)).unwrap_or_default();
                match place.controller_type {
                    ControllerType::Discovery => *closed = self.make_room_for_discovery(link.machine),
                    ControllerType::Io => self.check_share(place.id, &names.host_nqn)?,
                }
                if place.authentication.is_some_and(|demand| demand.is_due()) && closed.is_none() {
                    *closed = self.make_room_for_unauthenticated(place.id, link.machine);
                }
                self.admit_admin(now, &command, link, &names, place, orphans)
            }
        }
    }

    /// The subsystem, if this host may have it through this port.
    fn place(&self, names: &Names, link: Link) -> Result<Place, Refusal> {
        let Link { port, local, .. } = link;
        let nqn = names.subsystem_nqn;
        if self.is_discovery(&nqn) {
            if !self.port(port).is_some_and(|port| port.discovery) {
                return Err(Refusal::Subsystem { nqn, port });
            }
            return Ok(Place {
                id: DISCOVERY,
                controller_type: ControllerType::Discovery,
                identity: self.discovery_identity(link),
                content: Content::Discovery(Arc::new(
                    self.discovery.log_for(&names.host_nqn, Through { port, local }),
                )),
                counters: Arc::default(),
                authentication: self.demand(names, link, ControllerType::Discovery)?,
            });
        }
        let served = self.port(port).is_some_and(|port| port.subsystems.contains(&nqn));
        let subsystem =
            self.subsystems.get(&nqn).filter(|_| served).ok_or(Refusal::Subsystem { nqn, port })?;
        if !subsystem.hosts.allows(&names.host_nqn) {
            return Err(Refusal::Host { host: names.host_nqn, subsystem: nqn });
        }
        Ok(Place {
            id: subsystem.id,
            controller_type: ControllerType::Io,
            identity: Arc::clone(&subsystem.identity),
            content: Content::Namespaces(Arc::clone(&subsystem.namespaces)),
            counters: Arc::clone(&subsystem.counters),
            authentication: self.demand(names, link, ControllerType::Io)?,
        })
    }

    fn port(&self, id: u16) -> Option<&Port> {
        self.ports.iter().flatten().find(|port| port.id == id).map(Arc::as_ref)
    }

    /// An association that this host has with the subsystem: all of them share what the host left on the devices.
    fn last_association(&self, subsystem: SubsystemId, names: &Names) -> Option<Arc<Association>> {
        let mut associations = self.associations.get(&subsystem)?.iter();
        associations.find(|association| names.is_host_of(association)).cloned()
    }

    /// Ends the associations that the host has lost, as far as can be known here: those that have been silent for their
    /// Keep Alive Timeout. (A host may have several at a time, one for each path: those that it still has are not
    /// silent.) Refuses the Connect while one that ends has a connection left: what is still on its way there would be
    /// executed after what the host writes next.
    fn end_lost(
        &self,
        now: Duration,
        subsystem: SubsystemId,
        names: &Names,
        silence_counts: bool,
        lost: &mut Vec<AssociationKey>,
    ) -> Result<(), Refusal> {
        let mut ending = None;
        let associations = self.associations.get(&subsystem).into_iter().flat_map(Associations::iter);
        // One whose host has not authenticated has written nothing, and may be anybody's.
        let is_of_host = |it: &&Arc<Association>| names.is_host_of(it) && it.is_authenticated();
        for association in associations.filter(is_of_host) {
            let silent = association.is_silent(now);
            if silent && silence_counts {
                association.close();
            }
            if association.is_closing() && association.has_connections() {
                lost.push(association.key);
            }
            if (silent || association.is_closing()) && association.has_connections() {
                ending = ending.or(Some(association.key.cntlid));
            }
        }
        ending.map_or(Ok(()), |cntlid| Err(Refusal::Ending(cntlid)))
    }

    /// An I/O controller of the subsystem whose host has this NQN and another Host Identifier. Discovery does not
    /// count: anyone may connect there under any name.
    fn duplicate_host(&self, subsystem: SubsystemId, names: &Names) -> Option<DuplicateHost> {
        let mut associations = self.associations.get(&subsystem).filter(|_| subsystem != DISCOVERY)?.iter();
        let known = associations.find(|association| {
            association.host_nqn == names.host_nqn
                && association.host_id != names.host_id
                // Anyone may say to be this host.
                && association.is_authenticated()
        })?;
        Some(DuplicateHost { host_nqn: names.host_nqn, known: known.host_id, new: names.host_id })
    }

    /// Whether the subsystem has a controller left for this host. One host NQN alone does not take them all.
    fn check_share(&self, subsystem: SubsystemId, host_nqn: &Nqn) -> Result<(), Refusal> {
        let max = usize::from(self.options.controllers_max);
        let Some(associations) = self.associations.get(&subsystem) else { return Ok(()) };
        if associations.len() >= max {
            return Err(Refusal::Busy(self.options.controllers_max));
        }
        if 2 * associations.len() <= max {
            return Ok(());
        }
        // Those that are not authenticated may be others'.
        let of_host = |it: &&Arc<Association>| it.host_nqn == *host_nqn && it.is_authenticated();
        let controllers = associations.iter().filter(of_host).count();
        if controllers * HOST_CONTROLLERS_SHARE <= max {
            return Ok(());
        }
        Err(Refusal::HostBusy { host: *host_nqn, controllers, max: self.options.controllers_max })
    }

    /// Where there are as many discovery controllers as there may be, closes one of the machine that has most: of the one
    /// that asks, if no other has more. Of those the one that has been silent for longest; it may still be active, so that
    /// no machine keeps others out. Names say nothing here: anyone may connect under any. Those that are closing do not
    /// count: the transport bounds how many connections they have.
    fn make_room_for_discovery(&self, machine: IpAddr) -> Option<AssociationKey> {
        self.make_room(DISCOVERY, machine, self.options.controllers_max.into(), |_| true)
    }

    /// The same for associations whose host has not authenticated: those of a machine that only begins to do not keep
    /// others out.
    fn make_room_for_unauthenticated(&self, id: SubsystemId, machine: IpAddr) -> Option<AssociationKey> {
        self.make_room(id, machine, UNAUTHENTICATED_MAX, |association| !association.is_authenticated())
    }

    fn make_room(
        &self,
        id: SubsystemId,
        machine: IpAddr,
        max: usize,
        which: impl Fn(&Association) -> bool,
    ) -> Option<AssociationKey> {
        let all = || self.associations.get(&id).into_iter().flat_map(Associations::iter);
        let open = || all().filter(|association| which(association) && !association.is_closing());
        if open().count() < max {
            return None;
        }
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        open().for_each(|association| *counts.entry(association.machine).or_default() += 1);
        let most = counts.values().copied().max();
        let has_most = |of: IpAddr| counts.get(&of).copied() == most;
        let own = has_most(machine);
        let yields = |of: IpAddr| if own { of == machine } else { has_most(of) };
        let candidates = open().filter(|association| yields(association.machine));
        let last = candidates.min_by_key(|association| association.last_activity())?;
        last.close();
        Some(last.key)
    }

    fn admit_admin(
        &mut self,
        now: Duration,
        command: &Connect,
        link: Link,
        names: &Names,
        place: Place,
        orphans: Arc<Orphans>,
    ) -> Result<Admitted, Refusal> {
        let Place { id, controller_type, identity, content, counters, authentication } = place;
        let must_authenticate = authentication.is_some_and(|demand| demand.is_due());
        let in_capsule_len = self.port(link.port).map_or(0, |port| port.in_capsule_len);
        let associations = self.associations.entry(id).or_default();
        let busy = Refusal::Busy(self.options.controllers_max);
        // Discovery is of no disk.
        if id != DISCOVERY && self.admits_until.is_some_and(|until| now >= until) {
            return Err(Refusal::CutOff);
        }
        let range = self.cntlids.clone().ok_or(Refusal::CutOff)?;
        let cntlid = associations.next_cntlid(range).ok_or(busy)?;
        self.instances += 1;
        let parts = AssociationParts {
            instance: self.instances,
            key: AssociationKey { subsystem: id, cntlid },
            controller_type,
            subsystem_nqn: names.subsystem_nqn,
            host_nqn: names.host_nqn,
            host_id: names.host_id,
            port: link.port,
            peer: link.peer.to_canonical(),
            machine: link.machine,
            secure_channel: link.secure_channel,
            transport: link.transport,
            in_capsule_len,
            options: Arc::clone(&self.options),
            counters,
            orphans,
            keep_alive_ms: keep_alive_ms(controller_type, command.kato_ms),
            must_authenticate,
        };
        let association = Arc::new(Association::new(now, parts));
        associations.insert(Arc::clone(&association));
        let mut controller =
            Controller::new(now, Arc::clone(&association), identity, content, Arc::clone(&self.health));
        if must_authenticate {
            controller.await_authentication();
        }
        Ok(Admitted {
            association,
            qid: Qid(0),
            entries: entries(command),
            role: Role::Admin(Box::new(controller)),
            authentication,
        })
    }

    /// How this host has to authenticate on an Admin queue, if it has to or may, and whether a key for TLS comes of it.
    fn demand(
        &self,
        names: &Names,
        link: Link,
        controller_type: ControllerType,
    ) -> Result<Option<Demand>, Refusal> {
        let (host, is_io) = (names.host_nqn, controller_type == ControllerType::Io);
        let terms = self.authentication.hosts.get(&host).filter(|_| is_io || self.authentication.discovery);
        let concatenation = match link.secure_channel {
            Some(SecureChannel { generated: Some(key), .. }) => Concatenation::Replace { key },
            Some(_) => Concatenation::No,
            None => {
                let of_port = self.port(link.port).map_or(PortConcatenation::No, |port| port.concatenation);
                let of_host = self.authentication.concatenate.contains(&host);
                let required = is_io && (of_host || of_port == PortConcatenation::Required);
                match (of_port, terms) {
                    (PortConcatenation::No, _) | (_, None) if required => {
                        return Err(Refusal::Clear { host });
                    }
                    (PortConcatenation::No, _) => Concatenation::No,
                    _ => Concatenation::New { required },
                }
            }
        };
        Ok(terms.map(|&terms| Demand { terms, concatenation }))
    }

    fn admit_io(
        &mut self,
        now: Duration,
        command: &Connect,
        link: Link,
        names: &Names,
    ) -> Result<Admitted, Refusal> {
        let (qid, cntlid) = (command.qid, names.cntlid);
        let terms = self.authentication.hosts.get(&names.host_nqn).copied();
        let nqn = names.subsystem_nqn;
        if self.is_discovery(&nqn) {
            return Err(Refusal::QueueId { qid, max: 0 });
        }
        let subsystem = self.subsystems.get(&nqn).ok_or(Refusal::Subsystem { nqn, port: link.port })?;
        let unknown = Refusal::Controller(cntlid);
        // Older hosts send 0 as the Controller ID of the connection request.
        if link.cntlid.is_some_and(|of_link| of_link != 0 && of_link != cntlid.0) {
            return Err(unknown);
        }
        let associations = self.associations.get_mut(&subsystem.id);
        let Some(associations) = associations else { return Err(unknown) };
        let same_host = |association: &&Arc<Association>| {
            association.host_nqn == names.host_nqn && !association.is_closing()
        };
        let association = associations.get(cntlid).filter(same_host).cloned().ok_or(unknown)?;
        if !names.host_id.is_zero() && names.host_id != association.host_id {
            return Err(Refusal::OtherHostId(cntlid));
        }
        if link.peer.to_canonical() != association.peer {
            return Err(Refusal::OtherAddress(cntlid));
        }
        // Whoever reads the unprotected network could read what goes over this queue, or be its host.
        let joins = match (link.secure_channel, association.secure_channel) {
            (Some(own), Some(of_admin)) => own.joins(of_admin),
            (own, of_admin) => own == of_admin,
        };
        if !joins {
            return Err(Refusal::OtherChannel(cntlid));
        }
        if link.port != association.port {
            return Err(Refusal::OtherPort { cntlid, port: link.port });
        }
        let max = association.io_queues_granted();
        if qid.0 > max {
            return Err(Refusal::QueueId { qid, max });
        }
        if !associations.connect_queue(cntlid, qid) {
            return Err(Refusal::QueueInUse(qid));
        }
        // Counted first, then looked whether the controller is enabled: a reset on another worker either is seen here,
        // or sees the queue and waits for it.
        association.on_io_queue_connected();
        association.touch(now);
        let epoch = association.epoch();
        if !association.is_enabled() {
            associations.close_queue(&association, qid);
            return Err(Refusal::NotEnabled(cntlid));
        }
        association.on_connection();
        let io = Io::new(Arc::clone(&association), Arc::clone(&subsystem.namespaces));
        let authentication = association
            .must_authenticate()
            .then(|| Demand { terms: terms.unwrap_or_default(), concatenation: Concatenation::No });
        Ok(Admitted {
            association,
            qid,
            entries: entries(command),
            role: Role::Io { io, epoch },
            authentication,
        })
    }
}

/// What a Connect of an Admin queue asks for, and the host may have.
struct Place {
    id: SubsystemId,
    controller_type: ControllerType,
    identity: Arc<Identity>,
    content: Content,
    counters: Arc<Counters>,
    authentication: Option<Demand>,
}

fn entries(command: &Connect) -> u16 {
    command.sqsize_z.checked_add(1).expect("SQSIZE was checked")
}

fn check_command(command: &Connect, link: Link, options: &Options) -> Result<(), Refusal> {
    let qid = command.qid;
    if command.recfmt != 0 {
        return Err(Refusal::Format(command.recfmt));
    }
    if let Some(connection) = link.qid.map(Qid).filter(|&of_link| of_link != qid) {
        return Err(Refusal::QueueMismatch { connect: qid, connection });
    }
    let entries_max = if qid.is_admin() { ADMIN_QUEUE_ENTRIES_MAX } else { options.queue_entries_max };
    let max_z = entries_max.min(link.entries).saturating_sub(1);
    if !(1..=max_z).contains(&command.sqsize_z) {
        return Err(Refusal::QueueSize { qid, sqsize_z: command.sqsize_z, max_z });
    }
    Ok(())
}

/// Whoever has a key is the host that the key is of.
fn check_key(link: Link, names: &Names) -> Result<(), Refusal> {
    let (host, subsystem) = (names.host_nqn, names.subsystem_nqn);
    match link.secure_channel {
        Some(key) if (key.host_nqn, key.subsystem_nqn) != (host, subsystem) => {
            Err(Refusal::OtherKey { host, subsystem, key: Box::new(key) })
        }
        _ => Ok(()),
    }
}

fn read_names(request: &ConnectRequest) -> Result<Names, Refusal> {
    let data = &request.data;
    Ok(Names {
        host_nqn: Nqn::from_field(&data.hostnqn).map_err(|_| Refusal::HostNqn)?,
        host_id: data.hostid(),
        subsystem_nqn: Nqn::from_field(&data.subnqn).map_err(|_| Refusal::SubsystemNqn)?,
        cntlid: data.cntlid(),
    })
}
