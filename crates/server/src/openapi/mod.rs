//! `/openapi.json`: the handlers' own descriptions, and additions for all of them.
//!
//! A handler documents itself with `#[utoipa::path]` and is listed below. This module adds the
//! engine's sampling parameters, ignored fields, errors in each path's dialect, streams and security.

mod amend;
mod parameters;
#[cfg(test)]
mod reference;
mod refusals;
mod tagged;
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use serde_json::Value;
use utoipa::{OpenApi, ToSchema};

use crate::app::App;
use crate::field::Field;
use crate::wire::{FieldTables, WireRequest};
use crate::{admin, anthropic, health, llama_cpp, metrics, ollama, openai, tokens};

/// Every handler but those of the page's files.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Loquat",
        description = "Models over HTTP, in the dialects of OpenAI, Anthropic and Ollama.\n\n\
            A field that is not implemented is refused by name, and so is one that looks like a \
            misspelled field. One that clients are known to send without need is ignored, and so \
            is every other unknown field unless the configuration refuses them; the response \
            names it in `x-loquat-ignored`. Every response carries `x-request-id`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "/", description = "This server")),
    tags(
        (name = "openai", description = "OpenAI"),
        (name = "anthropic", description = "Anthropic"),
        (name = "ollama", description = "Ollama"),
        (name = "llama.cpp", description = "llama.cpp"),
        (name = "tokens", description = "Tokens"),
        (name = "operating", description = "Operating"),
        (name = "admin", description = "Administration"),
    ),
    paths(
        openai::chat::create,
        openai::completions::create,
        openai::responses::create,
        openai::responses::stored::retrieve,
        openai::responses::stored::delete,
        openai::responses::stored::input_items,
        openai::responses::stored::cancel,
        openai::embeddings::create,
        openai::models::list,
        openai::models::show,
        anthropic::messages,
        anthropic::count_tokens,
        ollama::chat::chat,
        ollama::generate::generate,
        ollama::embed::embed,
        ollama::embed::embeddings,
        ollama::models::tags,
        ollama::models::show,
        ollama::models::ps,
        ollama::models::version,
        ollama::unmanaged::pull,
        ollama::unmanaged::push,
        ollama::unmanaged::create,
        ollama::unmanaged::copy,
        ollama::unmanaged::remove,
        ollama::unmanaged::upload_blob,
        ollama::unmanaged::find_blob,
        llama_cpp::complete,
        llama_cpp::infill,
        llama_cpp::props,
        llama_cpp::slots,
        llama_cpp::apply_template,
        llama_cpp::lora_adapters,
        llama_cpp::set_lora_adapters,
        tokens::tokenize,
        tokens::detokenize,
        tokens::describe,
        health::live,
        health::live_alias,
        health::ready,
        health::version,
        metrics::scrape::metrics,
        metrics::stats::stats,
        description,
        admin::models::list,
        admin::models::get,
        admin::models::load,
        admin::models::unload,
        admin::models::drain,
        admin::models::reload,
        admin::adapters::load,
        admin::adapters::unload,
        admin::requests::list,
        admin::requests::cancel,
        admin::requests::cancel_all,
        admin::cache::clear,
        admin::keys::list,
        admin::config::get,
        admin::config::reload,
    ),
    components(schemas(
        // Chunks of streams.
        openai::chat::ChatCompletionChunk,
        // Types of the fields that requests share.
        openai::answer_format::ResponseFormat,
        openai::answer_format::StructuredOutputs,
        refusals::OpenAiRefusal,
        refusals::AnthropicRefusal,
        refusals::OllamaRefusal,
    )),
)]
struct Handlers;

/// A request's body, with fields beyond its type's own.
struct RequestBody {
    schema: fn() -> std::borrow::Cow<'static, str>,
    sampling: bool,
    answer_format: bool,
    ignored: FieldTables<&'static str>,
    within: FieldTables<&'static str>,
    refused: FieldTables<Field>,
    refused_within: FieldTables<&'static str>,
}

const fn request_body<T: WireRequest + ToSchema>() -> RequestBody {
    RequestBody {
        schema: T::name,
        sampling: T::SAMPLING,
        answer_format: T::ANSWER_FORMAT,
        ignored: T::IGNORED,
        within: T::IGNORED_NESTED,
        refused: T::REFUSED,
        refused_within: T::REFUSED_NESTED,
    }
}

/// Every body of a request.
const BODIES: &[RequestBody] = &[
    request_body::<openai::chat::ChatCompletionRequest>(),
    request_body::<openai::completions::CompletionRequest>(),
    request_body::<openai::responses::request::ResponseRequest>(),
    request_body::<openai::embeddings::wire::EmbeddingRequest>(),
    request_body::<anthropic::request::MessagesRequest>(),
    request_body::<anthropic::request::CountRequest>(),
    request_body::<ollama::chat::OllamaChatRequest>(),
    request_body::<ollama::generate::OllamaGenerateRequest>(),
    request_body::<ollama::embed::OllamaEmbedRequest>(),
    request_body::<ollama::embed::OllamaEmbeddingsRequest>(),
    request_body::<ollama::models::OllamaShowRequest>(),
    request_body::<llama_cpp::LlamaCompletionRequest>(),
    request_body::<llama_cpp::LlamaInfillRequest>(),
    request_body::<llama_cpp::ApplyTemplateRequest>(),
    request_body::<tokens::TokenizeRequest>(),
    request_body::<tokens::DetokenizeRequest>(),
    request_body::<admin::cache::AdminCacheClear>(),
    request_body::<admin::models::AdminTakeDown>(),
    request_body::<admin::adapters::LoadLoraAdapter>(),
    request_body::<admin::adapters::UnloadLoraAdapter>(),
];

static DOCUMENT: LazyLock<Value> = LazyLock::new(document);
static DESCRIPTION: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(DOCUMENT.to_string()));

/// The schemas of all types by name. Those of requests list every field that is known.
pub fn schemas() -> &'static Value {
    &DOCUMENT["components"]["schemas"]
}

/// The whole description.
fn document() -> Value {
    // Serialization has string keys only, and cannot fail.
    let mut document = serde_json::to_value(Handlers::openapi()).unwrap_or_default();
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    tagged::join(&mut document);
    amend::amend(&mut document, BODIES);
    document
}

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/openapi.json", get(description))
}

/// The API's OpenAPI description.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "operating",
    responses((status = 200, description = "An OpenAPI 3.1 document", body = Object)),
)]
async fn description() -> Response {
    let headers = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, DESCRIPTION.clone()).into_response()
}
