//! A self-contained HTML page with plots: no scripts, no external files or fonts, so that it can be sent as one file.
//!
//! | module | contents |
//! |---|---|
//! | `axis` | scales and ticks of an axis |
//! | `chart` | line charts as SVG, with tooltips and a text description |
//! | `plots` | the charts of a job |
//! | `table` | the table of a job's figures |

mod axis;
mod chart;
mod plots;
mod table;

use super::failure::failures;
use super::number;
use crate::result::{JobResult, RunResult};
use core::fmt::{self, Display, Formatter, Write};

/// A page that shows runs, each with its label, in the same plots; displays as HTML.
///
/// Jobs are shown together by their position in the runs, whatever their names.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a>(pub &'a [(String, RunResult)]);

/// A job of a run, with the labels that distinguish it from jobs of other runs.
#[derive(Debug, Clone, Copy)]
struct Entry<'a> {
    /// Index of the run, which selects the colour.
    run: usize,
    label: &'a str,
    global: &'a [(String, String)],
    job: &'a JobResult,
}

impl Display for Page<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let labels: Vec<&str> = self.0.iter().map(|(label, _)| label.as_str()).collect();
        let title = labels.join(" · ");
        write!(
            f,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>nvmf-bench: {0}</title>\n<style>\n{1}</style>\n</head>\n<body>\n<header>\n<h1>{0}</h1>\n",
            Escaped(&title),
            include_str!("page.css")
        )?;
        for (label, run) in self.0 {
            let name = if self.0.len() > 1 { format!("{label}: ") } else { String::new() };
            let ended = if run.interrupted.is_some() { ", <strong>interrupted</strong>" } else { "" };
            writeln!(f, "<p>{}{} UTC{ended}</p>", Escaped(&name), number::date(run.finished))?;
        }
        writeln!(f, "</header>\n<main>")?;
        self.failures(f)?;
        let jobs = self.0.iter().map(|(_, run)| run.jobs.len()).max().unwrap_or(0);
        for index in 0..jobs {
            section(f, &self.entries(index), self.0.len() > 1)?;
        }
        writeln!(
            f,
            "</main>\n<footer>nvmf-bench {}. Latencies include the submission; bandwidth is in powers of \
            1000.</footer>\n</body>\n</html>",
            env!("CARGO_PKG_VERSION")
        )
    }
}

impl<'a> Page<'a> {
    fn entries(&self, index: usize) -> Vec<Entry<'a>> {
        let runs = self.0.iter().enumerate();
        runs.filter_map(|(run, (label, result))| {
            Some(Entry { run, label, global: &result.global, job: result.jobs.get(index)? })
        })
        .collect()
    }

    fn failures(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.0.iter().flat_map(|(_, run)| &run.jobs).any(JobResult::is_failed) {
            return Ok(());
        }
        writeln!(f, "<section class=\"failed\" role=\"alert\">\n<h2>Some operations failed</h2>\n<ul>")?;
        for (label, run) in self.0 {
            for job in &run.jobs {
                for failure in failures(job) {
                    let whose =
                        if self.0.len() > 1 { format!("{label}, {}", job.name) } else { job.name.clone() };
                    let (whose, what) = (Escaped(&whose), Escaped(&failure.what));
                    writeln!(f, "<li><strong>{whose}: {what}.</strong> {}</li>", Escaped(failure.advice))?;
                }
            }
        }
        writeln!(f, "</ul>\n</section>")
    }
}

fn section(f: &mut Formatter<'_>, entries: &[Entry<'_>], several: bool) -> fmt::Result {
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.job.name.as_str()).collect();
    names.dedup();
    writeln!(f, "<section>\n<h2>{}</h2>", Escaped(&names.join(" · ")))?;
    table::figures(f, entries, several)?;
    writeln!(f, "<div class=\"plots\">")?;
    for chart in plots::charts(entries, several) {
        write!(f, "{chart}")?;
    }
    writeln!(f, "</div>\n<details>\n<summary>Options</summary>")?;
    for entry in entries {
        let given = entry.global.iter().chain(&entry.job.options);
        let mut options: Vec<String> = given.map(|(name, value)| format!("{name}={value}")).collect();
        if !options.iter().any(|option| option.starts_with("ioengine=")) {
            options.insert(0, format!("ioengine={}", entry.job.engine));
        }
        let label = if several { format!("{}: ", entry.label) } else { String::new() };
        writeln!(f, "<p>{}<code>{}</code></p>", Escaped(&label), Escaped(&options.join(" ")))?;
    }
    writeln!(f, "</details>\n</section>")
}

/// Text that is escaped for use in elements and quoted attributes.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
