//! Imports point down, module by module: within each package the modules' references form no cycle,
//! and the daemon's modules are on the floors of the drawing in ARCHITECTURE.md.
//!
//! An arrow is a path in a `use`, in code or in a macro's arguments that leads from one file's
//! module to another's, including a child or a parent. Code of tests makes no arrows.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use cairn_tests::bins::repository;
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use serde_json::Value;
use syn::{Attribute, Item, UseTree, spanned::Spanned};

/// Returns the libraries and programs of the workspace, from `cargo metadata`: name, kind, and
/// first file.
fn crates() -> Vec<(String, PathBuf)> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1"])
        .args(["--locked", "--offline"])
        .current_dir(repository())
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {errors}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let mut crates = Vec::new();
    for package in metadata["packages"].as_array().expect("a list") {
        for target in package["targets"].as_array().expect("a list") {
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            let name = text(&target["name"]);
            let name = match text(&target["kind"][0]).as_str() {
                "lib" => name,
                "bin" => format!("program {name}"),
                _ => continue,
            };
            crates.push((name, PathBuf::from(text(&target["src_path"]))));
        }
    }
    crates
}

/// A module by the names from the crate's root, which is empty.
type Module = Vec<String>;
/// Each arrow with its first place.
type Arrows = BTreeMap<(String, String), String>;

#[derive(Default)]
struct Crate {
    modules: BTreeSet<Module>,
    /// Absolute paths in a module: from, path, place.
    paths: Vec<(Module, Vec<String>, String)>,
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.to_token_stream().to_string();
        text.contains("cfg") && text.contains("test") && !text.contains("not (test")
            || text == "# [test]"
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

impl Crate {
    fn read(root: &Path) -> Self {
        let mut all = Self::default();
        let dir = root
            .parent()
            .expect("a file is in a directory")
            .to_path_buf();
        all.file(root, &dir, Module::new());
        all
    }

    /// `dir` is the directory of its children's files.
    fn file(&mut self, file: &Path, dir: &Path, module: Module) {
        let source = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let parsed = syn::parse_file(&source).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.modules.insert(module.clone());
        let name = file.strip_prefix(repository()).expect("below the root");
        let name = name.display().to_string();
        let place = Place { file: &name, dir };
        self.items(&parsed.items, place, &module, &module);
    }

    /// `inner` is the scope of the names: an inline module is not a file, and does not count as a
    /// module.
    fn items(&mut self, items: &[Item], place: Place<'_>, module: &Module, inner: &Module) {
        let children = items.iter().filter_map(|item| match item {
            Item::Mod(i) if !is_of_tests(&i.attrs) => Some(i.ident.to_string()),
            _ => None,
        });
        let children: BTreeSet<String> = children.collect();
        let Place { file, dir } = place;
        let here = Here {
            file,
            module,
            inner,
            children,
        };
        for item in items.iter().filter(|item| !is_of_tests(attributes(item))) {
            match item {
                Item::Mod(one) => {
                    let name = one.ident.to_string();
                    let mut child = inner.clone();
                    child.push(name.clone());
                    match &one.content {
                        Some((_, items)) => {
                            let dir = &dir.join(&name);
                            self.items(items, Place { file, dir }, module, &child)
                        }
                        None => {
                            let below = dir.join(&name);
                            let flat = below.with_extension("rs");
                            let file = if flat.exists() {
                                flat
                            } else {
                                below.join("mod.rs")
                            };
                            self.file(&file, &below, child);
                        }
                    }
                }
                Item::Use(one) => self.tree(&here, &one.tree, Vec::new()),
                other => self.tokens(&here, other.to_token_stream()),
            }
        }
    }

    fn tree(&mut self, here: &Here<'_>, tree: &UseTree, mut before: Vec<String>) {
        let line = tree.span().start().line;
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(here, &path.tree, before);
            }
            UseTree::Group(group) => {
                for one in &group.items {
                    self.tree(here, one, before.clone());
                }
            }
            UseTree::Name(name) => {
                before.push(name.ident.to_string());
                self.path(here, &before, line);
            }
            UseTree::Rename(name) => {
                before.push(name.ident.to_string());
                self.path(here, &before, line);
            }
            UseTree::Glob(_) => {
                before.push("*".to_owned());
                self.path(here, &before, line);
            }
        }
    }

    /// Reads every `a::b::c` in the code, including macros' arguments.
    fn tokens(&mut self, here: &Here<'_>, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        // The number of colons after the last name.
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.path(here, &std::mem::take(&mut path), line);
                        line = name.span().start().line;
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.path(here, &std::mem::take(&mut path), line);
                    colons = 0;
                    self.tokens(here, group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.path(here, &std::mem::take(&mut path), line);
                    colons = 0;
                }
            }
        }
        self.path(here, &path, line);
    }

    fn path(&mut self, here: &Here<'_>, path: &[String], line: usize) {
        // A single name makes no arrow; nor does the `crate` of `pub(crate)`.
        let [first, _, ..] = path else {
            return;
        };
        let mut absolute = match first.as_str() {
            "crate" => Module::new(),
            "self" | "super" => here.inner.clone(),
            child if here.children.contains(child) => here.inner.clone(),
            _ => return,
        };
        for name in path {
            match name.as_str() {
                "crate" | "self" => {}
                "super" => drop(absolute.pop()),
                name => absolute.push(name.to_owned()),
            }
        }
        let place = format!("{}:{line}: {}", here.file, path.join("::"));
        self.paths.push((here.module.clone(), absolute, place));
    }

    /// Returns the arrows: each path ends in the deepest module on it.
    fn arrows(&self, name: &str) -> Arrows {
        let written = |module: &[String]| {
            let mut all = vec![name.to_owned()];
            all.extend_from_slice(module);
            all.join("::")
        };
        let mut arrows = Arrows::new();
        for (from, path, place) in &self.paths {
            let mut to = path.as_slice();
            while !self.modules.contains(to) {
                to = &to[..to.len() - 1];
            }
            if to != from.as_slice() {
                let arrow = (written(from), written(to));
                arrows.entry(arrow).or_insert_with(|| place.clone());
            }
        }
        arrows
    }
}

/// A file, and the directory of its modules.
#[derive(Clone, Copy)]
struct Place<'a> {
    file: &'a str,
    dir: &'a Path,
}

/// The module of a line of code.
struct Here<'a> {
    file: &'a str,
    module: &'a Module,
    inner: &'a Module,
    children: BTreeSet<String>,
}

/// Returns the shortest way from one module to another.
fn way(arrows: &Arrows, from: &str, to: &str) -> Option<Vec<(String, String)>> {
    let mut came: BTreeMap<&str, &str> = BTreeMap::new();
    let mut todo = VecDeque::from([from]);
    while let Some(at) = todo.pop_front() {
        let from_here = arrows.range((at.to_owned(), String::new())..);
        for ((_, b), _) in from_here.take_while(|((a, _), _)| a == at) {
            if b != from && !came.contains_key(b.as_str()) {
                came.insert(b, at);
                todo.push_back(b);
            }
        }
    }
    let mut way = Vec::new();
    let mut at = to;
    while at != from {
        let before = came.get(at)?;
        way.push(((*before).to_owned(), at.to_owned()));
        at = before;
    }
    way.reverse();
    Some(way)
}

/// Returns the shortest cycle, as its arrows.
fn circle(arrows: &Arrows) -> Option<Vec<(String, String)>> {
    let circles = arrows.keys().filter_map(|(from, to)| {
        let mut all = way(arrows, to, from)?;
        all.push((from.clone(), to.clone()));
        Some(all)
    });
    circles.min_by_key(Vec::len)
}

fn shown(arrows: &Arrows, way: &[(String, String)]) -> String {
    let lines = way
        .iter()
        .map(|arrow| format!("  {} -> {} by {}", arrow.0, arrow.1, arrows[arrow]));
    lines.collect::<Vec<_>>().join("\n")
}

fn all_arrows() -> Arrows {
    let mut arrows = Arrows::new();
    for (name, root) in crates() {
        arrows.extend(Crate::read(&root).arrows(&name));
    }
    arrows
}

#[test]
fn imports_of_modules_point_down_only() {
    let all = all_arrows();
    assert!(
        all.len() > 500,
        "{} arrows: has something moved?",
        all.len()
    );
    if let Some(circle) = circle(&all) {
        let lines = shown(&all, &circle);
        panic!("a circle of imports: one of these must point the other way\n{lines}");
    }
}

/// Returns the daemon's modules in ARCHITECTURE.md's drawing, each with the number of its floor.
fn floors(picture: &str) -> BTreeMap<String, u8> {
    let mut floors = BTreeMap::new();
    let mut floor = None;
    for line in picture.lines() {
        if let Some(rest) = line.strip_prefix(" floor ") {
            let number = rest.split(' ').next().and_then(|n| n.parse().ok());
            floor = Some(number.unwrap_or_else(|| panic!("a floor has a number: {line}")));
        }
        let Some((_, rooms)) = line.split_once("runtime/src: ") else {
            continue;
        };
        // Their description follows after two spaces.
        let rooms = rooms.split("  ").next().unwrap_or_default();
        for room in rooms.split_whitespace() {
            let floor = floor.expect("a room stands on a floor");
            let twice = floors.insert(room.to_owned(), floor);
            assert!(twice.is_none(), "{room} stands on two floors");
        }
    }
    floors
}

/// Returns the arrows of package `name` from one of its modules up to another, or to or from a
/// module on no floor.
fn upward(arrows: &Arrows, name: &str, floors: &BTreeMap<String, u8>) -> Vec<String> {
    let room = |module: &str| {
        let mut names = module.split("::");
        (names.next() == Some(name)).then(|| names.next().unwrap_or_default().to_owned())
    };
    let mut wrong = Vec::new();
    for ((from, to), place) in arrows {
        let (Some(a), Some(b)) = (room(from), room(to)) else {
            continue;
        };
        // Files in the root belong to no module.
        let within = a.is_empty() || b.is_empty() || a == b;
        let down = floors.contains_key(&b) && floors.get(&a) >= floors.get(&b);
        if !within && !down {
            wrong.push(format!(
                "  {from} (floor {:?}) -> {to} (floor {:?}) by {place}",
                floors.get(&a),
                floors.get(&b)
            ));
        }
    }
    wrong
}

#[test]
fn rooms_stand_on_the_floors_of_the_picture() {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("it is there");
    let picture = text
        .split_once("## Floors")
        .and_then(|(_, rest)| rest.split("```").nth(1))
        .expect("ARCHITECTURE.md draws the floors");
    let floors = floors(picture);
    let read = Crate::read(&repository().join("runtime/src/lib.rs"));
    let rooms: BTreeSet<&String> = read.modules.iter().filter_map(|m| m.first()).collect();
    let drawn: BTreeSet<&String> = floors.keys().collect();
    assert_eq!(
        rooms, drawn,
        "the rooms of runtime/src, and those on the floors"
    );
    let wrong = upward(&read.arrows("cairn"), "cairn", &floors);
    assert!(
        wrong.is_empty(),
        "imports that point up: one of the two is on the wrong floor, or the import is\n{}",
        wrong.join("\n")
    );
}

#[test]
fn an_import_that_points_up_is_found_with_its_line() {
    let floors = floors(
        " floor 2   runtime/src: pod cri   the edge\n floor 1   runtime/src: tool\n           runtime/src: base",
    );
    assert_eq!(floors.len(), 4);
    let upward = |from: &str, to: &str| {
        let arrow = (format!("x::{from}"), format!("x::{to}"));
        upward(&Arrows::from([(arrow, "a.rs:7".to_owned())]), "x", &floors)
    };
    for (from, to) in [
        ("pod::a", "tool::b"),
        ("pod", "cri"),
        ("base", "tool"),
        ("pod::a", "pod::b"),
    ] {
        assert_eq!(upward(from, to), [""; 0], "{from} -> {to}");
    }
    for (from, to) in [("tool::b", "pod::a"), ("pod", "nowhere"), ("base", "cri")] {
        let found = upward(from, to);
        assert!(
            found.len() == 1 && found[0].ends_with("by a.rs:7"),
            "{from} -> {to}: {found:?}"
        );
    }
}

/// The modules of the machine must be below the pods; otherwise they become a context for
/// everything.
#[test]
fn the_machine_knows_no_pods() {
    let arrows = Crate::read(&repository().join("runtime/src/lib.rs")).arrows("cairn");
    assert!(
        way(&arrows, "cairn::pod::node", "cairn::pod::record").is_some(),
        "records are found: has something moved?"
    );
    for pods in ["state", "registry", "op", "driver", "notices", "pods"] {
        let pods = format!("cairn::pod::{pods}");
        for machine in ["node", "machine", "sandbox"] {
            let machine = format!("cairn::pod::{machine}");
            if let Some(way) = way(&arrows, &machine, &pods) {
                panic!("the machine imports {pods}\n{}", shown(&arrows, &way));
            }
        }
    }
}

/// The source reader itself: which paths make an arrow, and which do not.
#[test]
fn paths_are_found_in_imports_code_and_macros_and_not_in_tests() {
    let dir = tempfile::tempdir_in(repository().join("target")).expect("a directory");
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("written");
    write("lib.rs", "mod a; mod b; mod c; mod d; pub struct Root;");
    write("a.rs", "use crate::{b::{self, B}, Root};\nfn f() {}");
    write(
        "b.rs",
        "pub struct B;\nfn f() { println!(\"{}\", crate::c::C); }",
    );
    write(
        "c.rs",
        "pub const C: u8 = 0;\n#[cfg(test)]\nmod tests { use crate::a; }",
    );
    write(
        "d.rs",
        "impl super::c::Trait for u8 { fn f() -> Vec<super::a::A> { todo!() } }",
    );
    let read = Crate::read(&dir.path().join("lib.rs"));
    let arrows = read.arrows("x");
    let arrows: Vec<_> = arrows.keys().map(|(a, b)| format!("{a} -> {b}")).collect();
    assert_eq!(
        arrows,
        [
            "x::a -> x",
            "x::a -> x::b",
            "x::b -> x::c",
            "x::d -> x::a",
            "x::d -> x::c"
        ]
    );
}

#[test]
fn a_circle_is_found_with_its_lines() {
    let arrow = |a: &str, b: &str| ((a.to_owned(), b.to_owned()), format!("{a}.rs:1"));
    let tree = Arrows::from([arrow("a", "b"), arrow("b", "c"), arrow("a", "c")]);
    assert_eq!(circle(&tree), None);
    let mut ring = tree.clone();
    ring.extend([arrow("c", "a")]);
    assert_eq!(circle(&ring).map(|c| c.len()), Some(2));
    let mut long = tree;
    long.extend([arrow("c", "d"), arrow("d", "b")]);
    assert_eq!(circle(&long).map(|c| c.len()), Some(3));
}

/// Prints the arrows in cycles, for moving a module: `cargo test --test modules -- --ignored
/// --nocapture`.
#[test]
#[ignore = "prints, checks nothing"]
fn arrows_in_circles() {
    let all = all_arrows();
    for ((from, to), place) in &all {
        if way(&all, to, from).is_some() {
            println!("{from} -> {to}\t{place}");
        }
    }
}
