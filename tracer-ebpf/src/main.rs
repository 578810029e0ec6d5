//! eBPF programs.
fn main() {}
