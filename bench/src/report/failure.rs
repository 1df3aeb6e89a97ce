//! What went wrong in a job, and what to do about it.

use crate::result::JobResult;

/// One thing that went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What happened, and to how many.
    pub what: String,
    /// What to do.
    pub advice: &'static str,
}

/// Everything that went wrong in a job; empty when its figures can be relied upon.
#[must_use]
pub fn failures(job: &JobResult) -> Vec<Failure> {
    let mut failures = Vec::new();
    if job.error != 0 || job.errors != 0 {
        let first = match (&job.message, job.error) {
            (Some(message), _) => message.clone(),
            (None, 0) => "no reason was given".to_string(),
            (None, errno) => errno_text(errno),
        };
        let what = match job.errors {
            0 => format!("the job ended early: {first}"),
            1 => format!("1 operation failed: {first}"),
            errors => format!("{errors} operations failed, the first: {first}"),
        };
        failures.push(Failure { what, advice: advice(job.error) });
    }
    if job.verify_errors != 0 {
        let blocks =
            if job.verify_errors == 1 { "1 block" } else { &format!("{} blocks", job.verify_errors) };
        failures.push(Failure {
            what: format!("{blocks} read back had other contents than were written"),
            advice: "Trust neither the data nor these figures. Check that nobody else writes to the device, then run again \
                     with the same randseed and iodepth=1, numjobs=1: if it still fails, the device or its provider \
                     loses or misplaces writes.",
        });
    }
    failures
}

/// The system's words for an `errno`.
pub(super) fn errno_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

/// By the numbers that Linux gives them on every architecture that this runs on.
fn advice(errno: i32) -> &'static str {
    match errno {
        1 | 13 => {
            "Run as a user who may open it, or give this one the right (for a device: its group, often `disk`)."
        }
        2 | 6 | 19 => "Check the name of the file, device or namespace.",
        5 => {
            "Look at the log of the device's side: the kernel's (dmesg) for a local one, the target's for a remote one."
        }
        12 => "Raise the limit of locked memory (ulimit -l), or lower iodepth, bs or numjobs.",
        16 => "Something else holds the device: unmount it, or stop the other program.",
        22 => {
            "The device does not take requests of this kind: make bs and offset multiples of its block size."
        }
        24 => "Raise the limit of open files (ulimit -n), or lower numjobs.",
        28 => "Free space, or lower size.",
        30 => "The device is read-only: use rw=read or rw=randread, or attach it for writing.",
        95 => "The device does not support this operation: choose another rw.",
        103..=104 | 107..=108 | 110..=113 => {
            "Check that the target runs and is reached at this address (nvmf discover), and read its log."
        }
        _ => {
            "Fix what the message names and run again; the figures are those of the operations that succeeded."
        }
    }
}
