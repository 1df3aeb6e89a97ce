//! The conformance suite of backends, run with a remote disk.

use nvmf_block::{DeviceId, conformance};
use nvmf_initiator::{
    Connection, HostIdentity, Options, RemoteBackend, TcpOptions, TransportOptions, block_on,
};
use nvmf_tests::process::{self, Target};

#[test]
fn remote_disk_passes_backend_conformance() {
    check_remote("rdma", &[TransportOptions::Rdma]);
}

#[test]
fn remote_disk_over_tcp_passes_backend_conformance() {
    let tcp = |header_digest, data_digest| {
        TransportOptions::Tcp(TcpOptions::default().with_digests(header_digest, data_digest))
    };
    check_remote("tcp", &[tcp(false, false), tcp(true, true)]);
}

/// Over a listener of this transport, with each of these options, alike and with what differs between queues.
fn check_remote(transport: &str, all: &[TransportOptions]) {
    let folder = tempfile::tempdir().expect("a folder");
    let address = ([127, 0, 0, 1], process::free_port().expect("a port")).into();
    let nqn = "nqn.2026-11.com.example:conformance";
    let config = folder.path().join("target.toml");
    let mut text = format!(
        "[[listener]]\naddress = \"{address}\"\ntransport = \"{transport}\"\n[[subsystem]]\nnqn = \"{nqn}\"\n\
         allow_any_host = true\n"
    );
    for (nsid, backing) in [
        (1, "memory = \"4MiB\"".to_owned()),
        (
            2,
            format!(
                "path = \"{}\"\nsize = \"4MiB\"\ncreate = true",
                folder.path().join("disk.img").display()
            ),
        ),
    ] {
        text += &format!(
            "[[subsystem.namespace]]\nnsid = {nsid}\nblock_size = {}\n{backing}\n",
            512 * nsid * nsid * 2
        );
    }
    std::fs::write(&config, text).expect("a configuration");
    let program = process::program("nvmf-target").expect("nvmf-target");
    let target = Target::serve(&program, &config, address, &folder.path().join("log")).expect("a target");
    for (transport, (io_queues, write_queues)) in
        all.iter().flat_map(|transport| [(1, 0), (3, 0), (1, 2)].map(|queues| (transport, queues)))
    {
        let host = HostIdentity::generate().expect("an identity");
        let mut options = Options::with_host(address, nqn.parse().expect("an NQN"), host);
        options.io_queues = io_queues;
        options.write_queues = write_queues;
        options.disable_flow_control = write_queues > 0;
        options.transport = transport.clone();
        let mut remote = RemoteBackend::connect(&options).expect("a connection");
        assert_eq!(remote.namespaces().len(), 2);
        for nsid in [1, 2] {
            conformance::check(&mut remote, DeviceId(nsid), &mut |remote| {
                // A wait is counted: it lasts until there is something to do.
                if !remote.turn() {
                    remote.sleep_for(std::time::Duration::from_millis(10), &[]);
                }
            });
        }
    }
    target.stop().expect("the target stops");
}

/// Runs the example of the library's documentation, with another identity and address.
#[test]
fn library_example_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = ([127, 0, 0, 1], process::free_port().expect("a port")).into();
    let nqn = "nqn.2026-11.com.example:disk1";
    let config = folder.path().join("target.toml");
    let text = format!(
        "[[listener]]\naddress = \"{address}\"\n[[subsystem]]\nnqn = \"{nqn}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n"
    );
    std::fs::write(&config, text).expect("a configuration");
    let program = process::program("nvmf-target").expect("nvmf-target");
    let target = Target::serve(&program, &config, address, &folder.path().join("log")).expect("a target");
    let host = HostIdentity::generate().expect("an identity");
    let options = Options::with_host(address, nqn.parse().expect("an NQN"), host);
    let example = async || {
        let connection = Connection::connect(options.clone()).await?;
        let disk = connection.open(connection.namespaces()[0].nsid)?;
        let mut block = vec![0; disk.geometry().block_size as usize];
        disk.read_to(0, &mut block).await?;
        block[0] ^= 1;
        disk.write_from(0, &block).await?;
        disk.flush().await?;
        connection.close().await;
        Ok::<u8, nvmf_initiator::Error>(block[0])
    };
    assert_eq!(block_on(example()).expect("the example"), 1);
    assert_eq!(block_on(example()).expect("the example"), 0, "what the first run wrote, the second reads");
    target.stop().expect("the target stops");
}
