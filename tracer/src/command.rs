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
use anyhow::Result;
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
            output::complain(&format!("outlive: {error:#}"));
            ExitCode::from(FAILURE)
        }
    }
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
