//! `source::nvml` against the NVML double (tests/nvml-double): no GPU is needed.
//!
//! The double answers from a file named in the environment, so every test runs in a process of its own: it starts the
//! test executable again for itself alone.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use outlive::event::{Event, GpuProcess, GpuUse, What};
use outlive::source::nvml::{Options, Rate, Sampler};

const LONG: Duration = Duration::from_secs(20);

/// Builds the double if need be and says where it is.
fn double() -> Option<PathBuf> {
    let profile = std::env::current_exe()
        .ok()?
        .parent()?
        .parent()?
        .to_path_buf();
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    build
        .args([
            "build",
            "--quiet",
            "--package",
            "nvml-double",
            "--target-dir",
        ])
        .arg(profile.parent()?);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
    let library = profile.join("libnvml_double.so");
    if !library.exists() {
        // Past the capture of the test harness: a test that did not run must not look as if it had.
        let said = format!(
            "SKIPPED: there is no {} and it could not be built ({built:?})\n",
            library.display()
        );
        std::io::stderr().write_all(said.as_bytes()).unwrap();
        return None;
    }
    Some(library)
}

/// Runs `test`, called `name`, in a process where the double answers from a file that holds `json` at first.
fn with_double(name: &str, json: &str, test: impl FnOnce(&Path, &Path)) {
    if let Some(answers) = std::env::var_os("OUTLIVE_NVML_DOUBLE") {
        let library = PathBuf::from(std::env::var_os("OUTLIVE_TEST_LIBRARY").unwrap());
        return test(&library, Path::new(&answers));
    }
    let Some(library) = double() else { return };
    let folder = tempfile::tempdir().unwrap();
    let answers = folder.path().join("answers.json");
    std::fs::write(&answers, json).unwrap();
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("OUTLIVE_NVML_DOUBLE", &answers)
        .env("OUTLIVE_TEST_LIBRARY", &library)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

fn replace(answers: &Path, json: &str) {
    let new = answers.with_extension("new");
    std::fs::write(&new, json).unwrap();
    std::fs::rename(new, answers).unwrap();
}

fn start(library: &Path) -> Sampler {
    let options = Options {
        library: Some(library.to_path_buf()),
        rest: Duration::from_secs(3600),
        ..Options::default()
    };
    Sampler::start(options).unwrap()
}

fn drain(sampler: &mut Sampler) -> Vec<What> {
    std::iter::from_fn(|| sampler.try_recv())
        .map(|event| event.what)
        .collect()
}

/// Waits for an event that `wanted` accepts.
fn expect(sampler: &mut Sampler, wanted: impl Fn(&What) -> bool) -> Event {
    let began = Instant::now();
    while began.elapsed() < LONG {
        match sampler.try_recv() {
            Some(event) if wanted(&event.what) => return event,
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("it never came");
}

const ONE: &str = r#"{"gpus":[{"total":1000,"reserved":100,"used":300,"minor":4,"pci":"00000000:0B:00.0","processes":[
    {"pid":7,"bytes":200,"use":"compute","name":"python3"},{"pid":7,"bytes":10,"use":"graphics"},{"pid":5,"bytes":null,"use":"mps"}]}]}"#;

fn memory(used: u64) -> What {
    What::GpuMemory {
        gpu: 0,
        total: 1000,
        used,
        reserved: Some(100),
    }
}

#[test]
fn the_first_sample_tells_gpus_memory_and_all_three_lists() {
    with_double(
        "the_first_sample_tells_gpus_memory_and_all_three_lists",
        ONE,
        |library, _| {
            let mut sampler = start(library);
            assert!(sampler.wait(Sampler::FIRST, LONG));
            let line = |pid, bytes, usage, name: Option<&str>| GpuProcess {
                pid,
                bytes,
                usage,
                name: name.map(str::to_owned),
            };
            let gpu = What::Gpu {
                gpu: 0,
                uuid: "GPU-double-0".to_owned(),
                name: "NVIDIA Double".to_owned(),
                minor: Some(4),
                pci: Some("0000:0b:00.0".to_owned()),
                settled_at: None,
            };
            let list = vec![
                line(5, None, GpuUse::Mps, None),
                line(7, Some(200), GpuUse::Compute, Some("python3")),
                line(7, Some(10), GpuUse::Graphics, Some("python3")),
            ];
            assert_eq!(
                drain(&mut sampler),
                [gpu, memory(300), What::GpuProcesses { gpu: 0, list }]
            );
            let init = sampler.init_took().unwrap();
            println!("the double initialised in {init:?}");
            assert!(init > Duration::ZERO);
        },
    );
}

#[test]
fn only_changes_are_sent_until_a_whole_sample_is_asked_for() {
    with_double(
        "only_changes_are_sent_until_a_whole_sample_is_asked_for",
        ONE,
        |library, answers| {
            let mut sampler = start(library);
            assert!(sampler.wait(Sampler::FIRST, LONG));
            drain(&mut sampler);
            sampler.set_rate(Rate::Fast);
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(drain(&mut sampler), []);
            replace(answers, &ONE.replace("\"used\":300", "\"used\":90"));
            let freed = expect(&mut sampler, |_| true);
            assert_eq!(freed.what, memory(90));
            sampler.set_rate(Rate::Rest);
            std::thread::sleep(Duration::from_millis(50));
            replace(answers, ONE);
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(
                drain(&mut sampler),
                [],
                "at rest the next sample is an hour away"
            );
            let ticket = sampler.sample_now();
            assert!(sampler.wait(ticket, LONG));
            assert_eq!(drain(&mut sampler).len(), 3);
        },
    );
}

#[test]
fn our_own_process_is_left_out() {
    with_double("our_own_process_is_left_out", ONE, |library, answers| {
        replace(
            answers,
            &ONE.replace("\"pid\":5", &format!("\"pid\":{}", std::process::id())),
        );
        let mut sampler = start(library);
        assert!(sampler.wait(Sampler::FIRST, LONG));
        let events = drain(&mut sampler);
        assert!(
            matches!(&events[2], What::GpuProcesses { list, .. } if list.iter().all(|p| p.pid == 7) && list.len() == 2)
        );
    });
}

#[test]
fn a_hanging_driver_is_reported_and_blocks_nobody() {
    let json = ONE.replacen('{', r#"{"hang":{"nvmlDeviceGetMemoryInfo_v2":3},"#, 1);
    with_double(
        "a_hanging_driver_is_reported_and_blocks_nobody",
        &json,
        |library, answers| {
            let began = Instant::now();
            let mut sampler = start(library);
            assert!(!sampler.wait(Sampler::FIRST, Duration::from_millis(300)));
            let overdue = sampler.overdue(Duration::from_millis(100)).unwrap();
            assert!(
                matches!(&overdue.what, What::Limit { missing, .. } if missing.contains("memory of GPU 0")),
                "{overdue:?}"
            );
            assert_eq!(
                sampler.overdue(Duration::from_millis(100)),
                None,
                "it is said once"
            );
            assert!(
                began.elapsed() < Duration::from_secs(2),
                "nobody waited for NVML"
            );
            replace(answers, ONE);
            assert!(sampler.wait(Sampler::FIRST, LONG));
            assert!(drain(&mut sampler).contains(&memory(300)));
        },
    );
}

#[test]
fn a_lost_gpu_hides_no_other_and_is_reported_once() {
    let two =
        r#"{"gpus":[{"total":1000},{"total":2000}],"errors":{"nvmlDeviceGetMemoryInfo_v2":15}}"#;
    with_double(
        "a_lost_gpu_hides_no_other_and_is_reported_once",
        two,
        |library, answers| {
            let mut sampler = start(library);
            assert!(sampler.wait(Sampler::FIRST, LONG));
            let ticket = sampler.sample_now();
            assert!(sampler.wait(ticket, LONG));
            let said: Vec<String> = drain(&mut sampler)
                .into_iter()
                .filter_map(|what| {
                    if let What::Limit { missing, .. } = what {
                        Some(missing)
                    } else {
                        None
                    }
                })
                .collect();
            assert_eq!(said.len(), 2);
            assert!(said[0].contains("GPU 0 has fallen off the bus") && said[1].contains("GPU 1"));
            replace(answers, ONE);
            let ticket = sampler.sample_now();
            assert!(sampler.wait(ticket, LONG));
            let events = drain(&mut sampler);
            assert!(events.contains(&memory(300)), "sampling goes on");
            let gone = |what: &What| matches!(what, What::Limit { missing, .. } if missing.contains("no longer lists GPU 1"));
            assert!(events.iter().any(gone));
        },
    );
}

#[test]
fn a_driver_that_goes_and_comes_back_is_used_again() {
    with_double(
        "a_driver_that_goes_and_comes_back_is_used_again",
        ONE,
        |library, answers| {
            let mut sampler = start(library);
            assert!(sampler.wait(Sampler::FIRST, LONG));
            replace(
                answers,
                r#"{"errors":{"nvmlDeviceGetCount_v2":9,"nvmlInit_v2":9}}"#,
            );
            let ticket = sampler.sample_now();
            assert!(sampler.wait(ticket, LONG));
            expect(
                &mut sampler,
                |what| matches!(what, What::Limit { missing, .. } if missing.contains("no loaded NVIDIA kernel driver")),
            );
            replace(answers, &ONE.replace("\"used\":300", "\"used\":0"));
            sampler.sample_now();
            expect(&mut sampler, |what| *what == memory(0));
        },
    );
}

#[test]
fn a_missing_library_is_a_limit_that_names_it() {
    let library = Path::new("/nowhere/libnvidia-ml.so.1");
    let mut sampler = start(library);
    assert!(sampler.wait(Sampler::FIRST, LONG));
    let events = drain(&mut sampler);
    assert!(
        matches!(&events[..], [What::Limit { missing, .. }] if missing.contains("/nowhere/libnvidia-ml.so.1") && missing.contains("--nvml")),
        "{events:?}"
    );
    assert_eq!(sampler.init_took(), None);
}

#[test]
fn xids_that_cannot_be_watched_are_a_limit() {
    with_double(
        "xids_that_cannot_be_watched_are_a_limit",
        ONE,
        |library, _| {
            let options = Options {
                library: Some(library.to_path_buf()),
                watch_xid: true,
                ..Options::default()
            };
            let mut sampler = Sampler::start(options).unwrap();
            expect(
                &mut sampler,
                |what| matches!(what, What::Limit { missing, .. } if missing.contains("does not report Xids")),
            );
        },
    );
}
