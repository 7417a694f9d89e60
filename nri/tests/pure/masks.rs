//! Event masks (NRI-310, NRI-400, NRI-401), field masks, and the fields that an answer sets.

use nri::{
    BadPluginId, PluginId,
    adjust::{Adjust, SetResources},
    mask::{BadMask, EventMask, FieldMask},
    merge::CreateMerge,
    owners::{ContainerOwners, Owner, Owners},
    permit::Sets,
};
use proto_nri::{
    ContainerAdjustment, ContainerEviction, CreateContainerRequest, CreateContainerResponse, Event,
    Field, Hooks, PodSandboxAdjustment, PodSandboxNetwork, RunPodSandboxResponse,
    StopContainerResponse, UpdateContainerResponse,
};

use crate::support::{adjust, device, plugin};

fn events(text: &str) -> Result<EventMask, BadMask> {
    text.parse()
}

#[test]
fn names_and_groups_of_events_parse_in_any_case_and_with_blanks() {
    assert_eq!(events("all").map(EventMask::bits), Ok(0x3fff));
    assert_eq!(events("pod").map(EventMask::bits), Ok(0x1807));
    assert_eq!(events(" PodSandbox ").map(EventMask::bits), Ok(0x1807));
    assert_eq!(events("container").map(EventMask::bits), Ok(0x27f8));
    assert_eq!(
        events("runpodsandbox, STOPCONTAINER").map(EventMask::bits),
        Ok(0x201)
    );
    assert_eq!(
        EventMask::parse(["pod", "CreateContainer"]).map(EventMask::bits),
        Ok(0x180f)
    );
    assert_eq!(events(""), Err(BadMask::Empty));
    assert_eq!(events("pod,,container"), Err(BadMask::Empty));
    assert_eq!(events("pods"), Err(BadMask::Event("pods".into())));
}

#[test]
fn masks_print_in_numeric_order_and_parse_back() {
    let mask = EventMask::of(Event::StopContainer).with(Event::RunPodSandbox);
    assert_eq!(mask.to_string(), "RunPodSandbox,StopContainer");
    for bits in [1, 0x3fff, 0x1807, 0x2000] {
        let mask = EventMask::from_bits(bits);
        assert_eq!(events(&mask.to_string()), Ok(mask));
    }
    assert_eq!(
        EventMask::from_bits(0x8001).to_string(),
        "RunPodSandbox,unknown(0x8000)"
    );
    let fields = FieldMask::of(Field::Mounts) | FieldMask::EVICT;
    assert_eq!(fields.to_string(), "Mounts,Evict");
    assert_eq!(FieldMask::ALL.to_string().parse(), Ok(FieldMask::ALL));
}

#[test]
fn the_mask_of_a_plugin_reads_zero_as_all_and_refuses_unknown_bits() {
    assert_eq!(EventMask::from_wire(0), Ok(EventMask::ALL));
    for n in 0..14 {
        assert_eq!(
            EventMask::from_wire(1 << n).map(EventMask::to_wire),
            Ok(1 << n)
        );
    }
    for bad in [1 << 14, i32::MIN, -1] {
        let error = EventMask::from_wire(bad).expect_err("an unknown bit");
        assert!(
            error.to_string().contains(&format!("{:#x}", bad)),
            "{error}"
        );
    }
    assert!(!EventMask::ALL.has(Event::Unknown) && !EventMask::ALL.has(Event::Last));
}

#[test]
fn fields_parse_by_name_and_group() {
    let fields = |text: &str| text.parse::<FieldMask>();
    let memory = (8..=15).filter_map(|n| Field::try_from(n).ok());
    assert_eq!(
        fields("memory"),
        Ok(memory.fold(FieldMask::NONE, |all, field| all | FieldMask::of(field)))
    );
    assert_eq!(fields("cpu , rdt").map(|m| m.iter().count()), Ok(10));
    assert_eq!(
        fields("env,OCIHOOKS").map(|m| m.has(Field::OciHooks)),
        Ok(true)
    );
    assert_eq!(
        fields("none"),
        Err(BadMask::Field("none".into())),
        "a number, not a field"
    );
    assert_eq!(FieldMask::ALL.iter().count(), 40);
}

#[test]
fn identities_of_plugins_are_checked_name_first() {
    assert!(PluginId::new("00", "abcd-0123+EFGH_4567.ijkl").is_ok());
    let name = |name: &str| BadPluginId::Name(name.into());
    assert_eq!(PluginId::new("1", "foo,bar"), Err(name("foo,bar")));
    assert_eq!(PluginId::new("10", ""), Err(name("")));
    assert!(PluginId::new("10", "x".repeat(255)).is_ok());
    let long = PluginId::new("10", "x".repeat(256));
    assert_eq!(long, Err(BadPluginId::NameTooLong(256)));
    for index in ["", "1", "1a", "100", "-1", "٣٤"] {
        let error = PluginId::new(index, "foo");
        assert_eq!(error, Err(BadPluginId::Index(index.into())));
    }
    assert_eq!("10-a-b".parse(), PluginId::new("10", "a-b"));
    assert!("10".parse::<PluginId>().is_err());
}

#[test]
fn owners_read_back_as_they_were_written() {
    let a = plugin("10-a");
    let b = plugin("20--b");
    for owner in [
        Owner::Set(a.clone()),
        Owner::Cleared(b.clone()),
        Owner::Shared(vec![a.clone(), b, a]),
    ] {
        assert_eq!(owner.to_string().parse(), Ok(owner));
    }
}

#[test]
fn those_that_removed_a_field_did_not_set_it() {
    let (a, b) = (plugin("10-a"), plugin("20-b"));
    let mut owners = ContainerOwners::new("c1");
    owners.claim(&a, Field::OomScoreAdj).expect("free");
    owners.share(&b, Field::OciHooks);
    owners.share(&a, Field::OciHooks);
    owners.claim_key(&b, Field::Mounts, "/x").expect("free");
    owners.claim_key(&a, Field::Mounts, "/y").expect("free");
    owners.clear_key(&plugin("30-c"), Field::Mounts, "/z");
    assert_eq!(owners.setters(Field::OomScoreAdj, None), ["10-a"]);
    assert_eq!(owners.setters(Field::OciHooks, None), ["10-a", "20-b"]);
    assert_eq!(owners.setters(Field::Mounts, Some("/x")), ["20-b"]);
    assert_eq!(owners.setters(Field::Mounts, None), ["10-a", "20-b"]);
    assert!(owners.setters(Field::Mounts, Some("/z")).is_empty());
    assert!(owners.setters(Field::Args, None).is_empty());
    assert_eq!(owners.all_setters(), ["10-a", "20-b"]);
}

#[test]
fn an_answer_sets_its_fields_and_no_others() {
    let mut answer = adjust(|a| {
        a.add_env("A", "1")
            .add_device(device("/dev/x", 1))
            .oom_score_adj(0);
        a.memory_limit(5).cpu_shares(2).remove_rdt()
    });
    answer.evict.push(ContainerEviction::default());
    assert_eq!(
        answer.sets().to_string(),
        "Devices,Env,MemLimit,CPUShares,OomScoreAdj,RdtClosID,RdtSchemata,RdtEnableMonitoring,Evict"
    );
}

#[test]
fn updates_of_any_answer_set_the_fields_of_all_of_them() {
    let mut memory = nri::adjust::update("a".to_owned(), false);
    memory.memory_limit(5);
    let mut cpu = nri::adjust::update("b".to_owned(), false);
    cpu.cpu_shares(2);
    let at_update = UpdateContainerResponse {
        update: vec![memory, cpu.clone()],
        evict: vec![ContainerEviction::default()],
    };
    assert_eq!(at_update.sets().to_string(), "MemLimit,CPUShares,Evict");
    let at_stop = StopContainerResponse { update: vec![cpu] };
    assert_eq!(at_stop.sets().to_string(), "CPUShares");
}

#[test]
fn what_a_plugin_set_is_named_by_field_and_key() {
    let mut merge = CreateMerge::new(CreateContainerRequest::default());
    let answer = adjust(|a| a.add_env("A", "1").remove_annotation("old").memory_limit(1));
    let taken = merge.apply(&plugin("10-a"), answer);
    taken.expect("one plugin");
    let of = |id: &str| merge.owners().set_by(&plugin(id));
    assert_eq!(of("10-a"), ["linux.resources.memory.limit", "env[\"A\"]"]);
    assert_eq!(of("20-b"), [""; 0]);
}

#[test]
fn addresses_of_a_pod_are_a_field_of_their_own() {
    let network = |ips: &[&str]| RunPodSandboxResponse {
        adjust: Some(PodSandboxAdjustment {
            network: Some(PodSandboxNetwork {
                ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
            }),
        }),
    };
    assert_eq!(network(&["10.0.0.2"]).sets(), FieldMask::POD_IPS);
    for empty in [network(&[]), RunPodSandboxResponse::default()] {
        assert_eq!(empty.sets(), FieldMask::NONE);
    }
}

#[test]
fn empty_messages_set_nothing() {
    let answer = CreateContainerResponse {
        adjust: Some(ContainerAdjustment {
            hooks: Some(Hooks::default()),
            linux: Some(Default::default()),
            ..Default::default()
        }),
        ..Default::default()
    };
    assert_eq!(answer.sets(), FieldMask::NONE);
}

#[test]
fn a_table_survives_the_wire() {
    let merged = crate::support::merge(vec![adjust(|a| {
        a.add_env("A", "1").remove_annotation("old").memory_limit(1)
    })]);
    let owners = merged.expect("one plugin").answer.owners;
    let wire = proto_nri::OwningPlugins::from(&owners);
    assert_eq!(wire.owners["ctr"].simple[&8], "10-a");
    assert_eq!(wire.owners["ctr"].compound[&1].owners["old"], "-10-a");
    assert_eq!(Owners::try_from(&wire), Ok(owners));
}
