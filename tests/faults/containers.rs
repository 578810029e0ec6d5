//! A container is torn down while the driver does not release what a process in it has: by the death of its init, and by `cgroup.kill`.

use std::fs;

use outlive::explanation::{CauseId, Explanation};

use crate::stage::{Books, Process, books, kill, set, spawn, stack, state, until};
use crate::sys::{Group, child_of, new_pid_namespace};
use crate::watched::{Watched, dying, nothing, owner};

/// As docker names them.
const ID: &str = "3f2a6c1e9b7d4805a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718";

/// A container in this group: who made it, its init, and the owner in it, by the PIDs that the host knows.
fn container(watched: &mut Watched, group: &Group) -> (Process, u32, u32) {
    let engine = watched.stage.start(|line| {
        new_pid_namespace()?;
        let init = spawn(|init| {
            let owner = spawn(owner(2_048))?;
            // Not ours to name: here it is another number.
            init.say(&[owner.pid])
        })?;
        line.say(&init.said)
    });
    let init = child_of(engine.pid);
    let owner = child_of(init);
    assert_ne!(engine.said[0], owner, "it is in a namespace of its own");
    assert_eq!(books(), Books::of(2_048, &[(owner, 2_048)]));
    group.add(init);
    group.add(owner);
    (engine, init, owner)
}

fn torn_down(name: &str, tear: impl Fn(&Group, u32)) {
    let Some(mut watched) = Watched::begin(name) else { return };
    let group = Group::make(&format!("docker-{ID}.scope"));
    let (engine, init, owner) = container(&mut watched, &group);
    set("release_sleep", 1);
    tear(&group, init);
    until("the driver has the owner", || state(owner) == 'D' && stack(owner).contains("nvidia_close"));
    let facts = |said: &Explanation| -> Result<(), String> {
        dying(owner, CauseId::ExitBlockedInDriver)(said)?;
        let held = said.holdings.iter().find(|h| h.outlives()).unwrap();
        match held.owner.as_ref().and_then(|owner| owner.container.as_deref()) {
            Some(container) if container.starts_with("docker 3f2a6c1e9b7d") => Ok(()),
            other => Err(format!("the container is {other:?}")),
        }
    };
    watched.until("it is stuck", &facts);
    watched.until_recorded("it is stuck", &facts);
    let (ended, mut stage, host) = watched.ends(&facts);
    let timeline = ended.timelines.iter().find(|timeline| timeline.pid == owner).unwrap();
    assert!(timeline.waiting_for.is_some());
    // When the driver goes on, the container is gone, and nothing is left.
    set("release_sleep", 0);
    until("its init has ended", || fs::read_to_string(format!("/proc/{init}/stat")).is_err() || state(init) == 'Z');
    until("all is free", || books() == Books::default());
    nothing(&outlive_tests::look::live(&host, None).unwrap().explanation).unwrap();
    stage.kill(engine.pid);
    stage.adopt(init);
    drop(stage);
    drop(group);
}

#[test]
fn a_containers_init_dies() {
    torn_down("a_containers_init_dies", |_, init| kill(init));
}

#[test]
fn a_containers_group_is_killed() {
    torn_down("a_containers_group_is_killed", |group, _| group.write("cgroup.kill", "1"));
}
