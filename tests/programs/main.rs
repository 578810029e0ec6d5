//! `scenario <part> DIR`: plays one way in which GPU memory outlives its owner, without a GPU.
//!
//! Stand-in device nodes named nvidiactl, nvidia-uvm and nvidia0 in DIR take the place of the driver's (`devices`),
//! a JSON file takes the place of NVML (`books`), and small processes take the places of trainers, launchers,
//! data-loader workers and brokers (`actor`, `roles`); what is done to them stands in tests/scenarios/PART/play.rs. When the incident is on, one line of JSON on standard output
//! names every process, what it holds and for whom. The incident lasts until standard input ends; then everything
//! that was started is killed and reaped (`stage`).
//!
//!     scenario list                        all parts, one a line
//!     scenario devices DIR [NVML.json]     make the device nodes and the books of an idle GPU
//!     scenario PART DIR [NVML.json]        play a part
//!
//! `scenario play ROLE NAME DIR ARG...` is how the stage starts an actor; `scenario core-sink ...` is what the kernel
//! pipes a core dump into.

mod actor;
mod books;
mod cgroup;
mod cuda;
mod devices;
mod fuse;
mod gpu;
mod programs;
#[path = "../driver/rm.rs"]
#[expect(dead_code, reason = "tests/driver.rs makes more requests")]
mod rm;
mod roles;
mod stage;
mod sys;

/// Every folder of tests/scenarios that has a `play.rs`: build.rs lists them.
mod plays {
    include!(concat!(env!("OUT_DIR"), "/plays.rs"));
}

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use actor::Actor;
use books::Books;
use stage::Stage;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be gone, and there is nobody else to tell.
            let _ = writeln!(io::stderr(), "scenario: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> io::Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["list"] => plays::PLAYS.iter().try_for_each(|(name, _)| writeln!(io::stdout(), "{name}")),
        ["devices", dir, ref nvml @ ..] => {
            devices::make(Path::new(dir))?;
            Books::open(nvml.first().map(PathBuf::from)).map(drop)
        }
        ["play", role, name, dir, ref rest @ ..] => {
            let rest: Vec<String> = rest.iter().map(|&arg| arg.to_owned()).collect();
            act(role, Actor::new(name, Path::new(dir), &rest))
        }
        ["core-sink", pid, dir] => roles::exiting::core_sink(pid, Path::new(dir)),
        [part, dir] => play(part, Path::new(dir), None),
        [part, dir, nvml] => play(part, Path::new(dir), Some(nvml.into())),
        _ => Err(io::Error::other("usage: scenario list | devices DIR [NVML.json] | PART DIR [NVML.json]")),
    }
}

fn act(role: &str, mut actor: Actor) -> io::Result<()> {
    let Some((_, play)) = roles::ROLES.iter().find(|(name, _)| *name == role) else {
        return Err(io::Error::other(format!("no role {role:?}")));
    };
    let result = play(&mut actor);
    actor.end(result)
}

fn play(part: &str, dir: &Path, nvml: Option<PathBuf>) -> io::Result<()> {
    let Some((_, direct)) = plays::PLAYS.iter().find(|(name, _)| *name == part) else {
        return Err(io::Error::other(format!("no part {part:?}: see `scenario list`")));
    };
    if gpu::Gpu::of_play() == gpu::Gpu::StandIn {
        devices::make(dir)?;
    }
    let mut stage = Stage::new(part, dir, nvml)?;
    match direct(&mut stage).and_then(|()| stage.report()) {
        Ok(()) => stage.until_end(),
        Err(error) => {
            // The first failure is the one to report.
            let _ = stage.clear();
            Err(error)
        }
    }
}
