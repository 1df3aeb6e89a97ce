//! NVMe/RDMA on the host's side: capsules out, responses in, memory exposed for exactly one command.

mod queue_pair;

pub(crate) use queue_pair::{
    Data, Finished, LinkState, MakeError, Owner, Payload, QueuePair, Refused, WorkRequest, local_access,
};
