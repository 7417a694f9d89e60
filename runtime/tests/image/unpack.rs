//! Regular and malicious layers through the real helper.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use tar::EntryType;

use crate::support::*;

/// Imports an image of one layer and returns its tree.
async fn unpacked(f: &Fixture, layer: Layer) -> Result<PathBuf, String> {
    unpacked_as(f, layer, Packing::Gzip).await
}

async fn unpacked_as(f: &Fixture, layer: Layer, packing: Packing) -> Result<PathBuf, String> {
    let image = Image::build("x:1", &[layer], packing, |_| {});
    f.import(&image).await.map_err(|e| e.to_string())?;
    let record = f.images.resolve(image.id.as_str()).unwrap().unwrap();
    let rootfs = f.images.prepare_rootfs("c", &record, None).await.unwrap();
    Ok(rootfs.lower[0].clone())
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 256];
    let n = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(n);
    Some(value)
}

#[tokio::test]
async fn every_kind_of_entry_arrives_with_its_metadata() {
    let f = Fixture::new();
    let capability = b"\x01\0\0\x02\x0a\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let layer = Layer::new()
        .dir("d", 0o2750)
        .owner(11, 12)
        .bytes("d/suid", b"#!", 0o4755)
        .owner(13, 14)
        .hardlink("d/again", "d/suid")
        .symlink("d/link", "/nowhere")
        .owner(15, 16)
        .hardlink("d/linked", "d/link")
        .special(EntryType::Fifo, "d/fifo", 0, 0)
        .special(EntryType::Char, "d/null", 1, 3)
        .special(EntryType::Block, "d/disk", 7, 200)
        .bytes("d/cap", b"x", 0o755)
        .xattr("security.capability", capability)
        .xattr("user.note", b"line\nline");
    let root = unpacked(&f, layer).await.unwrap();
    let at = |p: &str| root.join("d").join(p);
    let meta = |p: &str| fs::symlink_metadata(at(p)).unwrap();
    assert_eq!((mode(&root.join("d")), mode(&at("suid"))), (0o2750, 0o4755));
    assert_eq!(
        (meta(".").uid(), meta(".").gid(), meta(".").mtime()),
        (11, 12, 1_000_000)
    );
    assert_eq!(
        (meta("suid").uid(), meta("suid").gid(), meta("suid").mtime()),
        (13, 14, 1_000_000)
    );
    assert_eq!(meta("suid").ino(), meta("again").ino());
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("/nowhere"));
    assert_eq!(
        (meta("link").uid(), meta("link").ino()),
        (15, meta("linked").ino())
    );
    assert!(meta("fifo").file_type().is_fifo());
    assert!(meta("disk").file_type().is_block_device());
    let null = meta("null");
    assert!(null.file_type().is_char_device());
    assert_eq!(null.rdev(), rustix::fs::makedev(1, 3));
    assert_eq!(
        xattr(&at("cap"), "security.capability").unwrap(),
        capability
    );
    assert_eq!(xattr(&at("cap"), "user.note").unwrap(), b"line\nline");
}

#[tokio::test]
async fn gzip_zstd_and_plain_layers_give_the_same_tree() {
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        let f = Fixture::new();
        let root = unpacked_as(&f, Layer::new().file("a/b", "text"), packing)
            .await
            .unwrap();
        assert_eq!(fs::read_to_string(root.join("a/b")).unwrap(), "text");
    }
}

#[tokio::test]
async fn whiteouts_become_what_overlayfs_reads() {
    let f = Fixture::new();
    let below = Layer::new()
        .file("a/gone", "")
        .file("again", "")
        .file("tree/below", "");
    let layer = Layer::new()
        .file("a/.wh.gone", "")
        .file("a/kept", "own entries stay, whichever comes first")
        .file("a/.wh.kept", "")
        .file("o/.wh..wh..opq", "")
        .file("o/own", "x")
        .file(".wh.again", "")
        .file("again", "back")
        .file(".wh.tree", "")
        .dir("tree", 0o755)
        .file("tree/x", "x")
        .file(".wh..wh.plnk", "")
        .file("a/.wh.never-was", "");
    f.import(&Image::new("x:1", &[below, layer])).await.unwrap();
    let record = f.images.list().pop().unwrap();
    let rootfs = f.images.prepare_rootfs("c", &record, None).await.unwrap();
    let root = &rootfs.lower[0];
    let gone = fs::symlink_metadata(root.join("a/gone")).unwrap();
    assert!(gone.file_type().is_char_device());
    assert_eq!(gone.rdev(), 0);
    assert!(root.join("a/kept").is_file());
    assert!(root.join("again").is_file());
    let opaque = |p: &str| xattr(&root.join(p), "trusted.overlay.opaque");
    assert_eq!(opaque("o").unwrap(), b"y");
    assert_eq!(opaque("tree").unwrap(), b"y");
    assert_eq!(opaque("a"), None);
    for absent in [".wh..wh.plnk", "a/never-was", "a/.wh.never-was"] {
        assert!(fs::symlink_metadata(root.join(absent)).is_err(), "{absent}");
    }
}

#[tokio::test]
async fn an_opaque_root_hides_all_lower_layers() {
    let f = Fixture::new();
    let image = Image::new(
        "x:1",
        &[
            Layer::new().file("low", ""),
            Layer::new().file(".wh..wh..opq", "").file("top", ""),
        ],
    );
    f.import(&image).await.unwrap();
    let record = f.images.list().pop().unwrap();
    let rootfs = f.images.prepare_rootfs("c", &record, None).await.unwrap();
    assert_eq!(rootfs.lower.len(), 1);
    let merged = f.path("merged");
    fs::create_dir(&merged).unwrap();
    rootfs.mount_at(&merged, None, None).unwrap();
    let _mounted = Mounted(merged.clone());
    let names: Vec<_> = fs::read_dir(&merged)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["top"]);
}

#[tokio::test]
async fn no_entry_reaches_out_of_its_layer() {
    let f = Fixture::new();
    let secret = f.path("secret");
    fs::write(&secret, "untouched").unwrap();
    let outside = f.tmp.path().to_str().unwrap();
    let layer = Layer::new()
        .file("../../../../../../../escaped", "x")
        .file("/absolute", "x")
        .symlink("out", outside)
        .file("out/secret", "overwritten")
        .symlink("up", "../../../../..")
        .file("up/via-up", "x")
        .symlink("to-file", secret.to_str().unwrap())
        .file("to-file", "overwritten")
        .file(&format!("../../../../../..{outside}/.wh.secret"), "");
    let root = unpacked(&f, layer).await.unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "untouched");
    assert!(root.join("escaped").is_file());
    assert!(root.join("absolute").is_file());
    assert!(
        root.join("via-up").is_file(),
        "`..` stops at the layer's root"
    );
    assert!(root.join("to-file").is_file(), "the link is replaced");
    let inside = root.join(outside.trim_start_matches('/')).join("secret");
    assert_eq!(
        fs::read_to_string(inside).unwrap(),
        "overwritten",
        "below the layer's root"
    );
}

#[tokio::test]
async fn a_later_entry_replaces_an_earlier_one_but_directories_merge() {
    let f = Fixture::new();
    let layer = Layer::new()
        .dir("d", 0o700)
        .file("d/x", "1")
        .dir("d", 0o755)
        .file("d/x", "2")
        .symlink("s", "d/x")
        .file("s", "a file now")
        .dir("t", 0o755)
        .file("t/deep/y", "y")
        .file("t", "a file now");
    let root = unpacked(&f, layer).await.unwrap();
    assert_eq!(mode(&root.join("d")), 0o755);
    assert_eq!(fs::read_to_string(root.join("d/x")).unwrap(), "2");
    assert_eq!(fs::read_to_string(root.join("s")).unwrap(), "a file now");
    assert!(root.join("t").is_file());
}

#[tokio::test]
async fn overlayfs_own_attributes_in_an_image_are_dropped() {
    let f = Fixture::new();
    let layer = Layer::new()
        .dir("d", 0o755)
        .xattr("trusted.overlay.redirect", b"/../../etc")
        .xattr("user.overlay.opaque", b"y")
        .xattr("user.kept", b"1");
    let root = unpacked(&f, layer).await.unwrap();
    let d = root.join("d");
    assert_eq!(xattr(&d, "trusted.overlay.redirect"), None);
    assert_eq!(xattr(&d, "user.overlay.opaque"), None);
    assert_eq!(xattr(&d, "user.kept").unwrap(), b"1");
}

#[tokio::test]
async fn hostile_layers_are_refused_in_one_line_that_names_the_entry() {
    let f = Fixture::new();
    for (layer, word) in [
        (Layer::new().file("d/.wh...", ""), "whiteout"),
        (Layer::new().file("d/.wh..", ""), "whiteout"),
        (Layer::new().hardlink("a", "absent"), "hard link"),
        (
            Layer::new().hardlink("a", "../../../../../../etc/passwd"),
            "link",
        ),
        (Layer::new().file("f", "").file("f/below", ""), "f/below"),
        (
            Layer::new()
                .symlink("a", "b")
                .symlink("b", "a")
                .file("a/x", ""),
            "a/x",
        ),
        (Layer::new().file(".", "the root is a file"), "root"),
        (
            Layer::new().special(EntryType::new(b'V'), "label", 0, 0),
            "unknown entry type",
        ),
    ] {
        let e = unpacked(&f, layer).await.unwrap_err();
        assert!(e.contains(word) && !e.trim().contains('\n'), "{word}: {e}");
    }
    assert!(f.images.list().is_empty());
}

#[tokio::test]
async fn a_layer_cut_off_or_with_a_wrong_header_is_refused() {
    let f = Fixture::new();
    let layer = Layer::new()
        .bytes("f", &[7; 5000], 0o644)
        .last(|h| h.set_size(1 << 40));
    assert!(unpacked(&f, layer).await.is_err());
    let layer = Layer::new().file("f", "");
    let image = Image::build("x:1", &[layer], Packing::Plain, |_| {});
    let blob = image.layer_blob(0);
    assert!(image.blobs.contains_key(&blob));
    let f = f.reopen();
    assert_eq!(f.names("layers"), Vec::<String>::new());
}

#[tokio::test]
async fn holes_stay_holes() {
    let f = Fixture::new();
    let layer = Layer::new().bytes("zeros", &vec![0; 8 << 20], 0o644);
    let root = unpacked(&f, layer).await.unwrap();
    let meta = fs::metadata(root.join("zeros")).unwrap();
    assert_eq!(meta.len(), 8 << 20);
    assert!(meta.blocks() * 512 < 1 << 20);
}
