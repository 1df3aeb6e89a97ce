//! What the programs do where nobody takes what they print: they end with an exit status that says so, and a daemon goes on.

use nvmf_tests::process;
use nvmf_tests::site::{Site, succeeds};
use std::fs::File;
use std::process::{Command, Output, Stdio};

/// A device that takes nothing: every write fails for want of space.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("a full device").into()
}

/// A pipe whose other end is closed.
fn closed() -> Stdio {
    let (_, end) = std::io::pipe().expect("a pipe");
    end.into()
}

fn run(site: &Site, arguments: &[&str], stdout: Stdio, stderr: Stdio) -> Output {
    spawn(site.local(arguments).expect("nvmf"), stdout, stderr)
}

/// The same of another program.
fn run_other(program: &str, arguments: &[&str], stdout: Stdio, stderr: Stdio) -> Output {
    let mut call = Command::new(process::program(program).expect("the program"));
    call.args(arguments);
    spawn(call, stdout, stderr)
}

fn spawn(mut call: Command, stdout: Stdio, stderr: Stdio) -> Output {
    let child = call.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().expect("nvmf");
    child.wait_with_output().expect("it ends")
}

#[test]
fn full_or_closed_output_is_an_error_and_no_panic() {
    let site = Site::new("output").expect("a site");
    for arguments in
        [&["list"][..], &["list", "-o", "json"], &["gen-hostnqn"], &["--help"], &["list", "--help"]]
    {
        let output = run(&site, arguments, full(), Stdio::piped());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert_eq!(
            said,
            "nvmf: cannot write to the standard output: No space left on device (os error 28)\n"
        );
        let output = run(&site, arguments, closed(), Stdio::piped());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(141), ""), "as SIGPIPE has it: {arguments:?}");
        for stderr in [full(), closed()] {
            let output = run(&site, arguments, full(), stderr);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        }
    }
    let nothing = site.path("nothing").display().to_string();
    for (arguments, status) in [
        (&["detach", &nothing][..], 1),
        (&["attach"], 2),
        (&["nonsense"], 2),
        (&["attach", "-n", "nqn.2014-08.org.nvmexpress.discovery", "-a", "127.0.0.1"], 2),
    ] {
        for stderr in [full(), closed()] {
            let output = run(&site, arguments, Stdio::piped(), stderr);
            assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        }
    }
}

#[test]
fn target_and_benchmark_end_with_their_status_where_nobody_reads() {
    let missing = "/nonexistent/target.toml";
    for (program, arguments, status) in [
        ("nvmf-target", &["--help"][..], 0),
        ("nvmf-target", &["nonsense"], 2),
        ("nvmf-target", &["check", missing], 1),
        ("nvmf-target", &["serve", "--config", missing], 1),
        ("nvmf-target", &["ctl", "--socket", missing, "status"], 1),
        ("nvmf-bench", &["--help"], 0),
        ("nvmf-bench", &["nonsense"], 2),
        ("nvmf-bench", &["--name=x", "--ioengine=null", "--size=1m", "--rw=read", "--group_reporting"], 0),
    ] {
        for stderr in [full(), closed()] {
            let output = run_other(program, arguments, Stdio::piped(), stderr);
            assert_eq!(output.status.code(), Some(status), "{program} {arguments:?}");
        }
    }
    for (program, arguments) in
        [("nvmf-target", &["--help"][..]), ("nvmf-bench", &["--help"]), ("nvmf-target", &["serve", "--help"])]
    {
        for stderr in [full(), closed()] {
            let output = run_other(program, arguments, full(), stderr);
            assert_eq!(output.status.code(), Some(1), "{program} {arguments:?}");
        }
    }
}

#[test]
fn target_serves_where_its_outputs_are_full() {
    let site = Site::new("full").expect("a site");
    let address = site.address.to_string();
    let arguments = ["serve", "--memory", "1MiB", "--listen", &address, "--nqn", &site.nqn];
    let mut call = Command::new(process::program("nvmf-target").expect("nvmf-target"));
    call.args(arguments).stdin(Stdio::null()).stdout(full()).stderr(full()).env("NVMF_LOG", "trace");
    let mut target = call.spawn().expect("nvmf-target");
    let asks = || succeeds(&mut site.call("id-ctrl", &["-n", &site.nqn]).expect("nvmf")).is_ok();
    let serves = process::until("it serves", asks);
    let again = asks();
    process::signal(target.id(), "TERM").expect("it runs");
    let ended = process::end(&mut target).expect("it ends");
    serves.expect("it does");
    assert!(again && ended.success(), "{ended}");
}
