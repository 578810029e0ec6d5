//! NVML's failures in sentences: what failed, on what, what to do, and which conclusions that voids.

use std::path::Path;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;

/// What a failure means for the answer.
const VOIDS: &str = "how many bytes are held, in all and by whom, and which PIDs NVML charges";

/// NVML could not be loaded or initialised.
pub(super) fn unavailable(error: &NvmlError, library: &Path) -> (String, String) {
    let library = library.display();
    let missing = match error {
        NvmlError::LibloadingError(e) => format!(
            "NVML: cannot load {library} ({e}). Install the driver's management library (Debian: libnvidia-ml1, RHEL: \
             nvidia-driver-cuda-libs; in a container: the driver capability \"utility\"), or name it with --nvml PATH"
        ),
        NvmlError::FailedToLoadSymbol(_) => {
            format!(
                "NVML: {library} lacks functions of NVML. Name the driver's libnvidia-ml.so.1 with --nvml PATH"
            )
        }
        NvmlError::DriverNotLoaded => format!(
            "NVML: {library} finds no loaded NVIDIA kernel driver. Load it (modprobe nvidia) or see dmesg for why it left; \
             in a container, pass the device nodes in"
        ),
        NvmlError::LibRmVersionMismatch => format!(
            "NVML: {library} and the loaded kernel driver have different versions. Reload the driver or reboot after an \
             upgrade, or name the matching library with --nvml PATH"
        ),
        NvmlError::NoPermission => {
            format!("NVML: {library} may not talk to the driver. Run as root")
        }
        other => format!(
            "NVML: {library} cannot be initialised ({other}). See dmesg for the driver's own report"
        ),
    };
    (missing, VOIDS.to_owned())
}

/// A question about one GPU failed.
pub(super) fn gpu(error: &NvmlError, gpu: u32, question: &str) -> (String, String) {
    let missing = match error {
        NvmlError::GpuLost => format!(
            "NVML: GPU {gpu} has fallen off the bus (as in Xid 79). Nothing can be read from it until it is reset or the host is rebooted"
        ),
        NvmlError::ResetRequired => format!("NVML: GPU {gpu} must be reset before it answers"),
        NvmlError::NoPermission => {
            format!("NVML: no permission for the {question} of GPU {gpu}. Run as root")
        }
        NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) => {
            format!("NVML: this driver or GPU {gpu} does not give the {question}")
        }
        other => format!("NVML: the {question} of GPU {gpu} cannot be read ({other})"),
    };
    (missing, format!("{VOIDS}, on GPU {gpu}"))
}

/// NVML no longer lists a GPU.
pub(super) fn gone(gpu: u32) -> (String, String) {
    let missing = format!(
        "NVML no longer lists GPU {gpu}: it was removed or has fallen off the bus; see dmesg"
    );
    (missing, format!("{VOIDS}, on GPU {gpu}"))
}

/// A call hangs.
pub(super) fn unanswered(call: &str, since: Duration) -> (String, String) {
    let missing = format!(
        "NVML has not answered {call} for {} s: the driver is stuck or busy with a teardown. Nothing else waits for it",
        since.as_secs()
    );
    (missing, VOIDS.to_owned())
}

/// Xids cannot be had from NVML.
pub(super) fn no_xids(error: &NvmlError) -> (String, String) {
    (
        format!("NVML does not report Xids ({error})"),
        "whether the GPU reported an error".to_owned(),
    )
}

/// After this, the library must be initialised anew.
pub(super) const fn is_fatal(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_names_the_library_or_the_gpu_and_what_to_do() {
        let library = Path::new("/x/libnvidia-ml.so.1");
        for error in [
            NvmlError::DriverNotLoaded,
            NvmlError::LibRmVersionMismatch,
            NvmlError::NoPermission,
            NvmlError::Unknown,
        ] {
            let (missing, _) = unavailable(&error, library);
            assert!(missing.contains("/x/libnvidia-ml.so.1"), "{missing}");
        }
        assert!(
            gpu(&NvmlError::GpuLost, 3, "memory")
                .0
                .contains("GPU 3 has fallen off the bus")
        );
    }
}
