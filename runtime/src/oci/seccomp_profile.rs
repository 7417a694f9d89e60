//! The RuntimeDefault seccomp profile as data: calls allowed to every process, by capability, and
//! with certain arguments only. All other calls fail with EPERM.
//!
//! The rules are those that container runtimes share: a call that the kernel guards by a capability
//! requires that capability; calls that escape, spy or reconfigure the kernel are left out. A name
//! unknown to the kernel or to libseccomp is skipped when the filter is compiled.
//!
//! Compared on 2026-11-28 with containerd (contrib/seccomp, 301026e5 of 2026-08-22) and moby
//! (moby/profiles, cd3bed80 of 2026-06-30). Both refuse AF_ALG and AF_VSOCK in `socket`. Stricter
//! than both: `socket` ignores the upper half of its argument, as the kernel does, and `socketcall`
//! is refused. moby refused `socketcall` from 2026-04 to 2026-05, and took that back because 32-bit
//! programs of Go and of old C libraries have no other way to a socket.

/// Files and directories by name or descriptor.
const FILES: &str = "access chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 \
    dup3 faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat \
    fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fremovexattr \
    fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futimesat getcwd \
    getdents getdents64 getxattr getxattrat inotify_add_watch inotify_init inotify_init1 \
    inotify_rm_watch ioctl lchown lchown32 lgetxattr link linkat listmount listxattr listxattrat \
    llistxattr _llseek lremovexattr lseek lsetxattr lstat lstat64 mkdir mkdirat mknod mknodat \
    name_to_handle_at newfstatat open openat openat2 pipe pipe2 pread64 preadv preadv2 pwrite64 \
    pwritev pwritev2 read readahead readlink readlinkat readv removexattr removexattrat rename \
    renameat renameat2 rmdir sendfile sendfile64 setxattr setxattrat splice stat stat64 statfs \
    statfs64 statmount statx symlink symlinkat sync sync_file_range syncfs tee truncate truncate64 \
    umask unlink unlinkat utime utimensat utimensat_time64 utimes vmsplice write writev";

/// Waiting for descriptors, and asynchronous input and output (not io_uring).
const WAITING: &str = "epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 \
    epoll_wait epoll_wait_old eventfd eventfd2 io_cancel io_destroy io_getevents io_pgetevents \
    io_pgetevents_time64 io_setup io_submit _newselect poll ppoll ppoll_time64 pselect6 \
    pselect6_time64 select signalfd signalfd4";

const MEMORY: &str = "brk cachestat madvise map_shadow_stack membarrier memfd_create memfd_secret mincore \
    mlock mlock2 mlockall mmap mmap2 mprotect mremap mseal msync munlock munlockall munmap pkey_alloc \
    pkey_free pkey_mprotect remap_file_pages";

/// Processes and threads. `clone` and `clone3` have rules of their own.
const PROCESSES: &str = "capget capset execve execveat exit exit_group fork futex futex_requeue \
    futex_time64 futex_wait futex_waitv futex_wake getcpu getpgid getpgrp getpid getppid getpriority \
    getrlimit get_robust_list getrusage getsid get_thread_area gettid ioprio_get ioprio_set \
    landlock_add_rule landlock_create_ruleset landlock_restrict_self pidfd_open prctl prlimit64 \
    process_mrelease rseq sched_getaffinity sched_getattr sched_getparam sched_get_priority_max \
    sched_get_priority_min sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 \
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp setpgid \
    setpriority setrlimit set_robust_list setsid set_thread_area set_tid_address sysinfo times \
    ugetrlimit uname uretprobe vfork wait4 waitid waitpid process_vm_readv process_vm_writev ptrace";

const SIGNALS: &str = "kill pause pidfd_send_signal restart_syscall rt_sigaction rt_sigpending \
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 \
    rt_tgsigqueueinfo sigaltstack sigprocmask sigreturn tgkill tkill";

/// Clocks and timers. The kernel guards `adjtimex`; other calls that set a clock are left out.
const TIME: &str = "adjtimex alarm clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 \
    clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64 getitimer gettimeofday \
    nanosleep setitimer time timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 \
    timer_settime timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime \
    timerfd_settime64";

/// Sockets; `socket` and `socketcall` have rules of their own.
const SOCKETS: &str = "accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom \
    recvmmsg recvmmsg_time64 recvmsg send sendmmsg sendmsg sendto setsockopt shutdown socketpair";

const IPC: &str = "ipc mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend \
    mq_timedsend_time64 mq_unlink msgctl msgget msgrcv msgsnd semctl semget semop semtimedop \
    semtimedop_time64 shmat shmctl shmdt shmget";

/// Ids; the kernel checks CAP_SETUID and CAP_SETGID.
const IDENTITY: &str = "getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getrandom \
    getresgid getresgid32 getresuid getresuid32 getuid getuid32 setfsgid setfsgid32 setfsuid setfsuid32 \
    setgid setgid32 setgroups setgroups32 setregid setregid32 setresgid setresgid32 setresuid \
    setresuid32 setreuid setreuid32 setuid setuid32";

/// Always allowed.
pub(super) const ALWAYS: &[&str] = &[
    FILES, WAITING, MEMORY, PROCESSES, SIGNALS, TIME, SOCKETS, IPC, IDENTITY,
];

/// Allowed with the capability.
pub(super) const BY_CAPABILITY: &[(&str, &str)] = &[
    ("DAC_READ_SEARCH", "open_by_handle_at"),
    (
        "SYS_ADMIN",
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie \
         lsm_get_self_attr lsm_list_modules lsm_set_self_attr mount mount_setattr move_mount open_tree \
         perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount umount2 \
         unshare",
    ),
    ("SYS_BOOT", "reboot"),
    ("SYS_CHROOT", "chroot"),
    ("SYS_MODULE", "delete_module finit_module init_module"),
    ("SYS_PACCT", "acct"),
    ("SYS_PTRACE", "kcmp pidfd_getfd process_madvise"),
    ("SYS_RAWIO", "ioperm iopl"),
    (
        "SYS_TIME",
        "clock_settime clock_settime64 settimeofday stime",
    ),
    ("SYS_TTY_CONFIG", "vhangup"),
    (
        "SYS_NICE",
        "get_mempolicy mbind set_mempolicy set_mempolicy_home_node",
    ),
    ("SYSLOG", "syslog"),
    ("BPF", "bpf"),
    ("PERFMON", "perf_event_open"),
];

/// Allowed on one family of processors.
pub(super) fn of_architecture(arch: &str) -> &'static str {
    match arch {
        "x86_64" | "x86" => "arch_prctl modify_ldt",
        "aarch64" | "arm" => {
            "arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls sync_file_range2"
        }
        "powerpc64" => "swapcontext sync_file_range2",
        "riscv64" => "riscv_flush_icache riscv_hwprobe",
        "s390x" => "s390_pci_mmio_read s390_pci_mmio_write s390_runtime_instr",
        _ => "",
    }
}

/// Values of `personality`: Linux, Linux32, with or without UNAME26, and the query (all ones).
pub(super) const PERSONALITIES: &[u64] = &[0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// The families that `socket` allows, as masks with their results: all below 64 except AF_ALG (38),
/// the kernel's own cryptography (CVE-2026-31431), and AF_VSOCK (40), which reaches the hypervisor
/// from any network namespace.
///
/// Masks, because the kernel uses only the lower 32 bits: 38 + 2^32 is AF_ALG too, and a comparison
/// with 40 would let it through. A rule compares an argument once, so each has one mask.
pub(super) const SOCKET_FAMILIES: &[(u64, u64)] = &[
    (0xffff_ffc1, 0b00_0001),
    (0xffff_ffd0, 0b01_0000),
    (0xffff_ffe0, 0b00_0000),
    (0xffff_ffcc, 0b00_0000),
    (0xffff_ffcc, 0b00_1100),
    (0xffff_ffc6, 0b00_0100),
    (0xffff_ffc6, 0b00_0010),
];

/// The flags by which `clone` makes namespaces: mount, cgroup, UTS, IPC, user, PID, network.
pub(super) const CLONE_NAMESPACES: u64 = 0x7e02_0000;

pub(super) const EPERM: u32 = 1;
pub(super) const ENOSYS: u32 = 38;
