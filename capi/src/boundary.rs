//! What crosses into C: a negative errno, and what goes with it for the thread to ask for. No panic does.

use core::cell::RefCell;
use core::ffi::{CStr, c_char};
use libc::c_int;
use nvmf_initiator::{BlockError, Effect, Error, Failed};
use std::error::Error as _;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Whether an operation took effect.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum nvmf_effect {
    /// It did nothing.
    None = 0,
    /// It is not known: all of it, a part, or nothing. A write may be done again; what must not be done twice is looked at first.
    MayHave = 1,
    /// It did all of it.
    Done = 2,
}

/// Why a call failed.
pub(crate) struct Fault {
    pub(crate) errno: c_int,
    pub(crate) effect: nvmf_effect,
    message: String,
}

struct Last {
    message: CString,
    effect: nvmf_effect,
}

thread_local! {
    /// A thread that ends has none any more while it runs what was left for its end.
    static LAST: RefCell<Last> = RefCell::new(Last { message: CString::default(), effect: nvmf_effect::None });
}

/// What failed in this thread's last call that failed, in words. Valid until the next call of this thread's; never null.
#[unsafe(no_mangle)]
pub extern "C" fn nvmf_last_error() -> *const c_char {
    let message = LAST.try_with(|last| last.borrow().message.as_ptr());
    message.unwrap_or(c"what failed is not kept while a thread ends".as_ptr())
}

/// Whether this thread's last call that failed may have taken effect.
#[unsafe(no_mangle)]
pub extern "C" fn nvmf_last_effect() -> nvmf_effect {
    LAST.try_with(|last| last.borrow().effect).unwrap_or(nvmf_effect::MayHave)
}

impl Fault {
    /// The caller's mistake: nothing was done.
    pub(crate) fn misuse(message: impl Into<String>) -> Self {
        Self { errno: libc::EINVAL, effect: nvmf_effect::None, message: message.into() }
    }

    fn of_panic(payload: &(dyn core::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic");
        let message = format!("libnvmf has a bug: {text}");
        Self { errno: libc::EIO, effect: nvmf_effect::MayHave, message }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            message = format!("{message}: {error}");
            source = error.source();
        }
        Self { errno: errno(&error), effect: effect(&error), message: in_words_of_options(message) }
    }
}

/// What the crates beneath call by the names of the command line, by the names of the options here.
const NAMES: [(&str, &str); 10] = [
    (
        "; of a disk that is attached it is read from the file that names its options (--persist, --config) at nvmf upgrade",
        "",
    ),
    (
        "connect with --concat and this host's secret (--dhchap-secret), or over TLS with a configured key (--tls)",
        "connect over TLS with a configured key (tls-key-file=)",
    ),
    ("(--tls, or --concat with --dhchap-secret)", "(tls-key-file=)"),
    ("allow it (--dhchap-optional)", "leave dhchap-secret-file= out"),
    ("--dhchap-ctrl-secret", "dhchap-ctrl-secret-file="),
    ("--dhchap-secret", "dhchap-secret-file="),
    ("--tls-key-file", "tls-key-file="),
    ("--concat, --tls", "tls-key-file="),
    ("--tls", "tls-key-file="),
    ("-t tcp", "nvme+tcp://"),
];

fn in_words_of_options(message: String) -> String {
    NAMES.iter().fold(message, |message, (of_command, of_option)| message.replace(of_command, of_option))
}

impl From<Failed> for Fault {
    fn from(failed: Failed) -> Self {
        failed.error.into()
    }
}

pub(crate) fn effect(error: &Error) -> nvmf_effect {
    match error.effect() {
        Effect::Nothing => nvmf_effect::None,
        _ => nvmf_effect::MayHave,
    }
}

pub(crate) fn errno(error: &Error) -> c_int {
    match error {
        Error::TimedOut { .. } => libc::ETIMEDOUT,
        Error::NoSuchNamespace { .. } => libc::ENOENT,
        Error::Memory { .. } => libc::ENOMEM,
        Error::Io { source, .. } => match source {
            BlockError::Medium | BlockError::NotCompared | BlockError::CacheLost => libc::EIO,
            BlockError::OutOfRange | BlockError::BadBuffer => libc::EINVAL,
            BlockError::ReadOnly => libc::EROFS,
            BlockError::NoSpace => libc::ENOSPC,
            BlockError::Unsupported => libc::EOPNOTSUPP,
            BlockError::Gone | BlockError::Path => libc::ENOLINK,
            BlockError::Aborted => libc::ETIMEDOUT,
            BlockError::CompareFailed => libc::EILSEQ,
            BlockError::ReservationConflict => libc::EBADE,
            // No device says that: the memory for a part of a write.
            BlockError::Os(libc::ENOMEM) => libc::ENOMEM,
            BlockError::Device(_) | BlockError::Os(_) => libc::EREMOTEIO,
        },
        // A name server that is away comes back, as a target does.
        Error::Association { .. }
        | Error::Foreign { .. }
        | Error::Closed { .. }
        | Error::Unresolved { .. } => libc::ENOLINK,
        Error::Misaligned { .. }
        | Error::TooLong { .. }
        | Error::Overlap { .. }
        | Error::Raw { .. }
        | Error::Uri { .. } => libc::EINVAL,
        _ => libc::EIO,
    }
}

/// Runs the body of a function; a failure is remembered for this thread, and becomes a negative errno.
pub(crate) fn call(body: impl FnOnce() -> Result<usize, Fault>) -> isize {
    // What a panic leaves half done is behind locks that do not mind, or in a call that has ended.
    let result = catch_unwind(AssertUnwindSafe(body));
    let fault = match result {
        Ok(Ok(value)) => return isize::try_from(value).unwrap_or(isize::MAX),
        Ok(Err(fault)) => fault,
        Err(payload) => Fault::of_panic(&*payload),
    };
    let errno = fault.errno;
    let message = CString::new(fault.message.replace('\0', " ")).unwrap_or_default();
    let _ = LAST.try_with(|last| last.replace(Last { message, effect: fault.effect }));
    -(errno as isize)
}

/// The same for functions that return an int.
pub(crate) fn call_int(body: impl FnOnce() -> Result<c_int, Fault>) -> c_int {
    call(|| body().map(|value| usize::try_from(value).unwrap_or(0))) as c_int
}

/// A text of the caller's.
///
/// # Safety
/// It is null, or ends with a NUL and stays as it is for as long as the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Fault> {
    if text.is_null() {
        return Err(Fault::misuse(format!("{what} is null")));
    }
    // SAFETY: it is not null; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Fault::misuse(format!("{what} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_initiator::{
        AssociationError, Connection, HostIdentity, Options, TcpOptions, TlsOptions, TransportOptions,
        block_on,
    };

    fn failed(source: AssociationError) -> Error {
        let (nqn, address) = ("nqn.2026-11.com.example:disk".to_owned(), ([127, 0, 0, 1], 4420).into());
        Error::Association { nqn, address, effect: Effect::Nothing, source: Box::new(source) }
    }

    #[test]
    fn what_can_be_done_is_said_by_the_names_of_the_options() {
        let keyring = TlsOptions::of_keyring("none of that name");
        let mut options = Options::with_host(
            ([127, 0, 0, 1], 1).into(),
            "nqn.2026-11.com.example:disk".parse().expect("an NQN"),
            HostIdentity::generate().expect("an identity"),
        );
        options.transport = TransportOptions::Tcp(TcpOptions::default().with_tls(Some(keyring)));
        let no_key = block_on(Connection::connect(options)).expect_err("there is no key");
        for (error, option) in [
            (failed(AssociationError::AuthenticationRequired), "dhchap-secret-file="),
            (failed(AssociationError::SecureChannelRequired), "tls-key-file="),
            (failed(AssociationError::NotAuthenticated), "dhchap-secret-file="),
            (no_key, "tls-key-file="),
        ] {
            let said = Fault::from(error).message;
            assert!(said.contains(option) && !said.contains(" --") && !said.contains("(--"), "{said}");
        }
    }
}
