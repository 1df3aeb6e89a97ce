//! Jobs and their options, with fio's names, parsed from files and flags.
//!
//! | module | contents |
//! |---|---|
//! | `table` | all options: names, help texts and parsers |
//! | `fio` | options of fio that are ignored or replaced |
//! | `options` | the options of a job, parsed |
//! | `remote` | a remote namespace: its URL, and which options go together |
//! | `ini`, `toml` | job files in fio's format and in TOML |
//! | `unit`, `value` | parsers of sizes, times and other values |

mod fio;
mod ini;
mod options;
pub(crate) mod remote;
mod table;
#[cfg(test)]
mod tests;
mod toml;
mod unit;
mod value;

pub use options::{
    Access, BlockSize, Distribution, EngineKind, JobOptions, LatencyTarget, Poll, RdmaProvider, Remote,
    RemoteTransport, Verify,
};
pub use table::{OptionGroup, OptionSpec, TABLE};
pub use unit::Extent;

use std::path::Path;

/// The jobs of job files and a command line, parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The options of the `[global]` sections, as given, in order.
    pub global: Vec<(String, String)>,
    /// The jobs, in order.
    pub jobs: Vec<Job>,
    /// Notes on options that are ignored or replaced, without duplicates.
    pub notes: Vec<String>,
}

/// One job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The section's name.
    pub name: String,
    /// Its own options, as given, in order.
    pub given: Vec<(String, String)>,
    /// Its parsed options.
    pub options: JobOptions,
}

/// A section of a job file, with unparsed values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    /// Its name; `global` applies to all sections that follow.
    pub name: String,
    /// Its options, in order.
    pub options: Vec<Given>,
}

/// An option as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Its name.
    pub name: String,
    /// Its value; empty when there is none.
    pub value: String,
    /// Its source, for messages: `job.fio:12`, or `--rw`.
    pub place: String,
}

/// An error in a job file or a flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The file cannot be read.
    #[error("cannot read the job file {path}: {reason}")]
    File {
        /// Path of the file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A line that is neither a section nor an option.
    #[error("{place}: {reason}")]
    Syntax {
        /// Place of the option, such as `job.fio:12`.
        place: String,
        /// The reason.
        reason: String,
    },
    /// There is no such option.
    #[error("{place}: there is no option `{name}`{}", nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?")))]
    Unknown {
        /// Place of the option, such as `job.fio:12`.
        place: String,
        /// Name of the option.
        name: String,
        /// The known option with the most similar name.
        nearest: Option<&'static str>,
    },
    /// An invalid value of an option.
    #[error("{place}: {name}: {reason}")]
    Value {
        /// Place of the option, such as `job.fio:12`.
        place: String,
        /// Name of the option.
        name: String,
        /// The reason.
        reason: String,
    },
    /// Options that contradict each other.
    #[error("job `{job}`: {reason}")]
    Job {
        /// Name of the job.
        job: String,
        /// The reason.
        reason: String,
    },
    /// There is no job.
    #[error("there is no job: give a job file, or at least --name=NAME and --rw=KIND (see --help)")]
    Empty,
}

/// Reads the sections of a job file.
///
/// # Errors
/// [`JobError::File`], [`JobError::Syntax`].
pub fn read(path: &Path) -> Result<Vec<Section>, JobError> {
    let file = |reason: std::io::Error| JobError::File {
        path: path.display().to_string(),
        reason: reason.to_string(),
    };
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin()).map_err(file)?
    } else {
        std::fs::read_to_string(path).map_err(file)?
    };
    parse(&path.display().to_string(), &text)
}

/// Parses a job file's text; `name` is its name in messages, and its extension selects the syntax.
///
/// # Errors
/// [`JobError::Syntax`].
pub fn parse(name: &str, text: &str) -> Result<Vec<Section>, JobError> {
    let is_toml = Path::new(name).extension().is_some_and(|extension| extension == "toml");
    if is_toml { toml::parse(name, text) } else { ini::parse(name, text) }
}

impl Plan {
    /// Parses sections, in order. `over` overrides the options of every job.
    ///
    /// # Errors
    /// [`JobError`] names the option, its place and the problem.
    pub fn new(sections: &[Section], over: &[Given]) -> Result<Self, JobError> {
        let mut plan = Self { global: Vec::new(), jobs: Vec::new(), notes: Vec::new() };
        let mut global = JobOptions::default();
        for section in sections {
            if section.name == "global" {
                for given in &section.options {
                    plan.apply(&mut global, given)?;
                    plan.global.push((given.name.clone(), given.value.clone()));
                }
                continue;
            }
            let mut options = global.clone();
            for given in section.options.iter().chain(over) {
                plan.apply(&mut options, given)?;
            }
            let given =
                section.options.iter().chain(over).map(|given| (given.name.clone(), given.value.clone()));
            let name = options.name.clone().unwrap_or_else(|| section.name.clone());
            let job = Job { name, given: given.collect(), options };
            plan.jobs.push(job.checked()?);
        }
        if plan.jobs.is_empty() { Err(JobError::Empty) } else { Ok(plan) }
    }

    /// Numbers a run. Blocks to verify are of this run in jobs that write, and in those that read what another job of it
    /// writes at the same time or has written before; others read the blocks of an earlier one.
    pub fn number(&mut self, run: u64) {
        let writes = |job: &Job| job.options.rw.writes && job.options.verify.is_some();
        let mut written = Vec::new();
        for stage in self.jobs.chunk_by_mut(|_, next| !next.options.stonewall) {
            written.extend(stage.iter().filter(|job| writes(job)).map(Job::place));
            for job in stage {
                job.options.run = Some(run);
                job.options.of_earlier_run = !written.contains(&job.place());
            }
        }
    }

    fn apply(&mut self, options: &mut JobOptions, given: &Given) -> Result<(), JobError> {
        let (name, place) = (given.name.clone(), given.place.clone());
        if let Some(known) = table::find(&given.name) {
            if given.value.is_empty() && !known.value.is_empty() && !takes_nothing(known) {
                let reason = format!("a value is missing, such as {}", known.value);
                return Err(JobError::Value { place, name, reason });
            }
            (known.set)(options, &given.value).map_err(|reason| JobError::Value { place, name, reason })?;
            self.notes_push(fio::note(&given.name, &given.value));
        } else if let Some(checked) = fio::fixed_option(&given.name, &given.value) {
            let note = checked.map_err(|reason| JobError::Value { place, name, reason })?;
            self.notes_push(Some(note));
        } else {
            return Err(JobError::Unknown { place, nearest: table::nearest(&name), name });
        }
        Ok(())
    }

    fn notes_push(&mut self, note: Option<String>) {
        if let Some(note) = note.filter(|note| !self.notes.contains(note)) {
            self.notes.push(note);
        }
    }
}

/// Whether an option's value may be omitted.
fn takes_nothing(known: &OptionSpec) -> bool {
    matches!(known.names[0], "do_verify" | "continue_on_error")
}

impl Job {
    /// What tells its disk from those of other jobs.
    fn place(&self) -> (Option<String>, String, Remote) {
        let JobOptions { directory, filename, remote, .. } = &self.options;
        (directory.clone(), filename.clone().unwrap_or_else(|| self.name.clone()), remote.clone())
    }

    /// Checks options that depend on each other, and completes them.
    fn checked(mut self) -> Result<Self, JobError> {
        let options = &mut self.options;
        if let (Some(Verify::Pattern(bytes)), Some(pattern)) = (&mut options.verify, &options.verify_pattern)
        {
            bytes.clone_from(pattern);
        }
        if let Err(reason) = remote::complete(options) {
            return Err(JobError::Job { job: self.name, reason });
        }
        let reason = if options.verify == Some(Verify::Pattern(Vec::new())) {
            "verify=pattern needs verify_pattern=BYTES"
        } else if options.time_based && options.runtime.is_none() {
            "time_based needs runtime=TIME"
        } else if options.iodepth_batch_complete > options.iodepth {
            "iodepth_batch_complete must not be more than iodepth"
        } else if options.verify.is_some() && !options.bs_are_multiples_of(options.verify_unit()) {
            "with verify, every block size must be a multiple of verify_interval (by default the shortest block size)"
        } else if let (EngineKind::IoUring, Some(url)) =
            (options.engine(), options.filename.as_deref().and_then(EngineKind::of_filename))
        {
            return Err(JobError::Job {
                job: self.name,
                reason: format!(
                    "this filename is a URL, not a local file: omit ioengine, or use ioengine={}",
                    url.name()
                ),
            });
        } else if let (EngineKind::IoUring, Some((scheme, _))) =
            (options.engine(), options.filename.as_deref().and_then(|name| name.split_once("://")))
        {
            return Err(JobError::Job {
                job: self.name,
                reason: format!(
                    "{scheme}:// is no known kind of URL: use nvmf://, nvmf+tcp:// (with tls=1 for TLS), nbd:// or nbd+unix://"
                ),
            });
        } else if options.engine() == EngineKind::IoUring
            && options.filename.as_ref().is_some_and(|name| name.contains(':'))
        {
            "a job has only one file: instead of several in one filename, separated by colons, use a job for each"
        } else if options.verify.is_some() && options.rw.trims {
            "verify cannot be combined with trims: the contents of a trimmed block are not defined"
        } else {
            return Ok(self);
        };
        Err(JobError::Job { job: self.name, reason: reason.to_owned() })
    }
}
