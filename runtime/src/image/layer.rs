//! From a layer's stream to a committed layer: feed the helper, check both digests, finish the
//! tree with what only the daemon can do, make it durable, commit.
//!
//! ```text
//! stream ──► digest ──► helper (own process) ──► tmp/<n>/fs ──► marks ──► syncfs ──► rename
//! ```
//!
//! Nothing counts before the rename. A dropped future kills the helper and removes `tmp/<n>`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::Semaphore;

use super::digest::{Digest, Hasher};
use super::manifest::Descriptor;
use super::store::{LayerInfo, Store, TempDir};
use super::unpack::path::CleanPath;
use super::unpack::{REPORT_MAX, Report};
use super::view::View;
use super::{Error, Progress};

/// A helper's last words.
const STDERR_MAX: u64 = 4096;
/// Entries in one layer: ten times the largest images in use.
const ENTRIES_MAX: u64 = 5_000_000;
/// Uncompressed bytes of one layer.
const BYTES_MAX: u64 = 128 << 30;

/// Starts helpers, a bounded number at a time.
pub struct Unpacker {
    /// Program and leading arguments, such as `cairn unpack`.
    helper: Vec<OsString>,
    permits: Arc<Semaphore>,
    /// A helper that takes no byte for so long is given up.
    stall: Duration,
}

/// A layer's tree in `tmp/`, checked, not yet committed.
pub struct Unpacked {
    tmp: TempDir,
    report: Report,
}

impl Unpacker {
    pub fn new(helper: Vec<OsString>, parallel: usize, stall: Duration) -> Self {
        Self {
            helper,
            permits: Arc::new(Semaphore::new(parallel.max(1))),
            stall,
        }
    }

    /// Waits for a turn; held while a layer is transferred and unpacked.
    pub async fn turn(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        self.permits.clone().acquire_owned().await.ok()
    }

    /// Unpacks `stream` and checks it against the blob's digest and size and the config's diff id.
    pub async fn unpack<S, E>(
        &self,
        store: &Arc<Store>,
        blob: &Descriptor,
        diff_id: &Digest,
        stream: S,
        progress: &Progress,
    ) -> Result<Unpacked, E>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: From<Error>,
    {
        let tmp = store.temp_dir()?;
        let fs = tmp.path.join("fs");
        std::fs::create_dir(&fs).map_err(Error::io("layer", "create", &fs))?;
        let mut child = self
            .spawn(&fs)
            .map_err(Error::io("unpack helper", "start", &fs))?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (fed, out, err) = tokio::join!(
            self.feed(stdin, blob, stream, progress),
            read_some(stdout, REPORT_MAX),
            read_some(stderr, STDERR_MAX),
        );
        // The stream's own fault comes first: the helper only saw it end too soon.
        let fed = fed?;
        let status = child
            .wait()
            .await
            .map_err(Error::io("unpack helper", "await", &fs))?;
        let report = judge(blob, diff_id, fed, status, &out, &err)?;
        Ok(Unpacked { tmp, report })
    }

    fn spawn(&self, fs: &Path) -> std::io::Result<Child> {
        let (program, args) = self
            .helper
            .split_first()
            .ok_or(std::io::Error::from(std::io::ErrorKind::NotFound))?;
        let (bytes, inodes) = super::fsutil::room(fs)?;
        Command::new(program)
            .args(args)
            .arg(fs)
            .arg(bytes.min(BYTES_MAX).to_string())
            .arg(inodes.min(ENTRIES_MAX).to_string())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }

    /// Passes the stream on while it is counted and hashed. The digest is none if the helper closed
    /// its end: then its exit tells why.
    async fn feed<S, E>(
        &self,
        stdin: Option<ChildStdin>,
        blob: &Descriptor,
        mut stream: S,
        progress: &Progress,
    ) -> Result<Option<Digest>, E>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: From<Error>,
    {
        let Some(mut stdin) = stdin else {
            return Ok(None);
        };
        let mut hasher = Hasher::new();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk?;
            hasher.update(&chunk);
            if blob.size.is_some_and(|size| hasher.bytes() > size) {
                return Err(blob.fault("is longer than its manifest says").into());
            }
            match tokio::time::timeout(self.stall, stdin.write_all(&chunk)).await {
                Err(_) => return Err(blob.fault("unpacking made no progress").into()),
                Ok(Err(_)) => return Ok(None),
                Ok(Ok(())) => progress.add(chunk.len()),
            }
        }
        if blob.size.is_some_and(|size| hasher.bytes() != size) {
            return Err(blob.fault("is shorter than its manifest says").into());
        }
        Ok(Some(hasher.finish()))
    }
}

fn judge(
    blob: &Descriptor,
    diff_id: &Digest,
    fed: Option<Digest>,
    status: ExitStatus,
    out: &[u8],
    err: &[u8],
) -> Result<Report, Error> {
    if let (Some(want), Some(got)) = (&blob.digest, &fed)
        && want != got
    {
        return Err(blob.fault(&format!("has the digest {got}")));
    }
    if !status.success() {
        let words = String::from_utf8_lossy(err);
        let words = words.trim();
        let why = if words.is_empty() {
            status.to_string()
        } else {
            words.to_owned()
        };
        return Err(blob.fault(&format!("unpack: {why}")));
    }
    if fed.is_none() {
        return Err(blob.fault("unpack: the helper ended before its input did"));
    }
    let report: Report = serde_json::from_slice(out)
        .map_err(|e| blob.fault(&format!("unpack: unreadable report: {e}")))?;
    if report.diff_id != *diff_id {
        let got = &report.diff_id;
        return Err(blob.fault(&format!("unpacks to {got}, the config says {diff_id}")));
    }
    Ok(report)
}

/// What a pipe gives, up to a bound; more is left unread, and the helper ends on the closed pipe.
async fn read_some(pipe: Option<impl AsyncRead + Unpin>, max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What was read before an error is all there is to judge by.
        let _ = pipe.take(max).read_to_end(&mut bytes).await;
    }
    bytes
}

impl Unpacked {
    /// Finishes the tree upon `lowers` (topmost first), makes it durable and commits it. Blocking.
    pub fn commit(
        self,
        store: &Store,
        chain_id: &Digest,
        diff_id: &Digest,
        lowers: &[PathBuf],
    ) -> Result<(), Error> {
        let fs = self.tmp.path.join("fs");
        let fail = |step: &'static str| {
            move |e: String| Error::Layer {
                layer: chain_id.clone(),
                why: format!("{step}: {e}"),
            }
        };
        let root: OwnedFd = File::open(&fs)
            .map_err(Error::io("layer", "open", &fs))?
            .into();
        let opaque = self.report.opaque().map_err(fail("report"))?;
        let implied = self.report.implied().map_err(fail("report"))?;
        mark_opaque(&root, &opaque).map_err(fail("mark opaque directories"))?;
        let whiteouts = self.report.whiteouts().map_err(fail("report"))?;
        drop_idle_whiteouts(&root, lowers, &whiteouts, &opaque).map_err(fail("whiteouts"))?;
        let lowers: Vec<OwnedFd> = lowers
            .iter()
            .map(|lower| {
                Ok(File::open(lower)
                    .map_err(Error::io("layer", "open", lower))?
                    .into())
            })
            .collect::<Result<_, Error>>()?;
        inherit(&root, &lowers, &implied).map_err(fail("inherit attributes"))?;
        crate::fault::point("image.layer.flush").map_err(fail("fault"))?;
        // One flush for all the layer's files (CRI-445); records are written only after it.
        rustix::fs::syncfs(&root).map_err(|e| fail("flush")(e.to_string()))?;
        crate::fault::point("image.layer.commit").map_err(fail("fault"))?;
        let mut info = LayerInfo::new(chain_id.clone(), diff_id.clone());
        info.inodes = self.report.inodes;
        info.disk_bytes = self.report.disk_bytes;
        info.opaque = opaque.iter().any(CleanPath::is_root);
        store.commit_layer(&self.tmp, info)
    }
}

fn open_dir(
    root: &OwnedFd,
    path: &CleanPath,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = resolve | ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path.for_open(), flags, Mode::empty(), resolve)
}

/// A name that later became something else than a directory needs no mark.
fn mark_opaque(root: &OwnedFd, dirs: &[CleanPath]) -> Result<(), String> {
    for path in dirs {
        match open_dir(root, path, ResolveFlags::empty()) {
            Ok(dir) => {
                let name = "trusted.overlay.opaque";
                rustix::fs::fsetxattr(&dir, name, b"y", XattrFlags::empty())
                    .map_err(|e| e.to_string())?;
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(())
}

/// Removes whiteouts that hide nothing. Overlayfs filters whiteouts only where directories are
/// merged; elsewhere such a one would be listed as a name that nothing can be done with.
fn drop_idle_whiteouts(
    root: &OwnedFd,
    lowers: &[PathBuf],
    whiteouts: &[CleanPath],
    opaque: &[CleanPath],
) -> Result<(), String> {
    if whiteouts.is_empty() {
        return Ok(());
    }
    let below = View::open(lowers).map_err(|e| e.to_string())?;
    let opaque: HashSet<_> = opaque.iter().collect();
    for path in whiteouts {
        let Some((dir, name)) = path.split() else {
            continue;
        };
        let cut_off = opaque.contains(&CleanPath::default())
            || dir.prefixes().any(|parent| opaque.contains(&parent));
        if !cut_off && below.has(path.as_bytes()).map_err(|e| e.to_string())? {
            continue;
        }
        if let Ok(dir) = open_dir(root, &dir, ResolveFlags::empty()) {
            rustix::fs::unlinkat(&dir, name, AtFlags::empty()).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

/// Gives directories that the archive only implied the attributes of the topmost lower one.
fn inherit(root: &OwnedFd, lowers: &[OwnedFd], implied: &[CleanPath]) -> Result<(), String> {
    for path in implied {
        let Ok(dir) = open_dir(root, path, ResolveFlags::empty()) else {
            continue;
        };
        for lower in lowers {
            match open_dir(lower, path, ResolveFlags::NO_SYMLINKS) {
                Ok(source) => {
                    copy_attributes(&source, &dir).map_err(|e| e.to_string())?;
                    break;
                }
                Err(Errno::NOENT) => {}
                // Hidden or replaced there: what lies deeper is not this directory's past.
                Err(_) => break,
            }
        }
    }
    Ok(())
}

/// Owner, attributes, mode and times of one directory for another. Also gives a container's upper
/// directory the look of its image's root (CRI-451).
pub fn copy_attributes(from: &OwnedFd, to: &OwnedFd) -> rustix::io::Result<()> {
    let stat = rustix::fs::fstat(from)?;
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::fchown(to, Some(uid), Some(gid))?;
    copy_xattrs(from, to)?;
    rustix::fs::fchmod(to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    let time = |sec, nsec: u64| Timespec {
        tv_sec: sec,
        tv_nsec: nsec.try_into().unwrap_or(0),
    };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    rustix::fs::futimens(to, &times)
}

/// Attributes but overlayfs's own, whose meaning ends with the layer they stand in.
fn copy_xattrs(from: &OwnedFd, to: &OwnedFd) -> rustix::io::Result<()> {
    let mut names = vec![0u8; 64 * 1024];
    let n = match rustix::fs::flistxattr(from, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        other => other?,
    };
    let names = names[..n].split(|b| *b == 0).filter(|n| !n.is_empty());
    for name in names.filter(|n| !n.starts_with(b"trusted.overlay.")) {
        let mut value = vec![0u8; 64 * 1024];
        let n = rustix::fs::fgetxattr(from, name, &mut value[..])?;
        match rustix::fs::fsetxattr(to, name, &value[..n], XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
