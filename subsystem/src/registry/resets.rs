//! Cross-Controller Reset: which association it ends.

use super::Registry;
use crate::association::AssociationKey;
use crate::question::ResetQuestion;
use crate::status;
use nvme_proto::Status;

impl Registry {
    /// Ends the association with the impacted controller ([`crate::Notice::Closing`]) and names it: the reset is
    /// successful once none of its commands is under way any more. `None`: that is so already. An association is forgotten
    /// only when its last command is over, and no other target has the disks before that.
    ///
    /// # Errors
    /// The status of the command: it names the controller that it came to, one of another target, one that has been reset
    /// since, or one of another host.
    pub fn reset(&mut self, question: &ResetQuestion) -> Result<Option<AssociationKey>, Status> {
        let ResetQuestion { association: own, impacted } = question;
        if impacted.cntlid == own.key.cntlid
            || !self.cntlids.as_ref().is_some_and(|own| own.contains(&impacted.cntlid.0))
        {
            return Err(status::INVALID_FIELD);
        }
        let id = own.key.subsystem;
        let other = self.associations.get(&id).and_then(|of_subsystem| of_subsystem.get(impacted.cntlid));
        let Some(other) = other.filter(|other| other.has_lived_as(impacted)) else { return Ok(None) };
        let is_of_host = other.host_nqn == own.host_nqn && other.host_id == own.host_id;
        if other.instance() != *impacted || !is_of_host {
            return Err(status::INVALID_FIELD);
        }
        let key = other.key;
        self.close_associations(id, |association| association.key == key);
        Ok(Some(key))
    }

    /// Tells the controller that was sent the command how a reset ended that was still under way when it was answered.
    pub fn on_reset_over(&mut self, question: &ResetQuestion, successful: bool) {
        let ResetQuestion { association, impacted } = question;
        self.notices.push(crate::Notice::Reset { by: association.key, impacted: *impacted, successful });
    }
}
