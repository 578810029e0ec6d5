//! Xids from the kernel log.
//!
//! Always true: reading never blocks ([`Kmsg`] can be polled by its descriptor); only lines that the kernel itself
//! wrote count, since root can write others into the log; records that were overwritten before they were read are
//! counted.
//!
//! Times: the log stamps its records with `local_clock()`, which counts from boot, stands still during suspend like
//! CLOCK_MONOTONIC, and is not disciplined by NTP. It is turned into boottime by today's difference of the two clocks,
//! so an Xid can be off by the drift since boot (seconds after weeks) and by any suspend since; it is never later
//! than the moment at which it was read, and never earlier than the last time that there was nothing to read: a recorder, which
//! reads every second, is right to a second.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::event::{BootNs, Event, What};
use crate::sys;

/// Longest record that the kernel gives out (PRINTK_MESSAGE_MAX and the prefix), with room to spare.
const RECORD_MAX: usize = 16 << 10;
/// Longest message and address that are kept, bytes.
const MESSAGE_MAX: usize = 1024;
const PCI_MAX: usize = 64;
/// Records that one call of [`Kmsg::drain`] reads at most, so that a flood of messages starves nobody.
const DRAIN_MAX: usize = 16 << 10;

/// Why the kernel log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Opening failed.
    #[error("cannot open the kernel log {}: {source}{}", path.display(), hint(source))]
    Open {
        /// /dev/kmsg.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Reading failed.
    #[error("cannot read the kernel log: {0}")]
    Read(#[from] io::Error),
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => ". It needs root or CAP_SYSLOG",
        io::ErrorKind::NotFound => ". In a container it must be passed in",
        _ => "",
    }
}

impl Error {
    /// The same as a limit of what can be seen.
    #[must_use]
    pub fn limit(&self) -> What {
        What::Limit {
            missing: self.to_string(),
            voids: "Xids that only the kernel log tells of".to_owned(),
        }
    }
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// With the next message.
    Now,
    /// With the oldest message that is still there: a look back.
    Start,
}

/// Reads the kernel log.
#[derive(Debug)]
pub struct Kmsg {
    file: File,
    /// Sequence number of the next record.
    next: Option<u64>,
    /// Everything from before this time has been read.
    read_to: BootNs,
    buffer: Vec<u8>,
}

impl Kmsg {
    /// Opens /dev/kmsg.
    ///
    /// # Errors
    /// When it is not there or may not be read.
    pub fn open(from: From) -> Result<Kmsg, Error> {
        Kmsg::open_at(Path::new("/dev/kmsg"), from)
    }

    fn open_at(path: &Path, from: From) -> Result<Kmsg, Error> {
        let failed = |source| Error::Open {
            path: path.to_path_buf(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(failed)?;
        let mut kmsg = Kmsg::over(file);
        // Fresh descriptors begin with the oldest record (devkmsg_open, kernel/printk/printk.c).
        if from == From::Now && !kmsg.pass() {
            kmsg.file.seek(SeekFrom::End(0)).map_err(failed)?;
            kmsg.next = None;
        }
        Ok(kmsg)
    }

    fn over(file: File) -> Kmsg {
        Kmsg {
            file,
            next: None,
            read_to: 0,
            buffer: vec![0; RECORD_MAX],
        }
    }

    /// Passes over what is there, so that the number of the next record is known and none can be overwritten uncounted. False: there is too much.
    fn pass(&mut self) -> bool {
        for _ in 0..DRAIN_MAX {
            match self.file.read(&mut self.buffer) {
                Ok(0) => return true,
                Ok(read) => {
                    let text = String::from_utf8_lossy(&self.buffer[..read]);
                    self.next = Record::parse(&text).map(|record| record.sequence.saturating_add(1)).or(self.next);
                }
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return true,
                // As in `drain`; what fails for good fails there again.
                Err(_) => {}
            }
        }
        false
    }

    /// Adds the Xids among the messages that are there; ends without waiting when there are none left.
    ///
    /// # Errors
    /// When reading fails for another reason than that nothing is there.
    pub fn drain(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        let (boottime, monotonic) = (sys::boottime_ns(), sys::monotonic_ns());
        for _ in 0..DRAIN_MAX {
            let read = match self.file.read(&mut self.buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        self.read_to = boottime;
                        return Ok(());
                    }
                    // Records were overwritten; the next read goes on with the oldest, whose number says how many, unless none has been read yet.
                    Some(libc::EPIPE) => {
                        events.extend(self.next.is_none().then(|| lost(boottime, 1)));
                        continue;
                    }
                    // EINVAL: too long for us.
                    Some(libc::EINTR | libc::EINVAL) => continue,
                    _ => return Err(error.into()),
                },
            };
            let text = String::from_utf8_lossy(&self.buffer[..read]);
            let Some(record) = Record::parse(&text) else {
                continue;
            };
            let missed = self
                .next
                .map_or(0, |next| record.sequence.saturating_sub(next));
            self.next = Some(record.sequence.saturating_add(1));
            if missed > 0 {
                events.push(lost(boottime, missed));
            }
            let at = record
                .monotonic_us
                .saturating_mul(1000)
                .saturating_add(boottime.saturating_sub(monotonic))
                .max(self.read_to)
                .min(boottime);
            events.extend(record.xid(at));
        }
        Ok(())
    }
}

/// So many records (or more, where their number is not known) were overwritten before they were read.
fn lost(at: BootNs, count: u64) -> Event {
    Event { at, what: What::Lost { cause: "kernel_log_overwritten".to_owned(), count } }
}

impl AsFd for Kmsg {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// "priority,sequence,microseconds,flags[,...];message\n KEY=value\n" (Documentation/ABI/testing/dev-kmsg).
struct Record<'a> {
    /// The kernel wrote it: facility 0, which /dev/kmsg does not let others use.
    from_kernel: bool,
    sequence: u64,
    monotonic_us: u64,
    message: &'a str,
}

impl<'a> Record<'a> {
    fn parse(text: &'a str) -> Option<Record<'a>> {
        let (prefix, rest) = text.split_once(';')?;
        let mut fields = prefix.split(',');
        let priority: u32 = fields.next()?.parse().ok()?;
        Some(Record {
            from_kernel: priority >> 3 == 0,
            sequence: fields.next()?.parse().ok()?,
            monotonic_us: fields.next()?.parse().ok()?,
            message: rest.lines().next()?,
        })
    }

    /// "NVRM: Xid (PCI:0000:0b:00): 31, pid=1234, name=python3, Ch 00000008, ..." (krcReportXid, kernel_rc.c).
    fn xid(&self, at: BootNs) -> Option<Event> {
        if !self.from_kernel {
            return None;
        }
        let (device, rest) = self
            .message
            .strip_prefix("NVRM: Xid (")?
            .split_once("): ")?;
        let pci = device.strip_prefix("PCI:").unwrap_or(device);
        let (code, message) = rest.split_once(',').unwrap_or((rest, ""));
        let message = message.trim_start();
        let what = What::Xid {
            pci: pci[..pci.floor_char_boundary(PCI_MAX)].to_owned(),
            code: code.trim().parse().ok()?,
            pid: pid(message),
            message: message[..message.floor_char_boundary(MESSAGE_MAX)].to_owned(),
        };
        Some(Event { at, what })
    }
}

/// The PID of the channel's creator; the driver writes `pid='<unknown>'` when it has none.
fn pid(message: &str) -> Option<u32> {
    let field = message.strip_prefix("pid=")?.split(',').next()?;
    field
        .trim_matches('\'')
        .parse()
        .ok()
        .filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// A log that is fed by hand: a datagram socket keeps records apart, as /dev/kmsg does.
    fn log() -> (UnixDatagram, Kmsg) {
        let (feed, read) = UnixDatagram::pair().unwrap();
        read.set_nonblocking(true).unwrap();
        (feed, Kmsg::over(File::from(OwnedFd::from(read))))
    }

    fn drain(kmsg: &mut Kmsg) -> Vec<What> {
        let mut events = Vec::new();
        kmsg.drain(&mut events).unwrap();
        events.into_iter().map(|event| event.what).collect()
    }

    fn xid(pci: &str, code: u32, pid: Option<u32>, message: &str) -> What {
        What::Xid {
            pci: pci.to_owned(),
            code,
            pid,
            message: message.to_owned(),
        }
    }

    #[test]
    fn xids_of_all_forms_are_read_and_other_lines_are_not() {
        let (feed, mut kmsg) = log();
        for line in [
            "4,1,1000,-;NVRM: Xid (PCI:0000:0b:00): 31, pid=1234, name=py, thon, Ch 00000008, intr 0\n SUBSYSTEM=pci\n",
            "4,2,1000,-,caller=T1;NVRM: Xid (PCI:0000:0b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n",
            "4,3,1000,-;NVRM: Xid (PCI:0000:0b:00 GPU-I:05): 94, Contained error\n",
            "4,4,1000,-;NVRM: Xid (PCI:0000:0b:00): 63\n",
            "4,5,1000,-;NVRM: loading NVIDIA UNIX Open Kernel Module\n",
            "12,6,1000,-;NVRM: Xid (PCI:0000:0b:00): 79, forged by a program\n",
            "4,7,1000,-;NVRM: Xid (PCI:0000:0b:00): many, \n",
            "nonsense",
        ] {
            feed.send(line.as_bytes()).unwrap();
        }
        let expected = [
            xid(
                "0000:0b:00",
                31,
                Some(1234),
                "pid=1234, name=py, thon, Ch 00000008, intr 0",
            ),
            xid(
                "0000:0b:00",
                79,
                None,
                "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            ),
            xid("0000:0b:00 GPU-I:05", 94, None, "Contained error"),
            xid("0000:0b:00", 63, None, ""),
        ];
        assert_eq!(drain(&mut kmsg), expected);
        assert_eq!(drain(&mut kmsg), [], "and it does not wait for more");
    }

    #[test]
    fn overwritten_records_are_counted_and_long_ones_are_bounded() {
        let (feed, mut kmsg) = log();
        feed.send(b"4,10,1,-;x\n").unwrap();
        feed.send(
            format!(
                "4,15,1,-;NVRM: Xid (PCI:{}): 8, {}\n",
                "p".repeat(500),
                "é".repeat(3000)
            )
            .as_bytes(),
        )
        .unwrap();
        let events = drain(&mut kmsg);
        assert_eq!(
            events[0],
            What::Lost {
                cause: "kernel_log_overwritten".to_owned(),
                count: 4
            }
        );
        let What::Xid { pci, message, .. } = &events[1] else {
            panic!("{events:?}")
        };
        assert_eq!((pci.len(), message.len()), (PCI_MAX, MESSAGE_MAX));
    }

    #[test]
    fn what_is_overwritten_before_the_first_record_is_read_is_counted() {
        let (feed, mut kmsg) = log();
        feed.send(b"4,10,1,-;NVRM: Xid (PCI:0): 8\n").unwrap();
        assert!(kmsg.pass());
        feed.send(b"4,15,1,-;NVRM: Xid (PCI:0): 9\n").unwrap();
        let lost = What::Lost { cause: "kernel_log_overwritten".to_owned(), count: 4 };
        assert_eq!(drain(&mut kmsg), [lost, xid("0", 9, None, "")]);
    }

    #[test]
    fn an_xid_is_never_later_than_now() {
        let (feed, mut kmsg) = log();
        feed.send(format!("4,1,{},-;NVRM: Xid (PCI:0): 8\n", u64::MAX).as_bytes())
            .unwrap();
        let before = sys::monotonic_ns() / 1000;
        feed.send(format!("4,2,{before},-;NVRM: Xid (PCI:0): 8\n").as_bytes())
            .unwrap();
        let mut events = Vec::new();
        kmsg.drain(&mut events).unwrap();
        let now = sys::boottime_ns();
        assert!(events[0].at <= now);
        assert!(now - events[1].at < 5_000_000_000, "stamped with boottime");
    }

    #[test]
    fn a_log_that_cannot_be_opened_is_a_limit_that_names_it() {
        let error = Kmsg::open_at(Path::new("/nowhere/kmsg"), From::Now).unwrap_err();
        assert!(
            matches!(error.limit(), What::Limit { missing, .. } if missing.contains("/nowhere/kmsg"))
        );
    }

    #[test]
    fn the_real_log_is_read_to_its_end() {
        match Kmsg::open(From::Start) {
            Ok(mut kmsg) => kmsg.drain(&mut Vec::new()).unwrap(),
            // Past the capture of the test harness.
            Err(error) => std::io::stderr()
                .write_all(format!("SKIPPED: {error}\n").as_bytes())
                .unwrap(),
        }
    }

    proptest::proptest! {
        #[test]
        fn any_record_is_read_without_a_panic(text in ".*", tail in ".*") {
            for text in [text, format!("4,1,1,-;NVRM: Xid ({tail}"), format!("4,1,1,-;NVRM: Xid (PCI:0): 1, pid={tail}")] {
                let _ = Record::parse(&text).and_then(|record| record.xid(1));
            }
        }
    }
}
