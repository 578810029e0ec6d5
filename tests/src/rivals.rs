//! What the usual tools say of the same situation.
//!
//! Always true: a tool's answer is what it printed, cut to a bounded length; a PID counts as named when the tool singles it out (for
//! `ps`, which lists everybody: when its state is one that people look for); outlive's own processes are left out.

use std::collections::BTreeSet;
use std::io;
use std::process::Command;

use outlive::explanation::CauseId;
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::play::Play;
use crate::scenario::{Place, Scenario};

/// No more of a tool's output is kept.
const PRINTED_MAX: usize = 4_000;
const MIB: u64 = 1 << 20;

/// What one tool said.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rival {
    /// Its name.
    pub tool: String,
    /// What it printed.
    pub printed: String,
    /// Whom it singles out, by the part's names; a PID that is nobody of the part as "PID n".
    pub named: Vec<String>,
    /// Whether those are the holders.
    pub holders: Answer,
    /// Whether it names the owner.
    pub owner: Answer,
    /// Whether it says why.
    pub cause: Answer,
    /// Whether it says how much.
    pub bytes: Answer,
    /// Whether `kill -9` of everybody whom it names would end every holder, and nobody else.
    pub remedy: Answer,
}

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Right.
    Yes,
    /// Some of it, and nothing wrong.
    Partly,
    /// Somebody or something that is not so.
    Wrong,
    /// Nothing.
    No,
    /// There is nothing to say.
    Nothing,
}

struct Tool {
    name: &'static str,
    /// A shell command; `$DEVICES` are the nodes.
    command: &'static str,
    places: &'static [Place],
    pids: fn(&str) -> BTreeSet<u32>,
}

const ANYWHERE: &[Place] = &[Place::StandIn, Place::Driver, Place::Gpu];
const GPU: &[Place] = &[Place::Gpu];

const TOOLS: [Tool; 7] = [
    Tool { name: "nvidia-smi", command: "nvidia-smi", places: GPU, pids: in_smi_table },
    Tool { name: "NVML list", command: "nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv", places: GPU, pids: first_numbers },
    Tool { name: "gpustat", command: "python3 -m gpustat --no-header -p -u -c", places: GPU, pids: after_slash },
    Tool { name: "nvitop", command: "NO_COLOR=1 COLUMNS=120 python3 -m nvitop --once --ascii --no-unicode 2>&1 || python3 -m nvitop --once --ascii", places: GPU, pids: in_nvitop },
    Tool { name: "fuser", command: "fuser $DEVICES 2>/dev/null; fuser -v $DEVICES 2>&1 | grep -v 'Cannot stat'", places: ANYWHERE, pids: in_fuser },
    Tool { name: "lsof", command: "lsof -w $DEVICES", places: ANYWHERE, pids: second_numbers },
    Tool { name: "ps", command: "ps -eo pid,ppid,stat,wchan:24,comm", places: ANYWHERE, pids: conspicuous },
];

/// Asks every tool that is installed.
///
/// # Errors
/// When a shell cannot be started.
pub fn ask(host: &Host, scenario: &Scenario, play: &Play) -> io::Result<Vec<Rival>> {
    let mut said = Vec::new();
    for tool in TOOLS.iter().filter(|tool| tool.places.contains(&host.place)) {
        let command = format!("DEVICES=$(ls -d {}); {}", host.devices().display(), tool.command);
        let answer = Command::new("timeout").args(["20", "sh", "-c", &command]).output()?;
        let printed = format!("{}{}", String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
        if printed.contains("not found") || printed.contains("error while loading") || printed.contains("No module named") {
            continue;
        }
        said.push(judge(tool, &printed, scenario, play, host.place));
    }
    Ok(said)
}

fn judge(tool: &Tool, printed: &str, scenario: &Scenario, play: &Play, place: Place) -> Rival {
    let expected = scenario.expected(place, false);
    // Living owners are no leak, but whoever looks for memory wants to know of them too.
    let owners: BTreeSet<&str> = expected.iter().filter_map(|memory| memory.owner.as_deref()).collect();
    let mut holders: BTreeSet<String> = expected.iter().flat_map(|memory| memory.holders.keys().cloned()).collect();
    if holders.remove("others") {
        holders.extend(play.others().map(str::to_owned));
    }
    let pids: BTreeSet<u32> = (tool.pids)(printed).into_iter().filter(|pid| !is_ours(*pid)).collect();
    let ps = tool.name == "ps";
    // Of those that are merely conspicuous, only the part's own are of interest.
    let named: BTreeSet<String> = pids.iter()
        .filter_map(|pid| play.name(*pid).map(str::to_owned).or_else(|| (!ps).then(|| format!("PID {pid}"))))
        .filter(|name| name != "stage")
        .collect();
    // A dead owner's PID is not a holder's name, but no lie either.
    let suspects: BTreeSet<String> = named.iter().filter(|name| !owners.contains(name.as_str()) || holders.contains(*name)).cloned().collect();
    let dead = named.iter().any(|name| !suspects.contains(name));
    let names_holders = if holders.is_empty() {
        if suspects.is_empty() { Answer::Nothing } else { Answer::Wrong }
    } else if suspects == holders {
        Answer::Yes
    } else if suspects.is_empty() {
        if dead { Answer::Wrong } else { Answer::No }
    } else if suspects.is_subset(&holders) {
        Answer::Partly
    } else {
        Answer::Wrong
    };
    let stopped = expected.iter().any(|memory| memory.cause.all() == [CauseId::OwnerStopped]);
    let tells = ps && stopped && names_holders == Answer::Yes;
    let killable = !expected.iter().any(|memory| memory.cause.all().iter().any(|cause| BEYOND_SIGNALS.contains(cause)));
    let some = |is: bool| if owners.is_empty() { Answer::Nothing } else if is { Answer::Yes } else { Answer::No };
    let owned = owners.iter().filter(|owner| named.contains(**owner)).count();
    let bytes: Vec<u64> = owners.iter().filter_map(|owner| play.report.bytes.get(*owner)).copied().collect();
    let said: Vec<u64> = printed.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let counts = !bytes.is_empty() && bytes.iter().all(|bytes| said.iter().any(|mib| mib.abs_diff(bytes / MIB) <= 2));
    Rival {
        tool: tool.name.to_owned(),
        printed: printed.chars().take(PRINTED_MAX).collect(),
        named: named.into_iter().collect(),
        holders: names_holders,
        owner: some(owned == owners.len()),
        cause: some(tells),
        bytes: some(counts && place == Place::Gpu),
        remedy: match names_holders {
            _ if owners.is_empty() => Answer::Nothing,
            Answer::Yes if killable => Answer::Yes,
            Answer::Wrong if !suspects.is_empty() => Answer::Wrong,
            _ => Answer::No,
        },
    }
}

/// What no signal ends.
const BEYOND_SIGNALS: [CauseId; 6] = [
    CauseId::ExitBlockedInDriver,
    CauseId::ExitBlockedElsewhere,
    CauseId::TeardownRunning,
    CauseId::CoreDump,
    CauseId::NoHolder,
    CauseId::DriverReserve,
];

fn is_ours(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| matches!(comm.trim_end(), "outlive" | "accuracy"))
}

fn numbers(words: &str) -> impl Iterator<Item = u32> {
    words.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok())
}

/// `|    0   N/A  N/A            1234      C   python3      2566MiB |`
fn in_smi_table(printed: &str) -> BTreeSet<u32> {
    let table = printed.split("Processes:").nth(1).unwrap_or_default();
    table.lines().filter(|line| line.contains("MiB")).filter_map(|line| line.split_whitespace().nth(4)?.parse().ok()).collect()
}

fn first_numbers(printed: &str) -> BTreeSet<u32> {
    printed.lines().filter_map(|line| line.split(',').next()?.trim().parse().ok()).collect()
}

/// `user:python3/1234(2566M)`
fn after_slash(printed: &str) -> BTreeSet<u32> {
    printed.split('/').skip(1).filter_map(|rest| numbers(rest.split('(').next()?).next()).collect()
}

fn in_nvitop(printed: &str) -> BTreeSet<u32> {
    let table = printed.split("PID").nth(1).unwrap_or_default();
    table.lines().filter_map(|line| {
        let mut words = line.trim_matches(['|', ' ']).split_whitespace();
        words.next()?.parse::<u32>().ok()?;
        words.next()?.parse().ok()
    }).collect()
}

/// The first answer, without `-v`, has bare PIDs; `2>/dev/null` took the names away.
fn in_fuser(printed: &str) -> BTreeSet<u32> {
    numbers(printed.lines().next().filter(|line| !line.contains("USER")).unwrap_or_default()).collect()
}

fn second_numbers(printed: &str) -> BTreeSet<u32> {
    printed.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse().ok()).collect()
}

/// Stopped, traced, in uninterruptible sleep, or a zombie.
fn conspicuous(printed: &str) -> BTreeSet<u32> {
    let looks_odd = |line: &str| {
        let mut words = line.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        words.nth(1)?.starts_with(['T', 't', 'D', 'Z']).then_some(pid)
    };
    printed.lines().filter_map(looks_odd).collect()
}
