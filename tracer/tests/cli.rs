//! The program from outside: exit codes, sentences, and what hostile files and full disks make of it.
//!
//! Needs no GPU. What needs root says so aloud and passes without it.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests, which clippy takes for a program")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const OUTLIVE: &str = env!("CARGO_BIN_EXE_outlive");
/// A device that every host has and that nothing holds for long.
const DEVICE: &str = "/dev/ful[l]";
const NOBODY: u32 = 65_534;

fn outlive(args: &[&str]) -> Output {
    Command::new(OUTLIVE).args(args).env_remove("RUST_LOG").stdin(Stdio::null()).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn assert_fails(output: &Output, with: i32, saying: &str) {
    let said = err(output);
    assert_eq!(code(output), with, "{said}");
    assert!(said.contains(saying), "{saying:?} is not in {said:?}");
    assert!(output.stdout.is_empty(), "a failure answers nothing on standard output: {}", out(output));
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/h200-dataloader.jsonl.zst")
}

fn demo_str() -> String {
    demo().to_str().unwrap().to_owned()
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").unwrap().lines().any(|line| line.starts_with("Uid:\t0\t0"))
}

fn can_trace(test: &str) -> bool {
    let can = is_root() && Path::new("/sys/kernel/btf/vmlinux").exists();
    if !can {
        println!("skipped: {test} needs root and BTF");
    }
    can
}

/// The program, at a place and under a user that have nothing to do with root.
fn outlive_as_nobody(args: &[&str]) -> Option<Output> {
    if !is_root() {
        return Some(outlive(args));
    }
    let folder = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let copy = folder.path().join("outlive");
    fs::copy(OUTLIVE, &copy).unwrap();
    let ran = Command::new(&copy).args(args).uid(NOBODY).gid(NOBODY).current_dir("/").output();
    if ran.is_err() {
        println!("skipped: cannot run a program as another user here");
    }
    ran.ok()
}

#[test]
fn the_demo_needs_nothing_and_its_exit_code_is_its_verdict() {
    let Some(shown) = outlive_as_nobody(&["demo"]) else { return };
    assert_eq!(code(&shown), 3, "{}", err(&shown));
    assert!(out(&shown).contains("inherited_descriptor") && shown.stderr.is_empty());
    let json: serde_json::Value = serde_json::from_slice(&outlive(&["demo", "--json"]).stdout).unwrap();
    assert_eq!(json["schema"], "outlive.explanation/1");
}

#[test]
fn without_root_a_look_fails_and_says_what_to_do() {
    for command in [&["explain"][..], &["check"], &["record", "-o", "/tmp/outlive-never-written", "--duration", "1s"]] {
        let args = [command, &["--devices", DEVICE]].concat();
        let Some(refused) = outlive_as_nobody(&args) else { return };
        assert_fails(&refused, 1, "run as root");
    }
    assert!(!Path::new("/tmp/outlive-never-written").exists());
    let Some(doctor) = outlive_as_nobody(&["doctor", "--devices", DEVICE]) else { return };
    assert_eq!(code(&doctor), 4);
    assert!(out(&doctor).contains("NO   running as root"));
}

#[test]
fn a_wrong_command_line_is_wrong_usage() {
    let trace = demo_str();
    for args in [
        &[][..],
        &["explain", "--hooks", "best"],
        &["explain", "--gpu", "x"],
        &["explain", "--devices", "/dev/***"],
        &["explain", "--at", "+1"],
        &["explain", "--trace", &trace, "--at", "yesterday"],
        &["explain", "--trace", &trace, "--history", &trace],
        &["record", "--keep", "2"],
        &["record", "--rotate-size", "0"],
        &["record", "--duration", "1"],
    ] {
        assert_eq!(code(&outlive(args)), 2, "{args:?}");
    }
}

#[test]
fn what_is_not_a_trace_is_refused_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("empty"), "").unwrap();
    fs::write(path("text"), "hello\n").unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
    let cases = [
        (path("empty"), "it is empty"),
        (path("text"), "neither zstd-compressed nor JSON Lines"),
        (path("fifo"), "not a regular file"),
        (path(""), "not a regular file"),
        (path("dangling"), "No such file"),
        ("/dev/zero".to_owned(), "not a regular file"),
        (OUTLIVE.to_owned(), "neither zstd-compressed nor JSON Lines"),
    ];
    for (file, why) in &cases {
        for args in [&["explain", "--trace", file][..], &["timeline", file]] {
            let refused = outlive(args);
            assert_fails(&refused, 1, why);
            assert_eq!(err(&refused).matches(why).count(), 1, "said once: {}", err(&refused));
        }
    }
}

#[test]
fn a_trace_cut_anywhere_is_explained_or_refused_and_never_kills_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut.jsonl");
    let whole = zstd::decode_all(fs::File::open(demo()).unwrap()).unwrap();
    for sixteenth in 1..16 {
        let near = whole.len() * sixteenth / 16;
        // In the middle of a line, and not between two.
        let end = (near..whole.len()).find(|end| !whole[end - 1..=*end].contains(&b'\n')).unwrap();
        fs::write(&cut, &whole[..end]).unwrap();
        let told = outlive(&["explain", "--trace", cut.to_str().unwrap()]);
        assert!(matches!(code(&told), 0 | 3 | 4), "{sixteenth}/16: {}", err(&told));
        assert!(out(&told).contains("ends in the middle"), "{sixteenth}/16: the report names the limit\n{}", out(&told));
    }
    let compressed = fs::read(demo()).unwrap();
    fs::write(&cut, &compressed[..compressed.len() / 2]).unwrap();
    let told = outlive(&["explain", "--trace", cut.to_str().unwrap()]);
    assert!(matches!(code(&told), 0 | 1 | 3 | 4), "{}", err(&told));
    assert!(err(&told).contains("ends in"), "{}", err(&told));
}

#[test]
fn what_is_damaged_in_the_middle_is_not_called_complete() {
    let folder = tempfile::tempdir().unwrap();
    let whole = zstd::decode_all(fs::File::open(demo()).unwrap()).unwrap();
    let middle = whole.iter().skip(whole.len() / 2).position(|byte| *byte == b'\n').unwrap() + whole.len() / 2;
    let complete = |damage: &[u8]| {
        let path = folder.path().join("damaged.jsonl");
        fs::write(&path, [&whole[..=middle], damage, &whole[middle + 1..]].concat()).unwrap();
        let told = outlive(&["explain", "--trace", path.to_str().unwrap(), "--json"]);
        let json: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
        json["covers"]["complete"].as_bool().unwrap()
    };
    assert!(complete(b""));
    assert!(!complete(b"{\"t\":1,\"e\":{\"dro\n"));
    assert!(!complete(b"{\"t\":1,\"e\":{\"of_a_later_version\":{}}}\n"));
}

/// A trace in which every text is an attack and every number extreme.
fn hostile(folder: &Path) -> PathBuf {
    let evil = "\u{1b}[2J\u{202e}$(id)\n\r\u{9b}31m\u{7}";
    let most = u64::MAX;
    let huge = "A".repeat(1 << 19);
    let events = [
        serde_json::json!({"header": {"schema": "outlive.trace/1", "hostname": evil, "real_ns": most, "watching_since": most}}),
        serde_json::json!({"gpu": {"gpu": 0, "uuid": evil, "name": evil}}),
        serde_json::json!({"gpu_memory": {"gpu": 0, "total": 1, "used": most, "reserved": most}}),
        serde_json::json!({"gpu_processes": {"gpu": 0, "list": [
            {"pid": 7, "bytes": most, "usage": "compute", "name": evil}, {"pid": 8, "bytes": most, "usage": "compute"}]}}),
        serde_json::json!({"process": {"id": [1, 1], "parent": [1, 1], "comm": evil, "cmdline": huge, "cgroup": evil}}),
        serde_json::json!({"process": {"id": [7, 5], "parent": [8, 5], "comm": evil, "cmdline": evil, "cgroup": evil}}),
        serde_json::json!({"process": {"id": [8, 5], "parent": [7, 5], "comm": evil, "container": {"runtime": evil, "id": evil}}}),
        serde_json::json!({"fork": {"parent": [7, 5], "child": [7, 5], "comm": evil}}),
        serde_json::json!({"hold": {"id": [0, 0], "fd": -1, "file": 1, "dev": 204_472_575, "opener": [7, 5]}}),
        serde_json::json!({"hold": {"id": [1, 1], "fd": i32::MIN, "file": 1, "dev": 204_472_575, "opener": [7, 5], "via": "fork"}}),
        serde_json::json!({"hold": {"id": [8, 5], "fd": 3, "file": 1, "dev": 204_472_575, "opener": [7, 5], "via": "scm_rights"}}),
        serde_json::json!({"exit": {"id": [7, 5], "tid": 7, "code": u32::MAX, "live": 0, "last": true}}),
        serde_json::json!({"state": {"id": [8, 5], "state": evil, "stuck": [{"tid": 8, "state": "D", "stack": [evil]}]}}),
        serde_json::json!({"xid": {"pci": evil, "code": 79, "message": evil}}),
        serde_json::json!({"limit": {"missing": evil, "voids": evil}}),
        serde_json::json!({evil: 1}),
        serde_json::json!({"hold": evil}),
        serde_json::json!({"scan": {"began": most, "processes": u32::MAX, "zombies": u32::MAX, "complete": true}}),
    ];
    let path = folder.join("hostile.jsonl");
    let mut file = fs::File::create(&path).unwrap();
    for (index, event) in events.iter().enumerate() {
        let at = if index % 3 == 2 { u64::MAX } else { index as u64 };
        writeln!(file, "{}", serde_json::json!({"t": at, "e": event})).unwrap();
    }
    path
}

#[test]
fn a_hostile_trace_neither_panics_nor_reaches_the_terminal_nor_names_pid_1() {
    let folder = tempfile::tempdir().unwrap();
    let trace = hostile(folder.path());
    let trace = trace.to_str().unwrap();
    for args in [&["explain", "--trace", trace][..], &["explain", "--verbose", "--trace", trace], &["timeline", trace]] {
        let told = outlive(args);
        assert!(matches!(code(&told), 0 | 3 | 4), "{args:?}: {}", err(&told));
        for text in [out(&told), err(&told)] {
            let odd = text.chars().find(|c| c.is_control() && *c != '\n' || ('\u{202a}'..='\u{202e}').contains(c));
            assert_eq!(odd, None, "{args:?}: {text:?}");
            assert!(text.len() < 1 << 16, "bounded");
            for line in text.lines().filter(|line| line.contains("kill -")) {
                assert!(!line.contains("/proc/1/") && !line.contains("/proc/0/") && !line.contains("$("), "{line}");
            }
        }
    }
    let json = outlive(&["explain", "--json", "--trace", trace]);
    assert!(serde_json::from_slice::<serde_json::Value>(&json.stdout).is_ok(), "{}", err(&json));
}

#[test]
fn colour_is_only_where_it_was_asked_for() {
    assert!(!out(&outlive(&["demo"])).contains('\u{1b}'));
    assert!(!out(&outlive(&["demo", "--color", "never"])).contains('\u{1b}'));
    assert!(out(&outlive(&["demo", "--color", "always"])).contains('\u{1b}'));
}

#[test]
fn a_reader_that_goes_away_is_no_failure_and_a_full_disk_is() {
    let script = format!("{OUTLIVE} timeline {} | head -n 1 >/dev/null; exit ${{PIPESTATUS[0]}}", demo().display());
    assert!(Command::new("bash").args(["-c", &script]).status().unwrap().success());
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let refused = Command::new(OUTLIVE).arg("demo").stdout(full).output().unwrap();
    assert_fails(&refused, 1, "cannot write to standard output");
}

#[test]
fn a_moment_outside_the_trace_is_refused_before_it_and_noted_after_it() {
    let trace = demo_str();
    let early = outlive(&["explain", "--trace", &trace, "--at", "2001-01-01T00:00:00Z"]);
    assert_fails(&early, 1, "the trace begins at 2026-");
    let late = outlive(&["explain", "--trace", &trace, "--at", "+9999999"]);
    assert_eq!(code(&late), 3);
    assert!(err(&late).contains("the trace ends at 2026-"), "{}", err(&late));
}

#[test]
fn a_gpu_that_does_not_exist_is_not_called_free() {
    let refused = outlive(&["explain", "--trace", &demo_str(), "--gpu", "7"]);
    assert_fails(&refused, 1, "there is no GPU 7: NVML knows GPU 0");
}

#[test]
fn a_process_that_has_nothing_is_told_so_and_its_lists_are_empty() {
    let trace = demo_str();
    let told = outlive(&["explain", "--trace", &trace, "--pid", "4000000"]);
    assert_eq!(code(&told), 0);
    assert!(out(&told).starts_with("PID 4000000 neither owns nor holds"), "{}", out(&told));
    let json = outlive(&["explain", "--trace", &trace, "--pid", "4000000", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["holdings"], &json["zombies"]), (&serde_json::json!([]), &serde_json::json!([])));
}

#[test]
fn a_history_of_another_boot_is_refused() {
    let refused = outlive(&["explain", "--history", &demo_str(), "--devices", DEVICE]);
    assert_fails(&refused, 1, "another boot");
}

#[test]
fn a_look_without_devices_says_how_to_name_them() {
    let refused = outlive(&["explain", "--devices", "/etc/passwd"]);
    assert_fails(&refused, 1, "--devices GLOB names other nodes");
}

#[test]
fn a_recording_never_overwrites_and_never_follows_a_link() {
    if !can_trace("a_recording_never_overwrites_and_never_follows_a_link") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let link = folder.path().join("link");
    fs::write(&file, "precious").unwrap();
    symlink("target", &link).unwrap();
    for path in [&file, &link] {
        let refused = outlive(&["record", "--devices", DEVICE, "--duration", "1s", "-o", path.to_str().unwrap()]);
        assert_fails(&refused, 1, "exists already");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(!folder.path().join("target").exists());
}

/// A recorder that has begun: its file is there with its opening events.
fn recorder(path: &Path) -> Child {
    // Whoever runs the tests under nohup passes on that SIGHUP is ignored, and so it would be.
    let child = Command::new("env")
        .args(["--default-signal=HUP", OUTLIVE, "record", "--devices", DEVICE, "-o", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while fs::metadata(path).map_or(0, |m| m.len()) == 0 {
        assert!(Instant::now() < end, "the recorder does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Its signal handlers come after the first look.
    std::thread::sleep(Duration::from_millis(1500));
    child
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_recording_ends_in_order_on_every_usual_signal_and_talks_on_standard_error_only() {
    if !can_trace("a_recording_ends_in_order_on_every_usual_signal_and_talks_on_standard_error_only") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["-INT", "-TERM", "-HUP"] {
        let path = folder.path().join(name);
        let child = recorder(&path);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        signal(&child, name);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(code(&ended), 0, "{}", err(&ended));
        assert!(ended.stdout.is_empty() && err(&ended).contains(&format!("stopped (SIG{})", &name[1..])), "{}", err(&ended));
        assert!(!err(&ended).contains("written"), "nothing failed: {}", err(&ended));
        let text = String::from_utf8(zstd::decode_all(fs::File::open(&path).unwrap()).unwrap()).unwrap();
        assert!(text.lines().last().unwrap().contains("\"stop\""));
    }
}

#[test]
fn a_killed_recorder_leaves_a_readable_trace() {
    if !can_trace("a_killed_recorder_leaves_a_readable_trace") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("killed.jsonl.zst");
    let mut child = recorder(&path);
    signal(&child, "-KILL");
    child.wait().unwrap();
    let told = outlive(&["explain", "--trace", path.to_str().unwrap()]);
    assert!(matches!(code(&told), 0 | 3 | 4), "{}", err(&told));
}

#[test]
fn one_pid_namespace_is_not_the_host() {
    if !can_trace("one_pid_namespace_is_not_the_host") {
        return;
    }
    let inside = |args: &[&str]| {
        let command = [&["--pid", "--fork", "--mount-proc", OUTLIVE], args, &["--devices", DEVICE]].concat();
        Command::new("unshare").args(command).stdin(Stdio::null()).output().unwrap()
    };
    let told = inside(&["check"]);
    assert_eq!(code(&told), 4, "not seeing the host's processes proves nothing: {}{}", out(&told), err(&told));
    let told = out(&inside(&["explain"]));
    assert!(told.contains("processes outside this PID namespace") && !told.contains("exists any more"), "{told}");
}

#[test]
fn a_narrow_terminal_gets_short_lines() {
    let world = outlive::offline::world(&[&demo()], outlive::offline::Moment::End).unwrap();
    let style = outlive::report::layout::Style { width: 40, ..Default::default() };
    let timelines = outlive::report::timeline::text(&outlive::timeline::timelines(&world, None), &style);
    let explanation = outlive::report::text::explanation(&outlive::explanation::explain(&world), &style);
    for line in timelines.lines().chain(explanation.lines()) {
        let copied = line.contains("kill -");
        let one_word = line.split_whitespace().count() == 1;
        let bar = line.contains('[');
        assert!(line.chars().count() <= 40 || copied || one_word || bar && line.chars().count() < 50, "{line:?}");
    }
}
