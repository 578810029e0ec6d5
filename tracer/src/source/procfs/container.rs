//! Which container, pod or job a cgroup path belongs to. Pure.
//!
//! The paths are made by the runtimes' cgroup drivers and differ between v1 and v2 only in what stands before them,
//! so every component is looked at on its own and the innermost match wins (a container in a Slurm job is the
//! container; a docker in a pod is the docker). The pod is taken from whichever component names it.

use super::bounded;
use crate::event::Container;

/// Longest id that is kept, bytes.
const ID_MAX: usize = 256;

/// What `path` says, if anything.
pub(super) fn of(path: &str) -> Option<Container> {
    let mut found: Option<Container> = None;
    let mut pod = None;
    let mut before = "";
    let (mut job, mut slurm) = (None, false);
    for part in path
        .trim_end_matches(" (deleted)")
        .split('/')
        .filter(|part| !part.is_empty())
    {
        pod = pod_uid(part).or(pod);
        slurm |= part.starts_with("slurm") || part.ends_with("slurmstepd.scope");
        if slurm && let Some(id) = slurm_part(part, job.as_deref()) {
            found = container("slurm", &id);
            job = Some(id);
        } else if let Some((runtime, id)) = runtime(part, before, pod.is_some()) {
            found = container(runtime, id);
        }
        before = part;
    }
    if let Some(found) = &mut found {
        found.pod = pod;
    }
    found
}

fn container(runtime: &str, id: &str) -> Option<Container> {
    Some(Container {
        runtime: runtime.to_owned(),
        id: bounded(id, ID_MAX).to_owned(),
        pod: None,
    })
}

/// Runtime and id that this component names, given the one before it.
fn runtime<'a>(part: &'a str, before: &str, in_pod: bool) -> Option<(&'static str, &'a str)> {
    // containerd and docker with mismatched drivers write "slice:prefix:id" as one component.
    if let [_, prefix, id] = part.splitn(3, ':').collect::<Vec<_>>()[..] {
        return Some((named(prefix)?, id));
    }
    let unit = part
        .strip_suffix(".scope")
        .or_else(|| part.strip_suffix(".service"))
        .unwrap_or(part);
    if let Some(name) = unit.strip_prefix("systemd-nspawn@") {
        return Some(("systemd-nspawn", name));
    }
    if let Some(name) = unit.strip_prefix("machine-") {
        return if let Some(vm) = name.strip_prefix("qemu") {
            Some(("qemu", vm.trim_start_matches("\\x2d")))
        } else {
            Some(("systemd-nspawn", name))
        };
    }
    if let Some(name) = part.strip_prefix("lxc.payload.") {
        return Some(("lxc", name));
    }
    if before == "lxc" || before == "lxc.payload" {
        return Some(("lxc", part));
    }
    if let Some((prefix, id)) = unit.rsplit_once('-')
        && is_id(id)
    {
        return named(prefix).map(|runtime| (runtime, id));
    }
    if !is_id(part) {
        return None;
    }
    match named(before) {
        Some(runtime) => Some((runtime, part)),
        // A bare id: below a pod the kubelet's cgroupfs driver put it there, and does not say for which runtime.
        None if in_pod => Some(("kubernetes", part)),
        None => None,
    }
}

/// The runtime that uses this prefix or parent folder.
fn named(prefix: &str) -> Option<&'static str> {
    match prefix {
        "docker" | "moby" => Some("docker"),
        "cri-containerd" | "containerd" | "nerdctl" | "k8s.io" | "default" => Some("containerd"),
        "crio" => Some("crio"),
        "libpod" | "libpod_parent" | "podman" => Some("podman"),
        "garden" => Some("garden"),
        _ => None,
    }
}

/// Container ids are 64 hex digits everywhere (some tools shorten them to 12 or 32).
fn is_id(text: &str) -> bool {
    matches!(text.len(), 12 | 32 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// "pod<uid>" (cgroupfs) or "kubepods-burstable-pod<uid with _>.slice" (systemd), also before a ':'.
fn pod_uid(part: &str) -> Option<String> {
    let slice = part.split(':').next().unwrap_or(part);
    let uid = match slice.strip_suffix(".slice") {
        Some(unit) if unit.starts_with("kubepods") => unit.rsplit_once("-pod")?.1,
        Some(_) => return None,
        None => slice.strip_prefix("pod")?,
    };
    // A UUID; static pods have a 32-digit hash.
    let plausible = uid.len() >= 32
        && uid
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || b == b'_' || b == b'-');
    plausible.then(|| bounded(uid, ID_MAX).replace('_', "-"))
}

/// "job_123", then "step_0" (or "step_batch", "step_extern", "step_interactive") -> "123", "123.0".
fn slurm_part(part: &str, job: Option<&str>) -> Option<String> {
    if let Some(id) = part.strip_prefix("job_") {
        return Some(id.to_owned());
    }
    let step = part.strip_prefix("step_")?;
    job.map(|job| format!("{job}.{step}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f8e7d6c5b4a39281706f5e4d3c2b1a04f8e7d6c5b4a39281706f5e4d3c2b1a0";
    const POD: &str = "0a1b2c3d-1111-2222-3333-444455556666";

    fn check(path: &str, runtime: &str, id: &str, pod: Option<&str>) {
        let path = path
            .replace("{ID}", ID)
            .replace("{POD}", POD)
            .replace("{POD_}", &POD.replace('-', "_"));
        let expected = Container {
            runtime: runtime.to_owned(),
            id: id.to_owned(),
            pod: pod.map(str::to_owned),
        };
        assert_eq!(of(&path), Some(expected), "{path}");
    }

    #[test]
    fn docker_and_podman_under_both_cgroup_drivers() {
        check("/docker/{ID}", "docker", ID, None);
        check("/system.slice/docker-{ID}.scope", "docker", ID, None);
        check("/docker/aaaaaaaaaaaa/docker/{ID}", "docker", ID, None);
        check(
            "/machine.slice/libpod-{ID}.scope/container",
            "podman",
            ID,
            None,
        );
        check(
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
            "podman",
            ID,
            None,
        );
        check("/libpod_parent/libpod-{ID}", "podman", ID, None);
        check(
            "/system.slice/docker-{ID}.scope (deleted)",
            "docker",
            ID,
            None,
        );
    }

    #[test]
    fn pods_under_both_cgroup_drivers_and_all_runtimes() {
        check(
            "/kubepods/burstable/pod{POD}/{ID}",
            "kubernetes",
            ID,
            Some(POD),
        );
        check("/kubepods/pod{POD}/crio-{ID}", "crio", ID, Some(POD));
        let slice = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD_}.slice";
        check(
            &format!("{slice}/cri-containerd-{{ID}}.scope"),
            "containerd",
            ID,
            Some(POD),
        );
        check(&format!("{slice}/crio-{{ID}}.scope"), "crio", ID, Some(POD));
        check(
            &format!("{slice}/docker-{{ID}}.scope"),
            "docker",
            ID,
            Some(POD),
        );
        check(
            "/system.slice/containerd.service/kubepods-burstable-pod{POD_}.slice:cri-containerd:{ID}",
            "containerd",
            ID,
            Some(POD),
        );
        check("/k8s.io/{ID}", "containerd", ID, None);
        check(
            "/kubelet.slice/kubelet-kubepods.slice/kubepods-pod{POD_}.slice/cri-containerd-{ID}.scope",
            "containerd",
            ID,
            Some(POD),
        );
    }

    #[test]
    fn slurm_jobs_and_steps() {
        check(
            "/slurm/uid_1000/job_123/step_0/task_0",
            "slurm",
            "123.0",
            None,
        );
        check(
            "/slurm_node7/uid_1000/job_123/step_batch",
            "slurm",
            "123.batch",
            None,
        );
        check(
            "/system.slice/slurmstepd.scope/job_77/step_extern/user/task_special",
            "slurm",
            "77.extern",
            None,
        );
        check(
            "/system.slice/node7_slurmstepd.scope/job_77",
            "slurm",
            "77",
            None,
        );
        check("/slurm/uid_1/job_5/step_0/docker/{ID}", "docker", ID, None);
    }

    #[test]
    fn system_containers() {
        check("/lxc/web/init.scope", "lxc", "web", None);
        check("/lxc.payload.web/user.slice", "lxc", "web", None);
        check(
            "/machine.slice/systemd-nspawn@web.service/payload",
            "systemd-nspawn",
            "web",
            None,
        );
        check(
            "/machine.slice/machine-web.scope",
            "systemd-nspawn",
            "web",
            None,
        );
        check(
            "/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt",
            "qemu",
            "1\\x2dvm",
            None,
        );
    }

    #[test]
    fn ordinary_paths_are_no_container() {
        for path in [
            "/",
            "",
            "/user.slice/user-1000.slice/session-3.scope",
            "/system.slice/docker.service",
            "/job_1/step_2",
            "/system.slice/podman.service/pod1",
            "/init.scope",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_path_is_read_without_a_panic(path in "(/|pod|-|:|lxc|job_|step_|slurm|kubepods|docker|\\.slice|[0-9a-f]{12}|.){0,20}") {
            if let Some(found) = of(&path) {
                proptest::prop_assert!(found.id.len() <= ID_MAX);
            }
        }
    }
}
