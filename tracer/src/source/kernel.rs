//! The kernel's view.
pub mod btf;
pub mod decode;
