//! NVIDIA files that are registered in io_urings: nobody's descriptor table has them, and they are held all the same.
//!
//! Always true: what an io_uring is, is told by its `file->f_op`. Kernels built without CONFIG_KALLSYMS_ALL do not list
//! that symbol (and reading /proc/kallsyms takes 50 ms), so a tiny iterator reads it from a ring of our own.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use super::bpf;
use crate::event::{DeviceNode, Hold};

use super::decode::Tokens;

/// Bytes of one fdinfo that are read: thousands of registered files.
const FDINFO_MAX: u64 = 1 << 20;
/// Address of the program's 8 bytes of stack.
const SLOT: i16 = -8;
/// `BPF_FUNC_seq_write`.
const SEQ_WRITE: i32 = 127;

/// What identifies an io_uring, and the ring that told it.
#[derive(Debug)]
pub(super) struct Operations {
    /// Address of `io_uring_fops`.
    pub(super) address: u64,
    /// Keep it until all programs are loaded: a closed ring's exit work counts as a signal to this thread for some
    /// milliseconds, and the verifier gives up with EAGAIN when a signal is pending (kernel/bpf/verifier.c, do_check).
    pub(super) ring: OwnedFd,
}

/// Learns `io_uring_fops` of the running kernel, given where `file.f_op` lies and which function `bpf_iter_task_file` is.
///
/// # Errors
/// io_uring is not available, or the kernel is older than 6.1 and cannot run an iterator over one process.
pub(super) fn operations(file_op: u32, iter_task_file: u32) -> io::Result<Operations> {
    let ring = bpf::own_ring()?;
    let instructions = program(ring.as_raw_fd(), i16::try_from(file_op).map_err(io::Error::other)?);
    let program = bpf::load_iterator(bpf::IteratorProgram {
        name: "io_uring_fops",
        instructions: &instructions,
        functions: None,
        target: iter_task_file,
    })?;
    let link = bpf::link_iterator(program.as_fd(), Some(std::process::id()))?;
    let mut address = [0; 8];
    bpf::run_iterator(link.as_fd())?.read_exact(&mut address)?;
    Ok(Operations { address: u64::from_ne_bytes(address), ring })
}

/// `if (ctx->file && ctx->fd == fd) bpf_seq_write(ctx->meta->seq, &ctx->file->f_op, 8); return 0;`
fn program(fd: i32, file_op: i16) -> Vec<u8> {
    let words = [
        instruction(0xbf, 6, 1, 0, 0),                 // r6 = ctx
        instruction(0x79, 7, 6, 24, 0),                // r7 = ctx->file
        instruction(0x15, 7, 0, 10, 0),                // if r7 == 0 goto out
        instruction(0x61, 2, 6, 16, 0),                // r2 = ctx->fd
        instruction(0x55, 2, 0, 8, fd),                // if r2 != fd goto out
        instruction(0x79, 1, 7, file_op, 0),           // r1 = file->f_op
        instruction(0x7b, 10, 1, SLOT, 0),             // *slot = r1
        instruction(0x79, 1, 6, 0, 0),                 // r1 = ctx->meta
        instruction(0x79, 1, 1, 0, 0),                 // r1 = meta->seq
        instruction(0xbf, 2, 10, 0, 0),                // r2 = fp
        instruction(0x07, 2, 0, 0, i32::from(SLOT)),   // r2 += slot
        instruction(0xb7, 3, 0, 0, 8),                 // r3 = 8
        instruction(0x85, 0, 0, 0, SEQ_WRITE),         // seq_write(r1, r2, r3)
        instruction(0xb7, 0, 0, 0, 0),                 // out: r0 = 0
        instruction(0x95, 0, 0, 0, 0),                 // exit
    ];
    words.concat()
}

/// `struct bpf_insn` (include/uapi/linux/bpf.h): code, two registers, offset, immediate.
pub(super) fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    let [o0, o1] = offset.to_ne_bytes();
    let [i0, i1, i2, i3] = immediate.to_ne_bytes();
    [code, registers, o0, o1, i0, i1, i2, i3]
}

/// The NVIDIA files that are registered in the ring which `ring` describes, from its fdinfo.
///
/// # Errors
/// The file cannot be read: the process may be gone, or its descriptor closed.
pub(super) fn registered(ring: &Hold, devices: &[DeviceNode], tokens: Tokens) -> io::Result<Vec<Hold>> {
    let thread = ring.tid.unwrap_or(ring.id.tgid());
    let path = format!("/proc/{}/task/{thread}/fdinfo/{}", ring.id.tgid(), ring.fd);
    let mut text = Vec::new();
    fs::File::open(path)?.take(FDINFO_MAX).read_to_end(&mut text)?;
    Ok(from_fdinfo(&String::from_utf8_lossy(&text), ring, devices, tokens))
}

/// Lines between "UserFiles:" and the next heading: "    3: /dev/nvidia0" (io_uring/fdinfo.c).
fn from_fdinfo(text: &str, ring: &Hold, devices: &[DeviceNode], tokens: Tokens) -> Vec<Hold> {
    let lines = text.lines().skip_while(|line| !line.starts_with("UserFiles:")).skip(1);
    let slots = lines.map_while(|line| {
        let (slot, path) = line.split_once(": ")?;
        Some((slot.trim().parse::<u32>().ok()?, path.trim()))
    });
    let held = |(slot, path): (u32, &str)| {
        let node = devices.iter().find(|node| is_at(&node.path, path))?;
        Some(Hold { dev: node.dev, file: tokens.registered(ring.file, slot), ..ring.clone() })
    };
    slots.filter_map(held).collect()
}

/// Is `path`, which may be one of another mount namespace, that of this node? A node that is known by number only has a
/// bare name for a path. Kernels before 6.13 or so print only the last component (`d_iname`), which must do then.
fn is_at(node: &str, path: &str) -> bool {
    if !path.contains('/') {
        return node.rsplit('/').next() == Some(path);
    }
    if node.starts_with('/') { node == path } else { path.strip_prefix("/dev/").is_some_and(|rest| rest == node) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Dev, ProcessId, Via};

    #[test]
    fn registered_nvidia_files_are_found_in_fdinfo() {
        let text = "pos:\t0\nflags:\t02000002\nSqMask:\t0x0\nUserFiles:\t4\n    0: /dev/nvidia0\n    1: /tmp/other: thing\n    \
            3: /dev/nvidiactl\nUserBufs:\t0\n    5: /dev/nvidia0\n";
        let nodes = [
            DeviceNode { dev: Dev::new(195, 0), path: "/dev/nvidia0".to_owned() },
            DeviceNode { dev: Dev::new(195, 255), path: "nvidiactl".to_owned() },
        ];
        let ring = Hold { id: ProcessId(9, 1), fd: 4, file: 77, via: Some(Via::IoUring), ..Hold::default() };
        let held = from_fdinfo(text, &ring, &nodes, Tokens::with_key(5));
        assert_eq!(held.iter().map(|hold| hold.dev).collect::<Vec<_>>(), [Dev::new(195, 0), Dev::new(195, 255)]);
        assert!(held.iter().all(|hold| hold.fd == 4 && hold.via == Some(Via::IoUring) && hold.id == ring.id));
        assert_ne!(held[0].file, held[1].file);
        // Linux 6.1 and 6.12 print names without folders.
        let old = from_fdinfo("UserFiles:\t2\n    0: nvidia0\n    1: nvidia7\n", &ring, &nodes, Tokens::with_key(5));
        assert_eq!(old.iter().map(|hold| hold.dev).collect::<Vec<_>>(), [Dev::new(195, 0)]);
        assert!(from_fdinfo("UserFiles:\tgarbage", &ring, &nodes, Tokens::with_key(5)).is_empty());
    }
}
