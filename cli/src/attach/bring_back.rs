//! Bringing an attached disk back that was given up, or whose server and guard were killed.

use super::registry::Listed;
use anyhow::{Context, Result, bail, ensure};
use nvmf_attached::{Attachment, State, Supervisor};

impl Listed {
    /// Whether its I/O fails or waits for ever, though its target may be there.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.disk.state, State::Lost | State::Killed)
    }

    /// Has a disk that was given up connected again, and one that nobody serves taken over; what was done, and the disk as it is then.
    /// `None`: it needs neither. `attach` attaches it as it was: that takes over.
    pub(crate) fn bring_back(
        &self,
        attach: impl FnOnce() -> Result<Attachment>,
    ) -> Result<Option<(String, Self)>> {
        let place = self.disk.place().display();
        let what = match self.disk.state {
            State::Lost => {
                self.reconnect()
                    .with_context(|| format!("it was given up, and nvmf reconnect {place} asks it again"))?;
                "connected again"
            }
            State::Killed => {
                self.taken_over(attach).with_context(|| {
                    format!(
                        "it is killed: the nvmf attach that attached it, with all its arguments, takes it over, nvmf detach {place} \
                         clears it away"
                    )
                })?;
                "taken over"
            }
            _ => return Ok(None),
        };
        let now = self.again().context("it was detached meanwhile")?;
        Ok(Some((format!("{what}: {}", now.disk), now)))
    }

    fn taken_over(&self, attach: impl FnOnce() -> Result<Attachment>) -> Result<()> {
        let disk = &self.disk;
        ensure!(self.is_usable(), "what it was attached as is gone");
        ensure!(
            disk.supervisor != Supervisor::Systemd,
            "systemd starts its server (systemctl list-units 'nvmf-attach@*')"
        );
        ensure!(!disk.is_duplicate, "it was attached though it was attached already (--duplicate-connect)");
        match attach() {
            Ok(attached) if attached.mark == disk.mark => Ok(()),
            Ok(attached) => bail!("it was attached a second time, {}", attached.place().display()),
            // Its guard was only late.
            Err(_) if self.again().is_some_and(|now| now.disk.state != State::Killed) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
