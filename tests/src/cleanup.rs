//! What a test started ends with the test, however that ends.

use anyhow::{Context, Result};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// `$1` is the program `nvmf`, `$2` a folder.
const DETACH_ALL: &str = r#"
for run in "$2"/run*; do
    [ -d "$run" ] && NVMF_RUNTIME_DIR="$run" "$1" detach --all --force
done
# Servers and guards that are left, and those that a guard becomes meanwhile.
for again in 1 2 3 4 5 6 7 8 9; do
    left=$(grep -lsazF "NVMF_RUNTIME_DIR=$2/" /proc/[0-9]*/environ | tr -dc '0-9\n')
    [ -n "$left" ] || break
    kill -KILL $left
done
rm -rf "$2""#;

/// A shell that runs a script when the process that made it ends, or drops it. [`Cleanup::cancel`] ends it without.
///
/// It waits for the end of a pipe, so that a test that is killed (SIGKILL, a time limit of CI) is cleaned up after, too.
#[derive(Debug)]
pub struct Cleanup {
    shell: Child,
}

impl Cleanup {
    /// Runs `script` with these arguments, as `$1` and so on, later.
    ///
    /// # Errors
    /// When there is no shell.
    pub fn new(script: &str, arguments: &[&str]) -> Result<Self> {
        let whole = format!("read -r word && [ \"$word\" = cancel ] && exit\n{script}");
        let mut shell = Command::new("sh");
        // A group of its own: a Ctrl-C at the terminal ends the test, and is not for this.
        shell.args(["-c", &whole, "cleanup"]).args(arguments).process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { shell: shell.spawn().context("cannot start sh")? })
    }

    /// Detaches what `nvmf` has attached in runtime folders `run…` of this folder, and removes the folder, later.
    ///
    /// # Errors
    /// When there is no shell, or a path is not UTF-8.
    pub fn of_disks(program: &Path, folder: &Path) -> Result<Self> {
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is not UTF-8");
        Self::new(DETACH_ALL, &[&text(program)?, &text(folder)?])
    }

    /// Ends it: there is nothing left to clean up.
    pub fn cancel(&mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            let _ = pipe.write_all(b"cancel\n");
        }
        let _ = self.shell.wait();
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
