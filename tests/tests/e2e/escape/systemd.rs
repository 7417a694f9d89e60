//! A host user on the system bus, over which the daemon requests cgroups from systemd.

use std::{fs, path::PathBuf, sync::Arc};

use cairn_tests::{Daemon, Setup, pod::host_network};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tonic::Status;
use zbus::{Connection, Message, OwnedObjectPath, Variant, connection};

const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// Unique names on the bus: systemd, the daemon, and the user.
const SYSTEMD: &str = ":1.2";
const DAEMON: &str = ":1.11";
const STRANGER: &str = ":1.66";

/// The actions of the user and of systemd at the next jobs.
#[derive(Clone, Copy, Default)]
struct Script {
    /// The user's forged signals before systemd's: the number of job ends, and their result.
    forged: Option<(u32, &'static str)>,
    /// The number of forged ends of other jobs.
    flood: u32,
    /// systemd reports a failure.
    fails: bool,
}

/// The bus with systemd and the user, at the other end of the daemon's connection. Signals to one
/// connection need no subscription, so that any user may send them.
struct Bus {
    script: Arc<Mutex<Script>>,
    cgroups: PathBuf,
}

impl Bus {
    /// Sets up a yard in which the daemon sees only cgroup v2.
    async fn furnish(daemon: &Daemon) -> Self {
        let script = "umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && mkdir -p /run/dbus";
        let furnished = daemon.yard.command("sh").args(["-c", script]).status();
        assert!(furnished.await.expect("sh runs").success());
        let bus = Self {
            script: Arc::default(),
            cgroups: daemon.yard.inside("/sys/fs/cgroup"),
        };
        let listener = UnixListener::bind(daemon.yard.inside("/run/dbus/system_bus_socket"));
        let listener = listener.expect("bound");
        let (script, cgroups) = (Arc::clone(&bus.script), bus.cgroups.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let stream = stream.into_std().expect("a socket");
                tokio::spawn(answer(stream, Arc::clone(&script), cgroups.clone()));
            }
        });
        bus
    }

    fn plays(&self, script: Script) {
        *self.script.lock() = script;
    }
}

async fn answer(
    stream: std::os::unix::net::UnixStream,
    script: Arc<Mutex<Script>>,
    cgroups: PathBuf,
) {
    type Properties<'a> = Vec<(String, Variant<'a>)>;
    type Unit<'a> = (
        String,
        String,
        Properties<'a>,
        Vec<(String, Properties<'a>)>,
    );
    let builder = connection::Builder::unix_stream(stream)
        .server(zbus::Guid::generate())
        .p2p();
    let Ok(mut messages) = builder.build_message_stream().await else {
        return;
    };
    let connection = Connection::from(&messages);
    connection.set_unique_name(SYSTEMD).expect("a name");
    let mut jobs = 0;
    while let Some(Ok(message)) = messages.next().await {
        let (header, body) = (message.header(), message.body());
        let member = header.member().map(|m| m.as_str().to_owned());
        let replied = match member.as_deref().unwrap_or_default() {
            "Hello" => connection.reply(&header, &DAEMON).await,
            "GetNameOwner" => connection.reply(&header, &SYSTEMD).await,
            "ListUnitsByPatterns" => {
                type Row = (
                    String,
                    String,
                    String,
                    String,
                    String,
                    String,
                    OwnedObjectPath,
                    u32,
                    String,
                    OwnedObjectPath,
                );
                let _: (Vec<String>, Vec<String>) = body.deserialize().expect("its body");
                connection.reply(&header, &Vec::<Row>::new()).await
            }
            job @ ("StartTransientUnit" | "StopUnit") => {
                let starts = job == "StartTransientUnit";
                let unit: String = if starts {
                    body.deserialize::<Unit<'_>>().expect("its body").0
                } else {
                    body.deserialize::<(String, String)>().expect("its body").0
                };
                jobs += 1;
                let _ = connection.reply(&header, &path(jobs)).await;
                let script = *script.lock();
                let mut signals = Vec::new();
                if let Some((times, result)) = script.forged {
                    signals.extend((0..times).map(|_| ended(STRANGER, jobs, &unit, result)));
                }
                let others = 1000..1000 + script.flood;
                signals.extend(others.map(|n| ended(STRANGER, n, "x.scope", "done")));
                let cgroup = cgroups.join(&unit);
                // The test checks the directory itself.
                let _ = match (starts, script.fails) {
                    (true, false) => fs::create_dir(cgroup),
                    (true, true) => Ok(()),
                    (false, _) => fs::remove_dir(cgroup),
                };
                let fails = starts && script.fails;
                let result = if fails { "failed" } else { "done" };
                signals.push(ended(SYSTEMD, jobs, &unit, result));
                connection.send_all(&signals).await
            }
            _ => connection.reply(&header, &()).await,
        };
        if replied.is_err() {
            return;
        }
    }
}

fn path(job: u32) -> OwnedObjectPath {
    OwnedObjectPath::try_from(format!("{OBJECT}/job/{job}")).expect("a path")
}

fn ended(sender: &'static str, job: u32, unit: &str, result: &str) -> Message {
    let signal = Message::signal(OBJECT, MANAGER, "JobRemoved").sender(sender);
    let body = (job, path(job), unit, result);
    signal.destination(DAEMON).build(&body).expect("a message")
}

/// Runs a pod in a slice of its own, and removes it.
async fn run(daemon: &Daemon, bus: &Bus, name: &str, script: Script) -> Result<(), Status> {
    let cri = daemon.cri();
    let slice = format!("cairntest{}{name}.slice", std::process::id());
    let mut config = cri.pod_config(name);
    host_network(&mut config);
    let linux = config.linux.as_mut().expect("set by pod_config");
    linux.cgroup_parent.clone_from(&slice);
    bus.plays(script);
    let ran = cri.try_pod(config).await;
    bus.plays(Script::default());
    let done = match ran {
        Ok(pod) => {
            pod.end().await;
            Ok(())
        }
        Err(error) => Err(error),
    };
    let cgroup = bus.cgroups.join(slice);
    let left = fs::remove_dir(&cgroup).is_ok();
    assert!(!left || done.is_err(), "{} was left", cgroup.display());
    done
}

#[tokio::test]
async fn users_of_the_host_end_no_job_of_systemd() {
    let setup = Setup::default().toml("driver = \"systemd\"\n");
    let mut daemon = Daemon::new(setup).await;
    let bus = Bus::furnish(&daemon).await;
    daemon.serve().await;
    run(&daemon, &bus, "quiet", Script::default())
        .await
        .expect("it is not disturbed");
    let forged = Script {
        forged: Some((3, "failed")),
        ..Script::default()
    };
    run(&daemon, &bus, "failed", forged)
        .await
        .expect("systemd ended it well");
    let flood = Script {
        flood: 6000,
        ..Script::default()
    };
    run(&daemon, &bus, "flood", flood)
        .await
        .expect("systemd ended it well");
    let early = Script {
        forged: Some((3, "done")),
        fails: true,
        ..Script::default()
    };
    let error = run(&daemon, &bus, "early", early).await;
    let text = error.expect_err("it failed").message().to_owned();
    assert!(text.contains("its job ended as failed"), "{text}");
}
