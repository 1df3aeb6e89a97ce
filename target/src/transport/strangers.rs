//! What connects that is no host of the listener's transport.

use nvmf_subsystem::TransportType;

/// Bytes that tell most of them.
pub(super) const ENOUGH: usize = 24;

/// What the log says of one at a listener of `own`: what its first bytes look like, or else what is wrong with them.
pub(super) fn cause(fault: &str, bytes: &[u8], own: TransportType) -> String {
    recognized(bytes, own).map_or_else(|| fault.to_owned(), |what| format!("this is {what}"))
}

/// What its first bytes look like. A host of `own` is no stranger, however wrong the rest of what it says.
pub(super) fn recognized(bytes: &[u8], own: TransportType) -> Option<&'static str> {
    let starts = |with: &[u8]| bytes.starts_with(with);
    Some(if own != TransportType::RDMA && starts(b"MPA ID Req") {
        "an MPA request (iWARP): the host uses -t rdma, and this listener is for -t tcp"
    } else if own != TransportType::TCP && starts(&[0x00, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00]) {
        "an ICReq (NVMe/TCP): the host uses -t tcp, and this listener is for -t rdma"
    } else if starts(&[0x16, 0x03]) {
        "a ClientHello (TLS), and this listener has no TLS"
    } else if ["GET ", "HEAD ", "POST ", "PUT ", "OPTIONS ", "CONNECT ", "PRI * HTTP/2"]
        .iter()
        .any(|method| starts(method.as_bytes()))
    {
        "an HTTP request, and no host of this target"
    } else if starts(b"SSH-") {
        "SSH, and no host of this target"
    } else {
        return None;
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_the_listeners_own_transport_are_no_strangers() {
        let (mpa, ic_req) = (&b"MPA ID Req Frame\x00\x02\x00\x00"[..], &b"\0\0\x80\0\x80\0\0\0\x01\0"[..]);
        for (bytes, own, other) in [
            (mpa, TransportType::RDMA, TransportType::TCP),
            (ic_req, TransportType::TCP, TransportType::RDMA),
        ] {
            assert_eq!(cause("it is wrong", bytes, own), "it is wrong");
            assert_ne!(cause("it is wrong", bytes, other), "it is wrong");
        }
    }

    #[test]
    fn strangers_are_named_by_their_first_bytes() {
        let (rdma, tcp) = (TransportType::RDMA, TransportType::TCP);
        for (bytes, own, what) in [
            (&b"MPA ID Req Frame\x00\x01\x00\x00"[..], tcp, "MPA request"),
            (b"\0\0\x80\0\x80\0\0\0\0\0\0\0", rdma, "ICReq"),
            (b"\x16\x03\x01\x02\x00\x01", rdma, "TLS"),
            (b"GET / HTTP/1.1\r\n", rdma, "HTTP"),
            (b"PRI * HTTP/2.0\r\n", tcp, "HTTP"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", tcp, "SSH"),
        ] {
            let cause = cause("it is wrong", bytes, own);
            assert!(cause.contains(what), "{cause}");
        }
        for bytes in [&b""[..], b"M", b"\0\0\0\0\0\0\0\0"] {
            assert_eq!(cause("it is wrong", bytes, rdma), "it is wrong");
            assert_eq!(cause("it is wrong", bytes, tcp), "it is wrong");
        }
    }
}
