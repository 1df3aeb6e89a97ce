//! The command line: job files, and flags with fio's names.

use core::time::Duration;
use nvmf_bench::job::{self, Given, JobError, Plan, Section, TABLE};
use nvmf_bench::result::{Direction, JobResult, RunResult};
use nvmf_bench::run::{self, Interrupt, Settings};
use std::path::Path;
use std::process::ExitCode;

/// A command line that cannot be understood.
const USAGE: u8 = 2;

/// The whole command.
pub(crate) fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match Command::parse(&arguments).and_then(|command| command.plan().map(|plan| (command, plan))) {
        Ok((command, _)) if command.help => {
            print!("{}", help());
            ExitCode::SUCCESS
        }
        Ok((command, plan)) => command.run(&plan),
        Err(error) => {
            eprintln!("nvmf-bench: {error}");
            ExitCode::from(USAGE)
        }
    }
}

/// A command line.
#[derive(Debug, Default)]
struct Command {
    /// From job files and from `--name`s, in order.
    sections: Vec<Section>,
    /// Flags that hold for the jobs of the files.
    over: Vec<Given>,
    settings: Settings,
    help: bool,
    parse_only: bool,
}

impl Command {
    fn parse(arguments: &[String]) -> Result<Self, JobError> {
        let mut command = Self::default();
        let mut flags: Vec<Section> = Vec::new();
        let mut arguments = arguments.iter().peekable();
        while let Some(argument) = arguments.next() {
            let Some(flag) = argument.strip_prefix("--") else {
                if argument == "-h" {
                    command.help = true;
                } else {
                    command.sections.extend(job::read(Path::new(argument))?);
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
            if command.take(&given)? {
                continue;
            }
            if given.name == "name" {
                match flags.last_mut() {
                    // Flags before the first name are that job's.
                    Some(section) if section.name.is_empty() => section.name = given.value,
                    _ => flags.push(Section { name: given.value, options: Vec::new() }),
                }
                continue;
            }
            if flags.is_empty() {
                flags.push(Section::default());
            }
            if let Some(section) = flags.last_mut() {
                section.options.push(given);
            }
        }
        command.settle(flags);
        Ok(command)
    }

    /// Beside job files, flags without a name hold for every job of theirs; without files they are a job.
    fn settle(&mut self, flags: Vec<Section>) {
        for mut section in flags {
            if section.name.is_empty() && !self.sections.is_empty() {
                self.over.extend(section.options);
                continue;
            }
            if section.name.is_empty() {
                "nvmf-bench".clone_into(&mut section.name);
            }
            self.sections.push(section);
        }
    }

    /// Takes a flag that is the command's own; `false` when it is a job's.
    fn take(&mut self, given: &Given) -> Result<bool, JobError> {
        let wrong = |reason: &str| JobError::Value {
            place: given.place.clone(),
            name: given.name.clone(),
            reason: reason.to_owned(),
        };
        match given.name.as_str() {
            "help" => self.help = true,
            "parse_only" => self.parse_only = true,
            "log_interval" => {
                let text = given.value.trim_end_matches("ms");
                let milliseconds = text.parse().ok().filter(|&ms| ms > 0);
                let milliseconds = milliseconds.ok_or_else(|| wrong("write milliseconds, such as 500"))?;
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

    fn plan(&self) -> Result<Plan, JobError> {
        if self.help {
            return Ok(Plan { global: Vec::new(), jobs: Vec::new(), notes: Vec::new() });
        }
        Plan::new(&self.sections, &self.over)
    }

    fn run(&self, plan: &Plan) -> ExitCode {
        for note in &plan.notes {
            eprintln!("nvmf-bench: note: {note}");
        }
        if self.parse_only {
            return ExitCode::SUCCESS;
        }
        let interrupt = match Interrupt::listen() {
            Ok(interrupt) => interrupt,
            Err(error) => {
                eprintln!("nvmf-bench: cannot listen to signals: {error}");
                return ExitCode::FAILURE;
            }
        };
        match run::run(plan, &self.settings, &interrupt) {
            Ok(result) => {
                print(&result);
                let failed =
                    result.jobs.iter().any(|job| job.error != 0 || job.errors > 0 || job.verify_errors > 0);
                if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
            }
            Err(error) => {
                eprintln!("nvmf-bench: {error}");
                ExitCode::FAILURE
            }
        }
    }
}

/// Whether a flag's value may stand behind it as an argument of its own.
fn wants_value(name: &str) -> bool {
    let of_job = TABLE.iter().flat_map(|chapter| chapter.options).find(|known| known.names.contains(&name));
    of_job.map_or(matches!(name, "name" | "log_interval" | "eta"), |known| !known.value.is_empty())
}

fn help() -> String {
    let mut text = String::from(
        "Usage: nvmf-bench [JOBFILE...] [--OPTION[=VALUE]...]\n\n\
         Job files are fio's. Without files the flags are a job; beside files they hold for every job in them.\n\
         --name=NAME begins another job.\n\nThe run\n",
    );
    for (name, what) in [
        ("parse-only", "reads everything, runs nothing"),
        ("log-interval=500", "milliseconds between samples"),
        ("eta=auto|always|never", "the live line"),
    ] {
        text += &format!("  --{name:<36} {what}\n");
    }
    for chapter in TABLE {
        text += &format!("\n{}\n", chapter.title);
        for known in chapter.options {
            let value = if known.value.is_empty() { String::new() } else { format!("={}", known.value) };
            text += &format!("  --{:<36} {}\n", format!("{}{value}", known.names[0]), known.help);
        }
    }
    text
}

/// The figures in a few lines.
fn print(result: &RunResult) {
    for job in &result.jobs {
        println!("{}: (groupid={}, jobs={}): err={}", job.name, job.group, job.threads, job.error);
        if let Some(message) = &job.message {
            println!("  error: {message} ({} operations, {} blocks)", job.errors, job.verify_errors);
        }
        for direction in Direction::ALL {
            print_direction(job, direction);
        }
        println!("  cpu: user {:?}, system {:?}, elapsed {:?}", job.cpu.user, job.cpu.system, job.elapsed);
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn print_direction(job: &JobResult, direction: Direction) {
    let figures = &job.directions[direction as usize];
    let seconds = figures.runtime.as_secs_f64();
    if figures.ios == 0 || seconds == 0.0 {
        return;
    }
    let us = |percentile: f64| figures.total.value_at_percentile(percentile) as f64 / 1000.0;
    println!(
        "  {direction:?}: IOPS={:.0}, BW={:.1}MiB/s, ios={}, lat(us): mean={:.2} p50={:.2} p99={:.2} p99.9={:.2} p99.99={:.2} max={:.2}",
        figures.ios as f64 / seconds,
        figures.bytes as f64 / seconds / 1_048_576.0,
        figures.ios,
        figures.total.mean() / 1000.0,
        us(50.0),
        us(99.0),
        us(99.9),
        us(99.99),
        us(100.0)
    );
}
