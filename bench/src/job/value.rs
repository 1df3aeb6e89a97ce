//! Parsers of composite values.

use super::options::{
    Access, BlockSize, Distribution, EngineKind, Poll, RdmaProvider, RemoteTransport, Verify,
};
use super::unit::{percent, size};
use nvmf_initiator::Uri;

/// The largest block, in bytes: the limit of one NVM command with 512-byte blocks.
const BS_MAX: u64 = 32 << 20;

/// Parses one value for all directions, or `read,write,trim`; an empty value leaves its direction unchanged.
pub(super) fn by_direction<T: Clone>(
    text: &str,
    into: &mut [T; 3],
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<(), String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.len() > 3 {
        return Err(format!("`{text}` has more than three values: read,write,trim"));
    }
    for (index, slot) in into.iter_mut().enumerate() {
        // As in fio, the last value also applies to the remaining directions.
        match parts.get(index).or(parts.last()) {
            Some(&"") | None => {}
            Some(part) => *slot = parse(part)?,
        }
    }
    Ok(())
}

/// Parses `randrw` and the other values of `rw`.
pub(super) fn access(text: &str) -> Result<Access, String> {
    let (name, random) = match text.strip_prefix("rand") {
        Some(name) => (name, true),
        None => (text, false),
    };
    let (reads, writes, trims) = match name {
        "read" => (true, false, false),
        "write" => (false, true, false),
        "trim" => (false, false, true),
        "rw" => (true, true, false),
        "readwrite" if !random => (true, true, false),
        "trimwrite" => (false, true, true),
        _ => {
            return Err(format!(
                "`{text}` is none of read, write, trim, rw, trimwrite, randread, randwrite, randtrim, randrw, \
                randtrimwrite"
            ));
        }
    };
    Ok(Access { reads, writes, trims, random })
}

/// Parses a block size.
pub(super) fn block(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    if bytes == 0 || bytes > BS_MAX || !bytes.is_multiple_of(512) {
        return Err(format!("`{text}` is not a block size: it must be a multiple of 512, and at most 32m"));
    }
    Ok(u32::try_from(bytes).expect("at most 32m"))
}

/// Parses `4k-64k`.
pub(super) fn block_range(text: &str) -> Result<BlockSize, String> {
    let (least, most) =
        text.split_once('-').ok_or_else(|| format!("`{text}` is not a range: write 4k-64k"))?;
    let (least, most) = (block(least)?, block(most)?);
    if least > most {
        return Err(format!("`{text}`: the first size must not be the larger"));
    }
    Ok(BlockSize::Range(least, most))
}

/// Parses `4k/60:64k/40`; sizes without a percentage share the rest equally.
pub(super) fn block_split(text: &str) -> Result<BlockSize, String> {
    let mut parts = Vec::new();
    for part in text.split(':').filter(|part| !part.is_empty()) {
        let (bytes, share) = part.split_once('/').unwrap_or((part, ""));
        let share = if share.is_empty() { None } else { Some(percent(share)?) };
        parts.push((block(bytes)?, share));
    }
    let given: u32 = parts.iter().filter_map(|part| part.1).map(u32::from).sum();
    let open = u32::try_from(parts.iter().filter(|part| part.1.is_none()).count()).unwrap_or(u32::MAX);
    if parts.is_empty() || given > 100 || (open == 0 && given != 100) {
        return Err(format!("`{text}`: the percentages must add up to 100"));
    }
    let (mut upto, mut left) = (0, open);
    let parts = parts.into_iter().map(|(bytes, share)| {
        upto += share.map_or_else(|| (100 - given) / open, u32::from);
        if share.is_none() {
            left -= 1;
            upto += if left == 0 { (100 - given) % open } else { 0 };
        }
        (bytes, u8::try_from(upto).expect("at most 100"))
    });
    Ok(BlockSize::Split(parts.collect()))
}

/// Parses `random` or `zipf:1.2`.
pub(super) fn distribution(text: &str) -> Result<Distribution, String> {
    let (name, parameter) = text.split_once(':').unwrap_or((text, ""));
    match name {
        "random" | "uniform" => Ok(Distribution::Uniform),
        "zipf" => {
            let theta = if parameter.is_empty() { Ok(1.1) } else { parameter.parse::<f64>() };
            let theta = theta.ok().filter(|theta| theta.is_finite() && *theta > 0.0 && *theta <= 10.0);
            theta.map(Distribution::Zipf).ok_or_else(|| format!("`{text}`: theta must be between 0 and 10"))
        }
        _ => Err(format!("`{text}` is not supported: use random or zipf:THETA")),
    }
}

/// Parses `50:99:99.9`, and puts it in order.
pub(super) fn percentiles(text: &str) -> Result<Vec<f64>, String> {
    let error = || format!("`{text}` is no list of up to 20 percentages above 0: write 50:99:99.9");
    let parse = |part: &str| part.parse::<f64>().ok().filter(|&p| p > 0.0 && p <= 100.0).ok_or_else(error);
    let mut all = text.split(':').map(parse).collect::<Result<Vec<_>, _>>()?;
    all.sort_unstable_by(f64::total_cmp);
    if all.len() > 20 { Err(error()) } else { Ok(all) }
}

/// Parses `sync`. Writes that are durable when they complete are that by the disk's own means, so both kinds are one.
pub(super) fn sync(text: &str) -> Result<bool, String> {
    match text {
        "none" | "0" => Ok(false),
        "sync" | "dsync" | "1" => Ok(true),
        _ => Err(format!("`{text}` is none of none, sync, dsync")),
    }
}

/// Parses `0-1,4`; masks and `0:2` are not supported.
pub(super) fn processors(text: &str) -> Result<Vec<usize>, String> {
    let error = || format!("`{text}` is not a list of processors: write 0,2 or 0-3");
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let parse = |text: &str| text.trim().parse::<usize>().ok().filter(|&n| n < 1024).ok_or_else(error);
        all.extend(parse(first)?..=parse(last)?);
    }
    Ok(all)
}

/// Parses a concatenation of `0xdeadbeef`, `"text"` and numbers below 256.
pub(super) fn pattern(text: &str) -> Result<Vec<u8>, String> {
    let error = || format!("`{text}` is not a pattern: write 0xdeadbeef, \"text\" or a number below 256");
    let (mut rest, mut bytes) = (text, Vec::new());
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (word, behind) = quoted.split_once('"').ok_or_else(error)?;
            bytes.extend(word.as_bytes());
            rest = behind;
            continue;
        }
        let end = rest.find('"').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(end);
        rest = behind;
        if let Some(digits) = number.strip_prefix("0x") {
            let digits =
                if digits.len().is_multiple_of(2) { digits.to_owned() } else { format!("0{digits}") };
            for at in (0..digits.len()).step_by(2) {
                let pair = digits.get(at..at + 2).ok_or_else(error)?;
                bytes.push(u8::from_str_radix(pair, 16).map_err(|_| error())?);
            }
        } else {
            bytes.push(number.parse().map_err(|_| error())?);
        }
    }
    if bytes.is_empty() || bytes.len() > 512 { Err(error()) } else { Ok(bytes) }
}

/// Parses an engine's name; fio's engines for local files are all replaced by `io_uring`.
pub(super) fn engine(text: &str) -> Result<EngineKind, String> {
    if let Some((kind, _)) = EngineKind::ALL.iter().find(|(_, name)| *name == text) {
        return Ok(*kind);
    }
    if FIO_FILE_ENGINES.contains(&text) {
        return Ok(EngineKind::IoUring);
    }
    let names: Vec<_> = EngineKind::ALL.iter().map(|(_, name)| *name).collect();
    Err(format!("`{text}` is not supported: use one of {}", names.join(", ")))
}

/// Engines of fio that are replaced by `io_uring`.
pub(super) const FIO_FILE_ENGINES: [&str; 10] =
    ["libaio", "sync", "psync", "vsync", "pvsync", "pvsync2", "posixaio", "mmap", "solarisaio", "windowsaio"];

/// Parses the kind of verification; fio's other checksums are replaced by CRC32C.
pub(super) fn verify(text: &str) -> Result<Option<Verify>, String> {
    match text {
        "0" | "none" => Ok(None),
        "pattern" | "pattern_hdr" => Ok(Some(Verify::Pattern(Vec::new()))),
        "crc32c" | "crc32c-intel" | "1" => Ok(Some(Verify::Random)),
        _ if FIO_CHECKSUMS.contains(&text) => Ok(Some(Verify::Random)),
        _ => Err(format!("`{text}` is not supported: use crc32c or pattern")),
    }
}

/// Checksums of fio that are replaced by CRC32C.
pub(super) const FIO_CHECKSUMS: [&str; 14] = [
    "md5", "crc64", "crc32", "crc16", "crc7", "xxhash", "sha1", "sha256", "sha512", "sha3-224", "sha3-256",
    "sha3-384", "sha3-512", "meta",
];

/// Parses `busy`, `adaptive` or `interrupt`.
pub(super) fn poll(text: &str) -> Result<Poll, String> {
    match text {
        "busy" => Ok(Poll::Busy),
        "adaptive" => Ok(Poll::Adaptive),
        "interrupt" => Ok(Poll::Interrupt),
        _ => Err(format!("`{text}` is none of busy, adaptive, interrupt")),
    }
}

/// Parses `HOST:PORT`, where the host is an address or a name. A name is looked up when the job connects.
pub(super) fn address(text: &str) -> Result<Uri, String> {
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let uri = Some(text).filter(|text| has_port && !text.contains('/'));
    // The library's own form; what carries the commands is an option of its own here.
    let uri = uri.and_then(|text| format!("nvme+tcp://{text}").parse().ok());
    uri.ok_or_else(|| format!("`{text}` is not an address: write 192.0.2.1:4420, or a name and a port"))
}

/// Parses `rdma` or `tcp`.
pub(super) fn transport(text: &str) -> Result<RemoteTransport, String> {
    match text {
        "rdma" => Ok(RemoteTransport::Rdma),
        "tcp" => Ok(RemoteTransport::Tcp),
        _ => Err(format!("`{text}` is none of rdma, tcp")),
    }
}

/// Parses `auto`, `iwarp` or `verbs`.
pub(super) fn provider(text: &str) -> Result<RdmaProvider, String> {
    match text {
        "auto" => Ok(RdmaProvider::Auto),
        "iwarp" => Ok(RdmaProvider::Iwarp),
        "verbs" => Ok(RdmaProvider::Verbs),
        _ => Err(format!("`{text}` is none of auto, iwarp, verbs")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_by_direction_last_applies_to_rest() {
        let mut all = [1, 1, 1];
        by_direction("4k", &mut all, block).unwrap();
        assert_eq!(all, [4096; 3]);
        by_direction("512,8k", &mut all, block).unwrap();
        assert_eq!(all, [512, 8192, 8192]);
        by_direction(",16k,", &mut all, block).unwrap();
        assert_eq!(all, [512, 16384, 8192]);
        assert!(by_direction("1k,1k,1k,1k", &mut all, block).is_err());
        assert!(block("100").is_err() && block("0").is_err() && block("64m").is_err());
    }

    #[test]
    fn block_split_percentages_add_up_to_100() {
        assert_eq!(block_split("4k/60:64k/40"), Ok(BlockSize::Split(vec![(4096, 60), (65536, 100)])));
        assert_eq!(
            block_split("4k/50:8k/:16k/"),
            Ok(BlockSize::Split(vec![(4096, 50), (8192, 75), (16384, 100)]))
        );
        for text in ["4k/60:8k/60", "4k/50", "", "4k/101:8k"] {
            assert!(block_split(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pattern_forms_are_parsed() {
        assert_eq!(pattern("0xdeadbeef"), Ok(vec![0xde, 0xad, 0xbe, 0xef]));
        assert_eq!(pattern("0xabc"), Ok(vec![0x0a, 0xbc]));
        assert_eq!(pattern("\"ab\"0x01"), Ok(vec![b'a', b'b', 1]));
        assert_eq!(pattern("85"), Ok(vec![85]));
        for text in ["", "0x", "0xzz", "256", "\"open", "0xé"] {
            assert!(pattern(text).is_err(), "{text}");
        }
    }

    #[test]
    fn processor_lists_and_ranges_are_parsed() {
        assert_eq!(processors("0-2,5"), Ok(vec![0, 1, 2, 5]));
        assert!(processors("a").is_err() && processors("0-99999999999").is_err());
    }
}
