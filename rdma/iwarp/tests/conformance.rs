//! The suite that every provider passes, over TCP on this machine.

use core::time::Duration;
use nvmf_iwarp::{Crc, Fpdu, IwarpConfig, IwarpProvider};
use nvmf_rdma::conformance::{self, Pair};
use std::net::SocketAddr;
use std::time::Instant;

fn run(address: &str, left: &IwarpConfig, right: &IwarpConfig) {
    let address: SocketAddr = address.parse().unwrap();
    conformance::run(|| {
        let start = Instant::now();
        Pair {
            left: IwarpProvider::new(left.clone()).unwrap(),
            right: IwarpProvider::new(right.clone()).unwrap(),
            address,
            tick: Box::new(move || {
                std::thread::sleep(Duration::from_micros(100));
                start.elapsed()
            }),
        }
    });
}

#[test]
fn as_it_comes() {
    run("127.0.0.1:0", &IwarpConfig::default(), &IwarpConfig::default());
}

#[test]
fn with_crc_and_short_fpdus_over_ipv6() {
    let config = IwarpConfig { crc: Crc::On, fpdu: Fpdu::Segment, keys_max: 64, ..IwarpConfig::default() };
    run("[::1]:0", &config, &IwarpConfig::default());
}
