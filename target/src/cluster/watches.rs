//! Hints: objects of the group that are watched. A watch that is lost is made again, and a hint that was missed costs a
//! few seconds.

use super::ToDriver;
use super::store::Store;
use core::time::Duration;
use nvmf_cluster::Object;
use nvmf_rados::{Notification, Watch};
use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};

/// How often watches are looked at.
const LOOK: Duration = Duration::from_secs(5);
/// A watch whose client is silent for so long ends.
const TIMEOUT: Duration = Duration::from_secs(30);

const WATCHED: [Object; 3] = [Object::Map, Object::Configuration, Object::Gateways];

/// Watches in a thread of its own, for as long as the store is used.
pub(super) fn start(store: &Arc<Store>, tell: Sender<ToDriver>) -> io::Result<()> {
    let store = Arc::downgrade(store);
    std::thread::Builder::new().name("ceph-watch".into()).spawn(move || watch(&store, &tell)).map(drop)
}

fn watch(store: &Weak<Store>, tell: &Sender<ToDriver>) {
    let mut watches: [Option<Watch>; WATCHED.len()] = Default::default();
    loop {
        {
            let Some(store) = store.upgrade() else { return };
            for (object, watch) in WATCHED.iter().zip(&mut watches) {
                if watch.as_ref().is_some_and(|watch| watch.check().is_ok()) {
                    continue;
                }
                *watch = None;
                let (told, hinted) = (object.clone(), tell.clone());
                let on = move |notification| {
                    if matches!(notification, Notification::Notified(_)) {
                        // Nobody is interested any more only at the end.
                        let _ = hinted.send(ToDriver::Notified(told.clone()));
                    }
                };
                // It may not be there yet.
                *watch = store.control().and_then(|pool| pool.watch(&store.object(object), TIMEOUT, on)).ok();
                // What changed before it was watched.
                if watch.is_some() && tell.send(ToDriver::Notified(object.clone())).is_err() {
                    return;
                }
            }
        }
        std::thread::sleep(LOOK);
    }
}
