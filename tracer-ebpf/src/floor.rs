//! Empty programs on the hooks of `outlive record`: what merely being called costs. Used by `cargo xtask bench` only.
//!
//! Always true: one program per hook of the real object, under the same name, doing nothing.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod empty {
    use aya_ebpf::{
        macros::{raw_tracepoint, tracepoint},
        programs::{RawTracePointContext, TracePointContext},
    };

    macro_rules! raw_tracepoints {
        ($($name:ident)*) => {$(
            #[raw_tracepoint]
            fn $name(_: RawTracePointContext) -> i32 {
                0
            }
        )*};
    }

    macro_rules! tracepoints {
        ($($name:ident)*) => {$(
            #[tracepoint]
            fn $name(_: TracePointContext) -> u32 {
                0
            }
        )*};
    }

    raw_tracepoints! { sched_process_fork sched_process_exec sched_process_exit sched_process_free signal_generate signal_deliver }
    tracepoints! {
        sys_exit_open sys_exit_openat sys_exit_openat2 sys_exit_creat sys_exit_dup sys_exit_dup2 sys_exit_dup3 sys_exit_fcntl sys_enter_close
        sys_exit_close_range sys_enter_ioctl sys_exit_ioctl sys_exit_sendmsg sys_exit_sendmmsg sys_exit_recvmsg sys_exit_recvmmsg
        sys_exit_pidfd_getfd sys_exit_wait4 sys_exit_waitid mark_victim
    }
}

/// Like the real object's.
#[cfg(target_arch = "bpf")]
#[expect(unsafe_code, reason = "the kernel looks for this section")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";

/// Never reached.
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
