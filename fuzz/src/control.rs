//! A line of a client of the control socket.

use nvmf_target::control::protocol::{line, parse};

/// Reads a line as the target does. A request that is understood, written again, is the same request.
pub fn control(bytes: &[u8]) {
    let Ok(request) = parse(bytes) else { return };
    let written = line(&request);
    assert_eq!(written.matches('\n').count(), 1, "one line: {written}");
    assert_eq!(parse(written.as_bytes()), Ok(request), "{written}");
}
