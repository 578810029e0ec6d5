//! From answers to what people and machines read.
//!
//! Always true: pure functions of an [`Explanation`](crate::explanation::Explanation) or a timeline to a string;
//! everything that came from another process is escaped here and nowhere else.

pub mod escape;
pub mod layout;
pub mod text;
pub mod timeline;
