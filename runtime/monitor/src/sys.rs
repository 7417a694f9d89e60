//! System calls of single-threaded processes: the monitor, `cairn-create` and their children before
//! execve. `rustix` makes most; `raw` has the rest and all `unsafe`. The daemon uses none of them.

mod raw;
mod wait;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{PidfdFlags, Resource, Rlimit};
use rustix::pty::OpenptFlags;
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, LinkNameSpaceType, ThreadNameSpaceType, Uid,
};

#[cfg(test)]
pub(crate) use raw::children;
use raw::pid;
pub use raw::{
    Cpu, ExecVector, Fork, child_signal_fd, cloexec_from, close_all, close_all_but,
    close_all_but_sockets_and_pipes, default_signals, dup_to, execve, exit_now, fork_into,
    fork_sibling, leave_terminal, load_filter, outlive_parent, own_session_keyring, poll, poll_one,
    set_io_priority, set_memory_policy, set_scheduler, unshare_namespaces, wait_signal,
};
pub use wait::{Reaped, Status, is_child, reap, reap_all, reap_child};

pub fn pidfd_open(process: i32) -> io::Result<OwnedFd> {
    Ok(rustix::process::pidfd_open(
        pid(process)?,
        PidfdFlags::empty(),
    )?)
}

pub fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    Ok(rustix::process::pidfd_send_signal(
        pidfd,
        raw::signal(signal)?,
    )?)
}

/// The CPU time of this thread.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// An unpredictable number.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // Up to 256 bytes come in one call, and signals do not interrupt it.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

pub fn kill(process: i32, signal: i32) -> io::Result<()> {
    Ok(rustix::process::kill_process(
        pid(process)?,
        raw::signal(signal)?,
    )?)
}

/// Joins namespaces of a process; a pid namespace applies to later children.
pub fn join_namespaces(pidfd: BorrowedFd<'_>, kinds: ThreadNameSpaceType) -> io::Result<()> {
    Ok(rustix::thread::move_into_thread_name_spaces(pidfd, kinds)?)
}

/// Chooses the pid namespace of later children.
pub fn choose_pid_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::ProcessID);
    Ok(rustix::thread::move_into_link_name_space(namespace, kind)?)
}

/// Protects our memory from a container's processes and from core dumps.
pub fn forbid_dumps() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(
        rustix::process::DumpableBehavior::NotDumpable,
    )?)
}

/// Makes orphans of our descendants our children.
pub fn become_subreaper() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(
        rustix::process::getpid(),
    ))?)
}

pub fn setsid() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// A pipe, both ends close-on-exec and blocking: `(read, write)`.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// A socket pair that keeps message boundaries.
pub fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}

/// The number of bytes ready to read from a pipe or a terminal.
pub fn unread(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::io::ioctl_fionread(fd)?)
}

pub fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    Ok(retry_on_intr(|| rustix::io::read(fd, &mut *buf))?)
}

pub fn write(fd: BorrowedFd<'_>, buf: &[u8]) -> io::Result<usize> {
    Ok(retry_on_intr(|| rustix::io::write(fd, buf))?)
}

/// Duplicates a descriptor to a number of at least `lowest`, close-on-exec.
pub fn dup_above(fd: BorrowedFd<'_>, lowest: RawFd) -> io::Result<OwnedFd> {
    match rustix::io::fcntl_dupfd_cloexec(fd, lowest) {
        // The limit of open files is lower than `lowest`; EINVAL would mislead.
        Err(Errno::INVAL) => Err(Errno::MFILE.into()),
        other => Ok(other?),
    }
}

/// Limit of descriptors per message.
const PASSED: usize = 4;

/// Sends bytes, and up to [`PASSED`] descriptors with the first one. Returns the bytes sent.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds));
    assert!(fits, "{} descriptors with one message", fds.len());
    let bytes = [io::IoSlice::new(bytes)];
    Ok(rustix::net::sendmsg(
        fd,
        &bytes,
        &mut control,
        SendFlags::NOSIGNAL,
    )?)
}

/// Receives bytes and at most one descriptor; further ones are closed.
pub fn receive_fd(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buf = [io::IoSliceMut::new(buf)];
    let received = rustix::net::recvmsg(fd, &mut buf, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    Ok((received.bytes, fds.next()))
}

/// Passes the pid of each sender with its messages to this socket.
pub fn pass_pids(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(fd, true)?)
}

/// Waits for a message, and returns its sender's pid as this process sees it. `None`: the socket has
/// been closed. Needs [`pass_pids`].
pub fn receive_pid(fd: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut buf = [io::IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| rustix::net::recvmsg(fd, &mut buf, &mut control, flags))?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let sender = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid.as_raw_pid()),
        _ => None,
    });
    Ok(sender)
}

pub fn set_window(fd: BorrowedFd<'_>, columns: u16, rows: u16) -> io::Result<()> {
    let size = rustix::termios::Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(rustix::termios::tcsetwinsize(fd, size)?)
}

/// Opens the container's `/dev/pts/ptmx` from inside: `(master, slave)`. Fails without a devpts.
pub fn open_pty() -> io::Result<(OwnedFd, OwnedFd)> {
    const DEVPTS: i64 = 0x1cd1;
    let flags =
        OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let master = rustix::fs::open(c"/dev/pts/ptmx", flags, Mode::empty())?;
    if rustix::fs::fstatfs(&master)?.f_type as i64 != DEVPTS {
        return Err(io::Error::other("/dev/pts is not a devpts"));
    }
    rustix::pty::unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    Ok((master, slave))
}

/// Makes a terminal the controlling terminal of this session.
pub fn take_terminal(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::process::ioctl_tiocsctty(fd)?)
}

/// All limits of the kernel.
const RESOURCES: [Resource; 16] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

fn resource(number: u32) -> io::Result<Resource> {
    let found = RESOURCES.into_iter().find(|r| *r as u32 == number);
    Ok(found.ok_or(Errno::INVAL)?)
}

/// `u64::MAX` is the kernel's infinity.
pub fn set_limit(number: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = Rlimit {
        current: Some(soft),
        maximum: Some(hard),
    };
    Ok(rustix::process::setrlimit(resource(number)?, limit)?)
}

/// `(soft, hard)`
pub fn limit(number: u32) -> io::Result<(u64, u64)> {
    let limit = rustix::process::getrlimit(resource(number)?);
    Ok((
        limit.current.unwrap_or(u64::MAX),
        limit.maximum.unwrap_or(u64::MAX),
    ))
}

/// Makes a file in memory with these bytes, positioned at its start. Closed by execve.
pub fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    use std::io::{Seek, Write};
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create(c"cairn", flags)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Creates an empty file that only its owner can open.
pub fn create_private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)
}

pub fn umask(mask: u32) {
    rustix::process::umask(Mode::from_raw_mode(mask));
}

/// Changes this thread only: the process has no other.
pub fn set_groups(groups: &[u32]) -> io::Result<()> {
    let groups: Vec<Gid> = groups.iter().map(|g| Gid::from_raw(*g)).collect();
    Ok(rustix::thread::set_thread_groups(&groups)?)
}

pub fn set_ids(uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

/// Gives a descriptor's file to a user; the group stays.
pub fn chown_fd(fd: BorrowedFd<'_>, uid: u32) -> io::Result<()> {
    Ok(rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), None)?)
}

/// Returns `(owner, device number if it is a character device)`.
pub fn stat_fd(fd: BorrowedFd<'_>) -> io::Result<(u32, Option<u64>)> {
    let stat = rustix::fs::fstat(fd)?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    Ok((stat.st_uid, is_device.then_some(stat.st_rdev)))
}

/// openat2(2), always close-on-exec.
pub fn open_at(
    dir: BorrowedFd<'_>,
    path: &CStr,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(
        dir,
        path,
        flags,
        Mode::empty(),
        resolve,
    )?)
}

/// Opens the root directory of this process as a base for lookups.
pub fn open_root() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(c"/", flags, Mode::empty())?)
}

/// Makes one directory; `name` must not contain a slash.
pub fn make_directory_at(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode))?)
}

/// Makes an empty file; fails if the name exists. `name` must not contain a slash.
pub fn make_file_at(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(mode))?;
    Ok(())
}

pub fn file_type(fd: BorrowedFd<'_>) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

/// The id of the mount that an open file is in, as in `mountinfo`.
pub fn mount_id(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let wanted = rustix::fs::StatxFlags::from_bits_retain(libc::STATX_MNT_ID);
    let stat = rustix::fs::statx(fd, c"", rustix::fs::AtFlags::EMPTY_PATH, wanted)?;
    if stat.stx_mask & libc::STATX_MNT_ID == 0 {
        return Err(Errno::NOSYS.into());
    }
    Ok(stat.stx_mnt_id)
}

pub fn enter_directory(dir: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::process::fchdir(dir)?)
}

/// Whether the working directory is below this process's root: only then the kernel's name for it
/// begins with `/`. libc's getcwd hides this.
pub fn working_directory_is_below_root() -> io::Result<bool> {
    let path = rustix::process::getcwd(Vec::new())?;
    Ok(path.as_bytes().starts_with(b"/"))
}

pub fn permitted() -> io::Result<u64> {
    Ok(rustix::thread::capabilities(None)?.permitted.bits())
}

pub fn set_capabilities(effective: u64, permitted: u64, inheritable: u64) -> io::Result<()> {
    let sets = CapabilitySets {
        effective: CapabilitySet::from_bits_retain(effective),
        permitted: CapabilitySet::from_bits_retain(permitted),
        inheritable: CapabilitySet::from_bits_retain(inheritable),
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Drops one capability from the bounding set. `Ok(false)`: unknown to the kernel.
pub fn drop_bounding(cap: u32) -> io::Result<bool> {
    let cap = CapabilitySet::from_bits_retain(1 << cap);
    match rustix::thread::remove_capability_from_bounding_set(cap) {
        Err(Errno::INVAL) => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

/// Clears the ambient set and raises these.
pub fn set_ambient(caps: u64) -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    for cap in (0..64u64).filter(|c| caps >> c & 1 == 1) {
        let cap = CapabilitySet::from_bits_retain(1 << cap);
        rustix::thread::configure_capability_in_ambient_set(cap, true)?;
    }
    Ok(())
}
