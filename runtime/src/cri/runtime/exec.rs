//! Exec: checks the request, and returns the URL of its stream.

use proto_cri::v1 as cri;

use crate::{
    monitor::{Monitor, Process, process_of},
    pod::{
        error::{AtStep as _, Error, Result},
        registry::Registry,
        spec::SpecStore,
        state::Container,
    },
    stream::{Job, Streams, Wanted},
};

/// # Errors
/// A contradictory request, or a container that is not running.
pub async fn exec(
    pods: &Registry,
    specs: &SpecStore,
    streams: &Streams,
    request: cri::ExecRequest,
) -> Result<cri::ExecResponse> {
    let wanted = Wanted {
        stdin: request.stdin,
        stdout: request.stdout,
        stderr: request.stderr,
        tty: request.tty,
    };
    check("exec", &request.container_id, wanted)?;
    let (_, container) = pods.container(&request.container_id)?;
    let (_, mut process) = process(specs, &container, request.cmd).await?;
    if wanted.tty && !process.env.iter().any(|entry| entry.starts_with(b"TERM=")) {
        process.env.push(b"TERM=xterm".to_vec());
    }
    let url = streams.url(Job::Exec {
        container,
        process: Box::new(process),
        wanted,
    })?;
    Ok(cri::ExecResponse { url })
}

/// A process like init except for its arguments, and the monitor that starts it.
///
/// # Errors
/// No arguments, or a container that is not running.
pub async fn process(
    specs: &SpecStore,
    container: &Container,
    argv: Vec<String>,
) -> Result<(Monitor, Process)> {
    if argv.is_empty() {
        return Err(Error::invalid(format!(
            "container {}: exec: cmd is empty",
            container.id
        )));
    }
    let monitor = container.running_monitor().await?;
    let specs = specs.read(&container.id).await?;
    let mut process = process_of(&specs.spec).step("exec")?;
    process.argv = argv.into_iter().map(String::into_bytes).collect();
    Ok((monitor, process))
}

/// Checks common to exec and attach.
///
/// # Errors
/// The first contradictory field.
pub fn check(verb: &str, id: &str, wanted: Wanted) -> Result<()> {
    let refuse = |why: &str| Err(Error::invalid(format!("{verb}: {why}")));
    if id.is_empty() {
        return refuse("container_id is empty");
    }
    if !wanted.stdin && !wanted.stdout && !wanted.stderr {
        return refuse("one of stdin, stdout and stderr must be set");
    }
    if wanted.tty && wanted.stderr {
        return refuse("tty and stderr cannot both be set: a terminal has one output");
    }
    Ok(())
}
