//! Tests of the parsers with typical job files.

use super::*;
use proptest::prelude::*;

fn plan(name: &str, text: &str) -> Result<Plan, JobError> {
    Plan::new(&parse(name, text)?, &[])
}

#[test]
fn fio_job_file_is_parsed() {
    let text = "; random mix\n[global]\nioengine=libaio   # the kernel's\nbs=4k,8k\nsize=128m\nruntime=1m\n\n\
                [reader]\nrw=randread\niodepth=32\n[writer]\nstonewall\nrw = randwrite\nbs=16k\nverify=sha1\nthread=1\n";
    let plan = plan("mix.fio", text).unwrap();
    let [reader, writer] = &plan.jobs[..] else { panic!("two jobs") };
    assert_eq!(
        (reader.name.as_str(), reader.options.iodepth, reader.options.rw.random),
        ("reader", 32, true)
    );
    assert_eq!(reader.options.bs[1], BlockSize::Fixed(8192));
    assert_eq!(reader.options.runtime, Some(core::time::Duration::from_secs(60)));
    assert_eq!(writer.options.bs[1], BlockSize::Fixed(16384));
    assert!(writer.options.stonewall && !reader.options.stonewall);
    assert_eq!(writer.options.verify, Some(Verify::Random));
    assert_eq!(plan.global[0], ("ioengine".to_owned(), "libaio".to_owned()));
    assert_eq!(
        plan.notes,
        [
            "ioengine=libaio: replaced by io_uring",
            "verify=sha1: replaced by crc32c",
            "thread: accepted, changes nothing"
        ]
    );
}

/// Job files similar to fio's examples.
#[test]
fn common_job_files_are_parsed() {
    for text in [
        "[global]\nrw=randread\nsize=128m\n[job1]\n[job2]\n",
        "# reads and writes\n[global]\nbs=4K\niodepth=256\ndirect=1\nioengine=libaio\ngroup_reporting\ntime_based\nruntime=120\n\
         numjobs=4\nname=raw-randrw\nrw=randrw\n[job1]\nfilename=device-name\n",
        "[write-and-verify]\nrw=randwrite\nbs=4k\ndirect=1\nioengine=libaio\niodepth=16\nsize=4g\nverify=crc32c\nfilename=dev\n",
        "[global]\nthread=1\nbs=64k\ndirect=1\nioengine=sync\nverify=meta\nsize=8g\n[write-phase]\nrw=write\ndo_verify=0\n\
         [read-phase]\nstonewall\ncreate_serialize=0\nrw=read\ndo_verify=1\n",
        "[global]\nioengine=psync\nbssplit=512/4:4k/60:8k/10:64k/26,4k\nrandrepeat=0\nsize=1g\niodepth_batch=8\niodepth_low=8\n\
         [mixed]\nrw=randrw:8\n",
        "[max-depth]\nrw=randread\niodepth=128\nlatency_target=50000\nlatency_window=5000000\nlatency_percentile=99.0\nruntime=30\nsize=1g\n",
    ] {
        match plan("example.fio", text) {
            Ok(plan) => assert!(!plan.jobs.is_empty()),
            // An unsupported value is refused, and the message names it.
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("randrw:8"), "{error}");
            }
        }
    }
}

#[test]
fn toml_and_fio_jobs_are_equal() {
    let ini = "[global]\nbs=4k,8k\ndirect=1\n[b]\nrw=randrw\nrwmixread=70\n[a]\nrw=write\nlatency_percentile=99.9\n";
    let toml = "[global]\nbs = [\"4k\", \"8k\"]\ndirect = true\n[[job]]\nname = \"b\"\nrw = \"randrw\"\nrwmixread = 70\n\
                [[job]]\nname = \"a\"\nrw = \"write\"\nlatency-percentile = 99.9\n";
    let (ini, toml) = (plan("x.fio", ini).unwrap(), plan("x.toml", toml).unwrap());
    let options =
        |plan: &Plan| plan.jobs.iter().map(|job| (job.name.clone(), job.options.clone())).collect::<Vec<_>>();
    assert_eq!(options(&ini), options(&toml));
}

#[test]
fn errors_name_place_and_problem() {
    for (text, parts) in [
        ("[a]\nrw=read\nioedpth=3\n", &["job.fio:3", "`ioedpth`", "did you mean `iodepth`"][..]),
        ("[a]\nbs=3k3\n", &["job.fio:2", "bs", "`3k3`"]),
        ("rw=read\n", &["job.fio:1", "before the first [section]"]),
        ("[a\n", &["job.fio:1", "`]`"]),
        ("[a]\ninclude other.fio\n", &["job.fio:2", "`include`"]),
        ("[a]\nsize=${NVMF_BENCH_NOT_SET}\n", &["job.fio:2", "NVMF_BENCH_NOT_SET"]),
        ("[a]\niodepth=0\n", &["iodepth", "from 1 to 4096"]),
        ("[a]\ntime_based\n", &["job `a`", "runtime"]),
        ("[a]\nrw=write\nverify=pattern\n", &["verify_pattern"]),
        ("[a]\nioengine=rados\n", &["`rados`", "io_uring"]),
        (
            "[a]\nioengine=io_uring\nfilename=nvmf://192.0.2.1:4420/nqn.2026-11.com.example:d\n",
            &["ioengine=nvmf"],
        ),
        ("[a]\nfilename=/tmp/a:/tmp/b\n", &["several in one filename"]),
        ("[a]\nrw\n", &["rw", "a value is missing"]),
        ("[global]\nrw=read\n", &["there is no job"]),
    ] {
        let error = plan("job.fio", text).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }
}

#[test]
fn flags_override_job_file_options() {
    let over = [Given { name: "runtime".to_owned(), value: "2".to_owned(), place: "--runtime=2".to_owned() }];
    let plan = Plan::new(&parse("x", "[a]\nruntime=60\n[b]\n").unwrap(), &over).unwrap();
    assert!(plan.jobs.iter().all(|job| job.options.runtime == Some(core::time::Duration::from_secs(2))));
}

#[test]
fn job_that_only_reads_expects_this_run_where_another_job_writes() {
    let text = "[write]\nfilename=a\nrw=write\nverify=crc32c\n[read]\nfilename=a\nrw=read\nverify=crc32c\n\
                [other]\nfilename=b\nrw=read\nverify=crc32c\n[seed]\nfilename=b\nrw=read\nverify=crc32c\nrandseed=5\n";
    let mut plan = plan("x.fio", text).unwrap();
    plan.number(9);
    let runs: Vec<_> = plan.jobs.iter().map(|job| job.options.stamp()).collect();
    assert_eq!(runs, [Some(9), Some(9), None, Some(5)]);
    let seeds: Vec<_> = plan.jobs.iter().map(|job| job.options.seed()).collect();
    assert_eq!(seeds, [137, 137, 137, 5], "the same operations in every run");
    let text = "[before]\nfilename=a\nrw=read\nverify=crc32c\n[write]\nstonewall\nfilename=a\nrw=write\nverify=crc32c\n\
                [after]\nstonewall\nfilename=a\nrw=read\nverify=crc32c\n";
    let mut staged = self::plan("x.fio", text).unwrap();
    staged.number(9);
    let runs: Vec<_> = staged.jobs.iter().map(|job| job.options.stamp()).collect();
    assert_eq!(runs, [None, Some(9), Some(9)], "nothing of this run is there before it is written");
    let mut plan = self::plan("x.fio", "[a]\nrandrepeat=0\n[b]\nrandrepeat=0\nrandseed=5\n").unwrap();
    plan.number(9);
    assert_eq!([0, 1].map(|job: usize| plan.jobs[job].options.seed()), [9, 5]);
}

#[test]
fn filename_url_selects_engine() {
    for (text, engine) in [
        ("filename=nvmf://192.0.2.1:4420/nqn.2026-11.com.example:d?nsid=1", EngineKind::Nvmf),
        (
            "filename=nvmf://192.0.2.1:4420/nqn.2026-11.com.example:d\nioengine=nvmf-async",
            EngineKind::NvmfAsync,
        ),
        ("filename=nbd://127.0.0.1:10809/", EngineKind::Nbd),
        ("filename=nbd+unix:///?socket=/run/disk.sock", EngineKind::Nbd),
        ("filename=/tmp/disk.img", EngineKind::IoUring),
        ("ioengine=memory", EngineKind::Memory),
    ] {
        let plan = plan("job.fio", &format!("[a]\n{text}\n")).unwrap();
        assert_eq!(plan.jobs[0].options.engine(), engine, "{text}");
    }
}

#[test]
fn paths_are_repeated_or_a_list() {
    let paths = |file, text| plan(file, text).unwrap().jobs[0].options.remote.paths.clone();
    let repeated = paths("job.fio", "[a]\nioengine=nvmf\npath=192.0.2.1:4421\npath=192.0.2.2:4420\n");
    assert_eq!(repeated, ["192.0.2.1:4421", "192.0.2.2:4420"].map(|path| value::address(path).unwrap()));
    let list = "[[job]]\nioengine = \"nvmf\"\npath = [\"192.0.2.1:4421\", \"192.0.2.2:4420\"]\n";
    assert_eq!(paths("job.toml", list), repeated);
}

#[test]
fn host_is_an_address_or_a_name_with_a_port() {
    let host = |text: &str| {
        let job = format!("[a]\nfilename=nvmf+tcp://{text}/nqn.2026-11.com.example:d\n");
        plan("job.fio", &job)
            .map(|plan| plan.jobs[0].options.remote.address.clone().map(|uri| (uri.host, uri.port)))
    };
    for (text, name, port) in [
        ("localhost:4420", "localhost", 4420),
        ("[::1]:4421", "::1", 4421),
        ("192.0.2.1:8009", "192.0.2.1", 8009),
    ] {
        assert_eq!(host(text), Ok(Some((name.to_owned(), port))));
    }
    for text in ["localhost", ":4420", "localhost:http", "localhost:70000", "::1:4420", ""] {
        assert!(host(text).unwrap_err().to_string().contains("not a valid address"), "{text}");
    }
}

#[test]
fn option_example_values_are_accepted() {
    for known in TABLE.iter().flat_map(|group| group.options) {
        let value = known.value.split(['|', '[']).next().unwrap();
        let value = match known.names[0] {
            "address" | "path" => "192.0.2.1:4420",
            "iodepth_low" => "1",
            "verify_interval" => "512",
            _ => value,
        };
        let mut options = JobOptions::default();
        assert_eq!((known.set)(&mut options, value), Ok(()), "{}={value}", known.names[0]);
    }
}

#[test]
fn help_of_rw_names_what_is_accepted() {
    let rw = TABLE.iter().flat_map(|group| group.options).find(|option| option.names[0] == "rw").unwrap();
    let refusal = value::access("nothing").unwrap_err();
    assert_eq!(refusal.split_once("is none of ").map(|(_, accepted)| accepted), Some(rw.help));
    for name in rw.help.split(", ") {
        value::access(name).unwrap();
    }
}

proptest! {
    #[test]
    fn arbitrary_job_file_does_not_panic(text in "\\PC{0,200}", lines in proptest::collection::vec("(\\[[a-z]{0,4}\\]?|[a-z_]{1,12}=[-0-9a-z%:/,.\"$]{0,12})", 0..8)) {
        for name in ["x.fio", "x.toml"] {
            let _ = plan(name, &text);
            let _ = plan(name, &lines.join("\n"));
        }
    }

    #[test]
    fn arbitrary_option_value_does_not_panic(index in 0..200_usize, value in "[-0-9a-fkmgx%:/,.\"$ ]{0,16}|\\PC{0,16}") {
        let known: Vec<_> = TABLE.iter().flat_map(|group| group.options).collect();
        let _ = (known[index % known.len()].set)(&mut JobOptions::default(), &value);
    }
}

const URL: &str = "filename=nvmf://192.0.2.1:4420/nqn.2026-11.com.example:d";
const TCP_URL: &str = "filename=nvmf+tcp://192.0.2.1:4420/nqn.2026-11.com.example:d";

#[test]
fn option_of_another_transport_is_refused() {
    let key = "tls_key_file=/nonexistent/key";
    for (job, parts) in [
        (format!("{URL}\ntls=1\n{key}"), &["tls is for transport=tcp"][..]),
        (format!("{URL}\n{key}"), &["tls_key_file is for transport=tcp"]),
        (format!("{URL}\nhdr_digest=1"), &["hdr_digest is for transport=tcp", "crc=1"]),
        (format!("{URL}\ndata_digest=1"), &["data_digest is for transport=tcp"]),
        (format!("{TCP_URL}\ncrc=1"), &["crc is for transport=rdma", "data_digest"]),
        (format!("{TCP_URL}\nprovider=iwarp"), &["provider is for transport=rdma"]),
        (format!("{TCP_URL}\ntransport=rdma"), &["nvmf+tcp://", "transport=rdma"]),
        (format!("{TCP_URL}\ntls=1"), &["tls=1 needs tls_key_file", "nvmf gen-tls-key"]),
        (format!("{TCP_URL}\n{key}"), &["tls_key_file is for tls=1"]),
        (format!("{URL}\nconcat=1\ndhchap_key_file=/k"), &["concat is for transport=tcp"]),
        (format!("{TCP_URL}\nconcat=1"), &["concat needs dhchap_key_file"]),
        (format!("{URL}\ndhchap_ctrl_key_file=/k"), &["dhchap_ctrl_key_file needs dhchap_key_file"]),
        (format!("{TCP_URL}\nconcat=1\ndhchap_key_file=/k\ntls=1\n{key}"), &["omit one of them"]),
        ("ioengine=memory\ndhchap_key_file=/k".to_owned(), &["dhchap_key_file is for", "memory"]),
        // What is not NVMe/TCP would be sent in the clear as well.
        (format!("filename=nbd://127.0.0.1:10809/\ntls=1\n{key}"), &["tls is for", "nbd"]),
        (format!("ioengine=memory\n{key}"), &["tls_key_file is for", "memory"]),
    ] {
        let error = plan("job.fio", &format!("[a]\n{job}\n")).expect_err(&job).to_string();
        for part in parts {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }
    for job in [
        format!("{TCP_URL}\ntls=1\n{key}\nhdr_digest=1\ndata_digest=1\ntransport=tcp\nprovider=auto\ncrc=0"),
        format!("{URL}\ntransport=tcp\ntls=1\n{key}"),
        format!("{URL}\ncrc=1\nprovider=iwarp\ntls=0\nhdr_digest=0"),
        format!("{URL}\ndhchap_key_file=/k\ndhchap_ctrl_key_file=/l"),
        format!("{TCP_URL}\ndhchap_key_file=/k\nconcat=1"),
    ] {
        plan("job.fio", &format!("[a]\n{job}\n")).expect(&job);
    }
}

#[test]
fn filename_that_is_no_known_url_is_refused() {
    for (filename, parts) in [
        ("nvmf+tls://192.0.2.1:4420/nqn.2026-11.com.example:d", &["nvmf+tls://", "nvmf+tcp://", "tls=1"][..]),
        ("nvmf://192.0.2.1/nqn.2026-11.com.example:d", &["not a valid address", "4420"]),
        ("nvmf+tcp://192.0.2.1:4420", &["not a valid address"]),
        ("nvmf://192.0.2.1:4420/nqn.2026-11.com.example:d?nsid=x", &["not a valid address"]),
        ("nvmf://192.0.2.1:4420/disk", &["`disk` is not a valid NQN"]),
    ] {
        let error = plan("job.fio", &format!("[a]\nfilename={filename}\n")).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }
}

/// An option whose help names no value takes the next argument for another option or a job file.
#[test]
fn option_that_needs_a_value_names_one() {
    for known in TABLE.iter().flat_map(|group| group.options).filter(|known| known.value.is_empty()) {
        let mut options = JobOptions::default();
        let (none, nonsense) =
            ((known.set)(&mut options, ""), (known.set)(&mut options, "neither a switch nor a number"));
        assert!(none.is_ok() && nonsense.is_err(), "{} takes a value", known.names[0]);
    }
}

#[test]
fn batches_default_to_fio_sizes() {
    let options =
        |text: &str| plan("x.fio", &format!("[a]\niodepth=32\n{text}")).unwrap().jobs[0].options.clone();
    let sizes = |text: &str| {
        let options = options(text);
        (options.batch_submit(), options.batch_complete_min(), options.batch_complete_max())
    };
    assert_eq!(sizes(""), (1, 1, 1));
    assert_eq!(sizes("iodepth_batch=8\niodepth_batch_complete=4\n"), (8, 4, 4));
    assert_eq!(sizes("iodepth_batch_submit=0\niodepth_batch_complete_max=64\n"), (32, 1, 32));
    assert_eq!(sizes("iodepth_batch=64\niodepth_batch_complete_min=0\n"), (32, 0, 1), "0: does not wait");
    assert_eq!(sizes("iodepth_batch_complete_min=8\niodepth_batch_complete_max=2\n"), (1, 8, 8));
}
