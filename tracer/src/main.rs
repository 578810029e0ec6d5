//! The `outlive` program: parse, run, print the error chain, return the exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    outlive::command::main()
}
