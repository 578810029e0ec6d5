//! `driver_reserve`: the driver and the GPU's firmware keep this memory for themselves. Not a leak.
//!
//! A data-centre GPU without any process shows some hundred MiB of "used" memory (615 MiB on an H200): firmware (GSP),
//! page tables, ECC. NVML's newer interface calls it reserved; the older one counts it as used.
//!
//! * **Must be seen:** nobody uses the GPU, and NVML tells the reserve apart; or NVML does not, and no more than 1 GiB
//!   is in use without any holder.
//! * **Would refute it:** a holder, or more used memory than the reserve.
//! * **Confidence:** exact when NVML says "reserved"; else inferred.
//! * **Remedy:** none is needed.

use super::Verdict;
use super::case::{BytesFrom, Case, Kind};
use super::evidence::note;
use super::words;
use crate::explanation::Confidence;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    if case.kind != Kind::Reserve {
        return None;
    }
    let bytes = words::size(case.bytes.unwrap_or_default());
    let gpu = case.gpu.unwrap_or_default();
    let (confidence, why) = match case.bytes_from {
        BytesFrom::Nvml => (Confidence::Exact, format!("NVML reports {bytes} as reserved, and nobody uses GPU {gpu}")),
        _ => (Confidence::Inferred, "This NVML does not tell the reserve from used memory; nobody has GPU files open".to_owned()),
    };
    Some(Verdict {
        confidence,
        summary: format!("{bytes} on GPU {gpu} is the driver's and firmware's own reserve: not a leak."),
        notes: vec![note(None, why)],
        remedies: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use crate::event::What;
    use crate::explanation::{CauseId, Confidence};
    use crate::story::{MIB, Story};

    #[test]
    fn the_reserve_of_an_idle_gpu_is_no_leak() {
        let mut story = Story::cold();
        story.nvml(0, &[]);
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::DriverReserve, Confidence::Exact));
        assert_eq!(holding.summary, "615 MiB on GPU 0 is the driver's and firmware's own reserve: not a leak.");
        assert_eq!(story.told().exit_code(), 0);
        assert_eq!(story.told().gpus[0].attributed_bytes, Some(0));
    }

    #[test]
    fn an_old_nvml_that_counts_the_reserve_as_used_raises_no_alarm() {
        let mut story = Story::cold();
        story.push(What::GpuMemory { gpu: 0, total: 143_771 * MIB, used: 256 * MIB, reserved: None });
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::DriverReserve, Confidence::Inferred));
        assert_eq!(story.told().exit_code(), 0);
    }

    #[test]
    fn a_figure_from_before_somebody_got_memory_does_not_say_that_nobody_uses_the_gpu() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(2_048, &[(574, 2_048)]);
        story.used(0);
        story.scanned();
        let causes: Vec<CauseId> = story.told().holdings.iter().map(|holding| holding.cause).collect();
        assert_eq!(causes, [CauseId::OwnerAlive]);
    }

    #[test]
    fn more_than_any_reserve_is_not_called_one() {
        let mut story = Story::cold();
        story.push(What::GpuMemory { gpu: 0, total: 143_771 * MIB, used: 4_000 * MIB, reserved: None });
        story.scanned();
        assert_eq!(story.holding().cause, CauseId::NoHolder);
    }
}
