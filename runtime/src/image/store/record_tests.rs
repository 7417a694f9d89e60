use super::*;

pub(crate) fn config(user: &str, diff_ids: &[Digest]) -> String {
    let ids: Vec<_> = diff_ids.iter().map(Digest::as_str).collect();
    serde_json::json!({
        "architecture": "amd64", "os": "linux",
        "config": {"User": user, "Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": ids},
    })
    .to_string()
}

#[test]
fn a_record_comes_back_from_disk_as_it_was() {
    let layers = [Digest::of(b"1"), Digest::of(b"2")];
    let config = config("", &layers);
    let record = ImageRecord::new(&config, 7).unwrap().with_names(&Names {
        repo_tags: vec!["r.example/b:2".into(), "r.example/a:1".into()],
        ..Names::default()
    });
    let file = record.to_json(&config);
    assert_eq!(config_json(&file).unwrap(), config);
    let back = ImageRecord::from_json(&file).unwrap();
    assert_eq!(back.repo_tags, ["r.example/a:1", "r.example/b:2"]);
    assert_eq!(
        (&back.id, &back.layers, back.size),
        (&record.id, &record.layers, 7)
    );
    assert_eq!(back.layers[1], Digest::chain(Some(&layers[0]), &layers[1]));
}

#[test]
fn a_config_as_docker_writes_it_with_nulls_and_extras_is_read() {
    let layer = Digest::of(b"1");
    let json = serde_json::json!({
        "architecture": "arm", "variant": "v7", "os": "linux", "os.version": "",
        "created": "2024-01-01T00:00:00.123456789Z", "docker_version": "20.10", "container": "x",
        "author": "", "container_config": {"Cmd": ["x"]},
        "config": {
            "Hostname": "", "User": "", "AttachStdin": false, "Tty": false, "Env": null,
            "Cmd": null, "Entrypoint": null, "Image": "sha256:x", "Volumes": null,
            "ExposedPorts": null, "WorkingDir": null, "OnBuild": null, "Labels": null,
            "ArgsEscaped": true, "Healthcheck": {"Test": ["CMD"]}, "Shell": null,
            "StopSignal": "SIGQUIT", "MacAddress": ""
        },
        "history": [{"created": "2024-01-01T00:00:00Z", "empty_layer": true}, {}],
        "rootfs": {"type": "layers", "diff_ids": [layer]},
    });
    let record = ImageRecord::new(&json.to_string(), 1).unwrap();
    assert_eq!(record.run.stop_signal, "SIGQUIT");
    let full = json
        .to_string()
        .replace("\"Volumes\":null", "\"Volumes\":{\"/data\":{}}")
        .replace("\"Env\":null", "\"Env\":[\"A=b\"]");
    let record = ImageRecord::new(&full, 1).unwrap();
    assert_eq!(
        (&*record.run.volumes, &*record.run.env),
        (&["/data".to_owned()][..], &["A=b".to_owned()][..])
    );
    for odd in ["\"history\":null", "\"config\":null"] {
        let (key, _) = odd.split_once(':').unwrap();
        let mut value = json.clone();
        value[key.trim_matches('"')] = serde_json::Value::Null;
        assert!(ImageRecord::new(&value.to_string(), 1).is_ok(), "{odd}");
    }
}

#[test]
fn a_config_keeps_little_in_memory_and_is_refused_where_that_is_much() {
    let with = |run: serde_json::Value| {
        let mut value: serde_json::Value = serde_json::from_str(&config("", &[])).unwrap();
        value["config"] = run;
        value["history"] = vec![serde_json::json!({}); 100_000].into();
        ImageRecord::new(&value.to_string(), 1)
    };
    assert!(with(serde_json::json!({"Env": vec![""; LIST_MAX]})).is_ok());
    for run in [
        serde_json::json!({"Env": vec![""; LIST_MAX + 1]}),
        serde_json::json!({"Cmd": ["x".repeat(KEPT_MAX + 1)]}),
        serde_json::json!({"User": "x".repeat(KEPT_MAX + 1)}),
    ] {
        let e = with(run).unwrap_err().to_string();
        assert!(
            e.len() < 200 && e.contains("10000") || e.contains("524288"),
            "{e}"
        );
    }
}

#[test]
fn a_damaged_or_foreign_record_is_refused() {
    let config = config("", &[]);
    let good = ImageRecord::new(&config, 7).unwrap().to_json(&config);
    let good = String::from_utf8(good).unwrap();
    for bad in [
        String::new(),
        good.replace("\"schema\": 1", "\"schema\": 9"),
        good.replace("amd64", "arm64"),
        good[..good.len() / 2].to_owned(),
    ] {
        assert!(ImageRecord::from_json(bad.as_bytes()).is_err());
    }
}
