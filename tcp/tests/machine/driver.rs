//! A receiver fed with bytes, as a transport would feed it.

use nvme_proto::tcp::{
    C2hData, DataAlignment, Digests, FatalError, FatalErrorStatus, H2cData, IcReq, IcResp, R2t, Receiver,
};
use nvme_proto::{Cid, Cqe, Sqe, Status};
use nvmf_tcp::{Crc32c, End, Event, Head, PduReceiver, ToController, ToHost};

pub(crate) const NONE: Digests = Digests { header: false, data: false };
pub(crate) const BOTH: Digests = Digests { header: true, data: true };
pub(crate) const ALL: [Digests; 4] =
    [NONE, Digests { header: true, data: false }, Digests { header: false, data: true }, BOTH];

pub(crate) const MAXH2CDATA: u32 = 4096;

/// What came out of a receiver.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    Event(Event),
    /// Data, of one PDU.
    Data(Vec<u8>),
}

pub(crate) struct Driver {
    pub(crate) receiver: PduReceiver,
    pub(crate) seen: Vec<Seen>,
    digests: Digests,
    alignment: DataAlignment,
}

impl Driver {
    /// Before ICReq or ICResp. Agrees on `digests` when that has come, whatever it says.
    pub(crate) fn new(receiver: Receiver, digests: Digests, alignment: DataAlignment) -> Self {
        Self { receiver: PduReceiver::new(receiver), seen: Vec::new(), digests, alignment }
    }

    /// After ICReq or ICResp.
    pub(crate) fn ready(receiver: Receiver, digests: Digests) -> Self {
        let mut driver = Self::new(receiver, digests, DataAlignment::default());
        driver.feed(initialize(receiver, digests, DataAlignment::default()).as_bytes()).unwrap();
        driver.seen.clear();
        driver
    }

    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), End> {
        while !bytes.is_empty() {
            let left = self.receiver.data_left() as usize;
            if left > 0 {
                let (data, rest) = bytes.split_at(left.min(bytes.len()));
                match self.seen.last_mut() {
                    Some(Seen::Data(seen)) => seen.extend_from_slice(data),
                    _ => self.seen.push(Seen::Data(data.to_vec())),
                }
                let event = self.receiver.on_data(data);
                self.seen.extend(event.map(Seen::Event));
                bytes = rest;
                continue;
            }
            let (used, event) = self.receiver.on_bytes(bytes)?;
            assert!(used > 0, "no progress with {} bytes", bytes.len());
            bytes = &bytes[used..];
            self.seen.extend(event.map(Seen::Event));
            if let Some(Event::IcReq(_) | Event::IcResp(_)) = event {
                self.receiver.agree(self.digests, self.alignment);
            }
        }
        Ok(())
    }

    /// The events, without the data.
    pub(crate) fn events(&self) -> Vec<Event> {
        let event = |seen: &Seen| match seen {
            Seen::Event(event) => Some(*event),
            Seen::Data(_) => None,
        };
        self.seen.iter().filter_map(event).collect()
    }
}

/// The error with which these bytes end a connection that is past ICReq and ICResp.
pub(crate) fn refused(receiver: Receiver, digests: Digests, bytes: &[u8]) -> End {
    let mut driver = Driver::ready(receiver, digests);
    let end = driver.feed(bytes).expect_err("the bytes were taken");
    assert!(driver.receiver.is_over() && driver.seen.is_empty(), "{:?} before {end}", driver.seen);
    // An error stops the receiver: what follows is ignored.
    assert_eq!(driver.receiver.on_bytes(bytes), Ok((bytes.len(), None)));
    end
}

pub(crate) fn fatal(fes: u16, fei: u32) -> End {
    End::Fatal(FatalError { status: FatalErrorStatus(fes), information: fei })
}

pub(crate) fn alignment(z: u8) -> DataAlignment {
    DataAlignment::from_dwords_z(z).unwrap()
}

pub(crate) fn to_host(digests: Digests) -> ToHost {
    ToHost::new(digests, DataAlignment::default())
}

pub(crate) fn to_controller(digests: Digests) -> ToController {
    ToController::new(digests, DataAlignment::default())
}

/// ICReq towards a controller, ICResp towards a host.
pub(crate) fn initialize(receiver: Receiver, digests: Digests, alignment: DataAlignment) -> Head {
    match receiver {
        Receiver::Controller => ToController::ic_req(&IcReq { alignment, digests, maxr2t: 1 }),
        Receiver::Host => ToHost::ic_resp(&IcResp { alignment, digests, maxh2cdata: MAXH2CDATA }),
    }
}

/// A whole PDU.
pub(crate) fn with_data(head: Head, data: &[u8], digests: Digests) -> Vec<u8> {
    let mut pdu = head.as_bytes().to_vec();
    pdu.extend_from_slice(data);
    if digests.data && !data.is_empty() {
        pdu.extend_from_slice(&Crc32c::of(data).to_le_bytes());
    }
    pdu
}

/// Renews the header digest of a PDU whose header was changed.
pub(crate) fn renew_digest(pdu: &mut [u8], header_len: usize) {
    let digest = Crc32c::of(&pdu[..header_len]);
    pdu[header_len..header_len + 4].copy_from_slice(&digest.to_le_bytes());
}

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)).collect()
}

/// Each PDU that a side may receive, and what comes of it.
pub(crate) fn conversation(
    receiver: Receiver,
    digests: Digests,
    alignment: DataAlignment,
) -> (Vec<u8>, Vec<Seen>) {
    let mut bytes = initialize(receiver, digests, alignment).as_bytes().to_vec();
    let mut seen = Vec::new();
    let mut pdu = |head: Head, event: Event, data: &[u8]| {
        bytes.extend(with_data(head, data, digests));
        seen.push(Seen::Event(event));
        if !data.is_empty() {
            seen.push(Seen::Data(data.to_vec()));
            seen.push(Seen::Event(Event::DataEnd { intact: true }));
        }
    };
    let cid = Cid(0x1234);
    match receiver {
        Receiver::Controller => {
            let to = ToController::new(digests, alignment);
            let (sqe, data_len) = (Sqe::new(2), 0);
            pdu(to.command(sqe, 0).unwrap(), Event::Command { sqe, data_len }, &[]);
            let (sqe, data_len) = (Sqe::new(1), 100);
            pdu(to.command(sqe, 100).unwrap(), Event::Command { sqe, data_len }, &pattern(100, 1));
            let data = H2cData { cid, ttag: 0xfffe, offset: 0, len: 64, last: false };
            pdu(to.h2c_data(&data).unwrap(), Event::H2cData(data), &pattern(64, 2));
            let data = H2cData { offset: 64, len: 4, last: true, ..data };
            pdu(to.h2c_data(&data).unwrap(), Event::H2cData(data), &pattern(4, 3));
        }
        Receiver::Host => {
            let to = ToHost::new(digests, alignment);
            let cqe = Cqe::new(cid, Status::SUCCESS, 7);
            pdu(to.response(cqe), Event::Response(cqe), &[]);
            let r2t = R2t { cid, ttag: 9, offset: 8, len: 1 << 20 };
            pdu(to.r2t(&r2t).unwrap(), Event::R2t(r2t), &[]);
            let data = C2hData { cid, offset: 0, len: 64, last: false, success: false };
            pdu(to.c2h_data(&data).unwrap(), Event::C2hData(data), &pattern(64, 4));
            let data = C2hData { offset: 64, len: 4, last: true, success: true, ..data };
            pdu(to.c2h_data(&data).unwrap(), Event::C2hData(data), &pattern(4, 5));
        }
    }
    let first = match receiver {
        Receiver::Controller => Event::IcReq(IcReq { alignment, digests, maxr2t: 1 }),
        Receiver::Host => Event::IcResp(IcResp { alignment, digests, maxh2cdata: MAXH2CDATA }),
    };
    seen.insert(0, Seen::Event(first));
    let error = FatalError::invalid_field(2);
    let sender = match receiver {
        Receiver::Controller => Receiver::Host,
        Receiver::Host => Receiver::Controller,
    };
    bytes.extend_from_slice(nvmf_tcp::head::termination(sender, error, &[0x5a; 40]).as_bytes());
    seen.push(Seen::Event(Event::Terminated(error)));
    (bytes, seen)
}
