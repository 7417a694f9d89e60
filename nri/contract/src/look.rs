//! What the host shows of a pod while a hook blocks: namespaces entered, addresses dialled, cgroups read.
//!
//! The suite runs on the runtime's own host and in its namespaces. A namespace is entered by a thread of its own, which
//! ends with the look; no other program is needed.

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

/// Time for one dial.
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

    /// As OCI and NRI call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
        }
    }
    /// As `/proc/<pid>/ns` calls it.
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

/// The path of a pod's namespace, where its message names one.
pub(crate) fn namespace(pod: &PodSandbox, kind: Kind) -> Option<PathBuf> {
    let linux = pod.linux.as_ref()?;
    let found = linux.namespaces.iter().find(|n| n.r#type == kind.name())?;
    (!found.path.is_empty()).then(|| PathBuf::from(&found.path))
}

/// As [`namespace`], where it must be.
pub(crate) fn path_of(pod: &PodSandbox, kind: Kind) -> Checked<PathBuf> {
    let told = pod.linux.as_ref().map(|l| l.namespaces.clone());
    namespace(pod, kind).map_or_else(
        || {
            let expected = format!("linux.namespaces has the path of the {kind:?} namespace");
            miss(
                expected,
                format!("linux.namespaces: {:?}", told.unwrap_or_default()),
            )
        },
        Ok,
    )
}

/// Does something in a namespace.
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
    // Not a thread of the runtime's pool: it stays in the namespace.
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = tell.send(enter());
    });
    told.await
        .unwrap_or_else(|_| Err(io::Error::other("the look panicked")))
}

/// The namespace can be entered, and is not the host's.
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

/// The host name in a UTS namespace.
pub(crate) async fn hostname(path: PathBuf) -> io::Result<String> {
    inside(path, Kind::Uts, || {
        Ok(rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned())
    })
    .await
}

/// The pod's address works: somebody listens on it in the network namespace, and the host gets there.
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
    // Its own loopback, too.
    let own = inside(netns, Kind::Network, || {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        TcpStream::connect_timeout(&listener.local_addr()?, DIAL)
    });
    done(
        "loopback in the pod's network namespace works",
        own.await.map(drop),
    )
}

/// Where a cgroup is in the file system, by the path that the runtime told: cgroupfs's or systemd's.
pub(crate) fn cgroup_dirs(path: &str) -> Vec<PathBuf> {
    look::cgroup_dirs(&cgroup_path(path))
}

/// `slice:prefix:name` as systemd lays it out; any other path as it is.
fn cgroup_path(path: &str) -> String {
    let parts: Vec<&str> = path.split(':').collect();
    match parts[..] {
        [slice, prefix, name] => format!("{}/{prefix}-{name}.scope", slice_path(slice)),
        _ if path.ends_with(".slice") && !path.contains('/') => slice_path(path),
        _ => path.to_owned(),
    }
}

/// `a-b.slice` lies in `a.slice`.
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

/// A file of the cgroup of a process, on v1 in the hierarchy of `controller`; `None` where there is no such file.
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

/// Whether a number is that of a process, and not of one of a process's threads.
pub(crate) fn is_process(pid: u32) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    look::status_field(&proc, "Tgid").is_some_and(|leader| leader == pid.to_string())
}

/// Whether a process runs; one that waits to be reaped does not.
pub(crate) fn runs(pid: u32) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    look::status_field(&proc, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// The processes of a cgroup, by any of its hierarchies.
pub(crate) fn pids(path: &str) -> Vec<u32> {
    look::cgroup_pids(&cgroup_path(path)).into_iter().collect()
}
