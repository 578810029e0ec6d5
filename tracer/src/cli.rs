//! The command line as plain data.
//!
//! Always true: no I/O happens here; help texts here are the manual's source. Exit codes: 0 nothing outlives its owner,
//! 3 something does, 4 cannot tell, 1 failure, 2 usage.

use crate::offline::Moment;
use crate::source::kernel::Wanted;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Says exactly why GPU memory outlived its owner.
#[derive(Clone, Debug, Parser)]
#[command(name = "outlive", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Options of every subcommand.
    #[command(flatten)]
    pub common: Common,
}

const EXIT_CODES: &str = "Exit codes: 0 nothing outlives its owner; 3 something does; 4 cannot tell (without NVML's figures, for one); 1 failure; 2 usage.
outlive explains and proposes; it never sends a signal and never resets a GPU.";

/// Options of every subcommand.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Which device nodes count as NVIDIA files.
    #[arg(long, global = true, value_name = "GLOB", default_value = "/dev/nvidia*", value_parser = parse_pattern)]
    pub devices: String,
    /// NVML library to load instead of the system's libnvidia-ml.so.1.
    #[arg(long, global = true, value_name = "PATH")]
    pub nvml: Option<PathBuf>,
    /// How to hook the kernel.
    #[arg(long, global = true, value_enum, default_value_t = Hooks::Auto)]
    pub hooks: Hooks,
    /// When to use colours.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// Show everything: all evidence, all descriptors, all zombies; and log what outlive does.
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

/// How to hook the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Hooks {
    /// The best that the kernel allows: the driver's own functions where they can be probed, else system calls.
    Auto,
    /// The driver's own functions; what cannot be probed is a limit.
    Driver,
    /// Tracepoints on syscalls: works on hardened kernels.
    Syscall,
}

impl Hooks {
    /// For the kernel's side.
    #[must_use]
    pub const fn wanted(self) -> Wanted {
        match self {
            Hooks::Auto => Wanted::Auto,
            Hooks::Driver => Wanted::Driver,
            Hooks::Syscall => Wanted::Syscall,
        }
    }
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set or TERM is "dumb".
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Say why GPU memory is held: now (as root), or at the end of a trace (anywhere).
    Explain(Explain),
    /// Record what happens to GPU processes into a trace file, until stopped.
    Record(Record),
    /// Show how processes ended: signal, exit, release, zombie, reap, memory back.
    Timeline(Timeline),
    /// For job prologues and epilogues: wait until nothing outlives its owner; the exit code is the verdict.
    Check(Check),
    /// Say what can be seen on this host, and what cannot.
    Doctor(Doctor),
    /// Explain a recorded incident of a real H200: needs no GPU and no root.
    Demo(Demo),
}

/// `outlive explain`.
#[derive(Args, Clone, Debug, Default)]
pub struct Explain {
    /// Only this GPU (NVML index).
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,
    /// Only what this process owns or holds.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Explain this trace file instead of the running host.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// With --trace: explain this moment instead of the end (RFC 3339, or +SECONDS from the start).
    #[arg(long, value_name = "TIME", requires = "trace", value_parser = Moment::parse)]
    pub at: Option<Moment>,
    /// Explain the running host with the history of a recording of the same boot (a recorder may still be writing it).
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    pub history: Option<PathBuf>,
    /// JSON, schema outlive.explanation/1.
    #[arg(long)]
    pub json: bool,
}

/// `outlive record`.
#[derive(Args, Clone, Debug)]
pub struct Record {
    /// Trace file to create; never overwrites. Default: outlive-HOST-TIME.jsonl.zst in the current folder.
    #[arg(short, long, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// Stop after this long ("90s", "2h").
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,
    /// Number the files (PATH.000001...) and start a new one when this one has reached SIZE ("256MiB"; at least 64KiB).
    #[arg(long, value_name = "SIZE", value_parser = parse_rotate_size)]
    pub rotate_size: Option<u64>,
    /// With --rotate-size: keep this many files; older ones of this run are deleted.
    #[arg(long, value_name = "N", requires = "rotate_size", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: Option<u32>,
}

/// `outlive timeline`.
#[derive(Args, Clone, Debug)]
pub struct Timeline {
    /// Trace file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Only this process.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// JSON.
    #[arg(long)]
    pub json: bool,
}

/// `outlive check`.
#[derive(Args, Clone, Debug)]
pub struct Check {
    /// Only this GPU (NVML index).
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,
    /// Look again until nothing outlives its owner or this time is over ("30s").
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration)]
    pub wait: Option<Duration>,
    /// Tolerate this much outliving memory in all ("512MiB").
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_held: Option<u64>,
}

/// `outlive doctor`.
#[derive(Args, Clone, Debug)]
pub struct Doctor {
    /// JSON.
    #[arg(long)]
    pub json: bool,
}

/// `outlive demo`.
#[derive(Args, Clone, Debug)]
pub struct Demo {
    /// JSON.
    #[arg(long)]
    pub json: bool,
}

fn parse_pattern(text: &str) -> Result<String, glob::PatternError> {
    glob::Pattern::new(text).map(|_| text.to_owned())
}

/// "512MiB", "2G", "65536": a count of bytes; K, M, G, T are powers of 1024, with or without "iB" or "B".
///
/// # Errors
/// A sentence that says what a size looks like.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is not a size; write a number and K, M, G or T, like 256MiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let shift = match text[digits..].trim().to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A new file begins with all that is known so far; smaller ones would hold nothing else.
const ROTATE_SIZE_MIN: u64 = 64 << 10;

fn parse_rotate_size(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    if size < ROTATE_SIZE_MIN { Err("a file must hold at least 64KiB".to_owned()) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("65536"), Ok(65_536));
        assert_eq!(parse_size("1kb"), Ok(1024));
        for wrong in ["", "MiB", "-1", "1.5G", "1X", "99999999999T"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
