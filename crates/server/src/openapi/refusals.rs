//! The error schemas of each dialect; `dialect::render_errors` writes the errors.

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
    /// What is wrong, and what to do.
    message: String,
    /// Its kind: `invalid_request_error`, `authentication_error`, `rate_limit_error`…
    r#type: String,
    /// The field at fault, if there is one.
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
    /// What is wrong, and what to do.
    message: String,
}

/// An error in Ollama's form.
#[derive(ToSchema)]
#[expect(dead_code, reason = "described, not built")]
pub struct OllamaRefusal {
    /// What is wrong, and what to do.
    error: String,
}

/// The schema of a path's errors.
pub fn schema_of(path: &str) -> &'static str {
    match Dialect::from_path(path) {
        Dialect::OpenAi => "OpenAiRefusal",
        Dialect::Anthropic => "AnthropicRefusal",
        Dialect::Ollama => "OllamaRefusal",
    }
}

/// An error status and its cause.
pub struct Refusal {
    pub status: &'static str,
    pub why: &'static str,
    pub scope: RefusalScope,
}

/// Which requests can get it.
pub enum RefusalScope {
    Any,
    /// Requests with a body.
    Bodies,
    /// Requests that an engine runs.
    Generating,
}

/// The paths whose requests an engine runs.
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
    "/completion",
    "/infill",
];

const fn always(status: &'static str, why: &'static str) -> Refusal {
    let scope = RefusalScope::Any;
    Refusal { status, why, scope }
}

const fn with_body(status: &'static str, why: &'static str) -> Refusal {
    let scope = RefusalScope::Bodies;
    Refusal { status, why, scope }
}

const fn generating(status: &'static str, why: &'static str) -> Refusal {
    let scope = RefusalScope::Generating;
    Refusal { status, why, scope }
}

pub const REFUSALS: &[Refusal] = &[
    always("400", "The request is invalid; the message names the field"),
    always("401", "No valid API key"),
    always(
        "403",
        "The key lacks the scope, or the host name is not allowed",
    ),
    always("404", "There is no such model or object"),
    always("408", "The request took too long to arrive"),
    generating("409", "An operator cancelled the request"),
    with_body("413", "The body is larger than this server's limit"),
    with_body("415", "The body is not JSON"),
    always(
        "429",
        "A limit of the key is reached; `retry-after` says when to retry",
    ),
    always("500", "The server failed; its log says why"),
    always(
        "503",
        "The queue is full, or the server is stopping; `retry-after` says when to retry",
    ),
];
