//! Attacks of a container on the processes that it sees, in each mode of PID sharing: through
//! `/proc/<pid>` it must reach no object that it does not have itself. SECURITY.md, *Processes that
//! a container sees*, lists the exceptions.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use cairn_tests::{
    Daemon, Setup, bins,
    container::Container,
    cri,
    plugin::{Plugin, Seen},
    pod::{Pod, pod_namespaces, pod_security, security},
    until,
};
use nri::{
    adjust::{Adjust, HookKind},
    proto::{ContainerAdjustment, Event, Hook, Mount},
};

use super::user_namespace;

/// Reads everything that procfs offers of each process except this script's own. Prints a line for
/// each object that a process has and the script has not, with the name of the process; and a line
/// for the process itself. `$1` is a file of the host; `$2`, if set, is the only program whose
/// processes count.
const WALK: &str = r#"
marker=$1 only=$2
offers() { # of the root $1: files of procfs and sysfs that open, and devices
  { find "$1/proc" -path "$1/proc/[0-9]*" -prune -o -type f -print; find "$1/sys" -maxdepth 3 -type f; } 2>/dev/null |
    while read -r file; do
      { true <"$file"; } 2>/dev/null && echo "open ${file#"$1"}"
      { true >>"$file"; } 2>/dev/null && echo "write ${file#"$1"}"
    done
  find "$1/dev" \( -type b -o -type c \) 2>/dev/null | while read -r file; do echo "device ${file#"$1"}"; done
}
mounts() { # of the process $1: where, whether read-only, and what
  awk '{ for (i = 7; $i != "-"; i++); print "mount", $5, substr($6, 1, 2), $(i + 1) }' "$1/mountinfo" 2>/dev/null
}
rights() { # of the process $1, which its tracer can use
  while read -r key value _; do
    case $key in
    CapPrm:) [ $((0x$value & ~0x$caps)) -eq 0 ] || echo "more capabilities" ;;
    Seccomp:) [ "$value" -ge "$filter" ] || echo "no seccomp filter" ;;
    esac
  done <"$1/status"
}
walk() { # the process directory $1 of the program $2
  up=/../../../../../../../..
  for way in root cwd root$up cwd$up; do
    [ -e "$1/$way$marker" ] && echo "$2 the host by $way"
  done
  if [ -n "$(ls -A "$1/root/" 2>/dev/null)" ]; then
    echo "$2 root"
    { offers "$1/root"; mounts "$1"; } | grep -vxFf /tmp/own | while read -r more; do echo "$2 root: $more"; done
  fi
  [ -n "$(ls -A "$1/cwd/" 2>/dev/null)" ] && echo "$2 cwd"
  { true <"$1/exe"; } 2>/dev/null && echo "$2 exe"
  { true >>"$1/exe"; } 2>/dev/null && echo "$2 exe: write"
  chmod u+x "$1/exe" 2>/dev/null && echo "$2 exe: change"
  for fd in "$1"/fd/*; do
    to=$(readlink "$fd") && echo "$2 fd ${to%%:*}"
    [ -e "$fd$marker" ] || [ -e "$fd$up$marker" ] && echo "$2 the host by fd"
  done
  { true >>"$1/mem"; } 2>/dev/null && { echo "$2 mem"; rights "$1" | while read -r more; do echo "$2 $more"; done; }
  { true <"$1/maps"; } 2>/dev/null && echo "$2 maps"
  tr '\0' '\n' 2>/dev/null <"$1/environ" | sed 's/=.*//' | while read -r name; do
    grep -qx "$name" /tmp/environ || echo "$2 environ $name"
  done
  for ns in cgroup ipc mnt net pid time user uts; do
    to=$(readlink "$1/ns/$ns") && [ "$to" != "$(readlink /proc/self/ns/$ns)" ] && echo "$2 ns $ns"
  done
}
is_ours() { # the process $1: this shell, or one that it has started
  of=$1
  until [ "$of" = $$ ]; do
    read -r line 2>/dev/null <"/proc/$of/stat" || return 1
    set -- ${line##*)}
    of=$2
  done
}
while read -r key value _; do
  case $key in CapPrm:) caps=$value ;; Seccomp:) filter=$value ;; esac
done </proc/$$/status
tr '\0' '\n' </proc/$$/environ | sed 's/=.*//' >/tmp/environ
{ offers ""; mounts /proc/self; } >/tmp/own
for process in /proc/[0-9]*; do
  is_ours "${process#/proc/}" && continue
  program=$(cat "$process/comm" 2>/dev/null) || continue
  case $program in "${only:-$program}") ;; *) continue ;; esac
  echo "$program is there"
  for directory in "$process" "$process"/task/*; do walk "$directory" "$program"; done
done 2>/dev/null | sort -u
"#;

/// Objects of a container that another one can reach if it sees it and has its user and
/// capabilities: files, memory and environment (with `SECRET`), in the namespaces that each
/// container has for itself.
const OF_CONTAINERS: &[&str] = &[
    "root",
    "cwd",
    "exe",
    "exe: write",
    "exe: change",
    "mem",
    "maps",
    "environ SECRET",
    "fd /dev/null",
    "fd pipe",
    "ns mnt",
    "ns cgroup",
];
/// Objects of containers of other pods.
const OF_OTHER_PODS: &[&str] = &["ns ipc", "ns net", "ns pid", "ns uts"];
/// Objects of containers in a user namespace, which have the host's devices.
const OF_MAPPED: &[&str] = &[
    "ns user",
    "root: mount /dev/full rw devtmpfs",
    "root: mount /dev/null rw devtmpfs",
    "root: mount /dev/random rw devtmpfs",
    "root: mount /dev/tty rw devtmpfs",
    "root: mount /dev/urandom rw devtmpfs",
    "root: mount /dev/zero rw devtmpfs",
];
/// With SYS_PTRACE: the pause process itself, but no object beyond it.
const OF_PAUSE: &[&str] = &["exe", "mem", "maps", "ns mnt", "ns cgroup"];
/// The name of a container's process 1 before it executes the container's program.
const BIRTH: &str = "youki:[2:INIT]";
/// With SYS_PTRACE: a process that will become a container's program, and still has our image.
const OF_BIRTHS: &[&str] = &[
    "root",
    "cwd",
    "exe",
    "mem",
    "maps",
    "fd /dev/null",
    "fd pipe",
    // For start hooks: the pidfd of each, and the state on the stdin of a waiting one.
    "fd anon_inode",
    "fd /memfd",
    "ns mnt",
    "ns cgroup",
];

/// Runs the walk in this container; returns its lines.
async fn seen_by(looker: &Container, marker: &Path, only: &str) -> BTreeSet<String> {
    let marker = marker.display().to_string();
    let command = ["sh", "-c", WALK, "walk", &marker, only];
    let ran = looker.try_exec(&command, 100).await.expect("ExecSync");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    ran.out.lines().map(str::to_owned).collect()
}

/// Runs the walk, and compares its lines with the expected ones of these programs' processes.
async fn walk(looker: &Container, marker: &Path, expected: &[(&str, &[&str])]) -> BTreeSet<String> {
    let found = seen_by(looker, marker, "").await;
    let beyond: Vec<_> = found
        .iter()
        .filter(|line| !is_expected(line, expected))
        .collect();
    assert!(beyond.is_empty(), "{} things: {beyond:#?}", beyond.len());
    found
}

fn is_expected(line: &str, expected: &[(&str, &[&str])]) -> bool {
    let item = |program: &str| line.strip_prefix(program)?.strip_prefix(' ');
    line.ends_with(" is there")
        || expected
            .iter()
            .any(|(program, items)| item(program).is_some_and(|item| items.contains(&item)))
}

fn pid_mode(mode: cri::NamespaceMode, target: &str) -> cri::NamespaceOption {
    cri::NamespaceOption {
        pid: mode.into(),
        target_id: target.to_owned(),
        ..Default::default()
    }
}

/// A pod whose containers share a PID namespace.
async fn sharing_pod(daemon: &Daemon, name: &str) -> Pod {
    let cri = daemon.cri();
    let mut config = cri.pod_config(name);
    pod_security(&mut config).namespace_options = Some(pid_mode(cri::NamespaceMode::Pod, ""));
    cri.try_pod(config).await.expect("RunPodSandbox")
}

/// A container with a kubelet's masks and the default seccomp profile, and with SYS_PTRACE if
/// requested.
fn config(
    pod: &Pod,
    name: &str,
    options: &cri::NamespaceOption,
    ptrace: bool,
    command: &[&str],
) -> cri::ContainerConfig {
    let mut config = pod.cri.container_config(name, command);
    let context = security(&mut config);
    context.namespace_options = Some(options.clone());
    let paths = |all: &[&str]| all.iter().map(ToString::to_string).collect();
    context.masked_paths = paths(&[
        "/proc/acpi",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/scsi",
        "/proc/timer_list",
        "/sys/firmware",
    ]);
    context.readonly_paths = paths(&[
        "/proc/bus",
        "/proc/fs",
        "/proc/irq",
        "/proc/sys",
        "/proc/sysrq-trigger",
    ]);
    context.seccomp = Some(cri::SecurityProfile {
        profile_type: cri::security_profile::ProfileType::RuntimeDefault.into(),
        ..Default::default()
    });
    context.capabilities = ptrace.then(|| cri::Capability {
        add_capabilities: vec!["SYS_PTRACE".into()],
        ..Default::default()
    });
    config
}

async fn started(pod: &Pod, config: cri::ContainerConfig) -> Container {
    pod.started(config).await
}

/// A container with a secret in its environment.
async fn neighbour(pod: &Pod, name: &str, options: &cri::NamespaceOption) -> Container {
    let mut config = config(pod, name, options, false, &["sleep", "1000"]);
    config.envs.push(cri::KeyValue {
        key: "SECRET".into(),
        value: "of another".into(),
    });
    started(pod, config).await
}

async fn looker(pod: &Pod, options: &cri::NamespaceOption, ptrace: bool) -> Container {
    let config = config(pod, "looker", options, ptrace, &["sleep", "1000"]);
    started(pod, config).await
}

/// Runs `look` while a container with these options is created but not started.
async fn while_one_is_born(
    plugin: &Plugin,
    pod: &Pod,
    options: &cri::NamespaceOption,
    look: impl AsyncFnOnce(),
) {
    let config = config(pod, "born", options, false, &["sleep", "1000"]);
    let born = pod.try_create(config).await.expect("CreateContainer");
    let gate = plugin.blocks(Event::StartContainer);
    let starting = tokio::spawn({
        let born = born.clone();
        async move { born.start().await }
    });
    let is_born = |seen: &Seen| {
        seen.event == Event::StartContainer
            && seen.container.as_ref().is_some_and(|c| c.id == born.id)
    };
    plugin.sees_where("the start of `born`", is_born).await;
    look().await;
    plugin.behaves();
    gate.open();
    starting.await.expect("no panic").expect("StartContainer");
    born.stop(Duration::ZERO).await.expect("StopContainer");
    born.remove().await.expect("RemoveContainer");
}

/// A daemon with a long timeout for plugins, sufficient for a walk, and a plugin.
async fn patient() -> (Daemon, Plugin) {
    let setup = Setup::default().toml("[nri]\nrequest_timeout = \"600s\"");
    let daemon = Daemon::with(setup).await;
    let events = [Event::CreateContainer, Event::StartContainer];
    let plugin = Plugin::subscribed(&daemon.nri_socket(), "10", "holder", &events).await;
    (daemon, plugin)
}

fn saw(found: &BTreeSet<String>, what: &[&str]) {
    for seen in what {
        assert!(found.contains(*seen), "it did not see {seen:?}: {found:#?}");
    }
}

#[tokio::test]
async fn processes_of_its_pod_offer_a_container_no_more_than_it_has() {
    let (daemon, plugin) = patient().await;
    let marker = daemon.path("cairn.toml");
    let shared = pid_mode(cri::NamespaceMode::Pod, "");
    for ptrace in [false, true] {
        let pod = sharing_pod(&daemon, &format!("pod-{ptrace}")).await;
        neighbour(&pod, "neighbour", &shared).await;
        let looker = looker(&pod, &shared, ptrace).await;
        let (pause, birth) = if ptrace {
            (OF_PAUSE, OF_BIRTHS)
        } else {
            (&[][..], &[][..])
        };
        let expected = [("sleep", OF_CONTAINERS), ("pause", pause), (BIRTH, birth)];
        while_one_is_born(&plugin, &pod, &shared, async || {
            let found = walk(&looker, &marker, &expected).await;
            saw(&found, &["sleep root", "sleep mem", "sleep environ SECRET"]);
            saw(&found, &["pause is there", "youki:[2:INIT] is there"]);
        })
        .await;
        pod.end().await;
    }
}

/// Checks both directions: the target's view of the joiners, and a joiner's view of the target.
#[tokio::test]
async fn a_target_and_its_joiners_offer_each_other_no_more_than_they_have() {
    let (daemon, plugin) = patient().await;
    let marker = daemon.path("cairn.toml");
    let own = pid_mode(cri::NamespaceMode::Container, "");
    for ptrace in [false, true] {
        let pod = daemon.cri().pod(&format!("target-{ptrace}")).await;
        let target = looker(&pod, &own, ptrace).await;
        let joins = pid_mode(cri::NamespaceMode::Target, &target.id);
        neighbour(&pod, "neighbour", &joins).await;
        let joiner = config(&pod, "joiner", &joins, ptrace, &["sleep", "1000"]);
        let joiner = started(&pod, joiner).await;
        let birth = if ptrace { OF_BIRTHS } else { &[] };
        let expected = [("sleep", OF_CONTAINERS), (BIRTH, birth)];
        while_one_is_born(&plugin, &pod, &joins, async || {
            for looker in [&target, &joiner] {
                let found = walk(looker, &marker, &expected).await;
                saw(&found, &["sleep root", "sleep mem", "sleep environ SECRET"]);
                saw(&found, &["youki:[2:INIT] is there"]);
            }
        })
        .await;
        pod.end().await;
    }
}

/// A hook on the host that creates `began`, and ends when `go` exists.
fn waiting_hook(out: &Path) -> ContainerAdjustment {
    let script = "echo >$0/began; until [ -e $0/go ]; do sleep 0.05; done";
    let busybox = bins::system("busybox").expect("installed");
    let mut adjust = ContainerAdjustment::default();
    adjust.add_hook(
        HookKind::CreateRuntime,
        Hook {
            path: busybox.display().to_string(),
            args: ["sh", "-c", script, &out.display().to_string()]
                .map(str::to_owned)
                .into(),
            env: vec!["PATH=/bin:/usr/bin".to_owned()],
            timeout: None,
        },
    );
    adjust
}

/// With SYS_PTRACE, a container in the host's PID namespace is root of the host: then only pause
/// processes are checked.
#[tokio::test]
async fn processes_of_the_host_offer_a_container_that_sees_them_no_more_than_it_has() {
    let (daemon, plugin) = patient().await;
    let marker = daemon.path("cairn.toml");
    let out = daemon.path("hook");
    fs::create_dir(&out).expect("ours");
    let to = out.clone();
    plugin.adjusts(move |_, container| (container.name == "hooked").then(|| waiting_hook(&to)));
    let shared = pid_mode(cri::NamespaceMode::Pod, "");
    let of_host = pid_mode(cri::NamespaceMode::Node, "");
    let other = sharing_pod(&daemon, "other").await;
    neighbour(&other, "neighbour", &shared).await;
    let mapped = {
        let mut config = daemon.cri().pod_config("mapped");
        let options = pod_namespaces(&mut config);
        options.pid = cri::NamespaceMode::Pod.into();
        options.userns_options = Some(user_namespace());
        daemon.cri().try_pod(config).await.expect("RunPodSandbox")
    };
    let mut in_mapped = shared.clone();
    in_mapped.userns_options = Some(user_namespace());
    neighbour(&mapped, "neighbour", &in_mapped).await;
    let mut config_of_host = daemon.cri().pod_config("host");
    pod_namespaces(&mut config_of_host).pid = cri::NamespaceMode::Node.into();
    let host = daemon.cri().try_pod(config_of_host).await;
    let host = host.expect("RunPodSandbox");

    let looks = looker(&host, &of_host, false).await;
    let hooked = config(&other, "hooked", &shared, false, &["sleep", "1000"]);
    let hooked = other.try_create(hooked).await.expect("CreateContainer");
    let starting = tokio::spawn({
        let hooked = hooked.clone();
        async move { hooked.start().await }
    });
    until("the hook runs", || async {
        out.join("began").exists().then_some(())
    })
    .await;
    let of_others = [OF_CONTAINERS, OF_OTHER_PODS, OF_MAPPED].concat();
    let found = walk(&looks, &marker, &[("sleep", &of_others)]).await;
    saw(&found, &["sleep root", "sleep ns net", "sleep ns user"]);
    fs::write(out.join("go"), "").expect("ours");
    starting.await.expect("no panic").expect("StartContainer");
    while_one_is_born(&plugin, &other, &shared, async || {
        walk(&looks, &marker, &[("sleep", &of_others)]).await;
    })
    .await;
    looks.remove().await.expect("RemoveContainer");

    let traces = looker(&host, &of_host, true).await;
    let found = seen_by(&traces, &marker, "pause").await;
    saw(&found, &["pause is there"]);
    let expected = [OF_PAUSE, OF_OTHER_PODS, &["ns user"]].concat();
    let is_expected = |line: &&String| is_expected(line, &[("pause", &expected)]);
    let beyond: Vec<_> = found.iter().filter(|line| !is_expected(line)).collect();
    assert!(beyond.is_empty(), "{beyond:#?}");
    for pod in [host, other, mapped] {
        pod.end().await;
    }
}

/// The hook's program is a file of the image, and the container's process 1 has not executed its
/// program yet.
#[tokio::test]
async fn a_container_offers_its_own_start_hook_no_more_than_it_has() {
    let (daemon, plugin) = patient().await;
    let marker = daemon.path("cairn.toml").display().to_string();
    let out = daemon.path("hook");
    fs::create_dir(&out).expect("ours");
    let source = out.display().to_string();
    let script = format!("{{ {WALK} }} >>/out/seen");
    plugin.adjusts(move |_, _| {
        let mut adjust = ContainerAdjustment::default();
        adjust.add_mount(Mount {
            destination: "/out".into(),
            r#type: "bind".into(),
            source: source.clone(),
            options: vec!["bind".into(), "rw".into()],
        });
        // The second hook waits while the first one runs.
        for _ in 0..2 {
            adjust.add_hook(
                HookKind::StartContainer,
                Hook {
                    path: "/bin/busybox".into(),
                    args: ["sh", "-c", &script, "walk", &marker]
                        .map(str::to_owned)
                        .into(),
                    env: vec!["PATH=/bin".to_owned(), "HOME=/".to_owned()],
                    timeout: None,
                },
            );
        }
        Some(adjust)
    });
    for mode in [cri::NamespaceMode::Container, cri::NamespaceMode::Pod] {
        for ptrace in [false, true] {
            let pod = sharing_pod(&daemon, &format!("hook-{ptrace}-{}", mode as i32)).await;
            let options = pid_mode(mode, "");
            let container = looker(&pod, &options, ptrace).await;
            let found = fs::read_to_string(out.join("seen")).expect("the hook wrote it");
            let (pause, birth) = if ptrace {
                (OF_PAUSE, OF_BIRTHS)
            } else {
                (&[][..], &[][..])
            };
            let expected = [(BIRTH, birth), ("pause", pause)];
            let beyond = found.lines().filter(|line| !is_expected(line, &expected));
            let beyond: Vec<_> = beyond.collect();
            assert!(beyond.is_empty(), "{mode:?}, {ptrace}: {beyond:#?}");
            assert!(found.contains("youki:[2:INIT] is there\n"), "{found}");
            fs::remove_file(out.join("seen")).expect("the hook's");
            container.stop(Duration::ZERO).await.expect("StopContainer");
            pod.end().await;
        }
    }
}

/// Checks short-lived processes continuously, with the shell's own commands only. Reports a path to
/// the host with the file `$1` and, without SYS_PTRACE (`$2` is set), an accessible process of our
/// programs. From the host's PID namespace (`$3` is set), each pod has other namespaces.
const WATCH: &str = r#"
up=/../../../../../../../..
while :; do
  for process in /proc/[0-9]* /proc/[0-9]*/task/[0-9]*; do
    for way in root$1 cwd$1 root$up$1 cwd$up$1 cwd/launch; do
      [ -e $process/$way ] && echo "seen $process/$way"
    done
    for fd in $process/fd/*; do
      [ -e $fd/cgroup.procs ] || [ -e $fd$1 ] || [ -e $fd$up$1 ] && echo "seen $fd"
    done
    [ -n "$3" ] || for ns in ipc net pid time user uts; do
      # It may become accessible, and it may end, between two of these.
      [ -e $process/ns/$ns ] && [ ! $process/ns/$ns -ef /proc/self/ns/$ns ] && [ -e $process/ns/$ns ] &&
        echo "seen $process/ns/$ns"
    done
    exe=$process/exe
    [ $exe -ef /bin/busybox ] || { true >>$exe; } && [ ! $exe -ef /bin/busybox ] && [ -e $exe ] && echo "written $exe"
    environ= program=
    read -r environ <$process/environ
    read -r program <$process/comm
    case $program in cairn-* | youki*) [ -z "$environ" ] || echo "seen $process/environ" ;; esac
    if [ -n "$2" ] && [ -e $process/root/. ]; then
      # It may have become the container's program between the two: then it has a new name the second time, or has ended.
      [ -e $process/root/. ] && read -r program <$process/comm || program=
      case $program in cairn-* | youki*) echo "seen $process of $program" ;; esac
    fi
  done 2>/dev/null
  echo round >>/tmp/rounds
done
"#;

fn watcher(
    daemon: &Daemon,
    pod: &Pod,
    options: &cri::NamespaceOption,
    ptrace: bool,
) -> cri::ContainerConfig {
    let marker = daemon.path("cairn.toml").display().to_string();
    let without = if ptrace { "" } else { "without" };
    let of_host = options.pid() == cri::NamespaceMode::Node;
    let of_host = if of_host { "host" } else { "" };
    let command = ["/bin/sh", "-c", WATCH, "watch", &marker, without, of_host];
    config(pod, "watcher", options, ptrace, &command)
}

async fn it_saw_nothing(watcher: &Container) {
    let rounds = watcher.sh("wc -l </tmp/rounds").await;
    assert!(
        rounds.parse::<u32>().is_ok_and(|n| n > 100),
        "it looked {rounds} times"
    );
    let seen = watcher.lines();
    assert!(seen.is_empty(), "{} times: {:?} …", seen.len(), &seen[0]);
}

/// Starts this many containers with these options, some concurrently; each must see its own program
/// and the watcher's.
async fn start_many(pod: &Pod, count: usize, options: &cri::NamespaceOption) {
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4 {
        let (pod, options) = (pod.clone(), options.clone());
        tasks.spawn(async move {
            for n in (task..count).step_by(4) {
                let script = "cat /proc/self/comm; grep -l '[t]mp/rounds' /proc/[0-9]*/cmdline 2>/dev/null | wc -l";
                let mut config = pod
                    .cri
                    .container_config(&format!("c{n}"), &["/bin/sh", "-c", script]);
                security(&mut config).namespace_options = Some(options.clone());
                let container = pod.started(config).await;
                assert_eq!(container.exited().await.exit_code, 0);
                assert_eq!(container.lines(), ["cat", "1"], "c{n}");
                container.remove().await.expect("RemoveContainer");
            }
        });
    }
    while let Some(end) = tasks.join_next().await {
        end.expect("containers start while they are watched");
    }
}

#[tokio::test]
async fn a_container_that_watches_starts_in_its_shared_pid_namespace_sees_nothing_of_the_host() {
    let daemon = Daemon::start().await;
    let pod = sharing_pod(&daemon, "watch-starts").await;
    let shared = pid_mode(cri::NamespaceMode::Pod, "");
    let watcher = started(&pod, watcher(&daemon, &pod, &shared, true)).await;
    start_many(&pod, 300, &shared).await;
    it_saw_nothing(&watcher).await;
    watcher.stop(Duration::ZERO).await.expect("StopContainer");
    pod.end().await;
}

#[tokio::test]
async fn a_target_that_watches_who_joins_its_pid_namespace_sees_nothing_of_the_host() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("watch-joins").await;
    let own = pid_mode(cri::NamespaceMode::Container, "");
    let watcher = started(&pod, watcher(&daemon, &pod, &own, true)).await;
    let options = pid_mode(cri::NamespaceMode::Target, &watcher.id);
    start_many(&pod, 100, &options).await;
    it_saw_nothing(&watcher).await;
    watcher.stop(Duration::ZERO).await.expect("StopContainer");
    pod.end().await;
}

/// A process that makes a user namespace, or enters one, belongs to the host's user 0 there.
#[tokio::test]
async fn a_container_that_watches_user_namespaces_being_made_sees_nothing_of_the_host() {
    let daemon = Daemon::start().await;
    let of_host = pid_mode(cri::NamespaceMode::Node, "");
    let mut host = daemon.cri().pod_config("host");
    pod_namespaces(&mut host).pid = cri::NamespaceMode::Node.into();
    let host = daemon.cri().try_pod(host).await.expect("RunPodSandbox");
    let watcher = started(&host, watcher(&daemon, &host, &of_host, false)).await;
    let volume = daemon.path("volumes/shifted");
    fs::create_dir(&volume).expect("ours");
    let mut own = pid_mode(cri::NamespaceMode::Container, "");
    own.userns_options = Some(user_namespace());
    let ids = user_namespace().uids;
    for n in 0..60 {
        let mut mapped = daemon.cri().pod_config(&format!("mapped{n}"));
        pod_namespaces(&mut mapped).userns_options = Some(user_namespace());
        let mapped = daemon.cri().try_pod(mapped).await.expect("RunPodSandbox");
        let mut config = config(&mapped, "shifted", &own, false, &["true"]);
        config.mounts.push(cri::Mount {
            container_path: "/shifted".into(),
            host_path: volume.display().to_string(),
            uid_mappings: ids.clone(),
            gid_mappings: ids.clone(),
            ..Default::default()
        });
        assert_eq!(started(&mapped, config).await.exited().await.exit_code, 0);
        mapped.end().await;
    }
    it_saw_nothing(&watcher).await;
    watcher.stop(Duration::ZERO).await.expect("StopContainer");
    host.end().await;
}

#[tokio::test]
async fn a_container_that_watches_execs_sees_nothing_of_the_host() {
    let daemon = Daemon::start().await;
    let own = pid_mode(cri::NamespaceMode::Container, "");
    for ptrace in [true, false] {
        let pod = daemon.cri().pod(&format!("watch-{ptrace}")).await;
        let container = started(&pod, watcher(&daemon, &pod, &own, ptrace)).await;
        let mut execs = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let container = container.clone();
            execs.spawn(async move {
                for _ in 0..250 {
                    let ran = container.try_exec(&["true"], 30).await.expect("ExecSync");
                    assert_eq!(ran.code, 0, "{ran:?}");
                }
            });
        }
        while let Some(end) = execs.join_next().await {
            end.expect("execs go on while they are watched");
        }
        it_saw_nothing(&container).await;
        container.stop(Duration::ZERO).await.expect("StopContainer");
        pod.end().await;
    }
}

/// Any container of a pod with a shared PID namespace may signal process 1; only the host's root
/// can kill it.
#[tokio::test]
async fn a_pause_process_that_is_killed_makes_its_sandbox_notready_and_no_container_can() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let pod = sharing_pod(&daemon, "pause").await;
    let create = async |name: &str| {
        let mut config = cri.container_config(name, &["sleep", "1000"]);
        security(&mut config).namespace_options = Some(pid_mode(cri::NamespaceMode::Pod, ""));
        pod.try_create(config).await.expect("CreateContainer")
    };
    let (killer, late) = (create("killer").await, create("late").await);
    killer.start().await.expect("StartContainer");
    // The standard library handles two of these signals.
    for signal in [
        "TERM", "INT", "KILL", "HUP", "SEGV", "BUS", "ABRT", "SYS", "PIPE",
    ] {
        killer.exec(&["kill", &format!("-{signal}"), "1"]).await;
    }
    assert_eq!(killer.exec(&["cat", "/proc/1/comm"]).await, "pause");
    assert_eq!(
        pod.status().await.state(),
        cri::PodSandboxState::SandboxReady
    );

    let status = cri.pod_status(&pod.id).await.expect("PodSandboxStatus");
    let info: serde_json::Value = serde_json::from_str(&status.info["info"]).expect("it is JSON");
    let pause = info["pid"].as_u64().expect("a pause process has a pid");
    let mut kill = daemon.yard.command("kill");
    let killed = kill.args(["-KILL", &pause.to_string()]).output().await;
    let killed = killed.expect("kill runs");
    assert!(killed.status.success(), "{killed:?}");
    until("the sandbox is NOTREADY", || async {
        let state = pod.status().await.state();
        (state == cri::PodSandboxState::SandboxNotready).then_some(())
    })
    .await;
    let refused = late.start().await.expect_err("there is nothing to join");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("not ready"), "{refused}");
    killer.exited().await;
    pod.end().await;
}
