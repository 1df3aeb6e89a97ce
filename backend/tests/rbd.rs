//! Images of a real Ceph cluster, whose configuration file `NVMF_TEST_CEPH` names. `cargo xtask ceph` starts one and runs
//! these. Each makes images of its own in the pool `rbd`, and removes them.

use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec, ImageSource, Opener, Presence};
use nvmf_block::{Backend, BlockError, BlockOp, BlockRange, Buffer, Completion, DeviceId, Tag, conformance};
use nvmf_memory::Memory;
use nvmf_rados::{Cluster, ClusterSpec, Encryption};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const DEVICE: DeviceId = DeviceId(0);
const MIB: u64 = 1 << 20;

fn conf() -> PathBuf {
    std::env::var_os("NVMF_TEST_CEPH").expect("NVMF_TEST_CEPH names a configuration file").into()
}

/// Runs one of Ceph's commands.
fn ceph(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).arg("--conf").arg(conf()).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {said} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

fn cluster() -> ClusterSpec {
    ClusterSpec { conf: Some(conf()), user: "admin".into(), keyring: None }
}

/// An image of a test's own, removed when this is dropped.
struct Image {
    name: String,
}

impl Image {
    fn new(name: &str, mib: u64) -> Self {
        let name = format!("{name}-{}", std::process::id());
        ceph("rbd", &["create", "--size", &format!("{mib}M"), &name]);
        Self { name }
    }

    fn source(&self) -> ImageSource {
        ImageSource {
            cluster: cluster(),
            pool: "rbd".into(),
            namespace: None,
            image: self.name.clone(),
            snapshot: None,
            encryption: None,
        }
    }

    fn open(&self, block_size: Option<u32>) -> Disk {
        Disk::open(&DiskSpec::Rbd(self.source()), block_size, false).unwrap()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let remove = |arguments: &[&str]| {
            let _ = Command::new("rbd").arg("--conf").arg(conf()).args(arguments).output();
        };
        remove(&["snap", "purge", &self.name]);
        remove(&["rm", &self.name]);
    }
}

fn devices(disk: &Disk) -> Devices {
    let mut devices = Devices::new(DevicesOptions { depth: 64 }).unwrap();
    devices.attach(DEVICE, disk).unwrap();
    devices
}

fn waiting() -> impl FnMut(&mut Devices) {
    let deadline = Instant::now() + Duration::from_secs(120);
    move |devices| {
        assert!(Instant::now() < deadline, "an operation did not complete");
        devices.wait(Some(Duration::from_millis(100)));
    }
}

/// Runs one operation on the first device.
fn run(devices: &mut Devices, op: BlockOp) -> Result<(), BlockError> {
    devices.submit(Tag(7), DEVICE, op).unwrap();
    let (mut completions, mut wait) = (Vec::<Completion>::with_capacity(1), waiting());
    loop {
        devices.poll(&mut completions);
        if let Some(completion) = completions.pop() {
            return completion.result;
        }
        wait(devices);
    }
}

fn buffer(devices: &mut Devices, len: usize) -> (Memory, Buffer) {
    let memory = Memory::alloc(len).unwrap();
    let region = devices.register(&memory).unwrap();
    (memory, Buffer { region, offset: 0, len })
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn image_conforms() {
    let image = Image::new("conforms", 16);
    for block_size in [None, Some(512)] {
        let disk = image.open(block_size);
        assert!(!disk.geometry().volatile_write_cache && disk.geometry().deallocate);
        conformance::check(&mut devices(&disk), DEVICE, &mut waiting());
        assert_eq!(disk.health(), nvmf_backend::Health::default());
    }
    let read_only = Disk::open(&DiskSpec::Rbd(image.source()), None, true).unwrap();
    conformance::check(&mut devices(&read_only), DEVICE, &mut waiting());
    let other = Image::new("conforms-beside", 16);
    let mut devices = devices(&image.open(None));
    devices.attach(DeviceId(1), &other.open(None)).unwrap();
    conformance::check_room_for_others(&mut devices, [DEVICE, DeviceId(1)], &mut waiting());
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn workers_share_an_image_and_hear_of_their_own_operations() {
    const EACH: u64 = 200;
    let image = Image::new("workers", 16);
    let disk = image.open(Some(512));
    let member = |first: u64| {
        let disk = disk.clone();
        std::thread::spawn(move || {
            let mut devices = devices(&disk);
            let (memory, from) = buffer(&mut devices, 1024);
            let expected = Buffer { len: 512, ..from };
            let (mut completions, mut wait) = (Vec::<Completion>::with_capacity(8), waiting());
            let mut swapped = 0;
            for number in 0..EACH {
                // A block of its own, and by turns a block of both, in one step.
                memory.fill(0, 512, number as u8 ^ first as u8);
                let own = BlockRange::new(first + number % 64, 1);
                let op = match number % 4 {
                    3 => BlockOp::CompareAndWrite { range: BlockRange::new(9000, 1), data: from, fua: false },
                    _ => BlockOp::Write { range: own, from: expected, fua: true },
                };
                devices.submit(Tag(first + number), DEVICE, op).unwrap();
                while completions.is_empty() {
                    devices.poll(&mut completions);
                    if completions.is_empty() {
                        wait(&mut devices);
                    }
                }
                let Completion { tag, result } = completions.pop().unwrap();
                assert_eq!(tag, Tag(first + number), "another worker's operation");
                assert!(matches!(result, Ok(()) | Err(BlockError::CompareFailed)), "{result:?}");
                swapped += u64::from(number % 4 == 3 && result.is_ok());
            }
            swapped
        })
    };
    let threads = [member(0), member(1000)];
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(disk.health().failures, 0);
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn snapshot_and_clone_are_disks_of_their_own() {
    let image = Image::new("snapshot", 8);
    let mut head = devices(&image.open(None));
    let (memory, from) = buffer(&mut head, 4096);
    let range = BlockRange::new(3, 1);
    memory.fill(0, 4096, 1);
    assert_eq!(run(&mut head, BlockOp::Write { range, from, fua: false }), Ok(()));
    ceph("rbd", &["snap", "create", &format!("{}@then", image.name)]);
    memory.fill(0, 4096, 2);
    assert_eq!(run(&mut head, BlockOp::Write { range, from, fua: false }), Ok(()));

    let source = ImageSource { snapshot: Some("then".into()), ..image.source() };
    let snapshot = Disk::open(&DiskSpec::Rbd(source), None, true).unwrap();
    assert!(snapshot.geometry().read_only);
    assert_ne!(snapshot.identity().unwrap(), image.open(None).identity().unwrap());
    let mut of_snapshot = devices(&snapshot);
    let (then, into) = buffer(&mut of_snapshot, 4096);
    assert_eq!(run(&mut of_snapshot, BlockOp::Read { range, into }), Ok(()));
    let byte = |memory: &Memory| {
        let mut byte = [0];
        memory.read(0, &mut byte);
        byte[0]
    };
    assert_eq!(byte(&then), 1);
    let write = BlockOp::Write { range, from: into, fua: false };
    assert_eq!(run(&mut of_snapshot, write), Err(BlockError::ReadOnly));

    let child = Image { name: format!("{}-clone", image.name) };
    let at = format!("{}@then", image.name);
    ceph("rbd", &["clone", "--rbd-default-clone-format", "2", &at, &child.name]);
    let mut of_clone = devices(&child.open(None));
    let (cloned, into) = buffer(&mut of_clone, 4096);
    assert_eq!(run(&mut of_clone, BlockOp::Read { range, into }), Ok(()));
    assert_eq!(byte(&cloned), 1);
    cloned.fill(0, 4096, 3);
    assert_eq!(run(&mut of_clone, BlockOp::Write { range, from: into, fua: true }), Ok(()));
    drop((of_clone, of_snapshot, snapshot));
    ceph("rbd", &["rm", &child.name]);
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn resize_is_noticed_and_shrunk_blocks_are_refused() {
    let image = Image::new("resize", 8);
    let disk = image.open(None);
    let (told, heard) = std::sync::mpsc::channel();
    disk.on_change(move || {
        let _ = told.send(());
    });
    assert!(disk.resized().unwrap().is_none());
    ceph("rbd", &["resize", "--no-progress", "--size", "12M", &image.name]);
    let resized = |disk: &Disk, bytes: u64| {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            assert!(Instant::now() < deadline, "the new size was not noticed");
            heard.recv_timeout(Duration::from_secs(30)).unwrap();
            if let Some(other) = disk.resized().unwrap().filter(|other| other.geometry().bytes() == bytes) {
                return other;
            }
        }
    };
    let grown = resized(&disk, 12 * MIB);
    let mut devices = devices(&disk);
    let (_memory, from) = buffer(&mut devices, 4096);
    let write = |block| BlockOp::Write { range: BlockRange::new(block, 1), from, fua: false };
    assert_eq!(run(&mut devices, write(2048)), Err(BlockError::OutOfRange));
    devices.resize(DEVICE, &grown);
    assert_eq!(run(&mut devices, write(2048)), Ok(()));
    ceph("rbd", &["resize", "--no-progress", "--allow-shrink", "--size", "4M", &image.name]);
    let shrunk = resized(&grown, 4 * MIB);
    let read = BlockOp::Read { range: BlockRange::new(2048, 1), into: from };
    for op in [write(2048), read] {
        assert_eq!(run(&mut devices, op), Err(BlockError::Medium), "{op:?}");
    }
    devices.resize(DEVICE, &shrunk);
    assert_eq!(run(&mut devices, write(2048)), Err(BlockError::OutOfRange));
    assert_eq!(run(&mut devices, write(1023)), Ok(()));
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn removed_image_is_gone_and_one_made_anew_is_another() {
    let image = Image::new("removed", 8);
    let disk = image.open(None);
    let identity = disk.identity().unwrap().unwrap();
    // Who waits until nobody uses it does not wait for a look at it.
    let looked_at = disk.to_look_at().get().unwrap();
    assert!(!disk.is_shared());
    assert_eq!(looked_at.presence().unwrap(), Presence::There);
    drop(looked_at);
    let other = Image { name: format!("{}-other", image.name) };
    ceph("rbd", &["mv", &image.name, &other.name]);
    assert_eq!(disk.presence().unwrap(), Presence::Renamed);
    ceph("rbd", &["mv", &other.name, &image.name]);
    // `rbd rm` refuses while somebody watches the header.
    let id = ceph("rbd", &["info", "--format", "json", &image.name]);
    let id = id.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned();
    ceph("rados", &["-p", "rbd", "rm", &format!("rbd_header.{id}")]);
    assert_eq!(disk.presence().unwrap(), Presence::Removed);
    let mut devices = devices(&disk);
    let (_memory, into) = buffer(&mut devices, 4096);
    let read = BlockOp::Read { range: BlockRange::new(0, 1), into };
    assert_eq!(run(&mut devices, read), Err(BlockError::Gone));
    drop((devices, disk));
    ceph("rados", &["-p", "rbd", "rm", &format!("rbd_id.{}", image.name)]);
    ceph("rados", &["-p", "rbd", "rmomapkey", "rbd_directory", &format!("name_{}", image.name)]);
    ceph("rados", &["-p", "rbd", "rmomapkey", "rbd_directory", &format!("id_{id}")]);
    ceph("rbd", &["create", "--size", "8M", &image.name]);
    assert_ne!(image.open(None).identity().unwrap().unwrap(), identity);
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn full_pool_is_no_space_and_not_a_hang() {
    let image = Image::new("full", 64);
    let mut devices = devices(&image.open(None));
    let (_memory, from) = buffer(&mut devices, 4096);
    // Each in an object of its own: what is overwritten in place needs no space.
    let write = |object: u64| BlockOp::Write { range: BlockRange::new(object * 1024, 1), from, fua: false };
    assert_eq!(run(&mut devices, write(0)), Ok(()));
    let mut becomes = |ratio: &str, wanted: Result<(), BlockError>| {
        // An OSD takes the larger of them.
        for set in ["set-nearfull-ratio", "set-backfillfull-ratio", "set-full-ratio"] {
            ceph("ceph", &["osd", set, ratio]);
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let result =
                (1..16).map(|object| run(&mut devices, write(object))).find(|result| *result == wanted);
            let discard = |object: u64| BlockOp::Deallocate { range: BlockRange::new(object * 1024, 1024) };
            if result.is_some() {
                return;
            }
            assert!(Instant::now() < deadline, "{wanted:?} is not the result");
            for object in 1..16 {
                let _ = run(&mut devices, discard(object));
            }
        }
    };
    // The OSDs take themselves for full, and the monitor marks their pools.
    becomes("0.0001", Err(BlockError::NoSpace));
    becomes("0.95", Ok(()));
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn fenced_client_has_a_path_error_and_a_new_one_serves() {
    let image = Image::new("fenced", 8);
    // A specification of its own, so that no other test's images are on this connection.
    let copy = tempfile::NamedTempFile::new().unwrap();
    std::fs::copy(conf(), copy.path()).unwrap();
    let spec = ClusterSpec { conf: Some(copy.path().into()), ..cluster() };
    let source = ImageSource { cluster: spec.clone(), ..image.source() };
    let open = || Disk::open(&DiskSpec::Rbd(source.clone()), None, false).unwrap();
    let disk = open();
    let mut devices = devices(&disk);
    let (_memory, from) = buffer(&mut devices, 4096);
    let range = BlockRange::new(0, 1);
    let write = BlockOp::Write { range, from, fua: false };
    assert_eq!(run(&mut devices, write), Ok(()));
    let shared = Cluster::shared(&spec).unwrap();
    let address = shared.address().unwrap();
    let other = Cluster::connect(&cluster()).unwrap();
    other.blocklist_add(&address, Duration::from_secs(60)).unwrap();
    other.wait_for_latest_osdmap().unwrap();
    let ops = [write, BlockOp::Read { range, into: from }, BlockOp::Compare { range, with: from }, write];
    // An OSD refuses once it knows, which a request of somebody who knows brings to it, or a moment.
    let deadline = Instant::now() + Duration::from_secs(60);
    while run(&mut devices, write) == Ok(()) {
        assert!(Instant::now() < deadline, "a fenced client writes");
    }
    for op in ops {
        assert_eq!(run(&mut devices, op), Err(BlockError::Path), "{op:?}");
    }
    assert!(shared.is_fenced() && disk.is_fenced());
    // The cluster takes it in again, but librbd mostly does not.
    ceph("ceph", &["osd", "blocklist", "rm", &address]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while disk.presence().is_err() {
        assert!(Instant::now() < deadline, "the fence does not end");
    }
    let ended = run(&mut devices, write);
    assert!(matches!(ended, Ok(()) | Err(BlockError::Path)), "{ended:?}");
    assert!(disk.is_fenced());
    drop((devices, disk));
    // Opened anew, it is on a new connection.
    let mut again = self::devices(&open());
    let (_memory, from) = buffer(&mut again, 4096);
    assert_eq!(run(&mut again, BlockOp::Write { range, from, fua: false }), Ok(()));
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn image_is_opened_when_capabilities_are_given_though_another_keeps_the_connection() {
    let (user, folder) = (format!("part-{}", std::process::id()), tempfile::tempdir().unwrap());
    let keyring = folder.path().join("keyring");
    let (client, file) = (format!("client.{user}"), keyring.to_str().unwrap());
    let in_one = "profile rbd pool=rbd namespace=one";
    for namespace in ["one", "two"] {
        ceph("rbd", &["namespace", "create", &format!("rbd/{namespace}")]);
        ceph("rbd", &["create", "--size", "8M", &format!("rbd/{namespace}/image")]);
    }
    ceph("ceph", &["auth", "get-or-create", &client, "mon", "profile rbd", "osd", in_one, "-o", file]);
    let cluster = ClusterSpec { user, keyring: Some(keyring), ..cluster() };
    let open = |namespace: &str| {
        let (image, namespace) = ("image".into(), Some(namespace.into()));
        let cluster = cluster.clone();
        let pool = "rbd".into();
        let source = ImageSource { cluster, pool, namespace, image, snapshot: None, encryption: None };
        Disk::open(&DiskSpec::Rbd(source), None, false)
    };
    let first = open("one").unwrap();
    assert!(open("two").unwrap_err().to_string().contains("ceph auth get client.part-"));
    let in_both = format!("{in_one}, profile rbd pool=rbd namespace=two");
    ceph("ceph", &["auth", "caps", &client, "mon", "profile rbd", "osd", &in_both]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let second = loop {
        match open("two") {
            Ok(disk) => break disk,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_secs(1));
    };
    assert_eq!(first.presence().unwrap(), Presence::There, "what is open goes on");
    drop((first, second));
    for namespace in ["one", "two"] {
        ceph("rbd", &["rm", "--no-progress", &format!("rbd/{namespace}/image")]);
        ceph("rbd", &["namespace", "remove", &format!("rbd/{namespace}")]);
    }
    ceph("ceph", &["auth", "rm", &client]);
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn other_clients_that_have_an_image_open_are_listed_with_the_one_that_writes() {
    let image = Image::new("opened", 16);
    let look = || Disk::open(&DiskSpec::Rbd(image.source()), None, true).unwrap();
    let own = look();
    assert_eq!(look().other_openers().unwrap(), [], "this client has it open twice");
    drop(own);
    let other = Cluster::connect(&cluster()).unwrap();
    let disk = Disk::open_image(&other, &image.source(), None, false).unwrap();
    let address = other.address().unwrap();
    let opener = |has_lock| [Opener { address: address.clone(), has_lock }];
    assert_eq!(look().other_openers().unwrap(), opener(false));
    let mut devices = devices(&disk);
    let (_memory, from) = buffer(&mut devices, 4096);
    let write = BlockOp::Write { range: BlockRange::new(0, 1), from, fua: false };
    assert_eq!(run(&mut devices, write), Ok(()));
    assert_eq!(look().other_openers().unwrap(), opener(true));
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn image_that_is_not_primary_is_read_only_and_said_to_be_so() {
    let image = Image::new("mirrored", 8);
    let mirror = |words: &[&str]| ceph("rbd", &[&["mirror", "image"][..], words].concat());
    ceph("rbd", &["mirror", "pool", "enable", "rbd", "image"]);
    mirror(&["enable", &image.name, "snapshot"]);
    let open = |read_only| Disk::open(&DiskSpec::Rbd(image.source()), None, read_only);
    let disk = open(false).unwrap();
    assert_eq!(disk.presence().unwrap(), Presence::There);
    mirror(&["demote", &image.name]);
    assert_eq!(disk.presence().unwrap(), Presence::NotPrimary);
    let mut devices = devices(&disk);
    let (_memory, from) = buffer(&mut devices, 4096);
    let write = BlockOp::Write { range: BlockRange::new(0, 1), from, fua: false };
    assert_eq!(run(&mut devices, write), Err(BlockError::Path));
    let refused = open(false).unwrap_err().to_string();
    assert!(refused.contains("not the primary") && refused.contains("rbd mirror image promote"), "{refused}");
    let seen = open(true).unwrap();
    assert!(seen.check_writable().is_err());
    mirror(&["promote", &image.name]);
    assert_eq!(disk.presence().unwrap(), Presence::There);
    assert_eq!(run(&mut devices, write), Ok(()));
    drop((devices, disk, seen));
    mirror(&["disable", &image.name]);
    ceph("rbd", &["mirror", "pool", "disable", "rbd"]);
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn image_that_is_empty_or_in_no_namespace_is_refused_with_what_to_do() {
    let image = Image::new("empty", 0);
    let refused =
        |source: ImageSource| Disk::open(&DiskSpec::Rbd(source), None, true).unwrap_err().to_string();
    let text = refused(image.source());
    assert!(text.contains(&format!("(rbd resize --size 10G rbd/{})", image.name)), "{text}");
    let text = refused(ImageSource { namespace: Some("none".into()), ..image.source() });
    assert!(text.contains("or no namespace none in its pool (rbd namespace ls)"), "{text}");
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn encrypted_image_is_decrypted_with_its_passphrase() {
    for (luks, format) in [(1, "luks1"), (2, "luks2")] {
        let image = Image::new(format, 64);
        let passphrase = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(passphrase.path(), "correct horse\n").unwrap();
        let file = passphrase.path().to_str().unwrap();
        ceph("rbd", &["encryption", "format", &image.name, format, file]);
        let encryption = Some(Encryption { luks, passphrase_file: passphrase.path().into() });
        let source = ImageSource { encryption, ..image.source() };
        let disk = Disk::open(&DiskSpec::Rbd(source.clone()), None, false).unwrap();
        assert!(disk.geometry().bytes() < 64 * MIB, "the header has its room");
        conformance::check(&mut devices(&disk), DEVICE, &mut waiting());
        drop(disk);
        std::fs::write(passphrase.path(), "wrong").unwrap();
        let error = Disk::open(&DiskSpec::Rbd(source), None, false).unwrap_err().to_string();
        assert!(error.contains("passphrase"), "{error}");
    }
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn what_cannot_be_opened_says_why() {
    let image = Image::new("names", 8);
    let error = |source: ImageSource| {
        let error = Disk::open(&DiskSpec::Rbd(source), None, false).unwrap_err();
        format!("{error:#}")
    };
    let source = || image.source();
    let no_pool = error(ImageSource { pool: "nowhere".into(), ..source() });
    assert!(no_pool.contains("pool nowhere") && no_pool.contains("ceph osd pool ls"), "{no_pool}");
    let no_image = error(ImageSource { image: "nothing".into(), ..source() });
    assert!(no_image.contains("rbd/nothing") && no_image.contains("rbd ls"), "{no_image}");
    let no_snapshot = error(ImageSource { snapshot: Some("never".into()), ..source() });
    assert!(no_snapshot.contains("@never"), "{no_snapshot}");
    let user = ClusterSpec { user: "nobody".into(), ..cluster() };
    let no_user = error(ImageSource { cluster: user, ..source() });
    assert!(no_user.contains("client.nobody"), "{no_user}");
    let keyring = ClusterSpec { keyring: Some("/nowhere/keyring".into()), ..cluster() };
    let no_keyring = error(ImageSource { cluster: keyring, ..source() });
    assert!(no_keyring.contains("/nowhere/keyring"), "{no_keyring}");
    let conf = ClusterSpec { conf: Some("/nowhere/ceph.conf".into()), ..cluster() };
    let no_conf = error(ImageSource { cluster: conf, ..source() });
    assert!(no_conf.contains("/nowhere/ceph.conf"), "{no_conf}");
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn image_that_somebody_locked_is_not_opened_for_writing_and_says_by_whom() {
    let image = Image::new("locked", 8);
    let spec = DiskSpec::Rbd(image.source());
    let disk = image.open(None);
    ceph("rbd", &["lock", "add", &image.name, "backup"]);
    let Presence::Locked(by) = disk.presence().unwrap() else { panic!("it is locked") };
    let (client, lock) = (by.client, by.cookie);
    assert_eq!(lock, "backup");
    drop(disk);
    let refused = Disk::open(&spec, None, false).unwrap_err().to_string();
    for part in [client.as_str(), "\"backup\"", "rbd lock rm"] {
        assert!(refused.contains(part), "{refused}");
    }
    let reader = Disk::open(&spec, None, true).unwrap();
    let mut readers = devices(&reader);
    let (_memory, into) = buffer(&mut readers, 4096);
    assert_eq!(run(&mut readers, BlockOp::Read { range: BlockRange::new(0, 1), into }), Ok(()));
    drop((readers, reader));
    ceph("rbd", &["lock", "rm", &image.name, "backup", &client]);
    let disk = image.open(None);
    let mut devices = devices(&disk);
    let (_memory, from) = buffer(&mut devices, 4096);
    let write = BlockOp::Write { range: BlockRange::new(0, 1), from, fua: false };
    assert_eq!(run(&mut devices, write), Ok(()));
    // The lock that librbd has now is none of these.
    assert_eq!(disk.presence().unwrap(), Presence::There);
}
