//! One file per subcommand; the only place that prints.
//!
//! Always true: a subcommand returns an exit code or an error; the error chain is printed once, here. A reader that goes
//! away (`outlive ... | head`) is not an error.

mod check;
mod demo;
mod doctor;
mod explain;
mod output;
mod record;
mod timeline;

use crate::cli::{Cli, Command};
use crate::explanation::Explanation;
use anyhow::{Result, bail};
use clap::Parser as _;
use std::process::ExitCode;

/// Exit code of a failure.
const FAILURE: u8 = 1;
/// Exit code of a wrong command line.
const USAGE: u8 = 2;

/// The whole program.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    output::log_to_stderr(cli.common.verbose, cli.common.color);
    match run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("outlive: {}", sentence(&error)));
            ExitCode::from(FAILURE)
        }
    }
}

/// The error and what caused it; a cause that the sentence before it names already is not said again.
fn sentence(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for part in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = part;
        } else if !said.contains(&part) {
            said = format!("{said}: {part}");
        }
    }
    said
}

/// A GPU that does not exist would look like one that nobody uses.
fn ensure_gpu(answer: &Explanation, asked: Option<u32>) -> Result<()> {
    let Some(gpu) = asked.filter(|gpu| !answer.gpus.is_empty() && answer.gpus.iter().all(|g| g.index != *gpu)) else {
        return Ok(());
    };
    let known: Vec<String> = answer.gpus.iter().map(|g| g.index.to_string()).collect();
    bail!("there is no GPU {gpu}: NVML knows GPU {}", known.join(", "))
}

fn run(cli: &Cli) -> Result<u8> {
    match &cli.command {
        Command::Explain(args) => explain::run(args, &cli.common),
        Command::Record(args) => record::run(args, &cli.common),
        Command::Timeline(args) => timeline::run(args, &cli.common),
        Command::Check(args) => check::run(args, &cli.common),
        Command::Doctor(args) => doctor::run(args, &cli.common),
        Command::Demo(args) => demo::run(args, &cli.common),
    }
}
