//! The Diffie-Hellman groups of RFC 7919. All are of safe primes, with the generator 2.

use crate::{NoRandom, Random, primes};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};
use nvme_proto::fabrics::auth::DhGroup;
use zeroize::Zeroizing;

/// A group; a later one is stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// None: no exchange.
    Null,
    /// ffdhe2048.
    Ffdhe2048,
    /// ffdhe3072.
    Ffdhe3072,
    /// ffdhe4096.
    Ffdhe4096,
    /// ffdhe6144.
    Ffdhe6144,
    /// ffdhe8192.
    Ffdhe8192,
}

impl Group {
    /// All, the weakest first.
    pub const ALL: [Self; 6] =
        [Self::Null, Self::Ffdhe2048, Self::Ffdhe3072, Self::Ffdhe4096, Self::Ffdhe6144, Self::Ffdhe8192];

    /// Its number on the wire.
    #[must_use]
    pub const fn id(self) -> DhGroup {
        match self {
            Self::Null => DhGroup::NULL,
            Self::Ffdhe2048 => DhGroup::FFDHE2048,
            Self::Ffdhe3072 => DhGroup::FFDHE3072,
            Self::Ffdhe4096 => DhGroup::FFDHE4096,
            Self::Ffdhe6144 => DhGroup::FFDHE6144,
            Self::Ffdhe8192 => DhGroup::FFDHE8192,
        }
    }

    /// By its number.
    #[must_use]
    pub fn of_id(id: DhGroup) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Its name as people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// Bytes of a value: those of the prime.
    #[must_use]
    pub const fn value_len(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }

    /// Bytes of a private exponent: at least twice the group's security level (RFC 7919, appendix A), in whole words.
    const fn exponent_len(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 32,
            Self::Ffdhe3072 => 40,
            Self::Ffdhe4096 | Self::Ffdhe6144 => 48,
            Self::Ffdhe8192 => 56,
        }
    }

    fn prime(self) -> Option<Odd<BoxedUint>> {
        let hex = match self {
            Self::Null => return None,
            Self::Ffdhe2048 => primes::FFDHE2048,
            Self::Ffdhe3072 => primes::FFDHE3072,
            Self::Ffdhe4096 => primes::FFDHE4096,
            Self::Ffdhe6144 => primes::FFDHE6144,
            Self::Ffdhe8192 => primes::FFDHE8192,
        };
        let bits = u32::try_from(self.value_len() * 8).expect("at most 8192");
        let prime =
            Option::<BoxedUint>::from(BoxedUint::from_be_hex(hex, bits)).expect("hexadecimal of that length");
        Some(Option::from(prime.into_odd()).expect("a prime beyond 2 is odd"))
    }

    /// The prime, big-endian; empty for [`Group::Null`].
    #[must_use]
    pub fn modulus(self) -> Vec<u8> {
        self.prime().map(|prime| prime.as_ref().to_be_bytes().to_vec()).unwrap_or_default()
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A value that a peer sent is none of the group: it would give the shared secret away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the Diffie-Hellman value is not one of the group")]
pub struct ValueError;

/// A private exponent and its public value. For one authentication, or a few.
#[derive(Clone)]
pub struct KeyPair {
    group: Group,
    exponent: Zeroizing<Vec<u8>>,
    public: Vec<u8>,
}

impl KeyPair {
    /// A new pair; one exponentiation. Empty for [`Group::Null`].
    ///
    /// # Errors
    /// [`NoRandom`].
    pub fn generate(group: Group, random: Random<'_>) -> Result<Self, NoRandom> {
        let mut exponent = Zeroizing::new(vec![0; group.exponent_len()]);
        random(&mut exponent)?;
        Ok(Self::of_exponent(group, exponent))
    }

    /// The pair of a private exponent, big-endian, of up to 64 bytes.
    #[must_use]
    pub fn of_exponent(group: Group, exponent: Zeroizing<Vec<u8>>) -> Self {
        let generator = BoxedUint::from(2u8);
        let public = group.prime().map(|prime| power(&prime, &generator, &exponent).to_vec());
        Self { group, exponent, public: public.unwrap_or_default() }
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> Group {
        self.group
    }

    /// The public value, big-endian, as long as the prime.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// The shared secret, as long as the prime, of a peer's value, which must be as long, and more than 1 and less than
    /// the prime less 1 (RFC 7919, 5.1). One exponentiation.
    ///
    /// # Errors
    /// [`ValueError`].
    pub fn agree(&self, peer: &[u8]) -> Result<Zeroizing<Vec<u8>>, ValueError> {
        let prime = self.group.prime().filter(|_| peer.len() == self.group.value_len()).ok_or(ValueError)?;
        let value =
            BoxedUint::from_be_slice(peer, prime.as_ref().bits_precision()).map_err(|_| ValueError)?;
        let one = BoxedUint::one_with_precision(prime.as_ref().bits_precision());
        // The value is public.
        if value <= one || value >= prime.as_ref().wrapping_sub(&one) {
            return Err(ValueError);
        }
        Ok(power(&prime, &value, &self.exponent))
    }
}

/// base ^ exponent mod prime, in a time that depends on the lengths only.
fn power(prime: &Odd<BoxedUint>, base: &BoxedUint, exponent: &[u8]) -> Zeroizing<Vec<u8>> {
    let params = BoxedMontyParams::new_vartime(prime.clone());
    let bits = u32::try_from(exponent.len() * 8).expect("an exponent is short");
    let exponent = BoxedUint::from_be_slice(exponent, bits).expect("as many bits as it has");
    let exponent = Zeroizing::new(exponent);
    let base = base.resize(prime.as_ref().bits_precision());
    let result =
        Zeroizing::new(BoxedMontyForm::new(base, &params).pow_bounded_exp(&exponent, bits).retrieve());
    let bytes = Zeroizing::new(result.to_be_bytes());
    Zeroizing::new(bytes.to_vec())
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("group", &self.group).finish_non_exhaustive()
    }
}
