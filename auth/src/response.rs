//! What the two sides prove to each other (NVMe Base, "DH-HMAC-CHAP_Reply Message" and "DH-HMAC-CHAP_Success1
//! Message").

use crate::{Digest, GeneratedKey, Group, Hash, KeyPair, Secret, ValueError};
use alloc::vec::Vec;
use nvme_proto::Nqn;
use nvme_proto::fabrics::auth::SecureChannel;
use zeroize::Zeroizing;

/// Between whom an authentication is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// The host.
    pub host: Nqn,
    /// The subsystem.
    pub subsystem: Nqn,
}

/// What both sides know once they have each other's values.
pub(crate) struct Agreed {
    pub(crate) hash: Hash,
    pub(crate) transaction: u16,
    /// What was negotiated.
    pub(crate) secure_channel: SecureChannel,
    /// The shared secret of the group; `None`: there is no group.
    shared: Option<Zeroizing<Vec<u8>>>,
}

impl Agreed {
    /// With our pair and the peer's value; one exponentiation, or none for [`Group::Null`].
    ///
    /// # Errors
    /// [`ValueError`].
    pub(crate) fn new(
        hash: Hash,
        transaction: u16,
        secure_channel: SecureChannel,
        pair: &KeyPair,
        value: &[u8],
    ) -> Result<Self, ValueError> {
        let shared = match pair.group() {
            Group::Null => None,
            _ => Some(pair.agree(value)?),
        };
        Ok(Self { hash, transaction, secure_channel, shared })
    }

    /// R1: the host's response to a challenge.
    pub(crate) fn of_host(&self, challenge: &[u8], sequence: u32, secret: &Secret, names: &Names) -> Digest {
        let (own, other) = (&names.host, &names.subsystem);
        self.response(
            challenge,
            sequence,
            secret,
            [b"HostHost", own.as_str().as_bytes(), other.as_str().as_bytes()],
            own,
        )
    }

    /// R2: the controller's.
    pub(crate) fn of_controller(
        &self,
        challenge: &[u8],
        sequence: u32,
        secret: &Secret,
        names: &Names,
    ) -> Digest {
        let (own, other) = (&names.subsystem, &names.host);
        self.response(
            challenge,
            sequence,
            secret,
            [b"Controller", own.as_str().as_bytes(), other.as_str().as_bytes()],
            own,
        )
    }

    /// The key for TLS of both challenges; `None` without a group.
    pub(crate) fn generated_key(&self, of_controller: &[u8], of_host: &[u8]) -> Option<GeneratedKey> {
        let session = self.hash.digest(self.shared.as_ref()?);
        Some(GeneratedKey { hash: self.hash, bytes: self.hash.hmac(&session, &[of_controller, of_host]) })
    }

    fn response(
        &self,
        challenge: &[u8],
        sequence: u32,
        secret: &Secret,
        [label, own, other]: [&[u8]; 3],
        owner: &Nqn,
    ) -> Digest {
        // Augmented with the shared secret, so that only its two sides can compute a response.
        let augmented =
            self.shared.as_ref().map(|shared| self.hash.hmac(&self.hash.digest(shared), &[challenge]));
        let parts: [&[u8]; 8] = [
            augmented.as_deref().unwrap_or(challenge),
            &sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            &[self.secure_channel.0],
            label,
            own,
            &[0],
            other,
        ];
        self.hash.hmac(secret.key_of(owner).bytes(), &parts)
    }
}
