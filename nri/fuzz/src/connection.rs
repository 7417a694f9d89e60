//! A complete connection: sends a fuzzed plugin's bytes to the code that serves plugins, over a
//! socket, with a clock that advances only when every task is idle. Whatever the plugin does, every
//! operation ends in time, the plugin beside it gets every event, and no state remains at the end.

use std::{pin::Pin, sync::Arc, time::Duration};

use nri::{
    Adaptation, Handlers, HookRequest, PluginSettings, PluginState, Settings, Timeouts,
    adjust::Adjust,
    internals,
    policy::{Class, PluginPolicy},
    proto::*,
};
use parking_lot::Mutex;
use tokio::{net::UnixStream, time::timeout};

use super::{
    check,
    clock::block_on,
    input::Input,
    peer::Peer,
    samples,
    script::{Step, steps},
    watcher::Watcher,
};

/// The fuzzed plugin, if it registers correctly, and the plugin beside it, which follows all rules.
pub(super) const FUZZED: &str = "20-fuzzed";
const HONEST: &str = "90-honest";
/// The timeout of an event at one plugin.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// The limit of an operation: CreateContainer asks a plugin twice, the second time as a validator.
const OPERATION: Duration = Duration::from_secs(5);
/// The limit for a connection to become active or end, and for a script to be played.
const CONNECTION: Duration = Duration::from_secs(600);
/// The input is described in `script.rs`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input(data);
    let policy = samples::connection_policy(input.byte());
    let script = steps(&mut input);
    block_on(async {
        let whole = timeout(CONNECTION * 2, Box::pin(whole(policy, script))).await;
        whole.expect("a plugin comes to an end");
    });
}

async fn whole(policy: PluginPolicy, script: Vec<Step>) {
    let (watcher, honest) = (Arc::new(Watcher::default()), Arc::new(Honest::default()));
    let settings = PluginSettings {
        policy,
        ..PluginSettings::default()
    };
    let settings = Settings {
        socket: None,
        plugin_dir: None,
        timeouts: Timeouts {
            request: REQUEST_TIMEOUT,
            ..Timeouts::default()
        },
        plugins: [(samples::plugin(FUZZED), settings)].into(),
        ..Settings::default()
    };
    let nri = Adaptation::builder("fuzzed", "1")
        .settings(settings)
        .source(watcher.clone())
        .observer(watcher.clone())
        .in_process(samples::plugin(HONEST), honest.handlers())
        .start()
        .await
        .expect("nothing can fail without a socket");
    let (ours, theirs) = UnixStream::pair().expect("sockets can be made");
    let plugin = tokio::spawn(Peer::new(theirs).play(script));
    let session = internals::connect(&nri, ours).expect("a socket has a peer");
    let settled = timeout(CONNECTION, watcher.settled()).await;
    settled.expect("a plugin is in or out in time");
    Box::pin(life(&nri, &honest)).await;
    nri.shutdown("the end").await;
    session.await.expect("no panic in the session");
    plugin.await.expect("no panic in the plugin");
    let left = nri.plugins();
    let left = left.iter().find(|plugin| {
        let there = matches!(plugin.state, PluginState::Active | PluginState::Joining);
        there && plugin.id.to_string() != HONEST
    });
    assert!(left.is_none(), "left: {left:?}");
}

/// Runs a complete life of a pod. Events that cannot be vetoed must reach the honest plugin, each
/// once and in order.
async fn life(nri: &Adaptation, honest: &Honest) {
    let pod = || samples::pod(samples::POD);
    let container = || samples::small_container(samples::CONTAINER);
    let resources = LinuxResources::default;
    let mut sent = Vec::new();
    if within(Box::pin(nri.run_pod_sandbox(pod()))).await.is_ok() {
        if Box::pin(with_container(nri, &mut sent)).await {
            let update = nri.update_pod_sandbox(pod(), resources(), resources());
            if within(Box::pin(update)).await.is_ok() {
                within(Box::pin(nri.post_update_pod_sandbox(pod()))).await;
                sent.push(Event::PostUpdatePodSandbox);
            }
        }
        let turn = within(Box::pin(nri.turn(Event::StopContainer))).await;
        let stopped = within(Box::pin(nri.stop_container(&turn, pod(), container()))).await;
        check::updates(&stopped.merged.update, &stopped.merged.owners);
        drop(turn);
        within(Box::pin(nri.remove_container(pod(), container()))).await;
        sent.extend([Event::StopContainer, Event::RemoveContainer]);
    }
    within(Box::pin(nri.stop_pod_sandbox(pod()))).await;
    within(Box::pin(nri.remove_pod_sandbox(pod()))).await;
    sent.extend([Event::StopPodSandbox, Event::RemovePodSandbox]);
    assert_eq!(honest.received(), sent);
}

/// Sends the events from creation to the last update; returns false at the first veto.
async fn with_container(nri: &Adaptation, sent: &mut Vec<Event>) -> bool {
    let pod = || samples::pod(samples::POD);
    let container = || samples::small_container(samples::CONTAINER);
    let turn = within(Box::pin(nri.turn(Event::CreateContainer))).await;
    let created = within(Box::pin(nri.create_container(&turn, pod(), container()))).await;
    drop(turn);
    let Ok(created) = created else {
        return false;
    };
    check::updates(&created.merged.update, &created.merged.owners);
    within(Box::pin(nri.post_create_container(pod(), container()))).await;
    sent.push(Event::PostCreateContainer);
    if within(Box::pin(nri.start_container(pod(), container())))
        .await
        .is_err()
    {
        return false;
    }
    within(Box::pin(nri.post_start_container(pod(), container()))).await;
    sent.push(Event::PostStartContainer);
    let turn = within(Box::pin(nri.turn(Event::UpdateContainer))).await;
    let updated = nri.update_container(&turn, pod(), container(), LinuxResources::default());
    let updated = within(Box::pin(updated)).await;
    drop(turn);
    let Ok(updated) = updated else {
        return false;
    };
    check::updates(&updated.merged.others, &updated.merged.owners);
    within(Box::pin(nri.post_update_container(pod(), container()))).await;
    sent.push(Event::PostUpdateContainer);
    true
}

/// Boxed: an operation contains complete messages, and a test's thread has a small stack.
async fn within<T>(operation: Pin<Box<impl Future<Output = T>>>) -> T {
    let done = timeout(OPERATION, operation).await;
    done.expect("an operation ends in time")
}

/// The plugin beside the fuzzed one.
#[derive(Default)]
struct Honest(Mutex<Vec<Event>>);

impl Honest {
    fn handlers(self: &Arc<Self>) -> Handlers {
        let mut handlers = Handlers::new();
        macro_rules! receive {
            ($($request:ident),*) => {
                $(let this = self.clone();
                handlers = handlers.on(move |_: $request| {
                    this.receive($request::EVENT);
                    async { Ok(Default::default()) }
                });)*
            };
        }
        receive!(
            RunPodSandboxRequest,
            UpdatePodSandboxRequest,
            PostUpdatePodSandboxRequest,
            StopPodSandboxRequest,
            RemovePodSandboxRequest,
            PostCreateContainerRequest,
            StartContainerRequest,
            PostStartContainerRequest,
            UpdateContainerRequest,
            PostUpdateContainerRequest,
            StopContainerRequest,
            RemoveContainerRequest
        );
        handlers.create_container(|_, _| async {
            let mut adjust = ContainerAdjustment::default();
            adjust.add_annotation("honest", "yes");
            Ok((Some(adjust), Vec::new()))
        })
    }

    fn receive(&self, event: Event) {
        let mut received = self.0.lock();
        received.push(event);
    }

    /// Returns the events that no plugin may veto, in order.
    fn received(&self) -> Vec<Event> {
        let received = self.0.lock();
        let sure = |e: &&Event| matches!(Class::of(**e), Class::Teardown | Class::Notification);
        received.iter().filter(sure).copied().collect()
    }
}
