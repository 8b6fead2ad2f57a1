//! How each dialect words a refusal, for the description; `dialect::render_errors` writes them.

use utoipa::ToSchema;

use crate::dialect::Dialect;

/// An error in OpenAI's form.
#[derive(ToSchema)]
#[expect(dead_code, reason = "described, not built")]
pub struct OpenAiRefusal {
    error: OpenAiProblem,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "described, not built")]
struct OpenAiProblem {
    /// What is wrong, and what would be right.
    message: String,
    /// Its kind: `invalid_request_error`, `authentication_error`, `rate_limit_error`…
    r#type: String,
    /// The field that is at fault, where one is.
    #[schema(required = true)]
    param: Option<String>,
    /// For programs: `context_length_exceeded`, `model_not_found`…
    #[schema(required = true)]
    code: Option<String>,
}

/// An error in Anthropic's form.
#[derive(ToSchema)]
#[expect(dead_code, reason = "described, not built")]
pub struct AnthropicRefusal {
    /// `error`
    r#type: String,
    error: AnthropicProblem,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "described, not built")]
struct AnthropicProblem {
    /// Its kind: `invalid_request_error`, `not_found_error`, `overloaded_error`…
    r#type: String,
    /// What is wrong, and what would be right.
    message: String,
}

/// An error in Ollama's form.
#[derive(ToSchema)]
#[expect(dead_code, reason = "described, not built")]
pub struct OllamaRefusal {
    /// What is wrong, and what would be right.
    error: String,
}

/// The schema of a path's refusals.
pub fn schema_of(path: &str) -> &'static str {
    match Dialect::from_path(path) {
        Dialect::OpenAi => "OpenAiRefusal",
        Dialect::Anthropic => "AnthropicRefusal",
        Dialect::Ollama => "OllamaRefusal",
    }
}

/// A status that requests can meet, and why.
pub struct Refusal {
    pub status: &'static str,
    pub why: &'static str,
    pub of: Of,
}

/// Whose refusal it is.
pub enum Of {
    Any,
    /// Where there is a body to refuse.
    Bodies,
    /// Where an engine works on the request.
    Generating,
}

/// The paths whose requests an engine works on.
pub const GENERATING: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
];

const fn always(status: &'static str, why: &'static str) -> Refusal {
    let of = Of::Any;
    Refusal { status, why, of }
}

const fn of_body(status: &'static str, why: &'static str) -> Refusal {
    let of = Of::Bodies;
    Refusal { status, why, of }
}

const fn of_generating(status: &'static str, why: &'static str) -> Refusal {
    let of = Of::Generating;
    Refusal { status, why, of }
}

pub const REFUSALS: &[Refusal] = &[
    always(
        "400",
        "The request is not what it should be; the message names the field",
    ),
    always("401", "No key, or none that is known"),
    always(
        "403",
        "The key is not for this, or the host name is not this server's",
    ),
    always("404", "There is no such model or thing"),
    always("408", "The request took too long to arrive"),
    of_generating("409", "An operator cancelled the request"),
    of_body("413", "The body is larger than this server takes"),
    of_body("415", "The body is not JSON"),
    always(
        "429",
        "The key's limits are reached; `retry-after` says when to try again",
    ),
    always("500", "The server failed; its log says why"),
    always(
        "503",
        "No room now, or the server is stopping; `retry-after` says when to try again",
    ),
];
