//! `outlive check`: for job prologues and epilogues; the exit code is the verdict.

use super::output;
use crate::cli::{Check, Common};
use crate::explanation::{self, Explanation};
use crate::live;
use crate::report::layout::size;
use crate::world::World;
use anyhow::Result;
use std::time::{Duration, Instant};

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) fn run(args: &Check, common: &Common) -> Result<u8> {
    let began = Instant::now();
    let patience = args.wait.unwrap_or_default();
    let mut told = false;
    loop {
        let answer = crate::explanation::explain(&live::look(common, World::default())?);
        super::ensure_gpu(&answer, args.gpu)?;
        let code = verdict(&answer, args);
        if code == 0 || began.elapsed() >= patience {
            output::print(&sentences(&answer, args, code))?;
            return Ok(code);
        }
        if !told {
            output::complain(&format!("outlive: waiting up to {} s for GPU memory to be free", patience.as_secs()));
            told = true;
        }
        std::thread::sleep(PAUSE.min(patience.saturating_sub(began.elapsed())));
    }
}

fn concerns(h: &explanation::Holding, args: &Check) -> bool {
    h.outlives() && (args.gpu.is_none() || h.gpu.is_none() || h.gpu == args.gpu)
}

/// 0, 3 or 4, with the tolerance that was asked for.
fn verdict(answer: &Explanation, args: &Check) -> u8 {
    let held: Vec<_> = answer.holdings.iter().filter(|h| concerns(h, args)).collect();
    if held.is_empty() {
        return if answer.exit_code() == 4 { 4 } else { 0 };
    }
    match args.max_held {
        Some(max) if held.iter().all(|h| h.bytes.is_some()) && held.iter().filter_map(|h| h.bytes).fold(0, u64::saturating_add) <= max => 0,
        _ => 3,
    }
}

fn sentences(answer: &Explanation, args: &Check, code: u8) -> String {
    let held: Vec<_> = answer.holdings.iter().filter(|h| concerns(h, args)).collect();
    let bytes: u64 = held.iter().filter_map(|h| h.bytes).fold(0, u64::saturating_add);
    match code {
        0 if bytes > 0 => format!("{} outlives its owner, within what is tolerated.\n", size(bytes)),
        0 => "Nothing outlives its owner.\n".to_owned(),
        4 => "Cannot tell whether anything outlives its owner; `outlive explain` says what is missing.\n".to_owned(),
        _ => {
            let mut text: String = held.iter().map(|h| crate::report::escape::escape(&h.summary, 2000) + "\n").collect();
            text.push_str("`outlive explain` gives the evidence and the commands.\n");
            text
        }
    }
}
