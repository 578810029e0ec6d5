//! An actor: a process that plays one role on the stand-in device nodes and says on standard output what it holds.
//!
//! Always true: an actor ends when its standard input does, so nothing survives the stage or the test; it says
//! "ready" only when everything that its role promises is so; it opens files the way libcuda does.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{IntoRawFd, RawFd};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::devices::{self, Device};
use crate::gpu::Gpu;
use crate::sys::{self, Side};

/// What libcuda opens for one context: measured on an H200, driver 580.
const OPENS: [(Device, usize); 3] = [(Device::Control, 1), (Device::Uvm, 2), (Device::Gpu, 18)];

/// A descriptor of an NVIDIA file, and whose memory it keeps.
#[derive(Clone)]
struct Held {
    owner: String,
    device: Option<Device>,
    fd: RawFd,
}

/// One process on the stage.
pub(crate) struct Actor {
    name: String,
    dir: PathBuf,
    args: Vec<String>,
    held: Vec<Held>,
}

impl Actor {
    pub(crate) fn new(name: &str, dir: &Path, args: &[String]) -> Actor {
        Actor { name: name.to_owned(), dir: dir.to_owned(), args: args.to_vec(), held: Vec::new() }
    }

    /// What the play calls it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The role's argument number `index`.
    pub(crate) fn arg(&self, index: usize) -> io::Result<&str> {
        self.args.get(index).map(String::as_str)
            .ok_or_else(|| io::Error::other(format!("{}: argument {index} is missing", self.name)))
    }

    /// All the role's arguments.
    pub(crate) fn args(&self) -> &[String] {
        &self.args
    }

    /// A path in the stage's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A device node.
    pub(crate) fn node(&self, device: Device) -> PathBuf {
        if Gpu::of_play() == Gpu::StandIn { device.path(&self.dir) } else { Path::new("/dev").join(device.name()) }
    }

    /// Uses the GPU through its driver, or opens what a CUDA context opens where there is none. All close-on-exec.
    pub(crate) fn open_gpu(&mut self) -> io::Result<()> {
        self.open_gpu_by(|| Gpu::of_play().allocate())
    }

    /// The same with an `allocate` of one's own; false from it: there is no driver.
    pub(crate) fn open_gpu_by(&mut self, allocate: impl FnOnce() -> io::Result<bool>) -> io::Result<()> {
        let before = devices::open_here()?;
        if allocate()? {
            let opened = devices::open_here()?.into_iter().filter(|file| !before.contains(file));
            let owner = &self.name;
            self.held.extend(opened.map(|(fd, device)| Held { owner: owner.clone(), device: Some(device), fd }));
            return Ok(());
        }
        for (device, count) in OPENS {
            let path = self.node(device);
            for _ in 0..count {
                let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| {
                    io::Error::other(format!("cannot open {} (is it on a nodev mount?): {error}", path.display()))
                })?;
                self.held.push(Held { owner: self.name.clone(), device: Some(device), fd: file.into_raw_fd() });
            }
        }
        Ok(())
    }

    /// The same without close-on-exec, as a careless library would.
    pub(crate) fn open_gpu_inheritable(&mut self) -> io::Result<()> {
        self.open_gpu()?;
        self.all_fds().into_iter().try_for_each(sys::keep_on_exec)
    }

    /// Descriptors of `device` that this actor holds.
    pub(crate) fn fds(&self, device: Device) -> Vec<RawFd> {
        self.held.iter().filter(|held| held.device == Some(device)).map(|held| held.fd).collect()
    }

    /// All descriptors of stand-ins that this actor holds.
    pub(crate) fn all_fds(&self) -> Vec<RawFd> {
        self.held.iter().map(|held| held.fd).collect()
    }

    /// Closes all but what `keep` names: "all", "none", "ctl", "uvm" (one of the two) or "nvidia0".
    pub(crate) fn keep_only(&mut self, keep: &str) -> io::Result<()> {
        let kept = |device: Device| match keep {
            "none" => Some(0),
            "ctl" => Some(usize::from(device == Device::Control)),
            "uvm" => Some(usize::from(device == Device::Uvm)),
            "nvidia0" => Some(if device == Device::Gpu { usize::MAX } else { 0 }),
            _ => None,
        };
        if keep == "all" {
            return Ok(());
        }
        for device in Device::ALL {
            let Some(count) = kept(device) else {
                return Err(io::Error::other(format!("{}: cannot keep {keep:?}", self.name)));
            };
            for fd in self.fds(device).into_iter().skip(count) {
                self.close(fd);
            }
        }
        Ok(())
    }

    fn close(&mut self, fd: RawFd) {
        sys::close(fd);
        self.held.retain(|held| held.fd != fd);
    }

    /// Notes descriptors that came from elsewhere and keep `owner`'s memory.
    pub(crate) fn adopt(&mut self, owner: &str, fds: impl IntoIterator<Item = RawFd>) {
        self.held.extend(fds.into_iter().map(|fd| Held { owner: owner.to_owned(), device: None, fd }));
    }

    /// Closes everything that this actor holds.
    pub(crate) fn close_all(&mut self) {
        for fd in self.all_fds() {
            self.close(fd);
        }
    }

    /// Forks a child without exec that plays `role` under another name, with copies of all descriptors.
    pub(crate) fn fork(&mut self, name: &str, role: impl FnOnce(&mut Actor) -> io::Result<()>) -> io::Result<u32> {
        match sys::fork()? {
            Side::Parent(pid) => Ok(pid),
            Side::Child => {
                name.clone_into(&mut self.name);
                let result = role(self);
                self.end(result)
            }
        }
    }

    /// Says what went wrong, if anything did, and exits.
    pub(crate) fn end(&self, result: io::Result<()>) -> ! {
        if let Err(error) = &result {
            // Nobody is left to tell when the stage's pipe is gone.
            let _ = say(&json!({"error": format!("{} (PID {}): {error}", self.name, own_pid().unwrap_or_default())}));
        }
        sys::exit_now(i32::from(result.is_err()))
    }

    /// Tells the stage that everything this role promises is so.
    pub(crate) fn ready(&self) -> io::Result<()> {
        let mut held: BTreeMap<&str, Vec<RawFd>> = BTreeMap::new();
        for Held { owner, fd, .. } in &self.held {
            held.entry(owner).or_default().push(*fd);
        }
        let pid = own_pid()?;
        say(&json!({"ready": self.name, "pid": pid, "start_ticks": start_ticks(pid)?, "held": held}))
    }

    /// Ready, and then idle until the play ends.
    pub(crate) fn wait(&self) -> io::Result<()> {
        self.ready()?;
        until_end()
    }
}

/// Our PID in the namespace that /proc was mounted in: the host's, even in a container of our own.
fn own_pid() -> io::Result<u32> {
    let link = fs::read_link("/proc/self")?;
    link.to_str().and_then(|pid| pid.parse().ok()).ok_or_else(|| io::Error::other(format!("/proc/self is {}", link.display())))
}

/// State letter of a process; none: it does not exist.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Time that a process spent in the kernel, in clock ticks: field 15 of its stat (proc(5)).
pub(crate) fn kernel_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(12)?.parse().ok()).unwrap_or(0)
}

/// The kernel has begun to take it apart: PF_EXITING (include/linux/sched.h) of field 9.
pub(crate) fn is_exiting(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & 4 != 0)
}

/// Blocks until standard input ends: the stage or the test is gone.
pub(crate) fn until_end() -> io::Result<()> {
    let mut byte = [0];
    loop {
        match io::stdin().read(&mut byte) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes one line in one piece (shorter than PIPE_BUF, so lines of several actors do not mix).
pub(crate) fn say(line: &serde_json::Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    out.flush()
}

/// Start time of a process in clock ticks since boot: field 22 of /proc/PID/stat.
pub(crate) fn start_ticks(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The comm in field 2 may hold blanks and parentheses: count from the last ')'.
    stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)).and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has no start time")))
}
