//! Sizes of shrunk images that an operator has accepted. They are the group's, so that all gateways show hosts the same one.

use super::super::Daemon;
use super::super::changing::Changing;
use super::Membership;
use super::images::{Key, item};
use crate::control::request::change::Item;
use crate::exports::Export;
use nvmf_backend::Disk;
use nvmf_cluster::configuration::Change;

const SIZE: &str = "size/";

/// Whether an item is a size.
pub(super) fn is_size(key: &str) -> bool {
    key.starts_with(SIZE)
}

/// The item of the size of a namespace's image, beside `namespace/…`.
fn size_of(namespace: &str) -> Option<String> {
    namespace.strip_prefix("namespace/").map(|of| format!("{SIZE}{of}"))
}

impl Membership {
    fn accepted(&self, key: &Key) -> Option<u64> {
        self.shared.items.get(&size_of(&item(key))?)?.value.as_u64()
    }

    /// A size goes with its namespace.
    pub(super) fn removals_of_sizes(&self, asked: &[Change]) -> Vec<Change> {
        let gone = asked.iter().filter(|change| change.value.is_none());
        let sizes = gone.filter_map(|change| size_of(&change.key));
        let known = sizes.filter(|key| self.shared.items.contains_key(key));
        known.map(|key| Change { key, value: None, expect: None }).collect()
    }
}

impl Daemon {
    /// Whether hosts are to be shown that an image has shrunk so far.
    pub(in crate::daemon) fn is_accepted(&self, export: &Export, disk: &Disk) -> bool {
        let accepted = self.cluster.as_ref().and_then(|it| it.accepted(&(export.nqn, export.namespace.nsid)));
        accepted == Some(disk.geometry().bytes())
    }

    /// Has all gateways show hosts the new size of an image that has shrunk; `false` if this is no gateway of a group.
    pub(in crate::daemon) fn ask_to_accept(
        &mut self,
        export: &Export,
        disk: &Disk,
        told: Item,
        changing: &mut Changing,
    ) -> bool {
        let key = size_of(&item(&(export.nqn, export.namespace.nsid)));
        let Some(key) = key.filter(|_| self.cluster.is_some()) else { return false };
        let change = Change { key, value: Some(disk.geometry().bytes().into()), expect: None };
        changing.items.push(told);
        changing.asking = Some(self.ask_to_change(vec![change], None, None));
        true
    }

    /// Shows hosts the sizes that were accepted since.
    pub(super) fn show_accepted_sizes(&mut self) {
        let shrunk = self.exports().iter().filter_map(|export| {
            let cut = export.cut.as_ref().filter(|cut| self.is_accepted(export, cut))?;
            Some(Export { disk: cut.clone(), ..export.clone() })
        });
        for export in shrunk.collect::<Vec<_>>() {
            // The next command of a host is in the new size; what was under way fails behind the end, as before.
            drop(self.shrink(&export));
        }
    }
}
