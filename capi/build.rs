//! The name under which programs find the shared library at run time: it changes when the C interface does.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvmf.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
