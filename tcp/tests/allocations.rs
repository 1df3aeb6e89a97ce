//! Once the receivers and ledgers of both sides are made, nothing is allocated.

use nvme_proto::tcp::{C2hData, Digests, IcReq, IcResp, Receiver};
use nvme_proto::{Cid, Cqe, Sqe, Status};
use nvmf_tcp::controller::Transfers;
use nvmf_tcp::host::{Commands, Transfer};
use nvmf_tcp::{Crc32c, Event, PduReceiver, ToController, ToHost};

const CID: Cid = Cid(3);
const DATA: [u8; 4096] = [0x5a; 4096];

/// One PDU; returns its first event, after its data were taken.
fn pdu(receiver: &mut PduReceiver, head: &[u8], data: &[u8]) -> Event {
    let (used, event) = receiver.on_bytes(head).unwrap();
    receiver.on_bytes(&head[used..]).unwrap();
    if !data.is_empty() {
        assert_eq!(receiver.on_data(data), None);
        let (_, end) = receiver.on_bytes(&Crc32c::of(data).to_le_bytes()).unwrap();
        assert_eq!(end, Some(Event::DataEnd { intact: true }));
    }
    assert!(receiver.is_between_pdus());
    event.unwrap()
}

#[test]
fn commands_of_every_kind_allocate_nothing() {
    let digests = Digests { header: true, data: true };
    let (alignment, maxh2cdata) = (Default::default(), 4096);
    let (to_host, to_controller) = (ToHost::new(digests, alignment), ToController::new(digests, alignment));
    let (mut controller, mut host) =
        (PduReceiver::new(Receiver::Controller), PduReceiver::new(Receiver::Host));
    let mut transfers = Transfers::new(1028, maxh2cdata);
    let mut commands = Commands::new(1024, maxh2cdata);
    let counted = allocation_counter::measure(|| {
        let request = ToController::ic_req(&IcReq { alignment, digests, maxr2t: 1 });
        pdu(&mut controller, request.as_bytes(), &[]);
        controller.agree(digests, alignment);
        let response = ToHost::ic_resp(&IcResp { alignment, digests, maxh2cdata });
        pdu(&mut host, response.as_bytes(), &[]);
        host.agree(digests, alignment);
        for _ in 0..100 {
            // A write with data in its capsule.
            commands.begin(CID, Transfer::None);
            pdu(&mut controller, to_controller.command(Sqe::new(1), 4096).unwrap().as_bytes(), &DATA);
            let cqe = Cqe::new(CID, Status::SUCCESS, 0);
            pdu(&mut host, to_host.response(cqe).as_bytes(), &[]);
            commands.on_response(&cqe).unwrap();

            // A write by R2T.
            commands.begin(CID, Transfer::ToController(8192));
            let r2t = transfers.begin(9, CID, 0, 8192).unwrap();
            pdu(&mut host, to_host.r2t(&r2t).unwrap().as_bytes(), &[]);
            commands.on_r2t(&r2t).unwrap();
            while let Some(data) = commands.next_h2c_data(CID) {
                let head = to_controller.h2c_data(&data).unwrap();
                assert_eq!(pdu(&mut controller, head.as_bytes(), &DATA), Event::H2cData(data));
                transfers.on_data(&data).unwrap();
                transfers.on_data_end(true).unwrap();
            }
            assert!(!transfers.is_outstanding(9));
            commands.on_response(&cqe).unwrap();

            // A read whose response is in its data.
            commands.begin(CID, Transfer::ToHost(4096));
            let data = C2hData { cid: CID, offset: 0, len: 4096, last: true, success: false };
            let mut head = to_host.c2h_data(&data).unwrap();
            assert!(head.set_success());
            let Event::C2hData(data) = pdu(&mut host, head.as_bytes(), &DATA) else { panic!("no C2HData") };
            commands.on_data(&data).unwrap();
            assert_eq!(commands.on_data_end(true).unwrap().fault, None);
        }
        // The end: a header that is refused, and the request that says why.
        let refused = controller.on_bytes(&[0xff; 8]).unwrap_err();
        let nvmf_tcp::End::Fatal(error) = refused else { panic!("{refused}") };
        let request = controller.terminate(error);
        assert_eq!(host.on_bytes(request.as_bytes()).unwrap().1, Some(Event::Terminated(error)));
    });
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
