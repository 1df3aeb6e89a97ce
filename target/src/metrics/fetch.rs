//! Metrics of a target, asked for over HTTP.

use super::endpoint::PATH;
use super::scrape::{Scrape, ScrapeError};
use core::time::Duration;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use nvmf_config::MetricsAddress;
use std::io;
use std::path::Path;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

/// Bytes that are read at the most.
const TEXT_MAX: usize = 64 << 20;
/// How often is tried to connect where many do.
const CONNECT_RETRY: Duration = Duration::from_millis(10);

/// Metrics cannot be had.
#[derive(Debug, Error)]
pub enum FetchError {
    /// Nobody answers there.
    #[error("nobody answers there")]
    Connect(#[from] io::Error),
    /// The answer is none of HTTP.
    #[error("what answers there is no HTTP server")]
    Http(#[source] Box<dyn core::error::Error + Send + Sync>),
    /// Something else is there.
    #[error("the answer is {0}: is that nvmf-target?")]
    Status(StatusCode),
    /// The text is none.
    #[error("the answer is not what nvmf-target says")]
    Scrape(#[from] ScrapeError),
    /// It takes too long.
    #[error("no answer came within {0:?}")]
    Timeout(Duration),
}

/// Asks for the metrics at an address.
///
/// # Errors
/// [`FetchError`].
pub fn fetch(address: &MetricsAddress, patience: Duration) -> Result<Scrape, FetchError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let asked = async {
        match address {
            MetricsAddress::Tcp(address) => ask(TcpStream::connect(address).await?).await,
            MetricsAddress::Unix(path) => ask(connect(path).await?).await,
        }
    };
    let fetched = runtime.block_on(async { timeout(patience, asked).await });
    Ok(Scrape::parse(&fetched.map_err(|_| FetchError::Timeout(patience))??)?)
}

/// Waits for room in the queue of those that connect, as there always is for TCP.
async fn connect(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(CONNECT_RETRY).await,
            connected => return connected,
        }
    }
}

async fn ask<S>(stream: S) -> Result<String, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let http = |error: hyper::Error| FetchError::Http(error.into());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
    // It ends with this runtime at the latest.
    tokio::spawn(connection);
    let request = Request::get(PATH).header(HOST, "nvmf-target").body(Empty::<Bytes>::new());
    let request = request.map_err(|error| FetchError::Http(error.into()))?;
    let response = sender.send_request(request).await.map_err(http)?;
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status(response.status()));
    }
    let body = Limited::new(response.into_body(), TEXT_MAX).collect().await.map_err(FetchError::Http)?;
    String::from_utf8(body.to_bytes().into()).map_err(|error| FetchError::Http(error.into()))
}
