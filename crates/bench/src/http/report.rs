//! The report of the HTTP scenario.

use serde_json::{Value, json};

use super::super::report::{Report, Table, number, rounds_heading};
use super::super::stats::{Spread, median, median_ratio};
use super::{ManyClients, ServerStart};

const MEGABYTE: f64 = 1e6;

/// All measurements.
pub struct Measured {
    pub tokens: usize,
    pub clients: usize,
    /// Tokens per second of one client and of the bare session, one value per round.
    pub served: Vec<f64>,
    pub alone: Vec<f64>,
    pub many_clients: ManyClients,
    pub starts: Vec<ServerStart>,
    /// Resident bytes of a process with only the session open.
    pub session_alone: Option<u64>,
}

impl Measured {
    fn ratio(&self) -> f64 {
        median_ratio(&self.served, &self.alone)
    }

    fn ready(&self) -> f64 {
        let ready = self.starts.iter().map(|start| start.ready.as_secs_f64());
        median(&ready.collect::<Vec<_>>())
    }

    /// Bytes; NaN if the system does not report it.
    fn resident(&self) -> f64 {
        let resident = self.starts.iter().filter_map(|start| start.resident);
        median(&resident.map(|bytes| bytes as f64).collect::<Vec<_>>())
    }

    fn session_alone(&self) -> f64 {
        self.session_alone.map_or(f64::NAN, |bytes| bytes as f64)
    }

    /// Bytes of the rest of the server: tokenizer, templates, runtime, connections.
    fn above_session(&self) -> f64 {
        self.resident() - self.session_alone()
    }
}

pub fn report(measured: Measured) -> Report {
    let heading = format!(
        "over HTTP, {}, {} clients",
        rounds_heading(measured.served.len()),
        measured.clients
    );
    Report::new(heading, text(&measured), to_json(&measured))
}

fn text(measured: &Measured) -> String {
    let mut one = Table::new(&["one client, tokens/s", "http", "session", "ratio"]);
    one.row(vec![
        format!("decode {}", measured.tokens),
        number(median(&measured.served), 1),
        number(median(&measured.alone), 1),
        number(measured.ratio(), 3),
    ]);
    let many_clients = &measured.many_clients;
    let clients = format!("{} clients", measured.clients);
    let mut many = Table::new(&[clients.as_str(), "p50", "p95", "p99", "max"]);
    let mut spread = |name: &str, spread: Spread| {
        let Spread { p50, p95, p99, max } = spread;
        let cells = [p50, p95, p99, max].map(|value| number(value, 1));
        many.row([name.to_owned()].into_iter().chain(cells));
    };
    spread("engine to socket, µs", many_clients.to_socket);
    spread("first token, ms", many_clients.first_token);
    spread("next token, ms", many_clients.between_tokens);
    let mut start = Table::new(&[
        "loquat serve",
        "ready s",
        "resident MB",
        "above the session MB",
    ]);
    start.row(vec![
        format!("median of {}", measured.starts.len()),
        number(measured.ready(), 2),
        number(measured.resident() / MEGABYTE, 1),
        number(measured.above_session() / MEGABYTE, 1),
    ]);
    format!(
        "{}\n{}all clients together: {} tokens/s\n\n{}",
        one.text(),
        many.text(),
        number(many_clients.generated_per_second, 1),
        start.text()
    )
}

fn to_json(measured: &Measured) -> Value {
    let many_clients = &measured.many_clients;
    json!({
        "one_client": {
            "tokens": measured.tokens,
            "http_tokens_per_second": median(&measured.served),
            "session_tokens_per_second": median(&measured.alone),
            "ratio": measured.ratio(),
            "http_rounds": measured.served,
            "session_rounds": measured.alone,
        },
        "many_clients": {
            "clients": measured.clients,
            "generated_tokens_per_second": many_clients.generated_per_second,
            "token_to_socket_us": many_clients.to_socket.to_json(),
            "first_token_ms": many_clients.first_token.to_json(),
            "inter_token_ms": many_clients.between_tokens.to_json(),
        },
        "start": {
            "ready_seconds": measured.ready(),
            "ready_seconds_rounds":
                measured.starts.iter().map(|start| start.ready.as_secs_f64()).collect::<Vec<_>>(),
            "resident_bytes": measured.resident(),
            "session_resident_bytes": measured.session_alone(),
            "resident_bytes_above_session": measured.above_session(),
        },
    })
}
