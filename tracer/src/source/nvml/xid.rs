//! Xids that NVML is told of (`nvmlEventTypeXidCriticalError`), on a thread of their own, since waiting blocks.
//!
//! A second way to learn of an Xid, for hosts without the driver's tracepoint and without access to the kernel log.
//! NVML gives the number only: no PID and no text.

use std::path::PathBuf;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::event::EventData;
use tokio::sync::mpsc;

use super::{Shared, failure, limit, sampling};
use crate::event::{Event, What};
use crate::sys;

/// How long one wait lasts, ms: so often the thread looks whether it should end.
const WAIT_MS: u32 = 500;

pub(super) fn run(library: Option<PathBuf>, sender: &mpsc::Sender<Event>, shared: &Shared) {
    // Its calls may block for long without anything being wrong, so they do not count as the sampler's.
    let own = Shared::default();
    let Ok(nvml) = sampling::connect(library.as_deref(), &own) else {
        return;
    }; // The sampler says why.
    if let Err(error) = watch(&nvml, sender, shared) {
        let _ = sender.try_send(limit(failure::no_xids(&error)));
    }
}

fn watch(nvml: &Nvml, sender: &mpsc::Sender<Event>, shared: &Shared) -> Result<(), NvmlError> {
    let mut set = nvml.create_event_set()?;
    for gpu in 0..nvml.device_count()? {
        let device = nvml.device_by_index(gpu)?;
        set = device
            .register_events(EventTypes::CRITICAL_XID_ERROR, set)
            .map_err(|e| e.error)?;
    }
    while !shared.lock().stop && !sender.is_closed() {
        match set.wait(WAIT_MS) {
            Ok(data) => {
                if let Some(event) = xid(&data) {
                    let _ = sender.try_send(event);
                }
            }
            Err(NvmlError::Timeout) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn xid(data: &EventData<'_>) -> Option<Event> {
    let code = match data.event_data.as_ref()? {
        XidError::Value(code) => u32::try_from(*code).unwrap_or(u32::MAX),
        XidError::Unknown => 999,
    };
    let pci = data
        .device
        .pci_info()
        .map(|pci| sampling::address(&pci.bus_id))
        .unwrap_or_default();
    let message = "reported by NVML".to_owned();
    Some(Event {
        at: sys::boottime_ns(),
        what: What::Xid {
            pci,
            code,
            pid: None,
            message,
        },
    })
}
