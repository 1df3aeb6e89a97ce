//! The command line: job files, and flags with fio's names.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use core::time::Duration;
use nvmf_bench::help::{self, OWN};
use nvmf_bench::job::{self, Given, JobError, Plan, Section, TABLE};
use nvmf_bench::message::say;
use nvmf_bench::report::{self, Format};
use nvmf_bench::result::RunResult;
use nvmf_bench::run::{self, Interrupt, Settings};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit status for an invalid command line or job file.
const USAGE: u8 = 2;
/// Rounds of a comparison unless `--rounds` is given: enough to show a spread.
const ROUNDS_DEFAULT: usize = 5;

/// Exit status when nobody reads the output any more, as of programs that SIGPIPE ends.
const CLOSED_PIPE: u8 = 141;

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Runs the command; returns its exit status.
pub(crate) fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = match Command::parse(&arguments) {
        Ok(command) => command,
        Err(error) => {
            say(format_args!("{error}"));
            return ExitCode::from(USAGE);
        }
    };
    match command.run() {
        Ok(ended) => ExitCode::from(ended.status()),
        Err(error) if is_closed_pipe(&error) => ExitCode::from(CLOSED_PIPE),
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::from(if error.is::<JobError>() { USAGE } else { 1 })
        }
    }
}

/// How a run ended, once its report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Well,
    /// A job failed.
    Failed,
    /// By this signal.
    Interrupted(i32),
}

impl Ended {
    fn of(well: bool, interrupted: Option<i32>) -> Self {
        match interrupted {
            Some(signal) => Self::Interrupted(signal),
            None if well => Self::Well,
            None => Self::Failed,
        }
    }

    /// The exit status. Of a signal it is the shell's, as fio's is 128: what was interrupted is no success.
    fn status(self) -> u8 {
        match self {
            Self::Well => 0,
            Self::Failed => 1,
            Self::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

/// Where reports go: opened before the run, whose result would be lost otherwise.
struct Reports<'a> {
    out: Box<dyn Write>,
    html: Option<(&'a Path, File)>,
}

impl<'a> Reports<'a> {
    fn create(output: Option<&Path>, html: Option<&'a Path>) -> Result<Self> {
        let create =
            |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        let out: Box<dyn Write> = match output {
            Some(path) => Box::new(create(path)?),
            None => Box::new(std::io::stdout()),
        };
        Ok(Self { out, html: html.map(|path| Ok::<_, anyhow::Error>((path, create(path)?))).transpose()? })
    }

    fn write_html(&mut self, runs: &[(String, RunResult)]) -> Result<()> {
        let Some((path, file)) = &mut self.html else { return Ok(()) };
        report::write(Format::Html, runs, file).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A parsed command line.
#[derive(Debug)]
struct Command {
    /// The sections of each job file, with the file's name.
    files: Vec<(String, Vec<Section>)>,
    /// Jobs given by flags, one for each `--name`.
    flags: Vec<Section>,
    /// Flags that apply to every job of the files.
    over: Vec<Given>,
    /// Number of rounds, for `compare`; `None` for a plain run.
    rounds: Option<usize>,
    settings: Settings,
    format: Format,
    output: Option<PathBuf>,
    html: Option<PathBuf>,
    help: bool,
    version: bool,
    parse_only: bool,
}

impl Command {
    fn parse(arguments: &[String]) -> Result<Self, JobError> {
        let mut command = Self {
            files: Vec::new(),
            flags: Vec::new(),
            over: Vec::new(),
            rounds: None,
            settings: Settings::default(),
            format: Format::Human,
            output: None,
            html: None,
            help: false,
            version: false,
            parse_only: false,
        };
        let mut arguments = arguments.iter().peekable();
        if arguments.next_if(|first| *first == "compare").is_some() {
            command.rounds = Some(ROUNDS_DEFAULT);
        }
        while let Some(argument) = arguments.next() {
            let Some(flag) = argument.strip_prefix("--") else {
                match argument.as_str() {
                    "-h" => command.help = true,
                    "-V" => command.version = true,
                    path => command.files.push((path.to_owned(), job::read(Path::new(path))?)),
                }
                continue;
            };
            let (name, value) =
                flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
            let name = name.replace('-', "_");
            let mut value = value.map(str::to_owned);
            if value.is_none() && wants_value(&name) {
                value = arguments.next_if(|next| !next.starts_with("--")).cloned();
            }
            let given = Given { name, value: value.unwrap_or_default(), place: format!("--{flag}") };
            if !command.take(&given)? {
                command.take_option(given);
            }
        }
        command.settle();
        Ok(command)
    }

    /// Takes a flag that is a job option.
    fn take_option(&mut self, given: Given) {
        match self.flags.last_mut() {
            // Flags before the first `--name` belong to that job.
            Some(section) if given.name == "name" && section.name.is_empty() => section.name = given.value,
            Some(section) if given.name != "name" => section.options.push(given),
            _ if given.name == "name" => self.flags.push(Section { name: given.value, options: Vec::new() }),
            _ => self.flags.push(Section { name: String::new(), options: vec![given] }),
        }
    }

    /// Assigns flags without a `--name`: with job files they apply to all jobs of the files, otherwise they form a job.
    fn settle(&mut self) {
        let Some(first) = self.flags.first_mut().filter(|section| section.name.is_empty()) else { return };
        if self.files.is_empty() {
            "nvmf-bench".clone_into(&mut first.name);
        } else {
            self.over = self.flags.remove(0).options;
        }
    }

    /// Takes a flag of the command itself; `false` if the flag is a job option.
    fn take(&mut self, given: &Given) -> Result<bool, JobError> {
        let wrong = |reason: &str| {
            let (place, name) = (given.place.clone(), given.name.clone());
            JobError::Value { place, name, reason: reason.to_owned() }
        };
        let path = || {
            if given.value.is_empty() {
                Err(wrong("give a file name"))
            } else {
                Ok(Some(PathBuf::from(&given.value)))
            }
        };
        match given.name.as_str() {
            "help" => self.help = true,
            "version" => self.version = true,
            "parse_only" => self.parse_only = true,
            "output" => self.output = path()?,
            "html" => self.html = path()?,
            "output_format" => {
                self.format = Format::from_str(&given.value, true)
                    .map_err(|_| wrong("use normal, json, json+ or html"))?;
            }
            "rounds" if self.rounds.is_some() => {
                let rounds = given.value.parse().ok().filter(|&rounds| rounds > 0);
                self.rounds = Some(rounds.ok_or_else(|| wrong("give a number of rounds, such as 5"))?);
            }
            "log_interval" => {
                let text = given.value.trim_end_matches("ms");
                let milliseconds = text.parse().ok().filter(|&ms| ms > 0);
                let milliseconds =
                    milliseconds.ok_or_else(|| wrong("give a number of milliseconds, such as 500"))?;
                self.settings.log_interval = Duration::from_millis(milliseconds);
            }
            "eta" => {
                self.settings.progress = match given.value.as_str() {
                    "always" => Some(true),
                    "never" => Some(false),
                    "auto" => None,
                    _ => return Err(wrong("use always, never or auto")),
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Runs the command.
    fn run(&self) -> Result<Ended> {
        if self.help || self.version {
            let text =
                if self.help { help::text() } else { format!("nvmf-bench {}\n", env!("CARGO_PKG_VERSION")) };
            let mut output = std::io::stdout().lock();
            output.write_all(text.as_bytes()).and_then(|()| output.flush())?;
            return Ok(Ended::Well);
        }
        if self.rounds.is_some() {
            return self.compare();
        }
        let sections: Vec<_> =
            self.files.iter().flat_map(|(_, sections)| sections).chain(&self.flags).cloned().collect();
        let mut plan = Plan::new(&sections, &self.over)?;
        print_notes(&plan);
        if self.parse_only {
            return Ok(Ended::Well);
        }
        let mut reports = Reports::create(self.output.as_deref(), self.html.as_deref())?;
        let interrupt = Interrupt::listen().context("cannot block SIGINT and SIGTERM")?;
        plan.number(random_number()?);
        let result = run::run(&plan, &self.settings, &interrupt)?;
        let well = !result.jobs.iter().any(nvmf_bench::result::JobResult::is_failed);
        let ended = Ended::of(well, result.interrupted);
        let runs = [("run".to_owned(), result)];
        report::write(self.format, &runs, &mut *reports.out).context("cannot write the report")?;
        reports.write_html(&runs)?;
        Ok(ended)
    }

    /// Runs two job files alternately, A B B A, so that changes in the machine's load affect both, and neither gains by
    /// being first.
    fn compare(&self) -> Result<Ended> {
        let [(a, sections_a), (b, sections_b)] = &self.files[..] else {
            bail!(JobError::Job {
                job: "compare".to_owned(),
                reason: "give two job files: nvmf-bench compare A B".to_owned()
            });
        };
        let (mut plan_a, mut plan_b) =
            (Plan::new(sections_a, &self.over)?, Plan::new(sections_b, &self.over)?);
        print_notes(&plan_a);
        print_notes(&plan_b);
        if self.parse_only {
            return Ok(Ended::Well);
        }
        if self.format == Format::Html {
            bail!(
                "a comparison can be written as normal or json; use --html=FILE for plots of the last round"
            );
        }
        let mut reports = Reports::create(self.output.as_deref(), self.html.as_deref())?;
        let interrupt = Interrupt::listen().context("cannot set up the handling of SIGINT and SIGTERM")?;
        let (mut rounds, mut interrupted) = (Vec::new(), None);
        for round in 1..=self.rounds.unwrap_or(ROUNDS_DEFAULT) {
            say(format_args!("round {round}"));
            let is_a_first = round % 2 == 1;
            let mut run = |is_a| {
                let plan = if is_a { &mut plan_a } else { &mut plan_b };
                plan.number(random_number()?);
                let result = run::run(plan, &self.settings, &interrupt)?;
                interrupted = interrupted.or(result.interrupted);
                anyhow::Ok(result)
            };
            let first = run(is_a_first)?;
            if first.interrupted.is_some() {
                break;
            }
            let second = run(!is_a_first)?;
            if interrupted.is_some() {
                break;
            }
            rounds.push(if is_a_first { (first, second) } else { (second, first) });
        }
        let Some(last) = rounds.last() else {
            say(format_args!("interrupted before the first round was over: there is nothing to report"));
            return Ok(Ended::of(false, interrupted));
        };
        if interrupted.is_some() {
            say(format_args!("interrupted: the report is of the {} rounds before", rounds.len()));
        }
        let report = report::compare::compare(a, b, &rounds);
        match self.format {
            Format::Json | Format::JsonPlus => writeln!(reports.out, "{:#}", report.json())?,
            Format::Human | Format::Html => write!(reports.out, "{report}")?,
        }
        reports.write_html(&[(a.clone(), last.0.clone()), (b.clone(), last.1.clone())])?;
        reports.out.flush()?;
        Ok(Ended::of(report.failures.is_empty(), interrupted))
    }
}

/// The number of a run.
fn random_number() -> Result<u64> {
    getrandom::u64().context("the system has no random numbers")
}

fn print_notes(plan: &Plan) {
    for note in &plan.notes {
        say(format_args!("note: {note}"));
    }
}

/// Whether the next argument may be this flag's value.
fn wants_value(name: &str) -> bool {
    let of_job = TABLE.iter().flat_map(|group| group.options).find(|known| known.names.contains(&name));
    match of_job {
        Some(known) => !known.value.is_empty(),
        None => OWN.iter().any(|(own, _)| own.replace('-', "_").starts_with(&format!("{name}="))),
    }
}
