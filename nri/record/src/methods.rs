//! The messages of each method, as bytes and as JSON.

use nri::{PLUGIN_API, RUNTIME_API, proto::*};
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::json;

/// Request or answer of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Request,
    Answer,
}

/// A message as JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    pub message: Value,
    /// Bytes of unknown fields.
    pub unknown: usize,
}

struct Codec {
    decode: fn(&[u8]) -> Result<Decoded, String>,
    encode: fn(&Value) -> Result<Vec<u8>, String>,
}

macro_rules! methods {
    ($($method:ident: $request:ident => $answer:ident;)*) => {
        const METHODS: &[&str] = &[$(stringify!($method)),*];

        fn codec(method: &str, part: Part) -> Option<Codec> {
            match (method, part) {
                $((stringify!($method), Part::Request) => Some(codec_of::<$request>()),
                (stringify!($method), Part::Answer) => Some(codec_of::<$answer>()),)*
                _ => None,
            }
        }
    };
}

methods! {
    RegisterPlugin: RegisterPluginRequest => Empty;
    UpdateContainers: UpdateContainersRequest => UpdateContainersResponse;
    Configure: ConfigureRequest => ConfigureResponse;
    Synchronize: SynchronizeRequest => SynchronizeResponse;
    Shutdown: Empty => Empty;
    RunPodSandbox: RunPodSandboxRequest => RunPodSandboxResponse;
    UpdatePodSandbox: UpdatePodSandboxRequest => UpdatePodSandboxResponse;
    PostUpdatePodSandbox: PostUpdatePodSandboxRequest => PostUpdatePodSandboxResponse;
    StopPodSandbox: StopPodSandboxRequest => StopPodSandboxResponse;
    RemovePodSandbox: RemovePodSandboxRequest => RemovePodSandboxResponse;
    CreateContainer: CreateContainerRequest => CreateContainerResponse;
    PostCreateContainer: PostCreateContainerRequest => PostCreateContainerResponse;
    StartContainer: StartContainerRequest => StartContainerResponse;
    PostStartContainer: PostStartContainerRequest => PostStartContainerResponse;
    UpdateContainer: UpdateContainerRequest => UpdateContainerResponse;
    PostUpdateContainer: PostUpdateContainerRequest => PostUpdateContainerResponse;
    StopContainer: StopContainerRequest => StopContainerResponse;
    RemoveContainer: RemoveContainerRequest => RemoveContainerResponse;
    ValidateContainerAdjustment: ValidateContainerAdjustmentRequest => ValidateContainerAdjustmentResponse;
    StateChange: StateChangeEvent => Empty;
}

fn codec_of<M: Message + Default + Serialize + DeserializeOwned>() -> Codec {
    Codec {
        decode: |bytes| {
            let message = M::decode(bytes).map_err(|e| e.to_string())?;
            let known = message.encoded_len();
            let mut message = serde_json::to_value(&message).map_err(|e| e.to_string())?;
            json::tidy(&mut message);
            let known = known + 2 * json::empty_map_values(&message);
            Ok(Decoded {
                message,
                unknown: bytes.len().saturating_sub(known),
            })
        },
        encode: |value| {
            let message: M = M::deserialize(value).map_err(|e| e.to_string())?;
            Ok(message.encode_to_vec())
        },
    }
}

/// Every method of NRI, those of the runtime's service first.
pub fn methods() -> &'static [&'static str] {
    METHODS
}

/// Decodes a message to JSON, with the snake-case names of `nri.proto`. `None`: NRI has no such
/// method.
pub fn decode(
    service: &str,
    method: &str,
    part: Part,
    bytes: &[u8],
) -> Option<Result<Decoded, String>> {
    let known = [PLUGIN_API, RUNTIME_API].contains(&service);
    let codec = known.then(|| codec(method, part)).flatten()?;
    Some((codec.decode)(bytes))
}

/// Encodes the result of [`decode`] for the wire.
///
/// # Errors
/// NRI has no such method, or the JSON is not its message.
pub fn encode(method: &str, part: Part, message: &Value) -> Result<Vec<u8>, String> {
    let codec = codec(method, part).ok_or_else(|| format!("NRI has no call {method:?}"))?;
    (codec.encode)(message)
}
