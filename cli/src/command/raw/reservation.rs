//! `nvmf resv-register`, `resv-acquire`, `resv-release` and `resv-report`.

use super::{accepted, nsid, number, unanswered, word};
use crate::command::PageOutput;
use crate::command::target::NamespaceArguments;
use crate::command::waiting::Waiting;
use crate::connect::connect;
use crate::print::line;
use crate::runtime::run;
use anyhow::{Context, Result};
use nvme_proto::Nsid;
use nvme_proto::nvm::reservation::{
    self as resv, AcquireAction, PersistChange, RegisterAction, ReleaseAction, ReservationStatus,
    ReservationType,
};
use nvmf_initiator::raw::RawCommand;
use nvmf_initiator::{AdminReply, Effect, Error};
use serde_json::{Value, json};
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Register {
    #[command(flatten)]
    target: NamespaceArguments,
    /// Current key
    #[arg(short = 'c', long, value_parser = number, default_value = "0")]
    crkey: u64,
    /// New key
    #[arg(short = 'k', long, value_parser = number, default_value = "0")]
    nrkey: u64,
    /// What to do: 0 register, 1 unregister, 2 replace the key
    #[arg(short = 'r', long, value_parser = clap::value_parser!(u8).range(0..=2), default_value_t = 0)]
    rrega: u8,
    /// Persist through power loss: 0 as it is, 2 no, 3 yes
    #[arg(short = 'p', long, value_parser = clap::value_parser!(u8).range(0..=3), default_value_t = 0)]
    cptpl: u8,
    /// Do not check the current key
    #[arg(short = 'i', long)]
    iekey: bool,
}

#[derive(clap::Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    target: NamespaceArguments,
    /// Current key
    #[arg(short = 'c', long, value_parser = number, default_value = "0")]
    crkey: u64,
    /// Key of those to preempt
    #[arg(short = 'p', long, value_parser = number, default_value = "0")]
    prkey: u64,
    /// Type: 1 write exclusive, 2 exclusive access, 3 and 4 registrants only, 5 and 6 all registrants
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=6), default_value_t = 0)]
    rtype: u8,
    /// What to do: 0 acquire, 1 preempt, 2 preempt and abort
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=2), default_value_t = 0)]
    racqa: u8,
    /// Do not check the current key
    #[arg(short = 'i', long)]
    iekey: bool,
}

#[derive(clap::Args)]
pub(crate) struct Release {
    #[command(flatten)]
    target: NamespaceArguments,
    /// Current key
    #[arg(short = 'c', long, value_parser = number, default_value = "0")]
    crkey: u64,
    /// Type of the reservation that is held
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=6), default_value_t = 0)]
    rtype: u8,
    /// What to do: 0 release, 1 clear
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=1), default_value_t = 0)]
    rrela: u8,
    /// Do not check the current key
    #[arg(short = 'i', long)]
    iekey: bool,
}

/// Shows up to 15 registrants; with host identifiers of 128 bits, which is what Fabrics has
#[derive(clap::Args)]
pub(crate) struct Report {
    #[command(flatten)]
    target: NamespaceArguments,
    /// As nvme-cli has it; always so here
    #[arg(short = 'e', long, hide = true)]
    eds: bool,
    /// Dwords of the report that are wanted, but for the first (0's based, as nvme-cli has it); 0: all of it
    #[arg(long, value_parser = word, default_value = "0")]
    numd: u32,
    #[command(flatten)]
    output: PageOutput,
}

/// Sends a command to the namespace that is meant, where its operations go; over another path again where one is lost before it
/// answers.
fn send_to_disk(
    target: &NamespaceArguments,
    what: &str,
    command: impl FnOnce(Nsid) -> RawCommand,
) -> Result<AdminReply> {
    let target = &target.answered_soon();
    run(async {
        let options = target.options()?;
        let others = options.paths.len();
        let patience = options.fast_io_fail_timeout.into_iter().chain(options.ctrl_loss_timeout).min();
        let (connection, _) = connect(options).await?;
        let sent = async {
            let nsid = nsid(target, &connection)?;
            let device = connection.open(nsid)?;
            let (command, waiting) = (command(nsid), Waiting::new(target, &connection, nsid));
            // All tries together wait so long for a path: somebody waits for their answer.
            let command = match patience.and_then(|most| Instant::now().checked_add(most)) {
                Some(at) => command.to_be_sent_by(at),
                None => command,
            };
            let mut was_lost = false;
            for _ in 0..others {
                match waiting.tell(device.raw_io(command.clone())).await {
                    // Whatever the controller that was lost may still carry out is over before another one gets it.
                    Err(error @ (Error::Association { .. } | Error::Closed { .. })) => {
                        was_lost |= error.effect() != Effect::Nothing;
                    }
                    reply => return answered(reply, what, was_lost, &waiting),
                }
            }
            answered(waiting.tell(device.raw_io(command)).await, what, was_lost, &waiting)
        }
        .await;
        connection.close().await;
        sent
    })
}

/// What became of a command that, before, was sent over a path that `was_lost`.
fn answered(
    reply: Result<AdminReply, Error>,
    what: &str,
    was_lost: bool,
    waiting: &Waiting,
) -> Result<AdminReply> {
    let effect = match &reply {
        Ok(reply) => Effect::of_status(reply.outcome.status),
        Err(error) => error.effect(),
    };
    let reply =
        reply.map_err(|error| unanswered(error, what, waiting)).and_then(|reply| accepted(reply, what));
    reply.map_err(|error| match doubt(was_lost, effect) {
        Some(doubt) => error.context(doubt),
        None => error,
    })
}

/// What may be in force of a command that failed, its last try with this effect.
fn doubt(was_lost: bool, effect: Effect) -> Option<&'static str> {
    match (was_lost, effect) {
        (true, _) => Some(
            "the path that had it first was lost, and it may have been carried out there (nvmf resv-report shows)",
        ),
        (false, Effect::Nothing) => None,
        (false, _) => Some("it may have been carried out, or may yet be (nvmf resv-report shows)"),
    }
}

/// Sends a command that changes something.
fn change(target: &NamespaceArguments, what: &str, command: impl FnOnce(Nsid) -> RawCommand) -> Result<()> {
    send_to_disk(target, what, command).map(drop)
}

impl Register {
    pub(crate) fn run(&self) -> Result<()> {
        let register = resv::Register {
            action: RegisterAction(self.rrega),
            ignore_key: self.iekey,
            persist: PersistChange(self.cptpl),
            dispersed: false,
        };
        change(&self.target, "Reservation Register", |nsid| {
            RawCommand::reservation_register(nsid, &register, self.crkey, self.nrkey)
        })?;
        line("NVME Reservation  success")
    }
}

impl Acquire {
    pub(crate) fn run(&self) -> Result<()> {
        let acquire = resv::Acquire {
            action: AcquireAction(self.racqa),
            ignore_key: self.iekey,
            kind: ReservationType(self.rtype),
            dispersed: false,
        };
        change(&self.target, "Reservation Acquire", |nsid| {
            RawCommand::reservation_acquire(nsid, &acquire, self.crkey, self.prkey)
        })?;
        line("NVME Reservation Acquire success")
    }
}

impl Release {
    pub(crate) fn run(&self) -> Result<()> {
        let release = resv::Release {
            action: ReleaseAction(self.rrela),
            ignore_key: self.iekey,
            kind: ReservationType(self.rtype),
            dispersed: false,
        };
        change(&self.target, "Reservation Release", |nsid| {
            RawCommand::reservation_release(nsid, &release, self.crkey)
        })?;
        line("NVME Reservation Release success")
    }
}

impl Report {
    pub(crate) fn run(&self) -> Result<()> {
        let mut reply = send_to_disk(&self.target, "Reservation Report", RawCommand::reservation_report)?;
        reply.data.truncate(report_len(self.numd));
        let (status, registrants) =
            ReservationStatus::parse_extended(&reply.data).context("the controller's report is cut off")?;
        let hostid = |bytes: &[u8; 16]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let registrants: Vec<Value> = registrants
            .iter()
            .map(|it| {
                json!({
                    "cntlid": it.cntlid.get(), "rcsts": it.rcsts, "rkey": it.key.get(), "hostid": hostid(&it.hostid),
                })
            })
            .collect();
        let value = json!({
            "gen": status.generation.get(), "rtype": status.rtype.0, "regctl": status.registrants.get(),
            "ptpls": status.ptpls, "regctlext": registrants,
        });
        self.output.print(&reply.data, || value.clone(), || Self::text(&value, &registrants))
    }

    fn text(value: &Value, registrants: &[Value]) -> Result<()> {
        line("NVME Reservation status:\n")?;
        for name in ["gen", "rtype", "regctl", "ptpls"] {
            line(format_args!("{name:<10}: {}", value[name]))?;
        }
        for (number, registrant) in registrants.iter().enumerate() {
            line(format_args!("regctlext[{number}] :"))?;
            for (name, value) in registrant.as_object().into_iter().flatten() {
                match (name.as_str(), value.as_u64()) {
                    ("rkey" | "cntlid", Some(number)) => line(format_args!("  {name:<10}: {number:x}"))?,
                    _ => line(format_args!("  {name:<10}: {}", value.to_string().trim_matches('"')))?,
                }
            }
        }
        Ok(())
    }
}

/// Bytes of the report that are shown: what stands before the registrants always is.
fn report_len(numd: u32) -> usize {
    let bytes = (numd as usize).saturating_add(1).saturating_mul(4);
    if numd == 0 { usize::MAX } else { bytes.max(ReservationStatus::EXTENDED_LEN) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme_proto::Status;

    #[test]
    fn report_is_as_long_as_is_wanted() {
        assert_eq!([0, 1, 255].map(report_len), [usize::MAX, 64, 1024]);
    }

    #[test]
    fn command_that_may_be_in_force_is_said_to_be() {
        let of = |status| doubt(false, Effect::of_status(status));
        assert!(of(Status::COMMAND_INTERRUPTED).is_some_and(|it| it.contains("may have been carried out")));
        assert_eq!((of(Status::RESERVATION_CONFLICT), of(Status::NAMESPACE_NOT_READY)), (None, None));
        let there = doubt(true, Effect::of_status(Status::RESERVATION_CONFLICT));
        assert!(there.is_some_and(|it| it.contains("the path that had it first was lost")));
    }
}
