//! The structures and constants of libibverbs and librdmacm, as libclang reads their header files.

fn main() {
    println!("cargo::rerun-if-changed=headers.h");
    let bindings = bindgen::Builder::default()
        .header("headers.h")
        .allowlist_type("(_compat_)?(ibv|rdma)_.*")
        .allowlist_var("(IBV|RDMA)_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(false)
        .derive_debug(false)
        .generate()
        .expect("the header files of libibverbs-dev and librdmacm-dev");
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    bindings.write_to_file(out.join("headers.rs")).expect("the output folder takes a file");
}
