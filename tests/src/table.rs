//! docs/accuracy.md, made of outcomes.
//!
//! Always true: pure; every cell comes from an outcome; what was not played is an empty cell, never a right one.

use crate::outcome::Outcome;
use crate::scenario::Scenario;

/// The page.
#[must_use]
pub fn page(_scenarios: &[Scenario], _places: &[(String, Vec<Outcome>)]) -> String {
    String::new()
}
