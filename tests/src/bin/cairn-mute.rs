//! cairn-mute DIRECTORY [GATE]: mounts a FUSE file system that never answers; its callers cannot be
//! killed. While the file GATE exists it answers: every name is an empty directory.
//!
//! Its end releases all waiting callers.

use std::{
    env,
    ffi::CString,
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::AsRawFd as _,
    path::Path,
};

use rustix::mount::{MountFlags, mount};

// From linux/fuse.h.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const ENOSYS: i32 = 38;
const DIRECTORY: u32 = 0o040_755;

fn main() -> io::Result<()> {
    let mut args = env::args().skip(1);
    let dir = args.next().ok_or(io::ErrorKind::InvalidInput)?;
    let gate = args.next();
    let mut fuse = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        fuse.as_raw_fd()
    );
    let options = CString::new(options)?;
    mount(
        "mute",
        dir.as_str(),
        "fuse.mute",
        MountFlags::empty(),
        options.as_c_str(),
    )?;
    println!("mounted");
    let mut request = vec![0; 1 << 17];
    loop {
        let length = fuse.read(&mut request)?;
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|n| request[..length][at + n]));
        let (kind, unique) = (word(4), &request[8..16]);
        let speaks = gate.as_ref().is_some_and(|gate| Path::new(gate).exists());
        let answer = match kind {
            FORGET => continue,
            INIT => Ok(init()),
            _ if !speaks => {
                println!("unanswered {kind}");
                continue;
            }
            LOOKUP => Ok([entry(), attributes()].concat()),
            GETATTR => Ok([[0; 16].to_vec(), attributes()].concat()),
            STATFS => Ok(vec![0; 80]),
            OPENDIR => Ok(vec![0; 16]),
            READDIR | RELEASEDIR => Ok(Vec::new()),
            _ => Err(ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).map_err(io::Error::other)?;
        let head = [&length.to_ne_bytes(), &error.to_ne_bytes()[..], unique].concat();
        fuse.write_all(&[head, body].concat())?;
    }
}

/// Version 7.31, writes of 4096 bytes.
fn init() -> Vec<u8> {
    let mut body = Vec::new();
    for word in [7_u32, 31, 1 << 16, 0, 0x000a_000c, 4096, 1] {
        body.extend(word.to_ne_bytes());
    }
    body.resize(64, 0);
    body
}

/// Node 2, without caching.
fn entry() -> Vec<u8> {
    let mut body = vec![0; 40];
    body[0] = 2;
    body
}

fn attributes() -> Vec<u8> {
    let mut body = vec![0; 88];
    body[0] = 2;
    body[60..64].copy_from_slice(&DIRECTORY.to_ne_bytes());
    body[64] = 2;
    body
}
