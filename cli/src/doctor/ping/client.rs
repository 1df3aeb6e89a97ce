//! The measuring end.

use super::line::{CHUNK, ENTRIES, Line, Work, parameters};
use super::message::{LEN, Message};
use super::report::{Latency, Measured};
use super::server::{FIRST_MARK, next_mark};
use anyhow::{Context, Result, anyhow, bail, ensure};
use nvmf_rdma::{CmEvent, Completion, CompletionQueueId, ConnectFailure, Provider, WcStatus};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Limit of every single wait.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of the connection's set-up.
const SET_UP: Duration = Duration::from_secs(5);
/// Round trips before the first that counts.
const WARM_UP: u32 = 20;

/// What `--ping` measures, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Round trips at most.
    pub(crate) count: u32,
    /// Time of each measurement at most.
    pub(crate) time: Duration,
}

/// Connects and measures everything.
pub(super) fn measure<P: Provider>(provider: P, address: SocketAddr, plan: &Plan) -> Result<Measured> {
    let mut client = Client::connect(provider, address)?;
    let measured = client.measure(plan);
    client.line.end(&mut client.provider);
    measured.with_context(|| format!("the measurement against {address} broke off"))
}

struct Client<P: Provider> {
    provider: P,
    cq: CompletionQueueId,
    line: Line,
    start: Instant,
    completions: Vec<Completion>,
    inbox: VecDeque<Message>,
    /// The result of the set-up.
    outcome: Option<Result<(), ConnectFailure>>,
    over: Option<anyhow::Error>,
}

impl<P: Provider> Client<P> {
    fn connect(provider: P, address: SocketAddr) -> Result<Self> {
        let mut client = Self::establish(provider, address)?;
        let own = client.line.expose(&mut client.provider)?;
        match client.ask(Message::Hello(own), LEN)? {
            Message::Ready(memory) => client.line.peer = Some(memory),
            other => bail!("{address} answered {other:?} to a greeting"),
        }
        Ok(client)
    }

    /// An established connection, before the first message.
    fn establish(mut provider: P, address: SocketAddr) -> Result<Self> {
        let cq = provider.create_completion_queue(ENTRIES).context("no completion queue")?;
        let line = Line::new(&mut provider, cq)?;
        let parameters = parameters(&provider, SET_UP);
        provider.connect(Duration::ZERO, line.qp, address, None, &parameters)?;
        let (completions, inbox) = (Vec::with_capacity(32), VecDeque::new());
        let start = Instant::now();
        let mut client = Self { provider, cq, line, start, completions, inbox, outcome: None, over: None };
        let outcome = client.until("the connection", |client| client.outcome.take())?;
        let advice = || format!("start the other end there: nvmf doctor --listen {address}");
        match outcome {
            Ok(()) => {}
            Err(ConnectFailure::Rejected { .. }) => {
                bail!(
                    "{address} refused: no nvmf doctor listens there, or it has its maximum of connections; {}",
                    advice()
                );
            }
            Err(failure) => {
                let error = anyhow::Error::new(failure);
                return Err(error.context(format!("nobody answers on {address}; {}", advice())));
            }
        }
        Ok(client)
    }

    fn measure(&mut self, plan: &Plan) -> Result<Measured> {
        let send = self.send_latency(plan)?;
        let write = self.write_latency(plan)?;
        let ms = u32::try_from(plan.time.as_millis()).unwrap_or(u32::MAX).min(super::server::BULK_MS);
        Ok(Measured {
            send,
            write,
            write_out: self.bandwidth(plan.time, false)?,
            write_in: self.peer_bandwidth(Message::Write { ms }, plan.time)?,
            read_in: self.bandwidth(plan.time, true)?,
            read_out: self.peer_bandwidth(Message::Read { ms }, plan.time)?,
        })
    }

    /// Round trips of SEND.
    fn send_latency(&mut self, plan: &Plan) -> Result<Latency> {
        let mut latency = Latency::new();
        let end = self.start.elapsed() + plan.time;
        for number in 0..plan.count.saturating_add(WARM_UP) {
            let begin = Instant::now();
            let answer = self.ask(Message::Echo, plan.size)?;
            let took = begin.elapsed();
            ensure!(answer == Message::Echo, "an echo came back as {answer:?}");
            latency.record(number >= WARM_UP, took);
            if number > WARM_UP && self.start.elapsed() > end {
                break;
            }
        }
        Ok(latency)
    }

    /// RDMA WRITE there and back, each detected by polling memory; half of the round trip is one way.
    fn write_latency(&mut self, plan: &Plan) -> Result<Latency> {
        let size = plan.size;
        let mut latency = Latency::new();
        self.line.clear(size);
        self.ask(Message::EchoWrites { size: u32::try_from(size)? }, LEN)?;
        let end = self.start.elapsed() + plan.time;
        let mut mark = FIRST_MARK;
        for number in 0..plan.count.saturating_add(WARM_UP) {
            let begin = Instant::now();
            self.line.write_mark(&mut self.provider, size, mark)?;
            self.provider.flush();
            self.until("an RDMA WRITE", |client| {
                (client.line.mark(size) == mark && client.line.bulk == 0).then_some(())
            })?;
            latency.record(number >= WARM_UP, begin.elapsed() / 2);
            mark = next_mark(mark);
            if number > WARM_UP && self.start.elapsed() > end {
                break;
            }
        }
        self.sync()?;
        Ok(latency)
    }

    /// Bytes per second that we write or read.
    fn bandwidth(&mut self, time: Duration, read: bool) -> Result<f64> {
        let begin = Instant::now();
        let mut bytes = 0;
        while begin.elapsed() < time {
            self.line.fill(&mut self.provider, read)?;
            self.provider.flush();
            let before = self.line.bulk;
            self.until("a chunk", |client| (client.line.bulk < before).then_some(()))?;
            bytes += (before - self.line.bulk) * CHUNK;
        }
        let rest = self.line.bulk * CHUNK;
        self.until("the last chunk", |client| (client.line.bulk == 0).then_some(()))?;
        self.sync()?;
        Ok((bytes + rest) as f64 / begin.elapsed().as_secs_f64())
    }

    /// Bytes per second that the peer writes or reads.
    fn peer_bandwidth(&mut self, order: Message, time: Duration) -> Result<f64> {
        let begin = Instant::now();
        self.say(order, LEN)?;
        let answer =
            self.until_within("the peer's last chunk", time + TIMEOUT, |client| client.inbox.pop_front())?;
        let Message::Done { bytes } = answer else { bail!("{order:?} was answered by {answer:?}") };
        Ok(bytes as f64 / begin.elapsed().as_secs_f64())
    }

    /// Waits until the peer has received everything that was written before.
    fn sync(&mut self) -> Result<()> {
        let answer = self.ask(Message::Sync, LEN)?;
        ensure!(matches!(answer, Message::Done { .. }), "Sync was answered by {answer:?}");
        Ok(())
    }

    fn say(&mut self, message: Message, len: usize) -> Result<()> {
        self.until("the message before", |client| (client.line.sending == 0).then_some(()))?;
        self.line.send(&mut self.provider, message, len)?;
        self.provider.flush();
        Ok(())
    }

    fn ask(&mut self, message: Message, len: usize) -> Result<Message> {
        self.say(message, len)?;
        self.until("an answer", |client| client.inbox.pop_front())
    }

    fn until<T>(&mut self, what: &str, found: impl FnMut(&mut Self) -> Option<T>) -> Result<T> {
        self.until_within(what, TIMEOUT, found)
    }

    /// Makes progress until `found` finds something, the connection ends, or the limit is reached.
    fn until_within<T>(
        &mut self,
        what: &str,
        timeout: Duration,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T> {
        let deadline = self.start.elapsed() + timeout;
        loop {
            if let Some(it) = found(self) {
                return Ok(it);
            }
            let now = self.start.elapsed();
            if let Some(error) = self.over.take() {
                return Err(error);
            }
            ensure!(now < deadline, "no {what} within {timeout:?}");
            if !self.turn(now)? {
                std::thread::yield_now();
            }
        }
    }

    fn turn(&mut self, now: Duration) -> Result<bool> {
        self.provider.poll_cq(self.cq, &mut self.completions);
        let mut worked = !self.completions.is_empty();
        for at in 0..self.completions.len() {
            let completion = self.completions[at];
            self.on_completion(&completion)?;
        }
        self.completions.clear();
        while let Some(event) = self.provider.poll_cm(now) {
            worked = true;
            match event {
                CmEvent::Established { .. } => self.outcome = Some(Ok(())),
                CmEvent::ConnectFailed { failure, .. } => self.outcome = Some(Err(failure)),
                CmEvent::Disconnected { cause, .. } => {
                    self.over = Some(anyhow!("the connection ended: {cause}"));
                }
                CmEvent::ConnectRequest { .. } | CmEvent::DeviceRemoved => {}
            }
        }
        Ok(worked)
    }

    fn on_completion(&mut self, completion: &Completion) -> Result<()> {
        match (completion.status, Work::of(completion.id)) {
            // The event that follows has the reason.
            (WcStatus::Flushed, _) => {}
            (WcStatus::Success, Work::Receive(slot)) => {
                ensure!(completion.byte_len as usize >= LEN, "the peer sent {} bytes", completion.byte_len);
                let message = Message::parse(&self.line.received(slot));
                self.inbox.push_back(message.context("the peer sent an unknown message")?);
                self.line.post_receive(&mut self.provider, slot)?;
            }
            (WcStatus::Success, Work::Send) => self.line.sending = self.line.sending.saturating_sub(1),
            (WcStatus::Success, Work::Bulk) => self.line.bulk = self.line.bulk.saturating_sub(1),
            (status, work) => bail!("{work:?} failed: {status}"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
