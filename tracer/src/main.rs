//! outlive.
fn main() {}
