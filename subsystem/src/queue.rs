//! A queue pair: from its first capsule, which must be a Connect, to its end.

use crate::admin::{AdminKind, is_error, reset, write_protection};
use crate::authentication::{self, AuthenticationKind, QueueAuthentication};
use crate::controller::Controller;
use crate::data::{self, Fit};
use crate::fabrics::{self, Admission, Admitted, CONNECT_LEN, ConnectRequest, Role};
use crate::flight::{Flight, Unfit};
use crate::io::fused::{AnswerTo, Fused, FusedResponse};
use crate::io::{Io, IoKind};
use crate::limits::{CONNECT_TIMEOUT, IO_CONNECT_TIMEOUT, QUEUE_ENTRIES_MIN};
use crate::step::{Step, Violation, Work};
use crate::ticket::{Kind, Outcome, Reply, Subject};
use crate::{Answer, Association, Cid, Notice, Nqn, Nsid, Qid, Ticket, status};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::IpAddr;
use core::time::Duration;
use nvme_proto::fabrics::connect::{Connect, ConnectData, Connected, InvalidParameter, command_offset};
use nvme_proto::fabrics::discovery::TransportType;
use nvme_proto::fabrics::fabrics_type;
use nvme_proto::opcode::FabricsType;
use nvme_proto::{Sqe, Status};
use nvmf_auth::controller::Fault;
use nvmf_block::{BlockError, BlockOp, DeviceId};
use zerocopy::FromBytes;

/// Whose key protects a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecureChannel {
    /// The host that has the key.
    pub host_nqn: Nqn,
    /// The subsystem that the key is for; for discovery [`Nqn::DISCOVERY`].
    pub subsystem_nqn: Nqn,
    /// The number of the key, with the caller, where an authentication made it (secure channel concatenation): it proves
    /// the host. `None`: it was configured.
    pub generated: Option<u64>,
}

impl SecureChannel {
    /// Whether a queue in this channel belongs to a controller in that one: of the same host, with a key of the same kind.
    pub(crate) fn joins(self, of_admin: Self) -> bool {
        let kind = |channel: Self| (channel.host_nqn, channel.subsystem_nqn, channel.generated.is_some());
        kind(self) == kind(of_admin)
    }
}

/// What the transport knows of a connection before its first capsule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// What carries it.
    pub transport: TransportType,
    /// The port ([`crate::Port::id`]).
    pub port: u16,
    /// Our address on it: what the host connected to.
    pub local: IpAddr,
    /// The address of the host.
    pub peer: IpAddr,
    /// What stands for the host's machine where machines are counted: this address, or the network of it that one
    /// machine may have to itself.
    pub machine: IpAddr,
    /// Queue ID that the connection request named (RDMA CM private data), where the transport has such.
    pub qid: Option<u16>,
    /// Controller ID that the connection request named; 0 (older hosts) says nothing.
    pub cntlid: Option<u16>,
    /// Whose key protects the connection, if one does: only this host may connect, and only to this subsystem.
    pub secure_channel: Option<SecureChannel>,
    /// Capsules that the transport has receives for: a Connect may not ask for a larger queue.
    pub entries: u16,
}

/// One queue, of one connection, on one worker. Its Connect decides whether it is an Admin or an I/O queue.
///
/// After every `on_*`, and after [`Queue::on_timeout`], drain [`Queue::poll_step`] before the next.
#[derive(Debug)]
pub struct Queue {
    transport: TransportType,
    flight: Flight,
    state: State,
    /// Where the host must authenticate.
    authentication: Option<Box<QueueAuthentication>>,
    /// It has not, or has failed to: nothing but that is allowed.
    locked: bool,
    /// [`Step::CloseQueue`] or [`Step::CloseAssociation`] was returned: no step follows.
    closed: bool,
}

#[derive(Debug)]
enum State {
    /// Without an accepted Connect.
    Connecting { link: Box<Link>, timeout: Duration, deadline: Duration, connecting: bool, expired: bool },
    /// An Admin queue, and with it the controller.
    Admin(Box<Controller>),
    /// An I/O queue.
    Io { association: Arc<Association>, io: Io, fused: Fused, epoch: u32, disconnect: Disconnect },
}

/// The state of an I/O queue's Disconnect. Its response is the last one of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disconnect {
    /// Not received.
    None,
    /// Received; commands before it are still in flight.
    Waiting { cid: Cid, invalidate: Option<u32> },
    /// Answered.
    Answered,
}

impl Queue {
    /// A connection without a Connect yet. It must come within [`crate::limits::CONNECT_TIMEOUT`], or
    /// [`crate::limits::IO_CONNECT_TIMEOUT`] where the link names an I/O queue or no queue.
    #[must_use]
    pub fn new(now: Duration, link: Link) -> Self {
        let timeout = if link.qid == Some(0) { CONNECT_TIMEOUT } else { IO_CONNECT_TIMEOUT };
        let deadline = now.saturating_add(timeout);
        Self {
            transport: link.transport,
            flight: Flight::new(Qid(0), link.entries.max(QUEUE_ENTRIES_MIN), true),
            state: State::Connecting {
                link: Box::new(link),
                timeout,
                deadline,
                connecting: false,
                expired: false,
            },
            authentication: None,
            locked: false,
            closed: false,
        }
    }

    /// Takes a capsule: the 64 bytes of the submission queue entry, and how many bytes of data follow it. (The
    /// transport itself reports a shorter one as [`Violation::ShortCapsule`].)
    pub fn on_capsule(&mut self, now: Duration, sqe: &[u8; 64], in_capsule_len: usize) -> Step {
        let mut sqe: Sqe = zerocopy::transmute!(*sqe);
        data::keep_to_transport(&mut sqe, self.transport);
        if let Some(association) = self.association()
            // Anyone may have an I/O queue that is not authenticated: it is no sign of life of the host.
            && !(self.locked && matches!(self.state, State::Io { .. }))
        {
            association.touch(now);
        }
        match self.flight.begin(sqe.cid()) {
            Ok(()) => {}
            Err(Unfit::Conflict(response)) => return Step::Respond(response),
            Err(Unfit::Overrun(violation)) => return Step::CloseAssociation(violation),
        }
        let invalidate = data::key_to_invalidate(&sqe);
        let is_connect = fabrics_type(&sqe) == Some(FabricsType::CONNECT);
        let fusable = matches!(self.state, State::Io { .. });
        let outcome = match data::check_flags(&sqe, fusable) {
            Ok(()) => self.on_command(now, &sqe, in_capsule_len),
            // A Connect never fails with Invalid Field: its response names the field.
            Err(_) if is_connect => {
                let dw0 = InvalidParameter::Command(command_offset::FLAGS).emit();
                let status = status::CONNECT_INVALID_PARAMETERS;
                return Step::Respond(self.flight.end(sqe.cid(), status, dw0.into(), invalidate));
            }
            Err(status) => {
                if let State::Io { fused, .. } = &mut self.state {
                    fused.on_other();
                }
                Err(status)
            }
        };
        // Nor does it add to the Error Information log.
        let subject = (!is_connect).then(|| Subject::of(&sqe, fusable));
        self.step(sqe.cid(), invalidate, subject, outcome)
    }

    fn on_command(&mut self, now: Duration, sqe: &Sqe, in_capsule_len: usize) -> Outcome {
        if self.locked && authentication::is_authentication(fabrics_type(sqe)).is_none() {
            return Err(authentication::REQUIRED);
        }
        match &mut self.state {
            State::Connecting { connecting, .. } => {
                let reply = on_first_command(sqe, in_capsule_len, *connecting)?;
                *connecting = true;
                Ok(reply)
            }
            State::Admin(controller) => match authentication::is_authentication(fabrics_type(sqe)) {
                None => controller.on_command(now, sqe, in_capsule_len),
                Some(fctype) => self.on_authentication(now, fctype, sqe, in_capsule_len),
            },
            // No command begins after a Disconnect. It may succeed on another queue, so no "do not retry".
            State::Io { disconnect: Disconnect::Waiting { .. } | Disconnect::Answered, .. } => {
                Err(Status::ABORTED_SQ_DELETION)
            }
            State::Io { io, fused, disconnect, .. } => {
                if fused.takes(sqe) {
                    return fused.on_command(io, sqe, data::key_to_invalidate(sqe), in_capsule_len);
                }
                match fabrics_type(sqe) {
                    None => io.on_command(sqe, in_capsule_len),
                    Some(FabricsType::CONNECT) => Err(status::COMMAND_SEQUENCE_ERROR),
                    Some(FabricsType::DISCONNECT) => {
                        fabrics::check_disconnect(sqe, false)?;
                        // The Disconnect itself is in flight.
                        if self.flight.in_flight() > 1 {
                            let (cid, invalidate) = (sqe.cid(), data::key_to_invalidate(sqe));
                            *disconnect = Disconnect::Waiting { cid, invalidate };
                            return Ok(Reply::Held);
                        }
                        *disconnect = Disconnect::Answered;
                        Ok(Reply::Done(0))
                    }
                    // Properties belong to the Admin queue.
                    Some(FabricsType::PROPERTY_GET | FabricsType::PROPERTY_SET) => {
                        Err(status::INVALID_OPCODE)
                    }
                    Some(fctype) => self.on_authentication(now, fctype, sqe, in_capsule_len),
                }
            }
        }
    }

    /// Authentication Send or Receive; or a Fabrics command that there is not.
    fn on_authentication(
        &mut self,
        now: Duration,
        fctype: FabricsType,
        sqe: &Sqe,
        in_capsule_len: usize,
    ) -> Outcome {
        match (authentication::is_authentication(Some(fctype)), &mut self.authentication) {
            (Some(fctype), Some(authentication)) => {
                let outcome = authentication.on_command(now, fctype, sqe, in_capsule_len);
                self.set_locked(now);
                outcome
            }
            _ => Err(fabrics::unsupported(fctype)),
        }
    }

    /// Takes over whether the queue is authenticated.
    fn set_locked(&mut self, now: Duration) {
        let locked = self.authentication.as_ref().is_some_and(|authentication| authentication.is_locked());
        if core::mem::replace(&mut self.locked, locked)
            && !locked
            && let State::Admin(controller) = &mut self.state
        {
            controller.on_authenticated(now);
        }
    }

    /// Why the host is not authenticated, if it failed to be: for the log, when the queue closes.
    #[must_use]
    pub fn authentication_fault(&self) -> Option<Fault> {
        self.authentication.as_ref()?.fault()
    }

    /// Takes the data of [`Work::Parameters`]: exactly the bytes of the transfer.
    ///
    /// # Panics
    /// When the ticket is of another queue, or did not ask for parameters of that length.
    pub fn on_parameters(&mut self, now: Duration, ticket: Ticket, parameters: &[u8]) -> Step {
        self.check_ticket(&ticket);
        if let (State::Connecting { link, .. }, Some(_)) = (&self.state, ticket.connect()) {
            let data = ConnectData::read_from_bytes(parameters).expect("Connect data of 1024 bytes");
            return Step::Connect(Box::new(ConnectRequest { ticket, link: **link, data }));
        }
        let subject = ticket.subject;
        let (cid, kind, invalidate) = ticket.redeem();
        let outcome = match (&mut self.state, kind) {
            (State::Admin(controller), Kind::Admin(kind)) => controller.on_parameters(now, kind, parameters),
            (State::Io { io, fused, .. }, Kind::Io(IoKind::FusedData { cid })) => {
                fused.on_parameters(io, cid, parameters)
            }
            (State::Io { io, .. }, Kind::Io(kind)) => io.on_parameters(&kind, parameters),
            (_, Kind::Authentication(_)) => {
                let outcome = self.authentication().on_message(now, parameters);
                self.set_locked(now);
                outcome
            }
            (_, kind) => panic!("parameters for {kind:?} came to a queue of another kind"),
        };
        self.step(cid, invalidate, subject, outcome)
    }

    /// Takes the registry's answer to [`Step::Connect`].
    ///
    /// # Panics
    /// When the request is of another queue.
    pub fn on_admission(
        &mut self,
        now: Duration,
        request: Box<ConnectRequest>,
        admission: Admission,
    ) -> Step {
        self.check_ticket(&request.ticket);
        let command = request.command();
        let (cid, _, invalidate) = request.ticket.redeem();
        let response = match admission.outcome {
            Ok(admitted) => {
                let cntlid = admitted.association.key.cntlid;
                let authentication_required = admitted.must_authenticate();
                let secure_channel_required = admitted.must_concatenate();
                self.become_connected(now, &command, admitted);
                let connected = Connected { cntlid, authentication_required, secure_channel_required };
                let dw0 = connected.emit();
                self.flight.end(cid, Status::SUCCESS, dw0.into(), invalidate)
            }
            Err(refusal) => {
                if let State::Connecting { connecting, .. } = &mut self.state {
                    *connecting = false;
                }
                self.flight.end(cid, refusal.status(), refusal.dw0().into(), invalidate)
            }
        };
        Step::Respond(response)
    }

    fn become_connected(&mut self, now: Duration, command: &Connect, admitted: Admitted) {
        self.authentication = admitted
            .authentication
            .map(|demand| Box::new(QueueAuthentication::new(now, &admitted.association, demand)));
        self.locked = self.authentication.as_ref().is_some_and(|authentication| authentication.is_locked());
        let flow_control = !command.attributes.disables_sq_flow_control();
        self.flight.connect(admitted.qid, admitted.entries, flow_control);
        self.state = match admitted.role {
            Role::Admin(controller) => State::Admin(controller),
            Role::Io { io, epoch } => {
                let (association, fused) = (admitted.association, Fused::default());
                State::Io { association, io, fused, epoch, disconnect: Disconnect::None }
            }
        };
    }

    /// Takes the result of a command's work and transfer.
    ///
    /// # Panics
    /// When the ticket is of another queue, or waits for parameters.
    pub fn on_done(&mut self, now: Duration, ticket: Ticket, result: Result<(), BlockError>) -> Step {
        self.check_ticket(&ticket);
        let subject = ticket.subject;
        let (cid, kind, invalidate) = ticket.redeem();
        let outcome = match (&mut self.state, kind) {
            (State::Io { io, fused, .. }, Kind::Io(IoKind::Fused(running))) => {
                fused.on_done(io, now, *running, result)
            }
            (State::Io { io, .. }, Kind::Io(kind)) => io.on_done(now, kind, result),
            (State::Admin(controller), Kind::Admin(kind)) => controller.on_done(now, kind, result),
            (_, Kind::Authentication(AuthenticationKind::Receive)) => {
                let outcome = self.authentication().on_message_taken(now);
                self.set_locked(now);
                outcome
            }
            (_, kind) => panic!("{kind:?} was done on a queue of another kind"),
        };
        self.step(cid, invalidate, subject, outcome)
    }

    /// Takes the answer to [`Step::Ask`].
    ///
    /// # Panics
    /// When the ticket is of another queue, or asked something else.
    pub fn on_answer(&mut self, now: Duration, ticket: Ticket, answer: Answer) -> Step {
        self.check_ticket(&ticket);
        let subject = ticket.subject;
        let (cid, kind, invalidate) = ticket.redeem();
        let outcome = match (kind, answer) {
            (Kind::Admin(AdminKind::Reset(impacted)), Answer::Reset(result)) => match &mut self.state {
                State::Admin(controller) => reset::on_answer(controller, &impacted, result),
                _ => Err(Status::INTERNAL_ERROR),
            },
            (Kind::Authentication(AuthenticationKind::Send), Answer::Authenticate(computed)) => {
                let outcome = self.authentication().on_computed(now, computed);
                self.set_locked(now);
                outcome
            }
            (Kind::Admin(AdminKind::Protect(device)), Answer::Reservation(result)) => {
                result.map(|()| write_protection::flush(device))
            }
            (Kind::Io(_) | Kind::Admin(_), Answer::Reservation(result)) => result.map(|()| Reply::Done(0)),
            (kind, answer) => panic!("{kind:?} was answered by {answer:?}"),
        };
        self.step(cid, invalidate, subject, outcome)
    }

    /// The data of a command did not arrive as they were sent: it fails, and may be tried again.
    ///
    /// # Panics
    /// When the ticket is of another queue.
    pub fn on_transfer_failed(&mut self, ticket: Ticket) -> Step {
        self.check_ticket(&ticket);
        let (cid, kind, invalidate) = ticket.redeem();
        match (&mut self.state, kind) {
            (State::Connecting { connecting, .. }, Kind::Connect(_)) => *connecting = false,
            (State::Io { fused, .. }, Kind::Io(IoKind::FusedData { .. })) => {
                fused.on_transfer_failed(cid);
                return Step::Held;
            }
            _ => {}
        }
        Step::Respond(self.flight.end(cid, Status::TRANSIENT_TRANSPORT_ERROR, 0, invalidate))
    }

    /// Whether a part of a command that names this NSID may still go to the device. What the command was let in by may
    /// have changed since: to be asked just before the device is given the operation, where a barrier came after the
    /// command.
    ///
    /// # Errors
    /// The status that the command fails with: [`Queue::on_refused`].
    #[cold]
    pub fn check_again(&self, nsid: Nsid, device: DeviceId, op: &BlockOp) -> Result<(), Status> {
        match &self.state {
            // Also while its connection is being closed, and data that were under way still arrive.
            State::Io { association, epoch, .. }
                if association.is_closing() || association.epoch() != *epoch =>
            {
                Err(Status::ABORTED_SQ_DELETION)
            }
            State::Io { io, .. } => io.check_again(nsid, device, op),
            // An Admin queue only flushes.
            State::Admin(_) | State::Connecting { .. } => Ok(()),
        }
    }

    /// Whether a command under way is still let in, now that a barrier names it. What the barrier took away may come back
    /// before the command's data do, and the command is not to take effect then either.
    ///
    /// # Errors
    /// The status that it fails with, once it would go to the device: [`Queue::on_refused`].
    #[cold]
    pub fn check_under_way(&self, ticket: &Ticket, nsid: Nsid, work: &Work) -> Result<(), Status> {
        match (&self.state, ticket.kind()) {
            (State::Io { io, .. }, Some(Kind::Io(kind))) => io.check_under_way(kind, nsid, work),
            _ => Ok(()),
        }
    }

    /// The device of the namespace that a command names, while there is one.
    #[must_use]
    pub fn device_of(&self, nsid: Nsid) -> Option<DeviceId> {
        match &self.state {
            State::Io { io, .. } => io.device_of(nsid),
            State::Admin(_) | State::Connecting { .. } => None,
        }
    }

    /// A part of a command was not given to the device, because [`Queue::check_again`] refused it.
    ///
    /// # Panics
    /// When the ticket is of another queue.
    pub fn on_refused(&mut self, ticket: Ticket, status: Status) -> Step {
        self.check_ticket(&ticket);
        let subject = ticket.subject;
        let (cid, kind, invalidate) = ticket.redeem();
        if let (State::Io { fused, .. }, Kind::Io(IoKind::Fused(running))) = (&mut self.state, kind) {
            fused.on_refused(&running, status);
            return Step::Held;
        }
        self.note_error(cid, subject, status);
        Step::Respond(self.flight.end(cid, status, 0, invalidate))
    }

    /// Bytes of memory that a queue takes beside itself once it is connected: an Admin queue also those of its controller.
    #[must_use]
    pub const fn bytes(is_admin: bool) -> usize {
        Flight::BYTES + if is_admin { size_of::<Controller>() + size_of::<Association>() } else { 0 }
    }

    /// Takes a change in the registry.
    pub fn on_notice(&mut self, _now: Duration, notice: &Notice) {
        match (&mut self.state, notice) {
            (State::Io { io, .. }, Notice::Namespaces(table)) => io.on_namespaces(table),
            (State::Admin(controller), notice) => controller.on_notice(notice),
            _ => {}
        }
    }

    /// The next step that does not answer a capsule directly: a completed event request, a close. `None` when there is
    /// none.
    pub fn poll_step(&mut self, _now: Duration) -> Option<Step> {
        if self.closed {
            return None;
        }
        let refused = self.authentication.as_ref().and_then(|authentication| authentication.poll_step());
        let step = match &mut self.state {
            _ if refused.is_some() => refused,
            State::Connecting { expired, timeout, .. } => {
                expired.then_some(Step::CloseAssociation(Violation::ConnectTimeout(*timeout)))
            }
            State::Io { association, fused, epoch, disconnect, .. } => match *disconnect {
                _ if association.is_closing() || association.epoch() != *epoch => Some(Step::CloseQueue),
                _ if fused.has_response() => fused.poll_response().map(|FusedResponse { to, status }| {
                    let AnswerTo { cid, invalidate } = to;
                    Step::Respond(self.flight.end(cid, status, 0, invalidate))
                }),
                Disconnect::Waiting { cid, invalidate } if self.flight.in_flight() == 1 => {
                    *disconnect = Disconnect::Answered;
                    Some(Step::Respond(self.flight.end(cid, Status::SUCCESS, 0, invalidate)))
                }
                Disconnect::Answered => Some(Step::CloseQueue),
                Disconnect::None | Disconnect::Waiting { .. } => None,
            },
            State::Admin(controller) => controller.poll_step(&mut self.flight),
        };
        self.closed = matches!(step, Some(Step::CloseQueue | Step::CloseAssociation(_)));
        step
    }

    /// When to call [`Queue::on_timeout`], on the clock of `now`. Any call of the queue may change it.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let of_state = match &self.state {
            _ if self.closed => return None,
            State::Connecting { deadline, expired, .. } => (!expired).then_some(*deadline),
            State::Admin(controller) => controller.poll_timeout(),
            State::Io { io, .. } => io.poll_timeout(),
        };
        let authentication = self.authentication.as_ref().and_then(|it| it.poll_timeout());
        of_state.into_iter().chain(authentication).min()
    }

    /// Handles the timers that are due. May be called early.
    pub fn on_timeout(&mut self, now: Duration) {
        if let Some(authentication) = &mut self.authentication {
            authentication.on_timeout(now);
        }
        match &mut self.state {
            State::Connecting { deadline, expired, .. } => *expired |= now >= *deadline,
            State::Admin(controller) => controller.on_timeout(now),
            State::Io { io, .. } => io.on_timeout(now),
        }
    }

    /// The association, once connected.
    #[must_use]
    pub fn association(&self) -> Option<&Arc<Association>> {
        match &self.state {
            State::Connecting { .. } => None,
            State::Admin(controller) => Some(controller.association()),
            State::Io { association, .. } => Some(association),
        }
    }

    /// The Queue ID, once connected; 0 is the Admin queue.
    #[must_use]
    pub fn qid(&self) -> Option<Qid> {
        self.association().map(|_| self.flight.qid())
    }

    /// Commands that have a ticket out, or are held.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.flight.in_flight()
    }

    fn step(
        &mut self,
        cid: Cid,
        invalidate: Option<u32>,
        subject: Option<Subject>,
        outcome: Outcome,
    ) -> Step {
        let (status, result) = match outcome {
            Ok(Reply::Done(result)) => (Status::SUCCESS, result),
            Ok(Reply::Held) => return Step::Held,
            Ok(Reply::Execute { kind, work, transfer }) => {
                let ticket = Ticket::new(self.flight.qid(), cid, kind, invalidate, subject);
                return Step::Execute { ticket, work, transfer };
            }
            Ok(Reply::Ask { kind, question }) => {
                let ticket = Ticket::new(self.flight.qid(), cid, kind, invalidate, subject);
                return Step::Ask { ticket, question };
            }
            Err(status) => {
                self.note_error(cid, subject, status);
                (status, 0)
            }
        };
        Step::Respond(self.flight.end(cid, status, result, invalidate))
    }

    /// Adds to the Error Information log of the controller.
    #[cold]
    fn note_error(&self, cid: Cid, subject: Option<Subject>, status: Status) {
        if let (Some(association), Some(subject)) = (self.association(), subject)
            && is_error(status)
        {
            association.errors.record(self.flight.qid(), cid, subject, status);
        }
    }

    fn authentication(&mut self) -> &mut QueueAuthentication {
        self.authentication.as_mut().expect("a command of it was begun")
    }

    fn check_ticket(&self, ticket: &Ticket) {
        assert_eq!(ticket.qid, self.flight.qid(), "a ticket came back to another queue");
    }
}

/// The only command of a queue that is not connected: one Connect at a time, its data in the capsule or in host memory.
fn on_first_command(sqe: &Sqe, in_capsule_len: usize, connecting: bool) -> Outcome {
    if fabrics_type(sqe) != Some(FabricsType::CONNECT) || connecting {
        return Err(status::COMMAND_SEQUENCE_ERROR);
    }
    let transfer = data::from_host(sqe, CONNECT_LEN, Fit::AtLeast, in_capsule_len)?;
    Ok(Reply::Execute { kind: Kind::Connect(Connect::parse(sqe)), work: Work::Parameters, transfer })
}
