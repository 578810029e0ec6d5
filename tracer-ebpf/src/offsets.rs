//! Offsets of kernel structure members, found in the running kernel's BTF and given to the programs before they load.
//!
//! rustc emits no CO-RE relocations, so user space resolves each member and overrides the `OFFSETS` constant in
//! `.rodata`; the verifier then sees constants. [`MISSING`] marks a member that this kernel does not have and
//! that the programs can do without.

/// A member that this kernel lacks.
pub const MISSING: u32 = u32::MAX;

macro_rules! offsets {
    ($($field:ident: $structure:literal . $member:literal, $size:literal, $required:literal;)*) => {
        /// One `u32` byte offset per member; the names are `<struct>_<member>`.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Offsets { $(#[doc = concat!("`", $structure, ".", $member, "`, ", $size, " bytes.")] pub $field: u32,)* }

        impl Offsets {
            /// Every member absent.
            pub const UNRESOLVED: Offsets = Offsets { $($field: MISSING,)* };
            /// What to look up: (field, struct, member path, size in bytes, needed by every program).
            pub const WANTED: &'static [Wanted] = &[$(Wanted {
                field: stringify!($field), structure: $structure, member: $member, size: $size, required: $required,
            },)*];

            /// Sets the offset of the `index`-th entry of [`Offsets::WANTED`]; false when there is none.
            pub fn set(&mut self, index: usize, offset: u32) -> bool {
                let mut at = 0;
                $(if at == index { self.$field = offset; return true; } at += 1;)*
                let _ = at;
                false
            }
        }
    };
}

/// One member to look up.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Field of [`Offsets`].
    pub field: &'static str,
    /// Kernel structure.
    pub structure: &'static str,
    /// Member, dotted for members of embedded structures; alternatives of other kernels separated by `|`.
    pub member: &'static str,
    /// Size that the programs read, in bytes; 0 for an embedded array or structure of which only the place matters.
    pub size: u32,
    /// Without it nothing works; otherwise what needs it is left out and declared.
    pub required: bool,
}

offsets! {
    task_pid: "task_struct"."pid", 4, true;
    task_tgid: "task_struct"."tgid", 4, true;
    task_group_leader: "task_struct"."group_leader", 8, true;
    task_start_boottime: "task_struct"."start_boottime", 8, true;
    task_real_parent: "task_struct"."real_parent", 8, true;
    task_parent: "task_struct"."parent", 8, true;
    task_ptrace: "task_struct"."ptrace", 4, true;
    task_comm: "task_struct"."comm", 16, true;
    task_flags: "task_struct"."flags", 4, true;
    task_state: "task_struct"."__state", 4, true;
    task_exit_state: "task_struct"."exit_state", 4, true;
    task_exit_code: "task_struct"."exit_code", 4, true;
    task_jobctl: "task_struct"."jobctl", 8, true;
    task_signal: "task_struct"."signal", 8, true;
    task_files: "task_struct"."files", 8, true;
    task_mm: "task_struct"."mm", 8, true;
    task_cred: "task_struct"."real_cred", 8, true;
    task_thread_pid: "task_struct"."thread_pid", 8, true;
    task_utime: "task_struct"."utime", 8, true;
    task_stime: "task_struct"."stime", 8, true;
    signal_live: "signal_struct"."live", 4, true;
    signal_flags: "signal_struct"."flags", 4, true;
    signal_group_exit_code: "signal_struct"."group_exit_code", 4, true;
    signal_pids: "signal_struct"."pids", 0, true;
    pid_level: "pid"."level", 4, true;
    pid_numbers: "pid"."numbers", 0, true;
    cred_uid: "cred"."uid", 4, true;
    files_fdt: "files_struct"."fdt", 8, true;
    fdtable_max_fds: "fdtable"."max_fds", 4, true;
    fdtable_fd: "fdtable"."fd", 8, true;
    fdtable_close_on_exec: "fdtable"."close_on_exec", 8, true;
    file_inode: "file"."f_inode", 8, true;
    file_cred: "file"."f_cred", 8, true;
    file_flags: "file"."f_flags", 4, true;
    file_mode: "file"."f_mode", 4, true;
    file_op: "file"."f_op", 8, true;
    file_private_data: "file"."private_data", 8, true;
    inode_mode: "inode"."i_mode", 2, true;
    inode_rdev: "inode"."i_rdev", 4, true;
    inode_ino: "inode"."i_ino", 8, true;
    bprm_filename: "linux_binprm"."filename", 8, true;
    sigaction_handler: "k_sigaction"."sa.sa_handler", 8, true;
    inode_sb: "inode"."i_sb", 8, false;
    sb_magic: "super_block"."s_magic", 8, false;
    dmabuf_size: "dma_buf"."size", 8, false;
    dmabuf_exp_name: "dma_buf"."exp_name", 8, false;
    socket_sk: "socket"."sk", 8, false;
    sock_family: "sock"."__sk_common.skc_family", 2, false;
    sock_receive_queue: "sock"."sk_receive_queue", 0, false;
    unix_inflight_fds: "unix_sock"."scm_stat.nr_fds", 4, false;
    skb_cb: "sk_buff"."cb", 0, false;
    unix_parms_fp: "unix_skb_parms"."fp", 8, false;
    scm_fp_count: "scm_fp_list"."count", 2, false;
    scm_fp_files: "scm_fp_list"."fp", 0, false;
    scm_cookie_fp: "scm_cookie"."fp", 8, false;
    files_next_fd: "files_struct"."next_fd", 4, false;
    fdtable_open_fds: "fdtable"."open_fds", 8, false;
}
