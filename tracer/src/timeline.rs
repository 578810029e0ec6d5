//! Exit timelines (see [`crate::world`]).
