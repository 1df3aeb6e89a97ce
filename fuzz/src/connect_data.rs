//! Target: Connect commands and their data, against the registry.

use crate::disk::{self, LINK, START};
use crate::input::Input;
use nvme_proto::fabrics::connect::{ConnectData, Connected};
use nvme_proto::fabrics::fabrics_type;
use nvme_proto::opcode::FabricsType;
use nvme_proto::{Cntlid, Cqe, Status};
use nvmf_subsystem::{Link, Nqn, Qid, Queue, Registry, Source, Step, Transfer, Work};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Runs connections one after the other, each with an arbitrary Connect or a valid one with some bytes changed.
///
/// # Panics
/// When an invariant is violated.
pub fn connect_data(data: &[u8]) {
    let mut input = Input::new(data);
    let mut registry = disk::registry();
    let mut queues: Vec<Queue> = Vec::new();
    while !input.is_empty() && queues.len() < 32 {
        queues.extend(connect(&mut registry, &mut input));
    }
    while let Some(queue) = queues.pop() {
        let association = queue.association().expect("only connected queues are kept");
        let qid = queue.qid().expect("connected");
        let _ = registry.close_queue(association, qid);
    }
    assert_eq!(registry.associations().count(), 0, "every association ends with its queues");
}

/// One connection; the queue, if it was admitted.
fn connect(registry: &mut Registry, input: &mut Input<'_>) -> Option<Queue> {
    let choice = input.u8();
    let qid = u16::from(choice >> 2 & 3);
    let cntlid = if qid == 0 { Cntlid::DYNAMIC } else { Cntlid(input.u16()) };
    let mut sqe: [u8; 64] = zerocopy::transmute!(disk::connect_command(qid));
    let mut data = disk::connect_data(cntlid);
    if choice & 1 != 0 {
        sqe = input.array();
    }
    if choice & 2 != 0 {
        for _ in 0..input.u8() % 8 {
            let at = usize::from(input.u16()) % (64 + ConnectData::LEN);
            let byte = sqe.iter_mut().chain(data.as_mut_bytes()).nth(at).expect("within both");
            *byte = input.u8();
        }
    }
    let link = Link { qid: (choice & 0x10 != 0).then_some(qid), entries: input.u16(), ..LINK };
    let mut queue = Queue::new(START, link);
    let in_capsule_len = if choice & 0x20 != 0 { 4096 } else { 0 };
    let request = match queue.on_capsule(START, &sqe, in_capsule_len) {
        Step::Respond(response) => {
            let status = Cqe::read_from_bytes(&response.cqe).expect("16 bytes").status();
            assert!(!status.is_success(), "nothing but a Connect succeeds first");
            let is_connect = fabrics_type(&zerocopy::transmute!(sqe)) == Some(FabricsType::CONNECT);
            assert!(!is_connect || !status.is(Status::INVALID_FIELD), "a Connect never fails like this");
            return None;
        }
        Step::Execute { ticket, work: Work::Parameters, transfer } => {
            let Transfer::FromHost { len: 1024, source } = transfer else { panic!("{transfer:?}") };
            if let Source::InCapsule { offset } = source {
                assert!(offset as usize + 1024 <= in_capsule_len);
            }
            match queue.on_parameters(START, ticket, data.as_bytes()) {
                Step::Connect(request) => request,
                step => panic!("a Connect must be passed to the registry, not {step:?}"),
            }
        }
        step => panic!("{step:?} before a Connect"),
    };
    let admission = registry.connect(START, &request, true);
    if let Err(refusal) = &admission.outcome {
        assert!(!refusal.to_string().is_empty() && !refusal.status().is_success());
    }
    let Step::Respond(response) = queue.on_admission(START, request, admission) else {
        panic!("an admission must yield a response")
    };
    let cqe = Cqe::read_from_bytes(&response.cqe).expect("16 bytes");
    assert_eq!(cqe.status().is_success(), queue.association().is_some());
    let association = Arc::clone(queue.association()?);
    // The Host Identifier of an I/O queue may be 0.
    if queue.qid() == Some(Qid(0)) || !data.hostid().is_zero() {
        assert_eq!(association.host_id(), data.hostid());
    }
    assert_eq!(Nqn::from_field(&data.hostnqn).as_ref(), Ok(association.host_nqn()));
    assert_eq!(Connected::parse(cqe.dw0.get()).cntlid, association.key().cntlid);
    if queue.qid() == Some(Qid(0)) {
        // So that I/O queues can follow.
        disk::enable(&mut queue, START);
    }
    Some(queue)
}
