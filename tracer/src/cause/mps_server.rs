//! `mps_server`: an MPS server has the memory, for itself or on behalf of its clients.
//!
//! Under the Multi-Process Service the clients' work runs in contexts of a server process, which stays when they end, and keeps
//! some memory as long as it lives (66 MiB on an H200). By itself that is no leak. What a client allocated goes with the
//! client; where NVML still charges a dead client, the server is what keeps it.
//!
//! * **Must be seen:** the owner is a living MPS server or its control daemon; or the owner is dead, NVML had it in its MPS list, and a
//!   server lives.
//! * **Would refute it:** another holder of the dead client's files.
//! * **Confidence:** exact for the server's own memory; inferred for a dead client's.
//! * **Remedy:** `echo quit | nvidia-cuda-mps-control`, which ends the server when its clients have gone.

use super::case::Case;
use super::evidence::{confidence, ended, note};
use super::{Verdict, remedy, words};
use crate::event::GpuUse;
use crate::explanation::{Confidence, Remedy};
use crate::world::process::{Process, Stage};

/// comm of nvidia-cuda-mps-server and nvidia-cuda-mps-control, cut to TASK_COMM_LEN.
const COMM: &str = "nvidia-cuda-mps";

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    own(case).or_else(|| client(case))
}

fn own(case: &Case<'_>) -> Option<Verdict> {
    let server = case.living_owner().filter(|p| p.stage() == Stage::Alive && is_mps(p))?;
    let clients: Vec<String> = clients(case).iter().map(|pid| format!("PID {pid}")).collect();
    let whom = match &clients[..] {
        [] => "which keeps it as long as it runs; NVML lists no client of it".to_owned(),
        some => format!("which serves {}", words::list(some, 3)),
    };
    Some(Verdict {
        confidence: confidence(case),
        summary: format!("{} belongs to the MPS server {}, {whom}.", case.what(), words::process(server)),
        notes: vec![note(None, "An MPS server stays when its clients end; their own memory goes with them")],
        remedies: vec![quit(case)],
    })
}

/// A dead client that NVML still charges, when nothing else holds its files.
fn client(case: &Case<'_>) -> Option<Verdict> {
    let owner = case.owner.filter(|_| case.owner_is_dead() && case.others().all(|h| is_mps(h.process)))?;
    let listed = case.gpu()?.lines.contains_key(&(owner.id.tgid(), GpuUse::Mps));
    let server = case.world.processes().find(|p| p.is_alive() && p.held && is_mps(p)).filter(|_| listed)?;
    let name = words::process(server);
    Some(Verdict {
        confidence: Confidence::Inferred,
        summary: format!("{} belonged to {}{}; the MPS server {name} still has it.", case.what(), case.owner_name(), ended(case)),
        notes: vec![note(None, format!("NVML lists PID {} as an MPS client", owner.id.tgid()))],
        remedies: vec![quit(case)],
    })
}

/// By its name, which is all that there is.
pub(super) fn is_mps(process: &Process) -> bool {
    process.comm().starts_with(COMM)
}

/// PIDs that NVML lists as MPS clients.
fn clients(case: &Case<'_>) -> Vec<u32> {
    let lines = case.world.gpus().values().flat_map(|gpu| gpu.lines.keys());
    let mut pids: Vec<u32> = lines.filter(|(_, usage)| *usage == GpuUse::Mps).map(|(pid, _)| *pid).collect();
    pids.dedup();
    pids
}

pub(super) fn quit(case: &Case<'_>) -> Remedy {
    remedy::command(
        "echo quit | nvidia-cuda-mps-control".to_owned(),
        "ends the MPS server when its clients have ended (with the server's CUDA_MPS_PIPE_DIRECTORY and user)",
        case.bytes.filter(|bytes| *bytes > 0),
        "new CUDA programs run without MPS until it is started again",
    )
}

#[cfg(test)]
mod tests {
    use crate::event::{GpuProcess, GpuUse, ProcessId, What};
    use crate::explanation::CauseId;
    use crate::story::{MIB, Story};

    fn served(story: &mut Story, clients: &[(u32, u64)]) {
        story.nvml(2_638, &[]);
        let line = |pid, mib, usage| GpuProcess { pid, bytes: Some(mib * MIB), usage, name: None };
        let mut list = vec![line(2_441, 66, GpuUse::Compute)];
        list.extend(clients.iter().map(|(pid, mib)| line(*pid, *mib, GpuUse::Mps)));
        story.push(What::GpuProcesses { gpu: 0, list });
    }

    #[test]
    fn an_idle_server_is_named_and_is_no_alarm() {
        let mut story = Story::warm();
        let server = story.process(2_441, "nvidia-cuda-mps");
        story.uses_cuda(server);
        served(&mut story, &[]);
        story.used(70);
        story.scanned();
        let told = story.told();
        assert_eq!((told.holdings[0].cause, told.holdings[0].bytes), (CauseId::MpsServer, Some(66 * MIB)));
        assert_eq!(told.holdings[0].remedy[0].command.as_deref(), Some("echo quit | nvidia-cuda-mps-control"));
        assert_eq!(told.exit_code(), 0);
    }

    #[test]
    fn a_dead_client_that_nvml_still_charges_is_the_servers() {
        let mut story = Story::warm();
        let server = story.process(2_441, "nvidia-cuda-mps");
        story.uses_cuda(server);
        let client = story.process(2_439, "python3");
        story.uses_cuda(client);
        served(&mut story, &[(2_439, 2_564)]);
        story.killed((ProcessId(12, 5), "bash"), client);
        story.wait(60);
        story.used(2_638);
        story.scanned();
        let told = story.told();
        let held = told.holdings.iter().find(|h| h.owner.as_ref().is_some_and(|o| o.pid == 2_439)).unwrap();
        assert_eq!((held.cause, held.bytes), (CauseId::MpsServer, Some(2_564 * MIB)));
        assert_eq!(told.exit_code(), 3);
    }
}
