//! System calls that no crate wraps safely. All `unsafe` of the monitor's library is here, except
//! one call in `mount_tree.rs` and one in `tail.rs`.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_long, c_void};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use rustix::thread::UnshareFlags;

/// For sched_setattr(2), in the kernel's numbers; times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cpu {
    pub policy: u32,
    pub flags: u64,
    pub nice: i32,
    pub priority: u32,
    pub runtime: u64,
    pub deadline: u64,
    pub period: u64,
}

/// Converts -1 to the last error.
fn check(ret: impl Into<c_long>) -> io::Result<c_long> {
    match ret.into() {
        -1 => Err(io::Error::last_os_error()),
        ret => Ok(ret),
    }
}

/// Calls that take only numbers: whatever their values, the kernel touches none of our memory.
enum Plain {
    CloseRange { first: u32, last: u32, flags: u32 },
    Detach { pid: i32, signal: i32 },
    DupTo { from: RawFd, to: RawFd },
    IoPriority(u32),
    JoinNewSessionKeyring,
    LeaveTerminal(RawFd),
    Unshare(c_int),
}

impl Plain {
    fn call(&self) -> io::Result<c_long> {
        const WHO_PROCESS: c_long = 1;
        const JOIN_SESSION_KEYRING: c_long = 1;
        let [call, first, second, third, fourth] = match *self {
            Plain::CloseRange { first, last, flags } => [
                libc::SYS_close_range,
                first.into(),
                last.into(),
                flags.into(),
                0,
            ],
            Plain::Detach { pid, signal } => [
                libc::SYS_ptrace,
                libc::PTRACE_DETACH.into(),
                pid.into(),
                0,
                signal.into(),
            ],
            Plain::DupTo { from, to } => [libc::SYS_dup3, from.into(), to.into(), 0, 0],
            Plain::IoPriority(value) => [libc::SYS_ioprio_set, WHO_PROCESS, 0, value.into(), 0],
            // Without a name, so that no other process can join this keyring.
            Plain::JoinNewSessionKeyring => [libc::SYS_keyctl, JOIN_SESSION_KEYRING, 0, 0, 0],
            Plain::LeaveTerminal(fd) => {
                let request = libc::TIOCNOTTY as c_long;
                [libc::SYS_ioctl, fd.into(), request, 0, 0]
            }
            Plain::Unshare(flags) => [libc::SYS_unshare, flags.into(), 0, 0, 0],
        };
        // SAFETY: none of these calls takes an address, or it is null; none unshares descriptors.
        check(unsafe { libc::syscall(call, first, second, third, fourth) })
    }
}

pub enum Fork {
    Parent(i32),
    Child,
}

/// Forks by `clone3`, directly into a cgroup v2 directory if given. Fails in a multi-threaded
/// process. The child ends by execve or `exit_now`.
///
/// The child dies with its parent, also after execve, until it changes its user
/// ([`outlive_parent`] ends that too): it may be in none of the container's cgroups yet.
pub fn fork_into(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    /// Positions of `exit_signal` and `cgroup` in the eleven numbers of clone3's argument.
    const EXIT_SIGNAL: usize = 4;
    const CGROUP: usize = 10;
    let mut args = [0u64; 11];
    args[EXIT_SIGNAL] = libc::SIGCHLD as u64;
    if let Some(fd) = cgroup {
        args[0] = INTO_CGROUP;
        args[CGROUP] = fd.as_raw_fd() as u64;
    }
    // Only fails, if there is another thread: it might hold a lock that the child needs.
    Plain::Unshare(libc::CLONE_THREAD).call()?;
    let parent = rustix::process::getpid();
    // SAFETY: args is valid for its size; without CLONE_VM the child has a copy of everything,
    // stack included, and there is no other thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, args.as_mut_ptr(), size_of_val(&args)) };
    let side = side(pid)?;
    if matches!(side, Fork::Child) {
        let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        // A parent that has ended already sends no signal.
        if tied.is_err() || rustix::process::getppid() != Some(parent) {
            exit_now(127);
        }
    }
    Ok(side)
}

/// Ends the tie of [`fork_into`].
pub fn outlive_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(None)?)
}

/// Clones this process as its sibling: a child of its parent, in the pid namespace chosen for
/// children. Returns its pid in the caller's pid namespace.
///
/// # Safety
/// The process has one thread. (A seccomp profile, if loaded, would refuse [`fork_into`]'s check.)
pub unsafe fn fork_sibling() -> io::Result<Fork> {
    // By clone(2): common seccomp profiles refuse clone3, whose flags they cannot see. A sibling's
    // exit signal is always the caller's own.
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: no new stack and no CLONE_VM: the child has a copy of everything, stack included. The
    // order of the unused arguments differs between architectures; all are zero.
    let pid = unsafe { libc::syscall(libc::SYS_clone, c_long::from(flags), 0, 0, 0, 0) };
    side(pid)
}

fn side(pid: c_long) -> io::Result<Fork> {
    Ok(match check(pid)? {
        0 => Fork::Child,
        pid => Fork::Parent(pid as i32),
    })
}

/// Ends the process at once, without destructors or exit handlers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes no pointer and does not return.
    unsafe { libc::_exit(code) }
}

/// Lets a stopped child of this tracer run on, untraced and with this signal.
pub(super) fn detach(pid: i32, signal: i32) -> io::Result<()> {
    Plain::Detach { pid, signal }.call().map(drop)
}

/// Whether a child of this tracer stopped because it executed a program: the kernel sends it SIGTRAP
/// then, as if by kill(2), and only if it is traced.
pub(super) fn has_executed(pid: i32) -> bool {
    // SAFETY: all zeros is a value of the structure. The kernel writes it whole, or fails.
    let (result, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let none = std::ptr::null_mut::<c_void>();
        (
            libc::ptrace(libc::PTRACE_GETSIGINFO, pid, none, &raw mut info),
            info,
        )
    };
    result == 0 && info.si_signo == libc::SIGTRAP && info.si_code == libc::SI_USER
}

/// A process by its number.
pub(super) fn pid(number: i32) -> io::Result<Pid> {
    let positive = Some(number).filter(|n| *n > 0);
    Ok(positive.and_then(Pid::from_raw).ok_or(Errno::SRCH)?)
}

/// A signal by its number, including real-time ones.
pub(super) fn signal(number: i32) -> io::Result<Signal> {
    if !(1..=64).contains(&number) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the kernel knows the number. Signals are sent to containers, not awaited or handled
    // here, so those reserved by our libc are unaffected.
    Ok(unsafe { Signal::from_raw_unchecked(number) })
}

/// Moves to new namespaces of these kinds.
pub fn unshare_namespaces(kinds: UnshareFlags) -> io::Result<()> {
    let namespaces = UnshareFlags::NEWCGROUP
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWTIME
        | UnshareFlags::NEWUSER
        | UnshareFlags::NEWUTS;
    if !namespaces.contains(kinds) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Plain::Unshare(kinds.bits() as c_int).call().map(drop)
}

/// Blocks these signals and waits for one of them.
pub fn wait_signal(signals: &[i32]) -> io::Result<i32> {
    // SAFETY: sigemptyset initialises `set` before anything reads it; the other calls get pointers
    // to it and to `signal`, both alive throughout.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut signal = 0;
        match libc::sigwait(&set, &mut signal) {
            0 => Ok(signal),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Blocks SIGCHLD and returns a descriptor that becomes readable for it.
pub fn child_signal_fd() -> io::Result<OwnedFd> {
    // SAFETY: sigemptyset initialises the set, which outlives the calls; the descriptor is new.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        check(libc::sigprocmask(
            libc::SIG_BLOCK,
            &raw const set,
            std::ptr::null_mut(),
        ))?;
        let fd = check(libc::signalfd(
            -1,
            &raw const set,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        ))?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Resets all signals to unblocked and SIG_DFL, as a new program expects. Uses raw calls: libc
/// reserves signals 32 and 33, and a daemon may have inherited them ignored.
pub fn default_signals() {
    /// The kernel's sigaction: handler (0 is SIG_DFL), flags, restorer, mask; of at least its size.
    const DEFAULT: [u64; 8] = [0; 8];
    const SET: usize = 8;
    // SAFETY: SIG_DFL is not a function of ours; the kernel reads at most this array; signals that
    // cannot be changed fail harmlessly.
    unsafe {
        for signal in 1..=64 {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                DEFAULT.as_ptr(),
                std::ptr::null::<c_void>(),
                SET,
            );
        }
        let none = 0u64;
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            std::ptr::null::<c_void>(),
            SET,
        );
    }
}

/// Gives up the controlling terminal as the session's leader. Ignores the SIGHUP that follows.
pub fn leave_terminal(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: SIG_IGN is not a function of ours.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    Plain::LeaveTerminal(fd.as_raw_fd()).call().map(drop)
}

/// Duplicates `from` to the number `to`, not close-on-exec. Fails if they are equal.
pub fn dup_to(from: RawFd, to: RawFd) -> io::Result<()> {
    Plain::DupTo { from, to }.call().map(drop)
}

/// Closes every descriptor from 3 on except these.
///
/// # Safety
/// The caller is a child about to execve or `exit_now`: no closed descriptor is used or dropped.
pub unsafe fn close_all_but(keep: &mut [RawFd]) {
    keep.sort_unstable();
    let mut first = 3u32;
    for fd in keep.iter().map(|fd| *fd as u32).chain([u32::MAX]) {
        if fd > first {
            let last = if fd == u32::MAX { fd } else { fd - 1 };
            let _ = close_range(first, last, 0); // cannot fail
        }
        first = first.max(fd.saturating_add(1));
    }
}

/// Closes every descriptor.
///
/// # Safety
/// No owner of a descriptor, and none of the first three, is used or dropped afterwards.
pub unsafe fn close_all() {
    let _ = close_range(0, u32::MAX, 0); // cannot fail
}

/// Closes every descriptor from 3 on that could lead to a file: keeps sockets, pipes, and `keep`.
///
/// # Safety
/// The caller is a child that ends by execve or `exit_now`: no closed descriptor is used or
/// dropped.
pub unsafe fn close_all_but_sockets_and_pipes(keep: &[RawFd]) {
    /// The kernel gives out the lowest free number: beyond this many free ones all are unneeded.
    const FREE: RawFd = 128;
    let mut end = keep.iter().copied().max().unwrap_or(2).max(2) + 1 + FREE;
    let mut fd = 3;
    while fd < end {
        // SAFETY: borrowed for fstat, which fails on a closed number; the caller vouches for
        // owners.
        unsafe {
            if let Ok(stat) = fstat(BorrowedFd::borrow_raw(fd)) {
                let stays = matches!(
                    FileType::from_raw_mode(stat.st_mode),
                    FileType::Socket | FileType::Fifo
                );
                if !stays && !keep.contains(&fd) {
                    rustix::io::close(fd);
                }
                end = end.max(fd + 1 + FREE);
            }
        }
        fd += 1;
    }
    let _ = close_range(end as u32, u32::MAX, 0); // cannot fail
}

fn close_range(first: u32, last: u32, flags: u32) -> io::Result<()> {
    Plain::CloseRange { first, last, flags }.call().map(drop)
}

/// Marks every descriptor from `first` on as close-on-exec.
pub fn cloexec_from(first: u32) -> io::Result<()> {
    const CLOEXEC: u32 = 4;
    close_range(first, u32::MAX, CLOEXEC)
}

/// Waits for one of the descriptors, at most `timeout` milliseconds (-1: no limit), or for EINTR.
pub fn poll(fds: &mut [libc::pollfd], timeout: i32) -> io::Result<()> {
    // SAFETY: fds is valid for its length.
    match check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, timeout) }) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
        other => other.map(drop),
    }
}

/// [`poll`] for one descriptor; returns its events.
pub fn poll_one(fd: BorrowedFd<'_>, events: i16, timeout: i32) -> io::Result<i16> {
    let mut fds = [libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    }];
    poll(&mut fds, timeout)?;
    Ok(fds[0].revents)
}

/// ioprio_set(2) of this process.
pub fn set_io_priority(value: u32) -> io::Result<()> {
    Plain::IoPriority(value).call().map(drop)
}

/// sched_setattr(2) of a process; 0 is this one.
pub fn set_scheduler(pid: i32, cpu: &Cpu) -> io::Result<()> {
    /// The first version of the kernel's structure, without utilisation clamps.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const { assert!(size_of::<Attributes>() == 48) };
    let attributes = Attributes {
        size: std::mem::size_of::<Attributes>() as u32,
        policy: cpu.policy,
        flags: cpu.flags,
        nice: cpu.nice,
        priority: cpu.priority,
        runtime: cpu.runtime,
        deadline: cpu.deadline,
        period: cpu.period,
    };
    // SAFETY: the kernel reads `size` bytes, all of them initialised.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, pid, &raw const attributes, 0) })
        .map(drop)
}

/// set_mempolicy(2) of this process; bit n of `nodes` is node n.
pub fn set_memory_policy(mode: u32, nodes: &[u64]) -> io::Result<()> {
    // The kernel uses one bit less than the given length.
    let bits = match nodes.len() {
        0 => 0,
        words => words * 64 + 1,
    };
    let mask = match nodes {
        [] => std::ptr::null(),
        words => words.as_ptr(),
    };
    // SAFETY: null, or an array of the given length.
    check(unsafe { libc::syscall(libc::SYS_set_mempolicy, mode as c_int, mask, bits) }).map(drop)
}

/// Gives this process and its children a session keyring of their own: they can neither read nor
/// keep alive the keys of their starter.
pub fn own_session_keyring() -> io::Result<()> {
    match Plain::JoinNewSessionKeyring.call() {
        // The kernel has no keyrings, or an outer container forbids them.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
        other => other.map(drop),
    }
}

/// Loads a seccomp filter: classic BPF, eight bytes per instruction.
pub fn load_filter(program: &[libc::sock_filter], flags: u32) -> io::Result<()> {
    let fprog = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads `len` instructions from `filter`, which outlives the call.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const fprog,
        )
    };
    check(ret).map(drop)
}

/// Pointers for execve, built before the process is confined.
pub struct ExecVector {
    _owned: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl ExecVector {
    /// Fails on an item that contains NUL.
    pub fn new(items: &[Vec<u8>]) -> Result<ExecVector, std::ffi::NulError> {
        let owned = items
            .iter()
            .map(|i| CString::new(i.as_slice()))
            .collect::<Result<Vec<_>, _>>()?;
        let pointers = owned
            .iter()
            .map(|c| c.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        Ok(ExecVector {
            _owned: owned,
            pointers,
        })
    }
}

/// Returns only with an error.
pub fn execve(path: &CStr, argv: &ExecVector, env: &ExecVector) -> io::Error {
    // SAFETY: both arrays end with null and point to C strings that their owners keep alive.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), env.pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Children of tests.
#[cfg(test)]
pub(crate) mod children {
    use super::{check, exit_now};

    /// Forks a test with its threads. `run` makes only system calls: other threads may own locks.
    pub(crate) fn fork(run: impl FnOnce()) -> i32 {
        // SAFETY: the child has a copy of everything, makes only system calls, and ends.
        match unsafe { libc::fork() } {
            0 => {
                run();
                exit_now(99)
            }
            pid => check(pid).unwrap() as i32,
        }
    }

    /// Makes the parent, the thread that forked this process, its tracer.
    pub(in crate::sys) fn trace_me() {
        // SAFETY: this request takes no address.
        if unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } == -1 {
            exit_now(98);
        }
    }
}
