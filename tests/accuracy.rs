//! `accuracy play`: plays scenarios where it runs and writes what came of them. `accuracy table`: makes docs/accuracy.md of it.
//!
//! Always true: a scenario's failure does not end the others; the exit code is 0 only when everything that was played was right.

use std::fs;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use outlive_tests::outcome::Outcome;
use outlive_tests::scenario::{self, Place, Scenario};
use outlive_tests::{Also, check, table};

/// No scenario takes longer, under software emulation either.
const PATIENCE: Duration = Duration::from_secs(180);

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
        /// What takes the place of NVIDIA's driver: with "driver", the modules of tests/driver where the scenario can be played with
        /// them; with "gpu", nothing.
        #[arg(long, default_value = "stand-in")]
        with: String,
        /// Asks the usual tools too.
        #[arg(long)]
        rivals: bool,
        /// Where the outcomes are written, one JSON a line.
        #[arg(long)]
        out: Option<PathBuf>,
        /// Plays nothing: prints the names of what would be played.
        #[arg(long)]
        list: bool,
    },
    /// Plays one scenario and prints its outcome: `play` starts this for each, so that one that hangs does not cost the others.
    #[command(hide = true)]
    One {
        name: String,
        #[arg(long)]
        with: String,
        #[arg(long)]
        rivals: bool,
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
        Command::Play { names, with, rivals, out, list } => {
            let scenarios = scenario::all()?;
            if let Some(unknown) = names.iter().find(|name| !scenarios.iter().any(|scenario| scenario.name == **name)) {
                return Err(io::Error::other(format!("no scenario {unknown:?}: see tests/scenarios")));
            }
            let (mut good, mut out) = (true, if list { None } else { out.map(fs::File::create).transpose()? });
            for scenario in scenarios.iter().filter(|scenario| names.is_empty() || names.contains(&scenario.name)) {
                let Some(place) = place(scenario, &with)? else { continue };
                if list {
                    writeln!(io::stdout(), "{}", scenario.name)?;
                    continue;
                }
                let outcome = in_a_process(scenario, &with, rivals).unwrap_or_else(|error| {
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
        Command::One { name, with, rivals } => {
            let scenarios = scenario::all()?;
            let scenario = scenarios.iter().find(|scenario| scenario.name == name).ok_or_else(|| io::Error::other("no such scenario"))?;
            let place = place(scenario, &with)?.ok_or_else(|| io::Error::other("cannot be played with that"))?;
            let outcome = check(scenario, place, Also { rivals })?;
            writeln!(io::stdout(), "{}", serde_json::to_string(&outcome)?)?;
            Ok(true)
        }
        Command::Table { files } => {
            let (mut places, scenarios) = (Vec::new(), scenario::all()?);
            for file in files {
                let name = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
                let text = fs::read_to_string(&file)?;
                let outcomes = text.lines().map(serde_json::from_str).collect::<Result<Vec<Outcome>, _>>()?;
                let outcomes = outcomes.into_iter().map(|outcome| outcome.judged(&scenarios)).collect();
                places.push((name, outcomes));
            }
            io::stdout().write_all(table::page(&scenarios, &places).as_bytes())?;
            Ok(true)
        }
    }
}

/// Where a scenario is played; none: it cannot be.
fn place(scenario: &Scenario, with: &str) -> io::Result<Option<Place>> {
    let wanted: &[Place] = match with {
        "stand-in" => &[Place::StandIn],
        "driver" => &[Place::Driver, Place::StandIn],
        "gpu" => &[Place::Gpu],
        _ => return Err(io::Error::other(format!("--with {with}: not one of stand-in, driver, gpu"))),
    };
    Ok(wanted.iter().copied().find(|place| scenario.places.contains(place)))
}

/// Plays one scenario in a process of its own; when that is killed, its pipes end and with them everything that it started.
fn in_a_process(scenario: &Scenario, with: &str, rivals: bool) -> io::Result<Outcome> {
    let mut command = process::Command::new(std::env::current_exe()?);
    command.args(["one", &scenario.name, "--with", with]);
    if rivals {
        command.arg("--rivals");
    }
    let (answer, complaint) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command.stdin(process::Stdio::null()).stdout(answer.try_clone()?).stderr(complaint.try_clone()?).spawn()?;
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("not finished within {} s", PATIENCE.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    serde_json::from_str(&whole(answer)?).or_else(|_| Err(io::Error::other(whole(complaint)?.trim().to_owned())))
}

fn whole(mut file: fs::File) -> io::Result<String> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
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
