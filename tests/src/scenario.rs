//! A scenario's data: `tests/scenarios/NAME/scenario.toml`, what is true of the part and what outlive must say of it.
//!
//! ```toml
//! claim = "a forked child keeps its killed parent's memory"
//! places = ["stand-in", "gpu"]
//! remedied = true                       # following the printed commands frees the memory
//!
//! [[memory]]                            # one for each piece of memory that is held
//! cause = "inherited_descriptor"
//! owner = "owner"                       # people have the part's own names for them
//! holders = { child = "fork" }
//! cold = { confidence = "inferred" }    # what a look without history may leave open
//! ```
//!
//! Always true: nothing here runs anything; a word that is not known is an error, so a typing mistake cannot weaken a scenario.

use std::collections::BTreeMap;
use std::io;

use outlive::event::Via;
use outlive::explanation::{CauseId, Confidence};
use serde::{Deserialize, Serialize};

/// Where a scenario can be played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Any host: device nodes and an NVML that stand for NVIDIA's.
    StandIn,
    /// A guest with a driver that stands for NVIDIA's.
    Driver,
    /// A host with a real GPU.
    Gpu,
}

/// A part, and what outlive must say of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name of its folder, and of the part.
    #[serde(skip)]
    pub name: String,
    /// What the part does: the first lines of its play.rs.
    #[serde(skip)]
    pub story: String,
    /// What it proves, as a sentence.
    pub claim: String,
    /// Where it can be played.
    pub places: Vec<Place>,
    /// Memory that is held, all and no other.
    #[serde(default)]
    pub memory: Vec<Memory>,
    /// Zombies that must be listed.
    #[serde(default)]
    pub zombies: Vec<Zombie>,
    /// No hook fires: a recording knows of it only after its next scan of all processes, at the latest when it stops.
    #[serde(default)]
    pub quiet: bool,
    /// The recording begins when the part already plays.
    #[serde(default)]
    pub late: bool,
    /// The incident lasts too short for more than one look in each way.
    #[serde(default)]
    pub brief: bool,
    /// Doing what outlive proposes must end every holder and free the memory.
    #[serde(default)]
    pub remedied: bool,
    /// Events are lost meanwhile: the recorder stands still while more happens than its buffers hold.
    #[serde(default)]
    pub overrun: bool,
    /// Words that a limit must have when there is history.
    #[serde(default)]
    pub limits: Vec<String>,
}

/// One piece of held memory.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Causes that are right: more than one where the evidence leaves it open.
    pub cause: OneOrMany<CauseId>,
    /// Confidences that are right; exact when left out.
    #[serde(default = "exact")]
    pub confidence: OneOrMany<Confidence>,
    /// Whose memory.
    pub owner: Option<String>,
    /// Who keeps it, and the ways to say how it came to that. "others": everybody whose name begins with "other-".
    #[serde(default)]
    pub holders: BTreeMap<String, OneOrMany<Via>>,
    /// The owner may stay unnamed and its bytes uncounted, but neither may be wrong.
    #[serde(default)]
    pub owner_perhaps_unknown: bool,
    /// It may be told of on its own or not; if it is, then so. Say why in a comment.
    #[serde(default)]
    pub perhaps: bool,
    /// The bytes are not judged: say why in a comment.
    #[serde(default)]
    pub any_bytes: bool,
    /// With a driver, bytes that differ by no more MiB are the same: nvidia-smi counts in MiB, and a process in pages of 2 MiB. More
    /// where a figure can only be what is left over: NVML's total has some MiB that it charges to nobody.
    #[serde(default = "near_mib")]
    pub near_mib: u64,
    /// MiB that the owner has beyond what NVML charges to it.
    #[serde(default)]
    pub more_mib: u64,
    /// The owner's container, as it must be called.
    pub container: Option<String>,
    /// Who reaped the owner; the stage when left out; "nobody": its parent ignores SIGCHLD.
    pub reaper: Option<String>,
    /// What ended the owner; SIGKILL from the stage when left out.
    pub ended_by: Option<i32>,
    /// Words that the sentence or the evidence must have.
    #[serde(default)]
    pub says: Vec<String>,
    /// How the owner ended was not seen.
    #[serde(default)]
    pub end_unseen: bool,
    /// What differs with history.
    #[serde(default)]
    pub warm: Override,
    /// What differs without history.
    #[serde(default)]
    pub cold: Override,
    /// What differs on a real GPU.
    #[serde(default)]
    pub gpu: Override,
    /// What differs on a real GPU without history, beyond both.
    #[serde(default, rename = "gpu-cold")]
    pub gpu_cold: Override,
}

/// Replaces what it has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    cause: Option<OneOrMany<CauseId>>,
    confidence: Option<OneOrMany<Confidence>>,
    owner: Option<String>,
    holders: Option<BTreeMap<String, OneOrMany<Via>>>,
    owner_perhaps_unknown: Option<bool>,
    any_bytes: Option<bool>,
    near_mib: Option<u64>,
    more_mib: Option<u64>,
    /// It is not told of on its own.
    #[serde(default)]
    absent: bool,
}

/// A process that nobody waits for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zombie {
    /// Who.
    pub who: String,
    /// Who must wait for it ("stage" is the part's own process).
    pub parent: String,
    /// It used the GPU, which only history can tell.
    pub used_gpu: bool,
}

/// One word, or several that are all right.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// One.
    One(T),
    /// Several.
    Many(Vec<T>),
}

impl<T: PartialEq> OneOrMany<T> {
    /// As a slice.
    pub fn all(&self) -> &[T] {
        match self {
            OneOrMany::One(one) => std::slice::from_ref(one),
            OneOrMany::Many(many) => many,
        }
    }
}

fn near_mib() -> u64 {
    2
}

fn exact() -> OneOrMany<Confidence> {
    OneOrMany::One(Confidence::Exact)
}

impl Memory {
    /// What must be said at `place`, with history or without.
    #[must_use]
    pub fn expected(&self, place: Place, cold: bool) -> Memory {
        let mut memory = self.clone();
        let (on_gpu, over) = (place == Place::Gpu, [&self.warm, &self.cold, &self.gpu, &self.gpu_cold]);
        for (over, applies) in over.into_iter().zip([!cold, cold, on_gpu, on_gpu && cold]) {
            if applies {
                memory.replace(over);
            }
        }
        memory
    }

    fn replace(&mut self, over: &Override) {
        let Override { cause, confidence, owner, holders, owner_perhaps_unknown, any_bytes, near_mib, more_mib, absent: _ } = over.clone();
        self.cause = cause.unwrap_or_else(|| self.cause.clone());
        self.confidence = confidence.unwrap_or_else(|| self.confidence.clone());
        self.owner = owner.or_else(|| self.owner.clone());
        self.holders = holders.unwrap_or_else(|| self.holders.clone());
        self.owner_perhaps_unknown = owner_perhaps_unknown.unwrap_or(self.owner_perhaps_unknown);
        self.any_bytes = any_bytes.unwrap_or(self.any_bytes);
        self.near_mib = near_mib.unwrap_or(self.near_mib);
        self.more_mib = more_mib.unwrap_or(self.more_mib);
    }
}

impl Scenario {
    /// What must be said at `place`, with history or without.
    #[must_use]
    pub fn expected(&self, place: Place, cold: bool) -> Vec<Memory> {
        let told = self.memory.iter().filter(|memory| !if cold { memory.cold.absent } else { memory.warm.absent });
        told.map(|memory| memory.expected(place, cold)).collect()
    }
}

/// Name, scenario.toml and play.rs of every folder of tests/scenarios: build.rs lists them, so that the harness needs no source tree.
const FILES: &[(&str, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/scenarios.rs"));

/// Every scenario, by name.
///
/// # Errors
/// When a file says what it may not.
pub fn all() -> io::Result<Vec<Scenario>> {
    FILES.iter().map(|(name, data, play)| read(name, data, play)).collect()
}

fn read(name: &str, data: &str, play: &str) -> io::Result<Scenario> {
    let mut scenario: Scenario =
        toml::from_str(data).map_err(|error| io::Error::other(format!("tests/scenarios/{name}/scenario.toml: {error}")))?;
    let story: Vec<&str> = play.lines().map_while(|line| line.strip_prefix("//! ")).collect();
    name.clone_into(&mut scenario.name);
    scenario.story = story.join(" ");
    Ok(scenario)
}
