//! Sizes, times and percentages in fio's notation.

use core::time::Duration;

/// A number of bytes, or a percentage of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Bytes.
    Bytes(u64),
    /// Percent of the device.
    Percent(u8),
}

impl Extent {
    /// The number of bytes, for a device of `whole` bytes.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                whole / 100 * u64::from(percent) + whole % 100 * u64::from(percent) / 100
            }
        }
    }

    /// Parses `1g` or `25%`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.ends_with('%') { percent(text).map(Self::Percent) } else { size(text).map(Self::Bytes) }
    }
}

/// Parses a number of bytes. The suffixes `k`, `m`, `g`, `t` and `p`, with or without `b` or `ib`, are powers of 1024.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let stem = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
    let shift = match stem {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => {
            return Err(format!(
                "`{text}` is not a size: write a number of bytes, or a number followed by k, m, g or t"
            ));
        }
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

/// Parses a time; a number without a suffix is in `unit`s.
pub(super) fn time(text: &str, unit: Duration) -> Result<Duration, String> {
    let (number, suffix) = split(text)?;
    let one = match suffix.as_str() {
        "" => unit,
        "d" => Duration::from_secs(86_400),
        "h" => Duration::from_secs(3600),
        "m" | "min" => Duration::from_secs(60),
        "s" | "sec" => Duration::from_secs(1),
        "ms" | "msec" => Duration::from_millis(1),
        "us" | "usec" => Duration::from_micros(1),
        "ns" | "nsec" => Duration::from_nanos(1),
        _ => return Err(format!("`{text}` is not a time: write a number followed by us, ms, s, m, h or d")),
    };
    let count = u32::try_from(number).ok();
    count.and_then(|count| one.checked_mul(count)).ok_or_else(|| format!("`{text}` is too long"))
}

/// Parses a percentage from 0 to 100, with or without a percent sign.
pub(super) fn percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse().ok().filter(|&percent| percent <= 100);
    number.ok_or_else(|| format!("`{text}` is not a percentage from 0 to 100"))
}

/// Parses a switch: 0 or 1; an empty value is 1.
pub(super) fn flag(text: &str) -> Result<bool, String> {
    match text {
        "" | "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("`{text}` is neither 0 nor 1")),
    }
}

/// Parses an integer from `least` to `most`.
pub(super) fn number(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = size(text).ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a number from {least} to {most}"))
}

/// Like [`number`], for 32 bits.
pub(super) fn count(text: &str, least: u32, most: u32) -> Result<u32, String> {
    number(text, least.into(), most.into()).map(|number| u32::try_from(number).expect("it is at most `most`"))
}

/// Splits a number and its suffix; the suffix is in lower case.
fn split(text: &str) -> Result<(u64, String), String> {
    let error = || format!("`{text}` does not start with an integer");
    if let Some(hex) = text.strip_prefix("0x") {
        return Ok((u64::from_str_radix(hex, 16).map_err(|_| error())?, String::new()));
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..end].parse().map_err(|_| error())?;
    Ok((number, text[end..].trim().to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_suffixes_are_powers_of_1024() {
        for (text, bytes) in
            [("512", 512), ("4k", 4096), ("4KiB", 4096), ("1M", 1 << 20), ("2gb", 2 << 30), ("0x10", 16)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "4x", "-1", "99999999999t", "4 k k"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn time_without_suffix_uses_default_unit() {
        let second = Duration::from_secs(1);
        assert_eq!(time("30", second), Ok(second * 30));
        assert_eq!(time("1m", second), Ok(second * 60));
        assert_eq!(time("1500us", second), Ok(Duration::from_micros(1500)));
        assert_eq!(time("10", Duration::from_micros(1)), Ok(Duration::from_micros(10)));
        assert!(time("1 fortnight", second).is_err());
    }

    #[test]
    fn extent_of_large_device_does_not_overflow() {
        assert_eq!(Extent::parse("100%").unwrap().of(u64::MAX), u64::MAX);
        assert_eq!(Extent::parse("50%").unwrap().of(1001), 500);
        assert_eq!(Extent::parse("1g").unwrap().of(5), 1 << 30);
        assert!(Extent::parse("101%").is_err());
    }
}
