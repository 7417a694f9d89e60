//! A client's calls on its containers, and checks of their logs.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cairn_tests::{
    client::Cri,
    cri::{self, ContainerState},
    criclog,
    pod::{security, set_image},
    rng::Rng,
};
use tonic::Code;

use crate::{
    book::{Container, Pod, Program, Stage, subject},
    calls::{Link, Manner, Outcome},
    pods::LABEL,
    report::Op,
};

/// A planned container. `image`: one of the client's own, or busybox.
pub(crate) fn plan(link: &Link, pod: &Pod, serial: u32, image: &str, rng: &mut Rng) -> Container {
    let program = match rng.below(10) {
        0..=4 => Program::Counter,
        5..=7 => Program::Mortal {
            lines: rng.between(1, 400),
            code: i32::try_from(rng.between(0, 100)).unwrap_or(0),
        },
        _ => Program::Deaf,
    };
    let name = format!("{}-k{serial}", pod.name);
    let mut subject = subject(link, &name);
    subject.ids.extend(pod.id.clone());
    subject
        .history
        .note(format!("{program:?} in pod {}, image {image}", pod.name));
    Container {
        log: Path::new(&pod.config.log_directory)
            .join(&name)
            .join("0.log"),
        name,
        id: None,
        program,
        image: image.to_owned(),
        stage: Stage::Asked,
        subject,
        ending: None,
        start: None,
        acknowledged: 0,
        rotations: 0,
        log_checked: false,
    }
}

fn config(cri: &Cri, pod: &Pod, container: &Container) -> cri::ContainerConfig {
    let script = container.program.script(&container.name);
    let mut config = cri.container_config(&container.name, &["sh", "-c", &script]);
    let label = pod.config.labels.get(LABEL).cloned().unwrap_or_default();
    config.labels.insert(LABEL.to_owned(), label);
    set_image(&mut config, &container.image);
    let of_pod = pod.config.linux.as_ref();
    let of_pod = of_pod.and_then(|l| l.security_context.as_ref());
    security(&mut config).namespace_options = of_pod.and_then(|s| s.namespace_options.clone());
    config
}

/// CreateContainer, in an existing pod.
pub(crate) async fn create(link: &Link, pod: &Pod, container: &mut Container, manner: Manner) {
    let Some(id) = pod.id.clone() else { return };
    if let Some(dir) = container.log.parent() {
        // A kubelet also makes the directory.
        let _ = fs::create_dir_all(dir);
    }
    let ask = async |cri: Cri| {
        let config = config(&cri, pod, container);
        cri.client.create_container(&id, config, &pod.config).await
    };
    let subject = &container.subject;
    let reported = link.call(Op::CreateContainer, subject, manner, ask).await;
    if let Outcome::Done(id) = reported {
        container.identify(link, &id);
        container.stage = Stage::Made;
    }
}

/// StartContainer; after a lost answer it may already have run.
pub(crate) async fn start(link: &Link, container: &mut Container, manner: Manner) {
    let Some(id) = container.id.clone() else {
        return;
    };
    let again = container.stage == Stage::Starting;
    container.stage = Stage::Starting;
    container.start.get_or_insert((Instant::now(), None));
    let manner = Manner {
        expected: again.then_some(Code::FailedPrecondition),
        ..manner
    };
    let subject = &container.subject;
    let ask = async |cri: Cri| cri.client.start_container(&id).await;
    let reported = link.call(Op::StartContainer, subject, manner, ask).await;
    match reported {
        Outcome::Done(()) => {
            if container.start_forgotten(link) {
                container.ending = None;
            }
            container.stage = Stage::Started;
            if let Some((_, reported)) = &mut container.start {
                *reported = Some(Instant::now());
            }
        }
        Outcome::Refused(_) if !again => container.stage = Stage::NotStarted,
        // Its status shows whether it runs or failed to start.
        Outcome::Refused(_) | Outcome::Lost => {}
    }
}

/// StopContainer with a grace period in seconds.
pub(crate) async fn stop(link: &Link, container: &mut Container, grace: u64, manner: Manner) {
    let Some(id) = container.id.clone() else {
        return;
    };
    container.stage = container.stage.max(Stage::Stopping);
    let manner = Manner {
        longer: Duration::from_secs(grace),
        ..manner
    };
    let subject = &container.subject;
    let ask = async |cri: Cri| cri.client.stop_container(&id, grace).await;
    let reported = link.call(Op::StopContainer, subject, manner, ask).await;
    if reported.done().is_some() {
        container.stage = container.stage.max(Stage::Stopped);
    }
}

/// RemoveContainer. Returns whether it was acknowledged.
pub(crate) async fn remove(link: &Link, container: &mut Container, manner: Manner) -> bool {
    let Some(id) = container.id.clone() else {
        return false;
    };
    container.stage = Stage::Removing;
    link.weather.doom(&id);
    let subject = &container.subject;
    let ask = async |cri: Cri| cri.client.remove_container(&id).await;
    let reported = link.call(Op::RemoveContainer, subject, manner, ask).await;
    reported.done().is_some()
}

/// ContainerStatus: the state must be legal, and an end final.
pub(crate) async fn check(link: &Link, container: &mut Container) -> Option<ContainerState> {
    let id = container.id.clone()?;
    let manner = Manner {
        expected: Some(Code::NotFound),
        ..Default::default()
    };
    let subject = &container.subject;
    let ask = async |cri: Cri| cri.client.container_status(&id, false).await;
    let reported = link.call(Op::ContainerStatus, subject, manner, ask).await;
    let status = match &reported {
        Outcome::Done(answer) => answer.status.as_ref(),
        _ if reported.refused_as(Code::NotFound) => None,
        _ => return None,
    };
    let state = status.map(cri::ContainerStatus::state);
    let mut checked = container.check(link, state);
    if let Some(status) = status
        && state == Some(ContainerState::ContainerExited)
    {
        checked = checked.and_then(|()| container.ended(link, status));
    }
    if let Err(what) = checked {
        link.violation(&container.subject, &format!("ContainerStatus: {what}"));
    }
    if container.stage == Stage::Starting && state == Some(ContainerState::ContainerRunning) {
        container.stage = Stage::Started;
    }
    state
}

/// ExecSync with an exact expected answer.
pub(crate) async fn exec(link: &Link, container: &Container, rng: &mut Rng) {
    let (code, token) = (rng.below(200), rng.next());
    let script = format!("echo {token}; echo {code} >&2; exit {code}");
    let Some(answer) = ask(link, container, &["sh", "-c", &script]).await else {
        return;
    };
    let expected = (format!("{token}\n"), format!("{code}\n"), code);
    let printed = (
        String::from_utf8_lossy(&answer.stdout).into_owned(),
        String::from_utf8_lossy(&answer.stderr).into_owned(),
        u64::try_from(answer.exit_code).unwrap_or(u64::MAX),
    );
    // A killed or stopped monitor interrupts its execs.
    if printed != expected && !container.lost(link) {
        let what = format!("ExecSync answered {printed:?}, not {expected:?}");
        link.violation(&container.subject, &what);
    }
}

async fn ask(
    link: &Link,
    container: &Container,
    command: &[&str],
) -> Option<cri::ExecSyncResponse> {
    let id = container.id.as_ref()?;
    let (subject, manner) = (&container.subject, Manner::default());
    let exec = async |cri: Cri| cri.client.exec(id, command, 50).await;
    link.call(Op::ExecSync, subject, manner, exec).await.done()
}

/// Reads a counter's progress: its lines so far are acknowledged.
pub(crate) async fn count(link: &Link, container: &mut Container) {
    let file = format!("/dev/shm/{}", container.name);
    if let Some(answer) = ask(link, container, &["cat", &file]).await
        && let Ok(last) = String::from_utf8_lossy(&answer.stdout)
            .trim()
            .parse::<u64>()
    {
        container.acknowledged = container.acknowledged.max(last + 1);
    }
}

/// UpdateContainerResources.
pub(crate) async fn update(link: &Link, container: &Container, mebibytes: u64) {
    let Some(id) = container.id.clone() else {
        return;
    };
    let linux = cri::LinuxContainerResources {
        memory_limit_in_bytes: i64::try_from(mebibytes << 20).unwrap_or(0),
        ..Default::default()
    };
    let (subject, manner) = (&container.subject, Manner::default());
    let update = async |cri: Cri| cri.client.update_container(&id, linux).await;
    link.call(Op::UpdateResources, subject, manner, update)
        .await;
}

/// Rotates the log and reopens it, as a kubelet does.
pub(crate) async fn rotate(link: &Link, container: &mut Container) {
    let Some(id) = container.id.clone() else {
        return;
    };
    let aside = aside(&container.log, container.rotations);
    if fs::rename(&container.log, aside).is_err() {
        return;
    }
    container.rotations += 1;
    let request = cri::ReopenContainerLogRequest { container_id: id };
    let (subject, manner) = (&container.subject, Manner::default());
    let reopen = async |cri: Cri| {
        let mut runtime = cri.client.runtime;
        runtime.reopen_container_log(request).await
    };
    link.call(Op::ReopenContainerLog, subject, manner, reopen)
        .await;
}

fn aside(log: &Path, n: u32) -> PathBuf {
    log.with_extension(format!("log.{n:04}"))
}

/// Reads the complete log: numbers from 0 without gaps or repeats, at least the acknowledged ones;
/// all of them after the program's normal end.
pub(crate) async fn check_log(link: &Link, container: &mut Container) {
    let complete = match (container.program, &container.ending) {
        (Program::Mortal { lines, code }, Some(ending)) if ending.code == code => lines,
        (Program::Deaf, _) => return,
        _ => 0,
    };
    let lost = container.lost(link);
    let least = if lost {
        0
    } else {
        complete.max(container.acknowledged)
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match read_log(container, lost) {
            Ok(lines) if lines >= least => {
                container.log_checked = container.ending.is_some();
                return;
            }
            Ok(_) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(lines) => {
                let what = format!("its log has {lines} lines; {least} were acknowledged");
                return link.violation(&container.subject, &what);
            }
            Err(what) => return link.violation(&container.subject, &format!("its log: {what}")),
        }
    }
}

/// Returns the number of numbered lines.
fn read_log(container: &Container, lost: bool) -> Result<u64, String> {
    let mut bytes = Vec::new();
    for n in 0..container.rotations {
        bytes.extend(fs::read(aside(&container.log, n)).unwrap_or_default());
    }
    bytes.extend(fs::read(&container.log).unwrap_or_default());
    // It may be incomplete: a running or a killed writer.
    let whole = criclog::whole(&bytes);
    if whole.len() < bytes.len() && container.ending.is_some() && !lost {
        return Err("it ends within a record".to_owned());
    }
    let records = criclog::parse(whole)?;
    let lines = criclog::lines(&records, "stdout");
    for (n, line) in lines.iter().enumerate() {
        if *line != n.to_string() {
            return Err(format!("line {n} is {line:?}, of {}", lines.len()));
        }
    }
    Ok(lines.len() as u64)
}
