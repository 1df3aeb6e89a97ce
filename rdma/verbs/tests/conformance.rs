//! The suite that every provider passes, over a device of this machine.
//!
//! `NVMF_VERBS_DEVICE=rxe0 NVMF_VERBS_ADDRESS=192.0.2.1` name the device and an address of it; without them there is
//! nothing to run on (the kernel lab sets them). `NVMF_VERBS_CHECK=violation::wrong_key` runs one check.

use nvmf_rdma::conformance::{self, Pair};
use nvmf_verbs::{VerbsConfig, VerbsProvider};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

fn pair(device: &str, address: IpAddr) -> Pair<VerbsProvider> {
    let provider = || VerbsProvider::new(VerbsConfig::new(device)).expect("the device opens");
    let started = Instant::now();
    let tick = move || {
        // Devices and the kernel's threads behind software ones need the processor too.
        std::thread::sleep(Duration::from_micros(500));
        started.elapsed()
    };
    Pair { left: provider(), right: provider(), address: SocketAddr::new(address, 0), tick: Box::new(tick) }
}

#[test]
fn conformance_on_the_device_that_is_named() {
    let (Ok(device), Ok(address)) = (std::env::var("NVMF_VERBS_DEVICE"), std::env::var("NVMF_VERBS_ADDRESS"))
    else {
        println!("no device is named: nothing to run on");
        return;
    };
    let address: IpAddr = address.parse().expect("NVMF_VERBS_ADDRESS is an address");
    if let Ok(wanted) = std::env::var("NVMF_VERBS_CHECK") {
        let checks = conformance::checks::<VerbsProvider>();
        let (_, check) = checks.iter().find(|(name, _)| *name == wanted).expect("a check of that name");
        return check(pair(&device, address));
    }
    conformance::run(|| pair(&device, address));
}

#[test]
fn a_device_that_is_not_there_says_what_to_look_at() {
    let error = VerbsProvider::new(VerbsConfig::new("nonesuch0")).err().expect("there is no such device");
    let text = error.to_string();
    assert!(text.contains("apt install") || text.contains("rdma link"), "{text}");
}
