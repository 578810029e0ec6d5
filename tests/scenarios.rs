//! What outlive must say of every part: the table. See tests/src/lib.rs for how it is checked.

use outlive::event::Via::{Fork, InFlight, IoUring, Opened, PidfdGetfd, ScmRights, Thread};
use outlive::explanation::CauseId::{
    CoreDump, DescriptorInFlight, ExitBlockedElsewhere, InheritedDescriptor, KernelClient, LeaderExited, OrphanedProcess, OwnerAlive,
    OwnerStopped, PassedDescriptor, SignalNotFatal, TeardownRunning,
};
use outlive_tests::expect::{Expect, Scenario, held};
use outlive_tests::scenarios;

/// A dead owner's child has what the fork gave it: seen when recorded, deduced when not.
fn inherited(part: &'static str, child: &'static str) -> Scenario {
    Scenario::new(
        part,
        vec![held(InheritedDescriptor, "owner").by(child, Fork).inferred()],
        vec![held(InheritedDescriptor, "owner").by(child, Fork)],
    )
    .remedied()
}

/// Whoever received a dead owner's descriptors. Cold, `how` are the system calls that fit.
fn passed(part: &'static str, holder: &'static str, how: &[outlive::event::Via]) -> Scenario {
    Scenario::new(
        part,
        vec![held(PassedDescriptor, "owner").by_any(holder, how).inferred()],
        vec![held(PassedDescriptor, "owner").by(holder, if part == "passed-getfd" { PidfdGetfd } else { ScmRights })],
    )
    .remedied()
}

/// A living owner of which the same is said with and without history.
fn living(part: &'static str, expect: fn() -> Expect) -> Scenario {
    Scenario::new(part, vec![expect()], vec![expect()])
}

/// A stopped owner: what stops it can be seen at once.
fn stopped(part: &'static str) -> Scenario {
    living(part, || held(OwnerStopped, "owner").by("owner", Opened))
}

/// A dying owner that cannot leave the kernel. A single look at once cannot tell stuck from slow.
fn stuck(part: &'static str) -> Scenario {
    let expect = || held(ExitBlockedElsewhere, "owner").by("owner", Opened).exact_or_inferred();
    Scenario::new(part, vec![expect().or(TeardownRunning)], vec![expect()])
}

/// SIGTERM did not end the owner: only history knows that it was sent.
fn survives(part: &'static str) -> Scenario {
    Scenario::new(
        part,
        vec![held(OwnerAlive, "owner").by("owner", Opened)],
        vec![held(SignalNotFatal, "owner").by("owner", Opened)],
    )
}

scenarios! {
    a_forked_child_keeps_its_killed_parents_memory => inherited("inherit", "child");
    a_zombie_owner_holds_nothing_itself_but_its_child_does =>
        Scenario::new(
            "inherit-zombie",
            // The zombie still has the credentials that opened the files.
            vec![held(InheritedDescriptor, "owner").by("child", Fork).exact_or_inferred()],
            vec![held(InheritedDescriptor, "owner").by("child", Fork)],
        ).zombie("owner", "stage", true).remedied();
    a_grandchild_keeps_the_memory_when_the_process_between_has_gone => inherited("inherit-grandchild", "grandchild");
    uvm_descriptors_alone_keep_memory_of_which_nvml_names_nobody =>
        Scenario::new(
            "inherit-uvm-only",
            vec![held(KernelClient, "owner").by("child", Fork).inferred()],
            // Whose memory it is was seen; how much it is can only be what is left over.
            vec![held(KernelClient, "owner").by("child", Fork).exact_or_inferred()],
        ).remedied();
    one_control_descriptor_is_enough => inherited("inherit-ctl-only", "child");
    two_dead_owners_of_one_holder_are_told_apart =>
        Scenario::new(
            "two-owners",
            vec![
                held(InheritedDescriptor, "first").by("holder", Fork).inferred().owner_perhaps_unknown(),
                held(InheritedDescriptor, "second").by("holder", Fork).inferred().owner_perhaps_unknown(),
            ],
            vec![
                held(InheritedDescriptor, "first").by("holder", Fork),
                held(InheritedDescriptor, "second").by("holder", Fork),
            ],
        ).remedied();
    every_holder_of_a_dead_owner_is_named =>
        Scenario::new(
            "one-owner-several-holders",
            vec![held(InheritedDescriptor, "owner").by("first", Fork).by("second", Fork).by("third", Fork).inferred()],
            vec![held(InheritedDescriptor, "owner").by("first", Fork).by("second", Fork).by("third", Fork)],
        ).remedied();
    a_descriptor_without_close_on_exec_survives_exec =>
        Scenario::new(
            "exec-no-cloexec",
            // Cold, a descriptor that exec did not close was passed, as far as NVIDIA's libraries open them.
            vec![held(PassedDescriptor, "owner").by("child", ScmRights).inferred()],
            vec![held(InheritedDescriptor, "owner").by("child", Fork)],
        ).remedied();
    an_innocent_process_with_the_dead_owners_pid_is_not_blamed =>
        Scenario::new(
            "recycled-pid",
            vec![held(InheritedDescriptor, "owner").by("child", Fork).inferred().owner_perhaps_unknown()],
            vec![held(InheritedDescriptor, "owner").by("child", Fork)],
        ).remedied();

    a_stranger_that_received_the_descriptors_is_named => passed("passed-scm", "receiver", &[ScmRights]);
    a_stranger_that_took_a_descriptor_is_named => passed("passed-getfd", "thief", &[PidfdGetfd, ScmRights]);
    only_the_last_receiver_is_named_when_descriptors_were_passed_on =>
        passed("passed-on", "receiver", &[ScmRights, PidfdGetfd]);
    an_unread_descriptor_in_a_socket_is_found =>
        Scenario::new(
            "in-flight",
            vec![held(DescriptorInFlight, "owner").by("keeper", InFlight).inferred()],
            vec![held(DescriptorInFlight, "owner").by("keeper", InFlight)],
        ).remedied();
    an_unread_descriptor_behind_other_data_is_found_in_the_servers_socket =>
        Scenario::new(
            "in-flight-queue",
            // NVML is silent and the server is no relative of the owner: nothing names it.
            vec![held(DescriptorInFlight, "owner").by("keeper", InFlight).inferred().owner_perhaps_unknown()],
            vec![held(DescriptorInFlight, "owner").by("keeper", InFlight).exact_or_inferred()],
        ).remedied();
    a_descriptor_registered_in_an_io_uring_is_found =>
        Scenario::new(
            "io-uring-registered",
            vec![held(DescriptorInFlight, "owner").by("child", IoUring).inferred()],
            vec![held(DescriptorInFlight, "owner").by("child", IoUring).exact_or_inferred()],
        ).remedied();

    a_living_owner_is_no_leak => living("alive", || held(OwnerAlive, "owner").by("owner", Opened));
    workers_of_a_living_owner_are_no_leak =>
        living("alive-with-workers", || {
            held(OwnerAlive, "owner").by("owner", Opened).by("first", Fork).by("second", Fork).exact_or_inferred()
        });
    a_worker_thread_keeps_the_memory_when_the_main_thread_has_exited =>
        living("leader-exited", || held(LeaderExited, "owner").by("owner", Thread)).remedied();
    descriptors_in_a_threads_own_table_are_found =>
        living("threads-own-files", || held(OwnerAlive, "owner").by_any("owner", &[Opened, Thread]));
    a_worker_outlives_its_killed_launcher =>
        Scenario::new(
            "orphaned",
            vec![held(OrphanedProcess, "worker").by("worker", Opened).inferred()],
            vec![held(OrphanedProcess, "worker").by("worker", Opened)],
        ).remedied();
    killing_the_wrapping_shell_does_not_kill_the_program =>
        Scenario::new(
            "wrapper-killed",
            // Nothing but history knows that there was a wrapper.
            vec![held(OwnerAlive, "owner").by("owner", Opened)],
            vec![held(OrphanedProcess, "owner").by("owner", Opened)],
        );
    a_handled_sigterm_does_not_end_the_owner => survives("term-handled");
    an_ignored_sigterm_does_not_end_the_owner => survives("term-ignored");
    a_blocked_sigterm_stays_pending =>
        living("term-blocked", || held(SignalNotFatal, "owner").by("owner", Opened)).remedied();

    an_owner_stopped_with_ctrl_z_keeps_everything => stopped("stopped-tstp");
    a_stopped_owner_does_not_die_of_sigterm => stopped("stopped-then-term");
    an_owner_stopped_by_a_debugger_keeps_everything => stopped("ptrace-stopped").quiet();
    an_owner_frozen_by_a_v1_cgroup_keeps_everything => stopped("frozen-v1").quiet();
    an_owner_frozen_by_a_v2_cgroup_keeps_everything => stopped("frozen-v2").quiet();

    an_owner_keeps_everything_until_its_core_is_dumped =>
        Scenario::new(
            "core-dump",
            vec![held(CoreDump, "owner").by("owner", Opened)],
            // A trace has the signal at once, and the kernel's word for the dump only from its next scan on.
            vec![held(CoreDump, "owner").by("owner", Opened).exact_or_inferred()],
        );
    a_killed_owner_that_waits_for_a_dead_file_system_is_not_the_gpus_fault => stuck("killed-in-fuse-read");
    an_exit_that_waits_for_a_dead_file_system_is_not_the_gpus_fault => stuck("exit-in-fuse");

    a_zombie_that_never_used_the_gpu_is_listed_with_its_parent =>
        Scenario::nothing("zombie-only").zombie("zombie", "parent", false).quiet();
    a_zombie_that_used_the_gpu_holds_no_memory => Scenario::nothing("zombie-gpu").zombie("owner", "stage", true);
    exec_closes_inherited_descriptors => Scenario::nothing("exec-cloexec");
    a_path_descriptor_holds_nothing => Scenario::nothing("opath-only");
    a_process_that_ended_leaves_nothing => Scenario::nothing("clean-exit");
}
