//! What the command line takes, as text and as a manual page.

use crate::job::{OptionSpec, TABLE};
use core::fmt::Write as _;

/// The flags of the command itself: (name and value, help text).
pub const OWN: [(&str, &str); 8] = [
    ("output-format=normal|json|json+|html", "format of the report; json is fio's JSON, json+ adds its bins"),
    ("output=FILE", "write the report to FILE instead of standard output"),
    ("html=FILE", "also write an HTML page with plots to FILE"),
    ("log-interval=500", "interval between samples, in milliseconds"),
    ("eta=auto|always|never", "show a progress line (auto: on a terminal)"),
    ("rounds=5", "compare: number of runs of each job file"),
    ("parse-only", "check the job files and flags without running them"),
    ("help, --version", "print this help, or the version"),
];

/// The text of `--help`.
#[must_use]
pub fn text() -> String {
    let mut text = String::from(
        "Usage: nvmf-bench [JOBFILE...] [--OPTION[=VALUE]...]\n       nvmf-bench compare JOBFILE JOBFILE [--rounds=N]\n\n\
         Job files are in fio's format or in TOML. Without job files, the flags define a job, and each --name=NAME begins\n\
         another. With job files, flags before any --name apply to every job of the files.\n\nCommand\n",
    );
    for (flag, what) in OWN {
        text += &format!("  --{flag:<40} {what}\n");
    }
    for group in TABLE {
        text += &format!("\n{}\n", group.title);
        for known in group.options {
            text += &format!("  --{:<40} {}\n", flag(known), known.help);
        }
    }
    text
}

/// An option with its value.
fn flag(known: &OptionSpec) -> String {
    if known.value.is_empty() {
        known.names[0].to_owned()
    } else {
        format!("{}={}", known.names[0], known.value)
    }
}

/// The manual page `nvmf-bench(1)`, of this date, in the language of man(7).
#[must_use]
pub fn page(date: &str) -> String {
    let mut page = format!(
        ".TH NVMF-BENCH 1 {date} \"nvmf {}\" \"NVMe over Fabrics\"\n.SH NAME\nnvmf\\-bench \\- measures NVMe over Fabrics \
         disks, files, memory and NBD servers\n",
        env!("CARGO_PKG_VERSION")
    );
    page += SYNOPSIS;
    page += ".SH OPTIONS\nOf the command:\n";
    OWN.iter().for_each(|(flag, what)| item(&mut page, flag, what));
    page += ".SH \"JOB OPTIONS\"\nIn job files without the dashes.\n";
    for group in TABLE {
        let _ = writeln!(page, ".SS \"{}\"", group.title);
        for known in group.options {
            let others = known.names[1..].join(", ");
            let what = if others.is_empty() {
                known.help.to_owned()
            } else {
                format!("{} (also: {others})", known.help)
            };
            item(&mut page, &flag(known), &what);
        }
    }
    page + END
}

fn item(page: &mut String, flag: &str, what: &str) {
    let _ = writeln!(page, ".TP\n.B \\-\\-{}\n{}", escaped(flag), escaped(what));
}

/// Text without what roff would take for a request or a hyphen.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

const SYNOPSIS: &str = r#".SH SYNOPSIS
.B nvmf\-bench
.RI [ JOBFILE ...]
.RB [ \-\-\fIOPTION\fR[=\fIVALUE\fR]...]
.br
.B nvmf\-bench compare
.I JOBFILE JOBFILE
.RB [ \-\-rounds=\fIN\fR]
.SH DESCRIPTION
Runs the jobs of fio's job files, or of files in TOML, and reports as fio does. Without job files, the flags define a job, and
each \-\-name=NAME begins another; with job files, flags before any \-\-name apply to every job of the files. An option has
fio's meaning or is an error.
.PP
It measures a namespace of an NVMe over Fabrics target without attaching it
.RI ( nvmf://HOST:PORT/NQN?nsid=1 ,
over NVMe/TCP
.IR nvmf+tcp://HOST:PORT/NQN ),
a file or block device, memory, and an NBD server
.RI ( nbd://HOST:PORT/NAME ,
.IR nbd+unix:///NAME?socket=PATH ).
A disk that was never written has nothing to read: write it first.
.PP
.B compare
runs two job files alternately, A B B A, and prints the ratios of all rounds.
.PP
With \-\-iodepth=32 alone, each of 32 outstanding operations is submitted, and its completion taken, by a call of its own, as in
fio. Batches cost a fraction of the processor time: \-\-iodepth_batch_submit=32 \-\-iodepth_batch_complete_max=32.
.PP
With a rate, "scheduled lat" is counted from when an operation was meant to start; operations that were due and never started
are in it with the time that they waited until the end.
.PP
With \-\-verify, every block has the number of the run, its address and the number of the write. A job that writes reads back all
that it wrote; a job that only reads expects the run of the first block, or
.IR randseed .
"#;

const END: &str = r#".SH "EXIT STATUS"
0 for success, 1 when a job failed or a block was wrong, 2 for wrong options, 130 or 143 when a signal ended the run (its report is
written), 141 when nobody reads the output.
.SH EXAMPLES
.EX
nvmf\-bench \-\-name=fill \-\-filename='nvmf://192.0.2.1:4420/NQN?nsid=1' \-\-rw=write \-\-bs=128k \-\-iodepth=8
nvmf\-bench job.fio \-\-output\-format=json
nvmf\-bench compare before.fio after.fio
.EE
.SH "SEE ALSO"
.BR fio (1),
.BR nvmf (1),
.BR nvmf\-target (8)
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_every_option_and_nothing_that_roff_would_take() {
        let page = page("2026-11-26");
        for known in TABLE.iter().flat_map(|group| group.options) {
            let flag = format!(".B \\-\\-{}", escaped(&flag(known)));
            assert!(page.lines().any(|line| line == flag), "{flag}");
        }
        for line in page.lines().filter(|line| line.starts_with(['.', '\''])) {
            let request = line.split(' ').next().unwrap_or_default();
            assert!(
                [
                    ".TH", ".SH", ".SS", ".TP", ".B", ".I", ".RI", ".RB", ".IR", ".BR", ".PP", ".br", ".EX",
                    ".EE"
                ]
                .contains(&request),
                "{line}"
            );
        }
    }
}
