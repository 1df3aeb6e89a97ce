//! The server as its clients see it.

use super::disk::{Disk, DiskInfo};
use super::server::{Server, ServerError};
use nbd_proto as wire;
use nvmf_block::BlockError;
use proptest::prelude::*;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Memory as a disk of 512-byte blocks.
#[derive(Clone)]
struct Ram(Arc<Mutex<Vec<u8>>>);

impl Disk for Ram {
    fn info(&self) -> DiskInfo {
        let bytes = self.0.lock().unwrap().len() as u64;
        DiskInfo { bytes, block_size: 512, preferred: 4096, read_only: false }
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, BlockError> {
        Ok(self.0.lock().unwrap()[offset as usize..][..len].to_vec())
    }

    async fn write(&self, offset: u64, data: Vec<u8>, _: bool) -> Result<(), BlockError> {
        self.0.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(&data);
        Ok(())
    }

    async fn flush(&self) -> Result<(), BlockError> {
        Err(BlockError::Medium)
    }

    async fn trim(&self, _: u64, _: u64) -> Result<(), BlockError> {
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, _: bool, _: bool) -> Result<(), BlockError> {
        self.0.lock().unwrap()[offset as usize..][..len as usize].fill(0);
        Ok(())
    }
}

/// Serves 8 KiB of memory while `client` runs.
fn with_server<F: Future<Output = ()>>(client: impl FnOnce(std::path::PathBuf) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd.sock");
        let server = Server::bind(&path).await.unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let ram = Ram(Arc::new(Mutex::new(vec![0; 8192])));
        let serving = tokio::spawn(server.serve(ram, async { drop(stopped.await) }, Duration::from_secs(5)));
        client(path.clone()).await;
        drop(stop);
        serving.await.unwrap();
        assert!(!path.exists(), "the socket is removed");
    });
}

async fn connect(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    stream.write_all(&[0, 0, 0, 3]).await.unwrap();
    stream
}

async fn option(stream: &mut UnixStream, kind: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
    stream.write_all(b"IHAVEOPT").await.unwrap();
    stream.write_u32(kind).await.unwrap();
    stream.write_u32(data.len() as u32).await.unwrap();
    stream.write_all(data).await.unwrap();
    let mut replies = Vec::new();
    loop {
        let mut header = [0; 12];
        stream.read_exact(&mut header).await.unwrap();
        let reply = stream.read_u32().await.unwrap();
        let mut data = vec![0; stream.read_u32().await.unwrap() as usize];
        stream.read_exact(&mut data).await.unwrap();
        replies.push((reply, data));
        if reply == 1 || reply >> 31 == 1 {
            return replies;
        }
    }
}

async fn go(path: &Path) -> UnixStream {
    let mut stream = connect(path).await;
    let replies = option(&mut stream, 7, &[0; 6]).await;
    assert_eq!(replies[0].1[2..10], 8192_u64.to_be_bytes());
    assert_eq!(replies[1].1[..6], [0, 3, 0, 0, 2, 0], "the least block size is 512");
    stream
}

async fn request(stream: &mut UnixStream, command: u16, offset: u64, len: u32, data: &[u8]) -> u32 {
    stream.write_u32(0x2560_9513).await.unwrap();
    stream.write_u16(0).await.unwrap();
    stream.write_u16(command).await.unwrap();
    stream.write_u64(99).await.unwrap();
    stream.write_u64(offset).await.unwrap();
    stream.write_u32(len).await.unwrap();
    stream.write_all(data).await.unwrap();
    assert_eq!(stream.read_u32().await.unwrap(), 0x6744_6698);
    let errno = stream.read_u32().await.unwrap();
    assert_eq!(stream.read_u64().await.unwrap(), 99);
    errno
}

#[test]
fn what_is_written_is_read_by_another_client() {
    with_server(|path| async move {
        let mut writer = go(&path).await;
        assert_eq!(request(&mut writer, 1, 512, 1024, &[7; 1024]).await, 0);
        assert_eq!(request(&mut writer, 6, 512, 512, &[]).await, 0);
        let mut reader = go(&path).await;
        assert_eq!(request(&mut reader, 0, 0, 2048, &[]).await, 0);
        let mut data = [1; 2048];
        reader.read_exact(&mut data).await.unwrap();
        assert!(data[..1024].iter().all(|&b| b == 0) && data[1024..1536].iter().all(|&b| b == 7));
    });
}

#[test]
fn what_cannot_be_is_refused_and_the_client_stays() {
    with_server(|path| async move {
        let mut stream = go(&path).await;
        for (command, offset, len, errno) in [
            (0, 8192, 512, 22),
            (0, 0, 100, 22),
            (0, 1, 512, 22),
            (0, u64::MAX, 512, 22),
            (6, 8192, 512, 28),
            (9, 0, 0, 22),
            (3, 0, 0, 5),
        ] {
            assert_eq!(
                request(&mut stream, command, offset, len, &[]).await,
                errno,
                "command {command} at {offset}+{len}"
            );
        }
        assert_eq!(request(&mut stream, 1, 8192, 512, &[1; 512]).await, 28);
        assert_eq!(request(&mut stream, 4, 0, 512, &[]).await, 0);
    });
}

#[test]
fn options_are_answered_as_the_protocol_says() {
    with_server(|path| async move {
        let mut stream = connect(&path).await;
        assert_eq!(option(&mut stream, 8, &[]).await[0].0, wire::reply::ERROR_UNSUPPORTED);
        assert_eq!(option(&mut stream, 3, &[]).await, [(2, vec![0; 4]), (1, vec![])]);
        assert_eq!(option(&mut stream, 6, &[0, 0, 0, 1, b'x', 0, 0]).await[0].0, wire::reply::ERROR_UNKNOWN);
        assert_eq!(option(&mut stream, 6, &[0, 0, 0, 9]).await[0].0, wire::reply::ERROR_INVALID);
        assert_eq!(option(&mut stream, 6, &[0; 6]).await.len(), 3);
        assert_eq!(option(&mut stream, 2, &[]).await, [(1, vec![])]);
    });
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    with_server(|path| async move {
        assert!(matches!(Server::bind(&path).await, Err(ServerError::InUse { .. })));
        let stale = path.with_extension("stale");
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        assert!(Server::bind(&stale).await.is_ok());
        let file = path.with_extension("file");
        std::fs::write(&file, []).unwrap();
        assert!(matches!(Server::bind(&file).await, Err(ServerError::NotASocket { .. })));
    });
}

#[test]
fn clients_that_stay_do_not_hold_up_the_end() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd.sock");
        let server = Server::bind(&path).await.unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let ram = Ram(Arc::new(Mutex::new(vec![0; 8192])));
        let for_ever = Duration::from_secs(3600);
        let serving = tokio::spawn(server.serve(ram, async { drop(stopped.await) }, for_ever));
        let (mut idle, mut negotiating) = (go(&path).await, connect(&path).await);
        drop(stop);
        tokio::time::timeout(Duration::from_secs(30), serving).await.expect("it ends").unwrap();
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(negotiating.read(&mut [0]).await.unwrap_or(0), 0);
    });
}

proptest! {
    #[test]
    fn parsing_never_panics(header: [u8; 16], a: [u8; 14], b: [u8; 14], data in prop::collection::vec(any::<u8>(), 0..64)) {
        let request: [u8; 28] = core::array::from_fn(|i| if i < 14 { a[i] } else { b[i - 14] });
        let _ = (wire::parse_option(&header), wire::Request::parse(&request), wire::parse_go(&data));
    }
}
