//! The commands that speak to a running daemon over `cairn.v1`.

use std::{io::IsTerminal as _, path::Path};

use hyper_util::rt::TokioIo;
use proto_cairn::v1::{
    ImportImageRequest, ImportImageStart, Plugin, PluginsRequest, TimelineRequest,
    cairn_client::CairnClient, import_image_request::Part, import_image_response::Step,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    net::UnixStream,
    sync::mpsc,
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::transport::{Channel, Endpoint, Uri};

use crate::{args::Timeline, config::socket_path, trace};

/// Bytes of an archive in one message.
const PIECE: usize = 256 << 10;

async fn connect(endpoint: &str) -> Result<CairnClient<Channel>, String> {
    let path = socket_path("--connect", endpoint).map_err(|error| error.to_string())?;
    let channel = Endpoint::from_static("http://localhost")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }))
        .await
        .map_err(|error| {
            let cause = std::error::Error::source(&error)
                .map_or_else(|| error.to_string(), ToString::to_string);
            format!("no daemon answers at {endpoint}: {cause}")
        })?;
    Ok(CairnClient::new(channel))
}

/// `cairn image import FILE`; `-` is standard input. Prints the images' tags and ids.
///
/// # Errors
/// One line for a person.
pub async fn import(endpoint: &str, file: &Path, name: String) -> Result<(), String> {
    let mut source: Box<dyn AsyncRead + Send + Unpin> = if file == Path::new("-") {
        Box::new(tokio::io::stdin())
    } else {
        let opened = tokio::fs::File::open(file)
            .await
            .map_err(|error| format!("{}: {error}", file.display()))?;
        Box::new(opened)
    };
    let mut client = connect(endpoint).await?;
    let (parts, receiver) = mpsc::channel(4);
    let reader = tokio::spawn(async move {
        let start = Part::Start(ImportImageStart { name });
        let mut part = Some(start);
        while let Some(next) = part.take() {
            let message = ImportImageRequest { part: Some(next) };
            if parts.send(message).await.is_err() {
                // The daemon has its answer already.
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
        .map_err(|status| status.message().to_owned())?
        .into_inner();
    while let Some(answer) = answers.next().await {
        match answer.map_err(|status| status.message().to_owned())?.step {
            Some(Step::Progress(line)) if std::io::stderr().is_terminal() => eprintln!("{line}"),
            Some(Step::Image(image)) => println!("{} {}", image.id, image.tags.join(" ")),
            _ => {}
        }
    }
    reader.await.map_err(|error| error.to_string())?
}

/// Width in columns, and whether colours are shown.
fn terminal() -> (usize, bool) {
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

/// `cairn timeline [POD]`.
///
/// # Errors
/// One line for a person.
pub async fn timeline(arguments: Timeline) -> Result<(), String> {
    let mut client = connect(&arguments.connect.connect).await?;
    let request = TimelineRequest {
        pod: arguments.pod.unwrap_or_default(),
        follow: arguments.follow,
    };
    let mut events = client
        .timeline(request)
        .await
        .map_err(|status| status.message().to_owned())?
        .into_inner();
    let (width, color) = terminal();
    let mut drawn = trace::timeline::Timeline::new(width, color);
    let mut kept = Vec::new();
    while let Some(event) = events.next().await {
        let line = event.map_err(|status| status.message().to_owned())?.json;
        if arguments.json {
            println!("{line}");
            continue;
        }
        let event: trace::Event = serde_json::from_str(&line)
            .map_err(|error| format!("the daemon sent an event that is none: {error}"))?;
        if arguments.follow {
            print!("{}", drawn.line(&event));
        } else {
            kept.push(event);
        }
    }
    print!("{}", trace::timeline::render(&kept, width, color));
    Ok(())
}

/// `cairn plugins`: a line a plugin, and the last error of each below it.
///
/// # Errors
/// One line for a person.
pub async fn plugins(endpoint: &str) -> Result<(), String> {
    let mut client = connect(endpoint).await?;
    let answer = client
        .plugins(PluginsRequest {})
        .await
        .map_err(|status| status.message().to_owned())?;
    print!("{}", plugin_table(&answer.into_inner().plugins));
    Ok(())
}

fn plugin_table(plugins: &[Plugin]) -> String {
    if plugins.is_empty() {
        return "no NRI plugin is connected, and none is required\n".to_owned();
    }
    let head = [
        "PLUGIN", "STATE", "KIND", "PID", "PROTOCOL", "CALLS", "ERRORS", "P50", "P99", "BACKLOG",
        "EVENTS",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(plugins.iter().map(plugin_row));
    let mut widths = [0; 11];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let line: Vec<_> = cells.collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
        let error = number
            .checked_sub(1)
            .map_or("", |n| plugins[n].last_error.as_str());
        if !error.is_empty() {
            text.push_str(&format!("    last error: {error}\n"));
        }
    }
    text
}

fn plugin_row(plugin: &Plugin) -> [String; 11] {
    let marks = [(plugin.required, "required"), (plugin.must_run, "must run")];
    let marks: Vec<_> = marks
        .iter()
        .filter(|(is, _)| *is)
        .map(|(_, mark)| *mark)
        .collect();
    let state = match marks.is_empty() {
        true => plugin.state.clone(),
        false => format!("{} ({})", plugin.state, marks.join(", ")),
    };
    let or_dash = |text: String| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    };
    let time = |ns: u64| match plugin.calls {
        0 => "-".to_owned(),
        _ => format!("{:.2}ms", ns as f64 / 1e6),
    };
    let events = match plugin.events.len() {
        14 => "all".to_owned(),
        0 => "-".to_owned(),
        1..=3 => plugin.events.join(","),
        n => format!("{n} events"),
    };
    [
        format!("{}-{}", plugin.index, plugin.name),
        state,
        or_dash(plugin.kind.clone()),
        if plugin.pid == 0 {
            "-".to_owned()
        } else {
            plugin.pid.to_string()
        },
        or_dash(plugin.protocol.clone()),
        plugin.calls.to_string(),
        plugin.errors.to_string(),
        time(plugin.p50_ns),
        time(plugin.p99_ns),
        plugin.backlog.to_string(),
        events,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_required_plugin_and_a_failing_one_are_told_apart_at_a_glance() {
        let plugins = [
            Plugin {
                index: "10".into(),
                name: "logger".into(),
                state: "active".into(),
                kind: "external".into(),
                pid: 42,
                protocol: "v1alpha1".into(),
                events: vec!["RunPodSandbox".into()],
                calls: 3,
                errors: 1,
                p50_ns: 120_000,
                p99_ns: 2_000_000_000,
                last_error: "StopContainer: timed out after 2s".into(),
                ..Plugin::default()
            },
            Plugin {
                index: "20".into(),
                name: "guard".into(),
                state: "absent".into(),
                required: true,
                ..Plugin::default()
            },
        ];
        let table = plugin_table(&plugins);
        let lines: Vec<_> = table.lines().collect();
        assert!(
            lines[1].starts_with("10-logger  active             external  42 "),
            "{table}"
        );
        assert_eq!(
            lines[2],
            "    last error: StopContainer: timed out after 2s"
        );
        assert!(
            lines[3].starts_with("20-guard   absent (required)  -         -  "),
            "{table}"
        );
    }
}
