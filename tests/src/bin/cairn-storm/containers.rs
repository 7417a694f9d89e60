//! What a client does to its containers, and how it reads their logs.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cairn_tests::{
    client::Cri,
    cri::{self, ContainerState},
    criclog,
};
use tonic::Code;

use crate::{
    book::{Container, Pod, Program, Stage, subject},
    calls::{Link, Manner, Op, Told},
    pods::LABEL,
    rng::Rng,
};

/// A container that is only in the books yet. `image`: one of the client's own, or busybox.
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
    config.image.as_mut().expect("set").image = container.image.clone();
    let of_pod = pod
        .config
        .linux
        .as_ref()
        .and_then(|l| l.security_context.as_ref());
    let linux = config.linux.as_mut().expect("set by container_config");
    let security = linux
        .security_context
        .as_mut()
        .expect("set by container_config");
    security.namespace_options = of_pod.and_then(|s| s.namespace_options.clone());
    config
}

/// CreateContainer, in a pod that was made.
pub(crate) async fn create(link: &Link, pod: &Pod, container: &mut Container, manner: Manner) {
    let Some(id) = pod.id.clone() else { return };
    if let Some(dir) = container.log.parent() {
        // As a kubelet does.
        let _ = fs::create_dir_all(dir);
    }
    let told = link
        .call(Op::Create, &container.subject, manner, async |cri| {
            let request = cri::CreateContainerRequest {
                pod_sandbox_id: id,
                config: Some(config(&cri, pod, container)),
                sandbox_config: Some(pod.config.clone()),
            };
            let mut runtime = cri.client.runtime;
            Ok(runtime.create_container(request).await?.into_inner())
        })
        .await;
    if let Told::Done(answer) = told {
        container.identify(link, &answer.container_id);
        container.stage = Stage::Made;
    }
}

/// StartContainer; asked again after a lost answer, it may have run before.
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
    let request = cri::StartContainerRequest { container_id: id };
    let told = link
        .call(Op::Start, &container.subject, manner, async |cri| {
            cri.client.runtime.clone().start_container(request).await
        })
        .await;
    match told {
        Told::Done(_) => {
            container.stage = Stage::Started;
            if let Some((_, told)) = &mut container.start {
                *told = Some(Instant::now());
            }
        }
        Told::Refused(_) if !again => container.stage = Stage::NotStarted,
        // Whether it runs, or did not start, its status tells.
        Told::Refused(_) | Told::Lost => {}
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
    let request = cri::StopContainerRequest {
        container_id: id,
        timeout: i64::try_from(grace).unwrap_or(0),
    };
    let told = link
        .call(Op::Stop, &container.subject, manner, async |cri| {
            cri.client.runtime.clone().stop_container(request).await
        })
        .await;
    if told.done().is_some() {
        container.stage = container.stage.max(Stage::Stopped);
    }
}

/// RemoveContainer. Answers whether it was acknowledged.
pub(crate) async fn remove(link: &Link, container: &mut Container, manner: Manner) -> bool {
    let Some(id) = container.id.clone() else {
        return false;
    };
    container.stage = Stage::Removing;
    let request = cri::RemoveContainerRequest { container_id: id };
    let told = link
        .call(Op::Remove, &container.subject, manner, async |cri| {
            cri.client.runtime.clone().remove_container(request).await
        })
        .await;
    told.done().is_some()
}

/// ContainerStatus: what it shows must be legal, and an end final.
pub(crate) async fn check(link: &Link, container: &mut Container) -> Option<ContainerState> {
    let id = container.id.clone()?;
    let manner = Manner {
        expected: Some(Code::NotFound),
        ..Default::default()
    };
    let request = cri::ContainerStatusRequest {
        container_id: id,
        verbose: false,
    };
    let told = link
        .call(Op::Status, &container.subject, manner, async |cri| {
            let mut runtime = cri.client.runtime;
            Ok(runtime.container_status(request).await?.into_inner())
        })
        .await;
    let status = match &told {
        Told::Done(answer) => answer.status.as_ref(),
        _ if told.refused_as(Code::NotFound) => None,
        _ => return None,
    };
    let state = status.map(cri::ContainerStatus::state);
    let mut judged = container.judge(link, state);
    if let Some(status) = status
        && state == Some(ContainerState::ContainerExited)
    {
        judged = judged.and_then(|()| container.ended(link, status));
    }
    if let Err(what) = judged {
        link.violation(&container.subject, &format!("ContainerStatus: {what}"));
    }
    if container.stage == Stage::Starting && state == Some(ContainerState::ContainerRunning) {
        container.stage = Stage::Started;
    }
    state
}

/// ExecSync whose answer must be exact.
pub(crate) async fn exec(link: &Link, container: &Container, rng: &mut Rng) {
    let Some(id) = container.id.clone() else {
        return;
    };
    let (code, token) = (rng.below(200), rng.next());
    let script = format!("echo {token}; echo {code} >&2; exit {code}");
    let request = cri::ExecSyncRequest {
        container_id: id,
        cmd: ["sh", "-c", &script].map(str::to_owned).into(),
        timeout: 50,
    };
    let told = ask(link, container, request).await;
    let Told::Done(answer) = told else { return };
    let expected = (format!("{token}\n"), format!("{code}\n"), code);
    let said = (
        String::from_utf8_lossy(&answer.stdout).into_owned(),
        String::from_utf8_lossy(&answer.stderr).into_owned(),
        u64::try_from(answer.exit_code).unwrap_or(u64::MAX),
    );
    // A killed or held monitor takes its execs along.
    if said != expected && !container.lost(link) {
        let what = format!("ExecSync answered {said:?}, not {expected:?}");
        link.violation(&container.subject, &what);
    }
}

async fn ask(
    link: &Link,
    container: &Container,
    request: cri::ExecSyncRequest,
) -> Told<cri::ExecSyncResponse> {
    link.call(
        Op::Exec,
        &container.subject,
        Manner::default(),
        async |cri| {
            let mut runtime = cri.client.runtime;
            Ok(runtime.exec_sync(request).await?.into_inner())
        },
    )
    .await
}

/// Asks a counter how far it is: what it has written by then is acknowledged.
pub(crate) async fn count(link: &Link, container: &mut Container) {
    let Some(id) = container.id.clone() else {
        return;
    };
    let request = cri::ExecSyncRequest {
        container_id: id,
        cmd: vec!["cat".to_owned(), format!("/dev/shm/{}", container.name)],
        timeout: 50,
    };
    if let Told::Done(answer) = ask(link, container, request).await
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
    let request = cri::UpdateContainerResourcesRequest {
        container_id: id,
        linux: Some(cri::LinuxContainerResources {
            memory_limit_in_bytes: i64::try_from(mebibytes << 20).unwrap_or(0),
            ..Default::default()
        }),
        ..Default::default()
    };
    link.call(
        Op::Update,
        &container.subject,
        Manner::default(),
        async |cri| {
            let mut runtime = cri.client.runtime;
            runtime.update_container_resources(request).await
        },
    )
    .await;
}

/// Puts the log aside, as a kubelet does that rotates it, and has it opened anew.
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
    link.call(
        Op::Reopen,
        &container.subject,
        Manner::default(),
        async |cri| {
            let mut runtime = cri.client.runtime;
            runtime.reopen_container_log(request).await
        },
    )
    .await;
}

fn aside(log: &Path, n: u32) -> PathBuf {
    log.with_extension(format!("log.{n:04}"))
}

/// Reads the whole log: numbers from 0, none missing, none twice, at least those that were acknowledged; all of
/// them when the program came to its end.
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

/// How many numbered lines there are.
fn read_log(container: &Container, lost: bool) -> Result<u64, String> {
    let mut bytes = Vec::new();
    for n in 0..container.rotations {
        bytes.extend(fs::read(aside(&container.log, n)).unwrap_or_default());
    }
    bytes.extend(fs::read(&container.log).unwrap_or_default());
    // Somebody may be writing; and a monitor that was killed may have been.
    let whole = bytes
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    if whole < bytes.len() && container.ending.is_some() && !lost {
        return Err("it ends within a record".to_owned());
    }
    bytes.truncate(whole);
    let records = criclog::parse(&bytes)?;
    let lines = criclog::lines(&records, "stdout");
    for (n, line) in lines.iter().enumerate() {
        if *line != n.to_string() {
            return Err(format!("line {n} is {line:?}, of {}", lines.len()));
        }
    }
    Ok(lines.len() as u64)
}
