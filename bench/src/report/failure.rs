//! Failures of a job, with advice.

use crate::result::JobResult;

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What failed, and how often.
    pub what: String,
    /// Advice to the user.
    pub advice: &'static str,
}

/// All failures of a job; empty if its figures are reliable.
#[must_use]
pub fn failures(job: &JobResult) -> Vec<Failure> {
    let mut failures = Vec::new();
    // What else sets `error` has a text of its own below.
    if job.errors != 0 || (job.error != 0 && job.outstanding == 0 && job.verify_errors == 0) {
        let first = match (&job.message, job.error) {
            (Some(message), _) => message.clone(),
            (None, 0) => "no reason was given".to_string(),
            (None, errno) => errno_text(errno),
        };
        let what = match job.errors {
            0 => format!("the job failed: {first}"),
            1 => format!("1 operation failed: {first}"),
            errors => format!("{errors} operations failed, the first: {first}"),
        };
        failures.push(Failure { what, advice: advice(job.error) });
    }
    if job.outstanding != 0 {
        let operations = number(job.outstanding, "operation");
        failures.push(Failure {
            what: format!("{operations} had not completed when the job was over, and were given up"),
            advice: "Check that the target runs and can be reached (nvmf discover), and read its log; drain_timeout= waits \
                longer after runtime.",
        });
    }
    if job.verify_errors != 0 {
        let blocks = number(job.verify_errors, "block");
        let first = job.mismatch.as_deref().map_or_else(String::new, |first| format!("; the first: {first}"));
        failures.push(Failure {
            what: format!("{blocks} failed verification: the contents differ from what was written{first}"),
            advice: "Do not rely on the data or these figures. Check that nothing else writes to the device, then run \
            again with the same randseed and iodepth=1, numjobs=1. If it still fails, the device or its \
            provider loses or misplaces writes.",
        });
    }
    failures
}

/// `1 block`, `2 blocks`.
fn number(count: u64, of: &str) -> String {
    if count == 1 { format!("1 {of}") } else { format!("{count} {of}s") }
}

/// The system's message for an `errno`.
pub(super) fn errno_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

/// Advice for an `errno`, by Linux's numbers, which are the same on all supported architectures.
fn advice(errno: i32) -> &'static str {
    match errno {
        1 | 13 => {
            "Run as a user with permission to open it, or grant the permission (for a device: its group, often \
            `disk`)."
        }
        2 | 6 => "Check the name of the file, device or namespace.",
        19 => {
            "Check the name of the device or namespace. A remote namespace that was there was removed or replaced at its \
            target, or all its paths were given up (nvmf discover; of a group of gateways: ctl status)."
        }
        5 => "See the log: the kernel's (dmesg) for a local device, the target's for a remote one.",
        12 => "Raise the limit on locked memory (ulimit -l), or lower iodepth, bs or numjobs.",
        16 => "The device is in use: unmount it, or stop the program that uses it.",
        22 => "The device rejects such requests: make bs and offset multiples of its block size.",
        24 => "Raise the limit on open files (ulimit -n), or lower numjobs.",
        28 => "Free some space, or lower size.",
        30 => "The device is read-only: use rw=read or rw=randread, or attach it for writing.",
        95 => "The device does not support this operation: choose another rw.",
        103..=104 | 107..=108 | 110..=113 => {
            "Check that the target runs and can be reached at this address (nvmf discover), and that it gives access to the \
            namespace (nvmf ana-log): name the other targets that serve it with path=. Read its log."
        }
        _ => {
            "Fix the problem in the message and run again; the figures cover only the operations that succeeded."
        }
    }
}
