//! An image is in the group's configuration once, and no two namespaces have one UUID. Two that add it at the same time, at different
//! gateways, are told apart where the configuration is stored: the second fails. Where it is there twice all the same (by an
//! older version, or by hand), the namespace that has been served goes on.

use super::Membership;
use super::images::Key;
use super::known::{SIZE, is_known, key_of_item, namespace_of, size_of};
use crate::cluster::Request;
use nvmf_cluster::configuration::{Change, Condition, Item};
use nvmf_config::Rbd;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

type Items = BTreeMap<String, Item>;

const NAMESPACE: &str = "namespace/";

/// The image of a namespace's item. How it is decrypted makes it no other.
fn image(key: &str, value: &Value) -> Option<String> {
    let rbd = value.get("rbd").filter(|_| key.starts_with(NAMESPACE))?;
    let part = |name| rbd.get(name).and_then(Value::as_str);
    let pool = part("pool").unwrap_or(Rbd::POOL);
    let namespace = part("namespace").map(|it| format!("{it}/")).unwrap_or_default();
    let snapshot = part("snapshot").map(|it| format!("@{it}")).unwrap_or_default();
    Some(format!("{pool}/{namespace}{}{snapshot}", part("image")?))
}

/// Which image it is, by what is known of it.
fn identity(key: &str, value: &Value) -> Option<String> {
    let known = value.get("image").filter(|_| is_known(key))?;
    known.as_str().map(str::to_owned)
}

/// The UUID by which hosts know a namespace, as its item or what is known of its image says, and the namespace's item.
fn claim(key: &str, value: &Value) -> Option<(Uuid, String)> {
    let namespace = if is_known(key) { namespace_of(key)? } else { key.to_owned() };
    let uuid = value.get("uuid").filter(|_| namespace.starts_with(NAMESPACE))?;
    Some((uuid.as_str()?.parse().ok()?, namespace))
}

/// UUIDs that these changes give to namespaces, with these.
struct Claims {
    given: BTreeMap<Uuid, String>,
    /// One that two of them are given.
    twice: Option<(Uuid, String)>,
    changed: BTreeSet<String>,
    removed: BTreeSet<String>,
}

impl Claims {
    fn of(changes: &[Change]) -> Self {
        let keys = |is_set: bool| {
            let those = changes.iter().filter(move |change| change.value.is_some() == is_set);
            those.map(|change| change.key.clone())
        };
        let (mut given, mut twice) = (BTreeMap::new(), None);
        for (uuid, namespace) in
            changes.iter().filter_map(|change| claim(&change.key, change.value.as_ref()?))
        {
            let other = given.insert(uuid, namespace.clone()).filter(|other| *other != namespace);
            twice = twice.or(other.map(|other| (uuid, other)));
        }
        Self { given, twice, changed: keys(true).collect(), removed: keys(false).collect() }
    }

    /// That none of them is another namespace's.
    fn are_free(&self, items: &Items) -> Result<(), String> {
        if self.given.is_empty() {
            return Ok(());
        }
        if let Some((uuid, namespace)) = &self.twice {
            return Err(taken(*uuid, namespace));
        }
        for (key, item) in items {
            let Some((uuid, namespace)) = claim(key, &item.value) else { continue };
            let Some(own) = self.given.get(&uuid).filter(|own| **own != namespace) else { continue };
            // What goes makes room, and what is known of a namespace that is gone holds nothing up.
            let is_changed = self.changed.contains(key) || self.removed.contains(key);
            if is_changed || self.removed.contains(&namespace) || !items.contains_key(&namespace) {
                continue;
            }
            // One that has it already keeps it, and may be changed.
            let of_own = [Some(own.clone()), size_of(own)].into_iter().flatten();
            let mut before = of_own.filter_map(|key| claim(&key, &items.get(&key)?.value));
            if !before.any(|(had, _)| had == uuid) {
                return Err(taken(uuid, &namespace));
            }
        }
        Ok(())
    }
}

fn taken(uuid: Uuid, namespace: &str) -> String {
    format!(
        "UUID {uuid} is that of {} already: hosts would take the two for one disk. Leave `uuid` out, or give another",
        name(namespace)
    )
}

/// That UUIDs which these changes give to namespaces are those of no others; else what is said to people.
pub(super) fn uuids_are_free(changes: &[Change], items: &Items) -> Result<(), String> {
    Claims::of(changes).are_free(items)
}

/// Which namespaces have been served under which UUIDs. Where one is that of two, the one that was so first has it.
pub(super) fn claims_of_served(items: &Items) -> Vec<(Key, Uuid)> {
    let mut served: BTreeMap<Uuid, (u64, Key)> = BTreeMap::new();
    for (key, item) in items.iter().filter(|(key, _)| is_known(key)) {
        let Some((uuid, namespace)) = claim(key, &item.value) else { continue };
        let Some(key) = key_of_item(&namespace).filter(|_| items.contains_key(&namespace)) else { continue };
        let first = served.entry(uuid).or_insert((item.version, key));
        if item.version < first.0 {
            *first = (item.version, key);
        }
    }
    served.into_iter().map(|(uuid, (_, key))| (key, uuid)).collect()
}

/// Has the group make these changes, if images and UUIDs that they add are those of no other namespace by then.
pub(super) fn request(changes: Vec<Change>) -> Request {
    let is_set = |change: &&Change| change.value.is_some();
    let images = changes
        .iter()
        .filter(is_set)
        .filter_map(|change| Some((image(&change.key, change.value.as_ref()?)?, change.key.clone())));
    let images: BTreeMap<String, String> = images.collect();
    // Whatever their names are by now.
    let identities: BTreeSet<String> =
        changes.iter().filter_map(|change| identity(&change.key, change.value.as_ref()?)).collect();
    let claims = Claims::of(&changes);
    if images.is_empty() && identities.is_empty() && claims.given.is_empty() {
        return Request::Edit(changes);
    }
    let changed: Vec<String> = changes.iter().map(|change| change.key.clone()).collect();
    let are_free = move |items: &Items| {
        for (key, item) in items.iter().filter(|(key, _)| !changed.contains(key)) {
            // What is known of a namespace that is gone holds nothing up.
            let is_there = || namespace_of(key).is_some_and(|namespace| items.contains_key(&namespace));
            if identity(key, &item.value).is_some_and(|identity| identities.contains(&identity)) && is_there()
            {
                return Err(format!(
                    "its image is there already, as {}, which had another name before",
                    name(key)
                ));
            }
            let Some(image) = image(key, &item.value) else { continue };
            // One that has it already keeps it, and may be changed.
            let adds = |own: &String| {
                let before = items.get(own).and_then(|item| self::image(own, &item.value));
                before.as_ref() != Some(&image)
            };
            if images.get(&image).is_some_and(adds) {
                return Err(format!("image {image} is there already, as {}", name(key)));
            }
        }
        claims.are_free(items)
    };
    Request::EditIf(changes, Condition::new(are_free))
}

/// A namespace, for people.
fn name(key: &str) -> String {
    let name = key.strip_prefix(NAMESPACE).or_else(|| key.strip_prefix(SIZE));
    let parts = name.and_then(|name| name.rsplit_once('/'));
    parts.map_or_else(|| key.to_owned(), |(nqn, nsid)| format!("namespace {nsid} of {nqn}"))
}

/// The order in which items are made a configuration of, of which the first that has an image gets it: one whose image the group
/// knows, as it has been opened, then the one that was changed last longest ago. The same at every gateway.
pub(super) fn rank(items: &Items, key: &str) -> (bool, u64) {
    let is_known = size_of(key).is_some_and(|size| items.contains_key(&size));
    (!is_known, items.get(key).map_or(u64::MAX, |item| item.version))
}

impl Membership {
    /// What is known of images of namespaces that are left out, as those that change here have them: a change makes these
    /// the younger ones, and they are to go on.
    pub(super) fn removals_of_duplicates(&self, asked: &[Change]) -> Vec<Change> {
        let images: Vec<String> =
            asked.iter().filter_map(|change| image(&change.key, change.value.as_ref()?)).collect();
        let is_it = |key: &&String| {
            let item = self.shared.items.get(*key);
            item.and_then(|item| image(key, &item.value)).is_some_and(|image| images.contains(&image))
        };
        let left_out = self.left_out.iter().map(|(key, _)| key).filter(is_it);
        let known = left_out.filter_map(|key| size_of(key)).filter(|key| self.shared.items.contains_key(key));
        let known = known.filter(|key| asked.iter().all(|change| change.key != *key));
        known.map(|key| Change { key, value: None, expect: None }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::converging::configuration;
    use super::*;
    use crate::cluster::Shared;
    use nvmf_config::Config;
    use serde_json::json;

    const NQN: &str = "nqn.2026-11.a:one";

    fn key(nsid: u32) -> String {
        format!("namespace/{NQN}/{nsid}")
    }

    fn namespace(nsid: u32, image: &str) -> Value {
        json!({ "nsid": nsid, "rbd": { "pool": "rbd", "image": image } })
    }

    fn items(namespaces: &[(u32, &str, u64)]) -> Items {
        let all = namespaces.iter();
        all.map(|&(nsid, image, version)| (key(nsid), Item { version, value: namespace(nsid, image) }))
            .collect()
    }

    fn set(nsid: u32, image: Option<&str>) -> Change {
        Change { key: key(nsid), value: image.map(|image| namespace(nsid, image)), expect: None }
    }

    /// What comes of changes of namespaces 30 (image `a`) and 31 (`b`).
    fn asked(changes: &[Change]) -> Result<(), String> {
        match request(changes.to_vec()) {
            Request::EditIf(_, condition) => condition.look_at(&items(&[(30, "a", 5), (31, "b", 6)])),
            _ => Ok(()),
        }
    }

    #[test]
    fn image_that_somebody_else_has_added_meanwhile_is_refused_with_the_namespace_that_has_it() {
        let text = asked(&[set(10, Some("a"))]).unwrap_err();
        assert_eq!(text, format!("image rbd/a is there already, as namespace 30 of {NQN}"));
        assert_eq!(asked(&[set(31, Some("a"))]), Err(text.clone()), "in the place of another");
        assert_eq!(asked(&[set(40, Some("c")), set(10, Some("a"))]), Err(text));
        // What goes makes room, in the same change; and what is there may be changed.
        assert_eq!(asked(&[set(30, None), set(10, Some("a"))]), Ok(()));
        assert_eq!(asked(&[set(30, Some("b")), set(31, Some("a"))]), Ok(()));
        assert_eq!(asked(&[set(30, Some("a"))]), Ok(()));
        let mut snapshot = set(10, Some("a"));
        snapshot.value.as_mut().unwrap()["rbd"]["snapshot"] = json!("monday");
        assert_eq!(asked(&[snapshot]), Ok(()));
    }

    #[test]
    fn image_that_was_renamed_is_there_already_under_its_new_name() {
        let known = |nsid: u32, image: &str| {
            (format!("size/{NQN}/{nsid}"), Item { version: 7, value: json!({ "image": image }) })
        };
        let add = |image: &str, others: &[(&str, Option<Value>)]| {
            let (key, item) = known(10, image);
            let of_new = Change { key, value: Some(item.value), expect: None };
            let others = others.iter().map(|(key, value)| Change {
                key: (*key).to_owned(),
                value: value.clone(),
                expect: None,
            });
            let changes = [set(10, Some("new-name")), of_new].into_iter().chain(others);
            let Request::EditIf(_, condition) = request(changes.collect()) else { panic!("no condition") };
            condition.look_at(&items(&[(30, "a", 5)]).into_iter().chain([known(30, "u1")]).collect())
        };
        let text = add("u1", &[]).unwrap_err();
        assert!(text.contains(&format!("namespace 30 of {NQN}")), "{text}");
        assert_eq!(add("u2", &[]), Ok(()));
        let (namespace, size) = (key(30), format!("size/{NQN}/30"));
        assert_eq!(add("u1", &[(&namespace, None), (&size, None)]), Ok(()), "what goes makes room");
    }

    /// Namespace 30 has been served under `USUAL`, that of its image; namespace 31 is to have `GIVEN`.
    const USUAL: &str = "11111111-1111-1111-1111-111111111111";
    const GIVEN: &str = "22222222-2222-2222-2222-222222222222";

    fn with_uuids() -> Items {
        let mut items = items(&[(30, "a", 5), (31, "b", 6)]);
        items.get_mut(&key(31)).unwrap().value["uuid"] = json!(GIVEN);
        items.insert(format!("size/{NQN}/30"), Item { version: 7, value: json!({ "uuid": USUAL }) });
        items
    }

    #[test]
    fn uuid_of_another_namespace_is_refused() {
        let asked = |changes: &[Change]| match request(changes.to_vec()) {
            Request::EditIf(_, condition) => condition.look_at(&with_uuids()),
            _ => Ok(()),
        };
        let set = |nsid: u32, image: &str, uuid: &str| {
            let mut change = set(nsid, Some(image));
            change.value.as_mut().unwrap()["uuid"] = json!(uuid);
            change
        };
        for (uuid, nsid) in [(USUAL, 30), (GIVEN, 31)] {
            let text = asked(&[set(10, "c", uuid)]).unwrap_err();
            assert!(text.contains(&format!("UUID {uuid} is that of namespace {nsid} of {NQN}")), "{text}");
            let size = json!({ "uuid": uuid.to_uppercase() });
            let of_image = Change { key: format!("size/{NQN}/10"), value: Some(size), expect: None };
            assert_eq!(asked(&[super::tests::set(10, Some("c")), of_image]), Err(text), "that of its image");
        }
        let size = json!({ "uuid": "44444444-4444-4444-4444-444444444444" });
        let of_image = Change { key: format!("size/{NQN}/10"), value: Some(size), expect: None };
        let both = [
            super::tests::set(10, Some("c")),
            set(11, "d", "44444444-4444-4444-4444-444444444444"),
            of_image,
        ];
        assert!(
            asked(&both).unwrap_err().contains("4 is that of namespace 11"),
            "of two that are added at once"
        );
        assert_eq!(asked(&[set(10, "c", "33333333-3333-3333-3333-333333333333")]), Ok(()));
        assert_eq!(asked(&[set(30, "a", USUAL)]), Ok(()), "its own, said now");
        assert_eq!(asked(&[set(31, "b", GIVEN)]), Ok(()), "as it is");
        assert_eq!(
            asked(&[super::tests::set(30, None), set(10, "c", USUAL)]),
            Ok(()),
            "what goes makes room"
        );
    }

    #[test]
    fn uuid_that_a_namespace_has_been_served_under_stays_its() {
        let mut items = with_uuids();
        let claim = |nsid: u32, uuid: &str| ((NQN.parse().unwrap(), nsid), uuid.parse().unwrap());
        assert_eq!(claims_of_served(&items), [claim(30, USUAL)]);
        // By an older version: the first one has it. What is known of a namespace that is gone is no claim.
        items.insert(format!("size/{NQN}/31"), Item { version: 8, value: json!({ "uuid": USUAL }) });
        items.insert(format!("size/{NQN}/32"), Item { version: 8, value: json!({ "uuid": GIVEN }) });
        assert_eq!(claims_of_served(&items), [claim(30, USUAL)]);
    }

    #[test]
    fn pool_that_is_not_named_is_the_usual_one() {
        let value = json!({ "nsid": 10, "rbd": { "image": "a" } });
        assert!(asked(&[Change { key: key(10), value: Some(value), expect: None }]).is_err());
    }

    /// Namespace 30 was first; by its number, 10 would be.
    #[test]
    fn of_two_namespaces_of_one_image_the_older_one_goes_on() {
        let text = "[[listener]]\naddress = \"192.0.2.1\"\n[cluster]\npool = \"nvmf\"\nname = \"gw1\"\n";
        let own = Config::parse(text).unwrap();
        let serves = |namespaces: &[(u32, &str, u64)], known: &[u32]| {
            let mut items = items(namespaces);
            let subsystem = json!({ "nqn": NQN, "allow_any_host": true });
            items.insert(format!("subsystem/{NQN}"), Item { version: 9, value: subsystem });
            for nsid in known {
                items.insert(format!("size/{NQN}/{nsid}"), Item { version: 9, value: json!({}) });
            }
            let shared = Shared { version: 9, ana_groups: 4, items, unreadable: Vec::new() };
            let (config, left_out) = configuration(&own, &shared);
            let served: Vec<u32> = config.subsystems[0].namespaces.iter().map(|it| it.nsid).collect();
            (served, left_out.into_iter().map(|(key, _)| key).collect::<Vec<_>>())
        };
        assert_eq!(serves(&[(30, "a", 5), (10, "a", 7), (20, "b", 6)], &[]), (vec![20, 30], vec![key(10)]));
        // It has been changed since: the other one is not known any more.
        assert_eq!(serves(&[(30, "a", 8), (10, "a", 7)], &[30]), (vec![30], vec![key(10)]));
        assert_eq!(serves(&[(30, "a", 5), (10, "a", 7)], &[10, 30]), (vec![30], vec![key(10)]));
    }
}
