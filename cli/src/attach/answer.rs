//! What a disk's server answers while it serves: on a socket beside its entry, one line of JSON to one line of text.

use super::control::Control;
use super::counted::Statistics;
use crate::command::Further;
use crate::interrupt;
use crate::print::chain;
use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader as AsyncBufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long a question and its answer may take, on both sides.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often whoever asks looks whether it is to end.
const POLL: Duration = Duration::from_millis(100);
/// Bytes of a question.
const QUESTION_MAX: u64 = 1024;
/// Bytes of an answer.
const ANSWER_MAX: u64 = 1 << 20;
/// The server has no socket for questions, or does not know this one.
#[derive(Debug, thiserror::Error)]
#[error(
    "its server is of another version, which does not know this request: nvmf upgrade has the disk served by this one"
)]
pub(super) struct OtherVersion;

/// A disk cannot have what is asked for, as it is attached: to ask again is of no use.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unable(pub(crate) String);

/// The server does not say anything: it may be stopped.
#[derive(Debug, thiserror::Error)]
#[error("its server does not answer within {PATIENCE:?}")]
pub(super) struct Silent;

/// Who asks at once; others are turned away.
const ASKERS_MAX: usize = 16;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Question {
    /// What it has done.
    Statistics,
    /// To have the target say again which namespaces there are.
    Rescan,
    /// To end its connections and connect again.
    Reset,
    /// To connect again now what is not connected.
    Reconnect,
    /// To use one more path, named as `--path` does.
    AddPath(String),
}

/// What it says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Statistics(Box<Statistics>),
    Done,
    /// What was asked for cannot be done.
    Refused(String),
    /// Nor can it ever be, as this disk is attached.
    Unable(String),
    /// A question of another version.
    Unknown,
}

/// The socket of a disk's server.
pub(super) struct Answers {
    listener: Option<UnixListener>,
    path: PathBuf,
    further: Further,
    askers: Arc<Semaphore>,
}

impl Drop for Answers {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Answers {
    /// Listens at this path. Where that cannot be, the disk is served without.
    pub(super) fn new(path: PathBuf, further: Further) -> Self {
        // Of a server that was killed.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).inspect_err(|error| {
            tracing::warn!(%error, "nobody can ask this process what it has done, at {}", path.display());
        });
        Self { listener: listener.ok(), path, further, askers: Arc::new(Semaphore::new(ASKERS_MAX)) }
    }

    /// Nobody is answered any more: who asks is refused, and does not take the server for one that is stopped.
    pub(super) fn end(&mut self) {
        self.listener = None;
    }

    /// Waits for somebody to ask, and has them answered.
    pub(super) async fn next(&self, control: &Arc<Control>) {
        let Some(listener) = &self.listener else { return core::future::pending().await };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is left: not at once again.
            return tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let Ok(place) = Arc::clone(&self.askers).try_acquire_owned() else { return };
        let (control, further) = (Arc::clone(control), self.further.clone());
        tokio::spawn(async move {
            let _place = place;
            let _ = answer(stream, &control, further).await;
        });
    }
}

async fn answer(stream: UnixStream, control: &Arc<Control>, further: Further) -> Result<()> {
    let mut stream = AsyncBufReader::new(stream);
    let mut line = String::new();
    timeout(PATIENCE, (&mut stream).take(QUESTION_MAX).read_line(&mut line)).await??;
    let answer = match serde_json::from_str::<Question>(&line) {
        Ok(question) => timeout(PATIENCE, answer_to(question, control, further)).await?,
        Err(_) => Answer::Unknown,
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    Ok(timeout(PATIENCE, stream.get_mut().write_all(&line)).await??)
}

async fn answer_to(question: Question, control: &Arc<Control>, further: Further) -> Answer {
    match question {
        Question::Statistics => return Answer::Statistics(Box::new(control.counters().get())),
        Question::Rescan => control.rescan(),
        Question::Reset => control.reset(),
        Question::Reconnect => control.reconnect(),
        Question::AddPath(name) => {
            // Whoever asked may have gone when it is made: it is written down all the same.
            let made = tokio::spawn(add_path(Arc::clone(control), further, name)).await;
            if let Err(error) = made.map_err(Into::into).flatten() {
                let is_for_good = error.is::<Unable>();
                return if is_for_good {
                    Answer::Unable(chain(&error))
                } else {
                    Answer::Refused(chain(&error))
                };
            }
        }
    }
    Answer::Done
}

/// Has the disk's threads use the path that `--path` names so. A name is looked up by them, as often as it takes:
/// nobody waits.
async fn add_path(control: Arc<Control>, further: Further, name: String) -> Result<()> {
    let named = name.clone();
    // Keys are read.
    let path = spawn_blocking(move || further.path(&named)).await??;
    control.add_path(name, &path).await
}

/// Asks the server whose socket lies there; what it says of its statistics, if it was asked for them.
pub(super) fn ask(path: &Path, question: &Question) -> Result<Option<Statistics>> {
    let deadline = Instant::now() + PATIENCE;
    let stream = connect(path, deadline)?;
    stream.set_read_timeout(Some(POLL))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(question)?;
    line.push(b'\n');
    (&stream).write_all(&line).context("its server cannot be asked")?;
    let line = hear(stream, deadline)?;
    match serde_json::from_slice(&line) {
        Ok(Answer::Statistics(statistics)) => Ok(Some(*statistics)),
        Ok(Answer::Done) => Ok(None),
        Ok(Answer::Refused(reason)) => bail!("{reason}"),
        Ok(Answer::Unable(reason)) => bail!(Unable(reason)),
        Ok(Answer::Unknown) => bail!(OtherVersion),
        Err(_) => bail!("its server's answer cannot be read"),
    }
}

/// Connects to a server's socket. A connect that blocks would wait for one that is stopped for ever, where as many wait for it as may.
fn connect(path: &Path, deadline: Instant) -> Result<BlockingStream> {
    let cannot = "its server cannot be asked";
    let address = SocketAddrUnix::new(path).context(cannot)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).context(cannot)?;
    loop {
        match net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::NOENT) => bail!(OtherVersion),
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error).context(cannot),
        }
        interrupt::check()?;
        ensure!(Instant::now() <= deadline, Silent);
        std::thread::sleep(POLL);
    }
    let stream = BlockingStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// What the server answers.
fn hear(stream: BlockingStream, deadline: Instant) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut answer = BufReader::new(stream).take(ANSWER_MAX);
    while let Err(error) = answer.read_until(b'\n', &mut line) {
        interrupt::check()?;
        if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) {
            return Err(error).context("its server does not answer");
        }
        ensure!(Instant::now() <= deadline, Silent);
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener as BlockingListener;

    /// What is said of a question to a server that answers with this line.
    fn said(line: &'static str) -> anyhow::Error {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.ask");
        let listener = BlockingListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            (&stream).write_all(line.as_bytes()).unwrap();
            question
        });
        let said = ask(&path, &Question::Reset).unwrap_err();
        assert_eq!(server.join().unwrap(), "\"reset\"\n");
        said
    }

    /// One that is stopped, and for which as many wait as may.
    #[test]
    fn server_that_accepts_nobody_does_not_answer_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.ask");
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        net::listen(&listener, 0).unwrap();
        // One has room, and is not heard; another has none.
        let waits = || {
            let error = ask(&path, &Question::Reset).unwrap_err();
            assert!(error.is::<Silent>(), "{error:#}");
        };
        std::thread::scope(|scope| {
            let asked = [scope.spawn(waits), scope.spawn(waits)];
            asked.into_iter().for_each(|asked| asked.join().unwrap());
        });
    }

    #[test]
    fn server_of_another_version_is_said_to_be_that() {
        assert!(said("\"unknown\"\n").is::<OtherVersion>());
        assert!(said("{\"unable\":\"why\"}\n").is::<Unable>());
        assert_eq!(said("{\"newer\":1}\n").to_string(), "its server's answer cannot be read");
        assert_eq!(said("").to_string(), "its server's answer cannot be read");
        let folder = tempfile::tempdir().unwrap();
        let nobody = ask(&folder.path().join("1.ask"), &Question::Reset).unwrap_err();
        assert!(nobody.is::<OtherVersion>(), "it has no socket: {nobody}");
    }
}
