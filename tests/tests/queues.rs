//! As many queues as a large host asks for, of a target as it is by default.

use nvme_proto::Nsid;
use nvmf_initiator::{Connection, block_on};
use nvmf_tests::site::Site;
use std::time::Duration;

const QUEUES: u16 = 128;
const BLOCK: usize = 4096;

#[test]
fn host_with_128_processors_gets_its_queues_by_default() {
    let site = Site::new("queues").expect("a site");
    // One worker, as on a machine with two processors; it is the least that there can be.
    let text = format!(
        "[target]\nworkers = 1\n[[listener]]\naddress = \"{}\"\n{}",
        site.address,
        site.subsystem(&[site.disk("disk.img", 64 << 20)])
    );
    std::fs::write(site.path("target.toml"), text).expect("a configuration");
    let target = site.serve().expect("a target");
    let mut options = site.options(1).expect("options");
    options.io_queues = QUEUES;
    options.queue_depth = 128;
    options.spin = Duration::ZERO;
    options.connect_timeout = Some(Duration::from_secs(20));
    let connection = block_on(Connection::connect(options)).expect("a connection");
    assert_eq!(connection.controller().io_queues, QUEUES);
    assert_eq!(connection.controller().io_queue_entries, 128);
    let device = connection.open(Nsid(1)).expect("namespace 1");
    let mut read = vec![0; BLOCK];
    // More writes than queues: each has some, in capsules.
    for at in 0..2 * u64::from(QUEUES) {
        let written = vec![at as u8; BLOCK];
        block_on(async {
            device.write_from(at * BLOCK as u64, &written).await.expect("a write");
            device.read_to(at * BLOCK as u64, &mut read).await.expect("a read");
        });
        assert!(read == written);
    }
    drop(connection);
    target.stop().expect("a clean stop");
}
