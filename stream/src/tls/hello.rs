//! The PSK identities in a ClientHello (RFC 8446, 4.1.2 and 4.2.11).

/// The extension `pre_shared_key`.
const PRE_SHARED_KEY: u16 = 41;

/// Bytes that are read from the front.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    fn u8(&mut self) -> Option<usize> {
        Some(self.take(1)?[0].into())
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    /// What a length of two bytes stands before.
    fn vector(&mut self) -> Option<Self> {
        let len = self.u16()?;
        self.take(len.into()).map(Self)
    }
}

/// The identities that a ClientHello offers, in its order; `message` begins behind the header of the handshake message.
/// What is malformed ends the list: the library refuses the message as a whole.
pub(super) fn offered_identities(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut identities = pre_shared_keys(message);
    core::iter::from_fn(move || {
        let identity = identities.as_mut()?.vector()?;
        // The obfuscated age of a ticket.
        identities.as_mut()?.take(4)?;
        Some(identity.0)
    })
}

fn pre_shared_keys(message: &[u8]) -> Option<Reader<'_>> {
    let mut reader = Reader(message);
    // The version and the random bytes.
    reader.take(2 + 32)?;
    let session_id = reader.u8()?;
    reader.take(session_id)?;
    reader.vector()?;
    let compression = reader.u8()?;
    reader.take(compression)?;
    let mut extensions = reader.vector()?;
    loop {
        let (kind, mut data) = (extensions.u16()?, extensions.vector()?);
        if kind == PRE_SHARED_KEY {
            return data.vector();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(identities: &[&[u8]]) -> Vec<u8> {
        let vector = |bytes: Vec<u8>| [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat();
        let identity = |bytes: &&[u8]| [vector(bytes.to_vec()), vec![0; 4]].concat();
        let list = vector(identities.iter().flat_map(identity).collect());
        let binders = vector(vec![32; 33]);
        let extension = |kind: u16, data| [kind.to_be_bytes().to_vec(), vector(data)].concat();
        let extensions = [extension(43, vec![2, 3, 4]), extension(41, [list, binders].concat())].concat();
        [vec![3; 34], vec![2, 1, 1], vector(vec![0x13, 1]), vec![1, 0], vector(extensions)].concat()
    }

    #[test]
    fn identities_are_found_in_their_order() {
        let hello = hello(&[b"first", b"", b"third"]);
        assert_eq!(offered_identities(&hello).collect::<Vec<_>>(), [&b"first"[..], b"", b"third"]);
    }

    #[test]
    fn message_that_is_cut_or_changed_does_no_harm() {
        let hello = hello(&[b"first", b"second"]);
        for end in 0..hello.len() {
            assert!(offered_identities(&hello[..end]).count() <= 2);
            for byte in [0, 1, 0x7f, 0xff] {
                let mut hello = hello.clone();
                hello[end] = byte;
                assert!(offered_identities(&hello).count() <= hello.len());
            }
        }
    }
}
