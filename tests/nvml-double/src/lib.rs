//! NVML double.
