//! The library as C, C++ and Python use it: compiled by gcc and g++, run against a target.

use nvmf_tests::process::{self, Target};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NQN: &str = "nqn.2026-11.com.example:capi";

struct Site {
    folder: tempfile::TempDir,
    target: Target,
    /// The library's, with the name that programs load it by.
    library: PathBuf,
}

/// A target with two disks in memory of 24 MiB, the library, and a host identity of their own.
fn site() -> Site {
    site_over("transport = \"tcp\"\n", |_| String::new())
}

/// The same, with these lines of the listener, and more of the configuration.
fn site_over(listener: &str, more: impl FnOnce(&Path) -> String) -> Site {
    let folder = tempfile::tempdir().expect("a folder");
    let address = ([127, 0, 0, 1], process::free_port().expect("a port")).into();
    let config = folder.path().join("target.toml");
    let text = format!(
        "[[listener]]\naddress = \"{address}\"\n{listener}{}[[subsystem]]\nnqn = \"{NQN}\"\n\
         allow_any_host = true\n[[subsystem.namespace]]\nnsid = 1\nmemory = \"24MiB\"\nblock_size = 4096\n\
         [[subsystem.namespace]]\nnsid = 2\nmemory = \"24MiB\"\nblock_size = 512\n",
        more(folder.path())
    );
    std::fs::write(&config, text).expect("a configuration");
    let program = process::program("nvmf-target").expect("nvmf-target");
    let target = Target::serve(&program, &config, address, &folder.path().join("log")).expect("a target");
    let built = process::program("libnvmf.so").expect("cargo build -p nvmf-capi");
    let library = folder.path().join("lib");
    std::fs::create_dir(&library).expect("a folder");
    for name in ["libnvmf.so", "libnvmf.so.0"] {
        std::os::unix::fs::symlink(&built, library.join(name)).expect("a link");
    }
    Site { folder, target, library }
}

impl Site {
    fn uri(&self, nsid: u32) -> String {
        format!("nvme+tcp://{}/{NQN}/{nsid}", self.target.address)
    }

    /// Compiles a program, with warnings that are errors.
    fn compiled(&self, compiler: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = self.folder.path().join(source.replace('/', "-"));
        let mut command = Command::new(compiler);
        command
            .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread"])
            .args(arguments)
            .arg(folder.join(source))
            .arg(format!("-I{}", folder.join("include").display()))
            .arg(format!("-L{}", self.library.display()))
            .args(["-lnvmf", "-o"])
            .arg(&program);
        let output = command.output().unwrap_or_else(|error| {
            panic!("{compiler} cannot be started: {error}. Install it (Debian, Ubuntu: apt install gcc g++)")
        });
        assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
        program
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_LIBRARY_PATH", &self.library);
        // An identity is made there.
        command.env("XDG_CONFIG_HOME", self.folder.path());
        command.output().unwrap_or_else(|error| {
            panic!("{} cannot be started: {error}. Install it (apt install python3)", program.display())
        })
    }

    fn says(&self, program: &Path, arguments: &[&str], text: &str) {
        let output = self.run(program, arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {error}\n{}", output.status, self.target.log());
        assert_eq!(String::from_utf8_lossy(&output.stdout), text, "{error}");
    }
}

#[test]
fn header_holds_what_it_promises() {
    let site = site();
    let program = site.compiled("gcc", "tests/unit.c", &["-std=c11"]);
    let nobody = format!("nvme+tcp://127.0.0.1:{}/{NQN}/1", process::free_port().expect("a port"));
    let silent = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let mute = format!("nvme+tcp://{}/{NQN}/1", silent.local_addr().expect("its address"));
    site.says(&program, &[&site.uri(1), &nobody, &mute], "good\n");
    site.target.stop().expect("the target stops");
}

#[test]
fn example_copies_a_disk_and_python_reads_it() {
    let site = site();
    let python = Path::new("python3");
    let read = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/read.py");
    let read = read.to_str().expect("UTF-8");
    let copy = site.compiled("gcc", "examples/copy.c", &["-std=c11"]);
    // C++ reads the header too.
    site.compiled("g++", "tests/header.cc", &["-std=c++17"]);
    let write = "import ctypes, sys; nvmf = ctypes.CDLL('libnvmf.so.0'); disk = ctypes.c_void_p(); \
                 print(nvmf.nvmf_open(sys.argv[1].encode(), None, ctypes.byref(disk)), \
                 nvmf.nvmf_pwrite(disk, b'from Python', ctypes.c_size_t(11), ctypes.c_uint64(0), 1))";
    site.says(python, &["-c", write, &site.uri(1)], "0 11\n");
    site.says(&copy, &[&site.uri(1), &site.uri(2), "queue-size=32"], "25165824 bytes copied\n");
    site.says(python, &[read, &site.uri(2)], "from Python\n");
    let output = site.run(&copy, &[&site.uri(1), &site.uri(3)]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("no namespace 3"), "{error}");
    site.target.stop().expect("the target stops");
}

#[test]
fn disks_are_closed_while_threads_and_the_process_end() {
    let site = site();
    let program = site.compiled("g++", "tests/ending.cc", &["-std=c++17"]);
    let target = site.target.pid().to_string();
    site.says(&program, &[&site.uri(1), &target], "closed\nclosed\nclosed\nclosed\nclosed\n");
    site.target.stop().expect("the target stops");
}

#[test]
fn header_holds_what_it_promises_over_rdma() {
    let site = site_over("provider = \"iwarp\"\n", |_| String::new());
    let program = site.compiled("gcc", "tests/unit.c", &["-std=c11"]);
    let over_rdma = |uri: String| uri.replace("nvme+tcp:", "nvme+rdma:");
    let nobody = format!("nvme+rdma://127.0.0.1:{}/{NQN}/1", process::free_port().expect("a port"));
    let silent = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let mute = format!("nvme+rdma://{}/{NQN}/1", silent.local_addr().expect("its address"));
    site.says(&program, &[&over_rdma(site.uri(1)), &nobody, &mute], "good\n");
    site.target.stop().expect("the target stops");
}

#[test]
fn disk_is_copied_over_tls() {
    let host = "nqn.2014-08.org.nvmexpress:uuid:3a6f2f5e-52a1-4a1c-8a5a-7ad5f31d22a5";
    let site = site_over("transport = \"tcp\"\ntls = \"required\"\n", |folder| {
        let key = folder.join("key");
        let mut made = Command::new(process::program("nvmf").expect("nvmf"));
        made.args(["gen-tls-key", "--keyfile"]).arg(&key);
        assert!(process::run(&mut made).expect("nvmf").status.success());
        format!("[[host]]\nnqn = \"{host}\"\ntls_key_file = \"{}\"\n", key.display())
    });
    let copy = site.compiled("gcc", "examples/copy.c", &["-std=c11"]);
    let (from, to, as_host) = (site.uri(1), site.uri(2), format!("hostnqn={host}"));
    let key = format!("tls-key-file={}", site.folder.path().join("key").display());
    site.says(&copy, &[&from, &to, &as_host, &key], "25165824 bytes copied\n");
    let output = site.run(&copy, &[&from, &to, &as_host]);
    assert!(!output.status.success(), "a target that requires TLS was reached without");
    site.target.stop().expect("the target stops");
}

/// The first path leads nowhere; the second is there.
#[test]
fn disk_is_copied_over_the_path_that_is_there() {
    let site = site();
    let copy = site.compiled("gcc", "examples/copy.c", &["-std=c11"]);
    let nobody = process::free_port().expect("a port");
    let uri = |nsid| format!("nvme+tcp://127.0.0.1:{nobody}/{NQN}/{nsid}");
    let path = format!("path=nvme+tcp://{}", site.target.address);
    site.says(&copy, &[&uri(1), &uri(2), &path, "iopolicy=round-robin"], "25165824 bytes copied\n");
    let output = site.run(&copy, &[&uri(1), &uri(2)]);
    assert!(!output.status.success(), "nobody is there");
    // Names that have no address now: one of them may be the first.
    let unknown = |nsid| format!("nvme+tcp://storage-b.invalid:4421/{NQN}/{nsid}");
    site.says(&copy, &[&unknown(1), &unknown(2), &path], "25165824 bytes copied\n");
    let away = "path=nvme+tcp://storage-b.invalid";
    let known = |nsid| site.uri(nsid);
    site.says(&copy, &[&known(1), &known(2), away], "25165824 bytes copied\n");
    let output = site.run(&copy, &[&unknown(1), &unknown(2), away]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("storage-b.invalid"), "{said}");
    site.target.stop().expect("the target stops");
}

/// Nothing but the interface is seen from outside, and it is found under its name.
#[test]
fn library_exports_its_functions_and_no_others() {
    let built = process::program("libnvmf.so").expect("cargo build -p nvmf-capi");
    let said = |arguments: &[&str]| {
        let output =
            Command::new(arguments[0]).args(&arguments[1..]).arg(&built).output().unwrap_or_else(|error| {
                panic!("{} cannot be started: {error}. Install it (apt install binutils)", arguments[0])
            });
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let header = include_str!("../include/nvmf.h");
    let symbols = said(&["nm", "-D", "--defined-only"]);
    let names: Vec<&str> = symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert!(names.len() > 25, "{names:?}");
    for name in names {
        assert!(header.contains(&format!("{name}(")), "{name} is exported and not in the header");
    }
    assert!(said(&["readelf", "-d"]).contains("[libnvmf.so.0]"));
}
