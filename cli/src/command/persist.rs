//! The files of disks that are attached at boot: `/etc/nvmf/attach.d/NAME.toml`, which `nvmf attach --persist NAME` writes and
//! `nvmf attach --from FILE` reads. Their keys are the long options of `nvmf attach`.

use super::Arguments;
use crate::discovery::given_of;
use crate::print::wrong_arguments;
use anyhow::{Context, Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Version of the files' format.
const VERSION: i64 = 1;
/// Names the folder with nvmf's configuration, instead of `/etc/nvmf`.
const FOLDER_VARIABLE: &str = "NVMF_CONFIG_DIR";
/// Options that are not about the disk.
const OF_THE_CALL: [&str; 7] = ["persist", "from", "foreground", "format", "verbose", "help", "dump_config"];
/// Options that name files. The unit runs in another folder.
const FILES: [&str; 5] = ["socket", "config", "tls_key_file", "dhchap_secret", "dhchap_ctrl_secret"];

/// The arguments of a call, with those of the file in the place of `--from FILE`.
pub(crate) fn expand(arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let is_attach = arguments.get(1).is_some_and(|command| command == "attach" || command == "serve");
    let named = |(at, argument): (usize, &OsString)| {
        let text = argument.to_str()?;
        match text.strip_prefix("--from=") {
            Some(file) => Some((at, PathBuf::from(file))),
            None if text == "--from" => Some((at + 1, PathBuf::from(arguments.get(at + 1)?))),
            None => None,
        }
    };
    let Some((at, file)) = arguments.iter().enumerate().find_map(named).filter(|_| is_attach) else {
        return Ok(arguments);
    };
    let mut expanded = arguments.clone();
    let of_file = read(&file)?;
    expanded.splice(at + 1..at + 1, of_file);
    Ok(expanded)
}

/// The options in a file.
fn read(file: &Path) -> Result<Vec<OsString>> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    let mut table: Table = text.parse().with_context(|| format!("{shown} is not TOML"))?;
    let version = table.remove("version").and_then(|version| version.as_integer());
    match version {
        Some(VERSION) => {}
        Some(other) => bail!(
            "{shown} is of version {other}, and this nvmf reads version {VERSION}: use the nvmf that wrote it, or write it anew (nvmf attach --persist)"
        ),
        None => bail!("{shown} has no version: `version = {VERSION}` is what this nvmf reads"),
    }
    let attach = attach_command();
    let mut arguments = Vec::new();
    for (key, value) in &table {
        let known = attach.get_arguments().find(|argument| argument.get_long() == Some(key));
        let known = known.filter(|argument| !OF_THE_CALL.contains(&argument.get_id().as_str()));
        if known.is_none() {
            return wrong_arguments(format!(
                "{shown}: `{key}` is no option of nvmf attach (`nvmf attach --help` lists them)"
            ));
        }
        arguments.push(match value {
            Value::Boolean(false) => continue,
            Value::Boolean(true) => format!("--{key}").into(),
            Value::String(text) => format!("--{key}={text}").into(),
            Value::Integer(number) => format!("--{key}={number}").into(),
            Value::Array(texts) if known.is_some_and(is_repeated) && texts.iter().all(Value::is_str) => {
                let texts = texts.iter().filter_map(Value::as_str);
                arguments.extend(texts.map(|text| OsString::from(format!("--{key}={text}"))));
                continue;
            }
            _ => return wrong_arguments(format!("{shown}: `{key}` is a text, a number, true or false")),
        });
    }
    Ok(arguments)
}

fn is_repeated(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Append)
}

fn attach_command() -> Command {
    let mut all = Arguments::command();
    all.build();
    all.find_subcommand("attach").expect("the command is there").clone()
}

/// A file that says what is attached at boot.
pub(super) struct Written {
    pub(super) file: PathBuf,
    /// There was none before.
    pub(super) is_new: bool,
}

/// Writes the options of this call into the file of a name, for the unit `nvmf-attach@NAME`.
pub(super) fn write(name: &str) -> Result<Written> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if name.is_empty() || name.starts_with(['.', '-']) || !name.chars().all(is_plain) {
        return wrong_arguments(format!(
            "--persist {name}: a name has letters, digits, `_`, `.` and `-` only"
        ));
    }
    let matches = Arguments::command().get_matches_from(std::env::args_os());
    let (_, matches) = matches.subcommand().context("this is a call of nvmf attach")?;
    let table = table(matches)?;
    let folder = std::env::var_os(FOLDER_VARIABLE).map_or_else(|| PathBuf::from("/etc/nvmf"), PathBuf::from);
    let folder = folder.join("attach.d");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let file = folder.join(format!("{name}.toml"));
    check_free(&file, &table)?;
    let is_new = !file.exists();
    let text = format!(
        "# What nvmf-attach@{name}.service attaches: options of `nvmf attach`, by their long names.\n\
         # Written by `nvmf attach --persist {name}`; may be edited.\n{table}"
    );
    replace(&file, &text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(Written { file, is_new })
}

/// That nothing is lost that somebody wrote: another disk's file of the same name, or options that were edited. What another version
/// wrote may be written anew.
fn check_free(file: &Path, table: &Table) -> Result<()> {
    let Ok(text) = std::fs::read_to_string(file) else { return Ok(()) };
    let there = text.parse::<Table>().ok();
    let of_this_version =
        |there: &Table| there.get("version").and_then(Value::as_integer).is_none_or(|it| it == VERSION);
    if there.as_ref().is_none_or(of_this_version) && there.as_ref() != Some(table) {
        return wrong_arguments(format!(
            "{} is there, and says something else: give --persist another name, or edit or remove the file",
            file.display()
        ));
    }
    Ok(())
}

/// The options that were given.
fn table(matches: &ArgMatches) -> Result<Table> {
    let mut table = Table::new();
    table.insert("version".to_owned(), Value::Integer(VERSION));
    let attach = attach_command();
    for (argument, id, long) in given_of(&attach, matches) {
        if OF_THE_CALL.contains(&id) {
            continue;
        }
        if matches!(argument.get_action(), ArgAction::SetTrue) {
            table.insert(long.to_owned(), Value::Boolean(true));
            continue;
        }
        let mut values = matches.get_raw(id).into_iter().flatten();
        if is_repeated(argument) {
            let text = |value: &OsStr| Some(Value::String(value.to_str()?.to_owned()));
            let texts = values.map(text).collect::<Option<_>>();
            let texts = texts.with_context(|| format!("--{long} is not UTF-8"))?;
            table.insert(long.to_owned(), Value::Array(texts));
            continue;
        }
        let value = values.next().unwrap_or_default();
        let mut text = value.to_str().with_context(|| format!("--{long} is not UTF-8"))?.to_owned();
        if FILES.contains(&id) {
            let path = whole_path(id, value)?;
            text = path.to_str().with_context(|| format!("--{long} is not UTF-8"))?.to_owned();
        }
        let number = text.parse().ok().filter(|number: &i64| number.to_string() == text);
        table.insert(long.to_owned(), number.map_or(Value::String(text), Value::Integer));
    }
    Ok(table)
}

/// The arguments of `nvmf attach` with the files that they name by their whole paths: whoever goes on with the disk runs in another
/// folder.
pub(super) fn with_whole_paths(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let attach = attach_command();
    let is_file = |id: &str| FILES.contains(&id) || id == "from";
    for argument in attach.get_arguments().filter(|argument| is_file(argument.get_id().as_str())) {
        let id = argument.get_id().as_str();
        let longs = argument.get_long_and_visible_aliases().into_iter().flatten().map(|it| format!("--{it}"));
        let names: Vec<_> = longs.chain(argument.get_short().map(|it| format!("-{it}"))).collect();
        for at in 0..arguments.len() {
            // A path that is no UTF-8 can be given as a word of its own.
            let Some(text) = arguments[at].to_str().map(str::to_owned) else { continue };
            let Some((name, rest)) = names.iter().find_map(|name| Some((name, text.strip_prefix(&**name)?)))
            else {
                continue;
            };
            let is_long = name.starts_with("--");
            let (at, before, value) = match rest.strip_prefix('=') {
                _ if rest.is_empty() => (at + 1, String::new(), arguments.get(at + 1).cloned()),
                Some(value) => (at, format!("{name}="), Some(value.into())),
                None if is_long => continue,
                None => (at, name.clone(), Some(rest.into())),
            };
            // What is wrong with it is said where it is parsed.
            if let Some(Ok(path)) = value.map(|value| whole_path(id, &value)) {
                arguments[at] = [OsString::from(before), path].iter().map(|it| &**it).collect();
            }
        }
    }
    arguments
}

/// The value of an option that names a file, with the file's whole path.
fn whole_path(id: &str, value: &OsStr) -> Result<OsString> {
    let is_file = match id {
        "config" => value != "none",
        // A secret with a mistake in it is shown to nobody.
        "dhchap_secret" | "dhchap_ctrl_secret" => Path::new(value).exists(),
        _ => true,
    };
    Ok(if is_file { std::path::absolute(value)?.into() } else { value.to_owned() })
}

/// Replaces a file: it is the old one or the new one, whatever happens meanwhile.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let draft = file.with_extension("draft");
    let mut options = std::fs::OpenOptions::new();
    let mut open = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    open.write_all(text.as_bytes())?;
    open.sync_all()?;
    std::fs::rename(&draft, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn files_are_named_by_their_whole_paths() {
        let folder = std::env::current_dir().unwrap();
        let call = "-t tcp -a 192.0.2.1 --tls-key-file k --socket=s -J none --config=../c -S Cargo.toml --dhchap-ctrl-secret no-file --from f";
        let whole = with_whole_paths(arguments(call));
        let path = |name: &str| folder.join(name).into_os_string();
        let after = |name: &str| whole.iter().position(|it| it == name).map(|at| whole[at + 1].clone());
        assert_eq!(after("--tls-key-file"), Some(path("k")));
        assert_eq!(after("-S"), Some(path("Cargo.toml")));
        assert_eq!(after("-J"), Some("none".into()));
        assert_eq!(after("--from"), Some(path("f")));
        assert_eq!(after("--dhchap-ctrl-secret"), Some("no-file".into()), "it may be a secret");
        let is_given = |text: String| whole.contains(&OsString::from(text));
        assert!(is_given(format!("--socket={}", folder.join("s").display())), "{whole:?}");
        assert!(is_given(format!("--config={}", folder.join("../c").display())), "{whole:?}");
    }

    #[test]
    fn file_has_the_options_that_were_given() {
        let given = "nvmf attach -t tcp -a 192.0.2.1 -n nqn.2026-11.com.example:a --tls --ctrl-loss-tmo=-1 --nsid 2 --path 192.0.2.2 --path 192.0.2.3:4421 -o json";
        let matches = Arguments::command().get_matches_from(arguments(given));
        let (_, matches) = matches.subcommand().unwrap();
        let text = table(matches).unwrap().to_string();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.toml");
        replace(&file, &text).unwrap();
        let mut call = arguments("nvmf attach --foreground --from");
        call.push(file.clone().into());
        let mut expanded = expand(call).unwrap();
        assert_eq!(
            expanded[..5],
            [arguments("nvmf attach --foreground --from"), vec![file.into()]].concat()[..]
        );
        let mut read = expanded.split_off(5);
        read.sort();
        let mut expected = arguments(
            "--ctrl-loss-tmo=-1 --nqn=nqn.2026-11.com.example:a --nsid=2 --path=192.0.2.2 --path=192.0.2.3:4421 --tls --traddr=192.0.2.1 --transport=tcp",
        );
        expected.sort();
        assert_eq!(read, expected);
    }

    #[test]
    fn file_that_says_something_else_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.toml");
        let table: Table = "version = 1\nnqn = \"nqn.2026-11.com.example:a\"".parse().unwrap();
        check_free(&file, &table).unwrap();
        for (text, may) in [
            ("# edited\nversion = 1\nnqn = \"nqn.2026-11.com.example:a\"", true),
            ("version = 0\nsubsystem = \"nqn.2026-11.com.example:b\"", true),
            ("version = 1\nnqn = \"nqn.2026-11.com.example:b\"", false),
            ("version = 1\nnqn = \"nqn.2026-11.com.example:a\"\nctrl-loss-tmo = -1", false),
            ("version = 1\nnqn = ", false),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(check_free(&file, &table).is_ok(), may, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.toml");
        for (text, said) in [
            ("version = 2\nnqn = \"a\"", "version 2"),
            ("nqn = \"a\"", "no version"),
            ("version = 1\nnqm = \"a\"", "`nqm` is no option"),
            ("version = 1\nforeground = true", "`foreground` is no option"),
            ("version = 1\nnqn = [1]", "a text, a number"),
            ("version", "is not TOML"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error =
                expand(vec!["nvmf".into(), "serve".into(), format!("--from={}", file.display()).into()]);
            let error = format!("{:#}", error.unwrap_err());
            assert!(error.contains(said) && error.contains("a.toml"), "{error}");
        }
        let other = arguments("nvmf list --from nowhere");
        assert_eq!(expand(other.clone()).unwrap(), other);
    }
}
