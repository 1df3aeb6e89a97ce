//! Target: what names and describes keys of TLS.

use nvmf_tls::{Hash, Identity, Key, Keys};

/// Takes the input as the identity that a ClientHello names, for a target that knows keys of two hosts, and as the text
/// of a key.
///
/// # Panics
/// When an invariant is violated.
pub fn tls_key(data: &[u8]) {
    if let Ok(identity) = Identity::parse(data) {
        assert_eq!(identity.to_string().as_bytes(), data, "an identity has one form");
    }
    let mut keys = Keys::default();
    for (host, hash) in [("nqn.host32", Hash::Sha256), ("nqn.host48", Hash::Sha384)] {
        let key = Key::new(&vec![7; hash.len()], Some(hash)).expect("its length is that of the hash");
        keys.insert(host.parse().expect("it is an NQN"), Some(key));
    }
    match keys.find(data) {
        Ok(psk) => assert_eq!(psk.identity.as_bytes(), data, "no other key than the one that was named"),
        Err(unknown) => assert!(!unknown.to_string().is_empty()),
    }
    let Ok(text) = core::str::from_utf8(data) else { return };
    match Key::parse(text) {
        Ok(key) => assert_eq!(*key.to_interchange(), text, "a key has one form"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
