use std::{collections::BTreeSet, fs};

use rustix::mount::UnmountFlags;

use super::*;
use crate::image::store::record::LAYERS_MAX;

/// Mounts at or below a path in this mount namespace.
fn mounts(path: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let here = path.display().to_string();
    let lines = table.lines().filter(|line| line.contains(&here));
    lines.map(str::to_owned).collect()
}

/// Mounts layers whose directories have all characters that an options string must escape. Returns
/// the owner of a file in the lowest one.
fn owner_in_the_view(api: Api, layers: u32, userns: Option<Userns>) -> u32 {
    let tmp = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let path = tmp.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    let layer = |n: u32| {
        let path = make(&format!("a:b,c\\d e{}/{n}", "x".repeat(200)));
        fs::write(path.join("f"), n.to_string()).unwrap();
        fs::write(path.join(n.to_string()), "").unwrap();
        path
    };
    let (upper, work, merged) = (make("up:per,"), make("wo\\rk"), make("merged"));
    let overlay = Overlay {
        lowers: (0..layers).map(layer).collect(),
        upper: Some((&upper, &work)),
        userns,
        label: None,
        target: &merged,
    };
    let mut owner = 0;
    // The second mount finds the mark of the first, volatile one in its work directory.
    for _ in 0..2 {
        if let Err(failed) = overlay.mount_by(api) {
            panic!("{api:?}: {failed}");
        }
        let shown = fs::read_to_string(merged.join("f"));
        let lowest = fs::metadata(merged.join((layers - 1).to_string()));
        let mounted = mounts(tmp.path());
        rustix::mount::unmount(&merged, UnmountFlags::DETACH).unwrap();
        assert_eq!(shown.unwrap(), "0");
        owner = std::os::unix::fs::MetadataExt::uid(&lowest.unwrap());
        assert_eq!(mounted.len(), 1, "{mounted:?}");
        assert!(mounted[0].contains("volatile"), "{mounted:?}");
        assert_eq!(mounts(tmp.path()), [""; 0]);
    }
    owner
}

/// A user namespace whose root is the host's 100000, of a process that waits for the end of its
/// input.
fn userns() -> (Userns, std::process::Child) {
    let mut child = std::process::Command::new("unshare")
        .args(["--user", "sh", "-c", "echo; read end"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let proc = PathBuf::from(format!("/proc/{}", child.id()));
    for map in ["uid_map", "gid_map"] {
        fs::write(proc.join(map), "0 100000 65536").unwrap();
    }
    let namespace = File::open(proc.join("ns/user")).unwrap();
    (Arc::new(namespace.into()), child)
}

/// The old interface works on every kernel.
fn apis() -> BTreeSet<Api> {
    [Api::Options, supported()].into()
}

#[test]
fn old_kernels_and_new_show_as_many_layers_as_an_image_may_have() {
    for api in apis() {
        let layers = u32::try_from(LAYERS_MAX).unwrap();
        assert_eq!(owner_in_the_view(api, layers, None), 0);
    }
}

#[test]
fn shifted_layers_are_attached_where_the_host_does_not_see_them() {
    let (userns, mut child) = userns();
    for api in apis() {
        assert_eq!(owner_in_the_view(api, 20, Some(userns.clone())), 100_000);
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn this_kernel_takes_what_it_is_believed_to_take() {
    let api = supported();
    assert_eq!(owner_in_the_view(api, 3, None), 0);
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release.split('.').map(|n| n.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let known = if version >= (6, 7) {
        Api::LowerdirPlus
    } else {
        Api::Options
    };
    assert_eq!(api, known, "{release}");
}

#[test]
fn a_failed_mount_says_why_in_the_kernels_words_or_where_these_are() {
    let tmp = tempfile::tempdir().unwrap();
    let lower = tmp.path().join("lower");
    fs::create_dir(&lower).unwrap();
    let overlay = Overlay {
        lowers: vec![lower],
        // Nothing can be written there.
        upper: Some((Path::new("/proc/sys/kernel"), Path::new("/proc/sys/vm"))),
        userns: None,
        label: None,
        target: tmp.path(),
    };
    for api in apis() {
        let Err(failed) = overlay.mount_by(api) else {
            panic!("a procfs takes no upper directory");
        };
        let text = failed.to_string();
        let why = match api {
            Api::LowerdirPlus => "not supported",
            Api::Options => "dmesg",
        };
        assert!(text.contains("overlay") && text.contains(why), "{text}");
    }
}
