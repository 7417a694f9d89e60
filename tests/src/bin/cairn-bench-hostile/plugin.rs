//! The hostile plugins: this program as `plugin MISDEED SOCKET`, until its process is killed. They
//! are made of frames, because a stub prevents most misdeeds.

use std::{path::Path, time::Duration};

use cairn_tests::raw::{Call, Message, Raw};
use nri::{EventMask, proto::*};
use prost13::Message as _;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

/// The pod with the containers at whose creation plugins fail.
pub(crate) const VICTIM: &str = "victim";
/// Prefix of the names of containers that are updated without end.
pub(crate) const FLOODED: &str = "flooded";
/// Prefix of the names of pods whose events are kept.
pub(crate) const KEPT: &str = "kept";

/// A plugin's misbehavior.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// None: it accepts every event.
    Joins,
    /// Connects and never registers.
    HalfOpen,
    /// Closes its connection at RunPodSandbox, and connects again.
    Leaves,
    /// Requests updates in an endless loop.
    Floods,
    /// Connects many instances of one id.
    Multiplies,
    /// Never answers Synchronize, and connects again.
    SyncHangs,
    /// Answers Synchronize with 10 MB, and connects again.
    SyncIsLarge,
    /// Never answers RunPodSandbox, and requests to stay connected.
    RunHangs,
    /// Two plugins that close their connections at one container's creation, and connect again.
    Fails,
    /// Slow at events that the runtime has kept for it.
    SlowAtKept,
}

const ALL: [(&str, Attack); 10] = [
    ("joins", Attack::Joins),
    ("half-open", Attack::HalfOpen),
    ("leaves", Attack::Leaves),
    ("floods", Attack::Floods),
    ("multiplies", Attack::Multiplies),
    ("sync-hangs", Attack::SyncHangs),
    ("sync-is-large", Attack::SyncIsLarge),
    ("run-hangs", Attack::RunHangs),
    ("fails", Attack::Fails),
    ("slow-at-kept", Attack::SlowAtKept),
];

/// cairn's bound of connections that have not registered.
const HALF_OPEN: usize = 64;
/// The registration timeout, after which a runtime closes these connections.
const RENEWED: Duration = Duration::from_secs(5);
const LEAVERS: usize = 20;
const INSTANCES: usize = 2000;
/// Concurrent calls of UpdateContainers.
const FLOOD: u64 = 60;
/// Longer than the protocol's limit of a message.
const LARGE: usize = 10 << 20;
/// Time that a plugin works before it fails.
const WORK: Duration = Duration::from_millis(150);
/// Delay at a kept event; less than the request timeout.
const SLOW: Duration = Duration::from_millis(1500);
/// Pause before it connects again.
const AGAIN: Duration = Duration::from_millis(10);

/// A plugin's reaction to a request.
enum Behavior {
    Agrees,
    Hangs,
    Answers(Vec<u8>),
    /// Agrees after a delay.
    Delays(Duration),
    /// Closes the connection after a delay.
    Leaves(Duration),
}

/// The line that a plugin prints after its answer to Synchronize.
pub(crate) const SYNCHRONISED: &str = "synchronised";

impl Attack {
    pub(crate) fn name(self) -> &'static str {
        let named = ALL.iter().find(|(_, attack)| *attack == self);
        named.expect("each has a name").0
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|(n, _)| *n == name).map(|(_, m)| *m)
    }

    /// Misbehaves until the process is killed.
    pub(crate) async fn commit(self, socket: &Path) {
        let mut connections = JoinSet::new();
        let mut add = |index: &'static str| {
            let socket = socket.to_owned();
            connections.spawn(async move { self.connections(&socket, index).await });
        };
        match self {
            Self::HalfOpen => (0..HALF_OPEN).for_each(|_| add("10")),
            Self::Leaves => (0..LEAVERS).for_each(|_| add("10")),
            Self::Multiplies => (0..INSTANCES).for_each(|_| add("10")),
            Self::Fails => ["10", "20"].into_iter().for_each(add),
            // `must_run` is set for this id.
            Self::SlowAtKept => add("40"),
            _ => add("10"),
        }
        connections.join_all().await;
    }

    /// Connects again whenever the connection ends.
    async fn connections(self, socket: &Path, index: &str) {
        loop {
            let connected = Raw::connect(socket).await;
            let ended = match connected {
                Ok(mut raw) if self == Self::HalfOpen => {
                    // Ends early if the runtime closes it.
                    let _renewed = timeout(RENEWED, raw.next()).await;
                    continue;
                }
                Ok(raw) => self.connection(raw, index).await,
                Err(_) => Ended::Unregistered,
            };
            // Each instance registers once.
            if self == Self::Multiplies && ended == Ended::Registered {
                return;
            }
            sleep(AGAIN).await;
        }
    }

    async fn connection(self, mut raw: Raw, index: &str) -> Ended {
        let name = match self {
            Self::SlowAtKept => "must",
            // The runtime remembers failed plugins by name: use a new name for each row.
            _ => self.name(),
        };
        raw.register(index, name).await;
        let mut ended = Ended::Unregistered;
        let (mut flooded, mut number) = (Vec::new(), 0);
        while let Some(message) = raw.next().await {
            let call = match message {
                Message::Call(call) => call,
                // The flood continues at once.
                Message::Answer(_) if !flooded.is_empty() => {
                    number += 1;
                    let update = updates(&flooded, number);
                    raw.request("UpdateContainers", update).await;
                    continue;
                }
                Message::Answer(_) => continue,
            };
            ended = Ended::Registered;
            match self.behavior(&call) {
                Behavior::Agrees => raw.answer(&call, Vec::new()).await,
                Behavior::Answers(answer) => raw.answer(&call, answer).await,
                Behavior::Hangs => continue,
                Behavior::Delays(work) => {
                    sleep(work).await;
                    raw.answer(&call, Vec::new()).await;
                }
                Behavior::Leaves(work) => {
                    sleep(work).await;
                    return ended;
                }
            }
            if call.method == "Synchronize" {
                println!("{SYNCHRONISED}");
                if self == Self::Floods {
                    flooded = flooded_containers(&call);
                    for number in 0..FLOOD {
                        let update = updates(&flooded, number);
                        raw.request("UpdateContainers", update).await;
                    }
                }
            }
        }
        ended
    }

    fn behavior(self, call: &Call) -> Behavior {
        match (self, &*call.method) {
            (_, "Configure") => Behavior::Answers(self.configuration().encode_to_vec()),
            (Self::SyncHangs, "Synchronize") => Behavior::Hangs,
            (Self::SyncIsLarge, "Synchronize") => Behavior::Answers(large()),
            (Self::Leaves, "RunPodSandbox") => Behavior::Leaves(Duration::ZERO),
            (Self::RunHangs, "RunPodSandbox") => Behavior::Hangs,
            (Self::Fails, "CreateContainer") if pod(call) == VICTIM => Behavior::Leaves(WORK),
            (Self::SlowAtKept, _) if pod(call).starts_with(KEPT) => Behavior::Delays(SLOW),
            _ => Behavior::Agrees,
        }
    }

    /// Subscribes to all events of a life. A lost validator would refuse creations.
    fn configuration(self) -> ConfigureResponse {
        let validates = EventMask::of(Event::ValidateContainerAdjustment);
        ConfigureResponse {
            events: (EventMask::ALL - validates).to_wire(),
            failure_policy: (self == Self::RunHangs).then_some(FailurePolicy {
                fail_request: false,
                keep_connected: true,
            }),
        }
    }
}

/// Whether a connection had registered when it ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Unregistered,
    Registered,
}

/// The name of an event's pod, which is the first field of every event.
fn pod(call: &Call) -> String {
    let event = RemovePodSandboxRequest::decode(&*call.payload);
    let pod = event.ok().and_then(|event| event.pod);
    pod.map(|pod| pod.name).unwrap_or_default()
}

fn flooded_containers(call: &Call) -> Vec<String> {
    let listed = SynchronizeRequest::decode(&*call.payload).unwrap_or_default();
    let flooded = listed.containers.into_iter();
    let flooded = flooded.filter(|container| container.name.starts_with(FLOODED));
    flooded.map(|container| container.id).collect()
}

/// An update of these containers' CPU shares, different for each number and so never redundant.
fn updates(containers: &[String], number: u64) -> Vec<u8> {
    let shares = OptionalUInt64 {
        value: 1000 + number % 1000,
    };
    let resources = LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(shares),
            ..Default::default()
        }),
        ..Default::default()
    };
    let update = containers.iter().map(|id| ContainerUpdate {
        container_id: id.clone(),
        linux: Some(LinuxContainerUpdate {
            resources: Some(resources.clone()),
        }),
        ..Default::default()
    });
    UpdateContainersRequest {
        update: update.collect(),
        ..Default::default()
    }
    .encode_to_vec()
}

/// An answer to Synchronize beyond the protocol's limit.
fn large() -> Vec<u8> {
    const ID: usize = 64 << 10;
    let update = ContainerUpdate {
        container_id: "x".repeat(ID),
        ..Default::default()
    };
    SynchronizeResponse {
        update: vec![update; LARGE / ID],
        ..Default::default()
    }
    .encode_to_vec()
}
