//! Target: the messages of DH-HMAC-CHAP, to both sides.

use crate::input::Input;
use nvme_proto::fabrics::auth::Message;
use nvmf_auth::controller::{Controller, Keys};
use nvmf_auth::host::{Host, Next, Secrets};
use nvmf_auth::{Concatenation, Group, Hash, Names, Secret, Terms};

/// Takes the input as the text of a secret, and as steps of an authentication: each a byte that says what happens, and
/// for a message its length and bytes. The controller knows another secret than whoever sends has, so nobody may be
/// authenticated; the host asks the controller for a proof that it cannot give.
///
/// # Panics
/// When an invariant is violated.
pub fn authentication(data: &[u8]) {
    if let Ok(text) = core::str::from_utf8(data) {
        match Secret::parse(text) {
            Ok(secret) => {
                assert_eq!(secret.to_interchange().trim_end_matches(':'), text.trim_end_matches(':'))
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let name = |text: &str| text.parse().expect("it is an NQN");
    let names = Names { host: name("nqn.host"), subsystem: name("nqn.disk") };
    let secret = |byte| Secret::new(&[byte; 32], None).expect("32 bytes");
    let keys = Keys { host: Some(secret(1)), controller: Some(secret(2)) };
    let secrets = Secrets { host: secret(3), controller: Some(secret(4)) };
    // Exponentiations would take most of the time.
    let terms = Terms::new(&Hash::ALL, &[Group::Null]).expect("one of each");
    let concatenation = Concatenation::New { required: data.len() % 2 == 1 };
    let mut controller = Controller::new(names, terms).with_concatenation(concatenation);
    let (mut host, first) = Host::start(names, terms, 1);
    let mut sent = match first {
        Next::Send(message) => message,
        _ => Vec::new(),
    };
    let mut random = |bytes: &mut [u8]| {
        bytes.fill(5);
        Ok(())
    };
    let mut input = Input::new(data);
    while !input.is_empty() {
        let step = input.u8();
        match step % 6 {
            // The peer's own message, or the host's with a byte changed.
            0 | 1 => {
                let mut message = sent.clone();
                if step.is_multiple_of(6) {
                    let len = usize::from(input.u16()) % 512;
                    message = input.take(len).to_vec();
                } else if let Some(byte) = message.get_mut(usize::from(input.u16())) {
                    *byte = input.u8();
                }
                if let Some(task) = controller.on_message(&message) {
                    controller.on_computed(task.run(Some(&keys), &mut random));
                }
            }
            2 => {
                let message = controller.message().to_vec();
                assert!(Message::parse(&message).is_ok_and(|it| it.wire_len() == message.len()));
                controller.on_message_taken();
                sent = after(host.on_received(&message), &mut host, &secrets, sent);
            }
            3 => {
                let len = usize::from(input.u16()) % 512;
                let message = input.take(len).to_vec();
                sent = after(host.on_received(&message), &mut host, &secrets, sent);
            }
            4 => sent = after(host.on_sent(), &mut host, &secrets, sent),
            _ => controller.give_up(),
        }
        assert!(!controller.is_authenticated() && !controller.is_concatenated(), "without the secret");
        if let Some(fault) = controller.fault() {
            assert!(!fault.to_string().is_empty());
        }
    }
}

/// Does what the host wants; returns what it sent last.
fn after(
    next: Result<Next, nvmf_auth::host::HostError>,
    host: &mut Host,
    secrets: &Secrets,
    sent: Vec<u8>,
) -> Vec<u8> {
    let mut random = |bytes: &mut [u8]| {
        bytes.fill(6);
        Ok(())
    };
    match next {
        Ok(Next::Send(message)) => message,
        Ok(Next::Compute(task)) => {
            after(host.on_computed(task.run(secrets, &mut random)), host, secrets, sent)
        }
        Ok(Next::Done) => panic!("the controller never proved itself"),
        Ok(Next::Receive) => sent,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            sent
        }
    }
}
