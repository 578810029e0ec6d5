//! The machine runs out of something: PIDs, room for zombies, memory.

use std::fs;

use outlive::explanation::{CauseId, Explanation};

use crate::rm::Cuda;
use crate::stage::{Books, Line, books, spawn, until};
use crate::sys::{Group, Setting, Zombies, lead_group, make_zombies, short_lived, use_memory};
use crate::watched::{Held, Watched, leak, leaked, nothing, owner};

const PID_MAX: &str = "/proc/sys/kernel/pid_max";
/// PIDs that the kernel does not use again (RESERVED_PIDS, kernel/pid.c), and some for this test.
const FEW_PIDS: &str = "600";
const ZOMBIES: u32 = 20_000;

#[test]
fn the_dead_owners_pid_comes_round_again() {
    let Some(mut watched) = Watched::begin("the_dead_owners_pid") else { return };
    let few = Setting::set(PID_MAX, FEW_PIDS);
    // The first PID after the wrap may be anybody's.
    while short_lived() > 600 {}
    let (dead, child) = leak(&mut watched.stage);
    watched.until("it leaks", &leaked(dead.pid, child));
    // All the others have had their turn when it comes again.
    let mut turns = 0;
    while short_lived() + 1 != dead.pid {
        turns += 1;
        assert!(turns < 5_000, "PID {} does not come again", dead.pid);
    }
    let again = watched.stage.start(owner(1_024)).pid;
    assert_eq!(again, dead.pid, "somebody else had the PID first");
    drop(few);
    assert_eq!(books().used, 3_072);
    let facts = |said: &Explanation| -> Result<(), String> {
        let outlive: Vec<_> = said.holdings.iter().filter(|h| h.outlives()).collect();
        let [held] = outlive[..] else { return Err(format!("{} holdings outlive their owners", outlive.len())) };
        Held { owner: dead.pid, causes: &[CauseId::InheritedDescriptor], holders: &[child], exact: false }.is(held)?;
        let lives = said.holdings.iter().find(|h| h.cause == CauseId::OwnerAlive).ok_or("nothing is said of who has the PID now")?;
        let (old, new) = (held.owner.as_ref().unwrap(), lives.owner.as_ref().unwrap());
        if new.pid != again || old.state != "gone" || old.start_time == new.start_time {
            return Err(format!("{old:?} and {new:?} are not told apart"));
        }
        match (held.bytes, lives.bytes) {
            (Some(2_147_483_648), Some(1_073_741_824)) => Ok(()),
            bytes => Err(format!("the bytes are {bytes:?}")),
        }
    };
    watched.until("they are told apart", &facts);
    watched.until_recorded("they are told apart", &facts);
    watched.ends(&facts);
}

#[test]
fn thousands_of_zombies() {
    let Some(mut watched) = Watched::begin("thousands_of_zombies") else { return };
    // The kernel allows as many as fit into an eighth of its memory, which a guest's cannot have: these have no memory of their own.
    let room = [Setting::set(PID_MAX, "65536"), Setting::set("/proc/sys/kernel/threads-max", "65536")];
    let mut parent = watched.stage.start(|line| {
        lead_group();
        line.say(&[])?;
        line.wait()?;
        make_zombies(ZOMBIES)?;
        // Said by a file: the line has a deadline for one saying.
        fs::write("/tmp/outlive-zombies", "done")?;
        Ok(())
    });
    parent.go();
    let zombies = Zombies(parent.pid);
    let done = || fs::metadata("/tmp/outlive-zombies").is_ok();
    while !done() {
        assert!(crate::stage::state(parent.pid) != '?' && crate::stage::state(parent.pid) != 'Z', "their parent has ended");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    fs::remove_file("/tmp/outlive-zombies").unwrap();
    let (owner, child) = leak(&mut watched.stage);
    let facts = |said: &Explanation| -> Result<(), String> {
        let counted = said.pids.as_ref().map_or(0, |pids| pids.zombies);
        let named = said.zombies.iter().filter(|zombie| zombie.parent.as_ref().is_some_and(|of| of.pid == parent.pid)).count();
        if counted < ZOMBIES || named < ZOMBIES as usize {
            return Err(format!("{counted} zombies are counted, and {named} of {} told with their parent", said.zombies.len()));
        }
        leaked(owner.pid, child)(said)
    };
    watched.until("they are counted", &facts);
    let text = watched.host.outlive("explain").output().unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains(&format!("PID {}", parent.pid)), "their parent is named: {text}");
    let (ended, _stage, _host) = watched.ends(&|said| leaked(owner.pid, child)(said));
    assert!(ended.explanation.pids.is_some_and(|pids| pids.zombies >= ZOMBIES), "the trace counts them");
    drop((zombies, room));
}

/// An owner in a group with little memory, and a child outside that has everything; then the owner needs more.
fn hungry(group: &Group) -> impl FnOnce(&mut Line) -> std::io::Result<()> {
    let limit = group.read("memory.max");
    assert_ne!(limit.trim(), "max");
    |line| {
        Cuda::open()?.malloc(2_048)?;
        let child = spawn(|child| child.say(&[]))?;
        line.say(&[child.pid])?;
        line.wait()?;
        use_memory(256);
        Ok(())
    }
}

#[test]
fn chosen_by_the_oom_killer() {
    let Some(mut watched) = Watched::begin("chosen_by_the_oom_killer") else { return };
    fs::write("/sys/fs/cgroup/unified/cgroup.subtree_control", "+memory").unwrap();
    let group = Group::make("outlive-small");
    group.write("memory.max", "67108864");
    let mut owner = watched.stage.start(hungry(&group));
    let child = watched.stage.adopt(owner.said[0]);
    group.add(owner.pid);
    owner.go();
    until("the owner is killed", || crate::stage::state(owner.pid) == 'Z');
    watched.stage.kill(owner.pid);
    let facts = |said: &Explanation| -> Result<(), String> {
        leaked(owner.pid, child)(said)?;
        let held = said.holdings.iter().find(|h| h.outlives()).unwrap();
        let exit = held.owner.as_ref().and_then(|owner| owner.exit.as_ref()).ok_or("its end is not told")?;
        if exit.by.as_deref() == Some("OOM killer") && exit.signal == Some(libc::SIGKILL) && held.summary.contains("the OOM killer") {
            return Ok(());
        }
        Err(format!("the OOM killer is not named: {exit:?}"))
    };
    watched.until("the OOM killer is named", &facts);
    watched.until_recorded("the OOM killer is named", &facts);
    watched.stage.kill(child);
    watched.until("nothing is left", &nothing);
    // The whole machine: the owner is the one that the kernel prefers. It is told to choose (a guest whose memory is really used up kills its
    // own tests and panics).
    let mut hog = watched.stage.start(|line| {
        Cuda::open()?.malloc(1_024)?;
        let child = spawn(|child| child.say(&[]))?;
        fs::write("/proc/self/oom_score_adj", "1000")?;
        line.say(&[child.pid])?;
        line.wait()?;
        use_memory(256);
        fs::write("/proc/self/comm", "full")?;
        Ok(())
    });
    let child = watched.stage.adopt(hog.said[0]);
    hog.go();
    until("it has what it wants", || fs::read_to_string(format!("/proc/{}/comm", hog.pid)).is_ok_and(|comm| comm.trim() == "full"));
    fs::write("/proc/sysrq-trigger", "f").unwrap();
    until("the owner is killed", || crate::stage::state(hog.pid) == 'Z');
    watched.stage.kill(hog.pid);
    let facts = |said: &Explanation| -> Result<(), String> {
        leaked(hog.pid, child)(said)?;
        let by = said.holdings.iter().find(|h| h.outlives()).and_then(|h| h.owner.as_ref()?.exit.as_ref()?.by.clone());
        if by.as_deref() == Some("OOM killer") { Ok(()) } else { Err(format!("it was killed by {by:?}")) }
    };
    watched.until("the OOM killer is named", &facts);
    watched.until_recorded("the OOM killer is named", &facts);
    let (ended, stage, _host) = watched.ends(&facts);
    let timeline = ended.timelines.iter().find(|timeline| timeline.pid == hog.pid).unwrap();
    assert_eq!(timeline.ended_by.as_deref(), Some("SIGKILL"));
    drop(stage);
    drop(group);
    let _ = fs::write("/sys/fs/cgroup/unified/cgroup.subtree_control", "-memory");
    assert_eq!(books(), Books::default());
}
