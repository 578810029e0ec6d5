//! What NVML says: GPUs, their memory, and whom it charges.
//!
//! NVML can block in the kernel for as long as the driver does, so it lives on a thread of its own and nothing here
//! ever waits for it without a limit. What always holds:
//!
//! * events come out of [`Sampler::recv`] or [`Sampler::try_recv`], stamped when NVML answered;
//! * memory and process lists are sent when they change, and whole when [`Sampler::sample_now`] asked;
//! * a failure is a [`What::Limit`] that says what is missing and what to do, once, and sampling goes on: a GPU that
//!   is lost does not hide the others, a driver that comes back is used again;
//! * our own process is never in a list: NVML's own descriptors make us a user of every GPU.
//!
//! While a sampler lives, NVML keeps every GPU open, so that the driver cannot be unloaded or a GPU be reset.

mod failure;
mod health;
mod sampling;
mod xid;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::event::{Event, What};
use crate::sys;

/// NVML that does not answer for this long is reported.
pub const OVERDUE: Duration = Duration::from_secs(5);

/// Events that wait for their reader; more are dropped and counted.
const QUEUE: usize = 8192;

/// What to sample, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// The library to load (`--nvml`); `None` looks in the usual places.
    pub library: Option<PathBuf>,
    /// Time between samples at [`Rate::Rest`], longer where a sample is expensive.
    pub rest: Duration,
    /// Time between samples at [`Rate::Fast`].
    pub fast: Duration,
    /// Also report Xids that NVML is told of, on a second thread.
    pub watch_xid: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            library: None,
            rest: Duration::from_secs(10),
            fast: Duration::from_millis(3),
            watch_xid: false,
        }
    }
}

/// How often to sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// Nothing is going on.
    #[default]
    Rest,
    /// A GPU process is exiting: memory is about to come back.
    Fast,
}

/// A sample that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The handle of the sampling thread. Dropping it ends the thread as soon as NVML lets go of it.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
    events: mpsc::Receiver<Event>,
}

impl Sampler {
    /// The first sample, which is taken without being asked for.
    pub const FIRST: Ticket = Ticket(1);

    /// Starts the thread, which loads NVML and takes the first sample at once.
    ///
    /// # Errors
    /// When no thread can be made. That NVML is not there is not an error but an event.
    pub fn start(options: Options) -> io::Result<Sampler> {
        let (sender, events) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared::default());
        shared.lock().wanted = Sampler::FIRST.0;
        if options.watch_xid {
            let (library, sender, shared) =
                (options.library.clone(), sender.clone(), Arc::clone(&shared));
            std::thread::Builder::new()
                .name("nvml-xid".to_owned())
                .spawn(move || xid::run(library, &sender, &shared))?;
        }
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("nvml".to_owned())
            .spawn(move || sampling::run(&options, sender, &theirs))?;
        Ok(Sampler { shared, events })
    }

    /// Samples at this rate from now on.
    pub fn set_rate(&self, rate: Rate) {
        self.shared.change(|state| state.rate = rate);
    }

    /// Takes a sample as soon as NVML is free, and sends all of it.
    pub fn sample_now(&self) -> Ticket {
        let mut wanted = 0;
        self.shared.change(|state| {
            state.wanted += 1;
            wanted = state.wanted;
        });
        Ticket(wanted)
    }

    /// Waits until that sample was taken or could not be; false when NVML did not answer in time.
    #[must_use]
    pub fn wait(&self, ticket: Ticket, timeout: Duration) -> bool {
        let pending = |state: &mut State| state.done < ticket.0;
        let waited = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), timeout, pending);
        waited.unwrap_or_else(PoisonError::into_inner).0.done >= ticket.0
    }

    /// The next event; `None` when the thread has ended.
    pub async fn recv(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// The next event that is there already.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Says so, once, when NVML has not answered for `after` (usually [`OVERDUE`]); to be called about once a second.
    #[must_use]
    pub fn overdue(&self, after: Duration) -> Option<Event> {
        let mut state = self.shared.lock();
        let call = state.call.clone()?;
        if state.overdue_said || call.since.elapsed() < after {
            return None;
        }
        state.overdue_said = true;
        drop(state);
        Some(limit(failure::unanswered(&call.name, call.since.elapsed())))
    }

    /// How long NVML took to load and initialise; `None` until it has.
    #[must_use]
    pub fn init_took(&self) -> Option<Duration> {
        self.shared.lock().init_took
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.change(|state| state.stop = true);
    }
}

/// What the handle and the threads share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rate: Rate,
    /// Samples asked for, and done.
    wanted: u64,
    done: u64,
    stop: bool,
    init_took: Option<Duration>,
    /// The NVML call that is under way.
    call: Option<Call>,
    overdue_said: bool,
}

#[derive(Clone, Debug)]
struct Call {
    name: String,
    since: Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Only plain fields are set under the lock, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Runs something that may block in NVML.
    fn call<T>(&self, name: impl Into<String>, call: impl FnOnce() -> T) -> T {
        self.lock().call = Some(Call {
            name: name.into(),
            since: Instant::now(),
        });
        let answer = call();
        let mut state = self.lock();
        state.call = None;
        state.overdue_said = false;
        answer
    }
}

fn limit((missing, voids): (String, String)) -> Event {
    Event {
        at: sys::boottime_ns(),
        what: What::Limit { missing, voids },
    }
}
