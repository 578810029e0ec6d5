//! What each Xid means for memory: in plain words, whether it can stop memory from being freed, and what ends that.
//!
//! Numbers and names: `nverror.h` of NVIDIA's open kernel modules, and NVIDIA's Xid catalog
//! (docs.nvidia.com/deploy/xid-errors). Always true: pure; an unknown number has no entry, and nothing is said of it.

/// What becomes of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// It can be freed: at most one program has ended or is broken.
    Freed,
    /// Freeing it may fail, or never end.
    Stuck,
    /// The GPU has less of it from now on.
    Smaller,
}

/// What it takes to be well again. Ordered: later costs more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WayOut {
    /// Nothing, or a new start of the program.
    Restart,
    /// A reset of the GPU.
    Reset,
    /// A reboot: the GPU cannot be reached to be reset.
    Reboot,
}

/// One Xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What happened.
    pub meaning: &'static str,
    /// To memory.
    pub memory: Memory,
    /// What ends it.
    pub way_out: WayOut,
}

const fn facts(meaning: &'static str, memory: Memory, way_out: WayOut) -> Facts {
    Facts { meaning, memory, way_out }
}

use Memory::{Freed, Smaller, Stuck};
use WayOut::{Reboot, Reset, Restart};

const TABLE: &[(u32, Facts)] = &[
    (13, facts("a program's kernel made a fault in a compute or graphics engine", Freed, Restart)),
    (31, facts("a program used an address that is not mapped (MMU fault)", Freed, Restart)),
    (32, facts("a program's command buffer was invalid or corrupted", Freed, Restart)),
    (43, facts("the GPU stopped a program's channel after a fault of it", Freed, Restart)),
    (45, facts("channels were removed because their program ended or an earlier error struck it", Freed, Restart)),
    (48, facts("an uncorrectable memory error (double-bit ECC)", Smaller, Reset)),
    (58, facts("an error of the memory controller", Freed, Reset)),
    (62, facts("the GPU's power controller (PMU) halted", Freed, Reset)),
    (63, facts("a memory page was retired, or a row is to be remapped", Smaller, Reset)),
    (64, facts("a memory page or row could not be retired", Smaller, Reset)),
    (68, facts("a fault in the video decoder", Freed, Restart)),
    (69, facts("a program used an engine in a wrong way (class error)", Freed, Restart)),
    (74, facts("an NVLink error", Freed, Reset)),
    (79, facts("the GPU has fallen off the bus", Stuck, Reboot)),
    (92, facts("many single-bit memory errors", Smaller, Restart)),
    (94, facts("an uncorrectable memory error that was contained in one program", Freed, Restart)),
    (95, facts("an uncorrectable memory error that was not contained", Stuck, Reset)),
    (119, facts("the GPU's firmware (GSP) did not answer a request of the driver in time", Stuck, Reset)),
    (120, facts("the GPU's firmware (GSP) failed", Stuck, Reset)),
    (121, facts("an error of the link to the CPU (C2C)", Freed, Reset)),
    (137, facts("an NVLink access that is not allowed", Freed, Restart)),
    (140, facts("an uncorrectable memory error from which the driver cannot recover", Stuck, Reset)),
    (143, facts("the GPU could not be initialised", Freed, Reset)),
    (149, facts("an NVLink error (NETIR)", Freed, Reset)),
    (155, facts("an NVLink error that software defines", Freed, Reset)),
    (156, facts("a part of the GPU was retired", Smaller, Reset)),
    (157, facts("a part of the GPU could not be retired", Smaller, Reset)),
    (158, facts("the GPU did not answer in time, for good", Stuck, Reset)),
    (160, facts("a memory channel was retired", Smaller, Reset)),
    (161, facts("a memory channel could not be retired", Smaller, Reset)),
    (167, facts("the GPU did not answer over PCIe in time, for good", Stuck, Reset)),
    (168, facts("the GPU works with less memory than it has", Smaller, Reset)),
    (171, facts("an uncorrectable error in the GPU's memory", Smaller, Reset)),
    (172, facts("an uncorrectable error in memory inside the GPU (SRAM)", Freed, Reset)),
    (173, facts("the link to the CPU (C2C) did not answer in time, for good", Freed, Reset)),
];

/// What is known of an Xid; 154 says it in its message ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)").
#[must_use]
pub fn of(code: u32, message: &str) -> Option<Facts> {
    if code != 154 {
        return TABLE.iter().find(|(known, _)| *known == code).map(|(_, facts)| *facts);
    }
    let wanted = wanted(message);
    let asks = |word| wanted.contains(word);
    Some(match () {
        () if asks("reboot") => facts("the driver asks for a reboot of the host", Stuck, Reboot),
        () if asks("reset") => facts("the driver asks for a reset of the GPU", Stuck, Reset),
        () if asks("drain") => facts("the driver asks to end all use of the GPU by other GPUs", Freed, Restart),
        () if is_all_clear(code, message) => facts("the driver no longer asks for a recovery of the GPU", Freed, Restart),
        () => facts("the driver changed what it asks for to recover the GPU", Freed, Restart),
    })
}

/// The driver says that nothing is to be done for the GPU any more.
#[must_use]
pub fn is_all_clear(code: u32, message: &str) -> bool {
    code == 154 && wanted(message).contains("none")
}

/// What Xid 154 asks for from now on.
fn wanted(message: &str) -> String {
    message.rsplit(" to ").next().unwrap_or(message).to_ascii_lowercase()
}

impl Facts {
    /// What follows for memory on that GPU.
    #[must_use]
    pub const fn implies(&self) -> &'static str {
        match (self.memory, self.way_out) {
            (Stuck, Reboot) => "memory on it cannot be freed before the host is rebooted",
            (Stuck, _) => "memory on it may not be freed before the GPU is reset, and that can fail too",
            (Smaller, _) => "the GPU has less usable memory after that; that is no leak",
            (Freed, Reset) => "memory can still be freed; NVIDIA asks for a reset of the GPU",
            (Freed, _) => "it breaks or ends a program, and its memory can be freed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_says_something_of_each() {
        assert!(TABLE.is_sorted_by_key(|(code, _)| *code));
        assert!(TABLE.iter().all(|(_, facts)| !facts.meaning.is_empty() && !facts.meaning.ends_with('.')));
        assert_eq!(of(7, ""), None);
        // What shared notes call "cannot free": GPU lost, ECC, GSP, fatal timeouts.
        let stuck: Vec<u32> = TABLE.iter().filter(|(_, facts)| facts.memory == Stuck).map(|(code, _)| *code).collect();
        assert_eq!(stuck, [79, 95, 119, 120, 140, 158, 167]);
    }

    #[test]
    fn xid_154_says_in_words_what_it_asks_for() {
        let way_out = |message| of(154, message).map(|facts| (facts.memory, facts.way_out));
        assert_eq!(way_out("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"), Some((Stuck, Reset)));
        assert_eq!(way_out("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)"), Some((Stuck, Reboot)));
        assert_eq!(way_out("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"), Some((Freed, Restart)));
    }
}
