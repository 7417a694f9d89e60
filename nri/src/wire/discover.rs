//! Finding plugins in a directory.

use std::{
    fs,
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use super::error::TransportError;
use crate::plugin_id::PluginId;

/// A plugin file in the plugin directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) id: PluginId,
    pub(crate) file: PathBuf,
    pub(crate) config: String,
    /// The program that runs the file, if it is not a program itself.
    pub(crate) host: Option<PathBuf>,
}

/// A file that is left out, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) file: PathBuf,
    pub(crate) why: String,
}

/// Finds plugins (NRI-200…204). One bad file does not keep the others from starting.
pub(crate) fn discover(
    dir: &Path,
    config_dir: Option<&Path>,
    wasm_host: Option<&Path>,
    trusted_only: bool,
) -> Result<(Vec<Found>, Vec<LeftOut>), TransportError> {
    let fail = |cause| TransportError::PluginDir {
        path: dir.to_owned(),
        cause,
    };
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
        entries => entries.map_err(fail)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry.map_err(fail)?.path());
    }
    files.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    if trusted_only && !files.is_empty() {
        let meta = fs::metadata(dir).map_err(fail)?;
        if let Some(why) = distrusted(&meta) {
            let left = files.into_iter().map(|file| {
                let why = format!("its directory {why}");
                LeftOut { file, why }
            });
            return Ok((Vec::new(), left.collect()));
        }
    }
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for file in files {
        match check(&file, config_dir, wasm_host, trusted_only) {
            Ok(Some(plugin)) => found.push(plugin),
            Ok(None) => {}
            Err(why) => left_out.push(LeftOut { file, why }),
        }
    }
    Ok((found, left_out))
}

/// `None` for a file that is not a plugin; an error for an invalid plugin.
fn check(
    file: &Path,
    config_dir: Option<&Path>,
    wasm_host: Option<&Path>,
    trusted_only: bool,
) -> Result<Option<Found>, String> {
    let meta = fs::metadata(file).map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Ok(None);
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let id: Result<PluginId, _> = name.parse();
    if meta.mode() & 0o111 == 0 {
        let is_meant = id.is_ok();
        return if is_meant {
            Err("is not executable (chmod +x)".to_owned())
        } else {
            Ok(None)
        };
    }
    let id = id.map_err(|e| format!("{e}"))?;
    if trusted_only && let Some(why) = distrusted(&meta) {
        return Err(why);
    }
    let host = if is_module(file).map_err(|e| e.to_string())? {
        Some(host_of_modules(wasm_host)?)
    } else {
        None
    };
    let config = config_dir.map_or(Ok(String::new()), |dir| config_of(&id, dir))?;
    Ok(Some(Found {
        id,
        file: file.to_owned(),
        config,
        host,
    }))
}

/// Whether it begins like a WebAssembly module (NRI-211).
fn is_module(file: &Path) -> io::Result<bool> {
    let mut magic = [0; 4];
    match fs::File::open(file)?.read_exact(&mut magic) {
        Ok(()) => Ok(magic == *b"\0asm"),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

fn host_of_modules(program: Option<&Path>) -> Result<PathBuf, String> {
    let program = program.ok_or("is a WebAssembly module, which this runtime does not run")?;
    match fs::metadata(program) {
        Ok(_) => Ok(program.to_owned()),
        Err(e) => Err(format!(
            "is a WebAssembly module, and what runs them is not installed: {}: {e}",
            program.display()
        )),
    }
}

fn distrusted(meta: &fs::Metadata) -> Option<String> {
    let (owner, own) = (meta.uid(), rustix::process::geteuid().as_raw());
    if owner != 0 && owner != own {
        let or_own = match own {
            0 => String::new(),
            own => format!(", or by uid {own} of the runtime"),
        };
        return Some(format!(
            "is owned by uid {owner}: must be owned by root{or_own}"
        ));
    }
    let is_writable = meta.mode() & 0o022 != 0;
    is_writable.then(|| "is writable by users other than its owner (chmod go-w)".to_owned())
}

/// `NN-name.conf`, else `name.conf`, else nothing (NRI-204).
fn config_of(id: &PluginId, dir: &Path) -> Result<String, String> {
    for name in [format!("{id}.conf"), format!("{}.conf", id.name)] {
        let path = dir.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => return Ok(text),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(format!("configuration {}: {e}", path.display())),
        }
    }
    Ok(String::new())
}
