//! OpenMetrics text, read: what `nvmf-target top` and the tests have of a target.
//!
//! It is strict: whatever is not as OpenMetrics 1.0 has it, in what this target uses of it, is an error.

use std::collections::BTreeSet;
use thiserror::Error;

/// A text is no OpenMetrics.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}: {what}")]
pub struct ScrapeError {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scrape {
    /// In their order.
    pub families: Vec<Family>,
}

/// A metric, with the samples of all its label sets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Family {
    /// Its name, unit included.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// What it means.
    pub help: String,
    /// What it is counted in.
    pub unit: Option<String>,
    /// In their order.
    pub samples: Vec<Sample>,
}

/// A number.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// What follows on the family's name: `_total`, `_bucket`, `_sum`, `_count`, or nothing.
    pub suffix: String,
    /// In their order.
    pub labels: Vec<(String, String)>,
    /// Its value.
    pub value: f64,
}

impl Sample {
    /// The value of a label; empty where there is none.
    #[must_use]
    pub fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value)
    }

    /// Whether it has all of these labels.
    #[must_use]
    pub fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.label(name) == *value)
    }
}

impl Scrape {
    /// Reads a text.
    ///
    /// # Errors
    /// [`ScrapeError`].
    pub fn parse(text: &str) -> Result<Self, ScrapeError> {
        let mut scrape = Self::default();
        let mut seen = BTreeSet::new();
        let mut ended = false;
        for (at, line) in text.split('\n').enumerate() {
            let error = |what| ScrapeError { line: at + 1, what };
            if ended {
                return if line.is_empty() { Ok(scrape) } else { Err(error("nothing may follow on # EOF")) };
            }
            match line.strip_prefix("# ") {
                Some("EOF") => ended = true,
                Some(comment) => scrape.describe(comment).map_err(error)?,
                None => {
                    let family =
                        scrape.families.last_mut().ok_or_else(|| error("a sample without a TYPE"))?;
                    let sample = sample(family, line).map_err(error)?;
                    if !seen.insert(line[..line.rfind(' ').unwrap_or(0)].to_owned()) {
                        return Err(error("a sample stands here twice"));
                    }
                    family.samples.push(sample);
                }
            }
        }
        Err(ScrapeError { line: text.lines().count(), what: "the text ends before # EOF" })
    }

    /// The family of that name.
    #[must_use]
    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }

    /// The sum of the samples of that name, suffix included, that have these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let of_family = |family: &'_ Family| -> f64 {
            let Some(suffix) = name.strip_prefix(&family.name) else { return 0.0 };
            let samples = family.samples.iter().filter(|it| it.suffix == suffix && it.has(labels));
            samples.map(|sample| sample.value).sum()
        };
        self.families.iter().map(of_family).sum()
    }

    fn describe(&mut self, comment: &str) -> Result<(), &'static str> {
        let mut words = comment.splitn(3, ' ');
        let (Some(what), Some(name), Some(text)) = (words.next(), words.next(), words.next()) else {
            return Err("a comment is # HELP, # TYPE or # UNIT, a name and a text");
        };
        if self.families.last().is_none_or(|family| family.name != name) {
            if self.family(name).is_some() {
                return Err("a family stands here twice");
            }
            if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                return Err("a name has letters, digits and underscores");
            }
            self.families.push(Family { name: name.to_owned(), ..Family::default() });
        }
        let Some(family) = self.families.last_mut() else { return Err("no family") };
        match what {
            "HELP" => family.help = text.to_owned(),
            "TYPE" => family.kind = text.to_owned(),
            "UNIT" if name.ends_with(&format!("_{text}")) => family.unit = Some(text.to_owned()),
            "UNIT" => return Err("the name does not end with the unit"),
            _ => return Err("a comment is # HELP, # TYPE or # UNIT"),
        }
        Ok(())
    }
}

fn sample(family: &Family, line: &str) -> Result<Sample, &'static str> {
    let rest = line.strip_prefix(&family.name).ok_or("the sample is not of the family above it")?;
    let end = rest.find(['{', ' ']).ok_or("a sample has a value")?;
    let (suffix, mut rest) = rest.split_at(end);
    let right = match family.kind.as_str() {
        "counter" => suffix == "_total",
        "gauge" => suffix.is_empty(),
        "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
        _ => return Err("the type is unknown"),
    };
    if !right {
        return Err("the suffix is not one of the family's type");
    }
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = read_labels(inner, &mut labels)?;
    }
    let value = rest.strip_prefix(' ').ok_or("a space stands before the value")?;
    let value: f64 = value.parse().map_err(|_| "the value is no number")?;
    if family.kind != "gauge" && (value.is_nan() || value < 0.0) {
        return Err("a count is never negative");
    }
    Ok(Sample { suffix: suffix.to_owned(), labels, value })
}

/// Reads labels up to the brace that ends them; returns what follows.
fn read_labels<'a>(mut rest: &'a str, labels: &mut Vec<(String, String)>) -> Result<&'a str, &'static str> {
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok(rest);
        }
        if !labels.is_empty() {
            rest = rest.strip_prefix(',').ok_or("a comma stands between labels")?;
        }
        let (name, value) = rest.split_once("=\"").ok_or("a label has a value in quotes")?;
        let mut text = String::new();
        let mut characters = value.char_indices();
        rest = loop {
            match characters.next().ok_or("a label's value has no end")? {
                (at, '"') => break &value[at + 1..],
                (_, '\\') => text.push(match characters.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, other @ ('"' | '\\'))) => other,
                    _ => return Err("a backslash stands before n, \" or \\"),
                }),
                (_, other) => text.push(other),
            }
        };
        if labels.iter().any(|(other, _)| other == name) {
            return Err("a label stands here twice");
        }
        labels.push((name.to_owned(), text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a_bytes What it is\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                        a_bytes_total{b=\"c \\\"d\\\"\",e=\"f\"} 1\na_bytes_total{} 2\n# EOF\n";

    #[test]
    fn what_is_written_is_read() {
        let scrape = Scrape::parse(GOOD).unwrap();
        assert_eq!(scrape.family("a_bytes").unwrap().unit.as_deref(), Some("bytes"));
        assert_eq!(scrape.families[0].samples[0].label("b"), "c \"d\"");
        assert_eq!(
            (scrape.sum("a_bytes_total", &[]), scrape.sum("a_bytes_total", &[("e", "f")])),
            (3.0, 1.0)
        );
    }

    #[test]
    fn what_is_not_openmetrics_is_refused() {
        for (from, to) in [
            ("# EOF\n", ""),
            ("# EOF\n", "# EOF\nx 1\n"),
            ("_total{} 2", "_total{b=\"c \\\"d\\\"\",e=\"f\"} 2"),
            ("_total{}", ""),
            ("TYPE a_bytes counter", "TYPE a_bytes gauge"),
            ("UNIT a_bytes bytes", "UNIT a_bytes seconds"),
            (" 1\n", " one\n"),
            (" 1\n", " -1\n"),
            ("\",e", "\"e"),
            ("a_bytes_total{} 2", "b_total 2"),
        ] {
            assert!(Scrape::parse(&GOOD.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }
}
