//! Exit timelines as text: one block per process, one line per step, with a bar that shows where the time went.
//!
//! Always true: steps are in the kernel's order; a step without a time says why; names are escaped.

use super::escape::escape;
use super::layout::{Paint, Style, count, duration};
use crate::timeline::{Step, StepId, Timeline};

/// Cells of the bar.
const BAR: usize = 10;

/// Columns that the words of a step need beside its bar; where there are fewer, they go below it.
const ROOM_MIN: usize = 20;
const NARROW_INDENT: &str = "      ";

/// All timelines.
#[must_use]
pub fn text(timelines: &[Timeline], style: &Style) -> String {
    if timelines.is_empty() {
        return "No process that used the GPU ended in this recording.\n".to_owned();
    }
    let (mut loud, quiet): (Vec<&Timeline>, Vec<&Timeline>) = timelines.iter().partition(|t| style.verbose || had_memory(t));
    let mut hidden = quiet.len();
    if loud.is_empty() {
        loud = quiet;
        hidden = 0;
    }
    let mut out = loud.into_iter().map(|t| one(t, style)).collect::<Vec<_>>().join("\n");
    if hidden > 0 {
        let more = format!("{} opened GPU files and never had memory; --verbose shows them.", count(hidden, "more process"));
        out.push('\n');
        out.push_str(&super::layout::wrap(&more, style.width, "", ""));
    }
    out
}

/// NVML charged memory to it at some time: nvidia-smi and other monitors only open the files.
fn had_memory(t: &Timeline) -> bool {
    t.steps.iter().any(|s| s.step == StepId::MemoryBack && (s.at_ns.is_some() || s.awaited))
}

fn one(t: &Timeline, style: &Style) -> String {
    let name = t.comm.as_deref().map_or_else(|| "?".to_owned(), |c| escape(c, 32));
    let ended = t.ended_by.as_deref().map_or_else(String::new, |e| format!(", {}", escape(e, 80)));
    let total = t.total_ns.map_or_else(String::new, |ns| format!(", {} in all", duration(ns)));
    let mut out = String::new();
    for part in super::layout::wrap(&format!("{name} (PID {}){ended}{total}", t.pid), style.width, "", "    ").lines() {
        out.push_str(&style.paint(Paint::Strong, part));
        out.push('\n');
    }
    // A step that this process never took says nothing; one whose time is missing, or that is awaited, does.
    let shown = |s: &&Step| style.verbose || s.at_ns.is_some() || s.awaited || !matches!(s.step, StepId::SignalSent | StepId::SignalDelivered | StepId::CoreDump);
    for step in t.steps.iter().filter(shown) {
        out.push_str(&line(step, t.total_ns.unwrap_or(0), style));
    }
    if let Some(step) = t.waiting_for {
        out.push_str(&style.paint(Paint::Alarm, &format!("  waiting for: {}", label(step))));
        out.push('\n');
    }
    out
}

fn line(step: &Step, total: u64, style: &Style) -> String {
    let clock = step.at.as_deref().and_then(|at| at.split_once('T')).map_or("-", |(_, time)| time.trim_end_matches('Z'));
    let after = step.after_ns.map_or_else(String::new, |ns| format!("+{}", duration(ns)));
    let share = match (step.after_ns, total) {
        (Some(ns), total) if total > 0 => (u128::from(ns) * BAR as u128).div_ceil(u128::from(total)) as usize,
        _ => 0,
    };
    let bar = "#".repeat(share.min(BAR));
    let about = if step.inferred { "~" } else { " " };
    let head = format!("  {clock:<12} {about}{:<15} {after:>9} {bar:<BAR$} ", label(step.step));
    let room = style.width.saturating_sub(head.chars().count());
    if room < ROOM_MIN {
        let head = format!("  {clock:<12} {about}{} {after}", label(step.step));
        let what = super::layout::wrap(&escape(&step.what, 300), style.width, NARROW_INDENT, NARROW_INDENT);
        let what: String = what.lines().map(|part| style.paint(Paint::Faint, part) + "\n").collect();
        return format!("{}\n{what}", head.trim_end());
    }
    let what = super::layout::wrap(&escape(&step.what, 300), room, "", "");
    let indent = " ".repeat(head.chars().count());
    let mut out = String::new();
    for (index, part) in what.lines().enumerate() {
        let lead = if index == 0 { &head } else { &indent };
        out.push_str(format!("{lead}{}", style.paint(Paint::Faint, part)).trim_end());
        out.push('\n');
    }
    if what.trim().is_empty() {
        out = format!("{}\n", head.trim_end());
    }
    out
}

/// How people call the step.
const fn label(step: StepId) -> &'static str {
    match step {
        StepId::SignalSent => "signal sent",
        StepId::SignalDelivered => "delivered",
        StepId::CoreDump => "core dump",
        StepId::ExitBegins => "exit begins",
        StepId::LastThread => "last thread",
        StepId::MemoryMapGone => "memory map gone",
        StepId::FilesGone => "driver releases",
        StepId::Zombie => "zombie",
        StepId::Reaped => "reaped",
        StepId::MemoryBack => "memory back",
    }
}
