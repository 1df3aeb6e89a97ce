//! Until when somebody is fenced, as the monitors say it.

use core::time::Duration;
use nvmf_cluster::{Address, Reply};
use nvmf_rados::boottime;
use serde_json::Value;
use std::time::SystemTime;
use time::OffsetDateTime;
use time::macros::format_description;

/// Clocks of a cluster and of its clients may be so far apart, and a fence may take so long to be made.
const SLACK: Duration = Duration::from_secs(600);

/// Fences an address. The monitors keep the end of a fence that there is, which holds until they have taken it away; so nothing is
/// changed then. Where they take it away just now they may do that with what is asked for, too, and say that it is done.
pub(super) fn fence<E>(
    address: &Address,
    duration: Duration,
    left: impl Fn() -> Result<Option<Duration>, String>,
    add: impl Fn() -> Result<(), E>,
) -> Result<Reply, E> {
    let before = left();
    match before {
        Ok(Some(left)) if left + SLACK >= duration => return Ok(Reply::Done),
        Ok(Some(left)) => return Ok(too_short(address, left, duration)),
        Ok(None) | Err(_) => {}
    }
    add()?;
    Ok(match left() {
        // It may have been there before.
        Ok(Some(left)) if before.is_err() && left + SLACK < duration => too_short(address, left, duration),
        Ok(Some(_)) => Reply::Done,
        Ok(None) => {
            Reply::Failed(format!("{address} was fenced, and is not on the blocklist of the cluster"))
        }
        Err(reason) => {
            tracing::warn!("{address} is fenced, and for how long is not known: {reason}");
            Reply::Done
        }
    })
}

/// There is a fence already, which ends too early.
fn too_short(address: &Address, left: Duration, duration: Duration) -> Reply {
    if left > Duration::ZERO {
        let (short, long) = (left.as_secs(), duration.as_secs());
        tracing::warn!(
            "{address} is fenced for {short} s only, and not for {long}: somebody has fenced it before, and the cluster keeps that \
             end. It is fenced again then. If its process is known to be dead, this makes it longer now: ceph osd blocklist \
             rm {address}; ceph osd blocklist add {address} {long}"
        );
    }
    Reply::FencedUntil(boottime() + left)
}

/// How long an address stays on the blocklist, which is JSON, if it is there. The time is that of the monitors.
pub(super) fn left(list: &[u8], address: &Address, now: SystemTime) -> Result<Option<Duration>, String> {
    // A list of addresses, and behind it one of ranges, where the release has such.
    let lists = serde_json::Deserializer::from_slice(list).into_iter::<Vec<Value>>();
    let lists = lists.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let is_it = |entry: &&Value| entry["addr"].as_str().is_some_and(|other| bare(other) == bare(&address.0));
    let Some(entry) = lists.iter().flatten().find(is_it) else {
        return Ok(None);
    };
    let until = &entry["until"];
    let until = until.as_str().and_then(seconds).ok_or_else(|| format!("{until} is no time"))?;
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(Some(Duration::from_secs(until.saturating_sub(now))))
}

/// An address without the version of the protocol, which some releases write before it.
fn bare(address: &str) -> &str {
    let versions = ["v1:", "v2:", "any:"];
    versions.into_iter().find_map(|version| address.strip_prefix(version)).unwrap_or(address)
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
    use core::cell::Cell;
    use core::convert::Infallible;

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

    /// Gives the reply, and how often the monitors were asked for a fence. `lists` is what is left of one, each time they are
    /// asked for that.
    fn fenced(lists: &[Result<Option<u64>, ()>]) -> (Reply, usize) {
        let (lists, added) = (Cell::new(lists), Cell::new(0));
        let left = || {
            let (first, others) = lists.get().split_first().expect("it is asked no more");
            lists.set(others);
            first.map(|left| left.map(Duration::from_secs)).map_err(|()| "no monitor answers".to_owned())
        };
        let add = || {
            added.set(added.get() + 1);
            Ok::<_, Infallible>(())
        };
        let address = Address("192.0.2.9:0/7".into());
        let Ok(reply) = fence(&address, Duration::from_secs(DAY), left, add);
        assert!(lists.get().is_empty());
        (reply, added.get())
    }

    const DAY: u64 = 24 * 3600;

    #[test]
    fn fence_is_made_where_there_is_none_whatever_the_clocks_say() {
        for left in [DAY, DAY / 2, 0, 2 * DAY] {
            assert_eq!(fenced(&[Ok(None), Ok(Some(left))]), (Reply::Done, 1));
        }
        assert_eq!(fenced(&[Ok(Some(DAY - 5))]), (Reply::Done, 0));
        assert_eq!(fenced(&[Err(()), Ok(Some(DAY))]), (Reply::Done, 1));
        assert_eq!(
            fenced(&[Err(()), Err(())]),
            (Reply::Done, 1),
            "those of releases that list them in another way"
        );
    }

    #[test]
    fn fence_that_was_taken_away_as_it_was_made_is_none() {
        for before in [Ok(None), Err(())] {
            assert!(matches!(fenced(&[before, Ok(None)]), (Reply::Failed(_), 1)));
        }
    }

    #[test]
    fn fence_that_is_too_short_is_left_until_the_monitors_have_taken_it_away() {
        for left in [0, 60] {
            for (lists, adds) in [(&[Ok(Some(left))][..], 0), (&[Err(()), Ok(Some(left))], 1)] {
                let before = boottime();
                let (reply, added) = fenced(lists);
                let Reply::FencedUntil(until) = reply else { panic!("{reply:?}") };
                assert!(added == adds && until >= before + Duration::from_secs(left));
            }
        }
    }

    #[test]
    fn fence_of_an_address_ends_when_the_monitors_say() {
        let list = br#"[{"addr":"192.0.2.9:0/7","until":"2026-11-27T18:33:48.573462+0000"},
                        {"addr":"192.0.2.9:0/71","until":"2026-11-28T18:33:48.573462+0000"}]
                      []"#;
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_804_400);
        let left = |address: &str, now| left(list, &Address(address.into()), now);
        assert_eq!(left("192.0.2.9:0/7", now), Ok(Some(Duration::from_secs(28))));
        assert_eq!(left("192.0.2.9:0/7", now + Duration::from_secs(60)), Ok(Some(Duration::ZERO)));
        assert_eq!(left("192.0.2.9:0/71", now), Ok(Some(Duration::from_secs(28 + 86_400))));
        assert_eq!(left("v1:192.0.2.9:0/7", now), Ok(Some(Duration::from_secs(28))));
        assert_eq!(left("192.0.2.9:0/8", now), Ok(None));
    }
}
