//! Developer commands: `cargo xtask <command>`.
#![expect(clippy::print_stdout, reason = "a command line tool")]

mod accuracy;
mod bench;
mod bench_loop;
mod cost;
mod driver;
mod ebpf;
mod floor;
mod man;
mod matrix;
mod run;
mod setup;
mod test;
mod tidy;
mod verifier;
mod vm;

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
    /// Install what `ebpf` needs (Debian).
    Setup {
        /// Also what `vm` needs: QEMU, busybox.
        #[arg(long)]
        vm: bool,
    },
    /// Run everything that can be tested here, and say what cannot.
    Test {
        /// Also clippy, the check of the committed object, and the guests.
        #[arg(long)]
        ci: bool,
    },
    /// Record how hard each eBPF program is to verify, here and in the guests (tracer/tests/kernel/verifier.tsv).
    Verifier,
    /// Run the matrix: the kernel tests, and every scenario with both ways to hook, under Debian's 6.1 and 6.12 in QEMU; and every scenario here.
    Vm {
        /// Only there: "6.1", "6.12" or "here".
        kernels: Vec<String>,
        /// Instead, the tests of what becomes of outlive when something else fails.
        #[arg(long)]
        faults: bool,
        /// Of these tests, only those whose name has this in it.
        #[arg(long, value_name = "NAME", requires = "faults")]
        only: Option<String>,
    },
    /// Play every scenario here and in the guests, ask the usual tools too, and write docs/accuracy.md.
    Accuracy {
        /// Only these scenarios; the page keeps what it says of the others.
        names: Vec<String>,
        /// Only there: "here", "6.1" or "6.12".
        #[arg(long)]
        at: Vec<String>,
        /// Plays nothing, and adds outcomes that tests/gpu/accuracy.sh wrote on a GPU host (h200.jsonl).
        #[arg(long)]
        add: Vec<std::path::PathBuf>,
    },
    /// Build the stand-in for NVIDIA's driver for the guests' kernels.
    Driver,
    /// House rules.
    Tidy,
    /// Write man/outlive.1.
    Man,
    /// Measure, and write docs/performance.md.
    Bench,
    /// Count what a recorder costs a program that does not use the GPU, in the guests, and write docs/cost.md.
    Cost,
    #[command(hide = true)]
    Floor,
    #[command(hide = true)]
    BenchLoop { kind: String, iterations: u64, path: String },
}

fn main() -> std::process::ExitCode {
    match dispatch() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            println!("xtask: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn dispatch() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Ebpf { check } => ebpf::run(check),
        Command::Setup { vm } => setup::run(vm),
        Command::Test { ci } => test::test(ci),
        Command::Verifier => verifier::record(),
        Command::Vm { kernels, faults: false, .. } => vm::vm(&kernels),
        Command::Vm { kernels, faults: true, only } => vm::faults(&kernels, only.as_deref().unwrap_or_default()),
        Command::Accuracy { names, at, add } => accuracy::accuracy(&names, &at, &add),
        Command::Driver => driver::driver(),
        Command::Tidy => tidy::tidy(),
        Command::Man => man::man(),
        Command::Bench => bench::bench(),
        Command::Cost => cost::cost(),
        Command::Floor => floor::run(),
        Command::BenchLoop { kind, iterations, path } => bench_loop::run(&kind, iterations, &path),
    }
}
