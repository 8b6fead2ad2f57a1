//! The options of the whole server.

use super::{AT_LEAST_ONE, COUNT, Section, Setting};
use crate::config::option_value::Bounds;
use crate::config::{Config, Tls};
use crate::remote_media::AllowedHost;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

type ConfigSetting = Setting<Config>;

pub const SECTIONS: &[Section] = &[
    Section {
        name: "server",
        help: "Where the server listens, how it stops, and how strictly it reads requests.",
        settings: &[
            ConfigSetting::new(
                "host",
                |c| &mut c.server.host,
                "\"0.0.0.0\"",
                "The address to listen on. Loopback accepts connections from this machine only; \
                 \"0.0.0.0\" and \"::\" listen on all addresses",
            )
            .flag("host"),
            ConfigSetting::new(
                "port",
                |c| &mut c.server.port,
                "8000",
                "The port to listen on; 0 chooses a free one",
            )
            .within(Bounds::Whole(0, u16::MAX as u64))
            .flag("port"),
            ConfigSetting::new(
                "shutdown_timeout",
                |c| &mut c.server.shutdown_timeout,
                "\"2m\"",
                "How long running requests may continue after a shutdown signal",
            )
            .flag("shutdown-timeout"),
            ConfigSetting::new(
                "page",
                |c| &mut c.server.page,
                "false",
                "Serve the page at `/` and the API reference at `/docs`",
            )
            .flag("page"),
            ConfigSetting::new(
                "host_names",
                |c| &mut c.server.host_names,
                "[\"llm.example.org\"]",
                "Host names under which browsers may reach the server, besides addresses, loopback \
                 names and `host.docker.internal`. A server without keys refuses other names, on \
                 loopback always and elsewhere if this is set",
            )
            .within(Bounds::Text(
                is_host_name,
                "a host name such as \"llm.example.org\"",
            ))
            .flag("host-names"),
            ConfigSetting::new(
                "strict_fields",
                |c| &mut c.server.strict_fields,
                "true",
                "Refuse every unknown field of a request. By default those that look like a \
                 misspelled field are refused, and the header `x-loquat-ignored` names all others",
            ),
            ConfigSetting::new(
                "strict_limits",
                |c| &mut c.server.strict_limits,
                "true",
                "Refuse a reply limit (`max_tokens`) that exceeds the room in the context. By \
                 default it is reduced, and the header `x-loquat-max-tokens` has the limit",
            ),
            ConfigSetting::new(
                "strict_model_names",
                |c| &mut c.server.strict_model_names,
                "true",
                "Refuse unknown model names even if only one model is served. By default that \
                 model serves such requests, and the header `x-loquat-model` names it",
            ),
        ],
    },
    Section {
        name: "tls",
        help: "HTTPS. Set both files or neither.",
        settings: &[
            ConfigSetting::new(
                "certificate",
                |c| &mut tls(c).certificate,
                "\"/etc/loquat/certificate.pem\"",
                "PEM: the certificate chain",
            )
            .flag("tls-certificate"),
            ConfigSetting::new(
                "private_key",
                |c| &mut tls(c).private_key,
                "\"/etc/loquat/private-key.pem\"",
                "PEM: the certificate's private key",
            )
            .flag("tls-private-key"),
        ],
    },
    Section {
        name: "limits",
        help: "Limits for requests and connections.",
        settings: &[
            ConfigSetting::new(
                "body_bytes",
                |c| &mut c.limits.body_bytes,
                "\"64MiB\"",
                "Largest request body",
            )
            .within(Bounds::Bytes(KIB, 1 << 40)),
            ConfigSetting::new(
                "header_bytes",
                |c| &mut c.limits.header_bytes,
                "\"128KiB\"",
                "Largest request head",
            )
            .within(Bounds::Bytes(8 * KIB, 16 * MIB)),
            ConfigSetting::new(
                "header_timeout",
                |c| &mut c.limits.header_timeout,
                "\"20s\"",
                "How long a request's head may take to arrive",
            ),
            ConfigSetting::new(
                "body_timeout",
                |c| &mut c.limits.body_timeout,
                "\"5m\"",
                "How long a request's body may take to arrive",
            ),
            ConfigSetting::new(
                "write_timeout",
                |c| &mut c.limits.write_timeout,
                "\"30s\"",
                "How long a client may leave sent data unread",
            ),
            ConfigSetting::new(
                "idle_timeout",
                |c| &mut c.limits.idle_timeout,
                "\"2m\"",
                "How long a connection may be idle between requests",
            ),
            ConfigSetting::new(
                "connections",
                |c| &mut c.limits.connections,
                "1024",
                "Concurrent connections",
            )
            .within(AT_LEAST_ONE),
            ConfigSetting::new(
                "request_timeout",
                |c| &mut c.limits.request_timeout,
                "\"10m\"",
                "Longest time from a request's arrival to its end; no limit if unset",
            ),
        ],
    },
    Section {
        name: "cors",
        help: "Which origins may use the server from a browser.",
        settings: &[ConfigSetting::new(
            "origins",
            |c| &mut c.cors.origins,
            "[\"https://example.org\"]",
            "Allowed origins; \"*\" allows all, `https://example.org:*` every port, and \
             `scheme://*` every host. On loopback, local pages are allowed besides: \
             `http://localhost:*`, `http://127.0.0.1:*`, `http://[::1]:*`, `app://obsidian.md` and \
             `vscode-webview://*`",
        )
        .within(Bounds::Text(
            is_origin,
            "an origin such as \"https://example.org\" or \"http://localhost:*\", or \"*\"",
        ))
        .flag("cors-origins")],
    },
    Section {
        name: "log",
        help: "The log on stderr.",
        settings: &[
            ConfigSetting::new(
                "level",
                |c| &mut c.log.level,
                "\"info,loquat_engine=debug\"",
                "error, warn, info, debug or trace, or a filter with levels per target",
            )
            .within(Bounds::Text(
                is_filter,
                "a level such as \"info\", or a filter with levels per target",
            ))
            .flag("log-level")
            .variable("LOQUAT_LOG"),
            ConfigSetting::new(
                "format",
                |c| &mut c.log.format,
                "\"json\"",
                "Plain text or JSON lines",
            )
            .flag("log-format"),
            ConfigSetting::new(
                "content",
                |c| &mut c.log.content,
                "true",
                "Log prompts and outputs",
            ),
        ],
    },
    Section {
        name: "telemetry",
        help: "Traces, by OTLP over HTTP.",
        settings: &[
            ConfigSetting::new(
                "otlp_endpoint",
                |c| &mut c.telemetry.otlp_endpoint,
                "\"http://127.0.0.1:4318\"",
                "The collector's endpoint; no traces if unset",
            )
            .within(Bounds::Text(
                is_http,
                "a URL such as \"http://127.0.0.1:4318\"",
            ))
            .flag("otlp-endpoint"),
            ConfigSetting::new(
                "service_name",
                |c| &mut c.telemetry.service_name,
                "\"loquat-eu\"",
                "The service's name in traces",
            ),
            ConfigSetting::new(
                "sample_ratio",
                |c| &mut c.telemetry.sample_ratio,
                "0.1",
                "The share of requests to trace, unless the client has decided",
            )
            .within(Bounds::Real(0.0, 1.0)),
        ],
    },
    Section {
        name: "responses",
        help: "Responses that `/v1/responses` stores for later turns.",
        settings: &[
            ConfigSetting::new(
                "max_stored",
                |c| &mut c.responses.max_stored,
                "200",
                "Stored responses; 0 stores none",
            )
            .within(COUNT),
            ConfigSetting::new(
                "max_bytes",
                |c| &mut c.responses.max_bytes,
                "\"16MiB\"",
                "Memory for all of them together",
            )
            .within(Bounds::Bytes(1, 1 << 40)),
            ConfigSetting::new(
                "keep",
                |c| &mut c.responses.keep,
                "\"1h\"",
                "How long a response is stored",
            ),
        ],
    },
    Section {
        name: "remote_media",
        help: "Images and videos that requests name by their address.",
        settings: &[
            ConfigSetting::new(
                "hosts",
                |c| &mut c.remote_media.hosts,
                "[\"images.example.org\", \"*.cdn.example.org\"]",
                "Hosts from which images and videos are fetched; none if unset. `*.example.org` is \
                 every host below `example.org`. HTTPS only, unless the host is written as \
                 `http://host:port`. Names that lead to private addresses are refused; such an \
                 address itself may be listed",
            )
            .within(Bounds::Text(
                is_media_host,
                "a host such as \"images.example.org\" or \"http://192.0.2.1:8080\"",
            )),
            ConfigSetting::new(
                "max_bytes",
                |c| &mut c.remote_media.max_bytes,
                "\"8MiB\"",
                "Most that is fetched for one request",
            )
            .within(Bounds::Bytes(1, 1 << 32)),
            ConfigSetting::new(
                "timeout",
                |c| &mut c.remote_media.timeout,
                "\"5s\"",
                "How long fetching for one request may take",
            ),
        ],
    },
    Section {
        name: "memory",
        help: "Memory of all models together.",
        settings: &[ConfigSetting::new(
            "total",
            |c| &mut c.memory,
            "\"24GiB\"",
            "The limit, within which idle models are unloaded to make room; no limit if unset",
        )
        .within(Bounds::Bytes(1, u64::MAX))],
    },
];

fn tls(config: &mut Config) -> &mut Tls {
    config.tls.get_or_insert_default()
}

fn is_host_name(text: &str) -> bool {
    let letter = |letter: char| letter.is_alphanumeric() || "-._".contains(letter);
    !text.is_empty() && text.chars().all(letter)
}

fn is_media_host(text: &str) -> bool {
    AllowedHost::parse(text).is_some()
}

/// Without a path: browsers send none. Programs that show web pages have schemes of their own.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else {
        return text == "*";
    };
    let is_scheme = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    let fixed = host.strip_suffix(":*").unwrap_or(host);
    let is_host = !fixed.is_empty() && !fixed.contains(['/', ' ', '*']);
    !scheme.is_empty() && scheme.chars().all(is_scheme) && (is_host || host == "*")
}

fn is_filter(text: &str) -> bool {
    !text.is_empty() && tracing_subscriber::EnvFilter::try_new(text).is_ok()
}

fn is_http(text: &str) -> bool {
    let host = ["http://", "https://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    host.is_some_and(|host| !host.is_empty() && !host.contains(char::is_whitespace))
}
