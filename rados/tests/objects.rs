//! Objects of a real Ceph cluster, whose configuration file `NVMF_TEST_CEPH` names. `cargo xtask ceph` starts one and runs
//! these.

use nvmf_rados::{Cluster, ClusterSpec, LockName, Notification, Pool, Renewal};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

fn pool() -> (Arc<Cluster>, Pool) {
    let conf = std::env::var_os("NVMF_TEST_CEPH").expect("NVMF_TEST_CEPH names a configuration file");
    let spec = ClusterSpec { conf: Some(conf.into()), user: "admin".into(), keyring: None };
    let cluster = Cluster::connect(&spec).unwrap();
    let pool = Pool::open(&cluster, "rbd", Some("objects")).unwrap();
    (cluster, pool)
}

/// An object's name of this run, without that object.
fn object(pool: &Pool, name: &str) -> String {
    let name = format!("{name}-{}", std::process::id());
    pool.remove(&name).unwrap();
    name
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn keys_are_compared_and_set_by_one_of_two() {
    let ((_a, one), (_b, two)) = (pool(), pool());
    let name = object(&one, "state");
    assert!(one.create(&name, &[("version", b"1")]).unwrap());
    assert!(!two.create(&name, &[("version", b"1")]).unwrap(), "it is there");
    assert!(
        one.compare_and_set(&name, ("version", b"1"), &[("version", b"2"), ("a", b"\0\xff")], &[]).unwrap()
    );
    assert!(!two.compare_and_set(&name, ("version", b"1"), &[("version", b"9")], &[]).unwrap());
    assert!(two.compare_and_set(&name, ("version", b"2"), &[("version", b"3")], &["a"]).unwrap());
    let all = one.omap(&name).unwrap();
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [("version".to_owned(), b"3".to_vec())]);
    // More than one page.
    let keys: Vec<String> = (0..700).map(|number| format!("key{number:04}")).collect();
    let values: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), key.as_bytes())).collect();
    assert!(one.compare_and_set(&name, ("version", b"3"), &values, &[]).unwrap());
    let all = two.omap(&name).unwrap();
    assert_eq!(all.len(), 701);
    assert!(keys.iter().all(|key| all[key] == key.as_bytes()));
    assert!(one.exists(&name).unwrap() && one.remove(&name).unwrap() && !one.exists(&name).unwrap());
    assert!(one.omap(&name).is_err());
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn objects_are_found_in_all_namespaces_of_a_pool() {
    let (cluster, pool) = pool();
    let name = object(&pool, "found");
    let usual = Pool::open(&cluster, "rbd", None).unwrap();
    let set = [("key".to_owned(), Some(b"value".to_vec()))];
    for pool in [&pool, &usual] {
        assert!(pool.compare_and_set_all(&name, &[], &set).unwrap());
    }
    for asked in [&pool, &usual] {
        let mut found = asked.find(|it| it == name, Duration::from_secs(60)).unwrap();
        found.sort();
        assert_eq!(found, [(String::new(), name.clone()), ("objects".to_owned(), name.clone())]);
    }
    for pool in [&pool, &usual] {
        pool.remove(&name).unwrap();
    }
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn lock_is_renewed_by_its_holder_and_expires() {
    let ((_a, one), (_b, two)) = (pool(), pool());
    let name = object(&one, "lease");
    let mine = LockName { name: "lease", cookie: "one", description: "a test" };
    let theirs = LockName { cookie: "two", ..mine };
    let second = Duration::from_secs(2);
    let begun = Instant::now();
    assert!(one.lock(&name, mine, second, Renewal::None).unwrap());
    assert!(!two.lock(&name, theirs, second, Renewal::None).unwrap());
    assert!(one.lock(&name, mine, second, Renewal::May).unwrap());
    let holders = two.lock_holders(&name, "lease").unwrap();
    assert_eq!((holders.len(), holders[0].cookie.as_str()), (1, "one"));
    assert!(!holders[0].address.is_empty());
    while !two.lock(&name, theirs, second, Renewal::None).unwrap() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not expire");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begun.elapsed() >= second);
    assert!(!one.lock(&name, mine, second, Renewal::Must).unwrap(), "it is lost");
    assert!(two.unlock(&name, theirs).unwrap() && !two.unlock(&name, theirs).unwrap());
    assert_eq!(one.lock_holders(&name, "lease").unwrap(), []);
    one.remove(&name).unwrap();
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn watchers_hear_what_others_notify() {
    let ((_a, one), (_b, two)) = (pool(), pool());
    let name = object(&one, "watched");
    assert!(one.create(&name, &[]).unwrap());
    let (tell, told) = mpsc::channel();
    let watch = one
        .watch(&name, Duration::from_secs(10), move |it| {
            let _ = tell.send(it);
        })
        .unwrap();
    assert!(two.notify(&name, b"version 7", Duration::from_secs(10)).unwrap());
    let heard = told.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(heard, Notification::Notified(b"version 7".to_vec()));
    watch.check().unwrap();
    drop(watch);
    assert!(two.notify(&name, b"nobody", Duration::from_secs(10)).unwrap());
    assert!(told.try_recv().is_err());
    one.remove(&name).unwrap();
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn fenced_client_can_change_nothing() {
    let ((a, one), (b, two)) = (pool(), pool());
    let name = object(&one, "fenced");
    assert!(one.create(&name, &[("version", b"1")]).unwrap());
    b.blocklist_add(&a.address().unwrap(), Duration::from_secs(60)).unwrap();
    b.wait_for_latest_osdmap().unwrap();
    // A request that brings the map to the OSD.
    assert!(two.exists(&name).unwrap());
    let error = one.compare_and_set(&name, ("version", b"1"), &[("version", b"2")], &[]).unwrap_err();
    assert!(error.is_fenced() && a.is_fenced(), "{error}");
    assert!(error.to_string().contains("blocklist"), "{error}");
    assert!(two.remove(&name).unwrap());
}
