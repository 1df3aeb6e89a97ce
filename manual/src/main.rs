//! Writes the manual pages and completions of `nvmf-target` and `nvmf`, made from their command lines, and the page of
//! `nvmf-bench`, made from its table of options.
//!
//! ```text
//! nvmf-manual FOLDER DATE SECTIONS
//! ```
//!
//! FOLDER gets `man/NAME.SECTION`, a page for each program and each of its commands, `bash/NAME`, `zsh/_NAME` and
//! `fish/NAME.fish`; `bench/nvmf-bench.1` lies apart, as it is of another package. DATE is that of the pages. In SECTIONS
//! lies what no command line says, as `NAME.SECTION` in the language of man(7): it is put at the end of the page.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;
use std::fs;
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, date, sections] = &arguments[..] else { bail!("usage: nvmf-manual FOLDER DATE SECTIONS") };
    let folder = Path::new(folder);
    let man = folder.join("man");
    for path in
        [man.clone(), folder.join("bench"), folder.join("bash"), folder.join("zsh"), folder.join("fish")]
    {
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    for (section, command) in [("8", nvmf_target::cli::Cli::command()), ("1", nvmf_cli::command_line())] {
        completions(command.clone(), folder)?;
        let mut command = command.disable_help_subcommand(true);
        command.build();
        pages(&command, &Pages { folder: &man, section, date, sections: Path::new(sections) })?;
    }
    let path = folder.join("bench/nvmf-bench.1");
    fs::write(&path, nvmf_bench::help::page(date)).with_context(|| format!("cannot write {}", path.display()))
}

fn completions(mut command: Command, folder: &Path) -> Result<()> {
    let name = command.get_name().to_owned();
    for (shell, subfolder) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
        let file = generate_to(shell, &mut command, &name, folder.join(subfolder))
            .with_context(|| format!("no completions of {name} for {shell}"))?;
        if shell == Shell::Bash {
            // As bash-completion looks for it.
            fs::rename(&file, file.with_extension(""))?;
        }
    }
    Ok(())
}

/// Where pages go, and what is on them beside the command line.
struct Pages<'a> {
    folder: &'a Path,
    section: &'a str,
    date: &'a str,
    sections: &'a Path,
}

/// The page of a command, and those of its own commands.
fn pages(command: &Command, to: &Pages<'_>) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let file = format!("{name}.{}", to.section);
    let mut page = Vec::new();
    let version = command.get_version().unwrap_or_default();
    Man::new(command.clone())
        .title(name.to_uppercase())
        .section(to.section)
        .date(to.date)
        .source(format!("nvmf {version}").trim_end())
        .manual("NVMe over Fabrics")
        .render(&mut page)?;
    let sections = to.sections.join(&file);
    if sections.is_file() {
        page.extend(fs::read(&sections).with_context(|| format!("cannot read {}", sections.display()))?);
    }
    let path = to.folder.join(&file);
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    command.get_subcommands().filter(|it| !it.is_hide_set()).try_for_each(|command| pages(command, to))
}
