//! Shuts the unpack helper in, before it reads the first byte of a layer.
//!
//! What is left to it: its three streams, its directory as its root, and the system calls that work on files and memory; for
//! a layer also the six capabilities by which files of other owners and kinds are made, and the calls that make trees. It
//! starts no process, reaches no network, and is as good a victim for the OOM killer as anybody.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// Address space of the helper: two zstd windows, and room for long lists of directories.
const MEMORY_MAX: u64 = 768 << 20;
/// Descriptors at a time: a few streams, and two directories.
const FILES_MAX: u64 = 64;
/// The first of the ids of helpers: of no account, no container and no range of either. A user of 65534 is many.
const HELPERS: u32 = 0x7a00_0000;

/// What the helper may do in its directory.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Rights {
    /// Make trees of any owner and kind.
    Trees,
    /// Make, write and read files of its own.
    OwnFiles,
}

/// Shuts the process in; what it can reach afterwards is its directory and its three streams. No file grows beyond `bytes`.
pub(super) fn confine(dir: &Path, bytes: u64, rights: Rights) -> io::Result<OwnedFd> {
    // Raising it is allowed to everybody; the daemon's protection is its own.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    let limits = [
        (Resource::As, MEMORY_MAX),
        (Resource::Core, 0),
        (Resource::Fsize, bytes),
        (Resource::Nofile, FILES_MAX),
        (Resource::Nproc, 0),
    ];
    for (resource, max) in limits {
        let limit = Rlimit {
            current: Some(max),
            maximum: Some(max),
        };
        rustix::process::setrlimit(resource, limit)?;
    }
    let id = own_id()?;
    rustix::process::umask(rustix::fs::Mode::empty());
    leave_network()?;
    rustix::process::chroot(dir)?;
    rustix::process::chdir("/")?;
    let keep = match rights {
        Rights::Trees => {
            CapabilitySet::CHOWN
                | CapabilitySet::DAC_OVERRIDE
                | CapabilitySet::FOWNER
                | CapabilitySet::FSETID
                | CapabilitySet::MKNOD
                | CapabilitySet::SETFCAP
        }
        Rights::OwnFiles => {
            std::os::unix::fs::chown("/", Some(id), Some(id))?;
            CapabilitySet::empty()
        }
    };
    drop_to(id, keep)?;
    // Another user's processes are undumpable by themselves, unless the host's fs.suid_dumpable says otherwise.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let root = File::open("/")?.into();
    seccompiler::apply_filter(&filter(rights).map_err(io::Error::other)?)
        .map_err(io::Error::other)?;
    Ok(root)
}

/// An id that no other process has, which could send signals or set limits.
fn own_id() -> io::Result<u32> {
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random[1..], rustix::rand::GetRandomFlags::empty())?;
    Ok(HELPERS | u32::from_be_bytes(random))
}

/// A network namespace with nothing in it: no address to reach, no abstract socket to find.
#[expect(
    deprecated,
    reason = "the successor is unsafe for CLONE_FILES, which is not asked for here"
)]
fn leave_network() -> io::Result<()> {
    Ok(rustix::thread::unshare(
        rustix::thread::UnshareFlags::NEWNET,
    )?)
}

fn drop_to(id: u32, keep: CapabilitySet) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    rustix::thread::set_keep_capabilities(true)?;
    rustix::thread::set_thread_groups(&[])?;
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: keep,
        permitted: keep,
        inheritable: none,
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// What makes trees of files of any kind, and works on paths in them.
const TREES: &[i64] = &[
    libc::SYS_fchdir,
    libc::SYS_getcwd,
    libc::SYS_openat2,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_umask,
];

/// What works on open files and opens them; memory; the end.
const CALLS: &[i64] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_openat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_ftruncate,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    // Memory, and what a runtime does by itself.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// All but these calls fails with EPERM.
fn filter(rights: Rights) -> Result<BpfProgram, String> {
    let arch: TargetArch = std::env::consts::ARCH
        .try_into()
        .map_err(|e| format!("seccomp: {e}"))?;
    let trees = if rights == Rights::Trees { TREES } else { &[] };
    let calls = CALLS.iter().chain(trees);
    let rules: BTreeMap<i64, Vec<_>> = calls.map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch)
        .and_then(TryInto::try_into)
        .map_err(|e| format!("seccomp: {e}"))
}
