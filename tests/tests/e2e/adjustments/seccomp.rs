//! Seccomp policies.

use std::{fs, path::Path};

use cairn_tests::{pod::security, until};
use nri::{
    adjust::Adjust,
    proto::{LinuxSeccomp, LinuxSeccompArg, LinuxSyscall, OptionalUInt32},
};

use super::stage::{Stage, bind, fails, sleeper};

const EPERM: u32 = 1;
const EBUSY: u32 = 16;
const ENOSYS: u32 = 38;
const EOPNOTSUPP: u32 = 95;

/// An errno of 0 means that the rule allows the calls.
fn rule(names: &[&str], errno: u32, args: &[LinuxSeccompArg]) -> LinuxSyscall {
    LinuxSyscall {
        names: names.iter().map(|&n| n.to_owned()).collect(),
        action: match errno {
            0 => "SCMP_ACT_ALLOW".to_owned(),
            _ => "SCMP_ACT_ERRNO".to_owned(),
        },
        errno_ret: (errno != 0).then_some(OptionalUInt32 { value: errno }),
        args: args.to_vec(),
    }
}

fn argument(index: u32, value: u64, value_two: u64, op: &str) -> LinuxSeccompArg {
    LinuxSeccompArg {
        index,
        value,
        value_two,
        op: op.to_owned(),
    }
}

fn allowing(syscalls: Vec<LinuxSyscall>) -> LinuxSeccomp {
    LinuxSeccomp {
        default_action: "SCMP_ACT_ALLOW".to_owned(),
        syscalls,
        ..Default::default()
    }
}

pub(crate) async fn a_denied_call_fails_with_the_policys_error_with_and_without_new_privileges(
    stage: &Stage,
) {
    const SETUID: u64 = 0o4000;
    let masked = "SCMP_CMP_MASKED_EQ";
    stage.adjusts(move |_, adjust| {
        adjust.seccomp_policy(allowing(vec![
            rule(&["mkdir", "mkdirat"], ENOSYS, &[]),
            rule(&["kill"], EBUSY, &[argument(1, 10, 0, "SCMP_CMP_EQ")]),
            rule(
                &["chmod", "fchmod"],
                EOPNOTSUPP,
                &[argument(1, SETUID, SETUID, masked)],
            ),
            rule(
                &["fchmodat", "fchmodat2"],
                EOPNOTSUPP,
                &[argument(2, SETUID, SETUID, masked)],
            ),
        ]));
    });
    let pod = stage.pod("seccomp").await;
    for no_new_privs in [false, true] {
        let name = format!("nnp-{no_new_privs}");
        let mut config = pod.cri.container_config(&name, &["sleep", "1000"]);
        security(&mut config).no_new_privs = no_new_privs;
        let container = pod.started(config).await;
        for (script, says) in [
            ("mkdir /tmp/d", "Function not implemented"),
            ("kill -USR1 $$", "Device or resource busy"),
            ("chmod 4755 /tmp", "Operation not supported"),
        ] {
            let printed = fails(&container, script).await;
            assert!(printed.contains(says), "{name}: {script}: {printed}");
        }
        container.sh("kill -0 $$ && chmod 755 /root").await;
        for of in ["1", "self"] {
            let status = container
                .exec(&["cat", &format!("/proc/{of}/status")])
                .await;
            for line in [
                "Seccomp:\t2".to_owned(),
                format!("NoNewPrivs:\t{}", u8::from(no_new_privs)),
            ] {
                assert!(status.lines().any(|l| l == line), "{name}: {line} of {of}");
            }
        }
    }
    pod.end().await;
}

/// The calls that a shell and a sleep need, without those that make directories.
const ORDINARY: &str = "access arch_prctl brk chdir clone clone3 close dup dup2 dup3 execve exit exit_group faccessat \
    faccessat2 fchdir fcntl fstat fstatat64 futex getcwd getdents64 getegid geteuid getgid getgroups getpgrp getpid \
    getppid getrandom getuid ioctl lseek lstat mmap mprotect mremap munmap nanosleep clock_nanosleep newfstatat open \
    openat pipe pipe2 poll ppoll prctl pread64 prlimit64 read readlink readlinkat readv rseq rt_sigaction \
    rt_sigprocmask rt_sigreturn rt_sigsuspend sendfile set_robust_list set_tid_address setpgid sigaltstack stat statx \
    sysinfo time umask uname vfork wait4 write writev kill setsid clock_gettime gettimeofday capget capset setuid \
    setgid setgroups setresuid setresgid setreuid setregid close_range fchown chown prlimit";

pub(crate) async fn a_call_that_no_rule_names_fails_with_the_default_error(stage: &Stage) {
    stage.adjusts(|_, adjust| {
        let names: Vec<&str> = ORDINARY.split_whitespace().collect();
        adjust.seccomp_policy(LinuxSeccomp {
            default_action: "SCMP_ACT_ERRNO".to_owned(),
            default_errno: Some(OptionalUInt32 { value: EOPNOTSUPP }),
            syscalls: vec![rule(&names, 0, &[])],
            ..Default::default()
        });
    });
    let pod = stage.pod("default").await;
    let container = sleeper(&pod, "c").await;
    let printed = fails(&container, "mkdir /tmp/d").await;
    assert!(printed.contains("Operation not supported"), "{printed}");
    pod.end().await;
}

/// The kernel logs a denied call only if the filter requests it.
pub(crate) async fn denied_calls_are_logged_where_the_flag_says_so(stage: &Stage) {
    stage.adjusts(|name, adjust| {
        let mut policy = allowing(vec![rule(&["mkdir", "mkdirat"], EPERM, &[])]);
        if name == "logged" {
            policy.flags = vec!["SECCOMP_FILTER_FLAG_LOG".to_owned()];
        }
        adjust.seccomp_policy(policy);
    });
    let pod = stage.pod("logged").await;
    let mut config = pod.cri.container_config("silent", &["sleep", "1000"]);
    let programs = stage.volume("programs");
    // The kernel logs the program's path: no other program has these names.
    let mark = stage
        .daemon
        .cgroup_parent()
        .trim_start_matches('/')
        .to_owned();
    config.mounts = vec![bind(&programs, "/programs")];
    for name in ["silent", "logged"] {
        let dir = programs.join(format!("{mark}-{name}"));
        fs::create_dir_all(&dir).expect("a directory");
        let busybox = cairn_tests::bins::system("busybox").expect("installed");
        fs::copy(busybox, dir.join("mkdir")).expect("a program");
        config.metadata.as_mut().expect("set").name = name.to_owned();
        let container = pod.started(config.clone()).await;
        fails(&container, &format!("/programs/{mark}-{name}/mkdir /tmp/d")).await;
    }
    let logged = until("the kernel logs the denied call", || async {
        let log = stage.machine(&["dmesg"]).await;
        log.contains(&format!("{mark}-logged")).then_some(log)
    })
    .await;
    assert!(
        !logged.contains(&format!("{mark}-silent")),
        "without the flag it says nothing"
    );
    pod.end().await;
}

/// A 32-bit program that exits with 42, if this machine can run one.
fn foreign_program() -> Option<Vec<u8>> {
    let runs = cfg!(target_arch = "x86_64") && Path::new("/proc/sys/abi/vsyscall32").exists();
    runs.then(|| {
        const BASE: u32 = 0x0804_8000;
        const HEADERS: u32 = 84;
        // mov eax, 1; mov ebx, 42; int 0x80
        let code = [0xb8, 1, 0, 0, 0, 0xbb, 42, 0, 0, 0, 0xcd, 0x80];
        let size = HEADERS + u32::try_from(code.len()).expect("short");
        let mut elf = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        let half = |elf: &mut Vec<u8>, v: u16| elf.extend(v.to_le_bytes());
        // An executable for the 386.
        half(&mut elf, 2);
        half(&mut elf, 3);
        for word in [1, BASE + HEADERS, 52, 0, 0_u32] {
            elf.extend(word.to_le_bytes());
        }
        for value in [52, 32, 1, 0, 0, 0] {
            half(&mut elf, value);
        }
        // One segment: the complete file, readable and executable.
        for word in [1, 0, BASE, BASE, size, size, 5, 0x1000_u32] {
            elf.extend(word.to_le_bytes());
        }
        elf.extend(code);
        elf
    })
}

pub(crate) async fn only_the_architectures_of_the_policy_may_run(stage: &Stage) {
    stage.adjusts(|name, adjust| {
        let mut policy = allowing(vec![rule(&["mkdir"], EPERM, &[])]);
        policy.architectures = match name {
            "both" => vec!["SCMP_ARCH_X86_64".to_owned(), "SCMP_ARCH_X86".to_owned()],
            _ => vec!["SCMP_ARCH_NATIVE".to_owned()],
        };
        adjust.seccomp_policy(policy);
    });
    let pod = stage.pod("architectures").await;
    let programs = stage.volume("programs");
    let foreign = foreign_program();
    if let Some(elf) = &foreign {
        use std::os::unix::fs::PermissionsExt;
        let file = programs.join("foreign");
        fs::write(&file, elf).expect("a program");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    for (name, code) in [("both", 42), ("native", 159)] {
        let mut config = pod.cri.container_config(name, &["sleep", "1000"]);
        config.mounts = vec![bind(&programs, "/programs")];
        let container = pod.started(config).await;
        if foreign.is_some() {
            let ran = container.try_exec(&["/programs/foreign"], 20).await;
            assert_eq!(ran.expect("ExecSync").code, code, "{name}");
        }
    }
    pod.end().await;
}
