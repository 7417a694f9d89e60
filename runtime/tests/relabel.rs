//! SELinux labels on trees of every shape: the only walk of the daemon that the end-to-end tests
//! cannot cover on a kernel without SELinux. One test in a separate process, whose memory and time
//! are measured.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use cairn::host::relabel::relabel;
use cairn::remove::remove_tree_at;
use rustix::fs::{Mode, OFlags, fgetxattr, mkdirat, open, openat};

const FULL: usize = 150_000;
const GROWTH_MAX: u64 = 8 << 10;
const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";

/// Makes `levels` nested directories, and the rest of `n` beside them. Returns the last one, which
/// must have a label at the end.
fn grow(top: &Path, n: usize, levels: usize) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = open(top, flags, Mode::empty()).unwrap();
    for level in 0..levels {
        let teeth = (level + 1) * n / levels - level * n / levels - 1;
        for tooth in 0..teeth {
            mkdirat(&at, tooth.to_string(), Mode::RWXU).unwrap();
        }
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = openat(&at, "d", flags, Mode::empty()).unwrap();
    }
    at
}

fn kilobytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the processor time of this process in ticks of 10 ms.
fn ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    fields
        .skip(11)
        .take(2)
        .map(|n| n.parse::<u64>().unwrap())
        .sum()
}

fn note(line: &str) {
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("CAIRN_TEST_TABLE") {
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        file.unwrap()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }
}

#[test]
fn labels_on_a_tree_of_every_shape_take_no_memory_and_linear_time() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    for (shape, levels) in [("deep", FULL), ("wide", 1), ("comb", FULL / 2)] {
        let mut used = Vec::new();
        for n in [FULL / 2, FULL] {
            // In memory, so that the time is the walk's and not the disk's.
            let tree = tempfile::tempdir_in("/dev/shm").unwrap();
            let last = grow(tree.path(), n, levels.min(n));
            fs::write("/proc/self/clear_refs", "5").unwrap();
            let (before, begun, ran) = (kilobytes(), Instant::now(), ticks());
            relabel(tree.path(), LABEL, &|| false).unwrap();
            used.push((kilobytes() - before, ticks() - ran, begun.elapsed()));
            let mut there = [0; 64];
            let length = fgetxattr(&last, "security.selinux", &mut there).unwrap();
            assert_eq!(
                there[..length],
                *LABEL.as_bytes(),
                "the last one has its label"
            );
            drop(last);
            let top = tree.keep();
            remove_tree_at(&top).unwrap();
        }
        let [half, full] = used[..] else {
            panic!("two runs")
        };
        let growth = half.0.max(full.0);
        note(&format!(
            "{:<22} {shape:<5} {FULL:>7} directories: {:>6.2} s, grew {growth:>5} kB, processor {:>4} ms (half of them: {:>4} ms)",
            "relabel a volume",
            full.2.as_secs_f64(),
            full.1 * 10,
            half.1 * 10
        ));
        assert!(growth < GROWTH_MAX, "{shape}: grew by {growth} kB");
        let bound = half.1 * 5 / 2 + 25;
        assert!(
            full.1 <= bound,
            "{shape}: {} ticks, then {}",
            half.1,
            full.1
        );
    }
}
