//! Operations on pods and containers, for CRI calls and the watchers of monitors. An [`Op`] goes
//! through the pod's queue (`state.rs`); `admit.rs` decides, and `driver.rs` runs its step.

use std::{mem::discriminant, sync::Arc, time::Duration};

use proto_cri::v1 as cri;
use tokio::sync::oneshot;

use super::{
    error::{Error, Result},
    record::container_name_key,
};
use crate::{monitor::Ending, one_line::cut, spans};

/// Characters of a path from a client in an error.
const LONGEST_PATH: usize = 100;

/// An operation on a pod, or on one of its containers.
#[derive(Debug, Clone)]
pub enum Op {
    StopPod,
    RemovePod,
    UpdatePod(Arc<cri::UpdatePodSandboxResourcesRequest>),
    Create(Arc<CreateContainerRequest>),
    Start,
    /// Grace before the kill; zero kills at once.
    Stop {
        grace: Duration,
    },
    Update(Arc<cri::UpdateContainerResourcesRequest>),
    Remove,
    /// From the watcher of the container's monitor, never from a client.
    Exited(Ending),
    /// Of the pod's record after a restart.
    RecoverPod,
    /// Of a container's record after a restart.
    Recover(Look),
}

/// Why the monitor of a container is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// The daemon has started.
    First,
    /// It did not answer before.
    Again,
}

impl Op {
    /// The CRI call that it serves.
    pub fn rpc(&self) -> Option<&'static str> {
        match self {
            Self::StopPod => Some("StopPodSandbox"),
            Self::RemovePod => Some("RemovePodSandbox"),
            Self::UpdatePod(_) => Some("UpdatePodSandboxResources"),
            Self::Create(_) => Some("CreateContainer"),
            Self::Start => Some("StartContainer"),
            Self::Stop { .. } => Some("StopContainer"),
            Self::Update(_) => Some("UpdateContainerResources"),
            Self::Remove => Some("RemoveContainer"),
            Self::Exited(_) | Self::RecoverPod | Self::Recover(_) => None,
        }
    }

    /// The answer if the pod or the container `id` does not exist: stops and removals succeed
    /// (CRI-114, 115, 132, 134).
    ///
    /// # Errors
    /// NotFound for all other operations.
    pub fn on_absent(&self, id: &str) -> Result<()> {
        match self {
            Self::StopPod | Self::RemovePod => Ok(()),
            Self::Stop { .. } | Self::Remove | Self::Exited(_) => Ok(()),
            Self::RecoverPod | Self::Recover(_) => Ok(()),
            Self::UpdatePod(_) | Self::Create(_) => Err(Error::no_sandbox(id)),
            Self::Start | Self::Update(_) => Err(Error::no_container(id)),
        }
    }

    /// Whether both are the same operation, regardless of their arguments.
    pub fn is_same(&self, other: &Self) -> bool {
        discriminant(self) == discriminant(other)
    }
}

/// Who asks. A client's request is refused where too many wait; a fact or a step of the runtime
/// never is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    Client,
    Runtime,
}

/// An entry of a pod's queue.
pub struct Request {
    pub op: Op,
    /// The existing container that the operation is about, if any.
    pub container: Option<String>,
    pub by: Asker,
    pub reply: Reply,
}

impl Request {
    /// Whether a waiting request serves the other one, too. A stop then gets the shorter grace
    /// period.
    pub fn serves(&self, other: &Self) -> bool {
        let shared = matches!(
            self.op,
            Op::Stop { .. } | Op::Remove | Op::StopPod | Op::RemovePod
        );
        shared && self.op.is_same(&other.op) && self.container == other.container
    }
}

/// The id of the object of an operation, or its error.
pub type Answer = oneshot::Receiver<Result<String>>;

/// Receives the id of the object of the operation, or its error.
pub struct Reply {
    answers: Vec<oneshot::Sender<Result<String>>>,
    /// The step runs in the span of its first caller.
    pub span: spans::Context,
}

impl Reply {
    /// For the calling task.
    pub fn new() -> (Self, Answer) {
        let (answer, answered) = oneshot::channel();
        let reply = Self {
            answers: vec![answer],
            span: spans::here(),
        };
        (reply, answered)
    }

    /// Adds the callers of another request for the same.
    pub fn join(&mut self, other: Self) {
        self.answers.extend(other.answers);
    }

    pub fn send(self, result: Result<String>) {
        for answer in self.answers {
            // The caller may have stopped waiting.
            let _ = answer.send(result.clone());
        }
    }
}

/// A checked request for a new container.
#[derive(Debug, Clone, Default)]
pub struct CreateContainerRequest {
    pub id: String,
    pub config: cri::ContainerConfig,
    /// Kubelet regenerates it on every call; only fields that may legitimately differ are read.
    pub sandbox_config: Option<cri::PodSandboxConfig>,
}

impl CreateContainerRequest {
    /// Whether a recorded configuration, which also notes mounted images, is of this request.
    pub fn made(&self, recorded: &cri::ContainerConfig) -> bool {
        let mut recorded = recorded.clone();
        for (mount, asked) in recorded.mounts.iter_mut().zip(&self.config.mounts) {
            if let (Some(image), Some(asked)) = (&mut mount.image, &asked.image) {
                image.image_ref.clone_from(&asked.image_ref);
            }
        }
        recorded == self.config
    }

    /// # Errors
    /// Invalid, naming the field.
    pub fn check(
        config: cri::ContainerConfig,
        sandbox_config: Option<cri::PodSandboxConfig>,
        id: String,
    ) -> Result<Self> {
        let invalid = |text: &str| Err(Error::invalid(format!("CreateContainer: {text}")));
        match &config.metadata {
            None => return invalid("config.metadata is missing"),
            Some(metadata) if metadata.name.is_empty() => {
                return invalid("config.metadata.name is empty");
            }
            Some(_) => {}
        }
        if config
            .image
            .as_ref()
            .is_none_or(|image| image.image.is_empty())
        {
            return invalid("config.image is missing");
        }
        for (number, mount) in config.mounts.iter().enumerate() {
            if mount.image_sub_path.starts_with('/') {
                let field = format!("config.mounts[{number}].image_sub_path");
                let path = cut(&mount.image_sub_path, LONGEST_PATH);
                return invalid(&format!("{field}: {path:?} must be relative"));
            }
        }
        Ok(Self {
            id,
            config,
            sandbox_config,
        })
    }

    pub fn name_key(&self) -> String {
        container_name_key(&self.config.metadata.clone().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::error::Kind;

    #[test]
    fn an_absolute_sub_path_of_an_image_volume_is_rejected_by_its_field() {
        let check = |sub_path: &str| {
            let volume = cri::Mount {
                container_path: "/data".to_owned(),
                image: Some(cri::ImageSpec::default()),
                image_sub_path: sub_path.to_owned(),
                ..cri::Mount::default()
            };
            let config = cri::ContainerConfig {
                metadata: Some(cri::ContainerMetadata {
                    name: "c".to_owned(),
                    attempt: 0,
                }),
                image: Some(cri::ImageSpec {
                    image: "i".to_owned(),
                    ..cri::ImageSpec::default()
                }),
                mounts: vec![cri::Mount::default(), volume],
                ..cri::ContainerConfig::default()
            };
            CreateContainerRequest::check(config, None, "id".to_owned()).map(drop)
        };
        assert_eq!(check("etc/ssl"), Ok(()));
        assert_eq!(check(""), Ok(()));
        let error = check("/etc/ssl").expect_err("an absolute path");
        assert_eq!(error.kind, Kind::Invalid);
        assert_eq!(
            error.text,
            r#"CreateContainer: config.mounts[1].image_sub_path: "/etc/ssl" must be relative"#
        );
        let error = check(&format!("/{}", "x".repeat(5000))).expect_err("a long path");
        assert!(error.text.len() < 300, "{}", error.text);
    }

    #[test]
    fn what_does_not_exist_is_stopped_and_removed_and_nothing_else() {
        let grace = Duration::ZERO;
        for op in [Op::StopPod, Op::RemovePod, Op::Stop { grace }, Op::Remove] {
            assert!(op.on_absent("x").is_ok(), "{op:?}");
        }
        for op in [
            Op::UpdatePod(Arc::default()),
            Op::Create(Arc::default()),
            Op::Start,
            Op::Update(Arc::default()),
        ] {
            assert!(op.on_absent("x").is_err(), "{op:?}");
        }
    }
}
