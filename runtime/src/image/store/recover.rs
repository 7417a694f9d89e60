//! Recovery of a store at its opening: layers, records, and damage by a crash or a disk.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_monitor::own_file;

use super::layer_record::{Layer, LayerInfo, SCHEMA};
use super::record::ImageRecord;
use crate::image::digest::Digest;
use crate::image::error::Error;

/// Drops tags that a crash between two writes left in a second record.
pub(crate) fn drop_stolen_tags(
    images: &mut HashMap<Digest, Arc<ImageRecord>>,
    tags: &HashMap<String, Digest>,
) {
    for image in images.values_mut() {
        let owns = |tag: &String| tags.get(tag) == Some(&image.id);
        if !image.repo_tags.iter().all(owns) {
            let mut next = (**image).clone();
            next.repo_tags.retain(owns);
            *image = Arc::new(next);
        }
    }
}

/// Committed layers, and the highest number used for a directory.
pub(crate) fn load_layers(root: &Path) -> Result<(HashMap<Digest, Layer>, u64), Error> {
    let dir = root.join("layers");
    let failed = || Error::io("layers", "read", &dir);
    let number = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<u64>().ok();
    let mut layers = HashMap::new();
    let mut last = 0;
    for entry in fs::read_dir(&dir).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let number = number(&entry);
        last = last.max(number.unwrap_or(0));
        let path = entry.path();
        let info = own_file::read(path.join("layer.json"))
            .ok()
            .and_then(|json| serde_json::from_slice::<LayerInfo>(&json).ok())
            .filter(|info| info.schema == SCHEMA && number.is_some());
        match info {
            Some(info) => {
                layers.insert(info.chain_id.clone(), Layer { dir: path, info });
            }
            None => tracing::warn!(dir = %path.display(), "not a layer of this version; ignored"),
        }
    }
    for dir in ["tmp", "trash"] {
        for entry in fs::read_dir(root.join(dir)).map_err(failed())?.flatten() {
            last = last.max(number(&entry).unwrap_or(0));
        }
    }
    Ok((layers, last))
}

/// Readable records with all their layers; other records stay for the version that wrote them.
pub(crate) fn load_records(
    root: &Path,
    layers: &HashMap<Digest, Layer>,
) -> Result<(Vec<Arc<ImageRecord>>, usize), Error> {
    let mut images = Vec::new();
    let mut damaged = 0;
    for path in in_records(root)? {
        let path = path?;
        if path.extension() != Some(OsStr::new("json")) {
            // A write without its rename.
            let _ = fs::remove_file(&path);
            continue;
        }
        match read_record(&path, layers) {
            Ok(record) => images.push(Arc::new(record)),
            Err(why) => {
                damaged += 1;
                tracing::error!(record = %path.display(), "image record skipped: {why}");
            }
        }
    }
    Ok((images, damaged))
}

/// The files in the directory of records.
fn in_records(root: &Path) -> Result<impl Iterator<Item = Result<PathBuf, Error>>, Error> {
    let dir = root.join("records");
    let failed = Error::io("image records", "read", &dir);
    let entries = fs::read_dir(&dir).map_err(&failed)?;
    Ok(entries.map(move |entry| Ok(entry.map_err(&failed)?.path())))
}

fn read_record(path: &Path, layers: &HashMap<Digest, Layer>) -> Result<ImageRecord, String> {
    let record = read_one(path)?;
    match record.layers.iter().find(|l| !layers.contains_key(*l)) {
        Some(missing) => Err(format!("layer {missing} is missing")),
        None => Ok(record),
    }
}

/// The record in this file; the error is the reason to reject it.
pub(crate) fn read_one(path: &Path) -> Result<ImageRecord, String> {
    let bytes = own_file::read(path).map_err(|e| e.to_string())?;
    let record = ImageRecord::from_json(&bytes).map_err(|e| e.to_string())?;
    if path.file_stem() != Some(OsStr::new(record.id.hex())) {
        return Err(format!("its name does not match image {}", record.id));
    }
    Ok(record)
}
