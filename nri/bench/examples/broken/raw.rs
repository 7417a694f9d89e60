//! A plugin without a stub. `subscribes-to-all` answers everything with an empty message, Configure too; `answer-after-shutdown`
//! subscribes to one event, and asks for updates when it has answered Shutdown.

use std::{path::Path, process::ExitCode};

use nri::{
    proto::{ConfigureResponse, Event, RegisterPluginRequest},
    wire::frame::{Message, Reader, Request, Response, TO_PLUGIN, TO_RUNTIME},
};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

/// Serves until the runtime closes the connection.
pub(crate) async fn serve(rule: &str, socket: &Path) -> ExitCode {
    match talk(rule == "answer-after-shutdown", socket).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("{e}");
            ExitCode::FAILURE
        }
    }
}

async fn talk(asks_late: bool, socket: &Path) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket).await?;
    let register = RegisterPluginRequest {
        plugin_name: "raw".into(),
        plugin_idx: "10".into(),
        nri_version: String::new(),
    };
    let call = |stream: u32, method: &str, payload: Vec<u8>| {
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Runtime".into(),
            method: method.into(),
            payload,
            ..Default::default()
        };
        Message::call(TO_RUNTIME, stream, &request).frames()
    };
    let register = call(1, "RegisterPlugin", register.encode_to_vec());
    stream.write_all(&register).await?;
    let (mut reader, mut piece) = (Reader::default(), [0; 4096]);
    loop {
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            return Ok(());
        }
        let messages = reader.push(&piece[..read]).map_err(std::io::Error::other)?;
        for asked in messages.iter().filter(|m| m.connection == TO_PLUGIN) {
            let method = asked.request().unwrap_or_default().method;
            let mut answer = Response::default();
            if asks_late && method == "Configure" {
                answer.payload = ConfigureResponse {
                    events: 1 << (Event::CreateContainer as i32 - 1),
                    ..Default::default()
                }
                .encode_to_vec();
            }
            stream.write_all(&asked.answer(&answer).frames()).await?;
            if asks_late && method == "Shutdown" {
                let late = call(3, "UpdateContainers", Vec::new());
                stream.write_all(&late).await?;
            }
        }
    }
}
