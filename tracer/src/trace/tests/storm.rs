//! An exit storm: what a job of many short-lived GPU workers makes, with the noise of real times and tokens.

use super::header;
use crate::event::{Action, Dev, Event, Hold, ProcessId, SignalResult, Via, What};

const LAUNCHER: ProcessId = ProcessId(4242, 800_000_123_456_789);

/// `processes` lives of 15 events each, after a header.
pub(super) fn exit_storm(processes: u32) -> Vec<Event> {
    let mut storm = Storm {
        at: 812_345_678_901_234,
        seed: 0x9e37_79b9_7f4a_7c15,
        events: vec![header()],
    };
    for pid in 20_000..20_000 + processes {
        storm.birth_and_files(pid);
        storm.death(pid);
    }
    storm.events
}

struct Storm {
    at: u64,
    seed: u64,
    events: Vec<Event>,
}

impl Storm {
    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }

    /// An event after `least` ns and up to `spread` more.
    fn push(&mut self, least: u64, spread: u64, what: What) {
        self.at += least + self.random(spread);
        self.events.push(Event { at: self.at, what });
    }

    fn birth_and_files(&mut self, pid: u32) {
        let id = ProcessId(pid, self.at);
        let cred = Some(self.random(1 << 48));
        let fork = What::Fork {
            parent: LAUNCHER,
            child: id,
            comm: "python3".to_owned(),
            cred,
        };
        self.push(40_000, 90_000, fork);
        let cred = Some(self.random(1 << 48));
        let exec = What::Exec {
            id,
            comm: "python3".to_owned(),
            path: "/usr/bin/python3".to_owned(),
            cred,
        };
        self.push(200_000, 90_000, exec);
        for fd in 20..24 {
            let hold = Hold {
                id,
                fd,
                file: self.random(1 << 48),
                dev: Dev::new(195, if fd == 20 { 255 } else { 0 }),
                cred,
                cloexec: Some(true),
                opened_cloexec: Some(true),
                via: Some(Via::Opened),
                opener: Some(id),
                ..Hold::default()
            };
            self.push(3_000, 50_000, What::Hold(Box::new(hold)));
        }
    }

    fn death(&mut self, pid: u32) {
        let Some(What::Hold(hold)) = self.events.last().map(|event| &event.what) else {
            panic!("a process is born first");
        };
        let id = hold.id;
        let kill = What::Signal {
            to: id,
            tid: None,
            sig: 9,
            from: Some(LAUNCHER),
            comm: "launcher".to_owned(),
            uid: Some(1000),
            code: 0,
            result: SignalResult::Queued,
        };
        self.push(9_000_000, 90_000, kill);
        let delivered = What::Deliver {
            id,
            tid: pid,
            sig: 9,
            action: Action::Default,
        };
        self.push(5_000, 9_000, delivered);
        for live in (0..4).rev() {
            let exit = What::Exit {
                id,
                tid: pid + live,
                code: 9,
                group_code: Some(9),
                live,
                last: live == 0,
                parent: Some(LAUNCHER),
            };
            self.push(2_000, 9_000, exit);
        }
        let zombie = What::Zombie {
            id,
            parent: LAUNCHER,
        };
        self.push(90_000_000, 9_000_000, zombie);
        let reap = What::Reap {
            by: LAUNCHER,
            comm: "launcher".to_owned(),
            child: pid,
        };
        self.push(5_000, 900_000, reap);
        self.push(9_000, 9_000, What::Free { id });
    }
}
