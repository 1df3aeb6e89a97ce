//! What is proved to a target, and asked of it.

use super::TargetArguments;
use crate::command::dhchap_key::{is_secret, read_secret};
use anyhow::Result;
use nvmf_initiator::auth::host::Secrets;
use nvmf_initiator::{AuthenticationOptions, SecretsSource};

/// The secrets that are given, or in the files that are named.
fn read_secrets(host: &str, controller: Option<&str>) -> Result<Secrets> {
    let host = read_secret("--dhchap-secret", host)?;
    let controller = controller.map(|secret| read_secret("--dhchap-ctrl-secret", secret)).transpose()?;
    Ok(Secrets { host, controller })
}

impl TargetArguments {
    /// The files of secrets, to be read again; `None` where there is none.
    fn secrets_source(&self) -> Option<SecretsSource> {
        // As it is written now: a server changes its working folder.
        let absolute = |text: &String| {
            let path =
                std::path::absolute(text).ok().and_then(|path| path.into_os_string().into_string().ok());
            if is_secret(text) { text.clone() } else { path.unwrap_or_else(|| text.clone()) }
        };
        let host = self.dhchap_secret.as_ref().map(absolute)?;
        let controller = self.dhchap_ctrl_secret.as_ref().map(absolute);
        let read = move || read_secrets(&host, controller.as_deref()).map_err(|error| format!("{error:#}"));
        Some(SecretsSource::new(read))
    }

    /// What to prove and to ask for, if there is a secret.
    pub(super) fn authentication(&self) -> Result<Option<AuthenticationOptions>> {
        let Some(secret) = &self.dhchap_secret else { return Ok(None) };
        let secrets = read_secrets(secret, self.dhchap_ctrl_secret.as_deref())?;
        let mut options = AuthenticationOptions::new(secrets);
        options.insist = !self.dhchap_optional;
        options.concat = self.concat;
        options.source = self.secrets_source();
        Ok(Some(options))
    }

    /// What an option says to everybody, if a key itself was given; `from_file`: not where a file has it.
    pub(in crate::command) fn key_as_argument(&self, from_file: bool) -> Option<&'static str> {
        let is_shown =
            |secret: &str| !from_file || std::env::args_os().any(|it| it.to_string_lossy().contains(secret));
        let is_secret = |option: &Option<String>| {
            option.as_deref().is_some_and(|secret| is_secret(secret) && is_shown(secret))
        };
        match () {
            () if self.tls_key.is_some() => Some("--tls-key would show the key"),
            () if is_secret(&self.dhchap_secret) => Some("--dhchap-secret would show the secret"),
            () if is_secret(&self.dhchap_ctrl_secret) => Some("--dhchap-ctrl-secret would show the secret"),
            () => None,
        }
    }
}
