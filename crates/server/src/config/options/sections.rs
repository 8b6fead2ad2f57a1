//! What concerns the server as a whole.

use super::{AT_LEAST_ONE, COUNT, Section, Setting};
use crate::config::kinds::Bounds;
use crate::config::{Config, Tls};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

type Of = Setting<Config>;

pub const SECTIONS: &[Section] = &[
    Section {
        name: "server",
        help: "Where the server listens, and how it stops.",
        settings: &[
            Of::new(
                "host",
                |c| &mut c.server.host,
                "\"0.0.0.0\"",
                "The address to listen on. Loopback reaches this machine only; \"0.0.0.0\" and \
                 \"::\" are all of its addresses",
            )
            .flag("host"),
            Of::new(
                "port",
                |c| &mut c.server.port,
                "8000",
                "The port to listen on; 0 takes any that is free",
            )
            .within(Bounds::Whole(0, u16::MAX as u64))
            .flag("port"),
            Of::new(
                "shutdown_timeout",
                |c| &mut c.server.shutdown_timeout,
                "\"2m\"",
                "How long requests may go on after the server was told to stop",
            )
            .flag("shutdown-timeout"),
            Of::new(
                "page",
                |c| &mut c.server.page,
                "false",
                "Serve the page at `/` and the reader of the API's description at `/docs`",
            )
            .flag("page"),
            Of::new(
                "host_names",
                |c| &mut c.server.host_names,
                "[\"llm.example.org\"]",
                "Names by which browsers may reach the server, besides its address and loopback \
                 names",
            )
            .within(Bounds::Text(
                is_host_name,
                "a host name such as \"llm.example.org\"",
            ))
            .flag("host-names"),
        ],
    },
    Section {
        name: "tls",
        help: "HTTPS. Both files, or neither.",
        settings: &[
            Of::new(
                "certificate",
                |c| &mut tls(c).certificate,
                "\"/etc/loquat/certificate.pem\"",
                "PEM: the certificate and what it was issued by",
            )
            .flag("tls-certificate"),
            Of::new(
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
        help: "What a client may ask of a connection.",
        settings: &[
            Of::new(
                "body_bytes",
                |c| &mut c.limits.body_bytes,
                "\"64MiB\"",
                "The largest body of a request",
            )
            .within(Bounds::Bytes(KIB, 1 << 40)),
            Of::new(
                "header_bytes",
                |c| &mut c.limits.header_bytes,
                "\"128KiB\"",
                "The largest head of a request",
            )
            .within(Bounds::Bytes(8 * KIB, 16 * MIB)),
            Of::new(
                "header_timeout",
                |c| &mut c.limits.header_timeout,
                "\"20s\"",
                "How long a request's head may take to arrive",
            ),
            Of::new(
                "body_timeout",
                |c| &mut c.limits.body_timeout,
                "\"5m\"",
                "How long its body may take",
            ),
            Of::new(
                "write_timeout",
                |c| &mut c.limits.write_timeout,
                "\"30s\"",
                "How long a client may leave what is sent to it unread",
            ),
            Of::new(
                "idle_timeout",
                |c| &mut c.limits.idle_timeout,
                "\"2m\"",
                "How long a connection may be idle between requests",
            ),
            Of::new(
                "connections",
                |c| &mut c.limits.connections,
                "1024",
                "Connections at once",
            )
            .within(AT_LEAST_ONE),
            Of::new(
                "request_timeout",
                |c| &mut c.limits.request_timeout,
                "\"10m\"",
                "The longest time from a request's arrival to its end; as long as it takes when \
                 left out",
            ),
        ],
    },
    Section {
        name: "cors",
        help: "Whose pages may use the server from a browser.",
        settings: &[Of::new(
            "origins",
            |c| &mut c.cors.origins,
            "[\"https://example.org\"]",
            "Origins that may; \"*\" is everybody, and nobody may when it is empty",
        )
        .within(Bounds::Text(
            is_origin,
            "an origin such as \"https://example.org\", or \"*\"",
        ))
        .flag("cors-origins")],
    },
    Section {
        name: "log",
        help: "What is written to stderr.",
        settings: &[
            Of::new(
                "level",
                |c| &mut c.log.level,
                "\"info,loquat_engine=debug\"",
                "error, warn, info, debug or trace, or a filter of them by part",
            )
            .within(Bounds::Text(
                is_filter,
                "a level such as \"info\", or a filter of them by part",
            ))
            .flag("log-level")
            .variable("LOQUAT_LOG"),
            Of::new(
                "format",
                |c| &mut c.log.format,
                "\"json\"",
                "Lines for people, or JSON",
            )
            .flag("log-format"),
            Of::new(
                "content",
                |c| &mut c.log.content,
                "true",
                "Write prompts and outputs into the log",
            ),
        ],
    },
    Section {
        name: "telemetry",
        help: "Traces, by OTLP over HTTP.",
        settings: &[
            Of::new(
                "otlp_endpoint",
                |c| &mut c.telemetry.otlp_endpoint,
                "\"http://127.0.0.1:4318\"",
                "Where spans go; nowhere when left out",
            )
            .within(Bounds::Text(
                is_http,
                "an address such as \"http://127.0.0.1:4318\"",
            ))
            .flag("otlp-endpoint"),
            Of::new(
                "service_name",
                |c| &mut c.telemetry.service_name,
                "\"loquat-eu\"",
                "What the server is called there",
            ),
            Of::new(
                "sample_ratio",
                |c| &mut c.telemetry.sample_ratio,
                "0.1",
                "The share of requests that are traced, unless the client decided already",
            )
            .within(Bounds::Real(0.0, 1.0)),
        ],
    },
    Section {
        name: "responses",
        help: "What `/v1/responses` keeps for later turns.",
        settings: &[
            Of::new(
                "max_stored",
                |c| &mut c.responses.max_stored,
                "200",
                "Responses; 0 keeps none",
            )
            .within(COUNT),
            Of::new(
                "max_bytes",
                |c| &mut c.responses.max_bytes,
                "\"16MiB\"",
                "Memory for all of them together",
            )
            .within(Bounds::Bytes(1, 1 << 40)),
            Of::new(
                "keep",
                |c| &mut c.responses.keep,
                "\"1h\"",
                "How long one is kept",
            ),
        ],
    },
    Section {
        name: "memory",
        help: "What all models may take together.",
        settings: &[Of::new(
            "total",
            |c| &mut c.memory,
            "\"24GiB\"",
            "Idle models make room for others within it; whatever the machine takes when \
                 left out",
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

/// Without a path, which no browser sends.
fn is_origin(text: &str) -> bool {
    let host = ["http://", "https://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    text == "*" || host.is_some_and(|host| !host.is_empty() && !host.contains(['/', ' ', '*']))
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
