//! The messages of an authentication.

use super::{
    DhGroup, FailureExplanation, FailureReason, HashId, Negotiate, ProtocolDescriptor, SecureChannel,
};
use zerocopy::IntoBytes;

// AUTH_TYPE (0 common, 1 DH-HMAC-CHAP) and AUTH_ID of each message.
const NEGOTIATE: [u8; 2] = [0x00, 0x00];
const CHALLENGE: [u8; 2] = [0x01, 0x01];
const REPLY: [u8; 2] = [0x01, 0x02];
const SUCCESS1: [u8; 2] = [0x01, 0x03];
const SUCCESS2: [u8; 2] = [0x01, 0x04];
const FAILURE2: [u8; 2] = [0x00, 0xf0];
const FAILURE1: [u8; 2] = [0x00, 0xf1];

/// Bytes of negotiation and failure messages, before descriptors.
const SHORT: usize = 8;
/// Bytes of the others, before values.
const LONG: usize = 16;

/// What the controller asks the host to prove that it knows its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// Transaction (T_ID).
    pub transaction: u16,
    /// The hash function chosen.
    pub hash: HashId,
    /// The group chosen.
    pub group: DhGroup,
    /// Sequence number S1.
    pub sequence: u32,
    /// Challenge value C1, as long as the hash's digest.
    pub challenge: &'a [u8],
    /// The controller's Diffie-Hellman value; empty without a group.
    pub dh_value: &'a [u8],
}

/// The host's proof, and what it asks the controller in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Transaction (T_ID).
    pub transaction: u16,
    /// Sequence number S2.
    pub sequence: u32,
    /// Response value R1.
    pub response: &'a [u8],
    /// Challenge value C2, as long as the response, if the controller is to prove itself too (CVALID).
    pub challenge: Option<&'a [u8]>,
    /// The host's Diffie-Hellman value; empty without a group.
    pub dh_value: &'a [u8],
}

/// The controller has authenticated the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success1<'a> {
    /// Transaction (T_ID).
    pub transaction: u16,
    /// HL: bytes of the hash's digest, said even without a response.
    pub hash_len: u8,
    /// Response value R2, `hash_len` bytes, if the host asked for it (RVALID).
    pub response: Option<&'a [u8]>,
}

/// Why authentication failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Transaction (T_ID).
    pub transaction: u16,
    /// Reason code.
    pub reason: FailureReason,
    /// Reason code explanation.
    pub explanation: FailureExplanation,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Host to controller.
    Negotiate(Negotiate<'a>),
    /// Controller to host.
    Challenge(Challenge<'a>),
    /// Host to controller.
    Reply(Reply<'a>),
    /// Controller to host.
    Success1(Success1<'a>),
    /// Host to controller: the host has authenticated the controller.
    Success2 {
        /// Transaction (T_ID).
        transaction: u16,
    },
    /// Controller to host.
    Failure1(Failure),
    /// Host to controller.
    Failure2(Failure),
}

/// The transaction (T_ID) of a message, even of one that [`Message::parse`] refuses: a failure message must repeat it.
/// `None` if the bytes end before it.
#[must_use]
pub fn transaction_of(bytes: &[u8]) -> Option<u16> {
    let t_id = bytes.get(4..6)?;
    Some(u16::from_le_bytes([t_id[0], t_id[1]]))
}

/// Why a message cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// It is longer than the room for it.
    #[error("an authentication message of {need} bytes does not fit in {room}: use a larger buffer")]
    NoRoom {
        /// Its bytes.
        need: usize,
        /// Bytes that there are for it.
        room: usize,
    },
    /// A value is longer than its length field can say, or not as long as it must be.
    #[error(
        "a value of an authentication message has a length that cannot be sent: use the hash's or group's"
    )]
    ValueLength,
}

impl<'a> Message<'a> {
    /// Reads a message. What is behind it is ignored: receive buffers are longer.
    ///
    /// # Errors
    /// What to fail with: [`FailureExplanation::INCORRECT_PAYLOAD`] if a part is missing,
    /// [`FailureExplanation::INCORRECT_MESSAGE`] if there is no such message.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FailureExplanation> {
        let mut reader = Reader(bytes);
        let [auth_type, id, _, _, t0, t1, b6, b7] = reader.array::<SHORT>()?;
        let transaction = u16::from_le_bytes([t0, t1]);
        let failure = Failure { transaction, reason: FailureReason(b6), explanation: FailureExplanation(b7) };
        Ok(match [auth_type, id] {
            NEGOTIATE => Self::Negotiate(Negotiate {
                transaction,
                secure_channel: SecureChannel(b6),
                descriptors: Negotiate::descriptors(reader.0, b7)?,
            }),
            CHALLENGE => Self::Challenge(reader.challenge(transaction, b6)?),
            REPLY => Self::Reply(reader.reply(transaction, b6)?),
            SUCCESS1 => Self::Success1(reader.success1(transaction, b6)?),
            SUCCESS2 => {
                reader.array::<{ LONG - SHORT }>()?;
                Self::Success2 { transaction }
            }
            FAILURE1 => Self::Failure1(failure),
            FAILURE2 => Self::Failure2(failure),
            _ => return Err(FailureExplanation::INCORRECT_MESSAGE),
        })
    }

    /// Transaction (T_ID).
    #[must_use]
    pub fn transaction(&self) -> u16 {
        match *self {
            Self::Negotiate(Negotiate { transaction, .. })
            | Self::Challenge(Challenge { transaction, .. })
            | Self::Reply(Reply { transaction, .. })
            | Self::Success1(Success1 { transaction, .. })
            | Self::Success2 { transaction }
            | Self::Failure1(Failure { transaction, .. })
            | Self::Failure2(Failure { transaction, .. }) => transaction,
        }
    }

    /// Bytes on the wire: what TL must be, and AL at least.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        match self {
            Self::Negotiate(it) => SHORT + it.descriptors.len() * ProtocolDescriptor::LEN,
            Self::Challenge(it) => LONG + it.challenge.len() + it.dh_value.len(),
            Self::Reply(it) => LONG + 2 * it.response.len() + it.dh_value.len(),
            Self::Success1(it) => LONG + usize::from(it.hash_len),
            Self::Success2 { .. } => LONG,
            Self::Failure1(_) | Self::Failure2(_) => SHORT,
        }
    }

    /// Writes the message to the start of `out`, and says how long it is. Nothing is written after an error.
    ///
    /// # Errors
    /// [`EmitError::NoRoom`] if `out` is too short, [`EmitError::ValueLength`] if a value's length cannot be said.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        self.check_lengths()?;
        let (need, room) = (self.wire_len(), out.len());
        let mut writer = Writer(out.get_mut(..need).ok_or(EmitError::NoRoom { need, room })?);
        match *self {
            Self::Negotiate(it) => {
                writer.short(NEGOTIATE, it.transaction, [it.secure_channel.0, it.descriptors.len() as u8]);
                writer.put(it.descriptors.as_bytes());
            }
            Self::Challenge(it) => {
                writer.short(CHALLENGE, it.transaction, [it.challenge.len() as u8, 0]);
                writer.long([it.hash.0, it.group.0], it.dh_value.len() as u16, it.sequence);
                writer.put(it.challenge);
                writer.put(it.dh_value);
            }
            Self::Reply(it) => {
                writer.short(REPLY, it.transaction, [it.response.len() as u8, 0]);
                let cvalid = u8::from(it.challenge.is_some());
                writer.long([cvalid, 0], it.dh_value.len() as u16, it.sequence);
                writer.put(it.response);
                // The challenge's place is there even without one.
                writer.put(it.challenge.unwrap_or(&[0; u8::MAX as usize][..it.response.len()]));
                writer.put(it.dh_value);
            }
            Self::Success1(it) => {
                writer.short(SUCCESS1, it.transaction, [it.hash_len, 0]);
                writer.long([u8::from(it.response.is_some()), 0], 0, 0);
                // The response's place is there even without one.
                writer.put(it.response.unwrap_or(&[0; u8::MAX as usize][..usize::from(it.hash_len)]));
            }
            Self::Success2 { transaction } => {
                writer.short(SUCCESS2, transaction, [0, 0]);
                writer.long([0, 0], 0, 0);
            }
            Self::Failure1(it) => writer.short(FAILURE1, it.transaction, [it.reason.0, it.explanation.0]),
            Self::Failure2(it) => writer.short(FAILURE2, it.transaction, [it.reason.0, it.explanation.0]),
        }
        Ok(need)
    }

    /// Whether the length fields can say the values' lengths.
    fn check_lengths(&self) -> Result<(), EmitError> {
        let (byte, word) = (usize::from(u8::MAX), usize::from(u16::MAX));
        let fits = match self {
            Self::Negotiate(it) => it.descriptors.len() <= byte,
            Self::Challenge(it) => it.challenge.len() <= byte && it.dh_value.len() <= word,
            Self::Reply(it) => {
                it.response.len() <= byte
                    && it.dh_value.len() <= word
                    && it.challenge.is_none_or(|challenge| challenge.len() == it.response.len())
            }
            Self::Success1(it) => {
                it.response.is_none_or(|response| response.len() == usize::from(it.hash_len))
            }
            Self::Success2 { .. } | Self::Failure1(_) | Self::Failure2(_) => true,
        };
        if fits { Ok(()) } else { Err(EmitError::ValueLength) }
    }
}

/// What of a message has not been read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], FailureExplanation> {
        let (value, rest) = self.0.split_at_checked(len).ok_or(FailureExplanation::INCORRECT_PAYLOAD)?;
        self.0 = rest;
        Ok(value)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FailureExplanation> {
        let (value, rest) = self.0.split_first_chunk().ok_or(FailureExplanation::INCORRECT_PAYLOAD)?;
        self.0 = rest;
        Ok(*value)
    }

    /// The second half of a long message's head: two bytes, DHVLEN and SEQNUM.
    fn long(&mut self) -> Result<([u8; 2], usize, u32), FailureExplanation> {
        let [b8, b9, d0, d1, sequence @ ..] = self.array::<{ LONG - SHORT }>()?;
        Ok(([b8, b9], usize::from(u16::from_le_bytes([d0, d1])), u32::from_le_bytes(sequence)))
    }

    fn challenge(&mut self, transaction: u16, hl: u8) -> Result<Challenge<'a>, FailureExplanation> {
        let ([hash, group], dhvlen, sequence) = self.long()?;
        Ok(Challenge {
            transaction,
            hash: HashId(hash),
            group: DhGroup(group),
            sequence,
            challenge: self.take(usize::from(hl))?,
            dh_value: self.take(dhvlen)?,
        })
    }

    fn reply(&mut self, transaction: u16, hl: u8) -> Result<Reply<'a>, FailureExplanation> {
        let ([cvalid, _], dhvlen, sequence) = self.long()?;
        let response = self.take(usize::from(hl))?;
        let challenge = self.take(usize::from(hl))?;
        Ok(Reply {
            transaction,
            sequence,
            response,
            challenge: (cvalid != 0).then_some(challenge),
            dh_value: self.take(dhvlen)?,
        })
    }

    fn success1(&mut self, transaction: u16, hl: u8) -> Result<Success1<'a>, FailureExplanation> {
        let ([rvalid, _], ..) = self.long()?;
        // Without RVALID some controllers send the response's place and some do not.
        let response = if rvalid != 0 { Some(self.take(usize::from(hl))?) } else { None };
        Ok(Success1 { transaction, hash_len: hl, response })
    }
}

/// What of a message has not been written yet: exactly as long as what is to come.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put(&mut self, value: &[u8]) {
        let (here, rest) = core::mem::take(&mut self.0).split_at_mut(value.len());
        here.copy_from_slice(value);
        self.0 = rest;
    }

    fn short(&mut self, [auth_type, id]: [u8; 2], transaction: u16, [b6, b7]: [u8; 2]) {
        let [t0, t1] = transaction.to_le_bytes();
        self.put(&[auth_type, id, 0, 0, t0, t1, b6, b7]);
    }

    fn long(&mut self, [b8, b9]: [u8; 2], dhvlen: u16, sequence: u32) {
        let ([d0, d1], [s0, s1, s2, s3]) = (dhvlen.to_le_bytes(), sequence.to_le_bytes());
        self.put(&[b8, b9, d0, d1, s0, s1, s2, s3]);
    }
}
