//! `cairn status`: uses CRI, and `cairn.v1` for the rest.

use std::time::Duration;

use proto_cairn::v1::{DirectoriesRequest, HeldRequest, PluginsRequest, cairn_client::CairnClient};
use proto_cri::v1::{self as cri, runtime_service_client::RuntimeServiceClient};
use tonic::Response;

use super::{
    args::{Ask, Connect},
    client::{channel, terminal},
    status_report::{Answers, Report},
};
use crate::{cri::is_unserved, preflight::State};

/// A healthy daemon answers within milliseconds, even during checks of the network.
const PATIENCE: Duration = Duration::from_secs(10);

/// `cairn status`: prints a report, and returns whether pods can run.
///
/// # Errors
/// One line for the user, if no report could be made. A missing daemon is a report.
pub async fn status(asked: Ask) -> Result<bool, String> {
    let (_, endpoint) = asked.connect.endpoint();
    let report = Report::new(endpoint, ask(&asked.connect).await);
    let (width, color) = terminal();
    asked
        .output
        .print(|| report.table(width, color), || report.json());
    Ok(report.state() != State::Fails)
}

/// Sends all requests at once; an error is that of the runtime itself.
async fn ask(connect: &Connect) -> Result<Answers, String> {
    let channel = channel(connect).await?;
    let mut runtime = RuntimeServiceClient::new(channel.clone());
    let mut again = runtime.clone();
    let cairn = || CairnClient::new(channel.clone());
    let (mut one, mut two, mut three) = (cairn(), cairn(), cairn());
    let (version, status, plugins, held, directories) = tokio::join!(
        answer("Version", runtime.version(cri::VersionRequest::default())),
        answer("Status", again.status(cri::StatusRequest { verbose: true })),
        answer("Plugins", one.plugins(PluginsRequest {})),
        answer("Held", two.held(HeldRequest {})),
        answer("Directories", three.directories(DirectoriesRequest {})),
    );
    let (version, status) = (version?, status?);
    Ok(Answers {
        name: version.runtime_name,
        version: version.runtime_version,
        conditions: status.status.unwrap_or_default().conditions,
        info: status.info,
        plugins: plugins.map(|answer| answer.plugins),
        held: held.map(|answer| answer.objects),
        directories: directories.map(|answer| answer.directories),
    })
}

async fn answer<T>(
    call: &str,
    question: impl Future<Output = Result<Response<T>, tonic::Status>>,
) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, question).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) if is_unserved(&status) => {
            Err(format!("{call}: this runtime does not support it"))
        }
        Ok(Err(status)) => Err(format!("{call}: {}", status.message())),
        Err(_) => Err(format!("{call}: no answer in {} s", PATIENCE.as_secs())),
    }
}
