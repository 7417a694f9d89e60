//! The workload, drawn from the seed as a list of actions. Each action has a seed of its own, so
//! that it stays the same when others are removed.

use std::{collections::BTreeMap, time::Duration};

use nri::{
    PluginId, PluginSettings, Timeouts,
    mask::EventMask,
    policy::OnTimeout,
    proto::Event,
    sim::{Direction, Link, Rng},
};

/// Pods and plugins start within this time.
pub(crate) const HORIZON: u64 = 40_000;
const IDS: [&str; 4] = ["10-a", "20-b", "50-c", "90-d"];
const HEARD: [Event; 11] = [
    Event::RunPodSandbox,
    Event::StopPodSandbox,
    Event::RemovePodSandbox,
    Event::CreateContainer,
    Event::PostCreateContainer,
    Event::StartContainer,
    Event::UpdateContainer,
    Event::StopContainer,
    Event::RemoveContainer,
    Event::ValidateContainerAdjustment,
    Event::PostStartContainer,
];

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) timeouts: Timeouts,
    pub(crate) plugins: BTreeMap<PluginId, PluginSettings>,
    pub(crate) actions: Vec<(u64, Action)>,
}

#[derive(Debug, Clone)]
pub(crate) enum Action {
    Pod(PodPlan),
    Plugin(PluginPlan),
    /// The daemon dies, and starts again after this time.
    Restart(u64),
}

#[derive(Debug, Clone)]
pub(crate) struct PodPlan {
    pub(crate) seed: u64,
    pub(crate) containers: u64,
    /// The longest pause between two steps.
    pub(crate) pause: u64,
    /// The pod is not removed before the end.
    pub(crate) stays: bool,
    /// The caller of this setup step gives up after this time.
    pub(crate) gives_up: Option<(u64, u64)>,
}

#[derive(Debug, Clone)]
pub(crate) struct PluginPlan {
    pub(crate) seed: u64,
    pub(crate) id: PluginId,
    pub(crate) mask: EventMask,
    /// The longest time for an event.
    pub(crate) work: u64,
    /// This event always takes this time.
    pub(crate) slow: Option<(Event, u64)>,
    /// It continues to work after its timeout, as plugins in Go do.
    pub(crate) goes_on: bool,
    pub(crate) synchronize: u64,
    /// It refuses one in this number of setup events.
    pub(crate) refuses: Option<u64>,
    /// It ends after this time in this event, once in this number of times.
    pub(crate) crash: Option<(Event, u64, u64)>,
    pub(crate) lives: u64,
    /// It reconnects after this time, this number of times.
    pub(crate) again: (u64, u64),
    pub(crate) link: Link,
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn some<T>(rng: &mut Rng, times: u64, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    rng.once_in(times).then(|| make(rng))
}

fn of<T: Copy>(rng: &mut Rng, choice: &[T]) -> T {
    choice[rng.below(choice.len() as u64) as usize]
}

fn mask(rng: &mut Rng) -> EventMask {
    let all = HEARD
        .iter()
        .fold(EventMask::NONE, |mask, event| mask.with(*event));
    let some = HEARD.iter().fold(EventMask::NONE, |mask, event| {
        if rng.once_in(3) {
            mask
        } else {
            mask.with(*event)
        }
    });
    if some.is_empty() { all } else { some }
}

fn settings(rng: &mut Rng) -> PluginSettings {
    let mut settings = PluginSettings::default();
    let policy = &mut settings.policy;
    policy.required = rng.once_in(4);
    policy.must_run = rng.once_in(3);
    policy.on_timeout = of(
        rng,
        &[
            None,
            Some(OnTimeout::Close),
            Some(OnTimeout::Skip),
            Some(OnTimeout::Keep),
        ],
    );
    policy.breaker = of(rng, &[None, Some(0), Some(2)]);
    policy.fail_request = of(rng, &[None, None, Some(true)]);
    policy.request_timeout = of(rng, &[None, None, Some(ms(1000))]);
    settings
}

fn plugin(rng: &mut Rng, id: &PluginId, mask: EventMask) -> PluginPlan {
    PluginPlan {
        seed: rng.draw(),
        id: id.clone(),
        mask,
        work: of(rng, &[1, 20, 300, 1500]),
        slow: some(rng, 4, |rng| {
            (of(rng, &HEARD), of(rng, &[700, 1300, 2600, 600_000]))
        }),
        goes_on: rng.once_in(2),
        synchronize: {
            // An unused value: without it, the seeds of seeds.txt would lead to other plans.
            rng.once_in(5);
            of(rng, &[1, 1, 1500, 6000, 600_000])
        },
        refuses: some(rng, 4, |_| 8),
        crash: some(rng, 4, |rng| (of(rng, &HEARD), rng.below(400), 4)),
        lives: 500 + rng.below(30_000),
        again: (rng.below(3), 20 + rng.below(1000)),
        link: Link {
            seed: rng.draw(),
            delay: of(rng, &[Duration::ZERO, ms(1), ms(8)]),
            cut: some(rng, 8, |rng| {
                (
                    300 + rng.below(12_000) as usize,
                    of(rng, &[Direction::ToPlugin, Direction::ToRuntime]),
                )
            }),
            half: rng.once_in(3),
        },
    }
}

fn pod(rng: &mut Rng, pause: u64) -> Action {
    Action::Pod(PodPlan {
        seed: rng.draw(),
        containers: rng.below(3),
        pause,
        stays: rng.once_in(6),
        gives_up: some(rng, 10, |rng| (rng.below(4), rng.below(1000))),
    })
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let ids: Vec<PluginId> = IDS.iter().map(|id| id.parse().expect("an id")).collect();
        let ids = &ids[..2 + rng.below(3) as usize];
        let timeouts = Timeouts {
            sync: of(rng, &[ms(3000), ms(10_000)]),
            operation: of(rng, &[None, None, Some(ms(900)), Some(ms(3000))]),
            ..Timeouts::default()
        };
        let strict = rng.once_in(2);
        let mut plugins = BTreeMap::new();
        for id in ids {
            if strict || rng.once_in(3) {
                plugins.insert(id.clone(), settings(rng));
            }
        }
        let mut actions = Vec::new();
        let equal = rng.once_in(2);
        for id in ids {
            let own = mask(rng);
            for _ in 0..1 + rng.below(4) {
                let mask = if equal { own } else { mask(rng) };
                let mut plugin = plugin(rng, id, mask);
                // The last instance stays to the end, so that its knowledge can be checked.
                if rng.once_in(3) {
                    plugin.lives = 10 * HORIZON;
                }
                actions.push((rng.below(HORIZON / 2), Action::Plugin(plugin)));
            }
        }
        for _ in 0..4 + rng.below(12) {
            let pause = of(rng, &[10, 500, 3000]);
            actions.push((rng.below(HORIZON), pod(rng, pause)));
        }
        if rng.once_in(4) {
            // Pods start continuously.
            let (from, every) = (rng.below(HORIZON / 2), 100 + rng.below(400));
            for n in 0..40 {
                actions.push((from + n * every, pod(rng, 200)));
            }
        }
        if rng.once_in(4) {
            // Two plugins that fail at the same event and reconnect.
            let (at, event) = (
                rng.below(HORIZON / 2),
                of(rng, &[Event::CreateContainer, Event::RunPodSandbox]),
            );
            let back = 1 + rng.below(30);
            for id in &ids[..2] {
                let mask = mask(rng).with(event);
                let crashing = PluginPlan {
                    crash: Some((event, 50 + rng.below(200), 1)),
                    lives: 10 * HORIZON,
                    again: (200, back),
                    synchronize: 1,
                    work: 1,
                    link: Link::default(),
                    ..plugin(rng, id, mask)
                };
                actions.push((at, Action::Plugin(crashing)));
            }
        }
        for _ in 0..rng.below(3).saturating_sub(1) {
            actions.push((rng.below(HORIZON), Action::Restart(rng.below(2000))));
        }
        actions.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            timeouts,
            plugins,
            actions,
        }
    }
}
