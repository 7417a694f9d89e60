//! A plugin that breaks one rule of nri-bench, for its tests: `broken RULE [-socket-path PATH]`;
//! `broken none` breaks none. Every name is that of a rule.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};

use nri::{
    Code, Handlers, HookRequest, Status,
    adjust::{Adjust, update},
    proto::*,
    stub::{Runtime, Stub},
};
use rustix::process::{Signal, getpid, kill_process};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::sleep,
};

#[path = "broken/raw.rs"]
mod raw;

/// The connection, for handlers that send requests on their own initiative.
type Connection = watch::Receiver<Option<Runtime>>;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let rule = args.next().unwrap_or_default();
    let mut socket = None;
    while let Some(arg) = args.next() {
        if arg == "-socket-path" {
            socket = args.next().map(PathBuf::from);
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(serve(rule, socket))
}

async fn serve(rule: String, socket: Option<PathBuf>) -> ExitCode {
    // The stub never does these.
    if ["subscribes-to-all", "answer-after-shutdown"].contains(&rule.as_str()) {
        return raw::serve(&rule, &socket.expect("a socket")).await;
    }
    let stays = ["outlives-runtime", "stays-away"].contains(&rule.as_str());
    // Handled, so that SIGTERM does not end the program.
    let _deaf = stays.then(|| signal(SignalKind::terminate()).expect("a handler"));
    loop {
        let (report, connection) = watch::channel(None);
        let mut builder = Stub::builder(handlers(&rule, connection));
        if let Some(socket) = &socket {
            builder = builder.name("broken").index("10").socket(socket);
        }
        if rule == "state-change" {
            builder = builder.state_change_only();
        }
        match builder.register().await {
            Ok(stub) => {
                let _ = report.send(Some(stub.runtime()));
                let why = stub.wait().await;
                println!("lost: {why}");
            }
            Err(e) => println!("not started: {e}"),
        }
        match (stays, &socket) {
            (true, _) => std::future::pending().await,
            (false, Some(_)) => sleep(Duration::from_millis(50)).await,
            (false, None) => return ExitCode::FAILURE,
        }
    }
}

fn connected(connection: &Connection) -> Runtime {
    let connection = connection.borrow().clone();
    connection.expect("events come after the start")
}

fn env(key: &str, value: &str) -> Option<ContainerAdjustment> {
    let mut adjust = ContainerAdjustment::default();
    adjust.add_env(key, value);
    Some(adjust)
}

fn update_of(id: &str) -> ContainerUpdate {
    let mut request = update(id, false);
    let resources = request
        .linux
        .get_or_insert_default()
        .resources
        .get_or_insert_default();
    resources.pids = Some(LinuxPids { limit: 10 });
    request
}

fn handlers(rule: &str, connection: Connection) -> Handlers {
    let pods = |handlers: Handlers| {
        handlers
            .run_pod_sandbox(|_| async { Ok(()) })
            .stop_pod_sandbox(|_| async { Ok(()) })
            .remove_pod_sandbox(|_| async { Ok(()) })
    };
    let usual = || {
        let handlers = pods(Handlers::new());
        handlers
            .create_container(|_, _| async { Ok((env("GOOD", "1"), Vec::new())) })
            .start_container(|_, _| async { Ok(()) })
            .update_container(|_, _, _| async { Ok(Vec::new()) })
            .stop_container(|_, _| async { Ok(Vec::new()) })
            .remove_container(|_, _| async { Ok(()) })
    };
    match rule {
        "update-in-callback" => usual().start_container(move |_, container| {
            let runtime = connected(&connection);
            async move {
                let updates = vec![update_of(&container.id)];
                let _ = runtime.update_containers(updates, Vec::new()).await;
                Ok(())
            }
        }),
        // The rule above must not report this: the handler does not wait.
        "update-beside-callback" => usual().start_container(move |_, container| {
            let runtime = connected(&connection);
            tokio::spawn(async move {
                let updates = vec![update_of(&container.id)];
                runtime.update_containers(updates, Vec::new()).await
            });
            async {
                sleep(Duration::from_millis(50)).await;
                Ok(())
            }
        }),
        "unknown-container" => usual()
            .create_container(|_, _| async { Ok((None, vec![update_of("no-such-container")])) }),
        "kept-after-remove" => {
            let removed = Arc::<Mutex<Option<String>>>::default();
            let last = removed.clone();
            usual()
                .remove_container(move |_, container| {
                    *removed.lock().expect("no panic") = Some(container.id);
                    async { Ok(()) }
                })
                .create_container(move |_, _| {
                    let last = last.lock().expect("no panic").clone();
                    async move { Ok((None, last.iter().map(|id| update_of(id)).collect())) }
                })
        }
        "restless" => restless(connection),
        // Only a churn detects it.
        "counts-the-removed" => {
            let count = Arc::new(Mutex::new(0));
            usual().create_container(move |_, _| {
                let mut count = count.lock().expect("no panic");
                *count += 1;
                let adjust = env("NTH", &count.to_string());
                async move { Ok((adjust, Vec::new())) }
            })
        }
        "conflict" => {
            usual().create_container(|_, _| async { Ok((env("OTHER", "2"), Vec::new())) })
        }
        "bad-answer" => usual().create_container(|_, container| async move {
            Ok((None, vec![update_of(&container.id)]))
        }),
        "bad-adjustment" => usual().create_container(|_, _| async {
            let mut adjust = ContainerAdjustment::default();
            adjust.mounts.push(Mount {
                destination: "relative".into(),
                source: "/etc".into(),
                r#type: "bind".into(),
                options: vec!["rbind".into()],
            });
            Ok((Some(adjust), Vec::new()))
        }),
        "nameless" => usual().create_container(|_, _| async { Ok((env("", "1"), Vec::new())) }),
        "updates-the-stopped" => {
            usual().stop_container(|_, container| async move { Ok(vec![update_of(&container.id)]) })
        }
        "growth" => {
            let kept = Arc::new(Mutex::new(Vec::new()));
            usual().run_pod_sandbox(move |_| {
                kept.lock().expect("no panic").push(vec![7_u8; 256 << 10]);
                async { Ok(()) }
            })
        }
        "late-answer" => usual().start_container(|_, _| async {
            sleep(Duration::from_secs(6)).await;
            Ok(())
        }),
        "lost-connection" => usual().start_container(|_, _| async {
            // A signal that cannot be caught and leaves no core.
            let _ = kill_process(getpid(), Signal::KILL);
            std::future::pending().await
        }),
        "exits" => usual().start_container(|_, _| async {
            #[expect(
                clippy::disallowed_methods,
                reason = "a plugin that ends in the middle of a call"
            )]
            std::process::exit(3)
        }),
        "garbage" => usual().on(|_: Garbled| async {
            Ok(NoMessage {
                adjust: vec![0xff; 3],
            })
        }),
        "unhandled-event" => usual().start_container(|_, _| async {
            Err(Status::new(Code::Unimplemented, "not here").into())
        }),
        "teardown-refused" => usual().remove_container(|_, _| async { Err("who is that?".into()) }),
        // For replays: these break no rule.
        "subscribes-to-less" => pods(Handlers::new()),
        "adjusts-otherwise" => usual().create_container(|_, _| async {
            let mut adjust = ContainerAdjustment::default();
            adjust.add_env("GOOD", "2").add_annotation("new", "1");
            Ok((Some(adjust), Vec::new()))
        }),
        "refuses" => usual().create_container(|_, _| async { Err("not on my watch".into()) }),
        _ => usual(),
    }
}

/// Breaks no rule, and changes as much as possible: each event causes an update of the container
/// that existed first, and each answer that can carry a change has one.
fn restless(connection: Connection) -> Handlers {
    let first = Arc::<Mutex<String>>::default();
    let known = first.clone();
    let update = move || {
        let mut update = update_of(&known.lock().expect("no panic"));
        update.ignore_failure = true;
        update
    };
    let listed = update.clone();
    // Sent before the answer, without waiting.
    let aside = move || {
        let (runtime, updates) = (connected(&connection), vec![update()]);
        tokio::spawn(async move { runtime.update_containers(updates, Vec::new()).await });
        sleep(Duration::from_millis(20))
    };
    macro_rules! events {
        ($handlers:expr; $($event:ident($($arg:tt),*) $answer:expr;)*) => {
            $handlers$(.$event({
                let aside = aside.clone();
                move |$($arg),*| {
                    let aside = aside();
                    async move {
                        aside.await;
                        Ok($answer)
                    }
                }
            }))*
        };
    }
    let handlers = Handlers::new().synchronize(move |_, containers| {
        if let Some(container) = containers.first() {
            first.lock().expect("no panic").clone_from(&container.id);
        }
        let updates = if containers.is_empty() {
            Vec::new()
        } else {
            vec![listed()]
        };
        async move { Ok(updates) }
    });
    events! { handlers;
        run_pod_sandbox(_) ();
        update_pod_sandbox(_, _, _) ();
        stop_pod_sandbox(_) ();
        remove_pod_sandbox(_) ();
        create_container(_, _) (env("GOOD", "1"), Vec::new());
        start_container(_, _) ();
        update_container(_, container, _) vec![update_of(&container.id)];
        stop_container(_, _) Vec::new();
        remove_container(_, _) ();
    }
}

/// CreateContainer, with an invalid answer.
#[derive(Clone, PartialEq, prost::Message)]
struct Garbled {
    #[prost(message, optional, tag = "1")]
    pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    container: Option<Container>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NoMessage {
    #[prost(bytes = "vec", tag = "1")]
    adjust: Vec<u8>,
}

impl HookRequest for Garbled {
    const EVENT: Event = Event::CreateContainer;
    type Reply = NoMessage;

    fn pod(&self) -> Option<&PodSandbox> {
        self.pod.as_ref()
    }

    fn container(&self) -> Option<&Container> {
        self.container.as_ref()
    }
}
