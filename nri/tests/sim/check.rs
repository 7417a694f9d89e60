//! The record of operations and events, and its rules:
//!
//! (a) an object is made only after every required plugin has answered its event
//!
//! (b) the lists and events of an instance match the existing objects, as far as it subscribes
//!
//! (c) an instance gets each event of an object once and in order; a plugin gets each creation once
//!
//! (d) an instance handles one event at a time
//!
//! (e) an instance gets no event that it did not subscribe to
//!
//! (f) every operation ends within its bound, the turn is held only while a plugin works, and
//! rollouts end
//!
//! (g) no state remains at the end
//!
//! (h) an event that a plugin has answered is not repeated, nor is any earlier one
//!
//! (i) a plugin that got the creation of an object gets its end

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};

use nri::{
    Delivery, EventMask, Observer, Outcome, PluginEvent, PluginId, PluginName,
    mask::event_name,
    policy::{Class, OnTimeout},
    proto::Event::{self, *},
};
use tokio::time::Instant;

use crate::plan::{Plan, PluginPlan};

/// The longest time that a message is in transit, both ways together.
const SLACK: Duration = Duration::from_millis(100);
/// The time for which a late answer is awaited if the plugin is skipped meanwhile.
const LATE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) rule: char,
    pub(crate) text: String,
}

/// A list that an instance got, and the events after it.
pub(crate) struct Epoch {
    at: Instant,
    done: Option<Instant>,
    list: BTreeSet<String>,
}

pub(crate) struct Received {
    at: Instant,
    event: Event,
    object: String,
    done: Option<Instant>,
    /// The event was answered without an error.
    ok: bool,
    epoch: usize,
}

/// One connection of a plugin.
pub(crate) struct Instance {
    id: PluginId,
    mask: EventMask,
    /// The plan cuts its connection at some point.
    cut: bool,
    daemon: u32,
    configured: Option<Instant>,
    /// The time at which an event that did not wait for this instance went to the older one and
    /// closed this one.
    passed_by: Option<Instant>,
    epochs: Vec<Epoch>,
    received: Vec<Received>,
    ended: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Refused,
    /// The caller gave up, or the daemon died.
    Dropped,
}

pub(crate) struct Op {
    event: Event,
    object: String,
    began: Instant,
    /// The time at which it got the turn, or needed none.
    runs: Option<Instant>,
    ended: Option<(Instant, End)>,
}

impl Op {
    fn overlaps(&self, from: Instant, to: Instant) -> bool {
        self.began < to && self.ended.is_none_or(|(end, _)| end > from)
    }
}

impl Received {
    fn overlaps(&self, from: Instant, to: Instant) -> bool {
        self.at < to && self.done.is_none_or(|done| done > from)
    }
}

impl Epoch {
    fn overlaps(&self, from: Instant, to: Instant) -> bool {
        self.at < to && self.done.is_none_or(|done| done > from)
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) lines: Vec<String>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) instances: Vec<Instance>,
    pub(crate) ops: Vec<Op>,
    deliveries: Vec<(u32, Delivery)>,
    pub(crate) daemon: u32,
    /// The time since when the turn has been held without a working plugin.
    idle: Option<Instant>,
}

impl State {
    /// Whether the answer arrived after the end of the operation, while it was still accepted.
    fn was_late(&self, h: &Received) -> bool {
        let mut of_it = self
            .ops
            .iter()
            .filter(|o| o.event == h.event && o.object == h.object);
        // A refused operation may end in the tick of the answer, which is then undone.
        let is_before = |o: &Op| {
            o.ended.is_some_and(|(end, how)| {
                h.done
                    .is_some_and(|done| end < done || (end == done && how == End::Refused))
            })
        };
        h.done.is_some_and(|done| done - h.at + SLACK < LATE) && of_it.any(is_before)
    }

    /// Whether the operation of this event ended before the instance got the event.
    fn was_kept(&self, h: &Received) -> bool {
        let mut of_it = self
            .ops
            .iter()
            .filter(|o| o.event == h.event && o.object == h.object);
        of_it.all(|o| o.ended.is_some_and(|(end, _)| end < h.at))
    }
}

pub(crate) struct Book {
    plan: Plan,
    start: Instant,
    pub(crate) state: Mutex<State>,
}

/// The order of events of one object.
fn rank(event: Event) -> u32 {
    match event {
        RunPodSandbox | CreateContainer => 1,
        ValidateContainerAdjustment => 2,
        PostCreateContainer => 3,
        StartContainer => 4,
        PostStartContainer => 5,
        UpdateContainer => 6,
        StopPodSandbox | StopContainer => 8,
        RemovePodSandbox | RemoveContainer => 9,
        _ => 7,
    }
}

pub(crate) fn makes(event: Event) -> bool {
    rank(event) == 1
}

fn of_pod(object: &str) -> bool {
    !object.contains('c')
}

pub(crate) fn takes_turn(event: Event) -> bool {
    matches!(event, CreateContainer | UpdateContainer | StopContainer)
}

impl Book {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            start: Instant::now(),
            state: Mutex::default(),
        }
    }

    fn limit(&self, id: &PluginId) -> Duration {
        let own = self
            .plan
            .plugins
            .get(id)
            .and_then(|s| s.policy.request_timeout);
        own.unwrap_or(self.plan.timeouts.request)
    }

    fn on_timeout(&self, id: &PluginId) -> OnTimeout {
        self.plan
            .plugins
            .get(id)
            .map_or(OnTimeout::Close, |s| s.policy.on_timeout())
    }

    fn must_run(&self, id: &PluginId) -> bool {
        self.plan.plugins.get(id).is_some_and(|s| s.policy.must_run)
    }

    pub(crate) fn note(&self, state: &mut State, line: std::fmt::Arguments<'_>) {
        let at = self.start.elapsed().as_millis();
        state.lines.push(format!("{at:>6} {line}"));
    }

    pub(crate) fn fault(&self, state: &mut State, rule: char, text: String) {
        self.note(state, format_args!("FAULT ({rule}) {text}"));
        state.faults.push(Fault { rule, text });
    }

    /// Records the connection of an instance; returns its number.
    pub(crate) fn connects(&self, plan: &PluginPlan) -> usize {
        let (id, mask) = (&plan.id, plan.mask);
        let mut state = self.state.lock().unwrap();
        let no = state.instances.len();
        let daemon = state.daemon;
        self.note(
            &mut state,
            format_args!("{id}#{no} connects, for {:#x}", mask.bits()),
        );
        state.instances.push(Instance {
            id: id.clone(),
            mask,
            cut: plan.link.cut.is_some(),
            daemon,
            configured: None,
            passed_by: None,
            epochs: Vec::new(),
            received: Vec::new(),
            ended: None,
        });
        no
    }

    pub(crate) fn configured(&self, no: usize) {
        self.state.lock().unwrap().instances[no].configured = Some(Instant::now());
    }

    pub(crate) fn listed(&self, no: usize, list: BTreeSet<String>) {
        let mut state = self.state.lock().unwrap();
        let id = state.instances[no].id.clone();
        self.note(&mut state, format_args!("{id}#{no} Synchronize {list:?}"));
        let at = Instant::now();
        let done = None;
        state.instances[no].epochs.push(Epoch { at, done, list });
    }

    pub(crate) fn synchronized(&self, no: usize) {
        let mut state = self.state.lock().unwrap();
        if let Some(epoch) = state.instances[no].epochs.last_mut() {
            epoch.done = Some(Instant::now());
        }
        let id = state.instances[no].id.clone();
        self.note(&mut state, format_args!("{id}#{no} synchronized"));
    }

    /// Records that the runtime closed the connection; `daemon` is the running one.
    pub(crate) fn dismissed(&self, no: usize, daemon: u32) {
        let mut state = self.state.lock().unwrap();
        let i = &state.instances[no];
        let settings = self.plan.plugins.get(&i.id);
        let required = settings.is_some_and(|s| s.policy.required);
        let guards = [RunPodSandbox, CreateContainer, ValidateContainerAdjustment];
        let is_refused = required && !guards.iter().any(|event| i.mask.has(*event));
        // Its Synchronize is in transit when the event arrives.
        let passed_by = i.passed_by.is_some_and(|at| at.elapsed() < SLACK);
        let waits = i.configured.is_some() && i.epochs.is_empty() && !is_refused && !passed_by;
        if i.daemon == daemon && !i.cut && waits {
            let text = format!("{}#{no}: dismissed before it was synchronized", i.id);
            self.fault(&mut state, 'f', text);
        }
    }

    pub(crate) fn ended(&self, no: usize) {
        let mut state = self.state.lock().unwrap();
        let now = Instant::now();
        state.instances[no].ended.get_or_insert(now);
        let id = state.instances[no].id.clone();
        self.note(&mut state, format_args!("{id}#{no} ended"));
        self.idle(&mut state);
    }

    /// Records an event at an instance; returns the event's number there.
    pub(crate) fn arrives(&self, no: usize, event: Event, object: &str) -> usize {
        let mut state = self.state.lock().unwrap();
        self.idle(&mut state);
        let now = Instant::now();
        let mut faults = Vec::new();
        let me = &state.instances[no];
        let (id, limit) = (&me.id, self.limit(&me.id));
        let what = format!("{id}#{no} {} {object}", event_name(event));
        if !me.mask.has(event) {
            faults.push(('e', format!("{what}: not subscribed")));
        }
        let mine = match self.on_timeout(id) {
            OnTimeout::Skip => LATE,
            OnTimeout::Close | OnTimeout::Keep => limit,
        };
        for other in me.received.iter().filter(|h| h.done.is_none()) {
            if now - other.at + SLACK < mine {
                let other = format!("{} {}", event_name(other.event), other.object);
                faults.push(('d', format!("{what}: while {other} is in work")));
            }
        }
        match me.epochs.last() {
            None => faults.push(('d', format!("{what}: before Synchronize"))),
            Some(epoch)
                if epoch.done.is_none() && now - epoch.at + SLACK < self.plan.timeouts.sync =>
            {
                faults.push(('d', format!("{what}: during Synchronize")));
            }
            Some(epoch) if makes(event) && epoch.list.contains(object) => {
                faults.push(('c', format!("{what}: was in its list")));
            }
            Some(_) => {}
        }
        let late = |h: &Received| h.done.map_or(now, |done| done) - h.at + SLACK >= limit;
        let epoch = me.epochs.len();
        let about = |h: &&Received| h.object == object && h.epoch == epoch;
        let undone = |i: &Instance| {
            let mut of = i.received.iter().filter(|h| h.object == object);
            self.on_timeout(&i.id) == OnTimeout::Skip
                && of.any(|h| makes(h.event) && (late(h) || state.was_late(h)))
        };
        for before in me.received.iter().filter(about) {
            let again = before.event == event && event != UpdateContainer;
            let kept = self.must_run(id) && late(before);
            let twice = again && !kept;
            // A validator may be called after it undid its own late answer.
            let validates = event == ValidateContainerAdjustment && undone(me);
            if (rank(before.event) > rank(event) || twice) && !validates {
                let before = event_name(before.event);
                faults.push(('c', format!("{what}: after {before}")));
            }
        }
        // Instances of this plugin at the same daemon.
        let of_id = |i: &&Instance| i.id == *id && i.daemon == me.daemon;
        let all = state.instances.iter().enumerate();
        for (other, instance) in all.filter(|(_, i)| of_id(i)) {
            for before in instance.received.iter().filter(|h| h.object == object) {
                let answered = before.done.is_some()
                    && !late(before)
                    && instance.ended.is_none_or(|end| end > before.at + limit);
                let teardown = Class::of(event) == Class::Teardown;
                let before_name = event_name(before.event);
                if makes(event) && before.event == event {
                    faults.push(('c', format!("{what}: #{other} was asked already")));
                } else if teardown
                    && answered
                    && rank(before.event) >= rank(event)
                    && (other == no && before.epoch == epoch || !undone(instance) && !undone(me))
                {
                    faults.push(('h', format!("{what}: #{other} has answered {before_name}")));
                }
            }
        }
        self.note(&mut state, format_args!("{what}"));
        for (rule, text) in faults {
            self.fault(&mut state, rule, text);
        }
        state.instances[no].received.push(Received {
            at: now,
            event,
            object: object.to_owned(),
            done: None,
            ok: false,
            epoch,
        });
        self.idle(&mut state);
        state.instances[no].received.len() - 1
    }

    pub(crate) fn answers(&self, no: usize, nth: usize, ok: bool) {
        let mut state = self.state.lock().unwrap();
        let received = &mut state.instances[no].received[nth];
        (received.done, received.ok) = (Some(Instant::now()), ok);
        self.idle(&mut state);
    }

    pub(crate) fn begins(&self, event: Event, object: &str) -> usize {
        let mut state = self.state.lock().unwrap();
        let began = Instant::now();
        self.note(
            &mut state,
            format_args!("begin {} {object}", event_name(event)),
        );
        state.ops.push(Op {
            event,
            object: object.to_owned(),
            began,
            runs: None,
            ended: None,
        });
        state.ops.len() - 1
    }

    pub(crate) fn runs(&self, op: usize) {
        let mut state = self.state.lock().unwrap();
        self.idle(&mut state);
        state.ops[op].runs = Some(Instant::now());
        self.idle(&mut state);
    }

    pub(crate) fn ends(&self, op: usize, end: End) {
        let mut state = self.state.lock().unwrap();
        self.idle(&mut state);
        let now = Instant::now();
        if state.ops[op].ended.is_some() {
            return;
        }
        state.ops[op].ended = Some((now, end));
        self.idle(&mut state);
        let Op {
            event,
            ref object,
            runs,
            ..
        } = state.ops[op];
        let object = object.clone();
        let what = format!("{} {object}", event_name(event));
        self.note(&mut state, format_args!("{end:?} {what}"));
        let took = runs.map_or(Duration::ZERO, |runs| now - runs);
        if let Some(operation) = self.plan.timeouts.operation
            && Class::of(event) == Class::Setup
            && took > operation + SLACK
        {
            self.fault(
                &mut state,
                'f',
                format!("{what}: took {took:?}, may take {operation:?}"),
            );
        }
        if end != End::Done || !makes(event) {
            return;
        }
        let required = self.plan.plugins.iter().filter(|(_, s)| s.policy.required);
        for (id, _) in required {
            let answered = state.instances.iter().any(|i| {
                let received =
                    |h: &Received| h.event == event && h.object == object && h.done.is_some();
                i.id == *id && i.received.iter().any(received)
            });
            let did_not_ask = state.deliveries.iter().any(|(_, d)| {
                let of = if d.container.is_empty() {
                    &d.pod
                } else {
                    &d.container
                };
                d.plugin == *id
                    && d.event == event
                    && *of == object
                    && d.outcome == Outcome::NotSubscribed
            });
            if !answered && !did_not_ask {
                self.fault(
                    &mut state,
                    'a',
                    format!("{what}: made without an answer of {id}"),
                );
            }
        }
    }

    /// Checks whether the turn is held while no plugin works on an event.
    fn idle(&self, state: &mut State) {
        let now = Instant::now();
        let holds = |op: &&Op| takes_turn(op.event) && op.runs.is_some() && op.ended.is_none();
        let holder = state.ops.iter().find(holds);
        let works = |i: &Instance| {
            let limit = self.limit(&i.id);
            let mut received = i.received.iter().filter(|h| h.done.is_none());
            let keeps = self.on_timeout(&i.id) == OnTimeout::Keep;
            i.ended.is_none() && received.any(|h| keeps || now - h.at < limit)
        };
        let Some(holder) = holder.filter(|_| !state.instances.iter().any(works)) else {
            state.idle = None;
            return;
        };
        let since = *state.idle.get_or_insert(now);
        if now - since > 5 * SLACK {
            let what = format!("{} {}", event_name(holder.event), holder.object);
            let idle = now - since;
            state.idle = None;
            self.fault(
                state,
                'f',
                format!("{what}: holds the turn for {idle:?} while no plugin works"),
            );
        }
    }

    /// Checks the rules that apply after all activity has ended. `there` lists the existing
    /// objects.
    pub(crate) fn at_the_end(&self, there: &BTreeSet<String>) {
        let mut state = self.state.lock().unwrap();
        let mut faults = Vec::new();
        let ids: BTreeSet<_> = state.instances.iter().map(|i| i.id.clone()).collect();
        for id in &ids {
            let alive = state
                .instances
                .iter()
                .enumerate()
                .filter(|(_, i)| i.id == *id && i.ended.is_none());
            let active = alive.max_by_key(|(_, i)| i.epochs.last().map(|epoch| epoch.at));
            if let Some((no, instance)) = active {
                self.compare(&state, no, instance, there, &mut faults);
            }
        }
        self.bounds_of_operations(&state, &mut faults);
        self.bounds_of_joins(&state, &mut faults);
        for (rule, text) in faults {
            self.fault(&mut state, rule, text);
        }
    }

    /// The bound is one request timeout for each event that plugins have meanwhile, plus the
    /// overlapping joins.
    fn bounds_of_operations(&self, state: &State, faults: &mut Vec<(char, String)>) {
        for op in &state.ops {
            let what = format!("{} {}", event_name(op.event), op.object);
            let Some((ended, _)) = op.ended else {
                faults.push(('f', format!("{what}: never ended")));
                continue;
            };
            let mut bound = self.plan.timeouts.request;
            for i in &state.instances {
                let received = i.received.iter().filter(|h| h.overlaps(op.began, ended));
                let joins = i.epochs.iter().filter(|e| e.overlaps(op.began, ended));
                let count = |of: usize| u32::try_from(of).unwrap();
                bound += self.limit(&i.id) * count(received.count());
                bound += self.plan.timeouts.sync * 3 * count(joins.count());
            }
            let took = ended - op.began;
            if took > bound {
                faults.push(('f', format!("{what}: took {took:?}, may take {bound:?}")));
            }
        }
    }

    /// A plugin must be synchronized once the operations that it finds have ended, including
    /// earlier ones that hold the turn.
    fn bounds_of_joins(&self, state: &State, faults: &mut Vec<(char, String)>) {
        for (no, i) in state.instances.iter().enumerate() {
            let (Some(from), true) = (i.configured, i.epochs.is_empty()) else {
                continue;
            };
            let to = i.ended.unwrap_or_else(Instant::now);
            let beside = state.ops.iter().filter(|o| o.overlaps(from, to));
            let longest = beside
                .map(|o| o.ended.map_or(to, |(end, _)| end) - o.began)
                .max();
            let of_id = || state.instances.iter().filter(|o| o.id == i.id);
            // Kept events of the older instance use its queue, one at a time.
            let kept = |h: &&Received| h.overlaps(from, to) && state.was_kept(h);
            let kept = of_id().flat_map(|o| &o.received).filter(kept).count();
            let bound = longest.unwrap_or_default() * 3
                + self.plan.timeouts.request
                + self.limit(&i.id) * u32::try_from(kept).unwrap();
            // Instances of one id join one after the other, and pause after two failures.
            let mut joins = of_id().flat_map(|o| &o.epochs);
            let others = joins.any(|e| e.overlaps(from, to) || e.at < to && !self.is_in_time(e));
            if to - from > bound && !others {
                let waited = to - from;
                let text = format!("{}#{no}: not synchronized within {waited:?}", i.id);
                faults.push(('f', text));
            }
        }
    }

    fn is_in_time(&self, epoch: &Epoch) -> bool {
        let limit = epoch.at + self.plan.timeouts.sync;
        epoch.done.is_some_and(|done| done < limit)
    }

    /// Compares the objects that an instance knows with the existing ones.
    fn compare(
        &self,
        state: &State,
        no: usize,
        me: &Instance,
        there: &BTreeSet<String>,
        faults: &mut Vec<(char, String)>,
    ) {
        let Some(epoch) = me.epochs.last().filter(|epoch| epoch.done.is_some()) else {
            return;
        };
        if me.received.iter().any(|h| h.done.is_none()) {
            return;
        }
        let limit = self.limit(&me.id);
        let excused = |object: &str| {
            let missed = |(daemon, d): &(u32, Delivery)| {
                let of = if d.container.is_empty() {
                    &d.pod
                } else {
                    &d.container
                };
                let missed = matches!(
                    d.outcome,
                    Outcome::TimedOut | Outcome::Skipped | Outcome::Cancelled
                );
                *daemon == me.daemon && d.plugin == me.id && of == object && missed
            };
            let mut received = me.received.iter().filter(|h| h.object == object);
            let late = received.any(|h| h.done.is_none_or(|done| done - h.at + SLACK > limit));
            late || state.deliveries.iter().any(missed)
        };
        // It must undo a creation that it answered after the operation had ended (G-34).
        let undoes = |object: &str| {
            let mut creations = me.received.iter().filter(|h| h.event == CreateContainer);
            self.on_timeout(&me.id) == OnTimeout::Skip
                && creations.any(|h| h.object == object && h.ok && state.was_late(h))
        };
        let who = format!("{}#{no}", me.id);
        let mut knows = epoch.list.clone();
        let received = me.received.iter().filter(|h| h.epoch == me.epochs.len());
        let mut reported: BTreeMap<&str, BTreeSet<Event>> = BTreeMap::new();
        for h in received {
            reported.entry(&h.object).or_default().insert(h.event);
            match h.event {
                RunPodSandbox | CreateContainer => drop(knows.insert(h.object.clone())),
                RemovePodSandbox | RemoveContainer => drop(knows.remove(&h.object)),
                _ => {}
            }
        }
        let events = |object: &str| {
            if of_pod(object) {
                (RunPodSandbox, StopPodSandbox, RemovePodSandbox)
            } else {
                (CreateContainer, StopContainer, RemoveContainer)
            }
        };
        for object in knows.iter().filter(|o| !there.contains(*o) && !excused(o)) {
            if me.mask.has(events(object).2) {
                faults.push(('b', format!("{who}: never told of the removal of {object}")));
            }
        }
        for object in there.iter().filter(|o| !knows.contains(*o) && !excused(o)) {
            if me.mask.has(events(object).0) {
                faults.push(('b', format!("{who}: never told of {object}")));
            }
        }
        for (object, reported) in reported {
            let (make, stop, _) = events(object);
            if reported.contains(&make)
                && !there.contains(object)
                && me.mask.has(stop)
                && !reported.contains(&stop)
                && (undoes(object) || !excused(object))
            {
                faults.push((
                    'i',
                    format!("{who}: asked for {object}, never told of its stop"),
                ));
            }
        }
    }
}

impl Observer for Book {
    fn delivered(&self, delivery: &Delivery) {
        let mut state = self.state.lock().unwrap();
        let d = delivery;
        let line = format!(
            "{} {} {} {}: {:?}",
            d.plugin,
            event_name(d.event),
            d.pod,
            d.container,
            d.outcome
        );
        self.note(&mut state, format_args!("    {line}"));
        let daemon = state.daemon;
        state.deliveries.push((daemon, delivery.clone()));
    }

    fn plugin(&self, plugin: &PluginName<'_>, event: &PluginEvent) {
        let mut state = self.state.lock().unwrap();
        self.note(&mut state, format_args!("    {plugin}: {event:?}"));
        let PluginEvent::Closed { reason } = event else {
            return;
        };
        if reason.starts_with("synchronize-failed: events passed it by") {
            let of_id = |i: &&mut Instance| Some(&i.id) == plugin.id && i.epochs.is_empty();
            for instance in state.instances.iter_mut().filter(of_id) {
                instance.passed_by = Some(Instant::now());
            }
        }
    }
}
