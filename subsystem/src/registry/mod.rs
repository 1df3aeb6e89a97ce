//! The control path: subsystems, ports, access, associations.

mod associations;
mod connect;
mod definitions;
mod discovery;
mod reservations;
mod resets;

use crate::discovery::{DiscoveryView, Port, Referral};
use crate::namespace::NamespaceTable;
use crate::subsystem::Identity;
use crate::{
    AnaState, AnaTable, Association, Authentication, Counters, DefinitionError, HealthTable, HostAccess,
    NamespaceDefinition, Notice, Nqn, Nsid, Options, OptionsError, Qid, SubsystemChange, SubsystemDefinition,
    SubsystemId,
};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use associations::Associations;
use core::ops::RangeInclusive;
use core::time::Duration;

/// The discovery subsystem.
const DISCOVERY: SubsystemId = SubsystemId(0);

/// Everything that the target serves, and every association. One for the whole target, under one lock, which is taken
/// for a Connect, the end of a queue and a change of the configuration, and for nothing else.
///
/// A change leaves [`Notice`]s: take them with [`Registry::take_notices`] and deliver each to every worker, in order.
#[derive(Debug)]
pub struct Registry {
    options: Arc<Options>,
    subsystems: BTreeMap<Nqn, Subsystem>,
    /// The last that was given out.
    last_id: SubsystemId,
    /// `None` until [`Registry::set_ports`]: a target may listen before it knows the ports that its system chose.
    ports: Option<Vec<Arc<Port>>>,
    /// Ports of other targets that serve the same subsystems.
    elsewhere: Vec<Arc<Port>>,
    /// The Controller IDs that are given out; `None`: none is now.
    cntlids: Option<RangeInclusive<u16>>,
    /// New associations are admitted until then; `None`: without end.
    admits_until: Option<Duration>,
    /// Of every subsystem, and of those that are gone but for a few connections.
    associations: BTreeMap<SubsystemId, Associations>,
    /// In which state ANA groups are behind the ports.
    ana: Arc<AnaTable>,
    discovery: Arc<DiscoveryView>,
    /// With its own NQN, or the well-known one.
    discovery_identity: Arc<Identity>,
    referrals: Vec<Referral>,
    authentication: Authentication,
    notices: Vec<Notice>,
    /// What is known of the devices.
    health: Arc<HealthTable>,
    /// How many associations there have been.
    instances: u64,
}

/// A subsystem that is served.
#[derive(Debug)]
struct Subsystem {
    id: SubsystemId,
    identity: Arc<Identity>,
    hosts: Arc<HostAccess>,
    namespaces: Arc<NamespaceTable>,
    counters: Arc<Counters>,
}

impl Registry {
    /// A registry without subsystems and ports. Until [`Registry::set_ports`] every Connect is answered Controller
    /// Busy, which hosts retry.
    ///
    /// # Errors
    /// The first option outside its bounds.
    pub fn new(options: Options) -> Result<Self, OptionsError> {
        options.validate()?;
        let generation = options.discovery_generation;
        Ok(Self {
            ana: Arc::new(AnaTable::new(options.ana_unset)),
            elsewhere: Vec::new(),
            cntlids: Some(options.cntlids.clone()),
            admits_until: None,
            options: Arc::new(options),
            subsystems: BTreeMap::new(),
            last_id: DISCOVERY,
            ports: None,
            associations: BTreeMap::new(),
            discovery: Arc::new(DiscoveryView::empty(generation)),
            discovery_identity: discovery::identity(Nqn::DISCOVERY),
            referrals: Vec::new(),
            authentication: Authentication::default(),
            notices: Vec::new(),
            health: Arc::default(),
            instances: 0,
        })
    }

    /// What its controllers serve.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Adds a subsystem, reachable at once on the ports that serve it.
    ///
    /// # Errors
    /// What is wrong with the definition.
    pub fn add_subsystem(&mut self, definition: SubsystemDefinition) -> Result<(), DefinitionError> {
        let nqn = definition.nqn;
        if self.is_discovery(&nqn) || self.subsystems.contains_key(&nqn) {
            return Err(DefinitionError::Duplicate(nqn));
        }
        definitions::check_subsystem(&definition, self.subsystems.len(), &self.options)?;
        self.last_id.0 += 1;
        let id = self.last_id;
        let SubsystemDefinition { serial, model, hosts, namespaces, .. } = definition;
        let subsystem = Subsystem {
            id,
            identity: Arc::new(Identity { nqn, serial, model }),
            hosts: Arc::new(hosts),
            namespaces: Arc::new(NamespaceTable::new(id, namespaces, Arc::clone(&self.ana))),
            counters: Arc::default(),
        };
        self.subsystems.insert(nqn, subsystem);
        self.publish_discovery();
        Ok(())
    }

    /// Removes a subsystem: its associations close ([`Notice::Closing`]).
    ///
    /// # Errors
    /// [`DefinitionError::Unknown`].
    pub fn remove_subsystem(&mut self, nqn: &Nqn) -> Result<(), DefinitionError> {
        let subsystem = self.subsystems.remove(nqn).ok_or(DefinitionError::Unknown(*nqn))?;
        self.close_associations(subsystem.id, |_| true);
        self.publish_discovery();
        Ok(())
    }

    /// Changes a subsystem: everything that `change` names, or nothing. Associations of hosts that may no longer
    /// connect close ([`Notice::Closing`]). The other hosts get an event for namespaces that were added, removed or
    /// changed.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing was changed.
    pub fn change_subsystem(&mut self, nqn: &Nqn, change: SubsystemChange) -> Result<(), DefinitionError> {
        let SubsystemChange { hosts, namespaces } = change;
        let subsystem = self.subsystems.get_mut(nqn).ok_or(DefinitionError::Unknown(*nqn))?;
        // Every check comes before the first change.
        hosts.as_ref().map_or(Ok(()), definitions::check_hosts)?;
        if let Some(namespaces) = &namespaces {
            definitions::check_namespaces(nqn, namespaces, &self.options)?;
        }
        if let Some(new) = namespaces.and_then(|namespaces| subsystem.namespaces.replaced_by(namespaces)) {
            subsystem.namespaces = Arc::new(new);
            self.notices.push(Notice::Namespaces(Arc::clone(&subsystem.namespaces)));
        }
        if let Some(hosts) = hosts {
            subsystem.hosts = Arc::new(hosts);
            let (id, hosts) = (subsystem.id, Arc::clone(&subsystem.hosts));
            self.close_associations(id, |association| !hosts.allows(&association.host_nqn));
            self.publish_discovery();
        }
        Ok(())
    }

    /// Replaces who may connect.
    ///
    /// # Errors
    /// As [`Registry::change_subsystem`].
    pub fn set_hosts(&mut self, nqn: &Nqn, hosts: HostAccess) -> Result<(), DefinitionError> {
        self.change_subsystem(nqn, SubsystemChange { hosts: Some(hosts), namespaces: None })
    }

    /// Replaces all namespaces of a subsystem.
    ///
    /// # Errors
    /// As [`Registry::change_subsystem`].
    pub fn set_namespaces(
        &mut self,
        nqn: &Nqn,
        namespaces: Vec<NamespaceDefinition>,
    ) -> Result<(), DefinitionError> {
        self.change_subsystem(nqn, SubsystemChange { hosts: None, namespaces: Some(namespaces) })
    }

    /// Adds one namespace.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing was changed.
    pub fn add_namespace(
        &mut self,
        nqn: &Nqn,
        namespace: NamespaceDefinition,
    ) -> Result<(), DefinitionError> {
        let mut namespaces = self.namespaces_of(nqn)?;
        namespaces.push(namespace);
        self.set_namespaces(nqn, namespaces)
    }

    /// Removes one namespace.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing was changed.
    pub fn remove_namespace(&mut self, nqn: &Nqn, nsid: Nsid) -> Result<(), DefinitionError> {
        let mut namespaces = self.namespaces_of(nqn)?;
        let before = namespaces.len();
        namespaces.retain(|namespace| namespace.nsid != nsid);
        if namespaces.len() == before {
            return Err(DefinitionError::Nsid { nsid, nqn: *nqn });
        }
        self.set_namespaces(nqn, namespaces)
    }

    /// Replaces which hosts must authenticate. Associations close ([`Notice::Closing`]) whose host had to and has no key
    /// any more, and those whose host has to from now on and has not; so do those in the clear whose host must use TLS.
    pub fn set_authentication(&mut self, authentication: Authentication) {
        self.authentication = authentication;
        let Authentication { hosts, concatenate, discovery } = self.authentication.clone();
        let ids: Vec<SubsystemId> = self.associations.keys().copied().collect();
        for id in ids {
            self.close_associations(id, |association| {
                let host = &association.host_nqn;
                association.ends_with(hosts.contains_key(host), discovery, concatenate.contains(host))
            });
        }
    }

    /// Replaces the ports. Associations through a port that was removed, or that no longer serves their subsystem,
    /// stay; new Connects are refused.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing was changed.
    pub fn set_ports(&mut self, ports: Vec<Port>) -> Result<(), DefinitionError> {
        definitions::check_ports(&ports)?;
        self.ports = Some(ports.into_iter().map(Arc::new).collect());
        self.publish_discovery();
        Ok(())
    }

    /// Replaces the ports of other targets that serve the same subsystems: discovery lists them beside the own ones.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing was changed.
    pub fn set_ports_elsewhere(&mut self, ports: Vec<Port>) -> Result<(), DefinitionError> {
        definitions::check_ports(&ports)?;
        self.elsewhere = ports.into_iter().map(Arc::new).collect();
        self.publish_discovery();
        Ok(())
    }

    /// Gives out these Controller IDs from now on. `None`: none, and all associations close ([`Notice::Closing`]).
    pub fn set_controller_ids(&mut self, cntlids: Option<RangeInclusive<u16>>) {
        self.cntlids = cntlids;
        if self.cntlids.is_none() {
            self.close(|_| true);
        }
    }

    /// Admits new associations until then: whoever may not know by then what is to be served admits nobody.
    pub fn admit_until(&mut self, until: Duration) {
        self.admits_until = Some(until);
    }

    /// Sets the state of an ANA group behind a port, for all subsystems. Hosts that see a namespace of the group there get
    /// an event.
    ///
    /// # Errors
    /// [`DefinitionError::AnaGroup`], [`DefinitionError::AnaState`]; nothing was changed.
    pub fn set_ana_state(&mut self, port: u16, group: u32, state: AnaState) -> Result<(), DefinitionError> {
        definitions::check_ana(group, state)?;
        let Some(new) = self.ana.with(port, group, state) else { return Ok(()) };
        self.ana = Arc::new(new);
        for subsystem in self.subsystems.values_mut() {
            subsystem.namespaces = Arc::new(subsystem.namespaces.with_ana(&self.ana));
            self.notices.push(Notice::Namespaces(Arc::clone(&subsystem.namespaces)));
        }
        Ok(())
    }

    /// Replaces what is known of the devices. Hosts that want to hear of critical warnings get an event for new ones.
    pub fn set_health(&mut self, health: HealthTable) {
        if *self.health != health {
            self.health = Arc::new(health);
            self.notices.retain(|notice| !matches!(notice, Notice::Health(_)));
            self.notices.push(Notice::Health(Arc::clone(&self.health)));
        }
    }

    /// In which state ANA groups are behind the ports.
    #[must_use]
    pub fn ana(&self) -> &AnaTable {
        &self.ana
    }

    /// What the changes since the last call mean to queues. Deliver each notice to every worker.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        core::mem::take(&mut self.notices)
    }

    /// Removes an admitted queue whose connection is gone. Call it once for each admitted queue, after the last of its
    /// operations on a device completed. Returns the queues of the association that must be closed as well: its I/O
    /// queues, if this was the Admin queue.
    pub fn close_queue(&mut self, association: &Association, qid: Qid) -> Vec<Qid> {
        let id = association.key.subsystem;
        let Some(associations) = self.associations.get_mut(&id) else { return Vec::new() };
        let others = associations.close_queue(association, qid);
        if associations.is_empty() && !self.subsystems.values().any(|subsystem| subsystem.id == id) {
            self.associations.remove(&id);
        }
        others
    }

    /// Ends associations: their connections close ([`Notice::Closing`]). Their hosts may connect again.
    pub fn close(&mut self, which: impl Fn(&Association) -> bool) {
        let ids: Vec<SubsystemId> = self.associations.keys().copied().collect();
        for id in ids {
            self.close_associations(id, &which);
        }
    }

    /// Every association that has a queue left.
    pub fn associations(&self) -> impl Iterator<Item = &Arc<Association>> {
        self.associations.values().flat_map(Associations::iter)
    }

    /// The namespaces of a subsystem as they are now.
    #[must_use]
    pub fn namespaces(&self, nqn: &Nqn) -> Option<&Arc<NamespaceTable>> {
        self.subsystems.get(nqn).map(|subsystem| &subsystem.namespaces)
    }

    fn namespaces_of(&self, nqn: &Nqn) -> Result<Vec<NamespaceDefinition>, DefinitionError> {
        let table = self.namespaces(nqn).ok_or(DefinitionError::Unknown(*nqn))?;
        Ok(table.iter().cloned().collect())
    }

    fn close_associations(&mut self, id: SubsystemId, which: impl Fn(&Association) -> bool) {
        let mut any = false;
        for association in self.associations.get(&id).into_iter().flat_map(Associations::iter) {
            if which(association) {
                association.close();
                any = true;
            }
        }
        if any {
            self.notices.push(Notice::Closing(id));
        }
    }
}
