//! Authentication Send and Receive, and the DH-HMAC-CHAP messages that they carry (NVMe Base, "NVMe In-band
//! Authentication").
//!
//! The host sends a negotiation, receives a challenge, sends a reply, receives success1, and sends success2 if it
//! wanted the controller to prove itself too. Either side may say failure instead: the controller failure1, the host
//! failure2.
//!
//! [`Message::parse`] checks that all parts of a message are there, and borrows them. What it does not check is what
//! only the two sides can know: the transaction, the order of messages, and that lengths are those of the hash and
//! group agreed on. Nor does it refuse what the two sides must: no protocol offered (NAPD 0), a hash of length 0 (HL
//! 0), and values of CVALID and RVALID above 1, which are reserved.

mod message;
mod negotiate;
#[cfg(test)]
mod tests;

pub use message::{Challenge, EmitError, Failure, Message, Reply, Success1, transaction_of};
pub use negotiate::{Negotiate, ProtocolDescriptor};

open_enum! {
    /// Hash function (HashID).
    pub struct HashId: u8 {
        /// SHA-256.
        SHA256 = 0x01,
        /// SHA-384.
        SHA384 = 0x02,
        /// SHA-512.
        SHA512 = 0x03,
    }
}

impl HashId {
    /// Bytes of its digest: what HL must be. `None` for functions that this crate does not know.
    #[must_use]
    pub const fn digest_len(self) -> Option<u8> {
        match self {
            Self::SHA256 => Some(32),
            Self::SHA384 => Some(48),
            Self::SHA512 => Some(64),
            _ => None,
        }
    }
}

open_enum! {
    /// Diffie-Hellman group (DHgID).
    pub struct DhGroup: u8 {
        /// None: the challenge is not augmented.
        NULL = 0x00,
        /// The 2048-bit group (ffdhe2048).
        FFDHE2048 = 0x01,
        /// The 3072-bit group (ffdhe3072).
        FFDHE3072 = 0x02,
        /// The 4096-bit group (ffdhe4096).
        FFDHE4096 = 0x03,
        /// The 6144-bit group (ffdhe6144).
        FFDHE6144 = 0x04,
        /// The 8192-bit group (ffdhe8192).
        FFDHE8192 = 0x05,
    }
}

impl DhGroup {
    /// Bytes of a value of the group: what DHVLEN must be. `None` for groups that this crate does not know.
    #[must_use]
    pub const fn value_len(self) -> Option<u16> {
        match self {
            Self::NULL => Some(0),
            Self::FFDHE2048 => Some(256),
            Self::FFDHE3072 => Some(384),
            Self::FFDHE4096 => Some(512),
            Self::FFDHE6144 => Some(768),
            Self::FFDHE8192 => Some(1024),
            _ => None,
        }
    }
}

open_enum! {
    /// Secure channel concatenation (SC_C).
    pub struct SecureChannel: u8 {
        /// No TLS channel is to be made of this authentication.
        NONE = 0x00,
        /// A TLS channel.
        TLS = 0x01,
        /// A TLS channel of a new pre-shared key.
        NEW_TLS_PSK = 0x02,
        /// A TLS channel whose pre-shared key replaces the present one.
        REPLACE_TLS_PSK = 0x03,
    }
}

open_enum! {
    /// Authentication protocol (AuthID of a protocol descriptor).
    pub struct AuthProtocol: u8 {
        /// DH-HMAC-CHAP.
        DH_HMAC_CHAP = 0x01,
    }
}

open_enum! {
    /// Why authentication failed. There is one reason code.
    pub struct FailureReason: u8 {
        /// Authentication failure.
        AUTHENTICATION_FAILURE = 0x01,
    }
}

open_enum! {
    /// Why authentication failed, in more detail.
    pub struct FailureExplanation: u8 {
        /// Authentication failed.
        AUTHENTICATION_AUTHENTICATION_FAILURE = 0x01,
        /// No protocol offered is usable.
        AUTHENTICATION_PROTOCOL_NOT_USABLE = 0x02,
        /// The two sides do not want the same secure channel concatenation.
        CONCATENATION_MISMATCH = 0x03,
        /// No hash function offered is usable.
        HASH_NOT_USABLE = 0x04,
        /// No Diffie-Hellman group offered is usable.
        DH_GROUP_NOT_USABLE = 0x05,
        /// A message's payload is incorrect.
        INCORRECT_PAYLOAD = 0x06,
        /// A message is not the one expected.
        INCORRECT_MESSAGE = 0x07,
    }
}

/// SECP of NVMe in-band authentication.
pub const SECP_NVME: u8 = 0xe9;

/// What Authentication Send and Authentication Receive say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// Security protocol (SECP).
    pub secp: u8,
    /// SECP specific (SPSP0).
    pub spsp0: u8,
    /// SECP specific (SPSP1).
    pub spsp1: u8,
    /// Bytes sent (TL), or bytes that there is room for (AL).
    pub len: u32,
}

impl Authentication {
    /// Sends, or has room for, a message of `len` bytes.
    #[must_use]
    pub const fn new(len: u32) -> Self {
        Self { secp: SECP_NVME, spsp0: 1, spsp1: 1, len }
    }

    /// Whether this is NVMe in-band authentication: the only protocol that there is.
    #[must_use]
    pub const fn is_nvme(&self) -> bool {
        matches!((self.secp, self.spsp0, self.spsp1), (SECP_NVME, 1, 1))
    }

    /// Reads command dwords 10 and 11.
    #[must_use]
    pub const fn parse(cdw10: u32, cdw11: u32) -> Self {
        let [_, spsp0, spsp1, secp] = cdw10.to_le_bytes();
        Self { secp, spsp0, spsp1, len: cdw11 }
    }

    /// Command dword 10.
    #[must_use]
    pub const fn cdw10(&self) -> u32 {
        u32::from_le_bytes([0, self.spsp0, self.spsp1, self.secp])
    }

    /// Command dword 11.
    #[must_use]
    pub const fn cdw11(&self) -> u32 {
        self.len
    }
}
