//! `/infill`

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use loquat_engine::GenerateRequest;
use loquat_text::FimPrompt;
use serde::Deserialize;
use utoipa::ToSchema;

use super::adapters::{self, LoraScale};
use super::completion::IGNORED;
use super::generation::{LlamaCompletion, NativeGeneration, OutputOptions};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::Field;
use crate::fill_in::{FillIn, fill_in};
use crate::lowering::{self, StopFlag};
use crate::models::Loaded;
use crate::openai::{lease, options, resolve_alias};
use crate::sampling;
use crate::union::TextOr;
use crate::wire::{FieldTables, JsonBody, WireRequest};

const ROUTE: &str = "/infill";

/// Code to fill in, in llama.cpp's form. The engine's sampling parameters are accepted beside these
/// fields.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LlamaInfillRequest {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
    /// The code before the cursor.
    pub input_prefix: String,
    /// The code after the cursor.
    pub input_suffix: String,
    /// Other files that help.
    pub input_extra: Option<Vec<InfillFile>>,
    /// More code before the cursor.
    pub prompt: Option<String>,
    /// The longest text in tokens; -1 for all that fit, 0 to only evaluate the prompt, so that later
    /// requests find it in the cache. The default is the model's `max_tokens`. One that exceeds the
    /// room in the context is reduced to it, and the header `x-loquat-max-tokens` has the limit.
    #[serde(default, deserialize_with = "options::token_limit")]
    #[schema(value_type = Option<i64>, minimum = -1)]
    pub n_predict: Option<usize>,
    /// OpenAI's name for `n_predict`.
    #[serde(default, deserialize_with = "options::token_limit")]
    #[schema(value_type = Option<i64>, minimum = -1)]
    pub max_tokens: Option<usize>,
    /// Up to 64 strings that end the text; they are not part of it.
    #[schema(value_type = Option<TextOr<String>>)]
    pub stop: Option<TextOr<String>>,
    /// Stream chunks as server-sent events.
    pub stream: Option<bool>,
    /// Return the tokens too; streams always do.
    pub return_tokens: Option<bool>,
    /// Exactly these adapters, by their numbers, as llama.cpp takes them.
    pub lora: Option<Vec<LoraScale>>,
}

/// Another file.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InfillFile {
    pub filename: Option<String>,
    pub text: String,
}

impl LlamaInfillRequest {
    fn text_bytes(&self) -> usize {
        let files = self.input_extra.iter().flatten();
        let files = files.map(|file| {
            let name = file.filename.as_ref().map_or(0, String::len);
            name + file.text.len()
        });
        let prompt = self.prompt.as_ref().map_or(0, String::len);
        self.input_prefix.len() + self.input_suffix.len() + prompt + files.sum::<usize>()
    }
}

impl WireRequest for LlamaInfillRequest {
    const IGNORED: FieldTables<&'static str> = &[IGNORED];
    const SAMPLING: bool = true;
}

/// Fill in the code between a prefix and a suffix.
#[utoipa::path(
    post,
    path = "/infill",
    tag = "llama.cpp",
    request_body = LlamaInfillRequest,
    responses((status = 200, description = "The code", body = LlamaCompletion)),
)]
pub async fn infill(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<LlamaInfillRequest>,
) -> Result<Response, ApiError> {
    let lease = lease(&app, &caller, body.value.model.as_deref()).await?;
    let lease = adapters::apply(&app, &caller, lease, body.value.lora.as_deref()).await?;
    let bytes = body.value.text_bytes();
    lease.check_text(bytes)?;
    let model = lease.clone();
    let lowered = lowering::run_text(bytes, move |stop| lower(body, &model, stop)).await?;
    lowered.respond(&app, &caller, lease, ROUTE).await
}

fn lower(
    body: JsonBody<LlamaInfillRequest>,
    model: &Loaded,
    stop_flag: &StopFlag,
) -> Result<NativeGeneration, ApiError> {
    let LlamaInfillRequest {
        model: _,
        lora: _,
        mut input_prefix,
        input_suffix,
        input_extra,
        prompt,
        n_predict,
        max_tokens,
        stop,
        stream,
        return_tokens,
    } = body.value;
    input_prefix.push_str(&prompt.unwrap_or_default());
    let extra = input_extra.unwrap_or_default().into_iter();
    let files: Vec<_> = extra
        .map(|file| (file.filename.unwrap_or_else(|| "tmp".to_owned()), file.text))
        .collect();
    let tokenizer = model.chat_context().tokenizer();
    let prompt = FimPrompt {
        prefix: &input_prefix,
        suffix: &input_suffix,
        files: &files,
    };
    let FillIn { prompt, ends } = fill_in(model, Field::InputSuffix, prompt, stop_flag)?;
    Ok(NativeGeneration {
        prompts: vec![GenerateRequest {
            prompt,
            sampling: sampling::apply(&body.sampling, model.sampling(), tokenizer)?,
            stop_ids: [tokenizer.eos_ids(), &ends].concat(),
            stop: options::stops(stop)?,
            skip_special: true,
            ..GenerateRequest::default()
        }],
        n_predict: resolve_alias((Field::NPredict, n_predict), (Field::MaxTokens, max_tokens))?,
        output: OutputOptions {
            streams: stream.unwrap_or(false),
            return_tokens: return_tokens.unwrap_or(false),
            ..OutputOptions::default()
        },
        ignored: body.ignored,
    })
}
