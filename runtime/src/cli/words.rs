//! The words and colors of the timeline for calls, steps, answers and lives of plugins. Shared by
//! text and page, so that both show the same. Pure.

use nri::mask::event_name;

use super::text::{duration, painted};
use crate::clock::nanoseconds;
use crate::trace::{Action, Changed, Event, Life, Outcome, Values, What, shown};

/// Colors by meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tint {
    Plain,
    Faint,
    Strong,
    Point,
    Good,
    Warn,
    Bad,
}

impl Tint {
    pub fn paint(self, text: &str, color: bool) -> String {
        let code = match self {
            Self::Plain => "",
            Self::Faint => "2",
            Self::Strong => "1",
            Self::Point => "1;36",
            Self::Good => "32",
            Self::Warn => "33",
            Self::Bad => "1;31",
        };
        painted(code, text, color)
    }
}

pub(super) fn action_text(action: &Action) -> (String, Tint) {
    let plain = |text: &str| (text.to_owned(), Tint::Plain);
    match action {
        Action::Namespaces => plain("namespaces made"),
        Action::Network { ips } if ips.is_empty() => plain("host network"),
        Action::Network { ips } => (format!("network attached: {}", ips.join(", ")), Tint::Plain),
        Action::Paused { pid } => (format!("pause process runs, pid {pid}"), Tint::Plain),
        Action::Ready => ("ready".to_owned(), Tint::Good),
        Action::ContainerMade => plain("container recorded"),
        Action::Created { pid } => (format!("process created, pid {pid}"), Tint::Plain),
        Action::Started => ("started".to_owned(), Tint::Good),
        Action::StartFailed { reason } => (format!("start failed: {reason}"), Tint::Bad),
        Action::Exited {
            code,
            reason,
            message,
        } => {
            let mut text = format!("exited {code}");
            for more in [reason, message].into_iter().filter(|t| !t.is_empty()) {
                text = format!("{text}, {more}");
            }
            (text, Tint::Plain)
        }
        Action::Evicted { plugin, reason } if reason.is_empty() => {
            (format!("evicted by {plugin}"), Tint::Warn)
        }
        Action::Evicted { plugin, reason } => {
            (format!("evicted by {plugin}: {reason}"), Tint::Warn)
        }
        Action::RequestFailed { plugin, why, .. } => (format!("{plugin}: {why}"), Tint::Bad),
        Action::Updated { values } => {
            let colon = if values.values.is_empty() { "" } else { ": " };
            let text = format!("resources updated{colon}{}", values_text(values));
            (text, Tint::Plain)
        }
        Action::Unrecorded { plugin, requests } => {
            let text = format!("{plugin}: {requests} events are not recorded: too many");
            (text, Tint::Warn)
        }
        Action::Removed => plain("container removed"),
        Action::NetworkGone => plain("network removed"),
        Action::Stopped => plain("stopped"),
        Action::SandboxRemoved => plain("sandbox removed"),
        Action::DaemonStarted { version } => (format!("cairn {version} started"), Tint::Strong),
        Action::DaemonStopping => plain("daemon stops"),
    }
}

fn outcome_text(outcome: &Outcome) -> (&'static str, &str, Tint) {
    match outcome {
        Outcome::Answered => ("answered", "", Tint::Good),
        Outcome::Refused(why) => ("refused", &why.message, Tint::Bad),
        Outcome::Unsent(why) => ("not sent", why, Tint::Bad),
        Outcome::TimedOut => ("timed out", "", Tint::Warn),
        Outcome::Lost(why) => ("lost", why, Tint::Warn),
        Outcome::Garbled(why) => ("garbled", why, Tint::Warn),
        Outcome::Conflict(why) => ("conflict", why, Tint::Bad),
        Outcome::Invalid(why) => ("invalid", why, Tint::Bad),
        Outcome::Denied(why) => ("denied", why, Tint::Bad),
        Outcome::Skipped => ("skipped", "", Tint::Warn),
        Outcome::NotSubscribed => ("not subscribed", "", Tint::Faint),
        Outcome::Joining => ("joining", "", Tint::Warn),
        Outcome::Absent => ("absent", "", Tint::Warn),
        Outcome::Cancelled => ("cancelled", "", Tint::Warn),
    }
}

pub(super) fn life_text(life: &Life) -> (String, Tint) {
    match life {
        Life::Launched => ("launched".to_owned(), Tint::Plain),
        Life::Registered { .. } => ("registered".to_owned(), Tint::Plain),
        Life::Configured { events } => {
            let names: Vec<_> = events.iter().map(event_name).collect();
            let names = if names.is_empty() {
                "no events".to_owned()
            } else {
                names.join(", ")
            };
            (format!("configured, wants {names}"), Tint::Plain)
        }
        Life::Synchronized {
            pods,
            containers,
            took,
        } => {
            let took = duration(nanoseconds(*took));
            let text = format!("synchronized, pods {pods}, containers {containers}, {took}");
            (text, Tint::Good)
        }
        Life::Unsolicited {
            updates,
            failed,
            evictions,
        } => {
            let text = format!(
                "asked by itself: updates {updates} ({failed} failed), evictions {evictions}"
            );
            (text, Tint::Plain)
        }
        Life::RequestFailed { why, .. } => (why.clone(), Tint::Bad),
        Life::Rejected { reason } => (format!("rejected: {reason}"), Tint::Bad),
        Life::Shadowed => (
            "shadowed: a newer instance is called from now on".to_owned(),
            Tint::Plain,
        ),
        Life::Closed { reason } => (format!("closed: {reason}"), Tint::Warn),
        Life::Restarting { after } => (
            format!("starts again in {}", duration(nanoseconds(*after))),
            Tint::Plain,
        ),
        Life::Shortened { left_out } => (
            format!("its list is too long, without {left_out}"),
            Tint::Warn,
        ),
        Life::Dropped { event } => (format!("missed {} for good", event_name(*event)), Tint::Bad),
        Life::Deprecated { event } => (
            format!(
                "takes {} as StateChange only, which is deprecated",
                event_name(*event)
            ),
            Tint::Warn,
        ),
    }
}

/// `linux.resources.cpu.cpus "0-1" -> "1", ...`
pub(super) fn values_text(values: &Values) -> String {
    let one = |Changed { field, old, new }: &Changed| match old {
        Some(old) => format!("{field} {} -> {}", shown(old), shown(new)),
        None => format!("{field} {}", shown(new)),
    };
    let mut all: Vec<_> = values.values.iter().map(one).collect();
    all.extend((values.more > 0).then(|| format!("and {} more", values.more)));
    all.join(", ")
}

/// A plugin's update: the plugin, its values or why it failed. `None` for all else.
pub(super) fn update_text(what: &What) -> Option<(&str, String, Tint)> {
    let What::Update {
        plugin,
        hook,
        target,
        values,
        error,
    } = what
    else {
        return None;
    };
    let of = if target.is_empty() {
        String::new()
    } else {
        format!(" of container {target}")
    };
    let values = values_text(values);
    let (text, tint) = match error {
        None => (
            format!("updated by {plugin} ({hook}): {values}"),
            Tint::Good,
        ),
        Some(why) => {
            let values = if values.is_empty() {
                values
            } else {
                format!(": {values}")
            };
            let text = format!("update{of} by {plugin} ({hook}) failed: {why}{values}");
            (text, Tint::Bad)
        }
    };
    Some((plugin, text, tint))
}

/// What one plugin made of one event.
pub(super) struct PluginAnswer<'a> {
    pub hook: &'a str,
    pub plugin: &'a str,
    pub word: &'static str,
    pub tint: Tint,
    /// `None` if it was not asked.
    pub took_ns: Option<u64>,
    /// Its requests and reason.
    pub detail: String,
    /// The fields that it set, with their values: `args = ["true"]`.
    pub set: Vec<String>,
}

/// `None` for other events.
pub(super) fn plugin_answer(what: &What) -> Option<PluginAnswer<'_>> {
    let What::Plugin {
        hook,
        plugin,
        outcome,
        took_ns,
        adjusted: _,
        changed,
        values,
        updates,
        evictions,
        left_out,
    } = what
    else {
        return None;
    };
    let (word, reason, tint) = match outcome {
        // Events that have happened, or must happen, cannot be refused.
        Outcome::Refused(why) if !can_refuse(hook) => ("error", why.message.as_str(), Tint::Warn),
        outcome => outcome_text(outcome),
    };
    let asked = !matches!(outcome, Outcome::NotSubscribed | Outcome::Absent);
    let with_value = |path: &String| {
        let known = values.values.iter().find(|value| value.field == *path);
        known.map_or_else(
            || path.clone(),
            |known| format!("{path} = {}", shown(&known.new)),
        )
    };
    let mut parts: Vec<String> = Vec::new();
    parts.extend(some(*updates, "update"));
    parts.extend(some(*evictions, "eviction"));
    if !left_out.is_empty() {
        parts.push(format!("too long, without {}", left_out.join("; ")));
    }
    parts.extend((!reason.is_empty()).then(|| reason.to_owned()));
    Some(PluginAnswer {
        hook,
        plugin,
        word,
        tint,
        took_ns: asked.then_some(*took_ns),
        detail: parts.join("; "),
        set: changed.iter().map(with_value).collect(),
    })
}

/// Nanoseconds from the first event, by its monotonic time and its time of day, to this one.
/// Monotonic time restarts at a reboot; then the time of day is used.
pub(super) fn since(begun: (u64, i64), event: &Event) -> u64 {
    let wall = u64::try_from(event.wall_ns.saturating_sub(begun.1)).unwrap_or(0);
    event.mono_ns.checked_sub(begun.0).unwrap_or(wall)
}

/// Hooks at which a plugin's error fails the operation.
fn can_refuse(hook: &str) -> bool {
    matches!(
        hook,
        "RunPodSandbox"
            | "CreateContainer"
            | "StartContainer"
            | "UpdateContainer"
            | "UpdatePodSandbox"
            | "ValidateContainerAdjustment"
    )
}

/// `CreateContainer app`.
pub(super) fn call(event: &Event) -> String {
    format!("{}{}", event.subject.call, of(event))
}

/// `C-04 CreateContainer app`; an event without a contract point has no id.
pub(super) fn point_text(point: &str, hook: &str, event: &Event) -> String {
    let space = if point.is_empty() { "" } else { " " };
    format!("{point}{space}{hook}{}", of(event))
}

/// ` app`, the container after a call or a point.
pub(super) fn of(event: &Event) -> String {
    match event.subject.container_name.as_str() {
        "" => String::new(),
        name => format!(" {name}"),
    }
}

/// `app: `, the container before a step.
pub(super) fn who(event: &Event) -> String {
    match event.subject.container_name.as_str() {
        "" => String::new(),
        name => format!("{name}: "),
    }
}

pub(super) fn some(count: u32, noun: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {noun}")),
        _ => Some(format!("{count} {noun}s")),
    }
}
