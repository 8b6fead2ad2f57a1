//! Errors and their locations.

use super::*;

/// `LINE:COLUMN MESSAGE` of each error in a file.
fn errors(text: &str) -> Vec<String> {
    described(sources(text).read().unwrap_err())
}

#[test]
fn errors_carry_their_locations() {
    let model = "[[models]]\nname = \"a\"\nsource = \"s\"\n";
    let key = format!("[[keys]]\nname = \"k\"\nhash = \"{HASH}\"\n");
    let table: &[(&str, &[&str])] = &[
        (
            "[server]\nprot = 1",
            &["2:1 [server] has no option `prot`; did you mean `port`?"],
        ),
        (
            "[server]\nbanana = 1",
            &["2:1 [server] has no option `banana`"],
        ),
        (
            "[serve]\nport = 1",
            &["1:2 there is no section `serve`; did you mean `server`?"],
        ),
        ("server = 1", &["1:1 `server` must be a table: [server]"]),
        ("models = 1", &["1:10 `models` must be tables: [[models]]"]),
        (
            "models = [1]",
            &["1:11 `models` must be tables: [[models]]"],
        ),
        (
            "[models]\nname = \"a\"",
            &["1:1 `models` must be tables: [[models]]"],
        ),
        (
            "[server]\nport = 99999\nhost = \"here\"\npage = \"yes\"",
            &[
                "2:8 `server.port` must be a whole number from 0 to 65535",
                "3:8 `server.host` must be an IP address such as \"127.0.0.1\"",
                "4:8 `server.page` must be true or false",
            ],
        ),
        (
            "[server]\nport = \"8080\"",
            &["2:8 `server.port` must be a whole number from 0 to 65535"],
        ),
        (
            "[server]\nshutdown_timeout = 30",
            &["2:20 `server.shutdown_timeout` must be a time such as \"30s\", \"5m\" or \"250ms\""],
        ),
        (
            "[limits]\nbody_bytes = \"1B\"\nconnections = 0",
            &[
                "2:14 `limits.body_bytes` must be a size such as \"32MiB\", at least 1KiB, at \
                 most 1TiB",
                "3:15 `limits.connections` must be a whole number from 1 to 4294967295",
            ],
        ),
        (
            "[cors]\norigins = [\"https://a.example\", \"a.example\", 5]",
            &[
                "2:33 `cors.origins` must be a list, each an origin such as \
                 \"https://example.org\" or \"http://localhost:*\", or \"*\"",
                "2:46 `cors.origins` must be a list, each an origin such as \
                 \"https://example.org\" or \"http://localhost:*\", or \"*\"",
            ],
        ),
        (
            "[log]\nlevel = \"loud=verbose\"\nformat = \"xml\"",
            &[
                "2:9 `log.level` must be a level such as \"info\", or a filter with levels per target",
                "3:10 `log.format` must be one of \"text\", \"json\"",
            ],
        ),
        (
            "[telemetry]\nsample_ratio = 1.5\notlp_endpoint = \"here\"",
            &[
                "2:16 `telemetry.sample_ratio` must be a number from 0 to 1",
                "3:17 `telemetry.otlp_endpoint` must be a URL such as \
                 \"http://127.0.0.1:4318\"",
            ],
        ),
        (
            "[tls]\ncertificate = \"c.pem\"",
            &["2:15 `tls.certificate` needs `tls.private_key` as well"],
        ),
        (
            "[[models]]\nname = \"a b\"",
            &[
                "1:1 [[models]] needs `source`: A catalog name, a hub repository (`owner/name`, optionally \
                 with `@revision` and `:quant` or `:file`), or the path of a model directory or \
                 file",
                "2:8 `models.name` must be a name without spaces or commas",
            ],
        ),
        (
            &format!("{model}memory = \"lots\""),
            &[
                "4:10 `models.memory` must be a size such as \"6GiB\" or a share of this machine \
                 such as \"60%\"",
            ],
        ),
        (
            &format!(
                "{model}[models.sampling]\ntemprature = 1\ntop_p = 1.5\ntop_k = 0.5\norder = [\"x\"]"
            ),
            &[
                "5:1 `temprature` is not a sampling parameter; did you mean `temperature`?",
                "6:9 `sampling.top_p` must be a number from 0 to 1",
                "7:9 `sampling.top_k` must be a whole number from 0 to 16777216",
                "8:9 `sampling.order` must be a list of names of sampling steps",
            ],
        ),
        (
            &format!("{model}aliases = [\"b\"]\n{model}"),
            &["6:8 another model is already named `a`"],
        ),
        (
            "[[models]]\nname = \"a\"\nsource = \"s\"\naliases = [\"b\", \"x\", \"x\"]\n\
             [[models]]\nname = \"b\"\nsource = \"s\"\naliases = [\"a\"]",
            &[
                "4:11 the alias `b` already belongs to the model `b`",
                "4:11 the alias `x` already belongs to the model `a`",
                "8:11 the alias `a` already belongs to the model `a`",
            ],
        ),
        (
            &format!("{key}scopes = [\"all\"]\n"),
            &[
                "4:11 `keys.scopes` must be a list, each one of \"inference\", \"metrics\", \"manage\", \"admin\"",
            ],
        ),
        (
            &format!(
                "{model}adapters = {{ a = 1, \"b c\" = \"p\", d = {{ scal = 1, source = \"p\" }} }}\n"
            ),
            &[
                "4:18 `adapters.a` must be a path, or a table with a `source`",
                "4:21 the adapter `b c` must be a name without spaces, commas, colons, quotes or \
                 backslashes",
                "4:40 `scal` is not an option of an adapter; did you mean `scale`?",
            ],
        ),
        (
            &format!("{model}adapters = {{ a = {{ scale = nan }}, b = {{ pinned = true }} }}\n"),
            &[
                "4:28 `adapters.a.scale` must be a finite number",
                "4:39 `adapters.b` needs a `source`: a path or a hub's `owner/name`",
            ],
        ),
        (
            &format!(
                "{model}max_adapters = 1\nadapters = {{ a = {{ source = \"p\", pinned = true }}, \
                 b = \"q\" }}\n"
            ),
            &["5:12 `max_adapters` is 1; with 1 pinned adapters it must be at least 2"],
        ),
        (
            &format!(
                "{model}adapters = {{ b = \"p\" }}\n[[models]]\nname = \"a:b\"\nsource = \"s\"\n"
            ),
            &["4:12 the adapter `b` cannot be chosen: `a:b` names the model `a:b`"],
        ),
        (
            &format!("{key}scopes = []\n"),
            &["4:10 a key without scopes allows nothing; list some, or remove `scopes`"],
        ),
        (
            &format!("{key}models = [\"a\", \"b\"]\n{model}"),
            &["4:10 there is no model named `b`"],
        ),
        (
            &format!("{key}{key}"),
            &[
                "5:8 another key is already named `k`",
                "6:8 the key `k` has the same hash",
            ],
        ),
        (
            "[[keys]]\nname = \"k\"\nhash = \"secret\"",
            &[
                "3:8 `keys.hash` must be \"sha256:\" and 64 hexadecimal digits, as `loquat config \
                 key` prints it",
            ],
        ),
    ];
    for (text, expected) in table {
        assert_eq!(errors(text), *expected, "{text}");
    }
}

#[test]
fn syntax_errors_carry_their_locations() {
    for (text, location) in [
        ("[server\nport = 1", "1:8 "),
        ("[server]\nport = ", "2:8 "),
        ("[server]\nport = 1\nport = 2", "3:1 "),
    ] {
        let errors = errors(text);
        assert!(errors[0].starts_with(location), "{errors:?}");
    }
}

#[test]
fn variables_and_flags_are_checked_too() {
    let sources = Sources {
        environment: pairs(&[
            ("LOQUAT_SERVER_PORT", "many"),
            ("LOQUAT_SERVER_PROT", "1"),
            ("LOQUAT_CONTEXT", "0"),
            ("LOQUAT_CACHE", "/somewhere"),
        ]),
        flags: pairs(&[("tls-certificate", "c.pem"), ("memory", "lots")]),
        ..Sources::default()
    };
    assert_eq!(
        described(sources.read().unwrap_err()),
        [
            "LOQUAT_SERVER_PROT no option has this variable; use one of: \
             LOQUAT_SERVER_HOST, LOQUAT_SERVER_PORT, LOQUAT_SERVER_SHUTDOWN_TIMEOUT, \
             LOQUAT_SERVER_PAGE, LOQUAT_SERVER_HOST_NAMES, LOQUAT_SERVER_STRICT_FIELDS, \
             LOQUAT_SERVER_STRICT_LIMITS, LOQUAT_SERVER_STRICT_MODEL_NAMES",
            "LOQUAT_SERVER_PORT `server.port` must be a whole number from 0 to 65535",
            "LOQUAT_CONTEXT `models.context` must be a whole number from 1 to 4294967295",
            "--memory `models.memory` must be a size such as \"6GiB\" or a share of this machine \
             such as \"60%\"",
            "--tls-certificate `tls.certificate` needs `tls.private_key` as well",
        ]
    );
}
