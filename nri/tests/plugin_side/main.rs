//! The guarantees for authors of plugins. `addresses`: pod addresses from plugins; `events`: the
//! trait, its methods and answers; `life`: start, end and reconnection.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

mod addresses;
#[path = "../common/mod.rs"]
mod common;
mod events;
mod life;

use std::{sync::Mutex, time::Duration};

use common::Place;
use nri::{
    Adaptation, Context, CreateAnswer, Handlers, Plugin, Result, Stub, StubBuilder, UpdateAnswer,
    adjust::{Adjust, SetResources, update},
    proto::*,
};

/// Waits for a future that must resolve soon.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(10), what).await;
    done.expect("not within 10 s")
}

/// Records its events.
#[derive(Default)]
struct Notes {
    lines: Mutex<Vec<String>>,
    /// The context of the last handler that ran.
    context: Mutex<Option<Context>>,
}

impl Notes {
    fn add(&self, cx: &Context, line: String) {
        self.lines.lock().unwrap().push(line);
        *self.context.lock().unwrap() = Some(cx.clone());
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

impl Plugin for Notes {
    async fn configure(&self, cx: &Context, config: String) -> Result<()> {
        self.add(cx, format!("configured {config}").trim_end().to_owned());
        Ok(())
    }

    async fn synchronize(
        &self,
        cx: &Context,
        pods: Vec<PodSandbox>,
        _: Vec<Container>,
    ) -> Result<Vec<ContainerUpdate>> {
        self.add(cx, format!("{} pods", pods.len()));
        Ok(Vec::new())
    }

    async fn run_pod_sandbox(&self, cx: &Context, pod: PodSandbox) -> Result<()> {
        self.add(cx, format!("run {}", pod.id));
        match pod.id.as_str() {
            "bad" => Err("a bad pod".into()),
            _ => Ok(()),
        }
    }

    async fn create_container(
        &self,
        cx: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateAnswer> {
        self.add(cx, format!("create {}/{}", pod.id, container.id));
        let mut answer = CreateAnswer::default();
        answer.adjust.add_env("POD", pod.name);
        let mut less = update("other", false);
        less.cpu_shares(2);
        answer
            .update(less)
            .evict("old", "its place is needed")
            .evict("older", "its place too");
        Ok(answer)
    }

    async fn update_container(
        &self,
        cx: &Context,
        _: PodSandbox,
        container: Container,
        resources: LinuxResources,
    ) -> Result<UpdateAnswer> {
        let shares = resources.cpu.and_then(|cpu| cpu.shares);
        let shares = shares.map_or(0, |shares| shares.value);
        self.add(cx, format!("update {} to {shares}", container.id));
        let mut answer = UpdateAnswer::default();
        answer.evict("loud", "it is too loud");
        Ok(answer)
    }
}

fn builder(place: &Place, plugin: impl Into<Handlers>) -> StubBuilder {
    Stub::builder(plugin)
        .name("notes")
        .index("10")
        .socket(place.socket())
}

async fn started(place: &Place) -> Adaptation {
    place.builder().start().await.unwrap()
}
