//! The field `options`: sampling and stop options by Ollama's names.

use loquat_engine::{PARAMETERS, SamplingParams};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::models::Loaded;
use crate::sampling::{self, ALIASES};
use crate::unknown_fields::{FieldPolicy, UnknownNames};

const DRAFT_MAX: &str = Field::DraftMax.name();
const LOADING: &str = "the configuration decides how models are loaded";

/// Options without effect, with the reason, as the header `x-loquat-ignored` names them.
pub const IGNORED: &[(&str, &str)] = &[
    (
        "options.num_ctx",
        "the configuration sets the context; a longer one is refused",
    ),
    ("options.numa", LOADING),
    ("options.num_batch", LOADING),
    ("options.num_gpu", LOADING),
    ("options.main_gpu", LOADING),
    ("options.low_vram", LOADING),
    ("options.f16_kv", LOADING),
    ("options.logits_all", LOADING),
    ("options.vocab_only", LOADING),
    ("options.use_mmap", LOADING),
    ("options.use_mlock", LOADING),
    ("options.embedding_only", LOADING),
    ("options.num_thread", LOADING),
    ("options.num_keep", "contexts are never shifted"),
    (
        "options.penalize_newline",
        "it has no effect in Ollama either",
    ),
];
/// For requests that generate nothing.
pub const ALL_IGNORED: &[(&str, &str)] = &[("options", "embeddings are not sampled")];

/// Options that are refused, with the reason.
pub const REFUSED: &[(&str, &str)] =
    &[("options.tfs_z", "it is deprecated in Ollama; use `min_p`")];

/// The options of a request for one model.
#[derive(Debug, PartialEq)]
pub struct Options {
    pub sampling: SamplingParams,
    pub stop: Vec<String>,
    /// The longest reply, shortened to what fits. The model's default if omitted.
    pub max_tokens: Option<usize>,
    /// Most drafts in a step.
    pub draft_tokens: Option<usize>,
    pub ignored: Vec<&'static str>,
    /// Unknown options that were ignored, as the header names them.
    pub unknown: Vec<String>,
}

impl Options {
    pub fn lower(
        options: Option<Map<String, Value>>,
        model: &Loaded,
        policy: FieldPolicy,
    ) -> Result<Self, ApiError> {
        let mut lowered = Self {
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            max_tokens: None,
            draft_tokens: None,
            ignored: Vec::new(),
            unknown: Vec::new(),
        };
        let mut sampling = Map::new();
        let mut unknown = UnknownNames::default();
        // Clients write null for an option that they omit.
        let options = options.unwrap_or_default().into_iter();
        for (name, value) in options.filter(|(_, value)| !value.is_null()) {
            if is_known(&name) {
                lowered.add(&name, value, model.model.token_limit(), &mut sampling)?;
            } else {
                let field = FieldPath::from(Field::Options).key(&name);
                policy.check(field.clone(), &name, known_names())?;
                unknown.insert(field.to_string())?;
            }
        }
        lowered.unknown = unknown.into_names();
        let tokenizer = model.chat_context().tokenizer();
        let sampling = sampling::apply(&sampling, model.sampling(), tokenizer);
        lowered.sampling = sampling.map_err(rename_fields)?;
        Ok(lowered)
    }

    fn add(
        &mut self,
        name: &str,
        value: Value,
        context: usize,
        sampling: &mut Map<String, Value>,
    ) -> Result<(), ApiError> {
        let field = FieldPath::from(Field::Options).key(name);
        if name == Field::NumCtx.name() {
            check_context(&field, &value, context)?;
        }
        match name {
            DRAFT_MAX => self.draft_tokens = Some(draft_tokens(&field, &value)?),
            "stop" => self.stop = stop(&field, &value)?,
            "num_predict" => self.max_tokens = Some(max_tokens(&field, &value)?),
            // A negative seed means a random one.
            "seed" if value.as_i64().is_some_and(|seed| seed < 0) => {}
            _ => {
                let ours = sampling::alias(name).unwrap_or(name);
                let is_listed = |(path, _): &&(&str, &str)| *path == field.as_str();
                if let Some((ignored, _)) = IGNORED.iter().find(is_listed) {
                    self.ignored.push(ignored);
                } else if let Some((_, reason)) = REFUSED.iter().find(is_listed) {
                    return Err(ApiError::unsupported(field, reason));
                } else {
                    let field = field.to_string();
                    sampling::insert(sampling, &field, ours.to_owned(), value)?;
                }
            }
        }
        Ok(())
    }
}

/// The names of all options.
fn known_names() -> impl Iterator<Item = &'static str> {
    let listed = IGNORED.iter().chain(REFUSED);
    let listed = listed.filter_map(|(path, _)| path.strip_prefix("options."));
    let aliases = ALIASES.iter().map(|(theirs, _)| *theirs);
    let parameters = PARAMETERS.iter().map(|parameter| parameter.name);
    let own = ["stop", "num_predict", DRAFT_MAX].into_iter();
    own.chain(listed).chain(aliases).chain(parameters)
}

fn is_known(name: &str) -> bool {
    known_names().any(|known| known == name)
}

/// Checks the options of a request that generates nothing, and lists them as ignored.
pub fn check_ignored(
    options: Option<Map<String, Value>>,
    model: &Loaded,
    policy: FieldPolicy,
) -> Result<Vec<&'static str>, ApiError> {
    let any = options.as_ref().is_some_and(|options| !options.is_empty());
    Options::lower(options, model, policy)?;
    Ok(if any {
        ALL_IGNORED.iter().map(|(name, _)| *name).collect()
    } else {
        Vec::new()
    })
}

/// Renames fields of the lower layers to those of the request.
pub fn rename_fields(error: ApiError) -> ApiError {
    let option = |name: &str| FieldPath::from(Field::Options).key(name);
    let parameters = PARAMETERS.iter().map(|parameter| {
        let theirs = ALIASES.iter().find(|(_, ours)| *ours == parameter.name);
        let theirs = theirs.map_or(parameter.name, |(theirs, _)| theirs);
        (FieldPath::verbatim(parameter.name), option(theirs))
    });
    let others = [
        (Field::MaxTokens, Field::Options.field(Field::NumPredict)),
        (Field::Stop, Field::Options.field(Field::Stop)),
        (Field::Thinking, Field::Think.into()),
        (Field::ResponseFormat, Field::Format.into()),
    ];
    let others = others.map(|(ours, theirs)| (ours.into(), theirs));
    error.renamed(parameters.chain(others))
}

fn stop(field: &FieldPath, value: &Value) -> Result<Vec<String>, ApiError> {
    if let Some(one) = value.as_str() {
        return Ok(vec![one.to_owned()]);
    }
    let several = serde_json::from_value(value.clone());
    several.map_err(|_| ApiError::invalid(field.clone(), "must be a list of strings"))
}

/// 0, -1 and -2 mean no limit but the context.
fn max_tokens(field: &FieldPath, value: &Value) -> Result<usize, ApiError> {
    match value.as_i64() {
        Some(-2..=0) => Ok(usize::MAX),
        Some(most @ 1..) => Ok(usize::try_from(most).unwrap_or(usize::MAX)),
        _ => Err(ApiError::invalid(
            field.clone(),
            "must be a number of tokens, or -1 for no limit",
        )),
    }
}

fn draft_tokens(field: &FieldPath, value: &Value) -> Result<usize, ApiError> {
    let most = value.as_u64().and_then(|most| usize::try_from(most).ok());
    most.ok_or_else(|| {
        let problem = "must be a number of tokens, or 0 for no drafts";
        ApiError::invalid(field.clone(), problem)
    })
}

fn check_context(field: &FieldPath, value: &Value, context: usize) -> Result<(), ApiError> {
    match value.as_u64().filter(|requested| *requested > 0) {
        Some(requested) if requested <= context as u64 => Ok(()),
        Some(requested) => {
            let problem = format!("is {requested}; the model's context is {context}");
            let error = ApiError::invalid(field.clone(), problem);
            Err(error.code("context_length_exceeded"))
        }
        None => Err(ApiError::invalid(
            field.clone(),
            "must be a number of tokens, at least 1",
        )),
    }
}
