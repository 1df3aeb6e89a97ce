//! The suite that every provider passes.
//!
//! | file | what it checks |
//! |---|---|
//! | `rig` | no check: two providers under one clock, and the operations that the checks consist of |
//! | `connection` | listening, connecting, accepting, rejecting, handing over |
//! | `sleep` | sleeping, and what ends it |
//! | `messages` | SEND and RECV: sizes, order, inline, gather, invalidation |
//! | `queues` | bounds of the queues, unsignalled requests, early messages, shared receive queues |
//! | `memory_access` | RDMA WRITE and READ that are allowed |
//! | `violation` | those that are not |
//! | `teardown` | disconnecting, flushing, destroying |
//!
//! Each check gets a fresh [`Pair`] and panics when the contract is broken. Every wait is bounded by the pair's own
//! clock. Nothing is asserted that the contract leaves open: where iWARP and InfiniBand differ, both ways pass.

mod connection;
mod memory_access;
mod messages;
mod queues;
mod rig;
mod sleep;
mod teardown;
mod violation;

use crate::Provider;
use core::time::Duration;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Two providers that reach each other.
pub struct Pair<P> {
    /// The side that connects.
    pub left: P,
    /// The side that listens.
    pub right: P,
    /// Where `right` can listen: an address of it with port 0.
    pub address: SocketAddr,
    /// Lets a little time pass (a yield or a short sleep; under virtual time, a step of the clock) and returns the
    /// time. Both providers get this time.
    pub tick: Box<dyn FnMut() -> Duration>,
}

/// One check of the suite.
pub type Check<P> = fn(Pair<P>);

macro_rules! list {
    ($($file:ident: $($check:ident),+;)+) => {
        vec![$($((concat!(stringify!($file), "::", stringify!($check)), $file::$check::<P> as Check<P>)),+),+]
    };
}

/// All checks, by name.
#[must_use]
pub fn checks<P: Provider>() -> Vec<(&'static str, Check<P>)> {
    list! {
        connection: private_data_travels_both_ways, read_depths_are_negotiated, a_rejection_says_why,
            nobody_listens, nobody_answers_in_time, an_unlistened_request_fails, ports_are_exclusive,
            wrong_calls_are_refused, states_follow_the_life, requests_move_between_providers,
            fifty_connections;
        sleep: a_sleeper_is_woken, a_sleeper_is_woken_by_what_it_read;
        messages: all_sizes_both_ways, a_thousand_in_order, inline_bytes_are_copied_when_posted,
            gathered_in_order, invalidation_is_reported, solicited_is_delivered, posting_does_not_ring;
        queues: a_full_queue_says_so, slots_come_back, malformed_requests_are_refused,
            unsignaled_success_is_silent, early_messages_wait, any_number_of_messages_waits,
            a_shared_queue_serves_two,
            a_message_too_long;
        memory_access: written_before_the_message, a_borrowed_payload_ends_with_flush, writes_of_all_sizes, reads_of_all_sizes,
            more_reads_than_credits, reads_in_both_directions, a_read_completes_before_what_follows, no_standing_key_is_needed,
            rights_are_asked_for, work_in_flight_holds_its_memory;
        violation: wrong_key, key_of_another_queue_pair, one_byte_too_far, one_byte_too_early,
            an_address_that_wraps, wrong_right, after_remote_invalidation, after_local_invalidation,
            after_deregistration, after_destruction, invalidation_of_a_foreign_key,
            invalidation_of_a_region;
        teardown: either_side_disconnects, both_sides_disconnect, posted_work_is_still_sent,
            sends_complete_once_in_order, destroyed_with_work_in_flight, keys_come_back_with_their_queue_pair, a_failed_set_up_flushes,
            an_idle_queue_pair_is_destroyed_in_silence;
    }
}

/// Runs all checks, each on a fresh pair, and reports every failure by name.
///
/// # Panics
/// When a check failed.
pub fn run<P: Provider>(mut make_pair: impl FnMut() -> Pair<P>) {
    let mut failed = Vec::new();
    for (name, check) in checks::<P>() {
        let pair = make_pair();
        // Whatever a failed check leaves behind is dropped with its pair.
        if catch_unwind(AssertUnwindSafe(|| check(pair))).is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{} checks failed: {failed:#?}", failed.len());
}
