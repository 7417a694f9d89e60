//! Exec: judges the request, and answers where it is streamed.

use proto_cri::v1 as cri;

use crate::{
    monitor::process_of,
    pod::{
        error::{AtStep as _, Error, Kind, Result},
        registry::Registry,
        spec::SpecStore,
    },
    stream::{Full, Job, Streams, Wanted},
};

/// # Errors
/// A request that contradicts itself, or a container that is not running.
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
    if request.cmd.is_empty() {
        return Err(Error::invalid(format!(
            "container {}: exec: cmd is empty",
            container.id
        )));
    }
    container.running_monitor()?;
    let specs = specs.read(&container.id).await?;
    let mut process = Box::new(process_of(&specs.spec).step("exec")?);
    process.argv = request.cmd.into_iter().map(String::into_bytes).collect();
    if wanted.tty && !process.env.iter().any(|entry| entry.starts_with(b"TERM=")) {
        process.env.push(b"TERM=xterm".to_vec());
    }
    let job = Job::Exec {
        container,
        process,
        wanted,
    };
    let url = url(streams, job)?;
    Ok(cri::ExecResponse { url })
}

/// What holds for exec and attach.
///
/// # Errors
/// The first field that contradicts another.
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

/// # Errors
/// Exhausted when too many URLs wait for their clients.
pub fn url(streams: &Streams, job: Job) -> Result<String> {
    let full = |error: Full| Error::new(Kind::Exhausted, error.to_string());
    streams.url(job).map_err(full)
}
