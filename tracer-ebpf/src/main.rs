//! The eBPF programs: one per hook, listed in [`hook`].
//!
//! Always true: a program never changes what the kernel does, filters before it reserves ring space, and counts
//! whatever it could not report in `LOST`. On other targets this is an empty program, so that the workspace builds.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod files;
#[cfg(target_arch = "bpf")]
mod hook;
#[cfg(target_arch = "bpf")]
mod kernel;
#[cfg(target_arch = "bpf")]
mod ring;
#[cfg(target_arch = "bpf")]
mod scm;
#[cfg(target_arch = "bpf")]
mod task;
#[cfg(target_arch = "bpf")]
mod tracked;

#[cfg(not(target_arch = "bpf"))]
fn main() {}

/// The helpers that read kernel memory are for GPL-compatible programs only.
#[cfg(target_arch = "bpf")]
#[expect(unsafe_code, reason = "the kernel looks for this section")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";

/// Never reached: no program panics (the verifier would refuse the endless loop).
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
