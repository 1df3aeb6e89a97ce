//! DH-HMAC-CHAP, the in-band authentication of NVMe over Fabrics (NVMe Base, "DH-HMAC-CHAP Protocol"), both sides.
//!
//! | module | what it holds |
//! |---|---|
//! | `secret` | [`Secret`]: a configured key, in the form `DHHC-1:hh:base64:` |
//! | `hash`, `group` | SHA-2 and HMAC; the Diffie-Hellman groups of RFC 7919 |
//! | `terms` | [`Terms`]: which hashes and groups are taken |
//! | `response` | what the two sides prove to each other |
//! | `concatenation` | [`GeneratedKey`]: a key for TLS, made by an authentication |
//! | `fault` | why a host is not authenticated |
//! | [`controller`] | the controller's side: messages in, messages and tasks out |
//! | [`host`] | the host's side |
//!
//! Contract: the two state machines do no I/O, read no clock, draw no random numbers and compute nothing that takes
//! time. What does is a task, which the caller runs where it likes ([`controller::Task::run`],
//! [`host::ReplyTask::run`]); the keys are needed there only. What a peer sends never leads to a panic, nor to an
//! allocation of its choice. No `Debug` text or error shows a key or what was made from one, and memory that held one is
//! cleared, but for the intermediate values of an exponentiation.
//!
//! What it does not do: TLS. It makes the key that secure channel concatenation begins with.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod concatenation;
pub mod controller;
mod fault;
mod group;
mod hash;
pub mod host;
mod primes;
mod response;
mod secret;
mod terms;

#[cfg(test)]
mod tests;

pub use concatenation::{Concatenation, GeneratedKey};
pub use group::{Group, KeyPair, ValueError};
pub use hash::{Digest, Hash};
pub use response::Names;
pub use secret::{Secret, SecretError};
pub use terms::Terms;

/// The longest message: a challenge or reply with SHA-512 and ffdhe8192.
pub const MESSAGE_LEN_MAX: usize = 16 + 2 * 64 + 1024;

/// Fills a buffer with random bytes: [`system_random`], or a test's.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<(), NoRandom>;

/// The system gives no random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random numbers")]
pub struct NoRandom;

/// The system's random numbers.
///
/// # Errors
/// [`NoRandom`].
pub fn system_random(bytes: &mut [u8]) -> Result<(), NoRandom> {
    getrandom::fill(bytes).map_err(|_| NoRandom)
}
