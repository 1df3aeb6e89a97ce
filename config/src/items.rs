//! What the gateways of a group share, item by item: one for each subsystem, namespace and host, and one for discovery.

use crate::draft::{Draft, DraftError};
use crate::model::{Config, Discovery};
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Items by their keys: `subsystem/NQN`, `namespace/NQN/NSID`, `host/NQN`, `discovery`. Each has the keys of its section.
pub type Items = BTreeMap<String, Table>;

impl Config {
    /// This configuration without what the gateways of a group share.
    #[must_use]
    pub fn own_part(&self) -> Self {
        let discovery = Discovery { mdns: self.discovery.mdns, ..Discovery::default() };
        Self { subsystems: Vec::new(), hosts: Vec::new(), discovery, ..self.clone() }
    }

    /// What of it the gateways of a group share.
    ///
    /// # Errors
    /// [`DraftError::Path`].
    pub fn items(&self) -> Result<Items, DraftError> {
        Ok(Draft::of(self)?.items())
    }

    /// What of it the gateways of a group share, as the text of a file.
    ///
    /// # Errors
    /// [`DraftError::Path`].
    pub fn shared_text(&self) -> Result<String, DraftError> {
        let mut draft = Draft::of(self)?;
        draft.table_mut().retain(|key, _| matches!(key, "subsystem" | "host" | "discovery"));
        if let Some(Value::Table(discovery)) = draft.table_mut().get_mut("discovery") {
            discovery.remove("mdns");
        }
        Ok(draft.text())
    }

    /// This configuration with these items in the place of those that it has. Items that are wrong, or at odds with others,
    /// are left out; each is named with its reason.
    ///
    /// # Errors
    /// [`DraftError::Path`].
    pub fn with_items(&self, items: &Items) -> Result<(Self, Vec<(String, String)>), DraftError> {
        self.with_items_by(items, |_| ())
    }

    /// The same; of namespaces that are at odds, the one stays whose key has the lowest rank.
    ///
    /// # Errors
    /// [`DraftError::Path`].
    pub fn with_items_by<R: Ord>(
        &self,
        items: &Items,
        rank: impl Fn(&str) -> R,
    ) -> Result<(Self, Vec<(String, String)>), DraftError> {
        let own = self.own_part();
        let mut sorted: Vec<(&str, &Table)> = items.iter().map(|(key, item)| (key.as_str(), item)).collect();
        sorted.sort_by_cached_key(|(key, _)| key.starts_with("namespace/").then(|| rank(key)));
        let mut adding = Adding { draft: Draft::of(&own)?, config: own, left_out: Vec::new() };
        adding.add(&sorted);
        for subsystem in &mut adding.config.subsystems {
            subsystem.namespaces.sort_by_key(|namespace| namespace.nsid);
        }
        Ok((adding.config, adding.left_out))
    }
}

/// Adds as many items at once as are right together.
struct Adding {
    draft: Draft,
    config: Config,
    left_out: Vec<(String, String)>,
}

impl Adding {
    fn add(&mut self, items: &[(&str, &Table)]) {
        let mut draft = self.draft.clone();
        let put = items.iter().try_for_each(|(key, item)| draft.put_item(key, item));
        match (put.and_then(|()| draft.check().map_err(|error| error.message)), items) {
            (Ok(config), _) => (self.draft, self.config) = (draft, config),
            (Err(_), []) => {}
            (Err(reason), [(key, _)]) => self.left_out.push(((*key).to_owned(), reason)),
            (Err(_), _) => {
                let (first, second) = items.split_at(items.len() / 2);
                self.add(first);
                self.add(second);
            }
        }
    }
}

impl Draft {
    /// What of it the gateways of a group share.
    #[must_use]
    pub fn items(&self) -> Items {
        let mut items = Items::new();
        let table = self.table();
        let list = |table: &Table, key: &str| match table.get(key) {
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_table).cloned().collect(),
            _ => Vec::new(),
        };
        let nqn = |table: &Table| table.get("nqn").and_then(Value::as_str).unwrap_or_default().to_owned();
        for mut subsystem in list(table, "subsystem") {
            let name = nqn(&subsystem);
            for namespace in list(&subsystem, "namespace") {
                let nsid = namespace.get("nsid").map(ToString::to_string).unwrap_or_default();
                items.insert(format!("namespace/{name}/{nsid}"), namespace);
            }
            subsystem.remove("namespace");
            items.insert(format!("subsystem/{name}"), subsystem);
        }
        for host in list(table, "host") {
            items.insert(format!("host/{}", nqn(&host)), host);
        }
        if let Some(Value::Table(discovery)) = table.get("discovery") {
            let mut shared = discovery.clone();
            shared.remove("mdns");
            if !shared.is_empty() {
                items.insert("discovery".into(), shared);
            }
        }
        items
    }

    /// Adds an item. `Err` says why it has no place.
    fn put_item(&mut self, key: &str, item: &Table) -> Result<(), String> {
        let named = |name: &str| match item.get("nqn").and_then(Value::as_str) {
            Some(own) if own == name => Ok(()),
            _ => Err(format!("it is not of {name}")),
        };
        let text = |error: DraftError| error.to_string();
        if key == "discovery" {
            let discovery = self.table_mut().entry("discovery").or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(discovery) = discovery {
                discovery.extend(item.clone());
            }
            return Ok(());
        }
        match key.split_once('/') {
            Some(("subsystem", _)) if item.contains_key("namespace") => {
                Err("its namespaces are items of their own".to_owned())
            }
            Some(("subsystem", nqn)) => {
                named(nqn)?;
                self.add_subsystem(item.clone()).map_err(text)
            }
            Some(("host", nqn)) => {
                named(nqn)?;
                self.add_host(item.clone()).map_err(text)
            }
            Some(("namespace", name)) => {
                let (nqn, nsid) = name.rsplit_once('/').ok_or("its name has no NSID")?;
                if item.get("nsid").map(ToString::to_string).as_deref() != Some(nsid) {
                    return Err(format!("it is not of namespace {nsid}"));
                }
                self.add_namespace(nqn, item.clone()).map_err(text)
            }
            _ => Err("this version knows no such item: upgrade this gateway".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "[[listener]]\naddress = \"192.0.2.1\"\n[cluster]\npool = \"nvmf\"\nname = \"gw1\"\n";
    const SHARED: &str = "[[subsystem]]\nnqn = \"nqn.2026-11.a:one\"\nallow_any_host = true\n\
        [[subsystem.namespace]]\nnsid = 1\nrbd = { image = \"a\" }\n\
        [[subsystem.namespace]]\nnsid = 2\nrbd = { pool = \"ssd\", image = \"b\" }\nana_group = 3\n\
        [discovery]\nreferral = [{ transport = \"tcp\", address = \"192.0.2.9:8009\" }]\n";

    fn shared() -> Items {
        Config::parse(SHARED).unwrap().items().unwrap()
    }

    #[test]
    fn items_make_the_configuration_that_they_came_from() {
        let (own, items) = (Config::parse(OWN).unwrap(), shared());
        let keys: Vec<&str> = items.keys().map(String::as_str).collect();
        let namespaces = ["namespace/nqn.2026-11.a:one/1", "namespace/nqn.2026-11.a:one/2"];
        assert_eq!(keys, ["discovery", namespaces[0], namespaces[1], "subsystem/nqn.2026-11.a:one"]);
        let (config, left_out) = own.with_items(&items).unwrap();
        assert_eq!(left_out, []);
        assert_eq!(config.subsystems, Config::parse(SHARED).unwrap().subsystems);
        assert_eq!((config.own_part(), config.items().unwrap()), (own, items));
    }

    #[test]
    fn broken_items_are_left_out_and_the_others_served() {
        let mut items = shared();
        items.get_mut("namespace/nqn.2026-11.a:one/1").unwrap().insert("colour".into(), "red".into());
        let twin = items["namespace/nqn.2026-11.a:one/2"].clone();
        items.insert("namespace/nqn.2026-11.a:two/2".into(), twin);
        let file: Table = toml::from_str("nsid = 7\nmemory = \"1MiB\"").unwrap();
        items.insert("namespace/nqn.2026-11.a:one/7".into(), file);
        items.insert("later/thing".into(), Table::new());
        let (config, mut left_out) = Config::parse(OWN).unwrap().with_items(&items).unwrap();
        assert_eq!(config.subsystems[0].namespaces.iter().map(|it| it.nsid).collect::<Vec<_>>(), [2]);
        left_out.sort();
        let reasons = ["upgrade", "colour", "rbd", "nqn.2026-11.a:two"];
        assert_eq!(left_out.len(), reasons.len(), "{left_out:?}");
        assert!(left_out.iter().zip(reasons).all(|((_, text), of)| text.contains(of)), "{left_out:?}");
    }

    #[test]
    fn file_of_a_gateway_says_where_the_rest_belongs() {
        for (text, command) in [
            (format!("{OWN}{SHARED}"), "ctl apply FILE"),
            (format!("{OWN}[[host]]\nnqn = \"nqn.2026-11.a:h\"\n"), "ctl host set-key"),
            (OWN.replacen("[[listener]]", "[target]\ncntlid_min = 7\n[[listener]]", 1), "leave it out"),
            (OWN.replacen("2.1\"", "2.1\"\nana_group = [{ id = 1, state = \"change\" }]", 1), "cluster move"),
        ] {
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(error.contains(command), "{error}");
        }
    }
}
