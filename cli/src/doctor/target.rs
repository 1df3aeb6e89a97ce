//! Whether a target answers at an address, and over which transport.

use super::advice::Finding;
use super::counters::Verdict;
use super::{ProviderChoice, Question};
use crate::connect::{Transport, reach};
use crate::print::chain;
use crate::runtime::run;
use anyhow::Result;
use nvme_proto::Nqn;
use nvmf_initiator::{HostIdentity, Options, Preference, TcpOptions, TlsOptions, TransportOptions};
use nvmf_tls::{Hash, Key};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

/// What the error of a connection says that the target ended with an alert of TLS.
const TLS_ALERT: &str = "the peer sent the TLS alert";

/// What came of asking the discovery service at an address.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    /// Over each transport that was tried.
    pub(super) tried: Vec<(Transport, Result<Answer, String>)>,
}

#[derive(Debug)]
pub(super) struct Answer {
    /// Over which provider, if over RDMA.
    pub(super) provider: Option<String>,
    /// Entries of its discovery log; `None`: it requires TLS, and only hosts with a key see them.
    pub(super) records: Option<usize>,
}

impl Target {
    /// Connects as nobody in particular, asks, and disconnects. Takes some seconds where nobody answers.
    pub(super) fn ask(question: &Question) -> Self {
        let mut target = Self { address: question.address, tried: Vec::new() };
        if question.transport != Some(Transport::Tcp) {
            target.try_over(Transport::Rdma, question.provider);
        }
        let may_be_tcp = match question.transport {
            Some(transport) => transport == Transport::Tcp,
            // iWARP has the TCP port that answered; a device leaves it to others.
            None => question.provider == ProviderChoice::All && !target.answers_over("iwarp"),
        };
        if may_be_tcp {
            target.try_over(Transport::Tcp, ProviderChoice::All);
        }
        target
    }

    fn try_over(&mut self, transport: Transport, provider: ProviderChoice) {
        let answer = discover(self.address, transport, provider, None);
        let answer = match answer {
            Err(_) if transport == Transport::Tcp && speaks_tls(self.address) => {
                Ok(Answer { provider: None, records: None })
            }
            answer => answer.map_err(|error| why(&error)),
        };
        self.tried.push((transport, answer));
    }

    fn answers(&self) -> impl Iterator<Item = (Transport, &Answer)> {
        self.tried.iter().filter_map(|(transport, answer)| Some((*transport, answer.as_ref().ok()?)))
    }

    fn answers_over(&self, provider: &str) -> bool {
        self.answers().any(|(_, answer)| answer.provider.as_deref() == Some(provider))
    }

    /// Why nobody answers; `None` when somebody does.
    fn error(&self) -> Option<String> {
        let errors: Option<Vec<_>> = self.tried.iter().map(|(_, answer)| answer.as_ref().err()).collect();
        Some(errors?.into_iter().map(String::as_str).collect::<Vec<_>>().join("; "))
    }

    /// That nobody answers.
    pub(super) fn finding(&self) -> Option<Finding> {
        let error = self.error()?;
        let mend = "there: systemctl status nvmf-target (does it run, on which address, transport and provider?); between: routes, and a firewall that lets the port through";
        Some(Finding::new(
            Verdict::Bad,
            &self.address.to_string(),
            format!("no target answers: {error}"),
            mend,
        ))
    }

    pub(super) fn json(&self) -> Value {
        let tried = self.tried.iter().map(|(transport, answer)| {
            let found = answer.as_ref().ok();
            json!({
                "transport": transport.name(), "answers": found.is_some(),
                "provider": found.map(|answer| &answer.provider),
                "records": found.and_then(|answer| answer.records),
                "tls_required": found.map(|answer| answer.records.is_none()),
                "error": answer.as_ref().err(),
            })
        });
        let tried: Vec<_> = tried.collect();
        let first = self.answers().next();
        json!({
            "address": self.address, "answers": first.is_some(),
            "transport": first.map(|(transport, _)| transport.name()),
            "provider": first.and_then(|(_, answer)| answer.provider.as_deref()),
            "records": first.and_then(|(_, answer)| answer.records),
            "tls_required": first.map(|(_, answer)| answer.records.is_none()), "error": self.error(), "tried": tried,
        })
    }

    pub(super) fn text(&self) -> String {
        let answers = self.answers().map(|(transport, Answer { provider, records })| {
            let provider = provider.as_ref().map_or_else(String::new, |provider| format!(" ({provider})"));
            let name = transport.name();
            let Some(records) = records else {
                return format!("over {name}: it requires TLS, with the key of a host (-t {name} --tls)");
            };
            let plural = if *records == 1 { "" } else { "s" };
            format!("over {name}{provider}: {records} record{plural} in its discovery log (-t {name})")
        });
        let answers: Vec<_> = answers.collect();
        if answers.is_empty() {
            return format!("{} does not answer", self.address);
        }
        format!("{} answers {}", self.address, answers.join("; "))
    }
}

/// Over what, and why: without the address, which is said once.
fn why(error: &anyhow::Error) -> String {
    let causes: Vec<_> = error.chain().map(ToString::to_string).collect();
    match &causes[..] {
        [over, _address, why] => format!("{over}: {why}"),
        _ => chain(error),
    }
}

/// Whether TLS is spoken there: a key that nobody knows is refused with an alert.
fn speaks_tls(address: SocketAddr) -> bool {
    let Ok(key) = Key::generate(32, Some(Hash::Sha256)) else { return false };
    let answer = discover(address, Transport::Tcp, ProviderChoice::All, Some(TlsOptions::new(key)));
    answer.is_err_and(|error| chain(&error).contains(TLS_ALERT))
}

fn discover(
    address: SocketAddr,
    transport: Transport,
    provider: ProviderChoice,
    tls: Option<TlsOptions>,
) -> Result<Answer> {
    let mut options = Options::with_host(address, Nqn::DISCOVERY, HostIdentity::generate()?);
    options.transport = match transport {
        Transport::Rdma => TransportOptions::Rdma,
        Transport::Tcp => TransportOptions::Tcp(TcpOptions::default().with_tls(tls)),
    };
    options.provider = match provider {
        ProviderChoice::Iwarp => Preference::Iwarp,
        ProviderChoice::Verbs => Preference::Verbs,
        ProviderChoice::All => Preference::Auto,
    };
    options.ctrl_loss_timeout = Some(Duration::ZERO);
    let (log, via) = run(reach(options, nvmf_initiator::discover))?;
    Ok(Answer { provider: via.provider(), records: Some(log.entries.len()) })
}
