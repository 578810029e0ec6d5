//! Scenario programs.
fn main() {}
