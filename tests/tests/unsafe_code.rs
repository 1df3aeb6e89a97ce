//! How much unsafe code there is, and where: `tests/unsafe_code.txt` has each file with its number of unsafe blocks, functions,
//! implementations and extern blocks. More of it is a decision that a reader of a change sees.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const KINDS: [&str; 4] = ["{", "fn ", "impl", "extern "];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

fn count(source: &str) -> usize {
    let code = source.lines().filter_map(|line| line.split("//").next());
    code.flat_map(|line| line.split("unsafe ").skip(1))
        .filter(|rest| KINDS.iter().any(|kind| rest.starts_with(kind)))
        .count()
}

/// What the file of Rust files in `folder` is, for each that has any.
fn add(folder: &Path, found: &mut BTreeMap<String, usize>) {
    for entry in fs::read_dir(folder).expect("the folder can be read").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        if path.is_dir() {
            add(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let number = count(&fs::read_to_string(&path).expect("a source can be read"));
            if number > 0 {
                let name = path.strip_prefix(root()).expect("it is below the root");
                found.insert(name.display().to_string(), number);
            }
        }
    }
}

#[test]
fn unsafe_code_is_where_it_is_known_to_be_and_no_more_of_it() {
    let mut found = BTreeMap::new();
    add(&root(), &mut found);
    found.remove("tests/tests/unsafe_code.rs");
    let mut text = String::new();
    found.iter().for_each(|(file, number)| writeln!(text, "{number:4} {file}").expect("a String takes it"));
    let known = root().join("tests/unsafe_code.txt");
    if std::env::var_os("NVMF_UNSAFE_CODE_UPDATE").is_some() {
        fs::write(&known, &text).expect("it can be written");
    }
    let known = fs::read_to_string(known).unwrap_or_default();
    let only_in = |a: &str, b: &str| {
        let lines = a.lines().filter(|line| !b.lines().any(|other| other == *line));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert!(
        text == known,
        "the unsafe code has changed. There is now:\n{}\nThere was:\n{}\nIf it is less, or cannot be done without: NVMF_UNSAFE_CODE_UPDATE=1 cargo \
         test -p nvmf-tests --test unsafe_code writes tests/unsafe_code.txt",
        only_in(&text, &known),
        only_in(&known, &text)
    );
}

#[test]
fn comments_and_lints_are_not_counted() {
    assert_eq!(
        count(
            "// unsafe { }\n#![deny(unsafe_code)]\nlet a = unsafe { b() }; // unsafe { }\nunsafe fn f() {}\nunsafe impl Send for A {}\n"
        ),
        3
    );
}
