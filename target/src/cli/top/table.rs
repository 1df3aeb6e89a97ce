//! The table that people see.

use super::rows::{HostRow, NamespaceRow, Rates, Rows};
use core::fmt::Write;

/// The table, in at most so many lines: what is idle is left out first.
pub(super) fn draw(rows: &Rows, lines: usize) -> String {
    let head = |name: &str| {
        format!(
            "{name:<44} {:>9} {:>9} {:>10} {:>10} {:>7}",
            "reads/s", "writes/s", "read B/s", "write B/s", "errors"
        )
    };
    let mut text = format!(
        "{} namespaces, {} hosts, over {:.1} s\n\n{} {:>15} {:>15} {:>9} {:>8}\n",
        rows.namespaces.len(),
        rows.hosts.len(),
        rows.interval_s,
        head("NAMESPACE"),
        "read p50/p99",
        "write p50/p99",
        "in flight",
        "oldest"
    );
    // The heading, both headings of columns, a line between, and at least one line for hosts.
    let room = lines.saturating_sub(6).max(2);
    let hosts = rows.hosts.len().min(room.saturating_sub(rows.namespaces.len()).max(room / 3).max(1));
    for row in rows.namespaces.iter().take(room - hosts.min(room - 1)) {
        namespace(&mut text, row);
    }
    let _ = write!(text, "\n{} {:>7} {:>9}\n", head("HOST"), "queues", "idle");
    for row in rows.hosts.iter().take(hosts) {
        host(&mut text, row);
    }
    text.pop();
    text
}

fn namespace(text: &mut String, row: &NamespaceRow) {
    let name = match row.state.as_str() {
        "served" | "" => format!("{}/{}", row.subsystem, row.nsid),
        state => format!("{}/{} {state}", row.subsystem, row.nsid),
    };
    rates(text, &name, &row.rates);
    let _ = writeln!(
        text,
        " {:>15} {:>15} {:>9} {:>8}",
        times(row.read_p50_us, row.read_p99_us),
        times(row.write_p50_us, row.write_p99_us),
        row.in_flight,
        if row.oldest_operation_s >= 1.0 {
            format!("{:.0} s", row.oldest_operation_s)
        } else {
            "-".to_owned()
        },
    );
}

fn host(text: &mut String, row: &HostRow) {
    rates(text, &row.host, &row.rates);
    let idle = row.idle_s.map_or_else(|| "gone".to_owned(), |idle| format!("{idle:.1} s"));
    let _ = writeln!(text, " {:>7} {idle:>9}", row.queues);
}

fn rates(text: &mut String, name: &str, rates: &Rates) {
    let _ = write!(
        text,
        "{:<44} {:>9} {:>9} {:>10} {:>10} {:>7}",
        shortened(name, 44),
        number(rates.reads_per_s),
        number(rates.writes_per_s),
        number(rates.read_bytes_per_s),
        number(rates.write_bytes_per_s),
        rates.errors,
    );
}

/// The end of a name tells it from others.
fn shortened(name: &str, len: usize) -> String {
    let skip = name.chars().count().saturating_sub(len);
    if skip == 0 {
        name.to_owned()
    } else {
        name.chars().skip(skip + 1).fold("…".to_owned(), |text, c| text + &c.to_string())
    }
}

fn number(value: f64) -> String {
    let units = ["", " k", " M", " G", " T"];
    let mut value = value;
    let mut unit = 0;
    while value >= 9999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.0}{}", units[unit])
}

fn times(p50_us: Option<f64>, p99_us: Option<f64>) -> String {
    match (p50_us, p99_us) {
        (Some(p50), Some(p99)) => format!("{}/{}", time(p50), time(p99)),
        _ => "-".to_owned(),
    }
}

fn time(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.0}us"),
        us if us < 1e6 => format!("{:.1}ms", us / 1e3),
        us => format!("{:.1}s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_fit_their_columns() {
        assert_eq!([0.4, 9999.0, 10_000.0, 2.5e9].map(number), ["0", "9999", "10 k", "2500 M"]);
        assert_eq!([12.0, 1500.0, 2.5e6].map(time), ["12us", "1.5ms", "2.5s"]);
        assert_eq!(shortened("abcdef", 4), "…def");
        assert_eq!(shortened("abcd", 4), "abcd");
    }
}
