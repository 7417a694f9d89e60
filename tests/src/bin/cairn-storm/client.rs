//! One CRI client: uses its own pods, containers and images, and compares lists with its books.
//!
//! No other client uses its objects, so its books are exact and can be checked at any time.

use std::time::{Duration, Instant};

use cairn_tests::{
    client::Cri,
    cri::{self, ContainerState, PodSandboxState},
    rng::Rng,
};

use crate::{
    book::{Container, Listed, Pod, Program, Stage, subject},
    calls::{Link, Manner, Subject},
    containers,
    images::{self, Image},
    pods::{self, LABEL},
    report::Op,
};

const MOST_PODS: usize = 5;
const MOST_CONTAINERS: usize = 4;

pub(crate) struct Client {
    link: Link,
    name: String,
    number: u32,
    rng: Rng,
    serial: u32,
    pods: Vec<Pod>,
    images: Vec<Image>,
    lists: Subject,
}

impl Client {
    /// Makes a client. Its name must be unique: pods, logs and labels contain it.
    pub(crate) fn new(link: Link, name: &str, number: u32, seed: u64) -> Self {
        let name = name.to_owned();
        Self {
            rng: Rng::new(seed, &name),
            images: images::all(&link, number),
            lists: subject(&link, &name),
            serial: 0,
            pods: Vec::new(),
            link,
            name,
            number,
        }
    }

    /// Takes turns until `end`.
    pub(crate) async fn run(&mut self, end: Instant) {
        while Instant::now() < end {
            self.turn().await;
        }
    }

    /// Removes all objects of this client, and checks that none is listed.
    pub(crate) async fn leave(&mut self) {
        self.compare().await;
        for n in 0..self.pods.len() {
            for container in &mut self.pods[n].containers {
                containers::check(&self.link, container).await;
                finish(&self.link, container).await;
            }
            pods::be_rid_of(&self.link, &mut self.pods[n]).await;
        }
        self.pods.clear();
        for image in &mut self.images {
            images::check(&self.link, image).await;
            images::remove(&self.link, image, Manner::default()).await;
            images::check(&self.link, image).await;
        }
        self.compare().await;
    }

    /// Draws the options of a call; sometimes the client leaves during it.
    fn manner(&mut self) -> Manner {
        let leaves = self.rng.chance(4);
        Manner {
            leaves_after: leaves.then(|| Duration::from_millis(self.rng.below(40))),
            ..Default::default()
        }
    }

    async fn turn(&mut self) {
        let manner = self.manner();
        match self.rng.below(100) {
            0..=9 => self.compare().await,
            10..=16 => self.image(manner).await,
            17..=18 => self.stats().await,
            _ if self.pods.is_empty() => self.new_pod(manner).await,
            19..=27 if self.pods.len() < MOST_PODS => self.new_pod(manner).await,
            _ => {
                let n = self.rng.index(self.pods.len());
                self.pod(n, manner).await;
            }
        }
    }

    async fn new_pod(&mut self, manner: Manner) {
        self.serial += 1;
        let port = 20_000 + self.number * 1000 + self.serial % 1000;
        let port = i32::try_from(port).expect("a port");
        let (link, rng) = (&self.link, &mut self.rng);
        let mut pod = pods::plan(link, &self.name, self.serial, port, rng).await;
        pods::run(link, &mut pod, manner).await;
        self.pods.push(pod);
    }

    /// A turn on one pod: its next step, or that of one of its containers.
    async fn pod(&mut self, n: usize, manner: Manner) {
        let link = self.link.clone();
        let pod = &mut self.pods[n];
        match pod.stage {
            // An unanswered request is repeated: it refers to the same pod.
            Stage::Asked => return pods::run(&link, pod, manner).await,
            Stage::Stopping => drop(pods::stop(&link, pod, manner).await),
            Stage::Removing => return self.remove_pod(n, manner).await,
            Stage::Stopped => match self.rng.below(3) {
                0 => drop(pods::stop(&link, pod, manner).await),
                _ => return self.remove_pod(n, manner).await,
            },
            _ => {}
        }
        let pod = &mut self.pods[n];
        match self.rng.below(100) {
            0..=19 if pod.serves(&link) && pod.containers.len() < MOST_CONTAINERS => {
                self.new_container(n, manner).await;
            }
            20..=22 if pod.serves(&link) => {
                pods::update(
                    &link,
                    pod,
                    100 + i64::try_from(self.rng.below(900)).unwrap_or(0),
                )
                .await;
            }
            23..=29 => drop(pods::stop(&link, pod, manner).await),
            30..=33 => self.remove_pod(n, manner).await,
            34..=39 => pods::check(&link, pod).await,
            _ if pod.containers.is_empty() => {}
            _ => {
                let k = self.rng.index(pod.containers.len());
                self.container(n, k, manner).await;
            }
        }
    }

    async fn remove_pod(&mut self, n: usize, manner: Manner) {
        // Logs of ended containers are read before the books forget them.
        for container in &mut self.pods[n].containers {
            finish(&self.link, container).await;
        }
        if pods::remove(&self.link, &mut self.pods[n], manner).await {
            self.pods.swap_remove(n);
        }
    }

    async fn new_container(&mut self, n: usize, manner: Manner) {
        self.serial += 1;
        let pulled = self.images.iter().filter(|i| i.stage == Stage::Made);
        let mut names: Vec<&str> = pulled.map(|i| i.name.as_str()).collect();
        names.push(cairn_tests::image::BUSYBOX);
        let image = (*self.rng.pick(&names).expect("one at least")).to_owned();
        let (link, rng) = (&self.link, &mut self.rng);
        let mut container = containers::plan(link, &self.pods[n], self.serial, &image, rng);
        containers::create(link, &self.pods[n], &mut container, manner).await;
        let starts = container.stage == Stage::Made && rng.chance(80);
        if starts {
            let manner = self.manner();
            containers::start(&self.link, &mut container, manner).await;
        }
        self.pods[n].containers.push(container);
    }

    /// A turn on one container: its next step.
    async fn container(&mut self, n: usize, k: usize, manner: Manner) {
        let link = self.link.clone();
        let (pods, images, rng) = (&mut self.pods, &self.images, &mut self.rng);
        let pod = &mut pods[n];
        let serves = pod.serves(&link);
        match pod.containers[k].stage {
            Stage::Asked if serves && has_image(images, &pod.containers[k]) => {
                let mut container = pod.containers.swap_remove(k);
                containers::create(&link, pod, &mut container, manner).await;
                pod.containers.push(container);
            }
            Stage::Asked => {}
            Stage::Made | Stage::Starting if serves && rng.chance(80) => {
                containers::start(&link, &mut pod.containers[k], manner).await;
                containers::check(&link, &mut pod.containers[k]).await;
            }
            Stage::Started => {
                let container = &mut pod.containers[k];
                started(&link, container, rng, manner).await;
            }
            Stage::Stopping => {
                let grace = rng.below(2);
                containers::stop(&link, &mut pod.containers[k], grace, manner).await;
            }
            stage => {
                let container = &mut pod.containers[k];
                if stage != Stage::Removing {
                    containers::check(&link, container).await;
                }
                finish(&link, container).await;
                if containers::remove(&link, container, manner).await {
                    pod.containers.swap_remove(k);
                }
            }
        }
    }

    /// A turn on one of the client's images.
    async fn image(&mut self, manner: Manner) {
        let n = self.rng.index(self.images.len());
        let image = &mut self.images[n];
        match (image.stage, self.rng.below(10)) {
            (Stage::Made, 0..=3) => {
                // Like a kubelet: removes unused images. Containers keep used ones.
                images::remove(&self.link, image, manner).await;
            }
            (Stage::Made, _) => {}
            (Stage::Removing, _) => drop(images::remove(&self.link, image, manner).await),
            _ => images::pull(&self.link, image, manner).await,
        }
        images::check(&self.link, &self.images[n]).await;
    }

    async fn stats(&self) {
        let request = cri::ListContainerStatsRequest::default();
        self.link
            .call(
                Op::ListContainerStats,
                &self.lists,
                Manner::default(),
                async |cri| {
                    cri.client
                        .runtime
                        .clone()
                        .list_container_stats(request)
                        .await
                },
            )
            .await;
    }

    /// Compares the lists with the books, in both directions.
    async fn compare(&mut self) {
        let Some(listed) = self.listed_pods().await else {
            return;
        };
        for pod in &mut self.pods {
            let (id, link) = (pod.id.as_ref(), &self.link);
            if let Some(id) = adopt(link, &pod.subject, &pod.name, id, &listed) {
                pod.identify(link, &id);
            }
            let seen = pod.id.as_ref().and_then(|id| listed.state(id));
            match seen {
                Some(PodSandboxState::SandboxReady) if pod.stage == Stage::Asked => {
                    pod.stage = Stage::Made;
                    pod.made = Some(Instant::now());
                }
                // Its start and its undo failed: it stays, to be stopped and removed.
                Some(_) if pod.stage == Stage::Asked => {
                    pod.stage = Stage::Stopping;
                    pod.failed = true;
                }
                _ => {}
            }
            if let Err(what) = pod.check(&self.link, seen) {
                self.link.violation(&pod.subject, &format!("list: {what}"));
            }
        }
        let known = |id: &String| self.pods.iter().any(|p| p.id.as_ref() == Some(id));
        for (id, (name, _)) in listed.by_id.iter().filter(|(id, _)| !known(id)) {
            self.link.violation(
                &subject(&self.link, name),
                &format!("pod {id} is listed; it was removed, or never made"),
            );
        }
        self.compare_containers().await;
    }

    async fn compare_containers(&mut self) {
        let Some(listed) = self.listed_containers().await else {
            return;
        };
        let link = &self.link;
        for container in self.pods.iter_mut().flat_map(|p| &mut p.containers) {
            let (id, of) = (container.id.as_ref(), &container.subject);
            if let Some(id) = adopt(link, of, &container.name, id, &listed) {
                container.identify(link, &id);
            }
            let seen = container.id.as_ref().and_then(|id| listed.state(id));
            if container.stage == Stage::Asked && seen.is_some() {
                container.stage = Stage::Made;
            }
            if let Err(what) = container.check(link, seen) {
                link.violation(&container.subject, &format!("list: {what}"));
            }
        }
        let known = |id: &String| {
            let mut all = self.pods.iter().flat_map(|p| &p.containers);
            all.any(|c| c.id.as_ref() == Some(id))
        };
        for (id, (name, _)) in listed.by_id.iter().filter(|(id, _)| !known(id)) {
            link.violation(
                &subject(link, name),
                &format!("container {id} is listed; it was removed, or never made"),
            );
        }
    }

    async fn listed_pods(&self) -> Option<Listed<PodSandboxState>> {
        let own = [(LABEL.to_owned(), self.name.clone())].into();
        let ask = async |cri: Cri| cri.client.pods(own).await;
        let (link, manner) = (&self.link, Manner::default());
        let reported = link
            .call(Op::ListPodSandbox, &self.lists, manner, ask)
            .await;
        let by_id = reported.done()?.into_iter().map(|pod| {
            let state = pod.state();
            (pod.id, (pod.metadata.unwrap_or_default().name, state))
        });
        Some(Listed {
            by_id: by_id.collect(),
        })
    }

    async fn listed_containers(&self) -> Option<Listed<ContainerState>> {
        let own = [(LABEL.to_owned(), self.name.clone())].into();
        let ask = async |cri: Cri| cri.client.containers(own).await;
        let (link, manner) = (&self.link, Manner::default());
        let reported = link
            .call(Op::ListContainers, &self.lists, manner, ask)
            .await;
        let by_id = reported.done()?.into_iter().map(|container| {
            let state = container.state();
            (
                container.id,
                (container.metadata.unwrap_or_default().name, state),
            )
        });
        Some(Listed {
            by_id: by_id.collect(),
        })
    }
}

/// Whether the image of a container certainly exists.
fn has_image(images: &[Image], container: &Container) -> bool {
    let own = images.iter().find(|image| image.name == container.image);
    own.is_none_or(|image| image.stage == Stage::Made)
}

/// A turn on a started container.
async fn started(link: &Link, container: &mut Container, rng: &mut Rng, manner: Manner) {
    let serves = container.serves(link);
    let counter = container.program == Program::Counter;
    match rng.below(100) {
        0..=24 if serves => containers::exec(link, container, rng).await,
        25..=39 if serves && counter => containers::count(link, container).await,
        40..=44 if serves => containers::update(link, container, 64 + rng.below(64)).await,
        45..=49 if serves && counter => containers::rotate(link, container).await,
        50..=59 if serves && counter => containers::check_log(link, container).await,
        60..=84 => {
            let grace = match container.program {
                Program::Deaf => rng.below(2),
                _ => rng.below(6),
            };
            containers::stop(link, container, grace, manner).await;
        }
        _ => drop(containers::check(link, container).await),
    }
    if container.ending.is_some() {
        finish(link, container).await;
    }
}

/// Reads the log of a container with a known end, once.
async fn finish(link: &Link, container: &mut Container) {
    if container.ending.is_some() && !container.log_checked {
        containers::check_log(link, container).await;
    }
}

/// The id of the object with this name, if it is new; two of one name are a violation.
fn adopt<S: Copy>(
    link: &Link,
    subject: &Subject,
    name: &str,
    id: Option<&String>,
    listed: &Listed<S>,
) -> Option<String> {
    let named = listed.named(name);
    if named.len() > 1 {
        link.violation(
            subject,
            &format!("there are several of this name: {named:?}"),
        );
    }
    match id {
        Some(_) => None,
        None => named.first().map(|id| (*id).clone()),
    }
}
