//! The descriptors of a chain, as a guest wrote them: followed no further than they may lead.

use super::abi::CHAIN_LEN;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory};

/// A descriptor table: where it is, and how many entries it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) address: GuestAddress,
    pub(super) size: u16,
}

/// The chain breaks the rules: it loops, leaves its table, or has parts in an order that it may not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Broken(pub(super) &'static str);

/// A part of guest memory that a chain names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) address: u64,
    pub(super) len: u32,
}

/// What the device reads, and behind that what it may write.
#[derive(Debug, Default)]
pub(super) struct Chain {
    pub(super) readable: Vec<Extent>,
    pub(super) writable: Vec<Extent>,
}

impl Chain {
    /// Reads the chain that begins at `head`; a table of the guest's own (indirect) takes the place of the rest. An entry is
    /// visited once at most. Such a table is no longer than the queue's, or than a request of all segments needs: Linux makes
    /// those in shorter queues, too.
    pub(super) fn read<M: GuestMemory>(&mut self, memory: &M, table: Table, head: u16) -> Result<(), Broken> {
        self.readable.clear();
        self.writable.clear();
        let longest = table.size.max(CHAIN_LEN);
        let (mut table, mut at, mut left, mut is_indirect) = (table, head, table.size, false);
        loop {
            if at >= table.size {
                return Err(Broken("a descriptor lies outside of its table"));
            }
            left = left.checked_sub(1).ok_or(Broken("a descriptor chain loops"))?;
            let offset = u64::from(at) * size_of::<Descriptor>() as u64;
            let address =
                table.address.checked_add(offset).ok_or(Broken("a table ends beyond all memory"))?;
            let entry: Descriptor =
                memory.read_obj(address).map_err(|_| Broken("a descriptor table lies outside of memory"))?;
            if entry.refers_to_indirect_table() {
                let len = entry.len() as usize;
                let size = u16::try_from(len / size_of::<Descriptor>()).unwrap_or_default();
                if is_indirect
                    || entry.has_next()
                    || size == 0
                    || !len.is_multiple_of(size_of::<Descriptor>())
                {
                    return Err(Broken("an indirect descriptor table is not one"));
                }
                if size > longest {
                    return Err(Broken("an indirect descriptor table is longer than a request may be"));
                }
                (table, at, left, is_indirect) = (Table { address: entry.addr(), size }, 0, size, true);
                continue;
            }
            let extent = Extent { address: entry.addr().raw_value(), len: entry.len() };
            if entry.is_write_only() {
                self.writable.push(extent);
            } else if self.writable.is_empty() {
                self.readable.push(extent);
            } else {
                return Err(Broken("what the device reads comes behind what it writes"));
            }
            if !entry.has_next() {
                return Ok(());
            }
            at = entry.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::GuestMemoryMmap;

    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;
    const TABLE: Table = Table { address: GuestAddress(0x1000), size: 4 };

    fn read(entries: &[(u64, Descriptor)], head: u16) -> Result<Chain, Broken> {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
        for (at, entry) in entries {
            memory.write_obj(*entry, GuestAddress(0x1000 + 16 * at)).unwrap();
        }
        let mut chain = Chain::default();
        chain.read(&memory, TABLE, head).map(|()| chain)
    }

    #[test]
    fn chain_is_read_in_its_order() {
        let chain = read(
            &[
                (2, Descriptor::new(0x5000, 16, NEXT, 0)),
                (0, Descriptor::new(0x6000, 4096, NEXT | WRITE, 3)),
                (3, Descriptor::new(0x7000, 1, WRITE, 9)),
            ],
            2,
        )
        .unwrap();
        assert_eq!(chain.readable, [Extent { address: 0x5000, len: 16 }]);
        assert_eq!(chain.writable[1], Extent { address: 0x7000, len: 1 });
        // The same in a table of its own, which may be longer than the queue's.
        let mut entries = vec![(1, Descriptor::new(0x2000, 16 * 6, INDIRECT, 0))];
        entries.extend((0..6).map(|at: u16| {
            let flags = if at < 5 { NEXT | WRITE } else { WRITE };
            (256 + u64::from(at), Descriptor::new(0x3000, 1, flags, at + 1))
        }));
        assert_eq!(read(&entries, 1).unwrap().writable.len(), 6);
    }

    #[test]
    fn chain_that_breaks_the_rules_is_refused() {
        let broken = |entries: &[(u64, Descriptor)], head| read(entries, head).unwrap_err().0;
        let to_itself = (1, Descriptor::new(0x5000, 16, NEXT, 1));
        assert!(broken(&[to_itself], 1).contains("loops"));
        let both = [(0, Descriptor::new(0x5000, 1, NEXT, 1)), (1, Descriptor::new(0x5000, 1, NEXT, 0))];
        assert!(broken(&both, 0).contains("loops"));
        assert!(broken(&[], 4).contains("outside of its table"));
        assert!(broken(&[(0, Descriptor::new(0x5000, 1, NEXT, 4))], 0).contains("outside of its table"));
        let late = [(0, Descriptor::new(0x5000, 1, NEXT | WRITE, 1)), (1, Descriptor::new(0x5000, 1, 0, 0))];
        assert!(broken(&late, 0).contains("behind"));
        for (address, len, flags) in [
            (0x2000, 0, INDIRECT),
            (0x2000, 17, INDIRECT),
            (0x2000, u32::MAX, INDIRECT),
            (0x2000, 16, INDIRECT | NEXT),
            (u64::MAX - 7, 32, INDIRECT),
            (0x20000, 32, INDIRECT),
        ] {
            assert!(
                read(&[(0, Descriptor::new(address, len, flags, 1))], 0).is_err(),
                "{len} at {address:x}"
            );
        }
        // What lies in it is a chain.
        let of_len = |entries: u16| [(0, Descriptor::new(0x2000, 16 * u32::from(entries), INDIRECT, 0))];
        assert!(read(&of_len(CHAIN_LEN), 0).is_ok(), "more than the queue has, and no more than segments");
        assert!(broken(&of_len(CHAIN_LEN + 1), 0).contains("longer"));
        assert!(broken(&of_len(u16::MAX), 0).contains("longer"));
        // A table in a table.
        let nested =
            [(0, Descriptor::new(0x2000, 16, INDIRECT, 0)), (256, Descriptor::new(0x2000, 16, INDIRECT, 0))];
        assert!(broken(&nested, 0).contains("indirect"));
    }
}
