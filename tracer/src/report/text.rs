//! The explanation as a good colleague would give it: the sentence first, evidence under it, the command last.
//!
//! Always true: same explanation and style, same bytes; at most [`Style::width`] columns; untrusted names escaped.

use super::escape::{CMDLINE_MAX, escape};
use super::layout::{Paint, Style, bar, count, size, wrap};
use crate::explanation::{
    CauseId, Explanation, GpuPart, HolderPart, Holding, OwnerPart, Remedy, ZombiePart,
};
use crate::world::gpu::NOISE_BYTES;
use std::collections::BTreeMap;

/// Indent of everything that belongs to one holding.
const INDENT: &str = "   ";
/// Column at which the values of labelled lines start.
const LABEL: usize = 12;
/// Evidence lines shown without `verbose`.
const EVIDENCE_MAX: usize = 12;
/// Narrower terminals get a short bar.
const BAR_WIDTH_MIN: usize = 64;
/// Zombies shown without `verbose`.
const ZOMBIES_MAX: usize = 5;

/// The whole report.
#[must_use]
pub fn explanation(e: &Explanation, style: &Style) -> String {
    let mut out = verdict_line(e, style);
    out.push('\n');
    for gpu in &e.gpus {
        out.push_str(&gpu_line(gpu, style));
    }
    if !e.gpus.is_empty() {
        out.push('\n');
    }
    let (quiet, loud): (Vec<&Holding>, Vec<&Holding>) =
        e.holdings.iter().partition(|h| h.is_ordinary() && !style.verbose && e.holdings.len() > 1);
    for (index, holding) in loud.iter().enumerate() {
        out.push_str(&holding_text(index + 1, holding, style));
        out.push('\n');
    }
    out.push_str(&ordinary_text(&quiet, style));
    out.push_str(&zombies_text(e, style));
    out.push_str(&limits_text(e, style));
    while out.ends_with("\n\n") {
        out.pop();
    }
    out
}

/// What is said when `who` was asked about and has nothing: the sentence, and what could not be seen.
#[must_use]
pub fn nothing_of(who: &str, e: &Explanation, style: &Style) -> String {
    let sentence = format!("{who} neither owns nor holds a GPU file or GPU memory, as far as can be seen.");
    let limits = limits_text(e, style);
    let gap = if limits.is_empty() { "" } else { "\n" };
    format!("{}{gap}{limits}", wrap(&sentence, style.width, "", ""))
}

/// One line that answers the question before any detail.
fn verdict_line(e: &Explanation, style: &Style) -> String {
    let outliving: Vec<&Holding> = e.holdings.iter().filter(|h| h.outlives()).collect();
    let unknown = e.holdings.iter().any(|h| h.cause == CauseId::Unknown);
    let bytes: u64 = outliving.iter().filter_map(|h| h.bytes).fold(0, u64::saturating_add);
    let (paint, text) = if !outliving.is_empty() && bytes > 0 {
        (Paint::Alarm, format!("{} of GPU memory outlives its owner or the attempt to end it.", size(bytes)))
    } else if !outliving.is_empty() {
        (Paint::Alarm, format!("GPU files outlive their owner: {}.", count(outliving.len(), "case")))
    } else if unknown {
        (Paint::Alarm, "GPU memory is held, and the evidence does not say why.".to_owned())
    } else if !e.is_scanned() {
        (Paint::Strong, "Nothing that was seen outlives its owner, but open files were not looked at.".to_owned())
    } else if !e.is_whole() {
        (Paint::Strong, "Nothing that was seen outlives its owner, but processes outside this PID namespace were not looked at.".to_owned())
    } else if !e.is_measured() {
        let missing = "but without NVML's figures memory that no process holds would not be seen";
        (Paint::Strong, format!("Nothing that was seen outlives its owner, {missing}."))
    } else if e.holdings.iter().any(|h| h.is_ordinary() && h.cause != CauseId::DriverReserve && h.bytes != Some(0)) {
        (Paint::Good, "All held GPU memory belongs to living processes.".to_owned())
    } else {
        (Paint::Good, "Nothing outlives its owner.".to_owned())
    };
    let mut line = String::new();
    for part in wrap(&text, style.width, "", "").lines() {
        line.push_str(&style.paint(paint, part));
        line.push('\n');
    }
    line
}

fn gpu_line(gpu: &GpuPart, style: &Style) -> String {
    let product = if gpu.name.is_empty() { "(its name is not known)".to_owned() } else { escape(&gpu.name, 40) };
    let mut line = format!("GPU {}  {product}", gpu.index);
    if let (Some(used), Some(total)) = (gpu.used_bytes, gpu.total_bytes) {
        let reserved = gpu.reserved_bytes.unwrap_or(0);
        let account = gpu.account.clone().unwrap_or_default();
        let held = account.held.iter().fold(0_u64, |sum, held| sum.saturating_add(held.bytes));
        let unexplained = Some(account.unexplained_bytes).filter(|bytes| *bytes >= NOISE_BYTES).unwrap_or_default();
        let cells = if style.width < BAR_WIDTH_MIN { 8 } else { 24 };
        line.push_str(&format!(
            "  [{}]  {} of {} used",
            bar(&[(reserved, '='), (account.owners_bytes, '#'), (held, '!'), (unexplained, '?')], total, cells),
            size(used),
            size(total)
        ));
        let parts = [
            ("= driver reserve", reserved),
            ("# living owners", account.owners_bytes),
            ("! held past its owner", held),
            ("? not explained", unexplained),
        ];
        let notes: Vec<String> =
            parts.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| format!("{name} {}", size(bytes))).collect();
        if !notes.is_empty() {
            line.push('\n');
            let one_line = format!("       {}", notes.join("   "));
            let fits = one_line.chars().count() <= style.width;
            let lines = if fits { one_line } else { notes.iter().map(|n| format!("       {n}")).collect::<Vec<_>>().join("\n") };
            line.push_str(&style.paint(Paint::Faint, &lines));
        }
    }
    let first_width = line.lines().next().map_or(0, |l| l.chars().count());
    if first_width > style.width {
        line = line.replacen("  [", "\n       [", 1);
    }
    line.push('\n');
    line
}

fn holding_text(number: usize, h: &Holding, style: &Style) -> String {
    let mut out = String::new();
    let lead = format!("{number}. ");
    let rest = " ".repeat(lead.len());
    for line in wrap(&escape(&h.summary, 2000), style.width, &lead, &rest).lines() {
        out.push_str(&style.paint(Paint::Strong, line));
        out.push('\n');
    }
    let cause = format!("{} ({})", h.cause.name(), h.confidence.name());
    out.push_str(&labelled("cause", &cause, style));
    if let Some(owner) = &h.owner {
        out.push_str(&labelled("owner", &owner_text(owner), style));
    }
    for (index, holder) in h.holders.iter().enumerate() {
        let label = if index == 0 { "held by" } else { "" };
        out.push_str(&labelled(label, &holder_text(holder, style), style));
    }
    out.push_str(&evidence_text(h, style));
    if style.verbose {
        out.push_str(&objects_text(h, style));
    }
    out.push_str(&remedies_text(&h.remedy, style));
    out
}

/// What nobody needs to worry about, a line each; `--verbose` tells all.
fn ordinary_text(holdings: &[&Holding], style: &Style) -> String {
    if holdings.is_empty() {
        return String::new();
    }
    let mut out = wrap("In order (--verbose tells more):", style.width, "", "");
    for h in holdings {
        out.push_str(&wrap(&escape(&h.summary, 500), style.width, " - ", "   "));
    }
    out.push('\n');
    out
}

fn labelled(label: &str, text: &str, style: &Style) -> String {
    let first = format!("{INDENT}{label:<LABEL$}");
    let rest = " ".repeat(INDENT.len() + LABEL);
    let body = wrap(text, style.width, &first, &rest);
    if label.is_empty() || !style.color {
        return body;
    }
    body.replacen(label, &style.paint(Paint::Faint, label), 1)
}

fn owner_text(owner: &OwnerPart) -> String {
    let mut text = format!("{} (PID {})", name(owner.comm.as_deref()), owner.pid);
    text.push_str(&format!(", {}", owner.state));
    if let Some(start) = &owner.start_time {
        text.push_str(&format!(", started {start}"));
    }
    if let Some(container) = &owner.container {
        text.push_str(&format!(", in {}", escape(container, 120)));
    }
    if let Some(cmdline) = owner.cmdline.as_deref().filter(|c| !c.is_empty()) {
        text.push_str(&format!(": {}", escape(cmdline, CMDLINE_MAX)));
    }
    text
}

fn holder_text(holder: &HolderPart, style: &Style) -> String {
    let mut text = format!("{} (PID {}), {}", name(holder.comm.as_deref()), holder.pid, holder.state);
    if let Some(start) = &holder.start_time {
        text.push_str(&format!(", started {start}"));
    }
    text.push_str(&format!("; {}: {}", via_text(holder.via), descriptors_text(holder, style)));
    text
}

fn via_text(via: crate::event::Via) -> &'static str {
    use crate::event::Via;
    match via {
        Via::Opened => "opened",
        Via::Fork => "inherited by fork",
        Via::ScmRights => "received over a unix socket",
        Via::PidfdGetfd => "taken with pidfd_getfd",
        Via::IoUring => "registered in an io_uring",
        Via::InFlight => "unread in its unix socket",
        Via::Import => "imported the memory",
        Via::ExportFd => "holds the exported handle",
        Via::Thread => "a live thread has it",
    }
}

/// "/dev/nvidiactl (fd 8), /dev/nvidia0 x18 (fd 11-23, ...)": grouped by device; all numbers when verbose.
fn descriptors_text(holder: &HolderPart, style: &Style) -> String {
    let mut by_device: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for d in &holder.descriptors {
        by_device.entry(&d.device).or_default().push(d.fd);
    }
    let parts: Vec<String> = by_device
        .into_iter()
        .map(|(device, mut fds)| {
            fds.sort_unstable();
            let times = if fds.len() > 1 { format!(" x{}", fds.len()) } else { String::new() };
            let shown = if style.verbose { fds.len() } else { 3 };
            let mut list: Vec<String> = fds.iter().take(shown).map(ToString::to_string).collect();
            if fds.len() > shown {
                list.push("...".to_owned());
            }
            format!("{}{times} (fd {})", escape(device, 80), list.join(", "))
        })
        .collect();
    if parts.is_empty() { "no descriptor".to_owned() } else { parts.join(", ") }
}

fn evidence_text(h: &Holding, style: &Style) -> String {
    let mut out = String::new();
    let shown = if style.verbose { h.evidence.len() } else { EVIDENCE_MAX };
    for (index, line) in h.evidence.iter().take(shown).enumerate() {
        let label = if index == 0 { "evidence" } else { "" };
        let text = match &line.at {
            Some(at) => format!("{}  {}", clock(at), escape(&line.what, 1000)),
            None => escape(&line.what, 1000),
        };
        out.push_str(&labelled(label, &text, style));
    }
    if h.evidence.len() > shown {
        let more = format!("{} more lines; --verbose shows them", h.evidence.len() - shown);
        out.push_str(&labelled("", &more, style));
    }
    out
}

/// The allocations, largest first.
fn objects_text(h: &Holding, style: &Style) -> String {
    let mut out = String::new();
    for (index, object) in h.objects.iter().enumerate() {
        let label = if index == 0 { "objects" } else { "" };
        let handle = |handle: &Option<String>| handle.as_deref().map_or_else(|| "?".to_owned(), |h| escape(h, 8));
        let bytes = object.bytes.map_or_else(|| "size not seen".to_owned(), size);
        let since = object.since.as_deref().map_or(String::new(), |at| format!("  {}", clock(at)));
        let kept = object.kept_by.iter().map(|by| escape(by, 80)).collect::<Vec<_>>().join(", ");
        let text = format!("{bytes:>8}  {}:{}{since}  kept by {kept}", handle(&object.client), handle(&object.object));
        out.push_str(&labelled(label, &text, style));
    }
    let told = h.objects.len();
    if let Some(books) = h.books.as_ref().filter(|books| told > 0 && books.objects > told) {
        out.push_str(&labelled("", &format!("and {} smaller ones", books.objects - told), style));
    }
    out
}

fn remedies_text(remedies: &[Remedy], style: &Style) -> String {
    let mut out = String::new();
    for (index, remedy) in remedies.iter().enumerate() {
        let label = if index == 0 { "to free it" } else { "else" };
        let frees = remedy.frees_bytes.map_or(String::new(), |b| format!("; frees {}", size(b)));
        let risk = if matches!(remedy.risk.as_str(), "" | "none") { String::new() } else { format!(" Risk: {}.", remedy.risk) };
        let effect = format!("{}{frees}.{risk}", escape(&remedy.effect, 500));
        match &remedy.command {
            Some(command) => {
                // A command is never wrapped: it must survive copy and paste.
                let command = escape(command, 500);
                let line = format!("{INDENT}{label:<LABEL$}");
                out.push_str(&format!("{line}{}\n", style.paint(Paint::Command, &command)));
                out.push_str(&labelled("", &effect, style));
            }
            None => out.push_str(&labelled(label, &effect, style)),
        }
    }
    out
}

fn zombies_text(e: &Explanation, style: &Style) -> String {
    if e.zombies.is_empty() {
        return String::new();
    }
    let mut out = String::new();
    let n = e.zombies.len();
    let verb = if n == 1 { "is" } else { "are" };
    let head = format!("{} {verb} waiting to be reaped. A zombie holds no GPU memory.", count(n, "zombie"));
    out.push_str(&wrap(&head, style.width, "", ""));
    let shown = if style.verbose { n } else { ZOMBIES_MAX };
    for z in e.zombies.iter().take(shown) {
        out.push_str(&wrap(&zombie_text(z), style.width, INDENT, "     "));
    }
    if n > shown {
        out.push_str(&format!("{INDENT}and {} more; --verbose shows them\n", n - shown));
    }
    if let Some(pids) = &e.pids {
        let mut text = format!("{} and {} on this host", count(pids.processes as usize, "process"), count(pids.zombies as usize, "zombie"));
        if let Some(max) = pids.pid_max {
            text.push_str(&format!("; pid_max is {max}"));
        }
        if let Some(cgroup) = &pids.cgroup {
            text.push_str(&format!("; pids limit {}", escape(cgroup, 200)));
        }
        out.push_str(&wrap(&text, style.width, INDENT, "     "));
    }
    out.push('\n');
    out
}

fn zombie_text(z: &ZombiePart) -> String {
    let mut text = format!("{} (PID {})", name(Some(&z.comm)), z.pid);
    if let Some(since) = &z.since {
        text.push_str(&format!(" since {}", clock(since)));
    }
    if z.used_gpu {
        text.push_str(", used the GPU when it lived");
    }
    match &z.parent {
        Some(p) => {
            let who = match &p.comm {
                Some(comm) => format!("{} (PID {}, {})", name(Some(comm)), p.pid, p.state),
                None if p.state == "unknown" => format!("PID {}, of which nothing else is known,", p.pid),
                None => format!("PID {} ({})", p.pid, p.state),
            };
            text.push_str(&format!(": {who} must wait for it"));
        }
        None => text.push_str(": its parent is not known"),
    }
    text
}

fn limits_text(e: &Explanation, style: &Style) -> String {
    if e.limits.is_empty() {
        return String::new();
    }
    let mut out = style.paint(Paint::Faint, "What could not be seen:");
    out.push('\n');
    for limit in &e.limits {
        let text = format!("{}: {}", escape(&limit.missing, 300), escape(&limit.voids, 300));
        out.push_str(&wrap(&text, style.width, " - ", "   "));
    }
    out
}

/// A comm, escaped; "a process whose name is not known" stays short: "?".
fn name(comm: Option<&str>) -> String {
    comm.filter(|c| !c.is_empty()).map_or_else(|| "?".to_owned(), |c| escape(c, 32))
}

/// "12:03:55.120" out of "2026-12-01T12:03:55.120Z".
fn clock(rfc3339: &str) -> &str {
    rfc3339.split_once('T').map_or(rfc3339, |(_, time)| time.trim_end_matches('Z'))
}
