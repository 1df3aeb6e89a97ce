//! Whose a descriptor is.

/// Whose a descriptor is, in the [`crate::Poller`] and in lists of deadlines: a key of one of the tables that a
/// transport on sockets has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Token {
    /// A connection's.
    Connection(u32),
    /// A connection's that has not said what it wants, or waits for an answer to that.
    Pending(u32),
    /// A listener's.
    Listener(u32),
    /// A closed connection's whose last bytes leave.
    Lingering(u32),
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        let (kind, key) = match token {
            Token::Connection(key) => (0, key),
            Token::Pending(key) => (1, key),
            Token::Listener(key) => (2, key),
            Token::Lingering(key) => (3, key),
        };
        kind << 32 | Self::from(key)
    }
}

impl From<u64> for Token {
    fn from(word: u64) -> Self {
        let key = word as u32;
        match word >> 32 {
            0 => Self::Connection(key),
            1 => Self::Pending(key),
            2 => Self::Listener(key),
            _ => Self::Lingering(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_packing() {
        let all = [Token::Connection(7), Token::Pending(u32::MAX), Token::Listener(0), Token::Lingering(9)];
        for token in all {
            assert_eq!(Token::from(u64::from(token)), token);
        }
    }
}
