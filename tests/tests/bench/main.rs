//! Tests of the program `nvmf-bench` with the engines that work on every machine, against real servers.

mod report;

use anyhow::Result;
use nvmf_tests::process;
use nvmf_tests::site::{Site, fails, json, succeeds};
use serde_json::Value;
use std::process::Command;

const SIZE: u64 = 16 << 20;

/// A call of `nvmf-bench` with the test's folder as home.
fn bench(site: &Site, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(process::program("nvmf-bench")?);
    command
        .args(arguments)
        .env("HOME", site.path("."))
        .env_remove("XDG_CONFIG_HOME")
        .current_dir(site.path("."));
    Ok(command)
}

/// The results of its only job, from its JSON report.
fn figures(site: &Site, arguments: &[&str]) -> Result<Value> {
    let document = json(bench(site, arguments)?.arg("--output-format=json"))?;
    Ok(document["jobs"][0].clone())
}

#[test]
fn local_engines_transfer_configured_size() -> Result<()> {
    let site = Site::new("bench-local")?;
    for engine in ["memory", "io_uring"] {
        for direct in ["--direct=0", "--direct=1"] {
            let file = site.path(&format!("{engine}{direct}.img"));
            let file = file.display().to_string();
            let job = figures(
                &site,
                &[
                    "--name=x",
                    &format!("--ioengine={engine}"),
                    &format!("--filename={file}"),
                    direct,
                    "--size=16m",
                    "--rw=randwrite",
                    "--verify=crc32c",
                    "--iodepth=16",
                ],
            )?;
            assert_eq!(job["error"], 0, "{engine} {direct}");
            assert_eq!((&job["write"]["io_bytes"], &job["read"]["io_bytes"]), (&SIZE.into(), &SIZE.into()));
        }
    }
    Ok(())
}

#[test]
fn attached_namespace_is_written_only_when_allowed() -> Result<()> {
    let site = Site::new("bench-attached")?;
    site.configure(&site.subsystem(&["memory = \"16MiB\"".to_owned()]))?;
    let target = site.serve()?;
    let socket = site.path("disk.sock").display().to_string();
    json(&mut site.call("attach", &["-n", &site.nqn, "--socket", &socket, "-o", "json"])?)?;
    let (address, nqn) = (format!("--address={}", site.address), format!("--nqn={}", site.nqn));
    for engine in ["nvmf", "nvmf-async"] {
        let engine = format!("--ioengine={engine}");
        let job = |more: &[&str]| {
            let common =
                ["--name=x", &engine, &address, &nqn, "--provider=iwarp", "--size=1m", "--numjobs=2"];
            let mut command = bench(&site, &common)?;
            command.args(more);
            anyhow::Ok(site.apart(command))
        };
        for rw in ["--rw=write", "--rw=randrw", "--rw=trim"] {
            fails(&mut job(&[rw])?, &["is attached on this machine", &socket, "allow_mounted_write=1"])?;
        }
        succeeds(&mut job(&["--rw=read"])?)?;
        succeeds(&mut job(&["--rw=write", "--allow_mounted_write=1"])?)?;
    }
    succeeds(&mut site.local(&["detach", "-n", &site.nqn])?)?;
    target.stop()
}

#[test]
fn remote_engines_read_and_write_namespace() -> Result<()> {
    let site = Site::new("bench-remote")?;
    site.configure(&site.subsystem(&["memory = \"16MiB\"".to_owned()]))?;
    let target = site.serve()?;
    let (address, nqn) = (format!("--address={}", site.address), format!("--nqn={}", site.nqn));
    for engine in ["--ioengine=nvmf", "--ioengine=nvmf-async"] {
        let common = ["--name=x", engine, &address, &nqn, "--provider=iwarp", "--verify=crc32c"];
        let job = figures(
            &site,
            &[&common[..], &["--rw=randrw", "--bs=4k", "--iodepth=32", "--fsync=16"]].concat(),
        )?;
        assert_eq!(job["error"], 0, "{engine}");
        let moved =
            job["read"]["io_bytes"].as_u64() >= Some(SIZE / 2) && job["write"]["io_bytes"].as_u64() > Some(0);
        assert!(moved, "{engine}: {job}");
        let job = figures(&site, &[&common[..], &["--rw=write", "--bs=128k", "--iodepth=4"]].concat())?;
        assert_eq!(job["write"]["io_bytes"], SIZE, "{engine}");
        // Nobody listens at the address: what works is the other path.
        let nobody = format!("--address=127.0.0.1:{}", process::free_port()?);
        let path = format!("--path={}", site.address);
        let job = ["--name=x", engine, &nobody, &path, &nqn, "--provider=iwarp", "--rw=randread"];
        assert_eq!(figures(&site, &job)?["read"]["io_bytes"], SIZE, "{engine}");
    }
    target.stop()
}

#[test]
fn remote_engines_write_the_same_bytes() -> Result<()> {
    let site = Site::new("bench-bytes")?;
    let files = ["nvmf", "nvmf-async"].map(|engine| (engine, site.path(&format!("{engine}.img"))));
    let mut namespaces = Vec::new();
    for (_, file) in &files {
        std::fs::write(file, vec![0; 1 << 20])?;
        namespaces.push(format!("path = \"{}\"", file.display()));
    }
    site.configure(&site.subsystem(&namespaces))?;
    let target = site.serve()?;
    let (address, nqn) = (format!("--address={}", site.address), format!("--nqn={}", site.nqn));
    for (nsid, (engine, _)) in (1..).zip(&files) {
        let (engine, nsid) = (format!("--ioengine={engine}"), format!("--nsid={nsid}"));
        let job = ["--name=x", &engine, &nsid, &address, &nqn, "--provider=iwarp", "--rw=write"];
        assert_eq!(figures(&site, &job)?["write"]["io_bytes"], 1 << 20);
    }
    target.stop()?;
    let [by_callback, by_future] = files.map(|(_, file)| std::fs::read(file));
    let (by_callback, by_future) = (by_callback?, by_future?);
    assert!(by_callback.chunks(4096).all(|block| block.iter().any(|&byte| byte != 0)));
    assert!(by_callback == by_future, "the job's bytes are not on the disk");
    Ok(())
}

#[test]
fn job_files_give_report_page_and_comparison() -> Result<()> {
    let site = Site::new("bench-file")?;
    let job =
        "[global]\nioengine=memory\nsize=4m\nrw=randread\n[a]\nnumjobs=2\ngroup_reporting\n[b]\nstonewall\n";
    std::fs::write(site.path("a.fio"), job)?;
    std::fs::write(
        site.path("b.toml"),
        "[global]\nioengine = \"memory\"\nsize = \"4m\"\n[[job]]\nname = \"c\"\nrw = \"read\"\n",
    )?;
    let said = succeeds(&mut bench(&site, &["a.fio", "--html=page.html"])?)?;
    assert!(said.contains("a: (groupid=0, jobs=2)") && said.contains("b: (groupid=1, jobs=1)"), "{said}");
    assert!(std::fs::read_to_string(site.path("page.html"))?.contains("<svg"));
    let said = succeeds(&mut bench(&site, &["compare", "a.fio", "b.toml", "--rounds=2"])?)?;
    assert!(said.contains("a.fio") && said.contains("b.toml"), "{said}");
    Ok(())
}

#[test]
fn invalid_jobs_are_reported() -> Result<()> {
    let site = Site::new("bench-wrong")?;
    for (arguments, code, part) in [
        (&["--rw=red"][..], 2, "`red` is none of read, write"),
        (&["--iodept=3"], 2, "did you mean `iodepth`?"),
        (&["no-such.fio"], 2, "no-such.fio"),
        (&[], 2, "there is no job"),
        // In the clear it must not go.
        (
            &[
                "--address=127.0.0.1:1",
                "--nqn=nqn.a",
                "--ioengine=nvmf",
                "--tls",
                "--tls_key_file",
                "/nowhere",
            ],
            2,
            "tls is for transport=tcp",
        ),
        (&["--filename=nvmf+tcp://127.0.0.1:1/nqn.a", "--tls"], 2, "tls=1 needs tls_key_file"),
        (
            &["--filename=nvmf+tcp://127.0.0.1:1/nqn.a", "--tls", "--tls_key_file", "/nowhere"],
            1,
            "cannot read the key file /nowhere",
        ),
        (&["--filename=nvmf+tls://127.0.0.1:1/nqn.a"], 2, "nvmf+tls:// is no known kind of URL"),
        (&["--filename=nvmf://127.0.0.1/nqn.a"], 2, "not a valid address"),
        (&["--name=x", "--filename=missing.img"], 1, "missing.img does not exist: give its size="),
        (&["--name=x", "--ioengine=nvmf"], 1, "--address=HOST:PORT"),
        (&["--name=x", "--ioengine=nbd", "--filename=nbd://127.0.0.1:1/"], 1, "cannot use the NBD export"),
        (
            &["--name=x", "--ioengine=memory", "--size=1m", "--offset=2m", "--io_size=1m", "--bs=8m"],
            1,
            "no block of 8388608",
        ),
    ] {
        let output = process::run(&mut bench(&site, arguments)?)?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: `{part}` is not in: {said}");
    }
    Ok(())
}

#[test]
fn size_that_does_not_fit_leaves_the_file_as_it_was() -> Result<()> {
    let site = Site::new("bench-full")?;
    std::fs::write(site.path("old.img"), [7; 4096])?;
    for (rw, name, said_first) in [
        ("write", "new.img", "creating new.img"),
        ("write", "old.img", "extending old.img from 4096B to 4096PiB"),
        ("read", "new.img", "creating new.img"),
        ("read", "old.img", "extending old.img from 4096B to 4096PiB"),
    ] {
        let (rw, file) = (format!("--rw={rw}"), format!("--filename={name}"));
        let output = process::run(&mut bench(&site, &["--name=x", &rw, &file, "--size=4096p"])?)?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{rw} {name}: {said}");
        assert!(said.contains(said_first), "{said}");
        assert!(said.contains(&format!("cannot create or extend {name}")), "{said}");
        assert!(!site.path("new.img").exists(), "{rw} {name}");
        assert_eq!(std::fs::read(site.path("old.img"))?, [7; 4096], "{rw} {name}");
    }
    Ok(())
}

#[test]
fn unknown_nqn_is_explained_once() -> Result<()> {
    let site = Site::new("bench-nqn")?;
    site.configure(&site.subsystem(&["memory = \"16MiB\"".to_owned()]))?;
    let target = site.serve()?;
    let (address, nqn) = (format!("--address={}", site.address), "--nqn=nqn.2026-11.com.example:unknown");
    for engine in ["--ioengine=nvmf", "--ioengine=nvmf-async"] {
        let output = process::run(&mut bench(&site, &["--name=x", engine, &address, nqn, "--rw=read"])?)?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.matches("there is no such subsystem").count(), 1, "{said}");
        assert!(said.contains("Connect Invalid Parameters") && !said.contains("Read Only Range"), "{said}");
    }
    target.stop()
}

#[test]
fn closed_output_ends_the_program_in_silence() -> Result<()> {
    let site = Site::new("bench-closed-output")?;
    let job = ["--name=x", "--ioengine=memory", "--size=1m", "--eta=never"];
    for arguments in [&["--help"][..], &job] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let ended = bench(&site, arguments)?.stdout(writer).stderr(std::process::Stdio::piped()).output()?;
        assert_eq!(ended.status.code(), Some(141), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "{arguments:?}");
    }
    Ok(())
}
