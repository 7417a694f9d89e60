//! default-validator as a separate plugin.

use crate::world::{World, container, pod};

#[tokio::test]
async fn the_validator_enforces_the_rules_of_its_file() {
    let mut world = World::start().await;
    let rules = "rejectOCIHookAdjustment: true\nrequiredPlugins: [demo-adjuster]\n";
    let rules = world.write("rules.yaml", rules);
    let validator = env!("CARGO_BIN_EXE_default-validator");
    let flags = ["-idx", "99", "-config", &rules];
    world
        .run(validator, &flags, &["99-default-validator"])
        .await;
    let refused = world
        .create(pod(&[]), container())
        .await
        .expect_err("it is missing");
    assert!(refused.contains("99-default-validator"), "{refused}");
    assert!(refused.contains("demo-adjuster"), "{refused}");

    let demo = env!("CARGO_BIN_EXE_demo-adjuster");
    let env = ["-idx", "10", "-env", "A=1"];
    world.run(demo, &env, &["10-demo-adjuster"]).await;
    world
        .create(pod(&[]), container())
        .await
        .expect("it is there");
    let hook = ["-idx", "20", "-hook", "prestart:/bin/true"];
    world.run(demo, &hook, &["20-demo-adjuster"]).await;
    let refused = world
        .create(pod(&[]), container())
        .await
        .expect_err("hooks are forbidden");
    assert!(
        refused.contains("20-demo-adjuster may not adjust OCI hooks"),
        "{refused}"
    );
}
