//! The helper process of [`cni_shim::namespaces`] as a program of its own, for the tests; cairn's is `cairn sandbox`.

fn main() {
    let code = cni_shim::namespaces::helper_main();
    if code != 0 {
        eprintln!("sandbox helper failed");
    }
}
