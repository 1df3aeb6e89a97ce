//! DH-HMAC-CHAP between the two engines.

use super::*;
use nvmf_auth::controller::Keys;
use nvmf_auth::host::{HostError, Secrets};
use nvmf_auth::{Group, Hash, Secret, Terms};
use nvmf_host::{AuthenticationConfig, Qid};
use nvmf_subsystem::Authentication;

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 48], Some(Hash::Sha384)).unwrap()
}

fn terms() -> Terms {
    Terms::new(&Hash::ALL, &[Group::Null, Group::Ffdhe2048]).unwrap()
}

fn registry_with_key() -> Registry {
    let mut registry = registry(options());
    let hosts = [(nqn(HOST), terms())].into();
    registry.set_authentication(Authentication { hosts, ..Authentication::default() });
    registry
}

fn config_with_secret() -> AssociationConfig {
    let authentication = Some(AuthenticationConfig { terms: terms(), insist: true, concatenate: false });
    AssociationConfig { authentication, ..config() }
}

/// Connects with the host's and the controller's secret, where the target has those of 1 and 2.
fn connect(own: u8, controller: Option<u8>) -> Pair {
    let keys = Keys { host: Some(secret(1)), controller: Some(secret(2)) };
    let secrets = Secrets { host: secret(own), controller: controller.map(secret) };
    Pair::connect_with(registry_with_key(), config_with_secret(), Some((keys, secrets)))
}

#[test]
fn every_queue_is_authenticated_and_io_flows() {
    for controller in [None, Some(2)] {
        let mut pair = connect(1, controller);
        assert_eq!(pair.take_events(), [HostEvent::Ready]);
        assert_eq!(pair.authentications, 4, "the Admin queue and three more");
        let range = BlockRange::new(0, 1);
        assert_eq!(pair.io(1, Operation::Write { range, fua: false }, &mut pattern(1, 1)), Ok(()));
        for run in 1..=10 {
            assert!(pair.host.authenticate_again(pair.now));
            pair.settle();
            assert_eq!(pair.take_events(), [HostEvent::AuthenticatedAgain]);
            assert_eq!(pair.authentications, 4 + 4 * run);
            assert_eq!(
                pair.io(1, Operation::Write { range, fua: false }, &mut pattern(run.into(), 1)),
                Ok(())
            );
        }
        assert!(pair.disk.read(range) == pattern(10, 1));
    }
}

#[test]
fn wrong_secret_of_either_side_is_named_and_final() {
    let refused = HostError::Refused(nvme_proto::fabrics::auth::FailureExplanation(1));
    for (own, controller, error) in [(3, None, refused), (1, Some(3), HostError::WrongController)] {
        let mut pair = connect(own, controller);
        let events = pair.take_events();
        let [HostEvent::Failed(failed), HostEvent::Closed] = &events[..] else { panic!("{events:?}") };
        assert_eq!(*failed, AssociationError::Authentication { qid: Qid(0), error });
        assert!(failed.is_permanent());
        pair.assert_clean();
    }
}

/// As the kernel's targets do.
#[test]
fn controller_that_hangs_up_when_it_is_told_of_its_wrong_secret_is_named() {
    let mut pair = connect(1, Some(2));
    assert_eq!(pair.take_events(), [HostEvent::Ready]);
    pair.keys.as_mut().unwrap().0.controller = Some(secret(3));
    // AUTH_Failure2.
    pair.hangs_up_at = Some([0x00, 0xF0]);
    assert!(pair.host.authenticate_again(pair.now));
    pair.settle();
    let events = pair.take_events();
    let [HostEvent::Failed(failed), HostEvent::Closed] = &events[..] else { panic!("{events:?}") };
    let error = HostError::WrongController;
    assert_eq!(*failed, AssociationError::Authentication { qid: Qid(0), error });
}

#[test]
fn host_insists_where_it_was_given_a_secret() {
    let mut pair = Pair::connect(registry(options()), config_with_secret());
    let [HostEvent::Failed(failed), HostEvent::Closed] = &pair.take_events()[..] else {
        panic!("it connects")
    };
    assert_eq!(*failed, AssociationError::NotAuthenticated);
    let authentication = Some(AuthenticationConfig { terms: terms(), insist: false, concatenate: false });
    Pair::ready(registry(options()), AssociationConfig { authentication, ..config() });
    // And a host without a secret is told what it needs.
    let mut pair = Pair::connect(registry_with_key(), config());
    let [HostEvent::Failed(failed), HostEvent::Closed] = &pair.take_events()[..] else {
        panic!("it connects")
    };
    assert_eq!(*failed, AssociationError::AuthenticationRequired);
}
