//! All of the module on recorded trees of a v1, a hybrid and a v2 machine, without root.
//!
//! A tree is a text of `=== path` and content, written to a temporary directory. It does not react
//! to writes as a kernel does, so that the tests check which files get which values.

use super::host::Place;
use super::*;
use oci_spec::runtime::LinuxResources;
use std::time::Duration;

struct Recorded {
    dir: tempfile::TempDir,
    host: Host,
}

fn recorded(tree: &str) -> Recorded {
    let dir = tempfile::tempdir().unwrap();
    for part in tree.split("=== ").skip(1) {
        let (name, content) = part.split_once('\n').unwrap();
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    for mount in tree.lines().filter(|l| l.contains(" - cgroup")) {
        let mount = mount.split(' ').nth(4).unwrap();
        std::fs::create_dir_all(dir.path().join(&mount[1..])).unwrap();
    }
    let host = Host::detect_at(dir.path()).unwrap();
    Recorded { dir, host }
}

fn v1() -> Recorded {
    recorded(include_str!("testdata/v1.tree"))
}

fn hybrid() -> Recorded {
    recorded(include_str!("testdata/hybrid.tree"))
}

fn v2() -> Recorded {
    recorded(include_str!("testdata/v2.tree"))
}

impl Recorded {
    fn c1(&self) -> Cgroup {
        self.host.container("/kubepods/pod1", "c1").unwrap()
    }

    fn read(&self, path: &str) -> String {
        let path = self.dir.path().join("sys/fs/cgroup").join(path);
        let text = std::fs::read_to_string(&path);
        text.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
            .trim_end()
            .to_owned()
    }

    fn below(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join("sys/fs/cgroup").join(path)
    }
}

fn resources(json: serde_json::Value) -> LinuxResources {
    serde_json::from_value(json).unwrap()
}

#[test]
fn the_three_layouts_are_distinguished() {
    assert_eq!(v1().host.mode(), Mode::V1);
    assert_eq!(hybrid().host.mode(), Mode::Hybrid);
    assert_eq!(v2().host.mode(), Mode::V2);
}

#[test]
fn a_machine_without_cgroups_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
    let table = "22 1 254:1 / / rw - ext4 /dev/vda1 rw\ngarbage\n - \n";
    std::fs::write(dir.path().join("proc/self/mountinfo"), table).unwrap();
    let error = Host::detect_at(dir.path()).unwrap_err();
    assert!(matches!(error, Error::NoHierarchy), "{error}");
}

#[test]
fn controllers_mounted_together_share_one_hierarchy() {
    let tree = v1();
    let mount = tree.below("cpu,cpuacct");
    assert_eq!(tree.host.place("cpu"), Some(Place::V1(&mount)));
    assert_eq!(tree.host.place("cpuacct"), Some(Place::V1(&mount)));
    assert_eq!(tree.c1().dirs().len(), 6);
    assert_eq!(tree.c1().unified_dir(), None);
}

#[test]
fn a_bind_mount_of_a_subtree_is_not_taken_for_the_hierarchy() {
    let tree = hybrid();
    assert_eq!(
        tree.host.place("memory"),
        Some(Place::V1(&tree.below("memory")))
    );
    let tree = v2();
    assert_eq!(tree.host.place("memory"), Some(Place::V2(&tree.below(""))));
}

#[test]
fn on_hybrid_the_unified_tree_has_what_v1_has_not() {
    let tree = hybrid();
    assert_eq!(
        tree.host.place("hugetlb"),
        Some(Place::V2(&tree.below("unified")))
    );
    assert!(!tree.host.has("io"));
    let mut dirs = tree.c1().dirs();
    let unified = tree.below("unified/kubepods/pod1/c1");
    assert_eq!(tree.c1().unified_dir().as_ref(), Some(&unified));
    assert_eq!(dirs.pop(), Some(unified));
    assert_eq!(dirs.len(), 9);
    assert!(dirs.iter().all(|dir| dir.ends_with("kubepods/pod1/c1")));
    assert!(
        dirs.iter()
            .any(|dir| dir.starts_with(tree.below("systemd")))
    );
}

#[test]
fn swap_counts_where_the_kernel_keeps_a_file_for_it() {
    let tree = v2();
    assert!(
        tree.host.counts_swap(),
        "nothing below the root says otherwise"
    );
    std::fs::write(tree.below("kubepods/memory.max"), "max").unwrap();
    assert!(!tree.host.counts_swap());
    std::fs::write(tree.below("kubepods/memory.swap.max"), "max").unwrap();
    assert!(tree.host.counts_swap());
    let tree = v1();
    assert!(!tree.host.counts_swap());
    std::fs::write(tree.below("memory/memory.memsw.limit_in_bytes"), "1").unwrap();
    assert!(tree.host.counts_swap());
}

#[test]
fn the_pod_level_cgroup_is_the_kubelets_or_one_below_the_default() {
    let tree = v2();
    let given = tree.host.pod("/kubepods/pod1", "/cairn", "p").unwrap();
    assert_eq!(given.path().as_str(), "/kubepods/pod1");
    let ours = tree.host.pod("", "/cairn", "p").unwrap();
    assert_eq!(ours.path().as_str(), "/cairn/p");
    assert!(tree.host.pod("/a.slice", "/cairn", "p").is_err());
}

#[test]
fn create_makes_the_cgroup_in_every_hierarchy_and_again_is_no_error() {
    let tree = v2();
    let group = tree.host.container("/kubepods/pod7", "c").unwrap();
    group.create().unwrap();
    assert!(group.dirs().iter().all(|dir| dir.is_dir()));
    group.create().unwrap();
}

#[test]
fn a_create_that_fails_half_way_leaves_nothing() {
    let tree = v1();
    let group = tree.host.container("/new/pod7", "c").unwrap();
    // In a recorded tree a new cpuset has no files to fill, so the fourth hierarchy fails.
    let error = group.create().unwrap_err().to_string();
    assert!(error.contains("copy the parent's cpuset"), "{error}");
    for hierarchy in ["systemd", "cpu,cpuacct", "memory", "hugetlb", "cpuset"] {
        assert!(!tree.below(hierarchy).join("new").exists(), "{hierarchy}");
    }
}

#[test]
fn a_cgroup_whose_parent_was_left_without_cpus_gets_them_through_it() {
    let tree = v1();
    let group = tree.host.container("/new/pod7", "c").unwrap();
    let all = ["", "new", "new/pod7", "new/pod7/c"].map(|dir| tree.below("cpuset").join(dir));
    for (dir, cpus) in all.iter().zip(["0-3", "", "", ""]) {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("cpuset.cpus"), cpus).unwrap();
        std::fs::write(dir.join("cpuset.mems"), "0").unwrap();
    }
    group.create().unwrap();
    for dir in all {
        let cpus = std::fs::read_to_string(dir.join("cpuset.cpus")).unwrap();
        assert_eq!(cpus, "0-3", "{}", dir.display());
    }
}

#[test]
fn v2_hands_the_controllers_down_the_path_but_not_into_the_leaf() {
    let tree = v2();
    tree.c1().create().unwrap();
    assert_eq!(
        tree.read("kubepods/cgroup.subtree_control"),
        "+cpuset +cpu +io +memory +pids"
    );
    // The recorded pod1 offers nothing, so nothing was enabled in it.
    assert_eq!(tree.read("kubepods/pod1/cgroup.subtree_control"), "");
    assert_eq!(tree.read("cgroup.subtree_control"), "+hugetlb +rdma +misc");
    assert!(
        !tree
            .below("kubepods/pod1/c1/cgroup.subtree_control")
            .exists()
    );
}

#[test]
fn kubelet_limits_reach_the_files_of_v2() {
    let tree = v2();
    let wanted = resources(serde_json::json!({
        "memory": {"limit": 67108864, "swap": 67108864, "reservation": 4096},
        "cpu": {"shares": 1024, "quota": 20000, "period": 100000, "cpus": "0-1"},
        "pids": {"limit": 100},
        "hugepageLimits": [{"pageSize": "1GB", "limit": 0}],
        "unified": {"memory.oom.group": "1", "memory.swap.max": "0"}
    }));
    tree.c1().apply(&wanted).unwrap();
    for (file, value) in [
        ("memory.max", "67108864"),
        ("memory.swap.max", "0"),
        ("memory.low", "4096"),
        ("memory.oom.group", "1"),
        ("cpu.weight", "100"),
        ("cpu.max", "20000 100000"),
        ("cpuset.cpus", "0-1"),
        ("pids.max", "100"),
    ] {
        assert_eq!(
            tree.read(&format!("kubepods/pod1/c1/{file}")),
            value,
            "{file}"
        );
    }
}

#[test]
fn kubelet_limits_reach_the_files_of_v1() {
    let tree = hybrid();
    let wanted = resources(serde_json::json!({
        "memory": {"limit": 67108864, "swap": 67108864},
        "cpu": {"shares": 512, "quota": 20000, "period": 50000},
        "pids": {"limit": -1},
        "hugepageLimits": [{"pageSize": "2MB", "limit": 0}],
    }));
    tree.c1().apply(&wanted).unwrap();
    for (file, value) in [
        ("memory/kubepods/pod1/c1/memory.limit_in_bytes", "67108864"),
        (
            "memory/kubepods/pod1/c1/memory.memsw.limit_in_bytes",
            "67108864",
        ),
        ("cpu/kubepods/pod1/c1/cpu.shares", "512"),
        ("cpu/kubepods/pod1/c1/cpu.cfs_quota_us", "20000"),
        ("cpu/kubepods/pod1/c1/cpu.cfs_period_us", "50000"),
        ("pids/kubepods/pod1/c1/pids.max", "max"),
    ] {
        assert_eq!(tree.read(file), value, "{file}");
    }
}

#[test]
fn a_limit_that_fails_takes_the_earlier_ones_back() {
    let tree = v2();
    // pids.max is written after memory and cpu; a directory cannot be written.
    let pids = tree.below("kubepods/pod1/c1/pids.max");
    std::fs::remove_file(&pids).unwrap();
    std::fs::create_dir(&pids).unwrap();
    let wanted = resources(serde_json::json!({
        "memory": {"limit": 4096}, "cpu": {"quota": 5000}, "pids": {"limit": 5}
    }));
    assert!(tree.c1().write_limits(&wanted).is_err());
    assert_eq!(tree.read("kubepods/pod1/c1/memory.max"), "max");
    assert_eq!(tree.read("kubepods/pod1/c1/cpu.max"), "max 100000");
}

#[test]
fn a_missing_controller_is_named_before_anything_is_written() {
    let tree = v1();
    let wanted = resources(serde_json::json!({"pids": {"limit": 5}, "memory": {"limit": 1}}));
    let error = tree.c1().write_limits(&wanted).unwrap_err().to_string();
    assert_eq!(
        error,
        "cgroup /kubepods/pod1/c1: pids limit: the pids controller is not available"
    );
    assert!(!tree.below("memory/kubepods/pod1/c1").exists());
}

#[test]
fn hybrid_hands_hugetlb_down_when_a_limit_first_needs_it() {
    let tree = hybrid();
    let zero = resources(serde_json::json!({"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]}));
    tree.c1().apply(&zero).unwrap();
    assert_eq!(tree.read("unified/cgroup.subtree_control"), "");
    let some = resources(serde_json::json!({"hugepageLimits": [{"pageSize": "2MB", "limit": 9}]}));
    // A recorded tree does not create the file, so that the limit itself is refused by name.
    let error = tree.c1().apply(&some).unwrap_err().to_string();
    assert_eq!(
        error,
        "cgroup /kubepods/pod1/c1: hugetlb.2MB.max: the hugetlb controller is not available"
    );
    assert_eq!(tree.read("unified/cgroup.subtree_control"), "+hugetlb");
}

#[test]
fn v1_device_rules_are_written_in_their_own_words() {
    let tree = hybrid();
    let wanted = resources(serde_json::json!({"devices": [
        {"allow": false, "access": "rwm"},
        {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw"}
    ]}));
    tree.c1().apply(&wanted).unwrap();
    assert_eq!(tree.read("devices/kubepods/pod1/c1/devices.deny"), "a");
    assert_eq!(
        tree.read("devices/kubepods/pod1/c1/devices.allow"),
        "c 1:3 rw"
    );
}

#[test]
fn a_v2_container_whose_filter_cannot_be_set_is_refused_and_its_limits_taken_back() {
    let tree = v2();
    let wanted = resources(serde_json::json!({
        "memory": {"limit": 4096}, "devices": [{"allow": false, "access": "rwm"}]
    }));
    // The recorded tree is not a cgroup2, so that the kernel refuses to attach a program.
    let error = tree.c1().apply(&wanted).unwrap_err();
    assert!(matches!(error, Error::DeviceFilter { .. }), "{error}");
    assert_eq!(tree.read("kubepods/pod1/c1/memory.max"), "max");
}

#[test]
fn a_privileged_container_needs_no_filter() {
    let wanted = resources(serde_json::json!({"devices": [
        {"allow": false, "access": "rwm"}, {"allow": true, "access": "rwm"}
    ]}));
    v2().c1().apply(&wanted).unwrap();
}

#[test]
fn processes_of_nested_cgroups_are_listed_and_pid_0_is_not() {
    assert_eq!(v2().c1().procs().unwrap(), [4242, 4243]);
    assert_eq!(v1().c1().procs().unwrap(), [4, 17]);
    let absent = v1().host.container("/nowhere", "c").unwrap();
    assert_eq!(absent.procs().unwrap(), [0_u32; 0]);
}

#[test]
fn v2_numbers_are_read_as_the_kernel_writes_them() {
    let stats = v2().c1().stats(Detail::All, &mut OpenFiles::default());
    let cpu = stats.cpu.unwrap();
    assert_eq!(cpu.usage_ns, 1_500_000_000);
    assert_eq!((cpu.periods, cpu.throttled_ns), (10, 70_000_000));
    let memory = stats.memory.unwrap();
    assert_eq!(memory.working_set(), 10_485_760 - 6_291_456);
    assert_eq!((memory.limit, memory.oom_kills), (None, 1));
    assert_eq!((memory.pgfault, memory.pgmajfault), (777, 5));
    assert_eq!(
        stats.swap,
        Some(Swap {
            usage: 4096,
            limit: None
        })
    );
    assert_eq!(stats.pids.unwrap().current, 9);
    let psi = stats.psi.cpu.unwrap();
    assert_eq!((psi.some.avg10, psi.some.total_ns), (1.5, 12_345_000));
    assert_eq!(psi.full.total_ns, 7000);
    assert_eq!((stats.io[0].write_bytes, stats.io[0].reads), (8192, 1));
    assert_eq!(stats.limits.cpu_period_us, Some(100_000));
}

#[test]
fn v1_numbers_have_the_same_shape() {
    let tree = hybrid();
    let stats = tree.c1().stats(Detail::All, &mut OpenFiles::default());
    assert!(stats.cpu.unwrap().usage_ns > 1_000_000);
    let memory = stats.memory.unwrap();
    assert!(
        memory.usage > 3 << 20 && memory.anon > 3 << 20,
        "{memory:?}"
    );
    assert_eq!(memory.limit, None);
    assert_eq!(stats.pids.unwrap().current, 1);
    assert!(stats.psi.memory.is_some());
    assert_eq!(stats.limits.cpu_shares, Some(1024));
    assert_eq!(tree.c1().oom_kills().unwrap(), 0);
    let pages = v1()
        .c1()
        .stats(Detail::All, &mut OpenFiles::default())
        .hugepages;
    assert_eq!(pages[0].usage, 4_194_304);
    assert_eq!(pages[0].max_usage, Some(6_291_456));
}

#[test]
fn a_vanished_cgroup_has_no_numbers_and_no_error() {
    let tree = hybrid();
    let missing = tree.host.container("/nowhere", "c").unwrap();
    let stats = missing.stats(Detail::All, &mut OpenFiles::default());
    assert!(stats.cpu.is_none() && stats.memory.is_none() && stats.pids.is_none());
    assert_eq!(missing.oom_kills().unwrap(), 0);
}

#[tokio::test]
async fn removal_takes_nested_cgroups_and_missing_ones() {
    let tree = v2();
    let pod = tree.host.pod("/kubepods/pod7", "/cairn", "p").unwrap();
    pod.child("c")
        .unwrap()
        .child("nested")
        .unwrap()
        .create()
        .unwrap();
    pod.remove(Duration::from_millis(50)).await.unwrap();
    assert!(pod.dirs().iter().all(|dir| !dir.exists()));
    pod.remove(Duration::from_millis(50)).await.unwrap();
    assert!(tree.below("kubepods").exists());
}

#[tokio::test(start_paused = true)]
async fn a_cgroup_that_stays_busy_is_reported_after_the_bound() {
    let tree = v2();
    let error = tree.c1().remove(Duration::from_secs(5)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("remove: not done after 5s"), "{text}");
    assert!(text.contains("busy with 1 processes"), "{text}");
}
