use super::super::engine::SubsystemPath;
use super::super::sources::tests::place;
use super::*;
use tokio::net::{TcpListener, TcpStream};

/// More are listed than are connected to at once.
const LISTED: usize = ASKED_AT_ONCE + 50;

/// As many connections.
async fn accept(listener: &TcpListener, count: usize) -> Vec<TcpStream> {
    let mut there = Vec::new();
    while there.len() < count {
        there.push(listener.accept().await.unwrap().0);
    }
    there
}

#[test]
fn failure_names_its_disk_once() {
    let (nqn, disk) = ("nqn.2026-11.com.example:a", "nqn.2026-11.com.example:a namespace 2");
    let of = |reason: String| failure(nqn, 2, &anyhow!(reason));
    assert_eq!(of(format!("{disk} is attached already")), format!("{disk} is attached already"));
    assert_eq!(of("no answer".to_owned()), format!("{disk}: no answer"));
    assert_eq!(of(format!("{disk}2 is away")), format!("{disk}: {disk}2 is away"));
}

/// Whoever writes a discovery log decides neither how many threads nor how many descriptors this process has.
#[tokio::test]
async fn many_subsystems_that_do_not_answer_are_connected_to_a_few_at_a_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (mut service, host) =
        (Service::new(Policy::default(), false).unwrap(), "nqn.2026-11.com.example:host");
    let id = "00000000-0000-0000-0000-000000000001";
    service.sources.subsystems = (0..LISTED)
        .map(|number| Subsystem {
            nqn: format!("nqn.2026-11.com.example:{number}"),
            paths: vec![SubsystemPath::new(place("tcp", "127.0.0.1", port), &[])],
            options: vec![format!("--hostnqn={host}"), format!("--hostid={id}")],
        })
        .collect();
    service.configure();
    let there = accept(&listener, ASKED_AT_ONCE).await;
    assert_eq!(service.askers.available_permits(), 0, "more are connected to at once");
    // These end without an answer, and the others have their turn.
    drop(there);
    accept(&listener, LISTED - ASKED_AT_ONCE).await;
}

/// A name server that does not answer holds a call for long.
#[tokio::test]
async fn what_takes_long_keeps_nobody_waiting_and_has_its_place_until_it_is_done() {
    let places = Arc::new(Semaphore::new(1));
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = oneshot::channel();
    let work = move || {
        let _ = begin.send(());
        Ok(ended.recv()?)
    };
    let of_it = Arc::clone(&places);
    let task = tokio::spawn(async move { apart(&of_it, work).await.map(drop) });
    begun.await.unwrap();
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(places.available_permits(), 0, "its thread is there still");
    end.send(()).unwrap();
    let _place = places.acquire().await.unwrap();
}

#[test]
fn what_cannot_be_reached_fills_no_log() {
    let (mut failures, minute) = (Failures::default(), Duration::from_secs(60));
    let told = (0..1000).filter(|_| failures.admits(minute)).count();
    assert_eq!(told, FAILURES_MAX);
    assert!(failures.admits(minute * 2), "each minute some");
}

/// Who follows for years keeps nothing of what was.
#[tokio::test]
async fn service_that_goes_on_keeps_no_list_of_what_it_has_attached() {
    let mut service = Service::new(Policy::default(), true).unwrap();
    let disk = Disk { nqn: "a".to_owned(), nsid: 1 };
    service.on_event(Event::Attached(disk.clone(), Ok(Box::default())));
    service.on_event(Event::PathsAdded(disk.clone(), Added::from(anyhow!("no path"))));
    assert!(service.outcome.attached.is_empty() && service.without_paths.len() == 1);
    service.on_event(Event::Detached(disk, Detached::Gone));
    assert!(service.without_paths.is_empty() && service.wanted.is_empty());
}
