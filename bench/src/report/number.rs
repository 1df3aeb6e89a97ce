//! Formatting of numbers and dates, as in fio and for the plots.

use std::time::{Duration, SystemTime};

const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
const BYTES_BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const BYTES_DECIMAL: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

/// Scales until there are at most `width` digits before the point, then adds decimals up to `width` characters.
fn scaled(mut value: f64, width: usize, base: f64, units: &[&str]) -> String {
    let limit = 10_f64.powi(width as i32);
    let mut power = 0;
    while value.round() >= limit && power + 1 < units.len() {
        value /= base;
        power += 1;
    }
    let decimals = if power == 0 { 0 } else { width.saturating_sub(2) };
    let text = (1..=decimals).rev().map(|decimals| format!("{value:.decimals$}"));
    let text = text.into_iter().find(|text| text.len() <= width).unwrap_or_else(|| format!("{value:.0}"));
    format!("{text}{}", units[power])
}

/// Formats a count or a rate: `9`, `2380k`, `55.4k`.
pub(super) fn count(value: f64) -> String {
    scaled(value, 4, 1000.0, &DECIMAL)
}

/// Formats the minimum or maximum of a latency: `763309`, `2452.0k`.
pub(super) fn latency_bound(value: f64) -> String {
    scaled(value, 6, 1000.0, &DECIMAL)
}

/// Formats bytes in powers of 1024: `4096B`, `18.2GiB`.
pub(crate) fn bytes_binary(value: f64) -> String {
    scaled(value, 4, 1024.0, &BYTES_BINARY)
}

/// Formats bytes in powers of 1000: `19.5GB`.
pub(super) fn bytes_decimal(value: f64) -> String {
    scaled(value, 4, 1000.0, &BYTES_DECIMAL)
}

/// Formats three significant figures with a unit, for plots and tables: `523 k`, `8.40 k`, `12`.
pub(super) fn plain(value: f64) -> String {
    let (divisor, unit) = match value.abs() {
        v if v >= 999.5e6 => (1e9, " G"),
        v if v >= 999.5e3 => (1e6, " M"),
        v if v >= 999.5 => (1e3, " k"),
        _ => (1.0, ""),
    };
    format!("{}{unit}", three_figures(value / divisor))
}

/// Formats bytes per second in powers of 1000: `2.14 GB/s`.
pub(super) fn bandwidth(bytes_per_second: f64) -> String {
    let text = plain(bytes_per_second);
    if text.contains(' ') { format!("{text}B/s") } else { format!("{text} B/s") }
}

/// Formats a latency: `870 ns`, `8.40 µs`, `1.25 s`.
pub(super) fn latency(nanoseconds: f64) -> String {
    let (divisor, unit) = match nanoseconds {
        v if v >= 999.5e6 => (1e9, "s"),
        v if v >= 999.5e3 => (1e6, "ms"),
        v if v >= 999.5 => (1e3, "µs"),
        _ => (1.0, "ns"),
    };
    format!("{} {unit}", three_figures(nanoseconds / divisor))
}

fn three_figures(value: f64) -> String {
    let text = match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    // Zero decimals are dropped only if the value is an integer, such as an axis tick or a count.
    match text.split_once('.') {
        Some((whole, decimals)) if value.fract() == 0.0 && decimals.bytes().all(|b| b == b'0') => {
            whole.to_string()
        }
        _ => text,
    }
}

/// Formats a date like C's `ctime`, in UTC: `Sat Nov 21 14:04:10 2026`.
pub(super) fn date(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"]; // 1970 began on a Thursday.
    const MONTHS: [(&str, u64); 12] = [
        ("Jan", 31),
        ("Feb", 28),
        ("Mar", 31),
        ("Apr", 30),
        ("May", 31),
        ("Jun", 30),
        ("Jul", 31),
        ("Aug", 31),
        ("Sep", 30),
        ("Oct", 31),
        ("Nov", 30),
        ("Dec", 31),
    ];
    let seconds = since_epoch(time).as_secs();
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);

    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 0;
    loop {
        let length = MONTHS[month].1 + u64::from(month == 1 && leap(year));
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let weekday = DAYS[(days % 7) as usize];
    format!("{weekday} {} {:>2} {hour:02}:{minute:02}:{second:02} {year}", MONTHS[month].0, day + 1)
}

/// Time since 1970; zero for earlier times.
pub(super) fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_as_in_fio() {
        assert_eq!(count(9.0), "9");
        assert_eq!(count(2_379_900.0), "2380k");
        assert_eq!(count(55_351.0), "55.4k");
        assert_eq!(count(523_000.0), "523k");
        assert_eq!(latency_bound(763_309.0), "763309");
        assert_eq!(latency_bound(2_452_000.0), "2452.0k");
        assert_eq!(latency_bound(27_997_000.0), "27997k");
        assert_eq!(bytes_binary(4096.0), "4096B");
        assert_eq!(bytes_binary(16.0 * 1024.0 * 1024.0), "16.0MiB");
        assert_eq!(bytes_binary(1024.0 * 1024.0 * 1024.0), "1024MiB");
        assert_eq!(bytes_decimal(19_500_000_000.0), "19.5GB");
    }

    #[test]
    fn plot_values_have_three_figures_and_unit() {
        assert_eq!(plain(0.0), "0");
        assert_eq!(plain(523_412.0), "523 k");
        assert_eq!(plain(200_000.0), "200 k");
        assert_eq!(plain(999_999.0), "1.00 M");
        assert_eq!(bandwidth(512.0), "512 B/s");
        assert_eq!(bandwidth(2.143e9), "2.14 GB/s");
        assert_eq!(latency(8_400.0), "8.40 µs");
        assert_eq!(latency(870.0), "870 ns");
        assert_eq!(latency(10_000_000.0), "10 ms");
    }

    #[test]
    fn dates_match_calendar() {
        let date = |seconds| date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date(951_827_696), "Tue Feb 29 12:34:56 2000");
        assert_eq!(date(1_795_269_870), "Sat Nov 21 14:04:30 2026");
        assert_eq!(date(4_107_542_400), "Mon Mar  1 00:00:00 2100");
    }
}
