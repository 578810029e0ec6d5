//! What would free the memory: least harmful first.
//!
//! Always true: a command names one process and checks that it is still the same one; PID 1 and zombies are never
//! signalled; where a signal cannot help, the remedy says so instead of naming one.

use super::words::named;
use crate::event::ProcessId;
use crate::explanation::Remedy;
use crate::world::World;

/// A command that signals a process only while it is the one that we saw: its start time in /proc/PID/stat (field 22, clock
/// ticks) is compared first.
fn signal_command(id: ProcessId, signal: &str) -> String {
    if id.start() == 0 {
        return format!("kill -{signal} {}", id.tgid());
    }
    // comm (field 2) may hold spaces and parentheses, so fields are counted after the last ')'.
    let ticks = id.start() / 10_000_000;
    format!("[ \"$(sed 's/.*) //' /proc/{0}/stat | cut -d' ' -f20)\" = {ticks} ] && kill -{signal} {0}", id.tgid())
}

/// SIGINT (when it may help), SIGTERM, then SIGKILL after a wait. Nothing for PID 1.
#[must_use]
pub fn end_process(world: &World, id: ProcessId, frees: Option<u64>, what: &str) -> Vec<Remedy> {
    if id.tgid() <= 1 {
        return vec![wait("the holder is PID 1, which must not be killed: stop the service or container that it runs", frees)];
    }
    let who = named(world, id);
    let gentle = |signal: &str, effect: String| Remedy {
        command: Some(signal_command(id, signal)),
        effect,
        frees_bytes: frees,
        risk: format!("ends {who} and whatever it still does{what}."),
    };
    let refuses = world.process(id).and_then(|p| p.state.as_ref()).map(|(_, s)| s.ignored | s.blocked);
    let refuses = |sig: u32| refuses.is_some_and(|mask| mask >> (sig - 1) & 1 == 1);
    let mut list = Vec::new();
    if !refuses(2) && !refuses(15) {
        list.push(gentle("INT", format!("asks {who} to stop, as Ctrl-C would.")));
    }
    if !refuses(15) {
        list.push(gentle("TERM", format!("asks {who} to end.")));
    }
    list.push(Remedy {
        command: Some(signal_command(id, "KILL")),
        effect: format!("ends {who} at once, if it is still there 10 s after the gentler signal."),
        frees_bytes: frees,
        risk: "it cannot save anything.".to_owned(),
    });
    list
}

/// Only waiting or something outside helps.
#[must_use]
pub fn wait(effect: &str, frees: Option<u64>) -> Remedy {
    Remedy { command: None, effect: effect.to_owned(), frees_bytes: frees, risk: String::new() }
}

/// Lets a stopped process run on.
#[must_use]
pub fn go_on(world: &World, id: ProcessId) -> Remedy {
    Remedy {
        command: Some(signal_command(id, "CONT")),
        effect: format!("lets {} go on, and pending signals act.", named(world, id)),
        frees_bytes: None,
        risk: "it uses the GPU again.".to_owned(),
    }
}
