//! One RDMA WRITE cut into FPDUs and placed, again and again: measures the time per byte between two sockets.

use crate::config::IwarpConfig;
use crate::handshake::Agreement;
use crate::qp::{Domain, QueuePair, Role};
use nvmf_memory::Memory;
use nvmf_rdma::{
    Access, CompletionQueueId, MemoryRegion, Payload, QueuePairAttributes, QueuePairId, SendOperation,
    SendRequest, Sge, WorkRequestId,
};
use std::collections::VecDeque;

const QP: QueuePairId = QueuePairId(1);
const CQ: CompletionQueueId = CompletionQueueId(0);

#[derive(Debug)]
struct End {
    domain: Domain,
    qp: QueuePair,
    memory: Memory,
    region: MemoryRegion,
}

impl End {
    fn new(role: Role, len: usize, fpdu_max: usize, crc: bool) -> Self {
        let mut domain = Domain::new(&IwarpConfig::default());
        domain.completion_queues.push(VecDeque::new());
        let memory = Memory::alloc(len).expect("memory");
        let region = domain.stags.register(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let region = region.expect("a key");
        let attributes = QueuePairAttributes {
            send_cq: CQ,
            receive_cq: CQ,
            shared_receive_queue: None,
            max_send: 4,
            max_receive: 1,
            max_exposed: 1,
        };
        let mut qp = QueuePair::new(QP, &attributes);
        let agreement =
            Agreement { crc, responder_resources: 1, initiator_depth: 1, rtr: None, large_fpdu: true };
        qp.start(role, &agreement, fpdu_max);
        Self { domain, qp, memory, region }
    }
}

/// Two queue pairs and the stream between them.
#[derive(Debug)]
pub struct Pipe {
    from: End,
    to: End,
    len: usize,
    stream: Vec<u8>,
}

impl Pipe {
    /// For WRITEs of `len` bytes in FPDUs of at most `fpdu_max`; with CRCs or without.
    ///
    /// # Panics
    /// When memory is short.
    #[must_use]
    pub fn new(len: usize, fpdu_max: usize, crc: bool) -> Self {
        let from = End::new(Role::Initiator, len, fpdu_max, crc);
        let to = End::new(Role::Responder, len, fpdu_max, crc);
        Self { from, to, len, stream: Vec::with_capacity(2 * len + 4096) }
    }

    /// Cuts one WRITE into FPDUs, and copies them as the socket would take them. Returns the stream's bytes.
    ///
    /// # Panics
    /// When the queue pair refuses.
    pub fn cut(&mut self) -> usize {
        let End { domain, qp, region, .. } = &mut self.from;
        let gather = [Sge { local_key: region.local_key, offset: 0, len: self.len as u32 }];
        let remote = self.to.region.remote.expect("remote access");
        let operation = SendOperation::Write { payload: Payload::Gather(&gather), remote };
        let request = SendRequest { id: WorkRequestId(0), operation, signaled: true };
        qp.post_send(domain, &request).expect("room");
        self.stream.clear();
        loop {
            assert!(qp.fill(domain, usize::MAX).is_ok(), "nothing is wrong with the stream");
            let before = self.stream.len();
            qp.chunks().append_to(&mut self.stream);
            let taken = self.stream.len() - before;
            if taken == 0 {
                break;
            }
            qp.on_sent(domain, taken);
        }
        domain.completion_queues[0].clear();
        self.stream.len()
    }

    /// Places what [`Pipe::cut`] made last, in reads of at most `step` bytes: payloads straight into memory where they
    /// can go there, as the provider does it.
    ///
    /// # Panics
    /// When the stream is refused.
    pub fn place(&mut self, step: usize) {
        let End { domain, qp, .. } = &mut self.to;
        let mut rest = &self.stream[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(step.min(rest.len()));
            let mut left = now;
            if let Some((memory, offset, len)) = qp.direct(domain, 1) {
                let n = len.min(left.len());
                memory.write(offset, &left[..n]);
                qp.on_placed(n);
                left = &left[n..];
            }
            assert!(qp.on_bytes(domain, left).is_ok(), "nothing is wrong with the stream");
            rest = later;
        }
    }

    /// The bytes where they are now.
    #[must_use]
    pub fn placed(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.to.memory.read(0, &mut bytes);
        bytes
    }

    /// Sets what is written.
    pub fn fill(&self, byte: u8) {
        self.from.memory.fill(0, self.len, byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_is_placed() {
        for (len, fpdu_max, crc) in [(4096, 1024, true), (65_536, 65_535, false), (4096, 4200, true)] {
            let mut pipe = Pipe::new(len, fpdu_max, crc);
            for byte in [1, 2] {
                pipe.fill(byte);
                let stream = pipe.cut();
                assert!(stream > len, "headers lie around {len} bytes");
                pipe.place(1000);
                assert!(pipe.placed() == vec![byte; len]);
            }
        }
    }
}
