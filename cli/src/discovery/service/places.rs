//! Places for what is connected to or brought back at once. How long that takes the peer says, and how many there are others list: all
//! that begins at one root has half of the places, so that the others have their turn.

use super::super::engine::Root;
use anyhow::Result;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) struct Places {
    most: usize,
    pub(super) all: Arc<Semaphore>,
    of_root: HashMap<Root, Arc<Semaphore>>,
}

/// Where one waits for a place.
#[derive(Clone)]
pub(super) struct Queue {
    of_root: Option<Arc<Semaphore>>,
    all: Arc<Semaphore>,
}

/// A place, until it is dropped.
pub(super) struct Place(#[expect(dead_code, reason = "held")] [Option<OwnedSemaphorePermit>; 2]);

impl Places {
    pub(super) fn new(most: usize) -> Self {
        Self { most, all: Arc::new(Semaphore::new(most)), of_root: HashMap::new() }
    }

    /// `root`: where it begins; what is named itself has none.
    pub(super) fn queue(&mut self, root: Option<&Root>) -> Queue {
        // Of those that are gone nobody waits any more.
        self.of_root.retain(|_, places| Arc::strong_count(places) > 1);
        let of_root = root.map(|root| {
            let places = self.of_root.entry(root.clone());
            Arc::clone(places.or_insert_with(|| Arc::new(Semaphore::new((self.most / 2).max(1)))))
        });
        Queue { of_root, all: Arc::clone(&self.all) }
    }
}

impl Queue {
    /// Waits for a place of its root first: of each root few wait for one of all.
    pub(super) async fn place(&self) -> Result<Place> {
        let of_root = match &self.of_root {
            Some(of_root) => Some(Arc::clone(of_root).acquire_owned().await?),
            None => None,
        };
        Ok(Place([of_root, Some(Arc::clone(&self.all).acquire_owned().await?)]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::engine::Controller;
    use super::super::super::sources::tests::place;
    use super::*;

    const MOST: usize = 16;

    /// A place that is there at once.
    async fn free(queue: &Queue) -> Option<Place> {
        tokio::select! {
            biased;
            place = queue.place() => place.ok(),
            () = std::future::ready(()) => None,
        }
    }

    #[tokio::test]
    async fn one_root_leaves_places_to_others_and_to_what_is_named() {
        let mut places = Places::new(MOST);
        let root = |address| Some(Controller { place: place("tcp", address, 8009), options: Vec::new() });
        let hostile = places.queue(Some(&root("192.0.2.1")));
        let mut taken = Vec::new();
        while let Some(place) = free(&hostile).await {
            taken.push(place);
        }
        assert_eq!(taken.len(), MOST / 2);
        let honest = places.queue(Some(&root("192.0.2.2")));
        assert!(free(&honest).await.is_some() && free(&places.queue(None)).await.is_some());
        assert!(free(&places.queue(Some(&root("192.0.2.1")))).await.is_none(), "it is the same root");
        taken.pop();
        assert!(free(&hostile).await.is_some());
    }
}
