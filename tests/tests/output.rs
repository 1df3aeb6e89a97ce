//! What `nvmf` does where nobody takes what it prints: it ends with an exit status that says so.

use nvmf_tests::site::Site;
use std::fs::File;
use std::process::{Output, Stdio};

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
    let mut call = site.local(arguments).expect("nvmf");
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
