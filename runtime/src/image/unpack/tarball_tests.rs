//! The reader against what the `tar` crate writes, and against noise.

use std::io::Read;

use proptest::prelude::*;

use super::*;

fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in records {
        let body = key.len() + value.len() + 3;
        let length = (1..6)
            .map(|d| body + d)
            .find(|n| n.to_string().len() + body == *n)
            .unwrap();
        out.extend(format!("{length} {key}=").bytes());
        out.extend(*value);
        out.push(b'\n');
    }
    out
}

fn raw_entry(flag: u8, path: &str, data: &[u8]) -> Vec<u8> {
    let mut h = tar::Header::new_ustar();
    h.set_path(path).unwrap();
    h.set_entry_type(tar::EntryType::new(flag));
    h.set_size(data.len() as u64);
    h.set_mode(0o644);
    h.set_cksum();
    let mut out = h.as_bytes().to_vec();
    out.extend(data);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn all(bytes: &[u8]) -> io::Result<Vec<(Entry, Vec<u8>)>> {
    let mut reader = Reader::new(bytes);
    let mut found = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        let mut data = Vec::new();
        reader.read_to_end(&mut data)?;
        found.push((entry, data));
    }
    reader.finish()?;
    Ok(found)
}

#[test]
fn an_attribute_with_a_newline_keeps_its_value_and_what_stands_behind_it() {
    let ext = pax(&[
        ("SCHILY.xattr.security.capability", b"\x01\n\n=\0\x02"),
        ("size", b"3"),
        ("path", b"long/name"),
        ("uid", b"70000"),
        ("mtime", b"12.5"),
    ]);
    let mut bytes = raw_entry(b'x', "pax", &ext);
    bytes.extend(raw_entry(b'0', "short", b"abc"));
    bytes.extend(raw_entry(b'0', "next", b"z"));
    let found = all(&bytes).unwrap();
    let (entry, data) = &found[0];
    assert_eq!(entry.path, b"long/name");
    assert_eq!(
        entry.xattrs,
        [(b"security.capability".to_vec(), b"\x01\n\n=\0\x02".to_vec())]
    );
    assert_eq!(
        (entry.uid, entry.mtime, &data[..]),
        (70000, (12, 500_000_000), &b"abc"[..])
    );
    assert_eq!(found[1].0.path, b"next");
    assert!(
        found[1].0.xattrs.is_empty(),
        "an extension holds for one entry only"
    );
}

#[test]
fn long_names_and_links_of_gnu_tar_are_read() {
    let name = "d/".repeat(90) + "file";
    let mut builder = tar::Builder::new(Vec::new());
    let mut h = tar::Header::new_gnu();
    h.set_size(2);
    h.set_mode(0o4755);
    h.set_uid(7);
    builder.append_data(&mut h, &name, &b"hi"[..]).unwrap();
    let mut h = tar::Header::new_gnu();
    h.set_entry_type(tar::EntryType::Symlink);
    h.set_size(0);
    builder.append_link(&mut h, "link", &name).unwrap();
    let found = all(&builder.into_inner().unwrap()).unwrap();
    assert_eq!(found[0].0.path, name.as_bytes());
    assert_eq!((found[0].0.mode, found[0].0.uid), (0o4755, 7));
    assert_eq!(
        (found[1].0.kind, &found[1].0.link[..]),
        (Kind::Symlink, name.as_bytes())
    );
}

#[test]
fn sparse_unknown_oversized_and_cut_off_entries_are_errors() {
    assert!(all(&raw_entry(b'S', "a", b"")).is_err());
    assert!(all(&raw_entry(b'V', "a", b"")).is_err());
    assert!(all(&raw_entry(b'0', "a", &[1; 600])[..900]).is_err());
    assert!(all(&raw_entry(b'0', "a", b"")[..100]).is_err());
    assert!(all(&raw_entry(b'L', "a", &vec![b'a'; (1 << 20) + 1])).is_err());
    let sparse = raw_entry(b'x', "pax", &pax(&[("GNU.sparse.major", b"1")]));
    assert!(all(&sparse).is_err());
    let mut huge = raw_entry(b'0', "a", b"");
    huge[124..136].copy_from_slice(b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
    assert!(all(&huge).is_err());
}

#[test]
fn a_time_before_1970_counts_its_nanoseconds_upwards() {
    assert_eq!(seconds(b"-1.25"), Some((-2, 750_000_000)));
    assert_eq!(seconds(b"3"), Some((3, 0)));
    assert_eq!(seconds(b"3.1234567891"), Some((3, 123_456_789)));
    assert_eq!(seconds(b"x"), None);
}

proptest! {
    #[test]
    fn what_the_tar_crate_writes_is_read_back(
        entries in prop::collection::vec(("[a-z]{1,120}(/[a-z]{1,60}){0,3}", prop::collection::vec(any::<u8>(), 0..1500), 0u32..0o7777, 0u64..100_000), 0..8)
    ) {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, data, mode, id) in &entries {
            let mut h = tar::Header::new_gnu();
            h.set_size(data.len() as u64);
            h.set_mode(*mode);
            h.set_uid(*id);
            h.set_mtime(*id);
            builder.append_data(&mut h, path, &data[..]).unwrap();
        }
        let found = all(&builder.into_inner().unwrap()).unwrap();
        prop_assert_eq!(found.len(), entries.len());
        for ((entry, got), (path, data, mode, id)) in found.iter().zip(&entries) {
            prop_assert_eq!(&entry.path[..], path.as_bytes());
            prop_assert_eq!(got, data);
            prop_assert_eq!((entry.mode, u64::from(entry.uid)), (*mode, *id));
            prop_assert_eq!(entry.mtime.0, i64::try_from(*id).unwrap());
        }
    }

    #[test]
    fn noise_is_an_error_or_an_end_but_never_a_panic(noise in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = all(&noise);
    }

    #[test]
    fn a_damaged_archive_never_panics(at in 0usize..2048, byte in any::<u8>()) {
        let mut bytes = raw_entry(b'x', "pax", &pax(&[("size", b"3"), ("path", b"p")]));
        bytes.extend(raw_entry(b'0', "f", b"abc"));
        bytes[at] = byte;
        let _ = all(&bytes);
        let mut ext = Extension::default();
        let _ = ext.read_pax(&bytes[512..512 + at.min(512)]);
    }
}
