//! What NVML must answer while a part is played: kept in a file for the NVML double, or read from a driver.
//!
//! Always true: the file is replaced in one step, so a reader sees a whole state; `used` is the sum of all charges.
//! A driver's figures are its own (nvidia-smi's, or the books of its stand-in), never outlive's, while the owner lives. As on a real driver, a charge is listed under the PID that created it until it is freed, dead or not; memory that
//! is held through /dev/nvidia-uvm or an exported handle alone is counted and listed under nobody.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::gpu::Gpu;

const MIB: u64 = 1 << 20;
/// An H200, and the driver's reserve on it.
const TOTAL: u64 = 143_771 * MIB;
const RESERVED: u64 = 615 * MIB;

struct Charge {
    owner: String,
    pid: u32,
    bytes: u64,
    listed: bool,
}

/// Who is charged for what.
pub(crate) struct Books {
    file: Option<PathBuf>,
    charges: Vec<Charge>,
}

impl Books {
    /// Books that are written to `file`, if one is given.
    pub(crate) fn open(file: Option<PathBuf>) -> io::Result<Books> {
        let books = Books { file, charges: Vec::new() };
        books.write()?;
        Ok(books)
    }

    /// `owner` (process `pid`) allocates.
    pub(crate) fn charge(&mut self, owner: &str, pid: u32, mib: u64) -> io::Result<()> {
        let mib = if Gpu::of_play() == Gpu::StandIn { mib } else { real::charged(pid)? };
        self.charges.push(Charge { owner: owner.to_owned(), pid, bytes: mib * MIB, listed: true });
        self.write()
    }

    /// NVML no longer lists `owner`, although its memory is held.
    pub(crate) fn unlist(&mut self, owner: &str) -> io::Result<()> {
        for charge in self.charges.iter_mut().filter(|charge| charge.owner == owner) {
            charge.listed = false;
        }
        self.write()
    }

    /// All that `owner` had is free again.
    pub(crate) fn free(&mut self, owner: &str) -> io::Result<()> {
        if Gpu::of_play() != Gpu::StandIn {
            self.charges.iter().filter(|charge| charge.owner == owner).try_for_each(|charge| real::until_free(charge.pid))?;
        }
        self.charges.retain(|charge| charge.owner != owner);
        self.write()
    }

    /// The GPU is idle.
    pub(crate) fn idle(&self) -> io::Result<()> {
        self.write()
    }

    /// Memory is in use that is charged to nobody.
    pub(crate) fn lose(&mut self, mib: u64) -> io::Result<()> {
        self.charges.push(Charge { owner: String::new(), pid: 0, bytes: mib * MIB, listed: false });
        self.write()
    }

    /// `owner` is known to keep so much.
    pub(crate) fn know(&mut self, owner: &str, pid: u32, mib: u64) {
        self.charges.push(Charge { owner: owner.to_owned(), pid, bytes: mib * MIB, listed: true });
    }

    /// Bytes held, by owner.
    pub(crate) fn held(&self) -> Value {
        self.charges.iter().map(|charge| (charge.owner.clone(), json!(charge.bytes))).collect()
    }

    fn write(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let used: u64 = self.charges.iter().map(|charge| charge.bytes).sum();
        let processes: Vec<Value> = self.charges.iter().filter(|charge| charge.listed)
            .map(|charge| json!({"pid": charge.pid, "bytes": charge.bytes, "use": "compute"}))
            .collect();
        let answers = json!({"driver": "580.0-double", "gpus": [{
            "name": "NVIDIA Double", "uuid": "GPU-double-0", "minor": 0, "pci": "00000000:0B:00.0",
            "total": TOTAL, "reserved": RESERVED, "used": used, "processes": processes,
        }]});
        let fresh = file.with_extension("new");
        fs::write(&fresh, serde_json::to_vec(&answers)?)?;
        fs::rename(&fresh, file)
    }
}

/// What a real driver says.
mod real {
    use std::io;
    use std::process::Command;

    use crate::gpu::Gpu;
    use crate::stage::until;

    /// Books of the stand-in for the driver: tests/driver/README.md.
    const BOOKS: &str = "/proc/driver/nvidia-standin";

    fn in_the_stand_ins_books() -> io::Result<Vec<(u32, u64)>> {
        let books: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(BOOKS)?)?;
        let lines = books["gpus"].as_array().into_iter().flatten().flat_map(|gpu| gpu["processes"].as_array().into_iter().flatten());
        let fields = |line: &serde_json::Value| Some((u32::try_from(line["pid"].as_u64()?).ok()?, line["bytes"].as_u64()? >> 20));
        Ok(lines.filter_map(fields).collect())
    }

    /// MiB that NVML charges to a process.
    pub(super) fn charged(pid: u32) -> io::Result<u64> {
        let mut charged = None;
        until("the driver to list the owner", || {
            charged = listed()?.into_iter().find(|(listed, _)| *listed == pid);
            Ok(charged.is_some())
        })?;
        charged.map(|(_, mib)| mib).ok_or_else(|| io::Error::other("not listed"))
    }

    /// Waits until NVML no longer lists a process.
    pub(super) fn until_free(pid: u32) -> io::Result<()> {
        until("the memory to be free", || Ok(listed()?.iter().all(|(listed, _)| *listed != pid)))
    }

    fn listed() -> io::Result<Vec<(u32, u64)>> {
        if Gpu::of_play() == Gpu::Driver {
            return in_the_stand_ins_books();
        }
        let query = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"];
        let answer = Command::new("nvidia-smi").args(query).output()?;
        if !answer.status.success() {
            return Err(io::Error::other(format!("nvidia-smi: {}: {}", answer.status, String::from_utf8_lossy(&answer.stderr))));
        }
        let fields = |line: &str| {
            let (pid, mib) = line.split_once(',')?;
            Some((pid.trim().parse().ok()?, mib.trim().parse().ok()?))
        };
        Ok(String::from_utf8_lossy(&answer.stdout).lines().filter_map(fields).collect())
    }
}
