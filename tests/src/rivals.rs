//! What the usual tools say of the same situation.
//!
//! Always true: a tool's answer is what it printed, cut to a bounded length; a PID counts as named when the tool singles it out (for
//! `ps`, which lists everybody: when its state is one that people look for); outlive's own processes are left out.

use std::collections::BTreeSet;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use outlive::explanation::CauseId;
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::outcome::Outcome;
use crate::play::Play;
use crate::scenario::{Place, Scenario};

/// No more of a tool's output is kept.
const PRINTED_MAX: usize = 2_500;
/// No tool is waited for longer.
const PATIENCE: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

/// What one tool said.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
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
    /// What it printed was longer, and was judged before it was cut.
    pub cut: bool,
    /// Every owner's bytes stand somewhere in what it printed.
    pub counts: bool,
    /// Whether it says how much.
    pub bytes: Answer,
    /// Whether `kill -9` of everybody whom it names would end every holder, and nobody else.
    pub remedy: Answer,
}

/// A cell of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    #[default]
    Nothing,
}

/// A PID, and the program's name where the tool says it.
type Named<'a> = (u32, Option<&'a str>);

struct Tool {
    name: &'static str,
    /// A shell command; `$DEVICES` are the nodes. (A guest's shell prefers its own `ps` to a file's of that name.)
    command: &'static str,
    places: &'static [Place],
    /// PIDs that it singles out, and the program's name where it says it.
    named: for<'a> fn(&'a str) -> Vec<Named<'a>>,
}

const ANYWHERE: &[Place] = &[Place::StandIn, Place::Driver, Place::Gpu];
const GPU: &[Place] = &[Place::Gpu];

const TOOLS: [Tool; 7] = [
    Tool { name: "nvidia-smi", command: "nvidia-smi", places: GPU, named: in_smi_table },
    Tool { name: "NVML list", command: "nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv", places: GPU, named: first_numbers },
    Tool { name: "gpustat", command: "python3 -m gpustat --no-header -p -u -c", places: GPU, named: before_parenthesis },
    Tool { name: "nvitop", command: "COLUMNS=120 python3 -m nvitop --once --ascii", places: GPU, named: in_nvitop },
    Tool { name: "fuser", command: "fuser -v $DEVICES 2>&1 | grep -v 'Cannot stat'", places: ANYWHERE, named: in_fuser },
    Tool { name: "lsof", command: "lsof -w $DEVICES | awk 'lines[$2]++ < 3'", places: ANYWHERE, named: in_lsof },
    Tool { name: "ps", command: "/usr/bin/ps -eo pid,ppid,stat,wchan:24,comm | awk 'NR == 1 || $3 ~ /^[TtDZ]/'", places: ANYWHERE, named: conspicuous },
];

/// Asks every tool that is installed.
///
/// # Errors
/// When a shell cannot be started.
pub fn ask(host: &Host, scenario: &Scenario, play: &Play, outcome: &Outcome) -> io::Result<Vec<Rival>> {
    let mut said = Vec::new();
    for tool in TOOLS.iter().filter(|tool| tool.places.contains(&host.place)) {
        let command = format!("DEVICES=$(ls -d {}); {}", host.devices().display(), tool.command);
        let printed = printed_by(&command, PATIENCE)?;
        if !["not found", "error while loading", "No module named"].iter().any(|words| printed.contains(words)) {
            let counts = counts(&printed, &expected_owners(scenario, host.place), play) && host.place == Place::Gpu;
            let mut rival = Rival { tool: tool.name.to_owned(), printed, counts, ..Rival::default() }.judged(scenario, outcome);
            rival.cut = rival.printed.chars().count() > PRINTED_MAX;
            rival.printed = rival.printed.chars().take(PRINTED_MAX).collect();
            said.push(rival);
        }
    }
    Ok(said)
}

/// What a shell's command prints until it ends or is given up: some tools wait for a file system that does not answer.
fn printed_by(command: &str, patience: Duration) -> io::Result<String> {
    // Not a pipe: what hangs would keep it open.
    let mut printed = tempfile::tempfile()?;
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(printed.try_clone()?).stderr(printed.try_clone()?).process_group(0);
    let mut shell = shell.spawn()?;
    let deadline = Instant::now() + patience;
    let ended = loop {
        if shell.try_wait()?.is_some() {
            break true;
        }
        if Instant::now() > deadline {
            break false;
        }
        thread::sleep(Duration::from_millis(20));
    };
    if !ended {
        // Everything that the shell has started.
        crate::remedy::signal_group(shell.id(), libc::SIGKILL)?;
        shell.wait()?;
    }
    let mut bytes = Vec::new();
    printed.rewind()?;
    printed.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(if ended { text } else { format!("{text}(no answer within {} s)\n", patience.as_secs()) })
}

fn expected_owners(scenario: &Scenario, place: Place) -> BTreeSet<String> {
    scenario.expected(place, false).into_iter().filter_map(|memory| memory.owner).collect()
}

/// Every owner's bytes stand somewhere, in MiB.
fn counts(printed: &str, owners: &BTreeSet<String>, play: &Play) -> bool {
    let bytes: Vec<u64> = owners.iter().filter_map(|owner| play.report.bytes.get(owner)).copied().collect();
    let said: Vec<u64> = printed.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    !bytes.is_empty() && bytes.iter().all(|bytes| said.iter().any(|mib| mib.abs_diff(bytes / MIB) <= 2))
}

impl Rival {
    /// What its answer is worth: of nothing but what it printed and who was who.
    #[must_use]
    pub fn judged(mut self, scenario: &Scenario, outcome: &Outcome) -> Rival {
        let Some(tool) = TOOLS.iter().find(|tool| tool.name == self.tool) else { return self };
        // Numbers of tools that know no GPU are not its bytes.
        self.counts &= tool.places == GPU;
        if self.cut {
            self.bytes = if self.bytes == Answer::Yes && !self.counts { Answer::No } else { self.bytes };
            return self;
        }
        let expected = scenario.expected(outcome.place, false);
        let owners = expected_owners(scenario, outcome.place);
        let mut holders: BTreeSet<String> = expected.iter().flat_map(|memory| memory.holders.keys().cloned()).collect();
        if holders.remove("others") {
            holders.extend(outcome.others.iter().cloned());
        }
        // Somebody may have two names.
        let name = |pid: u32| {
            let names = || outcome.cast.iter().filter(move |(_, known)| **known == pid).map(|(name, _)| name);
            names().find(|name| holders.contains(*name)).or_else(|| names().next()).cloned()
        };
        let ps = tool.name == "ps";
        // Of those that are merely conspicuous, only the part's own are of interest.
        let named: BTreeSet<String> = (tool.named)(&self.printed).into_iter()
            .filter(|(_, comm)| !comm.is_some_and(|comm| OURS.contains(&comm)))
            .filter_map(|(pid, _)| name(pid).or_else(|| (!ps).then(|| format!("PID {pid}"))))
            .filter(|name| name != "stage")
            .collect();
        // A dead owner's PID is not a holder's name, but no lie either.
        let suspects: BTreeSet<String> = named.iter().filter(|name| !owners.contains(*name) || holders.contains(*name)).cloned().collect();
        let stale = suspects.len() < named.len();
        self.holders = match () {
            () if holders.is_empty() && suspects.is_empty() => Answer::Nothing,
            () if holders.is_empty() => Answer::Wrong,
            () if suspects == holders => Answer::Yes,
            () if suspects.is_empty() && stale => Answer::Wrong,
            () if suspects.is_empty() => Answer::No,
            () if suspects.is_subset(&holders) => Answer::Partly,
            () => Answer::Wrong,
        };
        let stopped = expected.iter().any(|memory| memory.cause.all() == [CauseId::OwnerStopped]);
        let killable = !expected.iter().any(|memory| memory.cause.all().iter().any(|cause| BEYOND_SIGNALS.contains(cause)));
        let some = |is: bool| if owners.is_empty() { Answer::Nothing } else if is { Answer::Yes } else { Answer::No };
        self.owner = some(owners.iter().all(|owner| named.contains(owner)));
        self.cause = some(ps && stopped && self.holders == Answer::Yes);
        self.bytes = some(self.counts);
        self.remedy = match self.holders {
            _ if owners.is_empty() => Answer::Nothing,
            Answer::Yes if killable => Answer::Yes,
            Answer::Wrong if !suspects.is_empty() => Answer::Wrong,
            _ => Answer::No,
        };
        self.named = named.into_iter().collect();
        self
    }
}

/// Our own programs, which watch the GPU too.
const OURS: [&str; 2] = ["outlive", "accuracy"];

/// What no signal ends.
const BEYOND_SIGNALS: [CauseId; 6] = [
    CauseId::ExitBlockedInDriver,
    CauseId::ExitBlockedElsewhere,
    CauseId::TeardownRunning,
    CauseId::CoreDump,
    CauseId::NoHolder,
    CauseId::DriverReserve,
];

/// `|    0   N/A  N/A            1234      C   python3      2566MiB |`
fn in_smi_table(printed: &str) -> Vec<Named<'_>> {
    let table = printed.split("Processes:").nth(1).unwrap_or_default();
    let row = |line: &str| line.split_whitespace().nth(4)?.parse().ok();
    table.lines().filter(|line| line.contains("MiB")).filter_map(row).map(|pid| (pid, None)).collect()
}

/// `1234, 2566 MiB, python3`
fn first_numbers(printed: &str) -> Vec<Named<'_>> {
    printed.lines().filter_map(|line| line.split(',').next()?.trim().parse().ok()).map(|pid| (pid, None)).collect()
}

/// `user:python3/1234(2566M)`
fn before_parenthesis(printed: &str) -> Vec<Named<'_>> {
    let pid = |part: &str| part.rsplit_once('/')?.1.parse().ok();
    printed.split('(').filter_map(pid).map(|pid| (pid, None)).collect()
}

/// `|   0    1234 C   root 2.51GiB   0     0   1.0   0.1 00:05 python3 |`
fn in_nvitop(printed: &str) -> Vec<Named<'_>> {
    let table = printed.split("Processes:").nth(1).unwrap_or_default();
    let row = |line: &str| {
        let mut words = line.trim_matches(['|', ' ']).split_whitespace();
        words.next()?.parse::<u32>().ok()?;
        words.next()?.parse().ok()
    };
    table.lines().filter_map(row).map(|pid| (pid, None)).collect()
}

/// `/dev/nvidia0:        root       1336 F.... outlive`
fn in_fuser(printed: &str) -> Vec<Named<'_>> {
    let row = |line: &'_ str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| word.len() == 5 && word.chars().all(|c| c == '.' || c.is_ascii_alphabetic()) && word.contains('.'))?;
        Some((words.get(at.checked_sub(1)?)?.parse().ok()?, at))
    };
    printed.lines().filter_map(|line| row(line).map(|(pid, at)| (pid, line.split_whitespace().nth(at + 1)))).collect()
}

/// `python3   1350 root    8u   CHR 195,255      0t0  142 /dev/nvidiactl`
fn in_lsof(printed: &str) -> Vec<Named<'_>> {
    fn row(line: &str) -> Option<Named<'_>> {
        let mut words = line.split_whitespace();
        let comm = words.next();
        Some((words.next()?.parse().ok()?, comm))
    }
    printed.lines().filter_map(row).collect()
}

/// Stopped, traced, in uninterruptible sleep, or a zombie.
fn conspicuous(printed: &str) -> Vec<Named<'_>> {
    let looks_odd = |line: &str| {
        let mut words = line.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        words.nth(1)?.starts_with(['T', 't', 'D', 'Z']).then_some(pid)
    };
    printed.lines().filter_map(looks_odd).map(|pid| (pid, None)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_hangs_and_its_children_are_given_up() {
        let began = Instant::now();
        let said = printed_by("echo 618; sleep 1000 & sleep 1000", Duration::from_secs(1)).unwrap();
        assert_eq!(said, "618\n(no answer within 1 s)\n");
        assert!(began.elapsed() < PATIENCE, "nobody waits for the children");
        assert_eq!(printed_by("echo 619; echo oops >&2", PATIENCE).unwrap(), "619\noops\n");
    }

    #[test]
    fn each_tools_own_words_are_understood() {
        let fuser = "                     USER        PID ACCESS COMMAND\n/dev/nvidia0:        root        603 F.... outlive\n                     root        618 F...m scenario\n";
        assert_eq!(in_fuser(fuser), [(603, Some("outlive")), (618, Some("scenario"))]);
        let gpustat = "[0] NVIDIA H200 | 35'C,   0 % |  4122 / 143771 MB | root:scenarios/2334(2566M) root:scenarios/2340(1542M)\n";
        assert_eq!(before_parenthesis(gpustat), [(2334, None), (2340, None)]);
        let lsof = "COMMAND  PID USER   FD   TYPE\nscenario 618 root  mem    CHR   195,0           143 /dev/nvidia0\n";
        assert_eq!(in_lsof(lsof), [(618, Some("scenario"))]);
        assert_eq!(first_numbers("pid, used_gpu_memory [MiB], process_name\n519, 2566 MiB, [Not Found]\n"), [(519, None)]);
    }
}
