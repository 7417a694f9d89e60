//! Inspects a pod on the host while a hook blocks: enters namespaces, dials addresses, reads
//! cgroups.
//!
//! The suite runs on the runtime's own host and in its namespaces. A separate thread enters a
//! namespace and ends after the inspection; no other program is needed.

use std::{
    fs, io,
    net::{IpAddr, TcpListener, TcpStream},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use nri::proto::PodSandbox;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use testkit::look;

use testkit::verdict::{Checked, done, miss, that};

/// The timeout of one dial.
const DIAL: Duration = Duration::from_secs(2);

/// The kinds of namespace that a pod's message may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Network,
    Ipc,
    Uts,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Network, Self::Ipc, Self::Uts];

    /// Returns the name in OCI and NRI.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
        }
    }
    /// Returns the file name in `/proc/<pid>/ns`.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Network => "net",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
        }
    }
    fn flag(self) -> LinkNameSpaceType {
        match self {
            Self::Network => LinkNameSpaceType::Network,
            Self::Ipc => LinkNameSpaceType::InterProcessCommunication,
            Self::Uts => LinkNameSpaceType::HostNameAndNISDomainName,
        }
    }
}

/// Returns the path of a pod's namespace if its message contains one.
pub(crate) fn namespace(pod: &PodSandbox, kind: Kind) -> Option<PathBuf> {
    let linux = pod.linux.as_ref()?;
    let found = linux.namespaces.iter().find(|n| n.r#type == kind.name())?;
    (!found.path.is_empty()).then(|| PathBuf::from(&found.path))
}

/// As [`namespace`], but a missing path fails the point.
pub(crate) fn path_of(pod: &PodSandbox, kind: Kind) -> Checked<PathBuf> {
    let reported = pod.linux.as_ref().map(|l| l.namespaces.clone());
    namespace(pod, kind).map_or_else(
        || {
            let expected = format!("linux.namespaces has the path of the {kind:?} namespace");
            miss(
                expected,
                format!("linux.namespaces: {:?}", reported.unwrap_or_default()),
            )
        },
        Ok,
    )
}

/// Runs a function in a namespace.
pub(crate) async fn inside<T: Send + 'static>(
    path: PathBuf,
    kind: Kind,
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let enter = move || {
        let file = fs::File::open(&path)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(kind.flag()))
            .map_err(|e| io::Error::other(format!("setns {}: {e}", path.display())))?;
        act()
    };
    // Use a new thread, not one of the runtime's pool: it stays in the namespace.
    let (report, reported) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = report.send(enter());
    });
    reported
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the look panicked")))
}

/// Checks that the namespace can be entered and is not the host's.
pub(crate) async fn can_be_entered(path: PathBuf, kind: Kind) -> Checked {
    let own = done(
        "our own namespace",
        fs::metadata(format!("/proc/self/ns/{}", kind.file())),
    )?;
    let there = {
        let path = path.clone();
        inside(path.clone(), kind, move || fs::metadata(path)).await
    };
    let shown = path.display().to_string();
    let expected = format!("the {} namespace {shown} can be entered", kind.name());
    let there = done(&expected, there)?;
    that(
        there.ino() != own.ino(),
        format!("{shown} is the pod's own {} namespace", kind.name()),
        "it is the host's",
    )
}

/// Returns the host name in a UTS namespace.
pub(crate) async fn hostname(path: PathBuf) -> io::Result<String> {
    inside(path, Kind::Uts, || {
        Ok(rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned())
    })
    .await
}

/// Checks that the pod's address works: a listener in the network namespace is reachable from the
/// host.
pub(crate) async fn network_works(netns: PathBuf, address: &str) -> Checked {
    let expected = format!("the host reaches {address} in the pod's network namespace");
    let address: IpAddr = match address.parse() {
        Ok(address) => address,
        Err(_) => return miss(expected, format!("invalid address {address:?}")),
    };
    let listener = inside(netns.clone(), Kind::Network, move || {
        TcpListener::bind((address, 0))
    });
    let listener = match listener.await {
        Ok(listener) => listener,
        Err(error) => return miss(expected, format!("nothing can listen on it there: {error}")),
    };
    let to = done(&expected, listener.local_addr())?;
    let dialled = tokio::task::spawn_blocking(move || TcpStream::connect_timeout(&to, DIAL)).await;
    let dialled = dialled.unwrap_or_else(|e| Err(io::Error::other(e)));
    done(&expected, dialled).map(drop)?;
    // The pod's own loopback must work, too.
    let own = inside(netns, Kind::Network, || {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        TcpStream::connect_timeout(&listener.local_addr()?, DIAL)
    });
    done(
        "loopback in the pod's network namespace works",
        own.await.map(drop),
    )
}

/// Returns the directories of a cgroup, from the path that the runtime reported for cgroupfs or
/// systemd.
pub(crate) fn cgroup_dirs(path: &str) -> Vec<PathBuf> {
    look::cgroup_dirs(&cgroup_path(path))
}

/// Converts `slice:prefix:name` to systemd's layout; keeps any other path.
fn cgroup_path(path: &str) -> String {
    let parts: Vec<&str> = path.split(':').collect();
    match parts[..] {
        [slice, prefix, name] => format!("{}/{prefix}-{name}.scope", slice_path(slice)),
        _ if path.ends_with(".slice") && !path.contains('/') => slice_path(path),
        _ => path.to_owned(),
    }
}

/// Converts `a-b.slice` to its path in `a.slice`.
fn slice_path(slice: &str) -> String {
    let Some(stem) = slice.strip_suffix(".slice") else {
        return slice.to_owned();
    };
    let (mut path, mut name) = (String::new(), String::new());
    for part in stem.split('-') {
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(part);
        path = format!("{path}/{name}.slice");
    }
    path
}

/// Reads a file of a process's cgroup; on v1, in the hierarchy of `controller`. Returns `None` if
/// the file does not exist.
pub(crate) fn of_cgroup(pid: u32, controller: &str, v1: &str, v2: &str) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().find_map(|line| {
        let (names, path) = line.split_once(':')?.1.split_once(':')?;
        let (roots, file) = if names.is_empty() {
            (
                vec!["/sys/fs/cgroup".into(), "/sys/fs/cgroup/unified".into()],
                v2,
            )
        } else if names.split(',').any(|n| n == controller) {
            let root = Path::new("/sys/fs/cgroup");
            (vec![root.join(names), root.join(controller)], v1)
        } else {
            return None;
        };
        let path = path.trim_start_matches('/');
        let text = roots
            .iter()
            .find_map(|root| fs::read_to_string(root.join(path).join(file)).ok());
        text.map(|text| text.trim().to_owned())
    })
}

/// Whether a number is the pid of a process, and not the id of one of its threads.
pub(crate) fn is_process(pid: u32) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    look::status_field(&proc, "Tgid").is_some_and(|leader| leader == pid.to_string())
}

/// Whether a process runs. A zombie does not count.
pub(crate) fn runs(pid: u32) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    look::status_field(&proc, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// Returns the processes of a cgroup, from any of its hierarchies.
pub(crate) fn pids(path: &str) -> Vec<u32> {
    look::cgroup_pids(&cgroup_path(path)).into_iter().collect()
}
