//! Vectors, and the two sides against each other.

extern crate std;

use crate::controller::{self, Controller, Fault};
use crate::host::{Host, HostError, Next, Secrets};
use crate::response::Agreed;
use crate::{
    Concatenation, GeneratedKey, Group, Hash, KeyPair, MESSAGE_LEN_MAX, Names, NoRandom, Secret, SecretError,
    Terms,
};
use nvme_proto::fabrics::auth::{FailureExplanation as Explanation, Message, SecureChannel};
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;
use zeroize::Zeroizing;

mod concatenation;
mod faults;
mod machines;
mod vectors;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn names() -> Names {
    Names {
        host: "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001".parse().unwrap(),
        subsystem: "nqn.2024-01.example:disk".parse().unwrap(),
    }
}

fn secret(first: u8, transform: Option<Hash>) -> Secret {
    let key: Vec<u8> = (first..first + 32).collect();
    Secret::new(&key, transform).unwrap()
}

/// Numbers that differ from call to call, the same in every run.
fn random() -> impl FnMut(&mut [u8]) -> Result<(), NoRandom> {
    let mut seed = 1u64;
    move |bytes| {
        for byte in bytes {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (seed >> 56) as u8;
        }
        Ok(())
    }
}

/// Both sides of one queue.
struct Rig {
    controller: Controller,
    keys: Option<controller::Keys>,
    secrets: Secrets,
    terms: Terms,
    transaction: u16,
    /// What the host negotiates.
    secure_channel: SecureChannel,
    /// What each side has made, the controller's first.
    made: [Option<GeneratedKey>; 2],
}

impl Rig {
    /// Both ways, over this group.
    fn new(hash: Hash, group: Group) -> Self {
        let terms = Terms::new(&[hash], &[group]).unwrap();
        let keys = controller::Keys { host: Some(secret(0, None)), controller: Some(secret(32, None)) };
        let secrets = Secrets { host: secret(0, None), controller: Some(secret(32, None)) };
        Self {
            controller: Controller::new(names(), Terms::default()),
            keys: Some(keys),
            secrets,
            terms,
            transaction: 0,
            secure_channel: SecureChannel::NONE,
            made: [None, None],
        }
    }

    /// The controller takes a message; its task is run.
    fn send(&mut self, message: &[u8]) {
        assert!(message.len() <= MESSAGE_LEN_MAX);
        if let Some(task) = self.controller.on_message(message) {
            let computed = task.run(self.keys.as_ref(), &mut random());
            if let Some(generated) = computed.generated() {
                self.made[0] = Some(generated.key.clone());
            }
            self.controller.on_computed(computed);
        }
    }

    /// The host takes the controller's message, in a buffer as long as a host's.
    fn receive(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 4096];
        let message = self.controller.message();
        buffer[..message.len()].copy_from_slice(message);
        self.controller.on_message_taken();
        buffer
    }

    fn failure(&mut self) -> Explanation {
        let message = self.receive();
        let Ok(Message::Failure1(failure)) = Message::parse(&message) else {
            panic!("{:?}", self.controller)
        };
        assert!(self.controller.is_over() && !self.controller.is_authenticated());
        failure.explanation
    }

    /// One authentication as a host does it.
    fn authenticate(&mut self) -> Result<(), HostError> {
        self.transaction += 1;
        let (mut host, mut next) =
            Host::start_with(names(), self.terms, self.transaction, self.secure_channel);
        loop {
            next = match next {
                Next::Send(message) => {
                    self.send(&message);
                    host.on_sent()?
                }
                Next::Receive => host.on_received(&self.receive())?,
                Next::Compute(task) => host.on_computed(task.run(&self.secrets, &mut random()))?,
                Next::Done => {
                    self.made[1] = host.take_key();
                    return Ok(());
                }
            };
        }
    }
}
