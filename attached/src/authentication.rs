//! What host and target prove to each other.

use serde::{Deserialize, Serialize};

/// DH-HMAC-CHAP of a host that has a secret; written down in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Authentication {
    /// It is connected to no target that does not ask for it.
    pub required: bool,
    /// Nor to one that does not prove who it is.
    pub bidirectional: bool,
}

impl Authentication {
    /// Whether each side proves with this what it proves with the other.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        (self.required || !other.required) && (self.bidirectional || !other.bidirectional)
    }
}

const BIDIRECTIONAL: &str = " of both sides";
const NOT_REQUIRED: &str = ", where the target asks for it";

impl std::fmt::Display for Authentication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sides = if self.bidirectional { BIDIRECTIONAL } else { "" };
        let if_asked = if self.required { "" } else { NOT_REQUIRED };
        write!(f, "DH-HMAC-CHAP{sides}{if_asked}")
    }
}

impl From<Authentication> for String {
    fn from(authentication: Authentication) -> Self {
        authentication.to_string()
    }
}

impl From<String> for Authentication {
    fn from(text: String) -> Self {
        Self { required: !text.contains(NOT_REQUIRED), bidirectional: text.contains(BIDIRECTIONAL) }
    }
}

/// How [`Authentication`] is written down: in words, and for earlier builds, which do not read these, in fields of its own, without
/// which they would take the disk over with less.
pub(crate) mod proof {
    use super::Authentication;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Proof {
        #[serde(skip_serializing_if = "Option::is_none")]
        authentication: Option<Authentication>,
        /// It is required.
        #[serde(skip_serializing_if = "std::ops::Not::not", skip_deserializing)]
        insists: bool,
        /// It is bidirectional.
        #[serde(skip_serializing_if = "std::ops::Not::not", skip_deserializing)]
        target_proves_itself: bool,
    }

    pub(crate) fn serialize<S: Serializer>(it: &Option<Authentication>, to: S) -> Result<S::Ok, S::Error> {
        let proof = Proof {
            authentication: *it,
            insists: it.is_some_and(|it| it.required),
            target_proves_itself: it.is_some_and(|it| it.bidirectional),
        };
        proof.serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Authentication>, D::Error> {
        Ok(Proof::deserialize(from)?.authentication)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attachment, State, VERSION};

    /// What an earlier build reads: it takes a disk over with no less than the fields of their own say.
    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Earlier {
        version: u32,
        nqn: String,
        authentication: Option<String>,
        insists: bool,
        target_proves_itself: bool,
    }

    #[test]
    fn authentication_is_read_as_it_is_written() {
        for (required, bidirectional, text) in [
            (true, true, "DH-HMAC-CHAP of both sides"),
            (true, false, "DH-HMAC-CHAP"),
            (false, true, "DH-HMAC-CHAP of both sides, where the target asks for it"),
            (false, false, "DH-HMAC-CHAP, where the target asks for it"),
        ] {
            let authentication = Authentication { required, bidirectional };
            assert_eq!(serde_json::json!(authentication), text);
            let entry = Attachment {
                version: VERSION,
                nqn: "nqn.2026-11.com.example:a".to_owned(),
                authentication: Some(authentication),
                ..Attachment::default()
            };
            let written = serde_json::to_string(&entry).unwrap();
            let read: Earlier = serde_json::from_str(&written).unwrap();
            let expected = Earlier {
                version: 3,
                nqn: "nqn.2026-11.com.example:a".to_owned(),
                authentication: Some(text.to_owned()),
                insists: required,
                target_proves_itself: bidirectional,
            };
            assert_eq!(read, expected);
            assert_eq!(serde_json::from_str::<Attachment>(&written).unwrap(), entry);
        }
    }

    #[test]
    fn entry_of_an_earlier_build_is_read_with_what_the_two_sides_prove() {
        let text = r#"{
            "version": 3, "nqn": "nqn.2026-11.com.example:a", "address": "192.0.2.1:4420", "transport": "tcp", "nsid": 1,
            "state": "live", "authentication": "DH-HMAC-CHAP of both sides", "insists": true, "target_proves_itself": true,
            "paths": [{ "address": "192.0.2.1:4420", "transport": "tcp", "state": "live" }],
            "mark": 18446744073709551615, "of_a_later_build": [1, { "x": null }], "supervisor": "guard", "pid": 7
        }"#;
        let entry: Attachment = serde_json::from_str(text).unwrap();
        assert_eq!(entry.authentication, Some(Authentication { required: true, bidirectional: true }));
        assert_eq!((entry.mark, entry.pid, entry.paths.len(), entry.state), (u64::MAX, 7, 1, State::Live));
        let none: Attachment = serde_json::from_str(r#"{ "version": 3 }"#).unwrap();
        assert_eq!(none, Attachment { version: 3, ..Attachment::default() });
        let written = serde_json::to_string(&none).unwrap();
        assert!(!written.contains("authentication") && !written.contains("insists"), "{written}");
    }
}
