//! The commands that use a running daemon by `cairn.v1`, and shared parts: connections, the list of
//! containers.

use std::{io::IsTerminal as _, ops::ControlFlow, path::Path};

use hyper_util::rt::TokioIo;
use proto_cairn::v1::{
    ExplainRequest, ImportImageRequest, ImportImageStart, PluginsRequest, RemoveRequest,
    TimelineRequest, cairn_client::CairnClient, import_image_request::Part,
    import_image_response::Step,
};
use proto_cri::v1::{self as cri, runtime_service_client::RuntimeServiceClient};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    net::UnixStream,
    sync::mpsc,
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::transport::{Channel, Endpoint, Uri};

use super::{
    args::{self, Ask, Connect, Output, Rm, Timeline},
    explain_text, plugin_table, standard_output,
    text::safe_json,
    timeline, timeline_page, whole_file,
};
use crate::{config::socket_path, cri::MAX_MESSAGE, explain::Explanation, trace};

/// Bytes of an archive in one message.
const PIECE: usize = 256 << 10;

/// A client of `cairn.v1`.
///
/// # Errors
/// One line for the user.
pub async fn connect(from: &Connect) -> Result<CairnClient<Channel>, String> {
    let client = CairnClient::new(channel(from).await?);
    Ok(client.max_decoding_message_size(MAX_MESSAGE))
}

/// All containers, as CRI lists them.
///
/// # Errors
/// One line for the user.
pub async fn containers(channel: Channel) -> Result<Vec<cri::Container>, String> {
    let mut client = RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
    let list = client
        .list_containers(cri::ListContainersRequest::default())
        .await
        .map_err(|status| format!("ListContainers: {}", status.message()))?;
    Ok(list.into_inner().containers)
}

/// One connection, for any of the daemon's services.
///
/// # Errors
/// One line for the user.
pub async fn channel(connect: &Connect) -> Result<Channel, String> {
    let (source, endpoint) = connect.endpoint();
    let path = socket_path(source, &endpoint).map_err(|error| error.to_string())?;
    Endpoint::from_static("http://localhost")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }))
        .await
        .map_err(|error| {
            let cause = std::error::Error::source(&error)
                .map_or_else(|| error.to_string(), ToString::to_string);
            format!(
                "no daemon answers at {endpoint}: {cause} (is it running, and are you root? --connect names another endpoint)"
            )
        })
}

/// The daemon's message of a failed call.
pub fn status_text(status: tonic::Status) -> String {
    status.message().to_owned()
}

/// `cairn image import FILE`; `-` is standard input. Prints the images' tags and ids.
///
/// # Errors
/// One line for the user.
pub async fn import(from: &Connect, file: &Path, name: String) -> Result<(), String> {
    let mut source: Box<dyn AsyncRead + Send + Unpin> = if file == Path::new("-") {
        Box::new(tokio::io::stdin())
    } else {
        let opened = tokio::fs::File::open(file)
            .await
            .map_err(|error| format!("{}: {error}", file.display()))?;
        Box::new(opened)
    };
    let mut client = connect(from).await?;
    let (parts, receiver) = mpsc::channel(4);
    let reader = tokio::spawn(async move {
        let start = Part::Start(ImportImageStart { name });
        let mut part = Some(start);
        while let Some(next) = part.take() {
            let message = ImportImageRequest { part: Some(next) };
            if parts.send(message).await.is_err() {
                // The daemon has answered already.
                return Ok(());
            }
            let mut piece = Vec::with_capacity(PIECE);
            (&mut source)
                .take(PIECE as u64)
                .read_to_end(&mut piece)
                .await
                .map_err(|error| format!("read the archive: {error}"))?;
            if !piece.is_empty() {
                part = Some(Part::Data(piece));
            }
        }
        Ok::<(), String>(())
    });
    let mut answers = client
        .import_image(ReceiverStream::new(receiver))
        .await
        .map_err(status_text)?
        .into_inner();
    while let Some(answer) = answers.next().await {
        match answer.map_err(status_text)?.step {
            Some(Step::Progress(line)) if std::io::stderr().is_terminal() => eprintln!("{line}"),
            Some(Step::Image(image)) => {
                // The import continues without its reader.
                let line = format!("{} {}\n", image.id, image.tags.join(" "));
                let _ = standard_output::write(&line)?;
            }
            _ => {}
        }
    }
    reader.await.map_err(|error| error.to_string())?
}

/// Width in columns, and whether colors are on.
pub fn terminal() -> (usize, bool) {
    let stdout = std::io::stdout();
    let is_terminal = stdout.is_terminal();
    let columns = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| size.ws_col);
    let columns = match std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok())
    {
        _ if columns > 0 => columns.into(),
        Some(columns) => columns,
        None => 100,
    };
    let color = is_terminal && std::env::var_os("NO_COLOR").is_none();
    (columns, color)
}

/// `cairn explain CONTAINER`.
///
/// # Errors
/// One line for the user.
pub async fn explain(arguments: args::Explain) -> Result<(), String> {
    let mut client = connect(&arguments.ask.connect).await?;
    let request = ExplainRequest {
        container: arguments.container,
    };
    let answer = client.explain(request).await;
    let json = answer.map_err(status_text)?.into_inner().json;
    let explained: Explanation = serde_json::from_str(&json)
        .map_err(|error| format!("the daemon sent an explanation that cannot be read: {error}"))?;
    match arguments.ask.output {
        Output::Table => {
            let (width, color) = terminal();
            let text = explain_text::text(&explained, width, color, arguments.full);
            standard_output::write(&text).map(drop)
        }
        Output::Json => {
            let text = serde_json::to_string_pretty(&explained).unwrap_or(json);
            standard_output::write(&format!("{}\n", safe_json(&text))).map(drop)
        }
    }
}

/// `cairn timeline [POD]`.
///
/// # Errors
/// One line for the user.
pub async fn timeline(arguments: Timeline) -> Result<(), String> {
    let (width, color) = terminal();
    let mut drawn = timeline::Timeline::new(width, color);
    let mut kept: Vec<trace::Event> = Vec::new();
    let (json, follow) = (arguments.json, arguments.follow);
    let mut take = |line: &str| -> Result<ControlFlow<()>, String> {
        if json {
            return standard_output::write(&format!("{}\n", safe_json(line)));
        }
        let event = serde_json::from_str(line)
            .map_err(|error| format!("the daemon sent an event that cannot be read: {error}"))?;
        if follow {
            return standard_output::write(&drawn.line(&event));
        }
        kept.push(event);
        Ok(ControlFlow::Continue(()))
    };
    let pod = arguments.pod.unwrap_or_default();
    match &arguments.from {
        Some(file) => timeline_from(file, &pod, take)?,
        None => {
            let mut client = connect(&arguments.connect).await?;
            let answer = client.timeline(TimelineRequest { pod, follow }).await;
            let mut events = answer.map_err(status_text)?.into_inner();
            while let Some(event) = events.next().await {
                let line = event.map_err(status_text)?.json;
                if take(&line)?.is_break() {
                    return Ok(());
                }
            }
        }
    }
    match &arguments.html {
        Some(file) => whole_file::write(file, &timeline_page::page(&timeline_page::chart(&kept))),
        None => standard_output::write(&timeline::render(&kept, width, color)).map(drop),
    }
}

/// Passes on the lines of a file that are events of this pod.
fn timeline_from(
    file: &Path,
    pod: &str,
    mut take: impl FnMut(&str) -> Result<ControlFlow<()>, String>,
) -> Result<(), String> {
    let name = file.display();
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.map_err(|error| format!("read {name}: {error}"))?;
    let filter = trace::Filter::new(pod);
    let mut found = pod.is_empty();
    for (at, line) in text.lines().enumerate() {
        let event: trace::Event = serde_json::from_str(line)
            .map_err(|error| format!("{name}, line {}: not an event: {error}", at + 1))?;
        if filter.matches(&event) {
            found |= event.missing() == 0;
            if take(line)?.is_break() {
                return Ok(());
            }
        }
    }
    if found {
        return Ok(());
    }
    Err(format!(
        "timeline {pod:?}: {name} has no pod and no container of this id, beginning of an id, or name"
    ))
}

/// `cairn plugins`.
///
/// # Errors
/// One line for the user.
pub async fn plugins(ask: Ask) -> Result<(), String> {
    let mut client = connect(&ask.connect).await?;
    let answer = client
        .plugins(PluginsRequest {})
        .await
        .map_err(status_text)?;
    let answer = answer.into_inner();
    ask.output.print(
        || plugin_table::table(&answer, terminal().0),
        || plugin_table::json(&answer),
    );
    Ok(())
}

/// `cairn rm ID...`: prints each removed id.
///
/// # Errors
/// One line for the user; ids after the first failure are not tried.
pub async fn rm(arguments: Rm) -> Result<(), String> {
    let mut client = connect(&arguments.connect).await?;
    for id in arguments.ids {
        let force = arguments.force;
        let answer = client
            .remove(RemoveRequest { id, force })
            .await
            .map_err(status_text)?
            .into_inner();
        let _ = standard_output::write(&format!("{}\n", answer.id))?;
        for step in answer.skipped {
            eprintln!("cairn: skipped: {step}");
        }
    }
    Ok(())
}
