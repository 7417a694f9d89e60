//! The two requests that plugins send on their own initiative: RegisterPlugin and UpdateContainers.

use std::sync::Arc;

use nri::{
    Adaptation, Code, Handlers, PluginId, PluginSettings, Settings, Status,
    internals::{self, Identity, Who},
    mask::FieldMask,
    permit::Sets,
    proto::*,
};
use prost::Message;
use tokio::{net::UnixStream, runtime::Runtime};

use super::{
    input::Input,
    samples,
    watcher::{FAILS, Watcher},
};

/// The runtime side. Made once, because no test here changes it.
struct World {
    nri: Adaptation,
    watcher: Arc<Watcher>,
    tokio: Runtime,
    /// The identity of the connected plugin.
    identity: Arc<Identity>,
}

thread_local! {
    // Never dropped: tokio may have ended before the thread does.
    static WORLD: &'static World = Box::leak(Box::new(world()));
}

/// Returns the id of a plugin with the policy `samples::policy(control)`.
fn id_of(control: u8) -> PluginId {
    samples::plugin(&format!("20-way{}", control & 15))
}

const IN_PROCESS: &str = "00-inside";

fn world() -> World {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let watcher = Arc::new(Watcher::default());
    let settings = Settings {
        socket: None,
        plugin_dir: None,
        plugins: (0..16)
            .map(|control| {
                let policy = samples::policy(control);
                let settings = PluginSettings {
                    policy,
                    ..Default::default()
                };
                (id_of(control), settings)
            })
            .collect(),
        ..Settings::default()
    };
    let builder = Adaptation::builder("fuzzed", "1")
        .settings(settings)
        .source(watcher.clone())
        .in_process(samples::plugin(IN_PROCESS), Handlers::new());
    let nri = tokio.block_on(builder.start());
    let identity = tokio.block_on(async { Identity::of(&UnixStream::pair()?.0) });
    let identity = identity.expect("a socket has a peer");
    World {
        nri: nri.expect("nothing can fail without a socket"),
        watcher,
        identity: Arc::new(identity),
        tokio,
    }
}

/// The longest text from a peer, and one character that marks a cut.
const TEXT: usize = 1001;

fn is_one_short_line(text: &str) -> bool {
    text.chars().count() <= TEXT && !text.contains(char::is_control)
}

/// Input: a control byte (launched), a RegisterPluginRequest. It is registered with a
/// valid identity, or refused with a reason that waiting callers get, too; and only once
/// (NRI-301…304).
pub(super) fn register(data: &[u8]) {
    let mut input = Input(data);
    let control = input.byte();
    let fixed = (control & 2 != 0).then(|| samples::plugin("10-launched"));
    let payload = input.rest();
    let sound = RegisterPluginRequest::decode(payload).is_ok_and(|r| {
        let inside = format!("{}-{}", r.plugin_idx, r.plugin_name) == IN_PROCESS;
        let id = PluginId::new(r.plugin_idx, r.plugin_name);
        fixed.is_some() || (id.is_ok() && !inside)
    });
    WORLD.with(|world| {
        let who = match fixed.clone() {
            Some(id) => Who::Launched(id),
            None => Who::External(world.identity.clone()),
        };
        let (service, mut reported) = internals::service(&world.nri, who);
        let register = || world.tokio.block_on(service.register(payload));
        let answer = register();
        assert_eq!(answer.is_ok(), sound);
        let reported = reported.try_recv().expect("the waiting caller is notified");
        match (answer, reported) {
            (Ok(reply), Ok(registration)) => {
                assert!(reply.is_empty());
                assert!(is_one_short_line(&registration.nri_version));
                let id = registration.id;
                assert_eq!(id.to_string().parse(), Ok(id.clone()));
                assert!(fixed.is_none_or(|fixed| fixed == id));
            }
            (Err(answer), Err(reported)) => {
                assert_eq!(answer, reported);
                assert!(is_one_short_line(&answer.message), "{answer}");
            }
            (answer, reported) => panic!("the plugin hears {answer:?}, the session {reported:?}"),
        }
        let again = register();
        assert!(again.is_err_and(|status| status.is(Code::FailedPrecondition)));
    });
}

/// Input: a control byte, an UpdateContainersRequest. Each update is applied or reported as failed.
/// Forbidden updates are not applied, and a container that is being created is not changed
/// (NRI-440, NRI-441, NRI-570).
pub(super) fn unsolicited(data: &[u8]) {
    let mut input = Input(data);
    let control = input.byte();
    let payload = input.rest();
    WORLD.with(|world| {
        let who = Who::Launched(id_of(control));
        let (service, _told) = internals::service(&world.nri, who);
        let registered = world.tokio.block_on(service.register(&[]));
        registered.expect("it is launched");
        let ask = || world.tokio.block_on(service.update(payload));
        let early = ask();
        assert!(early.is_err_and(|status| status.is(Code::FailedPrecondition)));
        service.open(Arc::default());
        let creating = control & 16 != 0;
        let under_way = creating.then(|| {
            let event = Event::CreateContainer;
            internals::begin_dispatch(&world.nri, event, samples::POD, samples::CONTAINER)
        });
        let answer = ask();
        drop(under_way);
        let done = world.watcher.take_updates();
        let evicted = world.watcher.take_evictions();
        check(control, payload, answer, &done, &evicted);
    });
}

fn check(
    control: u8,
    payload: &[u8],
    answer: Result<Vec<u8>, Status>,
    done: &[ContainerUpdate],
    evicted: &[(String, String)],
) {
    let policy = samples::policy(control);
    let Ok(asked) = UpdateContainersRequest::decode(payload) else {
        assert!(answer.is_err_and(|status| status.is(Code::InvalidArgument)));
        return assert!(done.is_empty() && evicted.is_empty());
    };
    let answer = answer.expect("what fails is named, and is no error (NRI-441)");
    let failed = UpdateContainersResponse::decode(answer.as_slice())
        .expect("a message of ours")
        .failed;
    let not_evicted = asked.evict.len() - evicted.len();
    assert_eq!(done.len() + failed.len(), asked.update.len() + not_evicted);
    let creating = |id: &str| control & 16 != 0 && id == samples::CONTAINER;
    for update in done {
        assert!(!creating(&update.container_id) && update.container_id != FAILS);
        assert_eq!(update.sets() - policy.fields, FieldMask::NONE);
    }
    let known = |id: &str| {
        asked.update.iter().any(|u| u.container_id == id)
            || asked.evict.iter().any(|e| e.container_id == id)
    };
    assert!(failed.iter().all(|update| known(&update.container_id)));
    let permitted = |update: &ContainerUpdate| (update.sets() - policy.fields).is_empty();
    for update in asked.update.iter().filter(|update| !permitted(update)) {
        assert!(failed.contains(update), "a refused update is returned");
    }
    let wanted = if policy.fields.may_evict() {
        asked.evict.as_slice()
    } else {
        &[]
    };
    assert_eq!(evicted.len(), wanted.len());
    for (wish, (container, reason)) in wanted.iter().zip(evicted) {
        assert_eq!(wish.container_id, *container);
        assert!(is_one_short_line(reason));
    }
}
