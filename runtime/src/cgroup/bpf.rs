//! The five `bpf(2)` commands that put a device filter on a v2 cgroup. Unsafe code: no crate offers
//! these commands without an ELF loader or a C library.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::seeded;

const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_DETACH: libc::c_int = 9;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const PROG_QUERY: libc::c_int = 16;

const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// Filters of systemd or of a nested runtime run in addition to ours.
const ALLOW_MULTI: u32 = 2;
/// The most programs on one cgroup (the kernel's own bound).
const MAX_PROGRAMS: usize = 64;
/// No helper function is called, so the program may have our own licence.
const LICENCE: &CStr = c"Apache-2.0";

#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct Attach {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

/// All of the kernel's fields. Kernels 6.17 to 7.1 write `revision` whatever size was passed: a
/// shorter struct lets them write behind it.
#[repr(C)]
#[derive(Default)]
struct Query {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    pad: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

const _: () = {
    assert!(size_of::<Query>() == 64);
    assert!(std::mem::offset_of!(Query, revision) == 56);
    // The kernel only reads these: a prefix of its struct is enough.
    assert!(size_of::<Load>() == 64);
    assert!(size_of::<Attach>() == 16);
    assert!(size_of::<GetFdById>() == 12);
};

#[repr(C)]
#[derive(Default)]
struct GetFdById {
    prog_id: u32,
    next_id: u32,
    open_flags: u32,
}

/// A failed step with its cause.
pub(super) type Failure = (&'static str, io::Error);

/// Attaches `program` to the cgroup directory `dir`, then detaches the earlier device filters, so
/// that the cgroup is never without one.
pub(super) fn replace_device_filter(dir: &Path, program: &[u64]) -> Result<(), Failure> {
    let at = |step| move |error| (step, error);
    if let Some(written) = seeded::write_kernel(&dir.join("device filter"), "") {
        return written.map_err(at("attach"));
    }
    let cgroup = File::open(dir).map_err(at("open the cgroup"))?;
    let former = query(&cgroup).map_err(at("list the filters"))?;
    let filter = load(program).map_err(at("load"))?;
    attach(&cgroup, &filter).map_err(at("attach"))?;
    for id in former {
        match by_id(id).and_then(|old| detach(&cgroup, &old)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(("detach the former", e)),
            _ => {}
        }
    }
    Ok(())
}

fn load(program: &[u64]) -> io::Result<OwnedFd> {
    let mut attr = Load {
        prog_type: TYPE_CGROUP_DEVICE,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: LICENCE.as_ptr() as u64,
        ..Load::default()
    };
    attr.prog_name[..13].copy_from_slice(b"cairn_devices");
    // SAFETY: `insns` and `license` point to `program` and to a static, which outlive the call and
    // are only read by the kernel; `log_size` 0 with `log_buf` 0 asks for no log.
    unsafe { bpf(PROG_LOAD, &mut attr) }.map(own)
}

fn attach(cgroup: &File, program: &OwnedFd) -> io::Result<()> {
    let mut attr = Attach {
        attach_flags: ALLOW_MULTI,
        ..target(cgroup, program)
    };
    bpf_of_numbers(PROG_ATTACH, &mut attr).map(drop)
}

fn detach(cgroup: &File, program: &OwnedFd) -> io::Result<()> {
    bpf_of_numbers(PROG_DETACH, &mut target(cgroup, program)).map(drop)
}

fn target(cgroup: &File, program: &OwnedFd) -> Attach {
    Attach {
        target_fd: cgroup.as_raw_fd() as u32,
        attach_bpf_fd: program.as_raw_fd() as u32,
        attach_type: ATTACH_CGROUP_DEVICE,
        attach_flags: 0,
    }
}

/// Ids of the device filters on this cgroup itself, not those of its parents.
fn query(cgroup: &File) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; MAX_PROGRAMS];
    let mut attr = Query {
        target_fd: cgroup.as_raw_fd() as u32,
        attach_type: ATTACH_CGROUP_DEVICE,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: ids.len() as u32,
        ..Query::default()
    };
    // SAFETY: `prog_ids` points to `prog_cnt` writable u32 in `ids`, which outlives the call.
    unsafe { bpf(PROG_QUERY, &mut attr) }?;
    ids.truncate(attr.prog_cnt as usize);
    Ok(ids)
}

fn by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attr = GetFdById {
        prog_id: id,
        ..GetFdById::default()
    };
    bpf_of_numbers(PROG_GET_FD_BY_ID, &mut attr).map(own)
}

/// Takes ownership of the descriptor that a command returned.
fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Attributes without addresses.
trait Numbers {}
impl Numbers for Attach {}
impl Numbers for GetFdById {}

fn bpf_of_numbers(command: libc::c_int, attr: &mut impl Numbers) -> io::Result<RawFd> {
    // SAFETY: `attr` holds no address.
    unsafe { bpf(command, attr) }
}

/// # Safety
/// Each address in `attr` must be valid, for as long and as wide as `command` uses it.
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<RawFd> {
    // SAFETY: `attr` is a live `repr(C)` prefix of the kernel's union of exactly the size passed;
    // the kernel takes missing fields as zero. Only `Query` has fields that it writes, and has all
    // of them. The caller vouches for the addresses inside.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as RawFd)
}
