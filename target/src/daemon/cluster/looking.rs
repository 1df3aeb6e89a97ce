//! The images of an ANA group that is to move here: opened read-only on the connection that will carry their I/O, to know
//! whether that can be done here before the owner drains.

use super::super::Daemon;
use super::images::{Key, lack};
use super::known::Known;
use super::leaving::close;
use super::opening::{Fault, HANGS_AFTER, OPENING_MAX, Opening, is_another};
use core::time::Duration;
use nvmf_backend::Disk;
use nvmf_cluster::{GroupId, OpId, Reply, Unopened};
use nvmf_rados::Cluster;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How long images may take: whoever asked for the move is told of a refusal.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// A look at the images of an ANA group.
pub(super) struct Look {
    op: OpId,
    group: GroupId,
    connection: Arc<Cluster>,
    until: Duration,
    opening: Vec<Opening>,
    /// Those of which it is known whether they can be opened.
    known: BTreeSet<Key>,
    unopened: Unopened,
}

impl Look {
    /// Also what is gone from the pool: its owner may have it open still, and says of what it has not.
    fn note(&mut self, key: Key, why: Fault) {
        self.known.insert(key);
        self.unopened.push(lack(&key, why));
    }
}

impl Daemon {
    pub(super) fn begin_to_look_at(&mut self, op: OpId, group: GroupId, connection: Arc<Cluster>) {
        let until = self.common.clock.now() + LOOK_TIMEOUT;
        let (opening, known, unopened) = (Vec::new(), BTreeSet::new(), Unopened::new());
        let look = Look { op, group, connection, until, opening, known, unopened };
        self.end_looks(|it| it.group == group);
        if let Some(cluster) = &mut self.cluster {
            cluster.looks.push(look);
        }
    }

    /// Nobody waits for what was looked at on this connection any more.
    pub(super) fn forget_look(&mut self, connection: Option<&Arc<Cluster>>) {
        let is_of = |look: &Look| connection.is_some_and(|it| Arc::ptr_eq(it, &look.connection));
        self.end_looks(is_of);
    }

    fn end_looks(&mut self, is_one: impl Fn(&Look) -> bool) {
        let Some(cluster) = &mut self.cluster else { return };
        for look in cluster.looks.extract_if(.., |look| is_one(look)) {
            cluster.hanging.extend(look.opening);
        }
    }

    pub(super) fn advance_looks(&mut self) {
        if let Some(cluster) = &mut self.cluster {
            cluster.hanging.retain(|opening| match opening.result() {
                None => true,
                Some(result) => {
                    close(result.into_iter().collect());
                    false
                }
            });
        }
        let looks = self.cluster.as_mut().map(|cluster| core::mem::take(&mut cluster.looks));
        for mut look in looks.unwrap_or_default() {
            let is_over = self.advance_one_look(&mut look);
            match &mut self.cluster {
                Some(cluster) if is_over => cluster.hanging.extend(look.opening),
                Some(cluster) => cluster.looks.push(look),
                None => {}
            }
        }
    }

    /// Whether an image is what the group knows by its name: a gateway that was started since it was renamed has seen the
    /// other one only.
    pub(super) fn is_as_known(&self, opening: &Opening, disk: &Disk) -> bool {
        let known = self.cluster.as_ref().and_then(|cluster| cluster.known.get(&opening.key()));
        let found = Known::of(opening.namespace(), disk);
        known.zip(found).is_none_or(|(known, found)| known.is_same_disk(&found, opening.namespace()))
    }

    fn advance_one_look(&self, look: &mut Look) -> bool {
        let Some(cluster) = &self.cluster else { return true };
        for opening in core::mem::take(&mut look.opening) {
            match opening.result() {
                None => look.opening.push(opening),
                Some(Err(why)) => look.note(opening.key(), why),
                Some(Ok(disk)) => {
                    match self.is_as_known(&opening, &disk) {
                        true => drop(look.known.insert(opening.key())),
                        false => look.note(opening.key(), is_another()),
                    }
                    close(vec![disk]);
                }
            }
        }
        let now = self.common.clock.now();
        let is_late = now >= look.until;
        let mut is_over = true;
        for key in self.keys_in_group(look.group) {
            if look.known.contains(&key) {
                continue;
            }
            let fault = self.never_seen(&key);
            let export = self.exports().iter().find(|export| export.is(&key.0, key.1));
            match (export, fault) {
                _ if is_late => look.note(key, format!("it did not open within {LOOK_TIMEOUT:?}").into()),
                (None, Some(why)) => look.note(key, why),
                (Some(export), _)
                    if cluster.hanging.iter().any(|it| it.is_of(export) && it.hangs(now, HANGS_AFTER)) =>
                {
                    look.note(
                        key,
                        "it did not answer while it was opened, and does not yet".to_owned().into(),
                    );
                }
                (Some(export), _) if !look.opening.iter().any(|opening| opening.key() == key) => {
                    is_over = false;
                    // Not more beside those that hang: who asks is told of a refusal, and asks again.
                    if look.opening.len() < OPENING_MAX {
                        let (spec, waker) = (cluster.images_at(), self.common.waker.clone());
                        let begun = Opening::begin(now, &look.connection, export, spec, true, waker);
                        look.opening.extend(begun);
                    }
                }
                // It is being opened.
                _ => is_over = false,
            }
        }
        if is_over {
            let unopened = core::mem::take(&mut look.unopened);
            let reply = if unopened.is_empty() { Reply::Done } else { Reply::Unopened(unopened) };
            self.reply(look.op, reply);
        }
        is_over
    }
}
