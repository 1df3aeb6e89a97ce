//! What a server is asked for: by signals, and while it starts, by the end of the process that started it.

use anyhow::{Context, Result, bail};
use std::fs::File;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A thing that a server is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// To end.
    End,
    /// To end, and leave the disk to another server.
    HandOver,
    /// To connect again.
    Reconnect,
    /// To look after a process that it has started, and which may have ended.
    Child,
}

/// What a server is asked for.
pub(super) struct Stop {
    signals: [Signal; 3],
    hand_over: Signal,
    reconnect: Signal,
    child: Signal,
    starter: Option<pipe::Receiver>,
    was_asked: bool,
    hands_over: bool,
}

impl Stop {
    pub(super) fn new(starter: Option<File>) -> Result<Self> {
        let signals = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            // The terminal of a server in the foreground is closed.
            signal(SignalKind::hangup())?,
        ];
        let (reconnect, hand_over) =
            (signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?);
        let child = signal(SignalKind::child())?;
        let starter = starter.map(pipe::Receiver::from_file).transpose().context("no pipe to the starter")?;
        Ok(Self { signals, hand_over, reconnect, child, starter, was_asked: false, hands_over: false })
    }

    /// Ends when somebody wants the server to.
    pub(super) async fn asked(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.signals;
        let starter_ended = async {
            match &mut self.starter {
                Some(pipe) => drop(pipe.read(&mut [0]).await),
                None => core::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
            () = starter_ended => {}
        }
        self.was_asked = true;
    }

    /// The next thing that a server is asked for which serves.
    pub(super) async fn next(&mut self) -> Wish {
        let Self { signals: [terminate, interrupt, hangup], hand_over, reconnect, child, .. } = self;
        let wish = tokio::select! {
            _ = terminate.recv() => Wish::End,
            _ = interrupt.recv() => Wish::End,
            _ = hangup.recv() => Wish::End,
            _ = hand_over.recv() => Wish::HandOver,
            _ = reconnect.recv() => Wish::Reconnect,
            _ = child.recv() => Wish::Child,
        };
        self.was_asked |= wish == Wish::End;
        self.hands_over |= wish == Wish::HandOver;
        wish
    }

    /// Whether somebody has wanted the server to end.
    pub(super) fn was_asked(&self) -> bool {
        self.was_asked
    }

    /// Whether another server is to go on.
    pub(super) fn hands_over(&self) -> bool {
        self.hands_over
    }

    /// Waits until the process that started this one has heard that the disk is there. From then on it may end.
    pub(super) async fn starter_heard(&mut self) -> Result<()> {
        let Some(mut pipe) = self.starter.take() else { return Ok(()) };
        let heard = pipe.read(&mut [0]).await.unwrap_or(0);
        if heard == 0 { bail!("nobody waits for the disk any more") } else { Ok(()) }
    }
}
