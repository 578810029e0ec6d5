//! Rebuilds a world from events, for the beginning of the next file.

use super::World;
use crate::event::Event;

impl World {
    /// Events that rebuild what still matters.
    #[must_use]
    pub fn carry_over(&self) -> Vec<Event> {
        Vec::new()
    }
}
