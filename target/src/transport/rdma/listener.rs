//! What a connection request says, and what it is answered.

use crate::exec::transport::Terms;
use crate::limits::{ADMIN_ENTRIES_MAX, ENTRIES_MIN, READ_DEPTH_MAX};
use nvme_proto::Cntlid;
use nvme_proto::rdma::{AcceptData, RejectData, RejectStatus, Request};
use nvmf_rdma::PrivateData;
use zerocopy::IntoBytes;

/// A connection request, as the provider reports it; travels between workers with the request itself.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// The port that it came in through.
    pub port: u16,
    /// The address of the host.
    pub peer: std::net::SocketAddr,
    /// Ours, that it connected to.
    pub local: std::net::IpAddr,
    /// What it said.
    pub private_data: PrivateData,
    /// RDMA READs of ours that it serves at once (its IRD).
    pub peer_responder_resources: u16,
}

impl Offer {
    /// What we accept, or why not. `io_entries_max` and `io_queues_max` are what we serve; `read_depth_max` what the
    /// provider can.
    ///
    /// A host's wish to RDMA READ from us (its ORD) is granted none, and no reason to reject: ESXi asks for one.
    ///
    /// # Errors
    /// The status to reject with.
    pub fn terms(
        &self,
        io_entries_max: u16,
        io_queues_max: u16,
        read_depth_max: u16,
    ) -> Result<Terms, RejectStatus> {
        let request = Request::parse(self.private_data.as_bytes())?;
        if request.qid.0 > io_queues_max {
            return Err(RejectStatus::INVALID_QID);
        }
        // An Admin queue has no controller yet; a host that reconnects may name its old one, which says nothing.
        let cntlid = if request.qid.0 == 0 { Cntlid(0) } else { request.cntlid };
        if cntlid > Cntlid::MAX {
            return Err(RejectStatus::INVALID_CNTLID);
        }
        if request.hsqsize < ENTRIES_MIN.into() {
            return Err(RejectStatus::INVALID_HSQSIZE);
        }
        if request.hrqsize < ENTRIES_MIN {
            return Err(RejectStatus::INVALID_HRQSIZE);
        }
        if self.peer_responder_resources == 0 {
            return Err(RejectStatus::INVALID_IRD);
        }
        let ours = if request.qid.0 == 0 { ADMIN_ENTRIES_MAX } else { io_entries_max };
        let theirs = u16::try_from(request.hsqsize).unwrap_or(u16::MAX).min(request.hrqsize);
        Ok(Terms {
            port: self.port,
            peer: self.peer,
            local: self.local,
            qid: Some(request.qid),
            cntlid: Some(cntlid),
            secure_channel: None,
            entries: ours.min(theirs),
            pulls: self.peer_responder_resources.min(read_depth_max).min(READ_DEPTH_MAX),
        })
    }
}

/// What the host is told when it is accepted.
#[must_use]
pub fn private_data(terms: &Terms) -> PrivateData {
    PrivateData::new(AcceptData::new(terms.entries).as_bytes()).expect("32 bytes fit")
}

/// What the host is told when it is rejected.
#[must_use]
pub fn rejection(status: RejectStatus) -> PrivateData {
    PrivateData::new(RejectData::new(status).as_bytes()).expect("4 bytes fit")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme_proto::Qid;

    fn agree(request: Request, ird: u16) -> Result<Terms, RejectStatus> {
        let private_data = PrivateData::new(request.emit().as_bytes()).unwrap();
        let peer = "192.0.2.1:1".parse().unwrap();
        let local = [192, 0, 2, 2].into();
        Offer { port: 1, peer, local, private_data, peer_responder_resources: ird }.terms(128, 8, 32)
    }

    fn request(qid: u16, hrqsize: u16, hsqsize: u32, cntlid: u16) -> Request {
        Request { qid: Qid(qid), hrqsize, hsqsize, cntlid: Cntlid(cntlid) }
    }

    #[test]
    fn what_hosts_ask_for_is_clamped_not_refused() {
        let entries = |request, ird| agree(request, ird).map(|terms| (terms.entries, terms.pulls));
        assert_eq!(entries(request(0, 32, 32, 0), 1), Ok((32, 1)), "Linux, Admin");
        assert_eq!(entries(request(0, 41, 40, 0), 1), Ok((40, 1)), "SPDK's abort example, Admin");
        assert_eq!(entries(request(0, 1024, 1024, 0), 1), Ok((128, 1)), "Admin, more than we serve");
        assert_eq!(entries(request(1, 128, 128, 5), 128), Ok((128, 16)), "Linux, I/O");
        assert_eq!(entries(request(1, 1024, 1024, 0), 4), Ok((128, 4)), "more than we serve");
        assert_eq!(entries(request(1, 64, 128, 0), 4), Ok((64, 4)), "no more than it has receives for");
        assert_eq!(
            entries(request(0, 32, 32, 7), 1),
            Ok((32, 1)),
            "an Admin queue with an old controller's ID"
        );
        assert_eq!(entries(request(8, 65535, 65536, 0), 4), Ok((128, 4)));
    }

    #[test]
    fn nonsense_has_its_reject_status() {
        let status = |request, ird| agree(request, ird).unwrap_err();
        assert_eq!(status(request(9, 32, 32, 0), 1), RejectStatus::INVALID_QID);
        assert_eq!(status(request(1, 32, 1, 0), 1), RejectStatus::INVALID_HSQSIZE);
        assert_eq!(status(request(1, 1, 32, 0), 1), RejectStatus::INVALID_HRQSIZE);
        assert_eq!(status(request(1, 32, 32, 0), 0), RejectStatus::INVALID_IRD);
        assert_eq!(status(request(1, 32, 32, 0xfff0), 1), RejectStatus::INVALID_CNTLID);
    }

    #[test]
    fn the_answer_says_how_many_entries() {
        let terms = agree(request(1, 128, 128, 5), 4).unwrap();
        assert_eq!(AcceptData::parse(private_data(&terms).as_bytes()), Some(128));
    }
}
