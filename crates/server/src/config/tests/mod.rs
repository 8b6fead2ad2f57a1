//! Reads configurations from their sources.

mod errors_with_locations;
mod every_option;

use std::ffi::OsString;
use std::time::Duration;

use serde_json::json;

use super::*;

const HASH: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn sources(text: &str) -> Sources {
    Sources {
        file: Some(("f.toml".into(), text.to_owned())),
        ..Sources::default()
    }
}

fn read(text: &str) -> Config {
    let effective = sources(text).read();
    effective
        .unwrap_or_else(|errors| panic!("{text}\n{errors}"))
        .config
}

/// `LOCATION MESSAGE` of each error.
fn described(ConfigErrors(errors): ConfigErrors) -> Vec<String> {
    let described = errors
        .into_iter()
        .map(|ConfigError { location, message }| match location {
            Location::File(file) => format!("{}:{} {message}", file.line, file.column),
            Location::WholeFile(path) => format!("{} {message}", path.display()),
            Location::Variable(name) | Location::Argument(name) => format!("{name} {message}"),
            Location::Flag(name) => format!("--{name} {message}"),
        });
    described.collect()
}

fn pairs(given: &[(&str, &str)]) -> Vec<(String, OsString)> {
    let given = given.iter();
    given.map(|(a, b)| ((*a).to_owned(), (*b).into())).collect()
}

#[test]
fn empty_config_is_the_default() {
    assert_eq!(read(""), Config::default());
    assert_eq!(Sources::default().read().unwrap().config, Config::default());
}

#[test]
fn values_reach_their_fields() {
    let config = read(
        r#"
        [server]
        host = "::"
        port = 0x1F90
        shutdown_timeout = "1.5s"
        [limits]
        body_bytes = "1MiB"
        [cors]
        origins = ["https://a.example", "*"]
        [[keys]]
        name = "team"
        hash = "sha256:BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD"
        scopes = ["inference", "admin"]
        models = ["small"]
        [[models]]
        name = "small"
        source = "smollm2"
        memory = "60%"
        [models.sampling]
        temperature = 1
        top_k = 40
        logit_bias = { 7 = -1.5 }
        order = ["top_k", "temperature"]
        "#,
    );
    assert_eq!(config.server.host.to_string(), "::");
    assert_eq!(config.server.port, 8080);
    assert_eq!(config.server.shutdown_timeout, Duration::from_millis(1500));
    assert_eq!(config.limits.body_bytes, 1 << 20);
    assert_eq!(config.cors.origins, ["https://a.example", "*"]);
    let [key] = &config.keys[..] else {
        panic!("one key");
    };
    assert_eq!(key.hash, KeyHash::digest("abc"));
    assert_eq!(key.scopes, [Scope::Inference, Scope::Admin]);
    let [model] = &config.models[..] else {
        panic!("one model");
    };
    assert_eq!(model.memory, Some(MemoryBudget::Percent(60)));
    assert!(!model.preload);
    assert_eq!(
        Value::Object(model.sampling.clone()),
        json!({"temperature": 1.0, "top_k": 40, "logit_bias": {"7": -1.5}, "order": ["top_k", "temperature"]})
    );
}

#[test]
fn flags_override_environment_which_overrides_file() {
    let file = "[server]\nport = 1\npage = false\n[[models]]\nname = \"a\"\nsource = \"s\"\n\
                context = 10\nthreads = 2";
    let all = Sources {
        environment: pairs(&[
            ("LOQUAT_SERVER_PORT", "2"),
            ("LOQUAT_SERVER_HOST", "0.0.0.0"),
            (
                "LOQUAT_CORS_ORIGINS",
                "https://a.example, https://b.example",
            ),
            ("LOQUAT_CONTEXT", "20"),
            ("LOQUAT_MEMORY", ""),
            ("HOME", "/"),
        ]),
        flags: pairs(&[("port", "3"), ("threads", "4")]),
        ..sources(file)
    };
    let EffectiveConfig { config, provenance } = all.read().unwrap();
    assert_eq!(config.server.port, 3);
    assert_eq!(config.server.host.to_string(), "0.0.0.0");
    assert!(!config.server.page);
    assert_eq!(
        config.cors.origins,
        ["https://a.example", "https://b.example"]
    );
    let model = &config.models[0];
    assert_eq!(
        (model.context, model.threads, model.memory),
        (Some(20), Some(4), None)
    );

    let server = &provenance.sections["server"];
    assert_eq!(
        server.location("port"),
        Some(&Location::Flag("port".to_owned()))
    );
    assert_eq!(
        server.location("host"),
        Some(&Location::Variable("LOQUAT_SERVER_HOST".to_owned()))
    );
    assert!(matches!(
        server.location("page"),
        Some(Location::File(FileLocation { line: 3, .. }))
    ));
    assert_eq!(server.location("shutdown_timeout"), None);
    let model = &provenance.models[0];
    assert_eq!(
        model.location("threads"),
        Some(&Location::Flag("threads".to_owned()))
    );
    assert!(matches!(
        model.location("name"),
        Some(Location::File(FileLocation { line: 5, .. }))
    ));
}

#[test]
fn named_models_select_from_the_file() {
    let file = "[[models]]\nname = \"a\"\nsource = \"s\"\n[[models]]\nname = \"b\"\nsource = \
                \"t\"\naliases = [\"c\"]\n";
    let default = Some(ModelConfig::new("default", "default"));
    let chosen = |file: &str, typed: &[ModelConfig]| {
        let sources = Sources {
            models: typed.to_vec(),
            default_model: default.clone(),
            ..sources(file)
        };
        let models = sources.read().map(|effective| effective.config.models);
        let models = models.map_err(|errors| described(errors).join("; "))?;
        let models = models
            .iter()
            .map(|m| format!("{} {} {}", m.name, m.source, m.preload));
        Ok::<_, String>(models.collect::<Vec<_>>().join(", "))
    };
    let model = |name: &str| ModelConfig::new(name, name);
    for (file, typed, expected) in [
        ("", vec![], Ok("default default true")),
        (file, vec![], Ok("a s false, b t false")),
        (file, vec![model("b")], Ok("b t true")),
        (file, vec![model("c"), model("d")], Ok("b t true, d d true")),
        (
            file,
            vec![ModelConfig::new("x", "y.gguf")],
            Ok("x y.gguf true"),
        ),
        (
            "",
            vec![model("d"), model("d")],
            Err("d another model is already named `d`"),
        ),
    ] {
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(chosen(file, &typed), expected);
    }
}

#[test]
fn effective_config_shortens_hashes() {
    let file = format!(
        "[server]\nport = 9000\n[[keys]]\nname = \"k\"\nhash = \"{HASH}\"\n[[models]]\nname = \
         \"m\"\nsource = \"s\"\nsampling = {{ top_k = 5, seed = 7 }}\n"
    );
    let effective = sources(&file).read().unwrap();
    let shown = effective_toml(&effective);
    for line in [
        "port = 9000                              # f.toml:2",
        "host = \"127.0.0.1\"                       # default",
        "# request_timeout is not set             # default",
        "hash = \"sha256:ba7816bf…\"                # f.toml:5",
        "sampling = { seed = 7, top_k = 5 }       # f.toml:9",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    assert!(!shown.contains(HASH));
    let shown = effective_json(&effective.config);
    assert_eq!(shown["server"]["port"], 9000);
    assert_eq!(shown["limits"]["request_timeout"], Value::Null);
    assert_eq!(shown["limits"]["body_bytes"], "32MiB");
    assert_eq!(shown["keys"][0]["hash"], "sha256:ba7816bf…");
    assert_eq!(
        shown["models"][0]["sampling"],
        json!({"top_k": 5, "seed": 7})
    );
    assert_eq!(shown["tls"]["certificate"], Value::Null);
}

#[test]
fn printed_config_parses_as_itself() {
    let text = include_str!("../../../../../packaging/loquat.toml");
    let config = read(text);
    let shown = effective_toml(&sources(text).read().unwrap());
    let hashes = config.keys.iter();
    // Only shortened hashes do not parse.
    let printed = hashes.fold(shown, |shown, key| {
        shown.replace(&key.hash.shortened(), &key.hash.to_string())
    });
    assert_eq!(read(&printed), config);
    assert!(!config.keys.is_empty() && !config.models.is_empty());
}

#[test]
fn probable_oversights_are_warned_about() {
    let key = format!("[[keys]]\nname = \"k\"\nhash = \"{HASH}\"\n");
    let open = "[server]\nhost = \"0.0.0.0\"\n";
    for (file, expected) in [
        (String::new(), vec![]),
        (open.to_owned(), vec!["anyone who can reach 0.0.0.0"]),
        (key.clone(), vec!["no key has the scope"]),
        (
            format!("{open}{key}"),
            vec!["no key has the scope", "keys are sent unencrypted"],
        ),
        (format!("{key}scopes = [\"admin\"]\n"), vec![]),
    ] {
        let warnings = read(&file).warnings();
        assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
        for (warning, beginning) in warnings.iter().zip(expected) {
            assert!(warning.starts_with(beginning), "{warning}");
        }
    }
}
