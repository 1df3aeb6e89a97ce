//! A gateway of a group.

use super::{ANA_GROUPS_MAX, Checker, Result};
use crate::ConfigError;
use crate::cluster::Cluster;
use crate::file;
use crate::model::{Backing, Config, Listener};
use crate::rbd::Rbd;
use toml::Spanned;

impl Checker<'_> {
    pub(super) fn cluster(
        &self,
        spanned: &Spanned<file::Cluster>,
        listeners: &[Listener],
    ) -> Result<Cluster> {
        let file = spanned.as_ref();
        let is_wildcard = |listener: &Listener| listener.address.ip().is_unspecified();
        if file.addresses.as_ref().is_none_or(Vec::is_empty)
            && !listeners.is_empty()
            && listeners.iter().all(is_wildcard)
        {
            let message = "hosts cannot be told where this gateway is, as its listeners have wildcard addresses only: write \
                           addresses = [\"192.0.2.1:4420\"], with this machine's, into [cluster]";
            return self.error(spanned, message);
        }
        let namespace = file.namespace.as_ref().map(|value| self.rbd_name("namespace", value)).transpose()?;
        let group = self.cluster_name("group", file.group.as_ref())?;
        // A dot ends it in the names of its objects: of two groups in one pool, one would have the other's.
        if let Some(value) = file.group.as_ref().filter(|value| value.as_ref().contains('.')) {
            return self.error(
                value,
                format!("group is \"{}\" but must not have a '.': write '-' instead", value.as_ref()),
            );
        }
        Ok(Cluster {
            pool: self.rbd_name("pool", &file.pool)?,
            namespace,
            group: group.unwrap_or_else(|| Cluster::GROUP.to_owned()),
            name: self.cluster_name("name", file.name.as_ref())?,
            addresses: self.gateway_addresses(file.addresses.as_deref().unwrap_or_default())?,
            conf: self.ceph_file("conf", file.conf.as_ref())?,
            user: self.ceph_user(file.user.as_ref())?,
            keyring: self.ceph_file("keyring", file.keyring.as_ref())?,
            ana_groups: self.number(
                "ana_groups",
                file.ana_groups.as_ref(),
                1..=ANA_GROUPS_MAX,
                Cluster::ANA_GROUPS,
            )?,
        })
    }

    fn cluster_name(&self, key: &str, value: Option<&Spanned<String>>) -> Result<Option<String>> {
        match value {
            Some(value) if !Cluster::is_name(value.as_ref()) => self.error(
                value,
                format!(
                    "{key} is \"{}\" but may have letters, digits, '.', '-' and '_' only, 1 to 64 of them",
                    value.as_ref()
                ),
            ),
            value => Ok(value.map(|value| value.as_ref().clone())),
        }
    }

    fn gateway_addresses(&self, values: &[Spanned<String>]) -> Result<Vec<String>> {
        let address = |value: &Spanned<String>| match value.as_ref().parse::<std::net::SocketAddr>() {
            Ok(_) => Ok(value.as_ref().clone()),
            Err(_) => self.error(
                value,
                format!("\"{}\" is no address with a port: write \"192.0.2.1:4420\"", value.as_ref()),
            ),
        };
        values.iter().map(address).collect()
    }
}

/// The file of a gateway says nothing of what the group serves.
pub(crate) fn check_own_file(text: &str, file: &file::File) -> Result<()> {
    if file.cluster.is_none() {
        return Ok(());
    }
    let fault = |span, what: &str, command: &str| {
        let message = format!("{what} of a [cluster] lies in its pool, for all gateways: {command}");
        Err(ConfigError::at(text, &span, message))
    };
    let apply = "put it into a file without [cluster], and give that to `nvmf-target ctl apply FILE`";
    if let Some(subsystem) = file.subsystem.first() {
        let command = format!("{apply}, or use `nvmf-target ctl subsystem add`");
        return fault(subsystem.span(), "a [[subsystem]]", &command);
    }
    if let Some(host) = file.host.first() {
        let command = "use `nvmf-target ctl host set-key`";
        return fault(host.span(), "a [[host]]", command);
    }
    let file::Discovery { nqn, mdns: _, referral } = &file.discovery;
    if let Some(span) = nqn.as_ref().map(Spanned::span).or(referral.first().map(Spanned::span)) {
        return fault(span, "[discovery]", apply);
    }
    let cntlid = file.target.cntlid_min.as_ref().or(file.target.cntlid_max.as_ref());
    if let Some(value) = cntlid {
        let message = "the gateways of a [cluster] share the Controller IDs by themselves: leave it out";
        return Err(ConfigError::at(text, &value.span(), message));
    }
    if let Some(group) = file.listener.iter().find_map(|listener| listener.as_ref().ana_group.first()) {
        let message = "which gateway serves an ANA group is the [cluster]'s: leave it out, and see \
                       `nvmf-target ctl cluster move`";
        return Err(ConfigError::at(text, &group.span(), message));
    }
    Ok(())
}

/// What the gateways of a group can serve together: images, on connections that can be fenced.
pub(super) fn check_shared(config: &Config) -> Result<()> {
    let namespaces = config.subsystems.iter().flat_map(|it| it.namespaces.iter().map(move |n| (it, n)));
    for (subsystem, namespace) in namespaces.filter(|_| config.cluster.is_some()) {
        let message = match &namespace.backing {
            Backing::Rbd(Rbd { conf: None, keyring: None, user, .. }) if user == Rbd::USER => continue,
            Backing::Rbd(_) => {
                "the gateways of a [cluster] use images as [cluster] says: leave conf, user and keyring out"
            }
            _ => "the gateways of a [cluster] serve images together (rbd): nothing else can be fenced",
        };
        let message = format!("namespace {} of {}: {message}", namespace.nsid, subsystem.nqn);
        return Err(ConfigError::without_file(message));
    }
    Ok(())
}
