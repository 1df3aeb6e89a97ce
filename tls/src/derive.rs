//! From the configured key to the retained one, and to the key of TLS (NVMe/TCP Transport, "PSK Use").

use crate::Hash;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The longest context of a derivation: its length is one byte.
pub(crate) const CONTEXT_MAX: usize = 255;

/// HKDF-Extract without a salt, then HKDF-Expand-Label, for as many bytes as the key has.
fn derive(hash: Hash, key: &[u8], label: &str, context: &[u8], len: usize) -> Zeroizing<Vec<u8>> {
    let extracted = Zeroizing::new(hash.hmac(&[0; 48][..hash.len()], &[key]).as_ref().to_vec());
    hash.expand_label(&extracted, label, context, len)
}

/// The retained key of a configured one, for a host.
pub(crate) fn retained(hash: Hash, configured: &[u8], host: &str) -> Zeroizing<Vec<u8>> {
    derive(hash, configured, "HostNQN", host.as_bytes(), configured.len())
}

/// What version 1 of an identity ends with.
pub(crate) fn digest(hash: Hash, key: &[u8], host: &str, subsystem: &str) -> String {
    let parts = [host.as_bytes(), b" ", subsystem.as_bytes(), b" NVMe-over-Fabrics"];
    STANDARD.encode(hash.hmac(key, &parts))
}

/// The key of TLS.
pub(crate) fn tls_psk(hash: Hash, key: &[u8], context: &str) -> Zeroizing<Vec<u8>> {
    derive(hash, key, "nvme-tls-psk", context.as_bytes(), hash.len())
}
