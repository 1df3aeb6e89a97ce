//! Replies in chunks, and what is said of the disk's parts.

use super::*;
use nbd_proto::{self as wire, Chunk, command_flag, flag};

const CACHE: u16 = 5;
const BLOCK_STATUS: u16 = 7;

fn query(names: &[&[u8]]) -> Vec<u8> {
    let mut data = vec![0; 4];
    data.extend((names.len() as u32).to_be_bytes());
    for name in names {
        data.extend((name.len() as u32).to_be_bytes());
        data.extend(*name);
    }
    data
}

impl Scene {
    fn structured_client(&mut self) -> UnixStream {
        let mut client = self.connect();
        assert_eq!(self.option(&mut client, 8, &[]), [(wire::reply::ACK, vec![])]);
        let context = [&[0, 0, 0, 1], wire::BASE_ALLOCATION].concat();
        let agreed = self.option(&mut client, 10, &query(&[b"base:allocation", b"qemu:dirty-bitmap:x"]));
        assert_eq!(agreed, [(wire::reply::META_CONTEXT, context), (wire::reply::ACK, vec![])]);
        let export = self.option(&mut client, 7, &[0; 6]);
        assert!(u16::from_be_bytes([export[0].1[10], export[0].1[11]]) & flag::SEND_DF != 0);
        client
    }

    fn chunks(&mut self, client: &mut UnixStream, request: &[u8]) -> Vec<(Chunk, Vec<u8>)> {
        self.write(client, request);
        let mut chunks = Vec::new();
        loop {
            let mut header = [0; wire::CHUNK_LEN];
            self.read(client, &mut header);
            let header = wire::parse_chunk(&header).unwrap();
            assert_eq!(header.cookie, 99);
            let mut data = vec![0; header.len as usize];
            self.read(client, &mut data);
            chunks.push((header.kind, data));
            if header.is_last {
                return chunks;
            }
        }
    }
}

#[test]
fn zeroes_of_a_read_are_not_sent() {
    let mut scene = Scene::with(DiskInfo { bytes: 1 << 20, ..INFO });
    let mut client = scene.structured_client();
    let of = |chunk, len: u32| (chunk, len);
    let written = scene.chunks(&mut client, &bytes_of(WRITE, 4096, 512, &[7; 512]));
    assert_eq!(written, [(Chunk::None, vec![])]);
    // Two pieces of memory: the first has data, the second has none.
    let read = scene.chunks(&mut client, &bytes_of(READ, 0, 512 << 10, &[]));
    let kinds: Vec<_> = read.iter().map(|(kind, data)| of(*kind, data.len() as u32)).collect();
    assert_eq!(kinds, [(Chunk::Data, (256 << 10) + 8), (Chunk::Hole, 12)]);
    assert_eq!(read[0].1[8 + 4096..][..512], [7; 512]);
    let hole = [&(256_u64 << 10).to_be_bytes()[..], &(256_u32 << 10).to_be_bytes()].concat();
    assert_eq!(read[1].1, hole);
    let whole = scene.chunks(&mut client, &flagged(command_flag::DF, READ, 0, 512 << 10, &[]));
    assert_eq!((whole.len(), whole[0].0, whole[0].1.len()), (1, Chunk::Data, (512 << 10) + 8));
    let error = scene.chunks(&mut client, &bytes_of(READ, 1 << 20, 512, &[]));
    assert_eq!(error, [(Chunk::Error, vec![0, 0, 0, 22, 0, 0])]);
    assert_eq!(scene.chunks(&mut client, &bytes_of(CACHE, 0, 4096, &[])), [(Chunk::None, vec![])]);
}

#[test]
fn zeroes_are_told_from_data() {
    let mut scene = Scene::with(DiskInfo { bytes: 1 << 20, ..INFO });
    let mut client = scene.structured_client();
    scene.chunks(&mut client, &bytes_of(WRITE, 8192, 512, &[7; 512]));
    let extents = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
    let status = scene.chunks(&mut client, &bytes_of(BLOCK_STATUS, 512, 16384, &[]));
    let zero = wire::STATE_ZERO;
    assert_eq!(status, [(Chunk::BlockStatus, extents(&[1, 7680, zero, 4096, 0, 4608, zero]))]);
    let one = scene.chunks(&mut client, &flagged(command_flag::REQ_ONE, BLOCK_STATUS, 512, 16384, &[]));
    assert_eq!(one, [(Chunk::BlockStatus, extents(&[1, 7680, zero]))]);
    let long = scene.chunks(&mut client, &bytes_of(BLOCK_STATUS, 512 << 10, 512 << 10, &[]));
    assert_eq!(long, [(Chunk::BlockStatus, extents(&[1, 256 << 10, zero]))], "no more is looked at");
    for (offset, len) in [(0, 0), (512 << 10, (512 << 10) + 512), (u64::MAX, 512)] {
        let refused = scene.chunks(&mut client, &bytes_of(BLOCK_STATUS, offset, len, &[]));
        assert_eq!(refused, [(Chunk::Error, vec![0, 0, 0, 22, 0, 0])], "{len} at {offset}");
    }
}

#[test]
fn status_of_the_end_of_a_block_writes_into_nobody_else_s_data() {
    let mut scene = Scene::with(DiskInfo { bytes: 64 << 10, block_size: 4096, ..INFO });
    let mut client = scene.structured_client();
    let mut writers: Vec<_> = (0..3).map(|_| scene.client()).collect();
    let write = |at: u64| bytes_of(WRITE, at * 4096, 4096, &[at as u8 + 1; 4096]);
    // All but the last byte: their memory lies side by side.
    for (writer, at) in writers.iter_mut().zip(0..) {
        scene.write(writer, &write(at)[..28 + 4095]);
        scene.settle();
    }
    let mut end = |scene: &mut Scene, at: usize| {
        scene.write(&mut writers[at], &[at as u8 + 1]);
        assert_eq!(scene.reply(&mut writers[at]), 0);
    };
    end(&mut scene, 1);
    let zero = wire::STATE_ZERO;
    let extent = [1, 1, zero].map(u32::to_be_bytes).concat();
    let status = scene.chunks(&mut client, &bytes_of(BLOCK_STATUS, 16 * 4096 - 1, 1, &[]));
    assert_eq!(status, [(Chunk::BlockStatus, extent)], "of the memory between two others'");
    end(&mut scene, 0);
    end(&mut scene, 2);
    let expected: Vec<_> = (1..=3).flat_map(|byte| [byte; 4096]).collect();
    assert!(scene.content()[..3 * 4096] == expected);
}

#[test]
fn what_was_not_agreed_on_is_refused() {
    let mut scene = Scene::new();
    let client = &mut scene.connect();
    let asked = query(&[wire::BASE_ALLOCATION]);
    assert_eq!(scene.option(client, 10, &asked)[0].0, wire::reply::ERROR_INVALID, "without chunks");
    assert_eq!(scene.option(client, 8, &[1])[0].0, wire::reply::ERROR_INVALID);
    scene.option(client, 8, &[]);
    assert_eq!(scene.option(client, 10, &[0; 3])[0].0, wire::reply::ERROR_INVALID);
    assert_eq!(
        scene.option(client, 10, &[&[0, 0, 0, 1, b'x'][..], &[0; 4]].concat())[0].0,
        wire::reply::ERROR_UNKNOWN
    );
    assert_eq!(scene.option(client, 9, &query(&[])).len(), 2, "all are listed");
    assert_eq!(scene.option(client, 10, &asked).len(), 2);
    assert_eq!(scene.option(client, 10, &query(&[])), [(wire::reply::ACK, vec![])], "the last one counts");
    scene.option(client, 7, &[0; 6]);
    let refused = scene.chunks(client, &bytes_of(BLOCK_STATUS, 0, 512, &[]));
    assert_eq!(refused, [(Chunk::Error, vec![0, 0, 0, 22, 0, 0])]);
    let mut plain = scene.client();
    assert_eq!(scene.request(&mut plain, BLOCK_STATUS, 0, 512, &[]), 22);
    let mut scene = Scene::with(DiskInfo { block_status: false, ..INFO });
    let client = &mut scene.connect();
    scene.option(client, 8, &[]);
    assert_eq!(
        scene.option(client, 10, &asked),
        [(wire::reply::ACK, vec![])],
        "only where the user wants it"
    );
}
