//! Developer commands: `cargo xtask <command>`.
#![expect(clippy::print_stdout, reason = "a command line tool")]

mod ebpf;
mod setup;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of outlive")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the eBPF object and put it at tracer/ebpf/outlive.bpf.o.
    Ebpf {
        /// Build it elsewhere and fail unless the committed object is the same, byte for byte.
        #[arg(long)]
        check: bool,
    },
    /// Install what `ebpf` needs.
    Setup,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Ebpf { check } => ebpf::run(check),
        Command::Setup => setup::run(),
    }
}
