//! Jobs, as fio names them: read from files and flags.
//!
//! | file | what it is |
//! |---|---|
//! | `table` | every option: names, meaning, how it is understood |
//! | `fio` | what is fio's and is not done here, or otherwise |
//! | `options` | what a job is to do |
//! | `ini`, `toml` | job files: fio's, and in TOML |
//! | `unit`, `value` | sizes, times, and what else stands behind an equals sign |

mod fio;
mod ini;
mod options;
mod table;
#[cfg(test)]
mod tests;
mod toml;
mod unit;
mod value;

pub use options::{
    Access, BlockSize, Distribution, EngineKind, JobOptions, LatencyTarget, Poll, RdmaProvider, Remote,
    Verify,
};
pub use table::{Chapter, Known, TABLE};
pub use unit::Extent;

use std::path::Path;

/// A job file or a command line, understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The options of the `[global]` sections, as given, in order.
    pub global: Vec<(String, String)>,
    /// The jobs, in order.
    pub jobs: Vec<Job>,
    /// What is not done as it was asked, each once.
    pub notes: Vec<String>,
}

/// One job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The section's name.
    pub name: String,
    /// Its own options, as given, in order.
    pub given: Vec<(String, String)>,
    /// What it is to do.
    pub options: JobOptions,
}

/// A section of a job file, not understood yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    /// Its name; `global` for what holds for all that follow.
    pub name: String,
    /// What stands in it, in order.
    pub options: Vec<Given>,
}

/// An option as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Its name.
    pub name: String,
    /// Its value; empty when there is none.
    pub value: String,
    /// Where it stands, for messages: `job.fio:12`, or `--rw`.
    pub place: String,
}

/// A job file or a flag that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The file cannot be read.
    #[error("cannot read the job file {path}: {reason}")]
    File {
        /// Which.
        path: String,
        /// Why.
        reason: String,
    },
    /// A line that is neither section nor option.
    #[error("{place}: {reason}")]
    Syntax {
        /// Where.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// There is no such option.
    #[error("{place}: there is no option `{name}`{}", nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?")))]
    Unknown {
        /// Where.
        place: String,
        /// Which.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// A value that the option does not take.
    #[error("{place}: {name}: {reason}")]
    Value {
        /// Where.
        place: String,
        /// Which option.
        name: String,
        /// What is wrong with the value.
        reason: String,
    },
    /// Options that do not go together.
    #[error("job `{job}`: {reason}")]
    Job {
        /// Which.
        job: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Nothing to do.
    #[error("there is no job: name a job file, or give at least --name=NAME and --rw=KIND (see --help)")]
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

/// Understands a job file's text; `name` says which syntax it has, and is its name in messages.
///
/// # Errors
/// [`JobError::Syntax`].
pub fn parse(name: &str, text: &str) -> Result<Vec<Section>, JobError> {
    let is_toml = Path::new(name).extension().is_some_and(|extension| extension == "toml");
    if is_toml { toml::parse(name, text) } else { ini::parse(name, text) }
}

impl Plan {
    /// Understands sections, in order. `over` holds for every job, whatever its section says.
    ///
    /// # Errors
    /// [`JobError`] names the option, where it stands, and what is wrong with it.
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
            let job = Job { name: section.name.clone(), given: given.collect(), options };
            plan.jobs.push(job.checked()?);
        }
        if plan.jobs.is_empty() { Err(JobError::Empty) } else { Ok(plan) }
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
        } else if fio::IGNORED.contains(&given.name.as_str()) {
            self.notes_push(Some(format!("{name}: accepted, changes nothing here")));
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

/// Options that may stand without a value though they can have one.
fn takes_nothing(known: &Known) -> bool {
    matches!(known.names[0], "do_verify" | "continue_on_error")
}

impl Job {
    /// With what depends on several options filled in, if they go together.
    fn checked(mut self) -> Result<Self, JobError> {
        let options = &mut self.options;
        if let (Some(Verify::Pattern(bytes)), Some(pattern)) = (&mut options.verify, &options.verify_pattern)
        {
            bytes.clone_from(pattern);
        }
        let reason = if options.verify == Some(Verify::Pattern(Vec::new())) {
            "verify=pattern needs verify_pattern=BYTES"
        } else if options.time_based && options.runtime.is_none() {
            "time_based needs runtime=TIME"
        } else if options.iodepth_batch_complete > options.iodepth {
            "iodepth_batch_complete must not be more than iodepth"
        } else if options.verify.is_some() && !options.bs_are_multiples_of(options.verify_unit()) {
            "with verify, every block size must be a multiple of verify_interval, which is the shortest of them by default"
        } else if let (EngineKind::IoUring, Some(url)) =
            (options.engine(), options.filename.as_deref().and_then(EngineKind::of_filename))
        {
            return Err(JobError::Job {
                job: self.name,
                reason: format!(
                    "this filename is no local file: leave ioengine out, or say ioengine={}",
                    url.name()
                ),
            });
        } else if options.engine() == EngineKind::IoUring
            && options.filename.as_ref().is_some_and(|name| name.contains(':'))
        {
            "a job has one file here: several in one filename, with colons between them, need a job each"
        } else if options.verify.is_some() && options.rw.trims {
            "verify does not go with trims: what a trimmed block reads is not known"
        } else {
            return Ok(self);
        };
        Err(JobError::Job { job: self.name, reason: reason.to_owned() })
    }
}
