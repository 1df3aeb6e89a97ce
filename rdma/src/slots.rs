//! Things by number, where a number is not used again soon: what providers keep queue pairs, regions and requests in.

use std::collections::VecDeque;

/// A table whose keys are `generation << 16 | index`: a key of something that is gone finds nothing.
///
/// The index freed longest ago is reused first, so a key comes back after at least 65 535 rounds through the table.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u16>,
    limit: u16,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u16,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// An empty table for up to `limit` things.
    #[must_use]
    pub fn new(limit: u16) -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), limit }
    }

    /// Puts in what `make` makes of its key; `None` when full.
    pub fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None => {
                let index = u16::try_from(self.slots.len()).ok().filter(|&i| i < self.limit)?;
                self.slots.push(Slot { generation: 0, value: None });
                index
            }
        };
        let slot = &mut self.slots[usize::from(index)];
        // Generation 0 is left out, so that no key is 0.
        slot.generation = slot.generation.checked_add(1).unwrap_or(1);
        let key = u32::from(slot.generation) << 16 | u32::from(index);
        slot.value = Some(make(key));
        Some(key)
    }

    /// The key that the next insertion will have; `None` when full.
    #[must_use]
    pub fn next_key(&self) -> Option<u32> {
        let (index, generation) = match self.free.front() {
            Some(&index) => (index, self.slots[usize::from(index)].generation),
            None => (u16::try_from(self.slots.len()).ok().filter(|&i| i < self.limit)?, 0),
        };
        Some(u32::from(generation.checked_add(1).unwrap_or(1)) << 16 | u32::from(index))
    }

    /// What has this key.
    #[must_use]
    pub fn get(&self, key: u32) -> Option<&T> {
        let slot = self.slots.get(key as usize & 0xffff)?;
        slot.value.as_ref().filter(|_| u32::from(slot.generation) == key >> 16)
    }

    /// What has this key.
    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(key as usize & 0xffff)?;
        slot.value.as_mut().filter(|_| u32::from(slot.generation) == key >> 16)
    }

    /// Takes it out; its key finds nothing from now on.
    pub fn remove(&mut self, key: u32) -> Option<T> {
        let slot = self.slots.get_mut(key as usize & 0xffff)?;
        if u32::from(slot.generation) != key >> 16 {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push_back((key & 0xffff) as u16);
        Some(value)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every key in use. Walks the table: not for the hot path.
    pub fn keys(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.value.is_some()).map(|(index, slot)| {
            u32::from(slot.generation) << 16 | u32::try_from(index).expect("indices have 16 bits")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slots = Slots::new(2);
        let next = slots.next_key();
        let a = slots.insert(|_| 'a').unwrap();
        assert_eq!(next, Some(a));
        let b = slots.insert(|_| 'b').unwrap();
        assert_eq!(slots.insert(|_| 'x'), None);
        assert_eq!((slots.remove(a), slots.remove(a)), (Some('a'), None));
        let c = slots.insert(|_| 'c').unwrap();
        assert_ne!(a, c);
        assert_eq!((slots.get(a), slots.get(b), slots.get(c)), (None, Some(&'b'), Some(&'c')));
        assert_eq!(slots.keys().collect::<Vec<_>>(), [c, b]);
        assert_eq!((slots.len(), slots.is_empty()), (2, false));
    }
}
