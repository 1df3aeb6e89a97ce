//! The header in the repository is what cbindgen makes of the library.

use std::path::Path;

#[test]
fn header_is_of_this_source() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("a configuration");
    let mut builder = cbindgen::Builder::new().with_config(config);
    // The order of the header.
    for file in ["boundary", "disk", "memory", "blocking", "submitted"] {
        builder = builder.with_src(folder.join(format!("src/{file}.rs")));
    }
    let mut made = Vec::new();
    builder.generate().expect("a header").write(&mut made);
    let made = String::from_utf8(made).expect("UTF-8");
    let path = folder.join("include/nvmf.h");
    if std::env::var_os("NVMF_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).expect("the header is written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == kept,
        "include/nvmf.h is not what the source says: NVMF_WRITE_HEADER=1 cargo test -p nvmf-capi --test header"
    );
}
