//! What operators are answered where the group has what this gateway cannot read, and where the cluster is not there.

use super::super::changing::tests::{answered, ask};
use super::super::changing::{Asker, Changing};
use super::super::{Daemon, apply::Origin};
use crate::cluster::{Shared, ToDriver};
use crate::control::request::change::{Item as ChangeItem, Outcome};
use crate::control::{Control, Event, Waker};
use crate::exports::Through;
use crate::sockets::Sockets;
use core::time::Duration;
use nvmf_cluster::configuration::{Change, Item};
use nvmf_cluster::{GroupId, Handle, OpId};
use nvmf_config::Config;
use nvmf_subsystem::Nqn;
use serde_json::json;

const OWN: &str = "[target]\nworkers = 1\nbuffer_memory = \"8MiB\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
    [cluster]\npool = \"nvmf\"\nname = \"gw1\"\nconf = \"/nonexistent/ceph.conf\"\n";
pub(super) const NQN: &str = "nqn.2026-11.com.example:disks";

/// A gateway whose cluster is not there, and that has read the configuration all the same: a subsystem, a namespace of
/// a newer version and one that is damaged.
pub(super) fn gateway() -> Daemon {
    let config = Config::parse(OWN).unwrap();
    let mut daemon = Daemon::start(config, None, Waker::default(), Sockets::default()).unwrap();
    let item = |value| Item { version: 1, value };
    let items = [
        (format!("subsystem/{NQN}"), item(json!({ "nqn": NQN, "allowed_hosts": [] }))),
        (format!("namespace/{NQN}/1"), item(json!({ "nsid": 1, "rbd": { "image": "a" }, "newer": true }))),
    ];
    let unreadable = vec![(format!("namespace/{NQN}/2"), "it is damaged".to_owned())];
    let shared = Shared { version: 1, ana_groups: 16, items: items.into(), unreadable };
    daemon.cluster.as_mut().unwrap().next = Some((OpId(0), Box::new(shared)));
    daemon.begin_to_converge();
    daemon.end_changes();
    daemon
}

/// What a request is refused with.
pub(super) fn refused(daemon: &mut Daemon, request: &str, fields: &serde_json::Value) -> String {
    let mut line = json!({ "version": 1, "request": request });
    let fields = fields.as_object().unwrap().clone();
    line.as_object_mut().unwrap().extend(fields);
    let answer = ask(daemon, &line.to_string());
    let answer = answered(daemon, answer);
    assert!(!answer.ok, "{line} was done");
    answer.error.map(|fault| fault.message).unwrap_or_default()
}

#[test]
fn namespace_that_cannot_be_read_is_neither_free_nor_overwritten() {
    let mut daemon = gateway();
    assert_eq!(daemon.nsids_left_out(NQN), [1, 2].into());
    for nsid in [1, 2] {
        let add = json!({ "subsystem": NQN, "nsid": nsid, "rbd": "nvmf/b" });
        let text = refused(&mut daemon, "namespace add", &add);
        assert!(text.contains(&format!("cluster remove-item namespace/{NQN}/{nsid}")), "{text}");
    }
    // Whoever asks for its removal gets it, as soon as the group can be asked.
    for (request, fields) in [
        ("namespace remove", json!({ "subsystem": NQN, "nsid": 1 })),
        ("cluster remove-item", json!({ "item": format!("namespace/{NQN}/2") })),
    ] {
        let text = refused(&mut daemon, request, &fields);
        assert!(text.contains("not a member"), "{text}");
    }
    let text = refused(&mut daemon, "cluster remove-item", &json!({ "item": format!("subsystem/{NQN}") }));
    assert!(text.contains("is not left out here"), "{text}");
    daemon.stop(Duration::ZERO);
}

#[test]
fn cluster_status_begins_with_the_group_that_it_is_of() {
    let daemon = gateway();
    let answer = daemon.cluster_answer().unwrap();
    assert_eq!(answer["namespace"], json!(null));
    let mut status: crate::control::request::cluster::ClusterStatus = serde_json::from_value(answer).unwrap();
    assert!(status.to_string().starts_with("group default in the pool nvmf\ngateway "), "{status}");
    status.namespace = Some("lab".to_owned());
    assert!(status.to_string().starts_with("group default in the pool nvmf/lab\n"), "{status}");
    daemon.stop(Duration::ZERO);
}

#[test]
fn namespace_that_cannot_be_had_is_refused_and_the_group_is_not_asked() {
    let mut daemon = gateway();
    let add = json!({ "subsystem": NQN, "rbd": "nvmf/no-such" });
    let text = refused(&mut daemon, "namespace add", &add);
    assert!(text.starts_with("nothing was changed: rbd:nvmf/no-such: "), "{text}");
    let add = json!({ "subsystem": NQN, "rbd": "nvmf/a", "ana_group": 55 });
    let text = refused(&mut daemon, "namespace add", &add);
    assert!(text.contains("1 to 16"), "{text}");
    daemon.stop(Duration::ZERO);
}

/// A gateway with namespace 1, whose image is `rbd/a`.
fn with_namespace() -> Daemon {
    let mut daemon = gateway();
    let item = |value| Item { version: 2, value };
    let items = [
        (format!("subsystem/{NQN}"), item(json!({ "nqn": NQN, "allowed_hosts": [] }))),
        (format!("namespace/{NQN}/1"), item(json!({ "nsid": 1, "rbd": { "image": "a" } }))),
    ];
    let shared = Shared { version: 2, ana_groups: 16, items: items.into(), unreadable: Vec::new() };
    let cluster = daemon.cluster.as_mut().unwrap();
    (cluster.next, cluster.converging) = (Some((OpId(2), Box::new(shared))), None);
    daemon.begin_to_converge();
    daemon.end_changes();
    daemon
}

/// After a start no image has been looked at: that another gateway could do better is not known before.
#[test]
fn image_that_nobody_has_looked_at_yet_is_waited_for_before_its_ana_group_is_given_up() {
    let mut daemon = with_namespace();
    let unseen = |daemon: &Daemon| daemon.unseen(GroupId(1), daemon.common.clock.now());
    let namespace = daemon.config.subsystems[0].namespaces[0].clone();
    let key = (NQN.parse().unwrap(), 1);
    assert_eq!(daemon.unseen(GroupId(2), Duration::ZERO), (false, false), "it has none");
    // That this one cannot be opened is known.
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while daemon.never_seen(&key).is_none() {
        assert!(std::time::Instant::now() < until, "it does not fail");
        daemon.advance_changes();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(unseen(&daemon), (false, false));
    let other = nvmf_config::Namespace { nsid: 2, ..namespace };
    daemon.config.subsystems[0].namespaces.push(other.clone());
    assert_eq!(unseen(&daemon), (true, false), "it is in line");
    let _hangs = daemon.namespaces.hang((key.0, 2), other, Duration::ZERO);
    assert_eq!(daemon.unseen(GroupId(1), Duration::from_secs(1)), (true, false));
    assert_eq!(daemon.unseen(GroupId(1), Duration::from_secs(5)), (false, true));
    assert!(daemon.is_wanted(&format!("namespace/{NQN}/1")) && !daemon.is_wanted("namespace/x/9"));
    daemon.stop(Duration::ZERO);
}

/// What `plan` and `apply` say of each change of a file with these namespaces, none of which can be had.
#[test]
fn image_of_a_file_that_cannot_be_had_is_refused_and_the_old_one_stays() {
    let mut daemon = with_namespace();
    let text = format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\nallowed_hosts = []\n\
         [[subsystem.namespace]]\nnsid = 1\nrbd = {{ image = \"typo\" }}\n\
         [[subsystem.namespace]]\nnsid = 2\nrbd = {{ image = \"other\" }}\n"
    );
    for request in ["plan", "apply"] {
        let line = json!({ "version": 1, "request": request, "text": text }).to_string();
        let answer = ask(&mut daemon, &line);
        let answer = answered(&mut daemon, answer);
        assert!(!answer.ok, "{request}");
        let result = answer.result;
        let changes = result["changes"].as_array().unwrap();
        assert_eq!(changes.len(), 2, "{result}");
        assert!(changes.iter().all(|it| it["effect"] == "refused"), "{result}");
        let outcome = if request == "plan" { json!(null) } else { json!("refused") };
        assert!(changes.iter().all(|it| it["outcome"] == outcome), "{result}");
        let note = changes[0]["note"].as_str().unwrap();
        assert!(note.starts_with("namespace 1 stays rbd:rbd/a: the new disk cannot be served: "), "{note}");
        let note = changes[1]["note"].as_str().unwrap();
        assert!(note.starts_with("its disk cannot be served: "), "{note}");
    }
    daemon.stop(Duration::ZERO);
}

/// Without the change that is refused, another one takes an image twice.
#[test]
fn image_that_stays_because_of_a_refusal_is_not_given_to_another_namespace() {
    let daemon = with_namespace();
    let change = |nsid: u32, image: &str| Change {
        key: format!("namespace/{NQN}/{nsid}"),
        value: Some(json!({ "nsid": nsid, "rbd": { "image": image } })),
        expect: None,
    };
    assert!(daemon.are_right(&[change(1, "typo"), change(2, "a")]).is_ok());
    let text = daemon.are_right(&[change(2, "a")]).unwrap_err().message;
    assert!(
        text.starts_with("nothing was changed") && text.contains(&format!("namespace/{NQN}/2")),
        "{text}"
    );
    daemon.stop(Duration::ZERO);
}

#[test]
fn listener_that_is_added_to_a_gateway_is_said_to_be_gone_at_the_next_start() {
    let mut daemon = gateway();
    daemon.path = Some("/etc/nvmf/gw1.toml".into());
    for (discovery_only, address) in [(false, "127.0.0.2:0"), (true, "127.0.0.3:0")] {
        let add = json!({ "version": 1, "request": "listener add", "address": address, "transport": "tcp",
            "discovery_only": discovery_only });
        let answer = ask(&mut daemon, &add.to_string());
        let answer = answered(&mut daemon, answer);
        let note = answer.result["changes"][0]["note"].to_string();
        assert!(
            note.contains("gone at the next start: write its [[listener]] into /etc/nvmf/gw1.toml"),
            "{answer:?}"
        );
    }
    daemon.stop(Duration::ZERO);
}

#[test]
fn plan_says_as_apply_does_that_a_namespace_stays_in_its_ana_group() {
    let mut daemon = gateway();
    let cluster = daemon.cluster.as_mut().unwrap();
    let mut shared = cluster.shared.clone();
    let namespace = json!({ "nsid": 3, "rbd": { "image": "c" }, "ana_group": 2 });
    shared.items.insert(format!("namespace/{NQN}/3"), Item { version: 2, value: namespace });
    (cluster.next, cluster.converging) = (Some((OpId(1), Box::new(shared))), None);
    daemon.begin_to_converge();
    daemon.end_changes();
    let file = |group: u32| {
        json!({ "text": format!(
            "[[subsystem]]\nnqn = \"{NQN}\"\nallowed_hosts = []\n[[subsystem.namespace]]\nnsid = 3\nrbd = {{ image = \"c\" }}\n\
             ana_group = {group}\n"
        ) })
    };
    let applied = refused(&mut daemon, "apply", &file(3));
    assert!(applied.contains("a namespace stays in its ANA group"), "{applied}");
    let line = |group| {
        let mut line = file(group);
        line["version"] = 1.into();
        line["request"] = "plan".into();
        line.to_string()
    };
    let answer = ask(&mut daemon, &line(3));
    let answer = answered(&mut daemon, answer);
    let said = answer.error.map(|fault| fault.message).unwrap_or_default();
    assert!(!answer.ok && said.contains(&applied), "{said}");
    let change = &answer.result["changes"][0];
    assert_eq!(change["effect"], "refused", "{change}");
    assert!(change["note"].as_str().is_some_and(|note| note.contains("stays in its ANA group")), "{change}");
    let answer = ask(&mut daemon, &line(2));
    assert!(answered(&mut daemon, answer).ok);
    daemon.stop(Duration::ZERO);
}

#[test]
fn status_says_what_is_left_out_and_why_the_configuration_is_not_used() {
    let mut daemon = gateway();
    daemon.on_refused(Some("the configuration is damaged".to_owned()));
    let text = daemon.status_answer().to_string();
    for part in [
        "rados --pool nvmf getomapval nvmf.default.configuration version -",
        "`nvmf-target ctl apply FILE`",
        &format!("namespace/{NQN}/2 is left out: it is damaged"),
        "this gateway is joining",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    daemon.stop(Duration::ZERO);
}

#[test]
fn namespace_is_not_done_because_another_ones_number_begins_its_own() {
    let mut daemon = gateway();
    let asked = with_memory(&daemon);
    let changing = daemon.apply(&asked, Origin::Command, None);
    daemon.await_changes(changing, Asker::Reload);
    daemon.end_changes();
    let nqn: Nqn = NQN.parse().unwrap();
    let items = [2, 20].map(|nsid| ChangeItem::done("add-namespace", format!("{NQN} namespace {nsid}")));
    let mut changing = Changing::new(items.into(), Origin::Command, daemon.common.clock.now());
    daemon.note_outcomes(&mut changing, &[Some((nqn, 2)), Some((nqn, 20))], true);
    let outcomes: Vec<_> = changing.items.iter().map(|item| item.outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::Done), Some(Outcome::Waiting)]);
    daemon.stop(Duration::ZERO);
}

/// A gateway that was away sees a namespace that was removed, and added to another ANA group, as one change.
#[test]
fn image_whose_ana_group_is_another_one_is_not_served_through_the_old_connection() {
    let mut daemon = gateway();
    let mut asked = with_memory(&daemon);
    let apply = |daemon: &mut Daemon, asked: &Config| {
        let changing = daemon.apply(asked, Origin::Group, None);
        daemon.await_changes(changing, Asker::Reload);
        daemon.end_changes();
        daemon.exports().iter().map(|export| export.device).collect::<Vec<_>>()
    };
    let before = apply(&mut daemon, &asked);
    let export = &mut daemon.namespaces.open[0];
    let through = Through { handle: Handle(1), seen: export.disk.clone() };
    export.shared = Some(crate::exports::Shared { through: Some(through) });
    asked.subsystems[0].namespaces[0].read_only = true;
    assert_eq!(apply(&mut daemon, &asked), before);
    asked.subsystems[0].namespaces[0].ana_group = 5;
    asked.subsystems[0].namespaces[0].block_size = Some(512);
    assert_ne!(apply(&mut daemon, &asked), before);
    daemon.stop(Duration::ZERO);
}

/// What a group says in which the subsystem has a namespace 2, a disk in memory.
fn with_memory(daemon: &Daemon) -> Config {
    let text = format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n[[subsystem.namespace]]\nnsid = 2\nmemory = \"1MiB\"\n"
    );
    Config { subsystems: Config::parse(&text).unwrap().subsystems, ..daemon.config.clone() }
}

/// Serves that.
fn serve_memory(daemon: &mut Daemon) -> Config {
    let asked = with_memory(daemon);
    let changing = daemon.apply(&asked, Origin::Group, None);
    daemon.await_changes(changing, Asker::Reload);
    daemon.end_changes();
    asked
}

/// A gateway that is started when the image's name has become another image's.
#[test]
fn image_that_is_another_disk_than_the_group_knows_is_not_served_and_stays_unknown() {
    let mut daemon = gateway();
    let nqn: Nqn = NQN.parse().unwrap();
    let known =
        json!({ "bytes": 1 << 20, "block_size": 4096, "uuid": "b0e2a8d6-0049-50bc-9a3d-5e8aeaac9d6f" });
    let known: super::known::Known = serde_json::from_value(known).unwrap();
    daemon.cluster.as_mut().unwrap().known.insert((nqn, 2), known);
    let asked = serve_memory(&mut daemon);
    assert!(daemon.exports().is_empty());
    let namespace = &asked.subsystems[0].namespaces[0];
    let why = daemon.why_not_open(&(nqn, 2), namespace).unwrap();
    assert!(why.contains("is another disk") && why.contains(&known.uuid.to_string()), "{why}");
    // It is the disk that the group knows, which hosts have on other paths.
    daemon.show_known_elsewhere();
    let table = daemon.registry().namespaces(&nqn).unwrap().clone();
    let shown: Vec<_> = table.iter().map(|it| (it.uuid, it.access.is_accessible)).collect();
    assert_eq!(shown, [(known.uuid.into_bytes(), false)]);
    daemon.stop(Duration::ZERO);
}

/// Where the namespace was removed meanwhile, and added with another image, the group refuses it.
#[test]
fn image_that_has_shrunk_is_accepted_for_what_was_read_of_it() {
    let mut daemon = gateway();
    let nqn: Nqn = NQN.parse().unwrap();
    serve_memory(&mut daemon);
    let export = daemon.exports()[0].clone();
    let uuid = uuid::Uuid::from_bytes(export.uuid).to_string();
    let known = |bytes: u64| json!({ "bytes": bytes, "block_size": 4096, "uuid": uuid });
    let cluster = daemon.cluster.as_mut().unwrap();
    let stored = Item { version: 7, value: known(1 << 20) };
    cluster.known.insert((nqn, 2), serde_json::from_value(stored.value.clone()).unwrap());
    cluster.shared.items.insert(format!("size/{NQN}/2"), stored);
    let change = cluster.accepted(&export, 1 << 19).unwrap();
    assert_eq!((change.value, change.expect), (Some(known(1 << 19)), Some(7)));
    daemon.stop(Duration::ZERO);
}

/// A gateway that did not look while a namespace was removed and added again, and its name became another image's.
#[test]
fn disk_that_is_another_one_than_the_group_serves_by_now_is_opened_anew() {
    let nqn: Nqn = NQN.parse().unwrap();
    let known = |uuid: &str| {
        let known = json!({ "bytes": 1 << 20, "block_size": 4096, "uuid": uuid });
        serde_json::from_value::<super::known::Known>(known).unwrap()
    };
    let other = known("b0e2a8d6-0049-50bc-9a3d-5e8aeaac9d6f");
    // Whether the group knew it before, what it knows now, whether that cannot be read, whether the namespace was written anew, and
    // whether the disk goes.
    for (case, before, now, is_damaged, is_new, goes) in [
        ("the same disk", true, Some("own"), false, true, false),
        ("another one", true, Some("other"), false, true, true),
        ("removed and added", true, None, false, true, true),
        ("never opened until now", false, None, false, true, false),
        ("what is known is damaged", true, None, true, true, false),
        ("what is known was removed by hand", true, None, false, false, false),
    ] {
        let mut daemon = gateway();
        let asked = serve_memory(&mut daemon);
        let export = &mut daemon.namespaces.open[0];
        export.shared = Some(crate::exports::Shared { through: None });
        let own = known(&uuid::Uuid::from_bytes(export.uuid).to_string());
        let (device, of) = (export.device, |name: Option<&str>| {
            name.map(|name| ((nqn, 2), if name == "own" { own } else { other })).into_iter().collect()
        });
        let cluster = daemon.cluster.as_mut().unwrap();
        cluster.known = of(now);
        let item = |version| Item { version, value: json!(null) };
        let size = before.then(|| (format!("size/{NQN}/2"), item(2)));
        let before = size.into_iter().chain([(format!("namespace/{NQN}/2"), item(1))]).collect();
        let version = if is_new { 5 } else { 1 };
        cluster.shared.items.insert(format!("namespace/{NQN}/2"), item(version));
        if is_damaged {
            cluster.shared.unreadable.push((format!("size/{NQN}/2"), "it is damaged".to_owned()));
        }
        let away = daemon.take_away_others(&asked, &before);
        assert_eq!(away.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [(nqn, 2); 1][..usize::from(goes)]);
        assert_eq!(daemon.exports().iter().any(|export| export.device == device), !goes, "{case}");
        if !goes {
            // A UUID in the configuration is none that the group has in force.
            let mut given = asked.clone();
            given.subsystems[0].namespaces[0].uuid = Some([9; 16]);
            assert!(daemon.take_away_others(&given, &before).is_empty(), "{case}");
            daemon.cluster.as_mut().unwrap().known = of(Some("other"));
            assert_eq!(daemon.take_away_others(&given, &before).len(), 1, "{case}: added with another UUID");
        }
        // What is not in the configuration any more goes the usual way.
        let without = Config { subsystems: Vec::new(), ..asked };
        assert!(daemon.take_away_others(&without, &before).is_empty(), "{case}");
        daemon.stop(Duration::ZERO);
    }
}

/// An image that was renamed while it is served, and is added again under its new name: nobody fences both.
#[test]
fn image_that_another_namespace_has_under_another_name_is_served_once() {
    let mut daemon = gateway();
    let nqn: Nqn = NQN.parse().unwrap();
    let known = |uuid: &str, image: &str| {
        let known = json!({ "bytes": 1 << 20, "block_size": 4096, "uuid": uuid, "image": image });
        serde_json::from_value::<super::known::Known>(known).unwrap()
    };
    let (one, other) = ("b0e2a8d6-0049-50bc-9a3d-5e8aeaac9d6f", "a2a0e7a1-2ff8-44a7-9a1c-111111111111");
    let cluster = daemon.cluster.as_mut().unwrap();
    let mut add = |nsid: u32, version| {
        let value = json!({ "nsid": nsid, "rbd": { "image": format!("i{nsid}") } });
        cluster.shared.items.insert(format!("namespace/{NQN}/{nsid}"), Item { version, value });
    };
    add(5, 7);
    add(6, 9);
    cluster.shared.items.insert(format!("size/{NQN}/5"), Item { version: 8, value: json!(null) });
    cluster.known.insert((nqn, 5), known(one, one));
    // Whatever UUID an operator gives it.
    assert_eq!(daemon.image_elsewhere(&(nqn, 6), &known(other, one)), Some((nqn, 5)));
    assert_eq!(daemon.image_elsewhere(&(nqn, 6), &known(one, other)), None, "another image");
    assert_eq!(daemon.image_elsewhere(&(nqn, 5), &known(one, one)), None, "its own");
    // Both are there, of an older version: the first goes on.
    let cluster = daemon.cluster.as_mut().unwrap();
    cluster.shared.items.insert(format!("size/{NQN}/6"), Item { version: 3, value: json!(null) });
    cluster.known.insert((nqn, 6), known(other, one));
    assert_eq!(daemon.image_elsewhere(&(nqn, 5), &known(one, one)), None);
    assert_eq!(daemon.image_elsewhere(&(nqn, 6), &known(other, one)), Some((nqn, 5)));
    daemon.stop(Duration::ZERO);
}

/// It would come to be so at the next start of each gateway, at one after the other.
#[test]
fn change_that_no_gateway_makes_while_it_runs_is_not_stored() {
    let mut daemon = gateway();
    let serial = daemon.config.subsystems[0].serial.clone();
    let mut asked = daemon.config.clone();
    asked.subsystems[0].model = "another".to_owned();
    let refused = daemon.ask_for(&asked).err().unwrap().message;
    for part in [format!("subsystem/{NQN}"), "model is what hosts know it by".to_owned()] {
        assert!(refused.contains(&part), "{refused}");
    }
    assert_eq!(daemon.config.subsystems[0].serial, serial);
    daemon.stop(Duration::ZERO);
}

#[test]
fn size_that_was_accepted_is_nothing_that_is_left_out_and_goes_with_its_namespace() {
    let mut daemon = gateway();
    let cluster = daemon.cluster.as_mut().unwrap();
    let mut shared = cluster.shared.clone();
    let size = format!("size/{NQN}/1");
    shared.items.insert(size.clone(), Item { version: 2, value: json!(4096) });
    cluster.next = Some((OpId(1), Box::new(shared)));
    cluster.converging = None;
    daemon.begin_to_converge();
    daemon.end_changes();
    assert!(!daemon.is_left_out(&size));
    let removed = Change { key: format!("namespace/{NQN}/1"), value: None, expect: None };
    let cluster = daemon.cluster.as_ref().unwrap();
    let keys: Vec<_> =
        cluster.removals_of_known(std::slice::from_ref(&removed)).into_iter().map(|it| it.key).collect();
    assert_eq!(keys, [size]);
    let changed = Change { value: Some(json!({ "nsid": 1, "rbd": { "image": "a" } })), ..removed };
    assert!(cluster.removals_of_known(&[changed]).is_empty());
    daemon.stop(Duration::ZERO);
}

#[test]
fn namespace_whose_image_was_never_open_here_is_there_as_the_group_knows_it() {
    let mut daemon = gateway();
    let nqn: Nqn = NQN.parse().unwrap();
    let serve = |daemon: &mut Daemon, op: u64, items: &[(&str, serde_json::Value)]| {
        let cluster = daemon.cluster.as_mut().unwrap();
        let item = |value: &serde_json::Value| Item { version: op, value: value.clone() };
        let subsystem = json!({ "nqn": NQN, "allowed_hosts": [] });
        let all = [(format!("subsystem/{NQN}"), item(&subsystem))].into_iter();
        let all = all.chain(items.iter().map(|(key, value)| ((*key).replace("NQN", NQN), item(value))));
        let shared = Shared { version: op, ana_groups: 16, items: all.collect(), unreadable: Vec::new() };
        (cluster.next, cluster.converging) = (Some((OpId(op), Box::new(shared))), None);
        daemon.begin_to_converge();
        daemon.end_changes();
        daemon.show_known_elsewhere();
    };
    let seen = |daemon: &Daemon| {
        let registry = daemon.registry();
        let table = registry.namespaces(&nqn).unwrap();
        table.iter().map(|it| (it.nsid.0, it.geometry.bytes(), it.access.is_accessible)).collect::<Vec<_>>()
    };
    let namespace = ("namespace/NQN/1", json!({ "nsid": 1, "rbd": { "image": "a" } }));
    let uuid = "b0e2a8d6-0049-50bc-9a3d-5e8aeaac9d6f";
    let size = ("size/NQN/1", json!({ "bytes": 1 << 20, "block_size": 4096, "uuid": uuid }));
    serve(&mut daemon, 2, &[namespace.clone(), size.clone()]);
    assert_eq!(seen(&daemon), [(1, 1 << 20, false)]);
    let text = daemon.status_answer().to_string();
    assert!(text.contains("namespace 1: not served") && !text.contains("namespace 1 of"), "{text}");
    // What says nothing that can be is of no use, and what is removed is gone.
    let wrong = ("size/NQN/1", json!({ "bytes": 1 << 20, "block_size": 100, "uuid": uuid }));
    serve(&mut daemon, 3, &[namespace, wrong]);
    assert_eq!(seen(&daemon), []);
    serve(&mut daemon, 4, &[size]);
    assert_eq!(seen(&daemon), []);
    daemon.stop(Duration::ZERO);
}

#[test]
fn check_of_status_names_what_is_not_well() {
    let daemon = gateway();
    let lines = daemon.status_answer().not_well().join("\n");
    for part in ["this gateway is joining", &format!("namespace/{NQN}/2 is left out"), "listener "] {
        assert!(lines.contains(part), "{part}: {lines}");
    }
    daemon.stop(Duration::ZERO);
}

#[test]
fn daemon_whose_group_s_thread_dies_says_so_and_ends() {
    let mut control = Control::new().unwrap();
    let daemon =
        Daemon::start(Config::parse(OWN).unwrap(), None, control.waker(), Sockets::default()).unwrap();
    daemon.cluster.as_ref().unwrap().driver.tell(ToDriver::Panic);
    while !daemon.group_ended() {
        assert!(!matches!(control.next(Duration::from_secs(60)), Event::Nothing), "nobody is woken");
    }
    let lines = daemon.status_answer().not_well().join("\n");
    assert!(lines.contains("the thread of the gateway group does not answer"), "{lines}");
    let error = daemon.serve(&mut control).unwrap_err().to_string();
    assert!(error.contains("the thread of the gateway group ended on its own"), "{error}");
}
