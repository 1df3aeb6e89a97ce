//! The entry that a disk's server begins with: what was asked for, and of a disk that is taken over what it was attached with.

use super::form::Server;
use super::nbd::Access;
use super::{AttachOptions, host, process};
use crate::discovery::SubsystemPath;
use crate::print::chain;
use anyhow::{Context, Result};
use nvmf_attached::{Attachment, Authentication, State, Supervisor, VERSION};
use nvmf_initiator::auth::system_random;
use nvmf_initiator::{AuthenticationOptions, Options};

/// The options with what the entry tells of a disk that is taken over, and they do not.
pub(super) fn as_before(
    options: &AttachOptions,
    before: Option<&Attachment>,
    supervisor: Supervisor,
) -> AttachOptions {
    let mut options = options.clone();
    if let Some(before) = before {
        // A unit's file says all of it, where the disk is the unit's.
        if (supervisor, before.supervisor) != (Supervisor::Systemd, Supervisor::Systemd) {
            options = with_each(options, &before.options);
        }
        options.socket.block_status |= before.block_status;
        // A device has those that it was made with.
        options.queues = before.queues;
    }
    options
}

/// The options with those that the disk was attached with and that these do not give: all but the ones that these cannot have, of
/// another transport, say.
fn with_each(mut options: AttachOptions, before: &[String]) -> AttachOptions {
    fn name(option: &str) -> Option<&str> {
        option.split('=').next()
    }
    let is_missing = |option: &&String| !options.lasting.iter().any(|given| name(given) == name(option));
    let missing: Vec<_> = before.iter().filter(is_missing).cloned().collect();
    if missing.is_empty() {
        return options;
    }
    // The names of paths were looked up, which may take long.
    let found: Vec<_> = options.connection.all_paths().collect();
    if let Ok(all) = (options.again)(&missing, &found) {
        return all;
    }
    let mut added = Vec::new();
    for option in missing {
        added.push(option.clone());
        match (options.again)(&added, &found) {
            Ok(more) => options = more,
            Err(error) => {
                added.pop();
                tracing::warn!(
                    "the disk goes on without {option}, which it was attached with: {}",
                    chain(&error)
                );
            }
        }
    }
    options
}

/// What whoever proves less than that has to do.
pub(crate) const PROVE_AS_MUCH: &str = "give the same --dhchap-secret, --dhchap-ctrl-secret if the target had to prove who it is, and \
    --dhchap-optional only if it had that";

/// Whether each side proves to these options what it did when the disk was attached.
pub(super) fn proves_as_much(before: &Attachment, now: Option<&AuthenticationOptions>) -> bool {
    let Some(before) = before.authentication else { return true };
    now.map(authentication).is_some_and(|now| now.covers(before))
}

/// A path of these options that would go in the clear, though the disk had TLS there.
pub(super) fn in_the_clear(before: &Attachment, now: &Options) -> Option<SubsystemPath> {
    let clear = now.all_paths().filter(|path| !now.protects(path));
    let mut clear = clear.flat_map(|path| SubsystemPath::spelled(&path));
    clear.find(|path| path.had_tls(before))
}

fn authentication(options: &AuthenticationOptions) -> Authentication {
    Authentication { required: options.insist, bidirectional: options.secrets.controller.is_some() }
}

/// The entry of a disk that this process has just taken over.
pub(super) fn taken_over(before: &Attachment) -> Attachment {
    // One that was asked to end while it was in use still is.
    let is_ending = before.state == State::Ending;
    let state = if is_ending { State::Ending } else { State::Reconnecting };
    // None of its paths is connected yet. Whoever comes after this process has to know them, too.
    let paths = before.paths.iter().map(|path| path.unconnected(State::Reconnecting)).collect();
    let (pid, pid_namespace) = (std::process::id(), process::pid_namespace());
    Attachment { pid, pid_namespace, state, paths, ..before.clone() }
}

/// The entry to begin with. `access`: who may use its socket, if it is to have one.
pub(super) fn begin(
    options: &AttachOptions,
    before: Option<&Attachment>,
    server: &Server,
    access: Access,
    supervisor: Supervisor,
) -> Result<Attachment> {
    let connection = &options.connection;
    let has_socket = matches!(server, Server::Socket(_) | Server::Vhost);
    let asked = Attachment {
        address: connection.address.to_string(),
        pid: std::process::id(),
        pid_namespace: process::pid_namespace(),
        supervisor,
        concat: connection.authentication.as_ref().is_some_and(|it| it.concat),
        iopolicy: connection.path_policy.to_string(),
        queues: options.queues,
        block_status: options.socket.block_status,
        options: options.lasting.clone(),
        authentication: connection.authentication.as_ref().map(authentication),
        socket_mode: has_socket.then_some(access.mode),
        socket_group: access.group.filter(|_| has_socket),
        ..Attachment::default()
    };
    if let Some(before) = before {
        let Attachment { address, concat, authentication, iopolicy, .. } = asked;
        let Attachment { queues, block_status, options, socket_mode, socket_group, .. } = asked;
        return Ok(Attachment {
            address,
            supervisor,
            // From now on it is reached in no other way.
            tls: before.tls || connection.all_paths().all(|path| connection.protects(&path)),
            concat,
            iopolicy,
            queues,
            block_status,
            options,
            authentication,
            socket_mode,
            socket_group,
            ..taken_over(before)
        });
    }
    let mut mark = [0; 8];
    system_random(&mut mark).context("the system has no random numbers")?;
    Ok(Attachment {
        version: VERSION,
        nqn: connection.nqn.to_string(),
        state: State::Attaching,
        mark: u64::from_ne_bytes(mark) | 1,
        asked_nsid: options.nsid.map(|nsid| nsid.0),
        is_duplicate: options.duplicate,
        by_discovery: options.by_discovery,
        host_nqn: connection.host.nqn.to_string(),
        host_id: host::id(&connection.host),
        ..asked
    })
}
