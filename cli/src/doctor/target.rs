//! Whether a target answers at an address.

use super::advice::Finding;
use super::counters::Verdict;
use crate::connect::reach;
use crate::print::chain;
use crate::runtime::run;
use anyhow::Result;
use nvme_proto::Nqn;
use nvmf_initiator::{HostIdentity, Options};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

/// The port of NVMe over RDMA.
pub(super) const PORT: u16 = 4420;

/// What came of asking the discovery service at an address.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    /// It is one of this machine's: that nobody listens there may be meant.
    pub(super) local: bool,
    pub(super) answer: Result<Answer, String>,
}

#[derive(Debug)]
pub(super) struct Answer {
    /// Over which provider.
    pub(super) provider: String,
    /// Entries of its discovery log.
    pub(super) records: usize,
}

impl Target {
    /// Connects as nobody in particular, asks, and disconnects. Takes some seconds where nobody answers.
    pub(super) fn ask(address: SocketAddr, local: bool) -> Self {
        let answer = discover(address).map_err(|error| chain(&error));
        Self { address, local, answer }
    }

    /// That nobody answers.
    pub(super) fn finding(&self) -> Option<Finding> {
        let error = self.answer.as_ref().err()?;
        let level = if self.local { Verdict::Watch } else { Verdict::Bad };
        let mend = "there: systemctl status nvmf-target (does it run, on which address and provider?); between: routes, and a firewall that lets the port through";
        Some(Finding::new(level, &self.address.to_string(), format!("no target answers: {error}"), mend))
    }

    pub(super) fn json(&self) -> Value {
        let answer = self.answer.as_ref().ok();
        json!({
            "address": self.address, "answers": answer.is_some(),
            "provider": answer.map(|answer| &answer.provider), "records": answer.map(|answer| answer.records),
            "error": self.answer.as_ref().err(),
        })
    }

    pub(super) fn text(&self) -> String {
        match &self.answer {
            Ok(Answer { provider, records }) => {
                format!("{} answers over {provider}: {records} records in its discovery log", self.address)
            }
            Err(_) => format!("{} does not answer", self.address),
        }
    }
}

fn discover(address: SocketAddr) -> Result<Answer> {
    let options = Options {
        ctrl_loss_timeout: Some(Duration::ZERO),
        ..Options::with_host(address, Nqn::DISCOVERY, HostIdentity::generate()?)
    };
    let (log, via) = run(reach(options, nvmf_initiator::discover))?;
    Ok(Answer {
        provider: via.provider().unwrap_or_else(|| via.transport().to_owned()),
        records: log.entries.len(),
    })
}
