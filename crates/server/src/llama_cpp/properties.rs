//! `/props`, `/slots` and `/apply-template`

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use loquat_chat::{BoundaryTokens, ChatRequest};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::Field;
use crate::lowering;
use crate::models::Lease;
use crate::openai::chat::lower::opening;
use crate::openai::messages::{self, ChatMessage};
use crate::openai::tools::ChatTool;
use crate::openai::{lease, only_name};
use crate::wire::{JsonBody, WireRequest};

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ModelQuery {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
}

pub type ModelQueryResult = Result<Query<ModelQuery>, axum::extract::rejection::QueryRejection>;

async fn leased(app: &App, caller: &Caller, query: ModelQueryResult) -> Result<Lease, ApiError> {
    lease(app, caller, parsed(query)?.as_deref()).await
}

/// The configured name of the model, without loading it.
pub fn queried_model(
    app: &App,
    caller: &Caller,
    query: ModelQueryResult,
) -> Result<String, ApiError> {
    match parsed(query)? {
        Some(name) => app.name_for(caller, &name),
        None => only_name(app, caller),
    }
}

fn parsed(query: ModelQueryResult) -> Result<Option<String>, ApiError> {
    let query = query.map_err(|error| {
        let message = error.body_text();
        ApiError::bad_request(message).param(Field::Model)
    });
    query.map(|Query(query)| query.model)
}

/// A model as llama.cpp describes it.
#[derive(Debug, Serialize, ToSchema)]
pub struct LlamaProperties {
    pub default_generation_settings: LlamaDefaults,
    /// Requests that run at once.
    pub total_slots: usize,
    pub model_alias: String,
    /// The model's name.
    pub model_path: String,
    /// Jinja; empty if the model has none.
    pub chat_template: String,
    pub bos_token: String,
    pub eos_token: String,
    pub build_info: String,
    pub modalities: LlamaModalities,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LlamaDefaults {
    /// The most tokens of a prompt and its reply.
    pub n_ctx: usize,
}

/// What the model reads beside text.
#[derive(Debug, Serialize, ToSchema)]
pub struct LlamaModalities {
    pub vision: bool,
    pub audio: bool,
}

/// Describe the model.
#[utoipa::path(
    get,
    path = "/props",
    tag = "llama.cpp",
    params(ModelQuery),
    responses((status = 200, description = "The model", body = LlamaProperties)),
)]
pub async fn props(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: ModelQueryResult,
) -> Result<Json<LlamaProperties>, ApiError> {
    let lease = leased(&app, &caller, query).await?;
    let chat = lease.chat_context();
    let BoundaryTokens {
        bos_token,
        eos_token,
    } = BoundaryTokens::from_tokenizer(chat.tokenizer());
    let template = chat.template().map(|template| template.source(false));
    Ok(Json(LlamaProperties {
        default_generation_settings: LlamaDefaults {
            n_ctx: lease.model.token_limit(),
        },
        total_slots: slot_count(&app, &lease),
        model_alias: lease.id.clone(),
        model_path: lease.id.clone(),
        chat_template: template.unwrap_or_default().to_owned(),
        bos_token,
        eos_token,
        build_info: concat!("loquat-", env!("CARGO_PKG_VERSION")).to_owned(),
        modalities: LlamaModalities {
            vision: lease.info.images,
            audio: false,
        },
    }))
}

/// Requests of a model that run at once.
fn slot_count(app: &App, lease: &Lease) -> usize {
    let config = app.config();
    let model = config.models.iter().find(|model| model.name == lease.id);
    model.map_or(1, |model| model.parallel)
}

/// A place for a running request.
#[derive(Debug, Serialize, ToSchema)]
pub struct LlamaSlot {
    pub id: usize,
    /// The most tokens of a prompt and its reply.
    pub n_ctx: usize,
    /// Whether tokens are drafted.
    pub speculative: bool,
    pub is_processing: bool,
}

/// List the places for running requests. Requests are not bound to them: the first ones are busy.
#[utoipa::path(
    get,
    path = "/slots",
    tag = "llama.cpp",
    params(ModelQuery),
    responses((status = 200, description = "The slots", body = Vec<LlamaSlot>)),
)]
pub async fn slots(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: ModelQueryResult,
) -> Result<Json<Vec<LlamaSlot>>, ApiError> {
    let lease = leased(&app, &caller, query).await?;
    let running = lease.engine().stats().running;
    let slot = |id| LlamaSlot {
        id,
        n_ctx: lease.model.token_limit(),
        speculative: lease.engine().speculates(),
        is_processing: id < running,
    };
    Ok(Json((0..slot_count(&app, &lease)).map(slot).collect()))
}

/// A conversation to render.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyTemplateRequest {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
    pub messages: Vec<ChatMessage>,
    /// Tools of the conversation.
    pub tools: Option<Vec<ChatTool>>,
    /// Continue the last message, the assistant's.
    pub continue_final_message: Option<bool>,
    /// Open the assistant's turn; default true.
    pub add_generation_prompt: Option<bool>,
    /// Extra variables of the template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

impl WireRequest for ApplyTemplateRequest {}

/// The prompt of a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct AppliedTemplate {
    pub prompt: String,
}

/// Render a conversation by the model's template.
#[utoipa::path(
    post,
    path = "/apply-template",
    tag = "llama.cpp",
    request_body = ApplyTemplateRequest,
    responses((status = 200, description = "The prompt", body = AppliedTemplate)),
)]
pub async fn apply_template(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<ApplyTemplateRequest>,
) -> Result<Json<AppliedTemplate>, ApiError> {
    let request = body.value;
    let lease = lease(&app, &caller, request.model.as_deref()).await?;
    let request = lowering::run(move || lower(request)).await?;
    let prompt = lowering::run_chat(&lease, request, |chat, request, _| {
        chat.render(&request, true)
    });
    let prompt = prompt.await?;
    Ok(Json(AppliedTemplate { prompt }))
}

fn lower(request: ApplyTemplateRequest) -> Result<ChatRequest, ApiError> {
    let ApplyTemplateRequest {
        model: _,
        messages,
        tools,
        continue_final_message,
        add_generation_prompt,
        chat_template_kwargs,
    } = request;
    let continues_last =
        messages::continues_last(&messages)? || continue_final_message == Some(true);
    let tools = tools.unwrap_or_default().into_iter();
    Ok(ChatRequest {
        messages: messages::lower(messages)?,
        tools: tools.map(ChatTool::lower).collect(),
        template_variables: chat_template_kwargs.unwrap_or_default(),
        opening: opening(continues_last, add_generation_prompt)?,
        ..ChatRequest::default()
    })
}
