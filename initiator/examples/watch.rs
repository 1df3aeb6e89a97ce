//! Stays connected to a discovery service over NVMe/TCP, and prints its log whenever that changes: a line for each log,
//! with its subsystems and where they are reached.
//!
//! `cargo run --example watch -- ADDRESS`

use nvmf_initiator::{Discovery, HostIdentity, Nqn, Options, TcpOptions, TransportOptions, block_on};

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_end_matches(['\0', ' ']).to_owned()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("usage: watch ADDRESS")?;
    let host: HostIdentity = uuid::Uuid::new_v4().to_string().parse()?;
    let mut options = Options::with_host(address.parse()?, Nqn::DISCOVERY, host);
    options.transport = TransportOptions::Tcp(TcpOptions::default());
    block_on(async {
        let mut discovery = Discovery::connect(options).await?;
        let mut log = Some(discovery.log());
        while let Some(now) = log {
            let entries = now
                .entries
                .iter()
                .map(|it| format!("{}@{}:{}", text(&it.subnqn), text(&it.traddr), text(&it.trsvcid)));
            println!("{}", entries.collect::<Vec<_>>().join(" "));
            log = discovery.changed().await;
        }
        Err("the discovery service is gone".into())
    })
}
