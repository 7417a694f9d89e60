//! `cairn network ls` and `gc`, by `cairn.v1`.

use proto_cairn::v1::{CollectNetworksRequest, NetworksRequest};
use serde_json::json;

use super::{
    args::{Ask, NetworkGc},
    client::{connect, status_text},
    network_table,
};
use crate::cri::is_unserved;

/// `cairn network ls`.
///
/// # Errors
/// One line for the user.
pub async fn ls(ask: Ask) -> Result<(), String> {
    let mut client = connect(&ask.connect).await?;
    let answer = client
        .networks(NetworksRequest {})
        .await
        .map_err(unlisted)?;
    let networks = answer.into_inner().networks;
    ask.output.print(
        || network_table::networks(&networks),
        || json!({ "networks": networks }),
    );
    Ok(())
}

/// `cairn network gc`: prints the removed or removable networks; true if nothing is left.
///
/// # Errors
/// One line for the user.
pub async fn gc(arguments: NetworkGc) -> Result<bool, String> {
    let mut client = connect(&arguments.ask.connect).await?;
    let dry_run = arguments.dry_run;
    let request = CollectNetworksRequest { dry_run };
    let answer = client.collect_networks(request).await.map_err(unlisted)?;
    let collected = answer.into_inner().collected;
    arguments.ask.output.print(
        || network_table::collected(&collected, dry_run),
        || network_table::collected_json(&collected, dry_run),
    );
    Ok(collected.iter().all(|one| one.problem.is_empty()))
}

fn unlisted(status: tonic::Status) -> String {
    if is_unserved(&status) {
        "this runtime cannot list networks: only cairn can".to_owned()
    } else {
        status_text(status)
    }
}
