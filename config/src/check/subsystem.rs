//! What is exported, and to whom.

use super::{ANA_GROUPS_MAX, Checker, HOSTS_MAX, MODEL, NSID_MAX, Result, is_device_folder, narrow};
use crate::file;
use crate::identity;
use crate::model::{Backing, GROUP_KEYS, Host, Hosts, Namespace, Subsystem};
use crate::rbd::Rbd;
use nvme_proto::nqn::Nqn;
use std::path::PathBuf;
use toml::Spanned;
use uuid::Uuid;

/// The prefix of names that are made from a UUID. The rest of its domain belongs to the NVM Express organisation.
const UUID_FORM: &str = "nqn.2014-08.org.nvmexpress:uuid:";
const HOST_EXAMPLE: &str =
    "the name of a host, as `nvmf show-hostnqn` prints there: nqn.2014-08.org.nvmexpress:uuid:...";
const NQN_EXAMPLE: &str = "a name such as \"nqn.2026-11.com.example:disk1\"";

impl Checker<'_> {
    pub(super) fn subsystem(&self, spanned: &Spanned<file::Subsystem>) -> Result<Subsystem> {
        let file = spanned.as_ref();
        let nqn = self.nqn("nqn", &file.nqn)?;
        if nqn == Nqn::DISCOVERY {
            return self.error(
                &file.nqn,
                "this NQN is the discovery service's, which every listener has anyway: choose another",
            );
        }
        self.own_name(&file.nqn)?;
        let namespaces = file.namespace.iter().map(|n| self.namespace(n)).collect::<Result<Vec<_>>>()?;
        self.unique(
            "nsid",
            file.namespace.iter().map(|n| (n.as_ref().nsid.span(), *n.as_ref().nsid.as_ref())),
        )?;
        Ok(Subsystem {
            serial: self.ascii("serial", file.serial.as_ref(), 20)?.unwrap_or_else(|| identity::serial(&nqn)),
            model: self.ascii("model", file.model.as_ref(), 40)?.unwrap_or_else(|| MODEL.to_owned()),
            hosts: self.hosts(spanned)?,
            host_limits: self.host_limits(&file.host_limits)?,
            nqn,
            namespaces,
        })
    }

    pub(super) fn host(&self, spanned: &Spanned<file::Host>) -> Result<Host> {
        let file = spanned.as_ref();
        let nqn = self.nqn("nqn", &file.nqn)?;
        if let Some(path) = file.tls_key_file.as_ref().filter(|path| !path.as_ref().is_absolute()) {
            let shown = path.as_ref().display();
            return self.error(path, format!("tls_key_file \"{shown}\" must be an absolute path"));
        }
        let dhchap_key_file = self.secret_file("dhchap_key_file", file.dhchap_key_file.as_ref())?;
        let dhchap_ctrl_key_file =
            self.secret_file("dhchap_ctrl_key_file", file.dhchap_ctrl_key_file.as_ref())?;
        if let (None, Some(path)) = (&file.dhchap_key_file, &file.dhchap_ctrl_key_file) {
            let message =
                "dhchap_ctrl_key_file needs dhchap_key_file: the controller proves itself to a host that has";
            return self.error(path, message);
        }
        let require_concat = file.require_concat.as_ref().is_some_and(|value| *value.as_ref());
        if let (true, None, Some(value)) = (require_concat, &file.dhchap_key_file, &file.require_concat) {
            let message = "require_concat needs dhchap_key_file: the authentication makes the key for TLS";
            return self.error(value, message);
        }
        let tls_key_file = file.tls_key_file.as_ref().map(|path| path.as_ref().clone());
        let group_keys = file.group_keys.as_ref();
        let group_keys = group_keys.map(|value| self.words("group_keys", Some(value), &GROUP_KEYS));
        let group_keys = group_keys.transpose()?.unwrap_or_default();
        let has_file = tls_key_file.is_some() || dhchap_key_file.is_some();
        if let Some(value) = file.group_keys.as_ref().filter(|_| has_file) {
            let message = "group_keys is written by `ctl save` of a group of gateways, whose keys are in no files: leave \
                           it out";
            return self.error(value, message);
        }
        Ok(Host { nqn, tls_key_file, dhchap_key_file, dhchap_ctrl_key_file, require_concat, group_keys })
    }

    /// An absolute path, or the name of a systemd credential.
    fn secret_file(&self, key: &str, path: Option<&Spanned<PathBuf>>) -> Result<Option<PathBuf>> {
        let Some(path) = path else { return Ok(None) };
        let value = path.as_ref();
        // As systemd has it (systemd.exec(5)): a file name without a colon, as which no secret passes.
        let is_name = value.file_name().is_some_and(|name| name == value.as_os_str())
            && !value.as_os_str().as_encoded_bytes().contains(&b':');
        if !value.is_absolute() && !is_name {
            let shown = value.display();
            let message = format!(
                "{key} \"{shown}\" must be an absolute path, or the name of a systemd credential (LoadCredential=)"
            );
            return self.error(path, message);
        }
        Ok(Some(value.clone()))
    }

    pub(super) fn nqn(&self, key: &str, value: &Spanned<String>) -> Result<Nqn> {
        let example = if key.contains("host") { HOST_EXAMPLE } else { NQN_EXAMPLE };
        let nqn = self.read(key, value, example)?;
        match value.as_ref().strip_prefix(UUID_FORM) {
            Some(uuid) if uuid.len() != 36 || uuid.parse::<Uuid>().is_err() => self.error(
                value,
                format!("{key}: {UUID_FORM} is followed by a UUID of 36 characters, as `uuidgen` prints"),
            ),
            _ => Ok(nqn),
        }
    }

    /// The form that names of one's own have (NVMe Base, "NVMe Qualified Names"). The names of hosts are made by
    /// others: they are taken as they are.
    pub(super) fn own_name(&self, value: &Spanned<String>) -> Result<()> {
        let name = value.as_ref().strip_prefix("nqn.").unwrap_or_default();
        let (date, domain) = name.split_once('.').unwrap_or((name, ""));
        let is_number = |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_digit());
        let is_date = date.split_once('-').is_some_and(|(year, month)| {
            is_number(year, 4) && is_number(month, 2) && ("01"..="12").contains(&month)
        });
        if !is_date || domain.is_empty() {
            return self.error(
                value,
                format!(
                    "\"{}\" does not begin with nqn.yyyy-mm. and a domain that you owned in that month, \
                     turned round; \
                     write {NQN_EXAMPLE}",
                    value.as_ref()
                ),
            );
        }
        if domain.starts_with("org.nvmexpress") && !value.as_ref().starts_with(UUID_FORM) {
            return self.error(
                value,
                "org.nvmexpress is the NVM Express organisation's domain: take your own, or \
                 nqn.2014-08.org.nvmexpress:uuid:UUID",
            );
        }
        Ok(())
    }

    /// Deny by default: a subsystem says who may connect, one way or the other.
    fn hosts(&self, spanned: &Spanned<file::Subsystem>) -> Result<Hosts> {
        let file = spanned.as_ref();
        let any = file.allow_any_host.as_ref().filter(|any| *any.as_ref());
        match (any, &file.allowed_hosts) {
            (Some(any), Some(_)) => {
                self.error(any, "allow_any_host = true makes allowed_hosts mean nothing: keep one of the two")
            }
            (Some(_), None) => Ok(Hosts::Any),
            (None, Some(hosts)) => {
                self.at_most("hosts in allowed_hosts", hosts.as_ref().iter().map(Spanned::span), HOSTS_MAX)?;
                let hosts = hosts.as_ref().iter().map(|h| self.nqn("allowed_hosts", h));
                hosts.collect::<Result<_>>().map(Hosts::Only)
            }
            (None, None) => {
                let message = "nobody may connect to this subsystem: add allowed_hosts = [\"the host's \
                 NQN\"] (on the host: \
                               `nvmf show-hostnqn`, or cat /etc/nvme/hostnqn), or allow_any_host = true";
                self.error(spanned, message)
            }
        }
    }

    pub(super) fn ascii(
        &self,
        key: &str,
        value: Option<&Spanned<String>>,
        most: usize,
    ) -> Result<Option<String>> {
        let Some(value) = value else { return Ok(None) };
        let text = value.as_ref();
        if text.is_empty() || text.len() > most || !text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
            return self.error(value, format!("{key} must be 1 to {most} printable ASCII characters"));
        }
        Ok(Some(text.clone()))
    }

    fn namespace(&self, spanned: &Spanned<file::Namespace>) -> Result<Namespace> {
        let file = spanned.as_ref();
        let nsid = self.number("nsid", Some(&file.nsid), 1..=NSID_MAX, 0)?;
        let block_size = match &file.block_size {
            None => None,
            Some(value) if [512, 1024, 2048, 4096].contains(&value.as_ref().0) => {
                Some(narrow(value.as_ref().0))
            }
            Some(value) => return self.error(value, "block_size must be 512, 1024, 2048 or 4096"),
        };
        let uuid = match &file.uuid {
            Some(text) => {
                match self.read::<Uuid>("uuid", text, "32 hexadecimal digits, as `uuidgen` prints")? {
                    uuid if uuid.is_nil() => {
                        return self.error(text, "uuid is all zeroes: make one with `uuidgen`");
                    }
                    uuid => Some(*uuid.as_bytes()),
                }
            }
            None => None,
        };
        let backing = self.backing(spanned)?;
        let is_snapshot = matches!(&backing, Backing::Rbd(Rbd { snapshot: Some(_), .. }));
        Ok(Namespace {
            nsid,
            backing,
            block_size,
            read_only: file.read_only.unwrap_or(false) || is_snapshot,
            uuid,
            limits: file.limits.as_ref().map(|limits| self.limits(limits)).transpose()?,
            ana_group: self.number("ana_group", file.ana_group.as_ref(), 1..=ANA_GROUPS_MAX, 1)?,
            hosts: self.namespace_hosts(file.hosts.as_ref())?,
        })
    }

    /// Who sees a namespace: everyone who may connect, if the configuration does not say.
    fn namespace_hosts(&self, hosts: Option<&Spanned<Vec<Spanned<String>>>>) -> Result<Hosts> {
        let Some(hosts) = hosts else { return Ok(Hosts::Any) };
        if hosts.as_ref().is_empty() {
            return self.error(
                hosts,
                "hosts is empty, so nobody would see the namespace: name the hosts that do, or remove it",
            );
        }
        self.at_most("hosts of a namespace", hosts.as_ref().iter().map(Spanned::span), HOSTS_MAX)?;
        hosts.as_ref().iter().map(|h| self.nqn("hosts", h)).collect::<Result<_>>().map(Hosts::Only)
    }

    fn backing(&self, spanned: &Spanned<file::Namespace>) -> Result<Backing> {
        let file = spanned.as_ref();
        let backing = match (&file.path, &file.memory, &file.null, &file.rbd) {
            (Some(path), None, None, None) if path.as_ref().is_absolute() => {
                let size = file.size.as_ref().map(|size| self.device_size("size", size)).transpose()?;
                let create = file.create.as_ref().filter(|create| *create.as_ref());
                if let Some(create) = create {
                    if size.is_none() {
                        return self.error(
                            create,
                            "create = true needs size = \"10GiB\": the size of the file to create",
                        );
                    }
                    if is_device_folder(path.as_ref()) {
                        let message = "files are not created below /dev: name a block device that is \
                         there, without create";
                        return self.error(create, message);
                    }
                }
                return Ok(Backing::Path { path: path.as_ref().clone(), size, create: create.is_some() });
            }
            (Some(path), None, None, None) => {
                return self.error(path, "path must be absolute: the daemon does not start where you are");
            }
            (None, Some(size), None, None) => Backing::Memory { size: self.device_size("memory", size)? },
            (None, None, Some(size), None) => Backing::Null { size: self.device_size("null", size)? },
            (None, None, None, Some(image)) => Backing::Rbd(self.rbd(image)?),
            _ => {
                let message = "a namespace has exactly one of path = \"/dev/… or /srv/…\", memory = \
                 \"1GiB\" (lost at stop), null = \"1TiB\", rbd = { pool = \"…\", image = \"…\" }";
                return self.error(spanned, message);
            }
        };
        if let Some(size) = &file.size {
            return self.error(size, "size goes with path: memory, null and rbd say their size themselves");
        }
        match &file.create {
            Some(create) => self.error(
                create,
                "create goes with path: memory and null are always new, and images are made by `rbd create`",
            ),
            None => Ok(backing),
        }
    }

    fn device_size(&self, key: &str, size: &Spanned<file::Size>) -> Result<u64> {
        match size.as_ref().0 {
            0 => self.error(size, format!("{key} is 0: a namespace has at least one block")),
            bytes if bytes % 512 != 0 => {
                self.error(size, format!("{key} is {bytes} bytes, which is no multiple of 512"))
            }
            bytes => Ok(bytes),
        }
    }
}
