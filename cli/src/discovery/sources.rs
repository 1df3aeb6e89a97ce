//! Where discovery begins: nvme-cli's `discovery.conf` and `config.json`, and the options of a call.

use super::arguments::{controller, is_secret};
use super::config_json::config_json;
use super::engine::{Controller, Place, Subsystem, of_all_paths};
use crate::print::chain;
use anyhow::{Context, Result, bail, ensure};
use nvme_proto::Nqn;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Options of a line in `discovery.conf` that say nothing here: discovery controllers are followed by `nvmf discoverd`.
const WITHOUT_MEANING: [&str; 5] = ["--persistent", "-p", "--quiet", "--force", "--matching"];

/// What is found in files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    pub(crate) controllers: Vec<Controller>,
    pub(crate) subsystems: Vec<Subsystem>,
    /// What `config.json` says of its hosts, as options.
    pub(crate) hosts: Vec<Vec<String>>,
    /// Lines that say nothing that can be done: each with its file, its number and the reason.
    pub(crate) problems: Vec<String>,
}

impl Sources {
    /// Says beside secrets which file they are from. Whether there are any.
    pub(super) fn name_file(&mut self, file: &Path) -> bool {
        let controllers = self.controllers.iter_mut().map(|controller| &mut controller.options);
        let subsystems = self.subsystems.iter_mut().map(|subsystem| &mut subsystem.options);
        let mut has_secrets = false;
        for options in
            controllers.chain(subsystems).filter(|options| options.iter().any(|option| is_secret(option)))
        {
            options.push(format!("--config={}", file.display()));
            has_secrets = true;
        }
        has_secrets
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.controllers.is_empty() && self.subsystems.is_empty()
    }

    /// The options for the controller there, else those of its host. Of the host that is said: what another one is told does not
    /// count.
    pub(super) fn of_host(&self, host: Option<Nqn>, nqn: Nqn, place: &Place) -> Option<Vec<String>> {
        let is_meant = |options: &[String]| {
            let named = options.iter().find_map(|option| option.strip_prefix("--hostnqn="));
            named.zip(host).is_none_or(|(named, host)| named == host.as_str())
        };
        let of = |it: &Subsystem| {
            let path = it.paths.iter().find(|path| path.place == *place)?;
            Some([&it.options[..], &path.own.options()].concat())
        };
        let mut subsystems =
            self.subsystems.iter().filter(|it| it.nqn == nqn.as_str() && is_meant(&it.options));
        let host = || self.hosts.iter().find(|options| is_meant(options)).cloned();
        subsystems.find_map(of).or_else(host)
    }

    /// From nvme-cli's files in this folder, as far as they are there. `given` are options of the call: those of a line go before them.
    pub(crate) fn read(folder: &Path, config: Option<&Path>, given: &[String]) -> Result<Self> {
        let mut sources = Self::default();
        if let Some(text) = read_lines(&folder.join("discovery.conf"))? {
            for (number, found) in discovery_conf(&text, given) {
                match found {
                    Ok(controller) => sources.controllers.push(controller),
                    Err(error) => sources.problems.push(format!(
                        "{}: line {number} is left out: {}",
                        folder.join("discovery.conf").display(),
                        chain(&error)
                    )),
                }
            }
        }
        let named = config.map(Path::to_owned);
        let json = named.clone().unwrap_or_else(|| folder.join("config.json"));
        if named.as_deref() == Some(Path::new("none")) {
            return Ok(sources);
        }
        match read(&json)? {
            Some(text) => {
                let mut found = config_json(&text, given).with_context(|| json.display().to_string())?;
                if found.name_file(&std::path::absolute(&json)?) && others_may_read(&json)? {
                    let json = json.display();
                    tracing::warn!(
                        "{json} has secrets, and others than its owner may read it: chmod 600 {json}"
                    );
                }
                sources.controllers.extend(found.controllers);
                (sources.subsystems, sources.hosts) = (found.subsystems, found.hosts);
            }
            None => ensure!(named.is_none(), "{} is not there", json.display()),
        }
        Ok(sources)
    }
}

/// What nvme-cli's `config.json` says of a controller, as options, else of its host. `of_path`: also those that are of one path only.
pub(crate) fn options_of(
    file: &Path,
    host: Option<Nqn>,
    nqn: Nqn,
    place: &Place,
    of_path: bool,
) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let sources = config_json(&text, &[]).with_context(|| file.display().to_string())?;
    let options = sources.of_host(host, nqn, place).unwrap_or_default();
    Ok(if of_path { options } else { of_all_paths(&options) })
}

fn others_may_read(file: &Path) -> Result<bool> {
    let found = file.metadata().with_context(|| format!("cannot look at {}", file.display()))?;
    Ok(found.mode() & 0o044 != 0)
}

fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// A file of lines, of which one that cannot be read spoils no other. A byte order mark says nothing; a pipe may
/// never have an end.
fn read_lines(path: &Path) -> Result<Option<String>> {
    let bytes = match path.metadata() {
        Ok(found) if found.file_type().is_fifo() => {
            bail!("cannot read {}: it is a named pipe, and not a file", path.display())
        }
        Ok(_) => std::fs::read(path),
        Err(error) => Err(error),
    };
    match bytes {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// A discovery controller a line, named by options, with the line's number. One that cannot be used spoils no other.
fn discovery_conf(text: &str, given: &[String]) -> Vec<(usize, Result<Controller>)> {
    let named = |(line, number): (&str, usize)| {
        let line = line.split('#').next().unwrap_or_default();
        let words = line.split_whitespace().filter(|word| !WITHOUT_MEANING.contains(word));
        let words: Vec<_> = words.map(str::to_owned).collect();
        (!words.is_empty()).then(|| (number, controller(&[given, &words].concat())))
    };
    text.lines().zip(1..).filter_map(named).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::discovery) fn place(transport: &str, address: &str, port: u16) -> Place {
        Place { transport: transport.to_owned(), address: address.to_owned(), port }
    }

    #[test]
    fn discovery_conf_has_a_controller_a_line() {
        let text = "# comment\n\n--transport=tcp --traddr=192.0.2.1 --persistent # the first\n\
                    -t tcp -a 2001:db8::1 -s 4420 --hdr-digest -k 30\n--transport=rdma -a name";
        let found = discovery_conf(text, &["--data-digest".to_owned(), "--transport=tcp".to_owned()]);
        let found: Vec<_> = found.into_iter().map(|(_, found)| found.unwrap()).collect();
        assert_eq!(found[0].place, place("tcp", "192.0.2.1", 8009));
        assert_eq!(found[0].options, ["--data-digest"]);
        assert_eq!(found[1].place, place("tcp", "2001:db8::1", 4420));
        assert_eq!(found[1].options, ["--hdr-digest", "--data-digest", "--keep-alive-tmo=30"]);
        assert_eq!(found[2].place, place("rdma", "name", 4420));
    }

    #[test]
    fn line_that_cannot_be_used_spoils_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let text = "-t tcp -a a\n-t tcp -a b --no-such\n-t tcp\n-t tcp -a c";
        std::fs::write(folder.path().join("discovery.conf"), text).unwrap();
        let found = Sources::read(folder.path(), None, &[]).unwrap();
        let addresses: Vec<_> = found.controllers.iter().map(|it| it.place.address.as_str()).collect();
        assert_eq!(addresses, ["a", "c"]);
        let [unknown, nowhere] = &found.problems[..] else { panic!("{:?}", found.problems) };
        assert!(unknown.contains("discovery.conf: line 2") && unknown.contains("--no-such"), "{unknown}");
        assert!(nowhere.contains("line 3") && nowhere.contains("--traddr"), "it names no address: {nowhere}");
    }

    #[test]
    fn bytes_that_are_no_text_spoil_only_their_line_and_what_is_no_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("discovery.conf");
        std::fs::write(&file, b"\xef\xbb\xbf-t tcp -a a\n# \xfcber\n-t tcp -a b").unwrap();
        let found = Sources::read(folder.path(), None, &[]).unwrap();
        let addresses: Vec<_> = found.controllers.iter().map(|it| it.place.address.as_str()).collect();
        assert_eq!((addresses, found.problems.len()), (vec!["a", "b"], 0));
        std::fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = format!("{:#}", Sources::read(folder.path(), None, &[]).unwrap_err());
        assert!(error.contains("a named pipe"), "{error}");
    }

    #[test]
    fn files_that_are_not_there_name_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Sources::read(folder.path(), None, &[]).unwrap(), Sources::default());
        assert!(Sources::read(folder.path(), Some(&folder.path().join("other.json")), &[]).is_err());
        assert_eq!(Sources::read(folder.path(), Some(Path::new("none")), &[]).unwrap(), Sources::default());
    }
}
