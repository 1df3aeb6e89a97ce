//! Target: the private data of an NVMe/RDMA connection.

use nvme_proto::rdma::{AcceptData, RejectData, Request};
use zerocopy::IntoBytes;

/// Parses the bytes as a request, an acceptance and a rejection; a parsed value is emitted and parsed again.
///
/// # Panics
/// When an invariant is violated.
pub fn private_data(data: &[u8]) {
    match Request::parse(data) {
        Ok(request) => {
            assert!(data.len() >= 32 && request.hsqsize >= 1);
            assert_eq!(Request::parse(request.emit().as_bytes()), Ok(request));
        }
        Err(status) => assert!(!status.to_string().is_empty()),
    }
    if let Some(crqsize) = AcceptData::parse(data) {
        assert_eq!(AcceptData::parse(AcceptData::new(crqsize).as_bytes()), Some(crqsize));
    }
    if let Some(status) = RejectData::parse(data) {
        assert_eq!(RejectData::parse(RejectData::new(status).as_bytes()), Some(status));
    }
}
