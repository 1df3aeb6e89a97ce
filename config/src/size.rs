//! Sizes as people write them.

use thiserror::Error;

/// Not a size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not a size: write a whole number with one of B, KiB, MiB, GiB, TiB, kB, MB, GB, TB, such as \
     10GiB"
)]
pub struct NotASize(String);

const UNITS: [(&str, u64); 17] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("K", 1 << 10),
    ("k", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("B", 1),
];

/// Bytes in `text`: a whole number and a unit (`10GiB`, `512 MiB`, `4096`). A bare number is bytes; K, M, G and T
/// alone are powers of 1024, as in fio and qemu.
///
/// # Errors
/// [`NotASize`], also past 2^64 - 1.
pub fn parse(text: &str) -> Result<u64, NotASize> {
    let error = || NotASize(text.to_owned());
    let trimmed = text.trim();
    let (digits, factor) = UNITS
        .iter()
        .find_map(|(unit, factor)| trimmed.strip_suffix(unit).map(|digits| (digits, *factor)))
        .unwrap_or((trimmed, 1));
    let digits = digits.trim_end();
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(error());
    }
    digits.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(error)
}

/// The shortest such text for so many bytes.
#[must_use]
pub fn text(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let exact = units.iter().find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    exact.map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_units_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("10GiB", 10 << 30),
            (" 512 MiB ", 512 << 20),
            ("4k", 4096),
            ("1TB", 1_000_000_000_000),
            ("7B", 7),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "-1", "1.5GiB", "0x10", "10 gib", "99999999999TiB", "1 000"] {
            assert!(parse(text).unwrap_err().to_string().contains("such as 10GiB"), "{text}");
        }
    }
}
