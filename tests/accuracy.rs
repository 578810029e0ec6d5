//! `accuracy play`: plays scenarios where it runs and writes what came of them. `accuracy table`: makes docs/accuracy.md of it.
//!
//! Always true: a scenario's failure does not end the others; the exit code is 0 only when everything that was played was right.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use outlive_tests::outcome::Outcome;
use outlive_tests::scenario::{self, Place};
use outlive_tests::{Also, check, table};

#[derive(Parser)]
#[command(about = "Plays the scenarios of tests/scenarios, and tells how right outlive and the usual tools are")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Plays scenarios here.
    Play {
        /// Which; all when left out.
        names: Vec<String>,
        /// Where NVIDIA's driver is real.
        #[arg(long)]
        gpu: bool,
        /// Asks the usual tools too.
        #[arg(long)]
        rivals: bool,
        /// Where the outcomes are written, one JSON a line.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Makes the page of files of outcomes; each is named for its place (host.jsonl, guest-6.1.jsonl, ...).
    Table {
        /// The files.
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Nobody is left to tell when standard error is gone.
            let _ = writeln!(io::stderr(), "accuracy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> io::Result<bool> {
    match cli.command {
        Command::Play { names, gpu, rivals, out } => {
            let place = if gpu { Place::Gpu } else { Place::StandIn };
            let mut out = out.map(fs::File::create).transpose()?;
            let scenarios = scenario::all()?;
            if let Some(unknown) = names.iter().find(|name| !scenarios.iter().any(|scenario| scenario.name == **name)) {
                return Err(io::Error::other(format!("no scenario {unknown:?}: see tests/scenarios")));
            }
            let mut good = true;
            for scenario in scenarios.iter().filter(|s| s.places.contains(&place) && (names.is_empty() || names.contains(&s.name))) {
                let outcome = check(scenario, place, Also { rivals }).unwrap_or_else(|error| {
                    let mut failed = Outcome::new(scenario, place);
                    failed.wrong.push(format!("could not be played: {error}"));
                    failed
                });
                good &= outcome.complaints().is_empty();
                say(&outcome)?;
                if let Some(out) = &mut out {
                    writeln!(out, "{}", serde_json::to_string(&outcome)?)?;
                }
            }
            Ok(good)
        }
        Command::Table { files } => {
            let mut places = Vec::new();
            for file in files {
                let name = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
                let text = fs::read_to_string(&file)?;
                let outcomes = text.lines().map(serde_json::from_str).collect::<Result<Vec<Outcome>, _>>()?;
                places.push((name, outcomes));
            }
            io::stdout().write_all(table::page(&scenario::all()?, &places).as_bytes())?;
            Ok(true)
        }
    }
}

fn say(outcome: &Outcome) -> io::Result<()> {
    let complaints = outcome.complaints();
    let verdict = match (&outcome.skipped, complaints.is_empty()) {
        (Some(why), _) => format!("skipped: {why}"),
        (None, true) => "right".to_owned(),
        (None, false) => "WRONG".to_owned(),
    };
    let took = Duration::from_secs_f64(outcome.seconds.max(0.0));
    writeln!(io::stdout(), "{:<28} {:>6.1} s  {verdict}", outcome.name, took.as_secs_f64())?;
    complaints.iter().try_for_each(|what| writeln!(io::stdout(), "    {what}"))
}
