//! `outlive doctor`: what can be seen on this host, what cannot, and what that costs.

use super::output;
use crate::cli::{Common, Doctor};
use crate::event::{DeviceNode, Event, Hook, What};
use crate::report::escape::escape;
use crate::report::layout::{Paint, Style, wrap};
use crate::source::kernel::{Facts, Kernel, Options, View, Way};
use crate::source::nvml::{self, Sampler};
use crate::source::procfs::Proc;
use crate::source::devices;
use crate::sys;
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

/// Exit code when something that outlive needs is missing.
const CANNOT_TELL: u8 = 4;
/// How long NVML may take to answer.
const NVML_PATIENCE: Duration = Duration::from_secs(10);

/// Everything that was found out. The JSON form is this structure.
#[derive(Debug, Serialize)]
struct Findings {
    kernel: String,
    facts: FactsPart,
    devices: Vec<DeviceNode>,
    devices_problem: Option<String>,
    hooks: Vec<Hook>,
    views: Vec<ViewPart>,
    kernel_problem: Option<String>,
    nvml: NvmlPart,
    limits: Vec<LimitPart>,
}

#[derive(Debug, Serialize)]
struct FactsPart {
    root: bool,
    can_load_programs: bool,
    can_trace: bool,
    btf: bool,
    tracefs: bool,
    initial_pid_namespace: bool,
}

/// What a group of hooks sees, and how.
#[derive(Debug, Serialize)]
struct ViewPart {
    sees: &'static str,
    /// "driver", "syscall" or "waiting".
    way: &'static str,
    why_not_driver: Option<String>,
}

impl From<&View> for ViewPart {
    fn from(view: &View) -> ViewPart {
        let way = match view.way {
            Way::Driver => "driver",
            Way::Syscall => "syscall",
            Way::Waiting => "waiting",
        };
        ViewPart { sees: view.sees, way, why_not_driver: view.why.clone() }
    }
}

/// The ways, what each costs, and what it does not see.
const WAYS: [(&str, &str); 3] = [
    (
        "driver",
        "Driver hooks (kprobes) show {}: they cost nothing to programs that do not use the GPU, and time the driver's releases. They do not \
         see a close of a descriptor that others still hold: a scan does, within seconds",
    ),
    (
        "syscall",
        "Syscall hooks (tracepoints) show {}: while recording they cost every system call of every process some tens of nanoseconds, and opens, closes and ioctls one to three hundred. When \
         the driver releases a file they do not see: it lies between the exit of the last thread and the zombie",
    ),
    ("waiting", "No NVIDIA driver is loaded. When it is, its functions will show {}"),
];

#[derive(Debug, Default, Serialize)]
struct NvmlPart {
    gpus: Vec<String>,
    started_in_ms: Option<u128>,
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct LimitPart {
    missing: String,
    voids: String,
}

pub(super) fn run(args: &Doctor, common: &Common) -> Result<u8> {
    let tracefs = sys::private_tracefs();
    let mut findings = examine(common)?;
    if let Err(error) = tracefs {
        findings.limits.push(LimitPart { missing: format!("tracefs ({error})"), voids: "everything that only tracepoints show".to_owned() });
    }
    if args.json {
        output::print_json(&findings)?;
    } else {
        output::print(&text(&findings, &output::style(common)))?;
    }
    let blind = findings.kernel_problem.is_some() || findings.devices_problem.is_some();
    Ok(if blind { CANNOT_TELL } else { 0 })
}

fn examine(common: &Common) -> Result<Findings> {
    let options = nvml::Options { library: common.nvml.clone(), ..nvml::Options::default() };
    let mut sampler = Sampler::start(options).context("cannot start a thread for NVML")?;
    let (devices, devices_problem) = match devices::find(&common.devices) {
        Ok(list) => (list, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let facts = Facts::gather();
    let (hooks, views, kernel_problem, limits) = match Kernel::for_watching(Options { hooks: common.hooks.wanted(), ..Options::new(devices.clone()) }) {
        Ok(kernel) => {
            let limits = kernel.limits().iter().map(|(m, v)| LimitPart { missing: m.clone(), voids: v.clone() }).collect();
            (kernel.hooks().to_vec(), kernel.views().iter().map(ViewPart::from).collect(), None, limits)
        }
        Err(error) => (Vec::new(), Vec::new(), Some(error.to_string()), Vec::new()),
    };
    let answered = sampler.wait(Sampler::FIRST, NVML_PATIENCE);
    let mut nvml = NvmlPart { started_in_ms: sampler.init_took().map(|d| d.as_millis()), ..NvmlPart::default() };
    if !answered {
        nvml.problem = Some(format!("NVML did not answer within {} s", NVML_PATIENCE.as_secs()));
    }
    while let Some(Event { what, .. }) = sampler.try_recv() {
        match what {
            What::Gpu { gpu, name, .. } => nvml.gpus.push(format!("GPU {gpu}: {name}")),
            What::Limit { missing, .. } => nvml.problem = Some(missing),
            _ => {}
        }
    }
    Ok(Findings {
        kernel: Proc::default().host().kernel,
        facts: FactsPart {
            root: facts.root,
            can_load_programs: facts.can_load,
            can_trace: facts.can_trace,
            btf: facts.btf,
            tracefs: facts.tracefs,
            initial_pid_namespace: facts.initial_pid_namespace,
        },
        devices,
        devices_problem,
        hooks,
        views,
        kernel_problem,
        nvml,
        limits,
    })
}

fn text(f: &Findings, style: &Style) -> String {
    let mut out = String::new();
    let mut line = |good: bool, what: &str| {
        let (paint, word) = if good { (Paint::Good, "yes") } else { (Paint::Alarm, "NO ") };
        let wrapped = wrap(what, style.width, "     ", "     ");
        let _ = writeln!(out, "{}  {}", style.paint(paint, word), wrapped.trim());
    };
    line(f.facts.root, "running as root");
    line(f.facts.can_load_programs && f.facts.can_trace, "may load eBPF programs and read kernel structures (CAP_BPF, CAP_PERFMON)");
    line(f.facts.btf, "the kernel describes its types (/sys/kernel/btf/vmlinux)");
    line(f.facts.tracefs, "tracefs is readable (mounted privately when the host does not have it)");
    line(f.facts.initial_pid_namespace, "in the initial PID namespace, so that PIDs are the host's");
    let attached = f.hooks.iter().filter(|h| h.attached).count();
    if !f.hooks.is_empty() {
        line(f.kernel_problem.is_none(), &format!("{attached} of {} hooks attached on Linux {}", f.hooks.len(), f.kernel));
    }
    for (way, sentence) in WAYS {
        let seen: Vec<&str> = f.views.iter().filter(|view| view.way == way).map(|view| view.sees).collect();
        if !seen.is_empty() {
            line(true, &sentence.replace("{}", &seen.join(", ")));
        }
    }
    let reasons: BTreeSet<&str> = f.views.iter().filter_map(|view| view.why_not_driver.as_deref()).collect();
    for why in reasons.iter().filter(|why| !why.starts_with("--hooks")) {
        line(false, &format!("driver hooks instead: {}", escape(why, 300)));
    }
    for hook in f.hooks.iter().filter(|h| !h.attached) {
        line(false, &format!("{}: {}", hook.name, escape(hook.why_not.as_deref().unwrap_or("not attached"), 300)));
    }
    if let Some(problem) = &f.kernel_problem {
        line(false, &escape(problem, 2000));
    }
    let paths: Vec<String> = f.devices.iter().map(|d| escape(&d.path, 80)).collect();
    match &f.devices_problem {
        Some(problem) => line(false, &escape(problem, 500)),
        None => line(true, &format!("NVIDIA files: {}", paths.join(", "))),
    }
    let took = f.nvml.started_in_ms.map(|ms| format!(" (started in {ms} ms)")).unwrap_or_default();
    match &f.nvml.problem {
        Some(problem) => line(false, &escape(problem, 500)),
        None => line(true, &format!("NVML{took}: {}", escape(&f.nvml.gpus.join(", "), 500))),
    }
    if !f.limits.is_empty() {
        out.push_str("\nWhat cannot be seen here, and what that leaves open:\n");
        for limit in &f.limits {
            out.push_str(&wrap(&format!("{}: {}", escape(&limit.missing, 300), escape(&limit.voids, 300)), style.width, " - ", "   "));
        }
    }
    out
}
