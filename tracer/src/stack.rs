//! What a kernel stack says: whether the NVIDIA driver has the thread, and what it waits for there.
//!
//! Always true: pure; frames are as /proc/PID/stack prints them, innermost first ("symbol+0x1/0x2 [module]"). The
//! innermost function that is known decides. Names are those of Linux (mm/, fs/, kernel/locking/) and of NVIDIA's
//! open kernel modules (kernel-open/nvidia, kernel-open/nvidia-uvm, src/nvidia/src/kernel/gpu/gsp); a prebuilt core
//! has names like `_nv012345rm`, which say nothing.

/// What a thread in the kernel waits for or does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// The GPU's channels do not finish their work.
    Gpu,
    /// The GPU's own firmware (GSP) does not answer.
    Firmware,
    /// A lock of the driver.
    DriverLock,
    /// A lock of the kernel.
    Lock,
    /// Work that was handed to a kernel thread.
    Deferred,
    /// It unpins and unmaps host memory: this is work, not waiting.
    Unmapping,
    /// A FUSE file server.
    Fuse,
    /// An NFS server.
    Nfs,
    /// The server of another network file system.
    RemoteFs,
    /// A disk.
    Disk,
    /// PID 1 of a namespace waits for all others in it.
    Namespace,
    /// Requests in its io_uring.
    IoUring,
}

impl Wait {
    /// Nothing of the GPU or its driver is waited for, whoever called.
    #[must_use]
    pub const fn is_outside(self) -> bool {
        matches!(self, Wait::Fuse | Wait::Nfs | Wait::RemoteFs | Wait::Disk | Wait::Namespace | Wait::IoUring)
    }

    /// It waits for a file system.
    #[must_use]
    pub const fn is_files(self) -> bool {
        matches!(self, Wait::Fuse | Wait::Nfs | Wait::RemoteFs | Wait::Disk)
    }
}

/// Functions of the driver; a `*` at the end stands for anything.
const IN_DRIVER: &[(&str, Wait)] = &[
    ("uvm_spin_loop*", Wait::Gpu),
    ("uvm_tracker_wait*", Wait::Gpu),
    ("uvm_push_wait*", Wait::Gpu),
    ("uvm_push_end_and_wait*", Wait::Gpu),
    ("uvm_channel_manager_wait*", Wait::Gpu),
    ("uvm_gpu_semaphore_*", Wait::Gpu),
    ("channel_reserve*", Wait::Gpu),
    ("uvm_channel_reserve*", Wait::Gpu),
    ("_issueRpc*", Wait::Firmware),
    ("GspMsgQueue*", Wait::Firmware),
    ("rpcRecvPoll*", Wait::Firmware),
    ("rpcSendMessage*", Wait::Firmware),
    ("_kgspRpc*", Wait::Firmware),
    ("kgspWait*", Wait::Firmware),
    ("os_acquire_*", Wait::DriverLock),
    ("nv_down_*", Wait::DriverLock),
    ("uvm_down_*", Wait::DriverLock),
    ("uvm_mutex_lock*", Wait::DriverLock),
    ("nv_kthread_q_flush*", Wait::Deferred),
    ("_raw_q_flush*", Wait::Deferred),
    ("os_unlock_user_pages*", Wait::Unmapping),
];

/// Functions of the kernel.
const IN_KERNEL: &[(&str, Wait)] = &[
    ("down", Wait::Lock),
    ("__down*", Wait::Lock),
    ("down_*", Wait::Lock),
    ("rwsem_down_*", Wait::Lock),
    ("mutex_lock*", Wait::Lock),
    ("__mutex_lock*", Wait::Lock),
    ("percpu_rwsem_wait*", Wait::Lock),
    ("queued_spin_lock_slowpath", Wait::Lock),
    ("native_queued_spin_lock_slowpath", Wait::Lock),
    ("flush_delayed_fput", Wait::Deferred),
    ("delayed_fput", Wait::Deferred),
    ("flush_work*", Wait::Deferred),
    ("__flush_work*", Wait::Deferred),
    ("exit_mmap", Wait::Unmapping),
    ("unmap_vmas", Wait::Unmapping),
    ("unmap_page_range", Wait::Unmapping),
    ("zap_pte_range", Wait::Unmapping),
    ("zap_pmd_range*", Wait::Unmapping),
    ("unpin_user_page*", Wait::Unmapping),
    ("gup_put_folio", Wait::Unmapping),
    ("free_pgtables", Wait::Unmapping),
    ("tlb_finish_mmu", Wait::Unmapping),
    ("tlb_flush_mmu*", Wait::Unmapping),
    ("release_pages", Wait::Unmapping),
    ("request_wait_answer", Wait::Fuse),
    ("fuse_*", Wait::Fuse),
    ("__fuse_*", Wait::Fuse),
    ("rpc_wait_bit_killable", Wait::Nfs),
    ("rpc_*", Wait::Nfs),
    ("__rpc_*", Wait::Nfs),
    ("nfs_*", Wait::Nfs),
    ("nfs4_*", Wait::Nfs),
    ("p9_client_*", Wait::RemoteFs),
    ("io_schedule*", Wait::Disk),
    ("submit_bio_wait", Wait::Disk),
    ("blk_mq_*", Wait::Disk),
    ("wait_on_buffer", Wait::Disk),
    ("__wait_on_buffer", Wait::Disk),
    ("folio_wait_*", Wait::Disk),
    ("jbd2_*", Wait::Disk),
    ("zap_pid_ns_processes", Wait::Namespace),
    ("io_uring_cancel_generic", Wait::IoUring),
];

/// Modules of file systems.
const MODULES: &[(&str, Wait)] = &[
    ("fuse", Wait::Fuse),
    ("nfs", Wait::Nfs),
    ("nfsv3", Wait::Nfs),
    ("nfsv4", Wait::Nfs),
    ("sunrpc", Wait::Nfs),
    ("ceph", Wait::RemoteFs),
    ("libceph", Wait::RemoteFs),
    ("cifs", Wait::RemoteFs),
    ("lustre", Wait::RemoteFs),
    ("ptlrpc", Wait::RemoteFs),
    ("mmfs26", Wait::RemoteFs),
    ("mmfslinux", Wait::RemoteFs),
    ("beegfs", Wait::RemoteFs),
    ("9pnet", Wait::RemoteFs),
];

/// Functions through which a file or its memory is released, on any thread.
const RELEASES: &[&str] = &[
    "__fput",
    "____fput",
    "delayed_fput",
    "nvidia_close*",
    "uvm_release*",
    "uvm_va_space_destroy*",
    "uvm_va_space_mm_*",
    "uvm_deferred_free_object*",
    "uvm_mmput*",
    "rm_cleanup_file_private",
    "nv_dma_buf_release*",
    "nv_p2p_*put*",
    "nvidia_p2p_*put*",
    "nvidia_dev_put*",
];

/// "uvm_spin_loop+0x1c/0x90 [nvidia_uvm]" -> "uvm_spin_loop".
#[must_use]
pub fn function(frame: &str) -> &str {
    let end = frame.find(['+', ' ']).unwrap_or(frame.len());
    frame.get(..end).unwrap_or_default()
}

/// "uvm_spin_loop+0x1c/0x90 [nvidia_uvm]" -> "nvidia_uvm".
#[must_use]
pub fn module(frame: &str) -> Option<&str> {
    let (_, inside) = frame.rsplit_once('[')?;
    // A build id may follow the name (CONFIG_STACKTRACE_BUILD_ID).
    inside.strip_suffix(']')?.split(' ').next()
}

/// The frame is in one of NVIDIA's modules, or of GPUDirect.
#[must_use]
pub fn is_driver(frame: &str) -> bool {
    module(frame).is_some_and(|module| module.starts_with("nvidia") || matches!(module, "nv_peer_mem" | "gdrdrv"))
}

/// A name alone is one of NVIDIA's driver: /proc/PID/wchan names no module.
#[must_use]
pub fn is_driver_name(name: &str) -> bool {
    let hidden = name.strip_prefix("_nv").and_then(|rest| rest.strip_suffix("rm"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    hidden.is_some_and(is_number)
        || ["uvm_", "nvidia_", "nv_", "os_acquire_", "rm_"].iter().any(|prefix| name.starts_with(prefix))
        || in_table(IN_DRIVER, name).is_some()
}

/// What a stack waits for, and the frame that says so; nothing when no function is known.
#[must_use]
pub fn wait(stack: &[String]) -> Option<(Wait, &str)> {
    let mut weak = None;
    let mut inside = false;
    for (at, frame) in stack.iter().enumerate() {
        let name = function(frame);
        if is_driver(frame) {
            if let Some(wait) = in_table(IN_DRIVER, name) {
                return Some((wait, frame));
            }
            inside = true;
            continue;
        }
        let by_module = module(frame).and_then(|module| MODULES.iter().find(|known| known.0 == module)).map(|known| known.1);
        let Some(wait) = by_module.or_else(|| in_table(IN_KERNEL, name)) else { continue };
        match wait {
            // What the driver does by itself, called from here, is not what this function does.
            _ if inside => {}
            Wait::Lock if taken_by_driver(&stack[at..]) => return Some((Wait::DriverLock, frame)),
            // Pages of a network file system are waited for in the same way.
            Wait::Disk => weak = weak.or(Some((Wait::Disk, frame.as_str()))),
            Wait::Lock if weak.is_some() => {}
            _ if weak.is_some() && !wait.is_files() => {}
            _ => return Some((wait, frame)),
        }
    }
    weak
}

/// The first function that is not itself about locks is the driver's.
fn taken_by_driver(stack: &[String]) -> bool {
    stack.iter().find(|frame| in_table(IN_KERNEL, function(frame)) != Some(Wait::Lock)).is_some_and(|frame| is_driver(frame))
}

/// The driver has the thread: it called whatever is waited for, and that is nobody else's.
#[must_use]
pub fn is_in_driver(stack: &[String]) -> bool {
    stack.iter().any(|frame| is_driver(frame)) && wait(stack).is_none_or(|(wait, _)| !wait.is_outside())
}

/// A kernel thread of the driver that waits for work: the loop of nv-kthread-q.c is all that it is in.
#[must_use]
pub fn is_idle(stack: &[String]) -> bool {
    stack.iter().find(|frame| is_driver(frame)).is_none_or(|frame| function(frame) == "_main_loop")
}

/// Something is released here.
#[must_use]
pub fn releases(stack: &[String]) -> bool {
    stack.iter().any(|frame| RELEASES.iter().any(|known| is_named(known, function(frame))))
}

fn in_table(table: &[(&str, Wait)], name: &str) -> Option<Wait> {
    table.iter().find(|(known, _)| is_named(known, name)).map(|(_, wait)| *wait)
}

/// `known` may have one `*`.
fn is_named(known: &str, name: &str) -> bool {
    // The compiler's copies of a function: "zap_pte_range.isra.0".
    let name = name.split('.').next().unwrap_or(name);
    match known.split_once('*') {
        Some((before, after)) => {
            let rest = name.strip_prefix(before);
            rest.is_some_and(|rest| after.is_empty() || rest.contains(after.trim_end_matches('*')))
        }
        None => known == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(frames: &[&str]) -> Option<Wait> {
        let stack: Vec<String> = frames.iter().map(|frame| (*frame).to_owned()).collect();
        wait(&stack).map(|(wait, _)| wait)
    }

    #[test]
    fn the_innermost_known_function_decides() {
        assert_eq!(waits(&["uvm_spin_loop+0x1/0x2 [nvidia_uvm]", "uvm_tracker_wait+0x1/0x2 [nvidia_uvm]", "exit_mmap+0x1/0x2"]), Some(Wait::Gpu));
        assert_eq!(waits(&["schedule+0x1/0x2", "_issueRpcAndWait+0x1/0x2 [nvidia]"]), Some(Wait::Firmware));
        assert_eq!(waits(&["schedule+0x1/0x2", "request_wait_answer+0x1/0x2 [fuse]", "fuse_flush+0x1/0x2 [fuse]"]), Some(Wait::Fuse));
        assert_eq!(waits(&["unpin_user_pages+0x1/0x2", "os_unlock_user_pages+0x1/0x2 [nvidia]"]), Some(Wait::Unmapping));
        assert_eq!(waits(&["zap_pte_range.isra.0+0x1/0x2", "exit_mmap+0x1/0x2"]), Some(Wait::Unmapping));
        assert_eq!(waits(&["do_exit+0x1/0x2"]), None);
        assert_eq!(waits(&[]), None);
    }

    #[test]
    fn a_lock_is_the_drivers_when_the_driver_takes_it() {
        let driver = ["rwsem_down_write_slowpath+0x1/0x2", "down_write+0x1/0x2", "os_acquire_rwlock_write+0x1/0x2 [nvidia]"];
        assert_eq!(waits(&driver), Some(Wait::DriverLock));
        assert_eq!(waits(&["__down+0x1/0x2", "down+0x1/0x2", "_nv012345rm+0x1/0x2 [nvidia]"]), Some(Wait::DriverLock));
        assert_eq!(waits(&["rwsem_down_write_slowpath+0x1/0x2", "down_write+0x1/0x2", "unlink_file_vma+0x1/0x2", "exit_mmap+0x1/0x2"]), Some(Wait::Lock));
    }

    #[test]
    fn pages_of_a_network_file_system_are_not_a_disks() {
        assert_eq!(waits(&["io_schedule+0x1/0x2", "folio_wait_bit_common+0x1/0x2", "nfs_file_read+0x1/0x2 [nfs]"]), Some(Wait::Nfs));
        assert_eq!(waits(&["io_schedule+0x1/0x2", "folio_wait_bit_common+0x1/0x2", "ext4_file_read_iter+0x1/0x2"]), Some(Wait::Disk));
    }

    #[test]
    fn what_calls_the_driver_is_not_what_it_waits_for() {
        let stack = ["msleep+0x1/0x2", "_nv012345rm+0x1/0x2 [nvidia]", "nvidia_close+0x1/0x2 [nvidia]", "__fput+0x1/0x2", "exit_mmap+0x1/0x2"];
        assert_eq!(waits(&stack), None);
        assert!(is_in_driver(&stack.map(str::to_owned)) && releases(&stack.map(str::to_owned)));
        // The driver copies from memory that a FUSE file backs.
        let fault = ["request_wait_answer+0x1/0x2 [fuse]", "handle_mm_fault+0x1/0x2", "nvidia_ioctl+0x1/0x2 [nvidia]"];
        assert!(!is_in_driver(&fault.map(str::to_owned)));
    }

    #[test]
    fn a_queue_without_work_is_idle() {
        let idle = ["down_interruptible+0x1/0x2", "_main_loop+0x1/0x2 [nvidia]", "kthread+0x1/0x2"].map(str::to_owned);
        assert!(is_idle(&idle));
        let busy = ["uvm_va_space_destroy+0x1/0x2 [nvidia_uvm]", "uvm_release_deferred+0x1/0x2 [nvidia_uvm]", "_main_loop+0x1/0x2 [nvidia_uvm]"];
        assert!(!is_idle(&busy.map(str::to_owned)) && releases(&busy.map(str::to_owned)));
    }

    proptest::proptest! {
        #[test]
        fn any_frame_is_read_without_a_panic(frames in proptest::collection::vec(".*", 0..4)) {
            let _ = (wait(&frames), is_in_driver(&frames), is_idle(&frames), releases(&frames));
            frames.iter().for_each(|frame| { let _ = (function(frame), module(frame), is_driver_name(frame)); });
        }
    }
}
