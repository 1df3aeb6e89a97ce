//! How the shared library is linked.

fn main() {
    // Programs find it under this name at run time: it changes when the C interface does.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvmf.so.0");
    // Its threads may still run when a program closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
