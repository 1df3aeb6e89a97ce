//! What counters mean: a table of names, in the words of Linux and of the drivers.

use super::counters::Source;

/// How a counter is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    /// Something was lost, damaged or given up: bad while it grows, to be watched when it once did.
    Fault,
    /// Something had to wait or slow down: to be watched while it grows.
    Congestion,
    /// Known, and harmless.
    Harmless,
}

/// A line of the table.
#[derive(Debug)]
pub(super) struct Meaning {
    source: Source,
    /// The counter's name in lower case; `*` stands for any characters.
    pattern: &'static str,
    pub(super) weight: Weight,
    /// What it counts.
    pub(super) meaning: &'static str,
    /// What to do when it grows.
    pub(super) mend: &'static str,
}

const fn of(
    source: Source,
    pattern: &'static str,
    weight: Weight,
    meaning: &'static str,
    mend: &'static str,
) -> Meaning {
    Meaning { source, pattern, weight, meaning, mend }
}

const LOSS: &str = "packets are lost on the way: look for discards and CRC errors here, at the peer and at every switch port between; for RoCE, have PFC or ECN on all of them";
const CABLE: &str =
    "the cable, transceiver or port is at fault: clean or replace it (ethtool -m NETDEV shows its levels)";
const SLOW_RECEIVER: &str = "the receiver cannot keep up: more receives posted there (a larger queue size), more CPU for it, or fewer peers";
const SLOWED: &str = "somewhere more is sent than fits: see which peers send at once (incast), and whether links differ in speed";
const RING: &str = "this machine takes packets too slowly: ethtool -G NETDEV rx 4096; spread interrupts over CPUs; larger MTU";
const REFUSED: &str =
    "a peer names memory that it may not reach, or one side broke off: see the logs of both sides";

use Source::{Ethtool, Hardware, Netdev, Port, Tcp};
use Weight::{Congestion, Fault, Harmless};

/// The first line that fits counts.
static TABLE: &[Meaning] = &[
    // InfiniBand's own port counters. RoCE ports show them too, mostly at zero.
    of(Port, "symbol_error", Fault, "bits damaged on the wire", CABLE),
    of(Port, "link_error_recovery", Fault, "the link had to be trained again", CABLE),
    of(
        Port,
        "link_downed",
        Congestion,
        "the link went down",
        "see the kernel log for when: dmesg -T | grep -i link",
    ),
    of(Port, "port_rcv_errors", Fault, "damaged packets received", CABLE),
    of(
        Port,
        "port_rcv_remote_physical_errors",
        Fault,
        "packets received that were damaged before",
        "follow the path towards the sender: a link further off is at fault (ibqueryerrors)",
    ),
    of(
        Port,
        "port_rcv_switch_relay_errors",
        Congestion,
        "packets that a switch could not pass on",
        "see the subnet manager's log",
    ),
    of(Port, "port_xmit_discards", Fault, "packets given up before they were sent", LOSS),
    of(
        Port,
        "port_*_constraint_errors",
        Fault,
        "packets against the partition rules",
        "compare the partition keys of both sides: cat /sys/class/infiniband/*/ports/*/pkeys/0",
    ),
    of(Port, "local_link_integrity_errors", Fault, "too many damaged bits at once", CABLE),
    of(Port, "excessive_buffer_overrun_errors", Fault, "the receive buffer overran", CABLE),
    of(Port, "vl15_dropped", Harmless, "management packets dropped", ""),
    of(Port, "port_xmit_wait", Congestion, "times that there was data and no credit to send it", SLOWED),
    // RDMA cards, mlx5's names first.
    of(Hardware, "out_of_buffer", Fault, "messages that found no receive posted", SLOW_RECEIVER),
    of(Hardware, "out_of_sequence", Fault, "packets out of sequence: one before was lost or overtaken", LOSS),
    of(Hardware, "packet_seq_err", Fault, "peers said that a packet was missing", LOSS),
    of(Hardware, "implied_nak_seq_err", Fault, "answers that showed a gap", LOSS),
    of(Hardware, "local_ack_timeout_err", Fault, "nothing came back in time, sent again", LOSS),
    of(Hardware, "duplicate_request", Fault, "requests that came again: their answer was lost or late", LOSS),
    of(Hardware, "rnr_nak_retry_err", Congestion, "peers had no receive posted", SLOW_RECEIVER),
    of(Hardware, "rx_icrc_encapsulated", Fault, "RoCE packets damaged on the way", CABLE),
    of(
        Hardware,
        "np_cnp_sent",
        Congestion,
        "senders told to slow down (CNP), as packets came marked",
        SLOWED,
    ),
    of(
        Hardware,
        "np_ecn_marked_roce_packets",
        Congestion,
        "packets that a switch marked as congested (ECN)",
        SLOWED,
    ),
    of(Hardware, "rp_cnp_handled", Congestion, "times that we were told to slow down (CNP), and did", SLOWED),
    of(
        Hardware,
        "rp_cnp_ignored",
        Congestion,
        "times that we were told to slow down, and did not",
        "turn ECN on for this port: echo 1 > /sys/class/net/NETDEV/ecn/roce_rp/enable/PRIORITY",
    ),
    of(Hardware, "roce_adp_retrans_to", Fault, "adaptive retransmission reached its time-out", LOSS),
    of(Hardware, "roce_adp_retrans", Congestion, "adaptive retransmissions", LOSS),
    of(Hardware, "roce_slow_restart*", Congestion, "slow starts after an idle time or a loss", SLOWED),
    of(Hardware, "*_cqe_flush_error", Harmless, "work flushed as connections ended", ""),
    of(Hardware, "req_cqe_error", Congestion, "requests of ours that failed", REFUSED),
    of(Hardware, "resp_cqe_error", Congestion, "requests of peers that failed", REFUSED),
    of(Hardware, "re*_remote_access_errors", Fault, "accesses refused for key, bounds or right", REFUSED),
    of(
        Hardware,
        "req_remote_invalid_request",
        Fault,
        "requests of ours that the peer found invalid",
        REFUSED,
    ),
    of(Hardware, "resp_local_length_error", Fault, "messages longer than the receive", REFUSED),
    // rxe.
    of(Hardware, "out_of_seq_request", Fault, "requests out of sequence: one before was lost", LOSS),
    of(Hardware, "rcvd_seq_err", Fault, "peers said that a packet was missing", LOSS),
    of(Hardware, "rcvd_rnr_err", Congestion, "peers had no receive posted", SLOW_RECEIVER),
    of(Hardware, "send_rnr_err", Congestion, "messages that found no receive posted here", SLOW_RECEIVER),
    of(Hardware, "retry_rnr_exceeded_err", Fault, "given up: the peer posted no receive", SLOW_RECEIVER),
    of(Hardware, "retry_exceeded_err", Fault, "given up after all retries: the connection is lost", LOSS),
    of(Hardware, "completer_retry_err", Congestion, "requests sent again", LOSS),
    of(
        Hardware,
        "send_err",
        Fault,
        "packets that could not be sent",
        "see the interface beneath: ip -s link show NETDEV; a full queue is common (ip link set NETDEV txqueuelen 10000)",
    ),
    of(
        Hardware,
        "link_downed",
        Congestion,
        "the link went down",
        "see the kernel log for when: dmesg -T | grep -i link",
    ),
    // bnxt_re, irdma, efa and others.
    of(Hardware, "*cnp*", Congestion, "congestion notifications (CNP)", SLOWED),
    of(Hardware, "*ecn*", Congestion, "packets marked as congested (ECN)", SLOWED),
    of(Hardware, "*retrans*", Congestion, "packets sent again", LOSS),
    of(Hardware, "*rnr_nak*", Congestion, "a receiver had no receive posted", SLOW_RECEIVER),
    of(Hardware, "*seq_err*", Fault, "packets were missing", LOSS),
    of(Hardware, "*retry_exceeded*", Fault, "given up after all retries", LOSS),
    of(Hardware, "*oos_drop*", Fault, "packets out of sequence, dropped", LOSS),
    of(Hardware, "*discard*", Fault, "packets dropped", LOSS),
    of(Hardware, "*drop*", Fault, "packets dropped", LOSS),
    // Network cards, by ethtool. mlx5's names first.
    of(Ethtool, "*xdp*", Harmless, "an XDP program's own", ""),
    of(Ethtool, "*_duration", Harmless, "how long pauses lasted", ""),
    of(Ethtool, "*_transition", Harmless, "beginnings of pauses", ""),
    of(
        Ethtool,
        "rx_discards_phy",
        Fault,
        "packets dropped as the card's buffer was full",
        "have PFC or ECN hold senders back, and the card take packets faster (PCIe width, MTU, interrupts)",
    ),
    of(Ethtool, "tx_discards_phy", Fault, "packets dropped before they were sent", LOSS),
    of(Ethtool, "rx_out_of_buffer", Fault, "packets that found no buffer in the ring", RING),
    of(
        Ethtool,
        "rx_prio*_discards",
        Fault,
        "packets of this priority dropped as the buffer was full",
        "PFC for this priority on both ends of the link: mlnx_qos -i NETDEV",
    ),
    of(
        Ethtool,
        "rx_prio*_cong_discard",
        Fault,
        "packets of this priority dropped in congestion",
        "PFC for this priority on both ends of the link: mlnx_qos -i NETDEV",
    ),
    of(
        Ethtool,
        "*pause_storm_error*",
        Fault,
        "pauses so long that the card stopped them",
        "a receiver hangs: find the port that sends pauses without end",
    ),
    of(
        Ethtool,
        "*pause_storm*",
        Congestion,
        "long pauses",
        "a receiver is stuck: find the port that sends pauses without end",
    ),
    of(Ethtool, "rx*pause*", Congestion, "pause frames received: the other end cannot take more", SLOWED),
    of(Ethtool, "tx*pause*", Congestion, "pause frames sent: this end cannot take more", RING),
    of(Ethtool, "*xoff_rx*", Congestion, "pause frames received: the other end cannot take more", SLOWED),
    of(Ethtool, "*rx*_xoff*", Congestion, "pause frames received: the other end cannot take more", SLOWED),
    of(Ethtool, "*xoff*", Congestion, "pause frames sent: this end cannot take more", RING),
    of(Ethtool, "*xon*", Harmless, "ends of pauses", ""),
    of(Ethtool, "rx*pfc*", Congestion, "pause frames of one priority received", SLOWED),
    of(Ethtool, "tx*pfc*", Congestion, "pause frames of one priority sent", RING),
    of(
        Ethtool,
        "*allowance_exceeded",
        Fault,
        "packets held back or dropped beyond the cloud's allowance",
        "a larger instance, or less traffic",
    ),
    of(
        Ethtool,
        "link_down_events*",
        Congestion,
        "the link went down",
        "see the kernel log for when: dmesg -T | grep -i link",
    ),
    of(Ethtool, "*crc_err*", Fault, "frames damaged on the wire", CABLE),
    of(Ethtool, "*symbol_err*", Fault, "bits damaged on the wire", CABLE),
    of(Ethtool, "*fcs_err*", Fault, "frames damaged on the wire", CABLE),
    of(Ethtool, "*ecn_mark*", Congestion, "packets marked as congested (ECN)", SLOWED),
    of(Ethtool, "*discard*", Fault, "packets dropped by the card", RING),
    of(Ethtool, "*missed*", Fault, "packets missed by the card", RING),
    of(Ethtool, "*no_buf*", Fault, "packets that found no buffer", RING),
    of(Ethtool, "*drop*", Fault, "packets dropped by the card or driver", RING),
    of(
        Ethtool,
        "*tx_timeout*",
        Fault,
        "the card's send queue hung",
        "see the kernel log: dmesg -T | grep -i NETDEV; newer firmware and driver",
    ),
    // Every interface, by sysfs.
    of(Netdev, "rx_crc_errors", Fault, "frames damaged on the wire", CABLE),
    of(Netdev, "rx_missed_errors", Fault, "packets missed by the card", RING),
    of(Netdev, "rx_fifo_errors", Fault, "the card's buffer overran", RING),
    of(Netdev, "tx_errors", Fault, "packets that could not be sent", CABLE),
    of(Netdev, "tx_carrier_errors", Fault, "the link was lost while sending", CABLE),
    of(
        Netdev,
        "rx_dropped",
        Congestion,
        "packets dropped by the kernel; those of unknown protocols too",
        "see which: dropwatch, or perf trace -e skb:kfree_skb",
    ),
    of(
        Netdev,
        "tx_dropped",
        Congestion,
        "packets dropped by the kernel before they were sent",
        "a longer queue: ip link set NETDEV txqueuelen 10000",
    ),
    // TCP, which userspace iWARP goes over. Of the whole machine.
    of(Tcp, "retranssegs", Congestion, "TCP segments sent again, on all connections", LOSS),
    of(Tcp, "tcptimeouts", Congestion, "TCP connections that waited in vain for an acknowledgement", LOSS),
    of(Tcp, "inerrs", Fault, "damaged TCP segments", CABLE),
    of(
        Tcp,
        "listenoverflows",
        Fault,
        "connections refused as a listener's queue was full",
        "sysctl net.core.somaxconn=4096, and restart the target",
    ),
];

/// What the counter of this name means; `None` for one that tells of no trouble, or that we do not know.
pub(super) fn of_counter(source: Source, name: &str) -> Option<&'static Meaning> {
    if source == Source::Ethtool && is_per_queue(name) {
        return None;
    }
    let name = name.to_ascii_lowercase();
    TABLE.iter().find(|line| line.source == source && fits(line.pattern.as_bytes(), name.as_bytes()))
}

/// Whether there is a total of it elsewhere: `rx0_drops`, `rx_queue_3_drops`, `[2]: rx_discards`, `ch4_drops`,
/// `queue_1_tx_cnt`.
fn is_per_queue(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if name.starts_with('[') {
        return true;
    }
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default();
    let prefix = ["rx", "tx", "ch"].into_iter().find_map(|prefix| first.strip_prefix(prefix));
    let has_number = prefix.is_some_and(is_number);
    let queue = name
        .split_once("queue_")
        .is_some_and(|(_, rest)| rest.split(['_', '.']).next().is_some_and(is_number));
    has_number || queue
}

/// Whether a name fits a pattern with `*`.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return name.is_empty() };
    if *first == b'*' {
        return (0..=name.len()).any(|skipped| fits(rest, &name[skipped..]));
    }
    name.split_first().is_some_and(|(head, tail)| head == first && fits(rest, tail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counter_names_of_many_drivers_are_known() {
        let weight = |source, name| of_counter(source, name).map(|meaning| meaning.weight);
        for (source, name, expected) in [
            (Hardware, "out_of_buffer", Some(Fault)),
            (Hardware, "np_cnp_sent", Some(Congestion)),
            (Hardware, "req_cqe_flush_error", Some(Harmless)),
            (Hardware, "tcpRetransSegs", Some(Congestion)),
            (Hardware, "rdma_sends", None),
            (Ethtool, "rx_prio3_pause", Some(Congestion)),
            (Ethtool, "rx_prio3_pause_duration", Some(Harmless)),
            (Ethtool, "rx_xdp_drops", Some(Harmless)),
            (Ethtool, "rx_drops", Some(Fault)),
            (Ethtool, "rx0_drops", None),
            (Ethtool, "rx_queue_12_drops", None),
            (Ethtool, "[3]: rx_discards", None),
            (Ethtool, "rx_crc_errors.nic", Some(Fault)),
            (Ethtool, "tx_priority_3_xoff.nic", Some(Congestion)),
            (Ethtool, "bw_in_allowance_exceeded", Some(Fault)),
            (Ethtool, "rx_bytes", None),
            (Port, "port_rcv_constraint_errors", Some(Fault)),
        ] {
            assert_eq!(weight(source, name), expected, "{name}");
        }
    }

    #[test]
    fn every_bad_counter_has_a_fix() {
        for line in TABLE {
            assert_eq!(line.mend.is_empty(), line.weight == Harmless, "{}", line.pattern);
            assert_eq!(line.pattern, line.pattern.to_ascii_lowercase());
        }
    }

    proptest! {
        #[test]
        fn a_name_fits_itself_and_a_star(name in "[a-z0-9_]{0,40}", at in 0_usize..40) {
            prop_assert!(fits(name.as_bytes(), name.as_bytes()));
            let at = at.min(name.len());
            let pattern = format!("{}*", &name[..at]);
            prop_assert!(fits(pattern.as_bytes(), name.as_bytes()));
        }

        #[test]
        fn any_name_is_judged_or_not(name in ".{0,60}") {
            let _ = of_counter(Ethtool, &name);
        }
    }
}
