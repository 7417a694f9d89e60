//! A plugin without a stub: it answers everything with an empty message, Configure too.

use std::{path::Path, process::ExitCode};

use nri::{
    proto::RegisterPluginRequest,
    wire::frame::{Message, Reader, Request, Response, TO_PLUGIN, TO_RUNTIME},
};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

/// Serves until the runtime closes the connection.
pub(crate) async fn serve(socket: &Path) -> ExitCode {
    match talk(socket).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("{e}");
            ExitCode::FAILURE
        }
    }
}

async fn talk(socket: &Path) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket).await?;
    let register = RegisterPluginRequest {
        plugin_name: "raw".into(),
        plugin_idx: "10".into(),
        nri_version: String::new(),
    };
    let request = Request {
        service: "nri.pkg.api.v1alpha1.Runtime".into(),
        method: "RegisterPlugin".into(),
        payload: register.encode_to_vec(),
        ..Default::default()
    };
    let register = Message::call(TO_RUNTIME, 1, &request);
    stream.write_all(&register.frames()).await?;
    let (mut reader, mut piece) = (Reader::default(), [0; 4096]);
    loop {
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            return Ok(());
        }
        let messages = reader.push(&piece[..read]).map_err(std::io::Error::other)?;
        for asked in messages.iter().filter(|m| m.connection == TO_PLUGIN) {
            let answer = asked.answer(&Response::default());
            stream.write_all(&answer.frames()).await?;
        }
    }
}
