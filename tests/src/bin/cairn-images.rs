//! cairn-images DIR [BUSYBOX [--kubernetes DIR [--cluster DIR]] [PLUGIN...]]: stand-ins for the images of
//! critest and of Kubernetes' tests.
//!
//! Writes `DIR/<n>.tar` (OCI layouts) and `DIR/images.tsv` (reference, file).
//!
//! The system's busybox serves `hack/contract`. A BUSYBOX (`hack/peers busybox`) with a C compiler and
//! nginx serves critest, but for an image with a public digest, and containerd's integration tests.
//!
//! The directory of Kubernetes' programs (`hack/peers node-tests`) adds the images of its node tests,
//! with the system's curl, bash, dig, nc and getent; that of its tests of a cluster
//! (`hack/peers cluster-tests`) those of these, with a DNS server.
//!
//! A PLUGIN is a static program; its images are `plugins.test/<program>:v1` and `:v2`, for
//! DaemonSets.

use std::{
    env,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use cairn_tests::image::{Image, Layer};
use serde_json::{Value, json};

const E2E: &str = "registry.k8s.io/e2e-test-images";
const STAGING: &str = "gcr.io/k8s-staging-cri-tools";
const CONTAINERD: &str = "ghcr.io/containerd";

/// Debian's busybox has no pgrep: finds by process name, as the spec uses it.
const PGREP: &str = "#!/bin/sh\n\
    found=1\n\
    for dir in /proc/[0-9]*; do\n\
    \x20 name=$(cat $dir/comm 2>/dev/null) || continue\n\
    \x20 case $name in *\"$1\"*) echo ${dir#/proc/}; found=0 ;; esac\n\
    done\n\
    exit $found\n";
const NGINX: &str = "#!/bin/sh\nexec httpd -f -p 80 -h /www\n";

/// Accounts as critest expects them: www-data is 33, and one user has an image-only group.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
    www-data:x:33:33:www-data:/var/www:/bin/false\n\
    default-user:x:1000:1000::/home/default-user:/bin/sh\n\
    nobody:x:65534:65534:nobody:/home:/bin/false\n";
const GROUP: &str = "root:x:0:\n\
    www-data:x:33:\n\
    default-user:x:1000:\n\
    group-defined-in-image:x:50000:default-user\n\
    nogroup:x:65534:\n";
/// Accounts of the public busybox image that containerd's tests name.
const BUSYBOX_PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
    daemon:x:1:1:daemon:/usr/sbin:/bin/false\n\
    nobody:x:65534:65534:nobody:/home:/bin/false\n";
const BUSYBOX_GROUP: &str = "root:x:0:\ndaemon:x:1:\nwheel:x:10:root\nnobody:x:65534:\n";
/// Accounts of agnhost: one user has an image-only group.
const AGNHOST_PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
    nobody:x:65534:65534:nobody:/:/bin/false\n\
    user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n";
const AGNHOST_GROUP: &str = "root:x:0:\n\
    user-defined-in-image:x:1000:\n\
    group-defined-in-image:x:50000:user-defined-in-image\n\
    nogroup:x:65534:\n";
/// Prints whether a set-user-id bit was honored, in the format of the no_new_privs spec.
const NNP: &str = "#include <stdio.h>\n#include <unistd.h>\n\
    int main(void) { printf(\"Effective uid: %d\\n\", geteuid()); return 0; }\n";
/// Takes memory as `stress -m 1 --vm-bytes 100M --vm-hang 0 -t 30` does, whatever its arguments.
const STRESS: &str = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
    int main(void) { size_t n = 104 << 20; char *p = malloc(n); memset(p, 1, n); sleep(30); return p[n / 2] - 1; }\n";
/// Ends by SIGTERM, which the first process of a PID namespace ignores without a handler.
const PAUSE: &str = "#include <signal.h>\n#include <unistd.h>\n\
    static void end(int number) { (void)number; _exit(0); }\n\
    int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }\n";

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1).peekable();
    let Some(dir) = args.next().map(PathBuf::from) else {
        eprintln!(
            "usage: cairn-images DIR [BUSYBOX [--kubernetes DIR [--cluster DIR]] [PLUGIN...]]"
        );
        return ExitCode::from(2);
    };
    let images = match args.next() {
        Some(busybox) => all(Path::new(&busybox)).and_then(|mut images| {
            if args.next_if(|arg| arg == "--kubernetes").is_some() {
                let programs = args.next().unwrap_or_default();
                images.extend(node_tests(Path::new(&busybox), Path::new(&programs))?);
            }
            if args.next_if(|arg| arg == "--cluster").is_some() {
                let programs = args.next().unwrap_or_default();
                cluster_tests(&mut images, Path::new(&programs))?;
            }
            for program in args {
                images.extend(plugin(Path::new(&program))?);
            }
            Ok(images)
        }),
        None => Ok(some()),
    };
    match images.and_then(|images| write(&dir, &images)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cairn-images: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An image and all its names.
type Named = (Vec<String>, Image);

fn write(dir: &Path, images: &[Named]) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut table = String::new();
    for (n, (names, image)) in images.iter().enumerate() {
        let file = dir.join(format!("{n}.tar"));
        image.write(&file);
        for name in names {
            table += &format!("{name}\t{}\n", file.display());
        }
    }
    fs::write(dir.join("images.tsv"), table)
}

fn marker(name: &str) -> Layer {
    Layer::default().file("marker", 0o644, name.as_bytes())
}

/// Images that need only the system's busybox.
fn some() -> Vec<Named> {
    let tools = Layer::default().file("bin/pgrep", 0o755, PGREP.as_bytes());
    let web = Layer::default()
        .dir("www", 0o755)
        .file("www/index.html", 0o644, b"hello\n")
        .file("bin/nginx", 0o755, NGINX.as_bytes());
    let mut images = Vec::new();
    let mut add = |name: String, layer: Layer, entrypoint: Value| {
        let image = Image::busybox(&name).config("Entrypoint", entrypoint);
        images.push((vec![name], image.layer(layer)));
    };
    add(format!("{E2E}/busybox:1.29-2"), tools, Value::Null);
    add(format!("{E2E}/nginx:1.14-2"), web, json!(["nginx"]));
    for name in [
        "test-image-latest:latest",
        "test-image-1:latest",
        "test-image-tag:test",
    ] {
        add(format!("{STAGING}/{name}"), marker(name), Value::Null);
    }
    // For the runtimes that cairn is compared with.
    let forever = json!(["sh", "-c", "exec sleep 2147483647"]);
    add(
        "registry.k8s.io/pause:3.10.2".to_owned(),
        Layer::default(),
        forever,
    );
    images
}

/// Busybox with the usual search path and these accounts.
fn with_accounts(busybox: &Path, passwd: &str, group: &str) -> Image {
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let accounts = Layer::default()
        .dir("var/www", 0o755)
        .dir("var/run", 0o755)
        .dir("var/tmp", 0o1777)
        .file("etc/passwd", 0o644, passwd.as_bytes())
        .file("etc/group", 0o644, group.as_bytes());
    Image::of_busybox("base", busybox)
        .config("Env", json!([path]))
        .layer(accounts)
}

/// All images of critest except the one by digest.
fn all(busybox: &Path) -> io::Result<Vec<Named>> {
    let base = with_accounts(busybox, PASSWD, GROUP);
    let mut images: Vec<Named> = Vec::new();
    let mut add = |names: &[String], image: Image| {
        images.push((names.to_vec(), image.name(&names[0])));
    };
    let busybox = || base.clone();
    let e2e = |name: &str| format!("{E2E}/{name}");
    let staging = |name: &str| format!("{STAGING}/{name}");

    add(&[e2e("busybox:1.29-2")], busybox().layer(marker("busybox")));
    let nginx = cairn_tests::bins::system("nginx")
        .ok_or_else(|| io::Error::other("nginx is not installed: hack/setup node"))?;
    for (name, port) in [
        (e2e("nginx:1.14-2"), 80),
        (staging("hostnet-nginx-amd64:latest"), 12003),
        (format!("{CONTAINERD}/nginx:1.27.0"), 80),
    ] {
        let image = busybox()
            .layer(nginx_layer(&nginx, port)?)
            .config("Entrypoint", json!(["nginx", "-g", "daemon off;"]))
            .config("Cmd", Value::Null)
            .config("StopSignal", json!("SIGQUIT"));
        add(&[name], image);
    }
    let page = Layer::default().file("var/www/index.html", 0o644, b"It works!\n");
    let httpd = "echo httpd is here >&2; exec httpd -f -vv -p 80 -h /var/www";
    add(
        &[e2e("httpd:2.4.39-4")],
        busybox()
            .layer(page)
            .config("Cmd", json!(["sh", "-c", httpd])),
    );
    let nnp = Layer::default().file("nnp", 0o4755, &compiled(NNP)?);
    add(
        &[e2e("nonewprivs:1.3")],
        busybox().layer(nnp).config("Cmd", json!(["/nnp"])),
    );
    // One image with names of two registries.
    let pause = Layer::default().file("pause", 0o755, &compiled(PAUSE)?);
    let pause = Image::bare("pause")
        .layer(pause)
        .config("Cmd", json!(["/pause"]));
    add(
        &["registry.k8s.io", "k8s.gcr.io"].map(|host| format!("{host}/pause:3.9")),
        pause.clone(),
    );
    // Another image: a spec counts the names of the first.
    add(
        &["registry.k8s.io/pause:3.10.2".to_owned()],
        pause.layer(marker("3.10.2")),
    );
    for name in [
        "test-image-latest:latest",
        "test-image-digest:latest",
        "test-image-1:latest",
        "test-image-2:latest",
        "test-image-3:latest",
    ] {
        add(&[staging(name)], busybox().layer(marker(name)));
    }
    add(
        &["test", "all"].map(|tag| staging(&format!("test-image-tag:{tag}"))),
        busybox().layer(marker("test-image-tag")),
    );
    add(
        &["1", "2", "3"].map(|tag| staging(&format!("test-image-tags:{tag}"))),
        busybox().layer(marker("test-image-tags")),
    );
    for (name, user) in [
        ("user-uid", "1002"),
        ("user-username", "www-data"),
        ("user-uid-group", "1003:1004"),
        ("user-username-group", "www-data:1004"),
        ("predefined-group", "1000"),
    ] {
        let image = busybox().layer(marker(name)).config("User", json!(user));
        add(&[staging(&format!("test-image-{name}:latest"))], image);
    }
    let stress = Layer::default().file("bin/stress", 0o755, &compiled(STRESS)?);
    add(
        &[e2e("resource-consumer:1.10")],
        busybox()
            .layer(stress)
            .config("Cmd", json!(["sleep", "2147483647"])),
    );
    // By their Dockerfiles in containerd's integration/images, on busybox.
    for (name, layer, volumes) in [
        (
            "busybox:1.36",
            Layer::default()
                .file("etc/passwd", 0o644, BUSYBOX_PASSWD.as_bytes())
                .file("etc/group", 0o644, BUSYBOX_GROUP.as_bytes()),
            json!({}),
        ),
        (
            "alpine:3.14.0",
            Layer::default()
                .file("etc/os-release", 0o644, b"NAME=\"Alpine Linux\"\n")
                .symlink("bin/sh", "/bin/busybox"),
            json!({}),
        ),
        (
            "volume-copy-up:2.2",
            Layer::default()
                .dir("test_dir", 0o755)
                .file("test_dir/test_file", 0o644, b"test_content\n")
                .dir("C:", 0o755)
                .dir("C:/weird_test_dir", 0o755)
                .file(
                    "C:/weird_test_dir/weird_test_file",
                    0o644,
                    b"test_content\n",
                )
                .dir(":colon_prefixed", 0o755)
                .file(
                    ":colon_prefixed/colon_prefixed_file",
                    0o644,
                    b"test_content\n",
                ),
            json!({"/test_dir": {}, "C:/weird_test_dir": {}, "/:colon_prefixed": {}}),
        ),
        (
            "volume-ownership:2.1",
            Layer::default().owned_dir("test_dir", 0o755, 65534),
            json!({"/test_dir": {}}),
        ),
    ] {
        let image = busybox().layer(layer).config("Volumes", volumes);
        add(&[format!("{CONTAINERD}/{name}")], image);
    }
    Ok(images)
}

/// The images of Kubernetes' node tests, by their Dockerfiles in test/images, on busybox.
fn node_tests(busybox: &Path, programs: &Path) -> io::Result<Vec<Named>> {
    let system = |name: &str| {
        cairn_tests::bins::system(name)
            .ok_or_else(|| io::Error::other(format!("{name} is not installed")))
    };
    let of = |name: &str| fs::read(programs.join(name));
    let plain = || with_accounts(busybox, PASSWD, GROUP);
    let mut images: Vec<Named> = Vec::new();
    let mut add = |names: &[&str], image: Image| {
        let names: Vec<String> = names.iter().map(|name| format!("{E2E}/{name}")).collect();
        let image = image.name(&names[0]);
        images.push((names, image));
    };
    add(
        &["busybox:1.37.0-2", "ipc-utils:1.4"],
        plain().layer(marker("1.37.0-2")),
    );
    let resolvers = |layer| {
        let layer = linked(layer, &system("dig")?, "usr/bin/dig")?;
        let layer = linked(layer, &system("getent")?, "usr/bin/getent")?;
        io::Result::Ok(layer.file("etc/nsswitch.conf", 0o644, b"hosts: files dns\n"))
    };
    add(
        &["glibc-dns-testing:2.1.1"],
        plain().layer(resolvers(Layer::default())?),
    );
    add(&["nonroot:1.5"], plain().config("User", json!("1234")));
    let nnp = Layer::default()
        .dir("usr/local", 0o755)
        .dir("usr/local/bin", 0o755)
        .file("usr/local/bin/nnp", 0o6755, &compiled(NNP)?);
    add(
        &["nonewprivs:1.4"],
        plain().layer(nnp).config("Cmd", json!(["nnp"])),
    );
    for tag in ["nginx:1.27.0-2", "nginx:1.28.0-2"] {
        let image = plain()
            .layer(nginx_layer(&system("nginx")?, 80)?)
            .config("Entrypoint", json!(["nginx", "-g", "daemon off;"]))
            .config("Cmd", Value::Null)
            .config("StopSignal", json!("SIGQUIT"));
        add(&[tag], image.layer(marker(tag)));
    }
    let tools = linked(Layer::default(), &system("curl")?, "usr/bin/curl")?;
    let tools = linked(tools, &system("bash")?, "bin/bash")?;
    let tools = linked(
        resolvers(tools)?,
        &system("nc.openbsd")?,
        "usr/local/bin/nc",
    )?
    .dir("uploads", 0o755)
    .file("agnhost", 0o755, &of("agnhost")?)
    .file("localhost.crt", 0o644, &of("localhost.crt")?)
    .file("localhost.key", 0o644, &of("localhost.key")?)
    .symlink("agnhost-2", "agnhost");
    let image = with_accounts(busybox, AGNHOST_PASSWD, AGNHOST_GROUP)
        .layer(tools)
        .layer(registry()?)
        .config("Entrypoint", json!(["/agnhost"]))
        .config("Cmd", json!(["pause"]));
    for version in ["2.66.1", "2.55"] {
        let image = image.clone().layer(marker(version));
        add(&[&format!("agnhost:{version}")], image);
    }
    let program = "sampledeviceplugin";
    let layer = Layer::default().file(program, 0o755, &of(program)?);
    add(
        &["sample-device-plugin:1.8.0"],
        plain().layer(layer).config(
            "Entrypoint",
            json!(["/sampledeviceplugin", "-alsologtostderr"]),
        ),
    );
    Ok(images)
}

/// Adds the other images of Kubernetes' tests of a cluster to those of its node tests.
fn cluster_tests(images: &mut Vec<Named>, programs: &Path) -> io::Result<()> {
    let agnhost = format!("{E2E}/agnhost:2.66.1");
    let agnhost = images.iter().find(|(names, _)| names.contains(&agnhost));
    let agnhost = agnhost.ok_or_else(|| io::Error::other("--cluster needs --kubernetes"))?;
    let agnhost = agnhost.1.clone();
    let mut add = |name: String, image: Image| images.push((vec![name.clone()], image.name(&name)));
    for animal in ["kitten", "nautilus"] {
        let data = format!("{{\"image\": \"{animal}.jpg\"}}\n");
        let layer = Layer::default()
            .file(&format!("{animal}.jpg"), 0o644, b"")
            .file("etc/os-release", 0o644, b"NAME=\"Alpine Linux\"\n")
            .file("data.json", 0o644, data.as_bytes());
        let image = agnhost.clone().layer(layer);
        add(
            format!("{E2E}/{animal}:1.8"),
            image.config("Cmd", json!(["test-webserver"])),
        );
    }
    for (name, program, file) in [
        (
            "e2e-test-images/sample-apiserver:1.29.2",
            "sample-apiserver",
            "sample-apiserver",
        ),
        ("etcd:3.7.0-0", "etcd", "usr/local/bin/etcd"),
        ("coredns/coredns:v1.14.3", "coredns", "coredns"),
    ] {
        let layer = Layer::default().dir("tmp", 0o1777).file(
            file,
            0o755,
            &fs::read(programs.join(program))?,
        );
        let image = Image::bare(program)
            .layer(layer)
            .config("Entrypoint", json!([format!("/{file}")]));
        add(format!("registry.k8s.io/{name}"), image);
    }
    Ok(())
}

/// The files of agnhost's registry, which has one image. Its directory has a short name for tar.
fn registry() -> io::Result<Layer> {
    let pause = Layer::default().file("pause", 0o755, &compiled(PAUSE)?);
    let image = Image::bare("pause:testing")
        .layer(pause)
        .config("Cmd", json!(["/pause"]))
        .blobs();
    let mut layer = Layer::default().symlink("var/registry", "/r").file(
        "r/pause/manifests/testing",
        0o644,
        image.manifest.as_bytes(),
    );
    for (digest, content) in &image.blobs {
        let kind = if *digest == image.manifest {
            "manifests"
        } else {
            "blobs"
        };
        let hex = digest.trim_start_matches("sha256:");
        let name = format!("r/pause/{kind}/sha256/{}/{hex}/data", &hex[..2]);
        layer = layer.file(&name, 0o644, content);
    }
    Ok(layer)
}

/// A plugin's image: only its program, in two versions with different layers.
fn plugin(program: &Path) -> io::Result<[Named; 2]> {
    let name = program.file_name().and_then(OsStr::to_str);
    let name = name.ok_or_else(|| io::Error::other("a plugin's program has no name"))?;
    let bytes = fs::read(program)?;
    Ok(["v1", "v2"].map(|version| {
        let reference = format!("plugins.test/{name}:{version}");
        let layer = marker(version).file(name, 0o755, &bytes);
        let image = Image::bare(&reference)
            .layer(layer)
            .config("Entrypoint", json!([format!("/{name}")]));
        (vec![reference], image)
    }))
}

/// Compiles a few lines of C to a static program.
fn compiled(source: &str) -> io::Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let (from, to) = (dir.path().join("program.c"), dir.path().join("program"));
    fs::write(&from, source)?;
    let flags = ["-Os", "-static", "-s", "-Wl,--build-id=none", "-o"];
    run(
        "gcc",
        flags.map(OsStr::new),
        [to.as_os_str(), from.as_os_str()],
    )?;
    fs::read(to)
}

fn run<'a>(
    program: &str,
    flags: impl IntoIterator<Item = &'a OsStr>,
    rest: impl IntoIterator<Item = &'a OsStr>,
) -> io::Result<String> {
    let ran = Command::new(program).args(flags).args(rest).output();
    let ran = ran.map_err(|error| io::Error::other(format!("{program}: {error}")))?;
    if !ran.status.success() {
        let why = String::from_utf8_lossy(&ran.stderr);
        return Err(io::Error::other(format!("{program}: {}", why.trim())));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// The system's nginx with its shared libraries.
fn nginx_layer(program: &Path, port: u16) -> io::Result<Layer> {
    let conf = format!(
        "user www-data;\nworker_processes 1;\npid /var/run/nginx.pid;\nerror_log /dev/stderr notice;\n\
         events {{ worker_connections 128; }}\n\
         http {{ access_log off; server {{ listen {port}; root /usr/share/nginx/html; }} }}\n"
    );
    let layer = Layer::default()
        .dir("var/log/nginx", 0o755)
        .dir("var/lib/nginx", 0o755)
        .file("usr/share/nginx/html/index.html", 0o644, b"hello\n")
        .file("etc/nginx/nginx.conf", 0o644, conf.as_bytes());
    linked(layer, program, "usr/sbin/nginx")
}

/// Adds a program of the system under a name, with its shared libraries.
fn linked(layer: Layer, program: &Path, name: &str) -> io::Result<Layer> {
    let mut layer = layer.file(name, 0o755, &fs::read(program)?);
    let linked = run("ldd", [program.as_os_str()], [])?;
    let libraries = linked
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    for library in libraries {
        let name = library.trim_start_matches('/');
        layer = layer.file(name, 0o755, &fs::read(library)?);
    }
    Ok(layer)
}
