//! System calls as safe functions. All `unsafe` of the monitor's library is here.
//!
//! The callers are single-threaded processes (monitor, `cairn-create`, their children before execve); what needs
//! that is an `unsafe fn` and says so. The daemon uses nothing from this module.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_long, c_void};

use crate::scheduling::Cpu;

/// -1 is the last error.
fn check(ret: c_int) -> io::Result<c_int> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}

fn check_long(ret: c_long) -> io::Result<c_long> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}

/// Which side of a fork this is.
pub enum Fork {
    Parent(i32),
    Child,
}

/// `clone3` like fork, the child straight in a cgroup v2 directory if one is given.
///
/// # Safety
/// The process has one thread, so that no lock is held by a thread that the child does not have. The child ends by
/// execve or `exit_now`.
pub unsafe fn fork_into(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: plain old data, zero is a valid value for each field.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(fd) = cgroup {
        args.flags = INTO_CGROUP;
        args.cgroup = fd.as_raw_fd() as u64;
    }
    // SAFETY: args is valid for its size; without CLONE_VM the child has a copy of everything, stack included.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut args,
            std::mem::size_of::<libc::clone_args>(),
        )
    };
    match check_long(pid)? {
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid as i32)),
    }
}

/// Ends the process without running anything of it.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes no pointer and does not return.
    unsafe { libc::_exit(code) }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Exit code, or 128 + signal.
    pub code: i32,
    pub signal: i32,
}

/// Reaps one ended child, if there is any.
pub fn reap() -> Option<(i32, Status)> {
    let mut raw = 0;
    // SAFETY: raw outlives the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut raw, libc::WNOHANG) };
    if pid <= 0 {
        return None;
    }
    let status = if libc::WIFSIGNALED(raw) {
        let signal = libc::WTERMSIG(raw);
        Status {
            code: 128 + signal,
            signal,
        }
    } else {
        Status {
            code: libc::WEXITSTATUS(raw),
            signal: 0,
        }
    };
    Some((pid, status))
}

fn own(fd: c_long) -> OwnedFd {
    // SAFETY: the kernel just gave out this descriptor; nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    Ok(own(check_long(unsafe {
        libc::syscall(libc::SYS_pidfd_open, pid, 0)
    })?))
}

pub fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null siginfo is allowed and means what kill(2) would send.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<c_void>(),
            0,
        )
    };
    check_long(ret).map(drop)
}

pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

pub fn setns(fd: BorrowedFd<'_>, kinds: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setns(fd.as_raw_fd(), kinds) }).map(drop)
}

pub fn unshare(kinds: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::unshare(kinds) }).map(drop)
}

/// prctl with one number.
pub fn prctl(option: c_int, value: u64) -> io::Result<()> {
    // SAFETY: only used with options whose argument is a number.
    check(unsafe { libc::prctl(option, value, 0u64, 0u64, 0u64) }).map(drop)
}

/// Blocks these signals and waits for one of them.
pub fn wait_signal(signals: &[i32]) -> io::Result<i32> {
    // SAFETY: `set` is a plain value that sigemptyset initialises before anything reads it; the other calls get
    // pointers to it and to `signal`, both alive throughout.
    #[allow(unsafe_code)]
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

/// Blocks SIGCHLD and returns a descriptor that tells of it.
pub fn child_signal_fd() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before use and outlives the calls.
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
        Ok(own(fd as c_long))
    }
}

/// Nothing blocked, nothing ignored or handled: what a new program expects. By raw calls: libc keeps signals 32 and 33
/// to itself, and a daemon may have inherited them ignored.
pub fn default_signals() {
    /// The kernel's sigaction: handler (0 is SIG_DFL), flags, restorer, mask. Larger than any architecture's.
    const DEFAULT: [u64; 8] = [0; 8];
    const SET: usize = 8;
    // SAFETY: SIG_DFL is no function of ours; the kernel reads at most what is there; signals that cannot be changed
    // fail harmlessly.
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

pub fn setsid() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setsid() }).map(drop)
}

/// A pipe, both ends close-on-exec and blocking: `(read, write)`.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: two descriptors fit.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok((own(fds[0].into()), own(fds[1].into())))
}

/// A socket pair that keeps message boundaries.
pub fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: two descriptors fit.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    Ok((own(fds[0].into()), own(fds[1].into())))
}

pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: FIONBIO reads one int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONBIO, &raw const on) }).map(drop)
}

pub fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: buf is valid for its length.
    let n = unsafe { libc::read(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) };
    check_long(n as c_long).map(|n| n as usize)
}

pub fn write(fd: BorrowedFd<'_>, buf: &[u8]) -> io::Result<usize> {
    // SAFETY: buf is valid for its length.
    let n = unsafe { libc::write(fd.as_raw_fd(), buf.as_ptr().cast(), buf.len()) };
    check_long(n as c_long).map(|n| n as usize)
}

/// dup2: `to` is no longer close-on-exec.
pub fn dup_to(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::dup2(from, to) }).map(drop)
}

/// A duplicate that is at least `lowest`, close-on-exec.
pub fn dup_above(fd: BorrowedFd<'_>, lowest: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let n = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) })?;
    Ok(own(n.into()))
}

/// Closes every descriptor from 3 on but these.
///
/// # Safety
/// Nothing that owns one of the closed is used or dropped afterwards: the caller is a child about to execve or
/// `exit_now`.
pub unsafe fn close_all_but(keep: &mut [RawFd]) {
    keep.sort_unstable();
    let mut first = 3u32;
    for fd in keep.iter().map(|fd| *fd as u32).chain([u32::MAX]) {
        if fd > first {
            let last = if fd == u32::MAX { fd } else { fd - 1 };
            // SAFETY: no pointers; the caller vouches for the owners.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        first = first.max(fd.saturating_add(1));
    }
}

/// Marks every descriptor from `first` on close-on-exec.
pub fn cloexec_from(first: u32) -> io::Result<()> {
    const CLOEXEC: u32 = 4;
    // SAFETY: no pointers; nothing is closed now.
    check_long(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOEXEC) }).map(drop)
}

/// Sends bytes, and descriptors with their first byte. Returns how many bytes went.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    const SPACE: usize = 64;
    #[repr(align(8))]
    struct Control([u8; SPACE]);
    let mut control = Control([0; SPACE]);
    let mut iov = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: zero is valid for msghdr; every pointer set here outlives sendmsg; the control buffer is aligned and
    // holds CMSG_SPACE of up to 4 descriptors (asserted).
    unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        let size = std::mem::size_of_val(fds);
        if !fds.is_empty() {
            let space = libc::CMSG_SPACE(size as u32) as usize;
            assert!(space <= SPACE);
            msg.msg_control = control.0.as_mut_ptr().cast();
            msg.msg_controllen = space as _;
            let header = libc::CMSG_FIRSTHDR(&raw const msg);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size as u32) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), size);
        }
        let n = libc::sendmsg(fd.as_raw_fd(), &raw const msg, libc::MSG_NOSIGNAL);
        check_long(n as c_long).map(|n| n as usize)
    }
}

/// Receives bytes and at most one descriptor.
pub fn receive_fd(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    #[repr(align(8))]
    struct Control([u8; 64]);
    let mut control = Control([0; 64]);
    let mut iov = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    // SAFETY: as in `send`; a received descriptor is read out of a complete SCM_RIGHTS message and owned from here.
    // Room is for several, MSG_CTRUNC closes what does not fit; further ones in the room are closed below.
    unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.0.as_mut_ptr().cast();
        msg.msg_controllen = 64;
        let n = check_long(
            libc::recvmsg(fd.as_raw_fd(), &raw mut msg, libc::MSG_CMSG_CLOEXEC) as c_long,
        )?;
        let mut first = None;
        let mut header = libc::CMSG_FIRSTHDR(&raw const msg);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for i in 0..bytes / 4 {
                    let raw = libc::CMSG_DATA(header)
                        .cast::<RawFd>()
                        .add(i)
                        .read_unaligned();
                    let owned = own(raw.into());
                    first.get_or_insert(owned);
                }
            }
            header = libc::CMSG_NXTHDR(&raw const msg, header);
        }
        Ok((n as usize, first))
    }
}

/// Waits for one of the descriptors, at most `timeout` milliseconds (-1: for ever). EINTR is no error.
pub fn poll(fds: &mut [libc::pollfd], timeout: i32) -> io::Result<()> {
    // SAFETY: fds is valid for its length.
    match check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, timeout) }) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
        other => other.map(drop),
    }
}

/// Window size of a terminal.
pub fn set_window(fd: BorrowedFd<'_>, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCSWINSZ reads one winsize.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Opens the container's `/dev/pts/ptmx` (we are inside): `(master, slave)`. Anything but a real devpts is refused.
pub fn open_pty() -> io::Result<(OwnedFd, OwnedFd)> {
    const DEVPTS: i64 = 0x1cd1;
    let flags =
        libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // SAFETY: the path is a C string; statfs is written by the kernel before it is read; TIOCSPTLCK reads one int;
    // TIOCGPTPEER takes flags and returns a new descriptor.
    unsafe {
        let master = own(check(libc::open(c"/dev/pts/ptmx".as_ptr(), flags))?.into());
        let mut stat: libc::statfs = std::mem::zeroed();
        check(libc::fstatfs(master.as_raw_fd(), &raw mut stat))?;
        if stat.f_type as i64 != DEVPTS {
            return Err(io::Error::other("/dev/pts is no devpts"));
        }
        let unlock: c_int = 0;
        check(libc::ioctl(
            master.as_raw_fd(),
            libc::TIOCSPTLCK,
            &raw const unlock,
        ))?;
        let peer_flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        let slave = own(check(libc::ioctl(
            master.as_raw_fd(),
            libc::TIOCGPTPEER,
            peer_flags,
        ))?
        .into());
        Ok((master, slave))
    }
}

/// Makes a terminal the controlling one of this session.
pub fn take_terminal(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSCTTY, 0) }).map(drop)
}

pub fn set_limit(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: reads one rlimit.
    check(unsafe { libc::setrlimit(resource as _, &raw const limit) }).map(drop)
}

pub fn limit(resource: u32) -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes one rlimit.
    check(unsafe { libc::getrlimit(resource as _, &raw mut limit) })?;
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// A file in memory with these bytes, at its start. Closed by execve.
pub fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    use std::io::{Seek, Write};
    // SAFETY: a C string.
    let fd = check(unsafe { libc::memfd_create(c"cairn".as_ptr(), libc::MFD_CLOEXEC) })?;
    let mut file = std::fs::File::from(own(fd.into()));
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// ioprio_set(2) of this process.
pub fn set_io_priority(value: u32) -> io::Result<()> {
    const WHO_PROCESS: c_int = 1;
    // SAFETY: no pointers.
    check_long(unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, value as c_int) })
        .map(drop)
}

/// sched_setattr(2) of this process.
pub fn set_scheduler(cpu: &Cpu) -> io::Result<()> {
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
    check_long(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
        .map(drop)
}

/// set_mempolicy(2) of this process; bit n of `nodes` is node n.
pub fn set_memory_policy(mode: u32, nodes: &[u64]) -> io::Result<()> {
    // The kernel takes one bit less than it is told.
    let bits = match nodes.len() {
        0 => 0,
        words => words * 64 + 1,
    };
    let mask = match nodes {
        [] => std::ptr::null(),
        words => words.as_ptr(),
    };
    // SAFETY: null, or an array of the length that is told.
    check_long(unsafe { libc::syscall(libc::SYS_set_mempolicy, mode as c_int, mask, bits) })
        .map(drop)
}

pub fn umask(mask: u32) {
    // SAFETY: no pointers.
    unsafe { libc::umask(mask as libc::mode_t) };
}

/// Raw system calls: libc's would signal threads this process does not have.
pub fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: groups is valid for its length.
    check_long(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })
        .map(drop)
}

pub fn set_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: no pointers.
    check_long(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: no pointers.
    check_long(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }).map(drop)
}

/// Gives a descriptor's file to a user; the group stays.
pub fn chown_fd(fd: RawFd, uid: u32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::fchown(fd, uid, u32::MAX) }).map(drop)
}

/// What a descriptor points to: `(owner, device number if it is a character device)`.
pub fn stat_fd(fd: RawFd) -> io::Result<(u32, Option<u64>)> {
    // SAFETY: zero is valid; written by the kernel before it is read.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        check(libc::fstat(fd, &raw mut stat))?;
        let device = (stat.st_mode & libc::S_IFMT == libc::S_IFCHR).then_some(stat.st_rdev);
        Ok((stat.st_uid, device))
    }
}

pub fn chdir(path: &CStr) -> io::Result<()> {
    // SAFETY: a C string.
    check(unsafe { libc::chdir(path.as_ptr()) }).map(drop)
}

/// Permitted capabilities of this process.
pub fn permitted() -> io::Result<u64> {
    let header = CapHeader {
        version: CAP_V3,
        pid: 0,
    };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 writes two data words.
    check_long(unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) })?;
    Ok(u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32)
}

const CAP_V3: u32 = 0x2008_0522;

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

pub fn set_capabilities(effective: u64, permitted: u64, inheritable: u64) -> io::Result<()> {
    let header = CapHeader {
        version: CAP_V3,
        pid: 0,
    };
    let half = |shift: u32| CapData {
        effective: (effective >> shift) as u32,
        permitted: (permitted >> shift) as u32,
        inheritable: (inheritable >> shift) as u32,
    };
    let data = [half(0), half(32)];
    // SAFETY: version 3 reads two data words.
    check_long(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) })
        .map(drop)
}

/// Drops one capability from the bounding set. `Ok(false)`: the kernel knows no such capability.
pub fn drop_bounding(cap: u32) -> io::Result<bool> {
    match prctl(libc::PR_CAPBSET_DROP, cap.into()) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        other => other.map(|()| true),
    }
}

/// Clears the ambient set and raises these.
pub fn set_ambient(caps: u64) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    })?;
    for cap in (0..64u64).filter(|c| caps >> c & 1 == 1) {
        // SAFETY: numbers only.
        check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, cap, 0, 0) })?;
    }
    Ok(())
}

/// Loads a seccomp filter: classic BPF, eight bytes an instruction.
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
    check_long(ret).map(drop)
}

/// Pointers for execve, made before anything is confined.
pub struct ExecVector {
    _owned: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl ExecVector {
    /// Fails on an item with a NUL inside.
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
