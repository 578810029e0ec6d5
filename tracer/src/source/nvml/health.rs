//! A GPU's health in NVML's words: what it asks for, and whether it is lost.
//!
//! `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION` (nvml.h 12.6 and later) says what the driver wants done. A library or GPU that does
//! not know it says nothing, and that is no failure.

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;

use crate::event::What;

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const RECOVERY_ACTION: u32 = 230;

/// Of a GPU that answers.
pub(super) fn of(device: &Device<'_>, gpu: u32) -> What {
    What::GpuHealth { gpu, recovery: recovery(device), lost: false, reset_required: false }
}

/// Of a GPU that fails in a way that says how it is.
pub(super) fn failed(error: &NvmlError, gpu: u32) -> Option<What> {
    let (lost, reset_required) = (matches!(error, NvmlError::GpuLost), matches!(error, NvmlError::ResetRequired));
    (lost || reset_required).then_some(What::GpuHealth { gpu, recovery: None, lost, reset_required })
}

/// Nothing is said and nothing is wrong: not worth an event before there was one.
pub(super) const fn is_silent(health: &What) -> bool {
    matches!(health, What::GpuHealth { recovery: None, lost: false, reset_required: false, .. })
}

fn recovery(device: &Device<'_>) -> Option<u32> {
    let fields = device.field_values_for(&[FieldId(RECOVERY_ACTION)]).ok()?;
    match fields.into_iter().next()?.ok()?.value.ok()? {
        SampleValue::U32(value) => Some(value),
        SampleValue::U64(value) => u32::try_from(value).ok(),
        SampleValue::I64(value) => u32::try_from(value).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_that_say_how_the_gpu_is_are_health() {
        assert!(matches!(failed(&NvmlError::GpuLost, 1), Some(What::GpuHealth { gpu: 1, lost: true, reset_required: false, .. })));
        assert!(matches!(failed(&NvmlError::ResetRequired, 1), Some(What::GpuHealth { lost: false, reset_required: true, .. })));
        assert_eq!(failed(&NvmlError::NotSupported, 1), None);
        assert!(is_silent(&What::GpuHealth { gpu: 1, recovery: None, lost: false, reset_required: false }));
        assert!(!is_silent(&What::GpuHealth { gpu: 1, recovery: Some(0), lost: false, reset_required: false }));
    }
}
