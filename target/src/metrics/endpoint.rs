//! Metrics over HTTP: a thread of its own, which gives way to every other.
//!
//! Whoever reaches the address may read them. What such a client can cost is bounded: how many connections there are
//! (a newer one takes the place of the oldest), how long each may last, how much of a request is read.

use super::observed::Observed;
use super::text;
use core::convert::Infallible;
use core::time::Duration;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nvmf_config::MetricsAddress;
use nvmf_stream::listen_unix;
use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, spawn};
use tokio::time::{sleep, timeout};

/// Where metrics are, below the address.
pub const PATH: &str = "/metrics";
/// Connections at once.
const CONNECTIONS_MAX: usize = 16;
/// Connections that wait in the kernel.
const BACKLOG: i32 = 64;
/// How long one may last.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// How long a request may take to arrive.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Bytes of a request that are read, and header fields.
const REQUEST_LEN: usize = 8192;
const FIELDS_MAX: usize = 64;
/// How long no connection is accepted after that failed, for want of a descriptor for example.
const PAUSE: Duration = Duration::from_millis(100);
/// How far its thread stands behind the others.
const NICENESS: i32 = 10;

/// The endpoint does not start.
#[derive(Debug, Error)]
pub enum EndpointError {
    /// The address cannot be listened on, or the system has no thread or descriptor left.
    #[error(transparent)]
    System(#[from] io::Error),
    /// There is something else at the path.
    #[error("there is a file that is no socket, or another program listens there")]
    Taken,
}

/// The endpoint; it ends when this is dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: MetricsAddress,
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Endpoint {
    /// Where it listens: with the port that the system chose for port 0.
    #[must_use]
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            // It has ended already where nobody takes this.
            let _ = stop.send(());
            let _ = thread.join();
        }
        if let MetricsAddress::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Serves what is observed.
///
/// # Errors
/// [`EndpointError`].
pub fn serve(address: &MetricsAddress, observed: Arc<Observed>) -> Result<Endpoint, EndpointError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::Builder::new().name("metrics".into());
    let inside = runtime.enter();
    let (address, thread) = match address {
        MetricsAddress::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = MetricsAddress::Tcp(listener.local_addr()?);
            let listener = tokio::net::TcpListener::from_std(listener)?;
            drop(inside);
            let body = move || {
                run(&runtime, stopped, async {
                    accept(&observed, async || Ok(listener.accept().await?.0)).await
                });
            };
            (address, thread.spawn(body)?)
        }
        MetricsAddress::Unix(path) => {
            let listener = bind(path)?;
            listener.set_nonblocking(true)?;
            let listener = tokio::net::UnixListener::from_std(listener)?;
            drop(inside);
            let body = move || {
                run(&runtime, stopped, async {
                    accept(&observed, async || Ok(listener.accept().await?.0)).await
                });
            };
            (address.clone(), thread.spawn(body)?)
        }
    };
    Ok(Endpoint { address, thread: Some((stop, thread)) })
}

/// A socket at this path, for its user and group. One that a target has left there is replaced.
fn bind(path: &Path) -> Result<UnixListener, EndpointError> {
    let (listener, file) = match listen_unix(path, BACKLOG) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
            if !is_socket || UnixStream::connect(path).is_ok() {
                return Err(EndpointError::Taken);
            }
            std::fs::remove_file(path)?;
            listen_unix(path, BACKLOG)?
        }
        bound => bound?,
    };
    file.set_mode(0o660)?;
    Ok(listener)
}

fn run(runtime: &Runtime, stopped: oneshot::Receiver<()>, accept: impl Future<Output = Infallible>) {
    // It may always stand further behind.
    let _ = rustix::process::nice(NICENESS);
    runtime.block_on(async {
        tokio::select! {
            _ = stopped => {}
            never = accept => match never {},
        }
    });
}

/// Serves every connection that comes, until it is dropped.
async fn accept<S>(observed: &Arc<Observed>, mut next: impl AsyncFnMut() -> io::Result<S>) -> Infallible
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connections: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTIONS_MAX);
    loop {
        let Ok(stream) = next().await else {
            sleep(PAUSE).await;
            continue;
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() == CONNECTIONS_MAX
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        connections.push_back(spawn(converse(stream, Arc::clone(observed))).abort_handle());
    }
}

async fn converse<S>(stream: S, observed: Arc<Observed>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = service_fn(async |request: Request<Incoming>| {
        Ok::<_, Infallible>(answer(&request, || text::render(&observed)))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .max_buf_size(REQUEST_LEN)
        .max_headers(FIELDS_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    // Whatever ends it is the client's affair.
    let _ = timeout(CONNECTION_TIME, connection).await;
}

fn answer(request: &Request<Incoming>, render: impl FnOnce() -> String) -> Response<Full<Bytes>> {
    let plain = |status, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != PATH {
        return plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "metrics can only be read\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let mut response = Response::new(Full::from(render()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(text::CONTENT_TYPE));
    response
}
