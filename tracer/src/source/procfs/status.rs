//! /proc/PID/status: the lines that matter. Pure.

/// Parsed lines; absent ones are zero or false.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// State letter.
    pub(super) state: String,
    /// PID of the ptracer, 0 if none, in the reader's namespace.
    pub(super) tracer: u32,
    /// Innermost PID.
    pub(super) ns_pid: Option<u32>,
    /// `SigPnd` and `ShdPnd` together.
    pub(super) pending: u64,
    /// `SigBlk`.
    pub(super) blocked: u64,
    /// `SigIgn`.
    pub(super) ignored: u64,
    /// `SigCgt`.
    pub(super) caught: u64,
    /// `CoreDumping: 1`.
    pub(super) dumping_core: bool,
    /// `Uid`, the real one.
    pub(super) uid: Option<u32>,
}

impl Status {
    /// `Name:` is escaped by the kernel (proc_task_name), so no process can forge a line.
    pub(super) fn parse(text: &str) -> Status {
        let mut status = Status::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            let number = || value.parse().unwrap_or(0);
            let mask = || u64::from_str_radix(value, 16).unwrap_or(0);
            match key {
                "State" => status.state = value.chars().take(1).collect(),
                "TracerPid" => status.tracer = number(),
                "Uid" => {
                    status.uid = value
                        .split_ascii_whitespace()
                        .next()
                        .and_then(|uid| uid.parse().ok())
                }
                "NSpid" => {
                    status.ns_pid = value
                        .split_ascii_whitespace()
                        .next_back()
                        .and_then(|pid| pid.parse().ok())
                }
                "SigPnd" | "ShdPnd" => status.pending |= mask(),
                "SigBlk" => status.blocked = mask(),
                "SigIgn" => status.ignored = mask(),
                "SigCgt" => status.caught = mask(),
                "CoreDumping" => status.dumping_core = value == "1",
                _ => {}
            }
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in ".*", value in "\\PC*") {
            Status::parse(&text);
            Status::parse(&format!("SigBlk:{value}\nUid:{value}\nNSpid:{value}\nState:{value}"));
        }
    }
}
