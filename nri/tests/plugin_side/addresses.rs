//! Pod addresses from plugins: experimental, `Plugin::adjust_pod_sandbox`.

use std::collections::BTreeMap;

use nri::{
    Adaptation, Context, Handlers, Outcome, Plugin, PluginId, PluginSettings, Result, proto::*,
};

use crate::common::{Place, pod};

/// Returns these addresses for each pod.
struct Gives(&'static [&'static str]);

impl Plugin for Gives {
    async fn run_pod_sandbox(&self, _: &Context, _: PodSandbox) -> Result<()> {
        Err("the other method is called".into())
    }

    async fn adjust_pod_sandbox(
        &self,
        _: &Context,
        pod: PodSandbox,
    ) -> Result<PodSandboxAdjustment> {
        if pod.id == "bad" {
            return Err("a bad pod".into());
        }
        let ips = self.0.iter().map(ToString::to_string).collect();
        Ok(PodSandboxAdjustment {
            network: Some(PodSandboxNetwork { ips }),
        })
    }
}

fn id(text: &str) -> PluginId {
    text.parse().unwrap()
}

async fn runtime(taken: bool, plugins: &[(&str, Gives)], may: &PluginSettings) -> Adaptation {
    let place = Place::new();
    let mut builder = place.builder().pod_ips(taken);
    let settings = plugins.iter().map(|(name, _)| (id(name), may.clone()));
    builder = builder.plugins(settings.collect::<BTreeMap<_, _>>());
    for (name, Gives(ips)) in plugins {
        builder = builder.in_process(id(name), Gives(ips));
    }
    builder.start().await.unwrap()
}

#[tokio::test]
async fn a_plugin_gives_a_pod_addresses_where_that_is_switched_on() {
    assert_eq!(
        Handlers::from(Gives(&[])).events().to_string(),
        "RunPodSandbox"
    );
    let plugins = [
        ("10-a", Gives(&["192.0.2.7", "2001:db8::7"])),
        ("20-b", Gives(&["192.0.2.7"])),
    ];
    let nri = runtime(true, &plugins, &PluginSettings::default()).await;
    let ran = nri.run_pod_sandbox(pod("p")).await.unwrap();
    let ips: Vec<_> = ran.ips.iter().map(ToString::to_string).collect();
    assert_eq!(ips, ["192.0.2.7", "2001:db8::7"]);
    let changed: Vec<_> = ran.deliveries.iter().map(|d| d.changed.clone()).collect();
    assert_eq!(changed, [vec!["ip 192.0.2.7", "ip 2001:db8::7"], vec![]]);
    let refused = nri.run_pod_sandbox(pod("bad")).await.unwrap_err();
    assert!(refused.to_string().contains("a bad pod"), "{refused}");

    let nri = runtime(false, &plugins, &PluginSettings::default()).await;
    let ran = nri.run_pod_sandbox(pod("p")).await.unwrap();
    assert!(ran.ips.is_empty());
    assert!(ran.deliveries.iter().all(|d| d.changed.is_empty()));
}

#[tokio::test]
async fn a_text_that_is_no_address_vetoes_the_pod_by_its_name() {
    let plugins = [("10-a", Gives(&["192.0.2.7/24"]))];
    let nri = runtime(true, &plugins, &PluginSettings::default()).await;
    let refused = nri.run_pod_sandbox(pod("p")).await.unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("plugin 10-a sets adjust.network.ips \"192.0.2.7/24\""),
        "{text}"
    );
    assert!(matches!(refused.deliveries[0].outcome, Outcome::Invalid(_)));
}

#[tokio::test]
async fn the_right_to_give_addresses_can_be_withheld() {
    let mut may = PluginSettings::default();
    may.policy.fields = "Env,Evict".parse().unwrap();
    let nri = runtime(true, &[("10-a", Gives(&["192.0.2.7"]))], &may).await;
    let refused = nri.run_pod_sandbox(pod("p")).await.unwrap_err();
    assert!(refused.to_string().contains("PodIps"), "{refused}");
    may.policy.fields = "PodIps".parse().unwrap();
    let nri = runtime(true, &[("10-a", Gives(&["192.0.2.7"]))], &may).await;
    assert_eq!(nri.run_pod_sandbox(pod("p")).await.unwrap().ips.len(), 1);
}
