//! The pause process: PID 1 of a pod that shares its PID namespace. It reaps orphans until it is
//! killed from outside; containers cannot end it. It is the monitor's program, in a root with only
//! `/pause`.
//!
//! Every container of the pod sees it, and one with SYS_PTRACE may take it over. It therefore has
//! no capabilities (`oci/pause.rs`), an empty root (`pod/pause.rs`), no descriptors, and a few
//! system calls.

use std::io;

use cairn_monitor::sys;

/// The calls that [`run`] makes behind its filter, and exit_group.
const CALLS: [libc::c_long; 5] = [
    libc::SYS_close_range,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_wait4,
    libc::SYS_exit_group,
];

/// AUDIT_ARCH_* of this program: other ABIs of the same processor number their calls differently.
const ARCHITECTURE: u32 = {
    const WIDE: u32 = 1 << 31;
    const LITTLE: u32 = 1 << 30;
    match std::env::consts::ARCH.as_bytes() {
        b"x86_64" => 62 | WIDE | LITTLE,
        b"aarch64" => 183 | WIDE | LITTLE,
        b"powerpc64" if cfg!(target_endian = "little") => 21 | WIDE | LITTLE,
        b"s390x" => 22 | WIDE,
        b"riscv64" => 243 | WIDE | LITTLE,
        b"loongarch64" => 258 | WIDE | LITTLE,
        _ => panic!("the pause process has no seccomp filter for this architecture"),
    }
};

/// Ends only if it cannot wait for signals. Other signals have no effect on process 1.
pub(crate) fn run() -> io::Result<()> {
    sys::forbid_dumps()?;
    // The standard library handles SIGSEGV and SIGBUS; handled signals reach process 1 from inside.
    sys::default_signals();
    sys::load_filter(&filter(), 0)?;
    // SAFETY: nothing in this process owns a descriptor, and none is opened or used from here on.
    #[allow(unsafe_code)]
    unsafe {
        sys::close_all();
    }
    loop {
        sys::wait_signal(&[libc::SIGCHLD])?;
        // A stop of a traced orphan is not its end, either; the filter refuses to release it.
        while sys::reap().is_some() {}
    }
}

/// Allows [`CALLS`]; any other call fails with EPERM.
fn filter() -> Vec<libc::sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    /// Offsets in struct seccomp_data.
    const NUMBER_AT: u32 = 0;
    const ARCHITECTURE_AT: u32 = 4;
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let calls = CALLS.len() as u8;
    let mut program = vec![
        step(LOAD, 0, 0, ARCHITECTURE_AT),
        step(IF_EQUAL, 0, calls + 1, ARCHITECTURE),
        step(LOAD, 0, 0, NUMBER_AT),
    ];
    program.extend(
        (1..=calls)
            .rev()
            .zip(CALLS)
            .map(|(left, call)| step(IF_EQUAL, left, 0, call as u32)),
    );
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    program.push(step(RETURN, 0, 0, refused));
    program.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    program
}
