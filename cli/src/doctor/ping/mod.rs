//! `nvmf doctor --ping` and `--listen`: round trips and bandwidth, in the manner of `ib_write_lat` and `ib_write_bw`.
//!
//! | file | what it holds |
//! |---|---|
//! | `message` | the protocol's messages |
//! | `line` | a connection: queue pair, memory, posts |
//! | `client` | the measuring end |
//! | `server` | the listening end |
//! | `report` | the figures |

mod client;
mod line;
mod message;
mod report;
mod server;

pub(crate) use client::Plan;

use super::ProviderChoice;
use super::limits::{Limits, Own};
use super::towards::Towards;
use crate::print::{chain, complain, line, print_json};
use anyhow::{Context, Result, bail};
use nvmf_iwarp::{IwarpConfig, IwarpProvider};
use nvmf_rdma_devices::{Choice, Machine, NodeType};
use nvmf_verbs::{VerbsConfig, VerbsProvider};
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;

/// The default port: perftest's.
pub(crate) const PORT: u16 = 18515;

/// Lengths that a message may have.
pub(crate) const SIZES: std::ops::RangeInclusive<i64> = message::LEN as i64..=line::CHUNK as i64;

/// A provider, and the address that is used over it.
#[derive(Debug, Clone)]
struct PingPath {
    kind: Kind,
    address: SocketAddr,
}

#[derive(Debug, Clone)]
enum Kind {
    Iwarp,
    Verbs(VerbsConfig),
}

impl PingPath {
    fn name(&self) -> String {
        match &self.kind {
            Kind::Iwarp => "iwarp".to_owned(),
            Kind::Verbs(config) => format!("verbs ({})", config.device),
        }
    }

    /// The providers that were asked for and that this machine has.
    fn chosen(choice: ProviderChoice, address: SocketAddr) -> Result<Vec<Self>> {
        let iwarp = Self { kind: Kind::Iwarp, address };
        match choice {
            ProviderChoice::Iwarp => Ok(vec![iwarp]),
            ProviderChoice::Verbs => Ok(vec![Self::verbs(address, false)?]),
            ProviderChoice::All => {
                Ok(std::iter::once(iwarp).chain(Self::verbs(address, true).ok()).collect())
            }
        }
    }

    /// Verbs, on the device that `auto` would choose. An iWARP device used `beside` userspace iWARP needs a TCP port of
    /// its own: the next one.
    fn verbs(address: SocketAddr, beside: bool) -> Result<Self> {
        let machine = Machine::read().context("cannot read this machine's devices")?;
        let limits = Limits::read(Path::new("/"), Own::read());
        let verbs = limits.verbs();
        let towards = Towards::new(&machine, address.ip(), verbs.as_ref().map_err(String::as_str).copied());
        let choice = towards.choice.with_context(|| format!("there is no route to {address}"))?;
        let Choice::Verbs(owner) = choice else { bail!("verbs cannot be used for {address}: {choice}") };
        let mut address = address;
        if beside && owner.device.node_type == NodeType::Rnic && address.port() != 0 {
            address.set_port(address.port().checked_add(1).context("no port is left for verbs")?);
        }
        let mut config = VerbsConfig::new(&owner.device.name);
        config.port = u8::try_from(owner.port.number).context("no port of a device has such a number")?;
        Ok(Self { kind: Kind::Verbs(config), address })
    }

    fn measure(&self, plan: &Plan) -> Result<report::Measured> {
        match &self.kind {
            Kind::Iwarp => client::measure(iwarp()?, self.address, plan),
            Kind::Verbs(config) => client::measure(VerbsProvider::new(config.clone())?, self.address, plan),
        }
    }

    fn serve(&self) -> Result<()> {
        let name = self.name();
        match &self.kind {
            Kind::Iwarp => server::serve(iwarp()?, &name, self.address),
            Kind::Verbs(config) => server::serve(VerbsProvider::new(config.clone())?, &name, self.address),
        }
    }
}

fn iwarp() -> Result<IwarpProvider> {
    IwarpProvider::new(IwarpConfig::default()).context("cannot start iwarp")
}

/// Measures over each provider; `false` when the peer was reached over none.
pub(crate) fn ping(address: SocketAddr, choice: ProviderChoice, plan: &Plan, json: bool) -> Result<bool> {
    let (mut reached, mut pings) = (false, Vec::new());
    for path in PingPath::chosen(choice, address)? {
        let name = path.name();
        match path.measure(plan) {
            Ok(measured) => {
                reached = true;
                if !json {
                    line(format_args!(
                        "{} over {name}, messages of {} bytes\n{}",
                        path.address,
                        plan.size,
                        measured.text()
                    ))?;
                }
                pings.push(json!({ "provider": name, "measured": measured.json() }));
            }
            Err(error) => {
                let error = chain(&error);
                complain(format_args!("{name}: {error}"));
                pings.push(json!({ "provider": name, "error": error }));
            }
        }
    }
    if json {
        print_json(json!({ "address": address, "size": plan.size, "pings": pings }))?;
    }
    Ok(reached)
}

/// Listens over each provider, until stopped.
pub(crate) fn listen(address: SocketAddr, choice: ProviderChoice) -> Result<()> {
    let paths = PingPath::chosen(choice, address)?;
    let several = paths.len() > 1;
    std::thread::scope(|scope| {
        // A provider belongs to the thread that made it.
        let ends: Vec<_> = paths
            .iter()
            .map(|path| {
                scope.spawn(move || {
                    let outcome = path.serve();
                    if let (true, Err(error)) = (several, &outcome) {
                        // Printed at once: the other providers go on.
                        complain(format_args!("{}: {}", path.name(), chain(error)));
                    }
                    outcome
                })
            })
            .collect();
        ends.into_iter()
            .try_for_each(|end| end.join().unwrap_or_else(|_| bail!("a listening thread panicked")))
    })
}
