//! Each folder of tests/scenarios as a test: played here with stand-ins, and looked at in every way.
//!
//! Always true: what cannot be played here says so and is reported as ignored or skipped; see tests/src/lib.rs for how it is checked.

use libtest_mimic::{Arguments, Failed, Trial};
use outlive_tests::host::{is_root, say};
use outlive_tests::scenario::{self, Place};
use outlive_tests::{Also, check};

fn main() -> std::io::Result<()> {
    let mut arguments = Arguments::from_args();
    // Stand-in device numbers are shared by the whole host.
    arguments.test_threads = Some(1);
    let root = is_root()?;
    let mut trials = Vec::new();
    for scenario in scenario::all()? {
        let here = scenario.places.contains(&Place::StandIn);
        let name = scenario.name.clone();
        let kind = if here { "" } else { "elsewhere" };
        let test = move || {
            if !root {
                return say(&format!("SKIPPED {}: making device nodes and watching the kernel need root", scenario.name)).map_err(Failed::from);
            }
            let outcome = check(&scenario, Place::StandIn, Also::default()).map_err(Failed::from)?;
            if let Some(why) = &outcome.skipped {
                say(&format!("SKIPPED {}: {why}", scenario.name))?;
            }
            let wrong = outcome.complaints();
            if wrong.is_empty() { Ok(()) } else { Err(format!("{}: outlive is wrong about it:\n  {}", scenario.claim, wrong.join("\n  ")).into()) }
        };
        trials.push(Trial::test(name, test).with_kind(kind).with_ignored_flag(!here));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
