//! Until when somebody is fenced, as the monitors say it.

use core::time::Duration;
use nvmf_cluster::Address;
use serde_json::Value;
use std::time::SystemTime;
use time::OffsetDateTime;
use time::macros::format_description;

/// Clocks of a cluster and of its clients may be so far apart, and a fence may take so long to be made.
pub(super) const SLACK: Duration = Duration::from_secs(600);

/// How long an address stays on the blocklist, which is JSON. The time is that of the monitors.
pub(super) fn left(list: &[u8], address: &Address, now: SystemTime) -> Result<Duration, String> {
    // A list of addresses, and behind it one of ranges, where the release has such.
    let lists = serde_json::Deserializer::from_slice(list).into_iter::<Vec<Value>>();
    let lists = lists.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let Some(entry) = lists.iter().flatten().find(|entry| entry["addr"] == address.0.as_str()) else {
        return Err("it is not on the blocklist".to_owned());
    };
    let until = &entry["until"];
    let until = until.as_str().and_then(seconds).ok_or_else(|| format!("{until} is no time"))?;
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(Duration::from_secs(until.saturating_sub(now)))
}

/// Seconds since 1970 of a time like `2026-11-27T18:08:58.123456+0000`.
fn seconds(text: &str) -> Option<u64> {
    let format = format_description!(
        "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond][offset_hour sign:mandatory][offset_minute]"
    );
    OffsetDateTime::parse(text, format).ok()?.unix_timestamp().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_the_monitors_is_read_in_any_zone() {
        assert_eq!(seconds("1970-01-01T00:00:00.000000+0000"), Some(0));
        assert_eq!(seconds("2024-02-29T23:59:59.999999+0000"), Some(1_709_251_199));
        assert_eq!(seconds("2026-11-27T18:33:48.573462+0000"), Some(1_795_804_428));
        assert_eq!(seconds("2026-11-27T20:03:48.573462+0130"), Some(1_795_804_428));
        assert_eq!(seconds("2026-11-27T13:33:48.573462-0500"), Some(1_795_804_428));
        for other in ["", "2026-11-27", "2026-11-27 18:33:48.573462", "0.000000", "2026-11-27T18:33:48.5Z"] {
            assert_eq!(seconds(other), None, "{other}");
        }
    }

    #[test]
    fn fence_of_an_address_ends_when_the_monitors_say() {
        let list = br#"[{"addr":"192.0.2.9:0/7","until":"2026-11-27T18:33:48.573462+0000"},
                        {"addr":"192.0.2.9:0/71","until":"2026-11-28T18:33:48.573462+0000"}]
                      []"#;
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_804_400);
        let left = |address: &str, now| left(list, &Address(address.into()), now);
        assert_eq!(left("192.0.2.9:0/7", now), Ok(Duration::from_secs(28)));
        assert_eq!(left("192.0.2.9:0/7", now + Duration::from_secs(60)), Ok(Duration::ZERO));
        assert_eq!(left("192.0.2.9:0/71", now), Ok(Duration::from_secs(28 + 86_400)));
        assert!(left("192.0.2.9:0/8", now).is_err());
    }
}
