//! `options`: Ollama's names for how to sample and when to stop.

use loquat_engine::{PARAMETERS, SamplingParams};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::models::Loaded;
use crate::sampling;

/// Ollama's names for the engine's parameters; all others go by the engine's own.
const RENAMED: [(&str, &str); 2] = [
    ("repeat_penalty", "repetition_penalty"),
    ("repeat_last_n", "penalty_last_n"),
];

const LOADING: &str = "models are loaded as they are configured";

/// Taken without effect, with the reason, as the header `x-loquat-ignored` calls them.
pub const IGNORED: &[(&str, &str)] = &[
    (
        "options.num_ctx",
        "contexts are as configured; one that is longer than that is refused",
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
    (
        "options.num_keep",
        "contexts are never shifted, so that nothing needs keeping",
    ),
    (
        "options.penalize_newline",
        "it has no effect in Ollama either",
    ),
];
/// Of requests that generate nothing.
pub const ALL_IGNORED: &[(&str, &str)] = &[("options", "nothing is sampled here")];

const REFUSED: [(&str, &str); 1] = [("tfs_z", "Ollama gave it up; use `min_p`")];

/// What `options` come to for one model.
#[derive(Debug, PartialEq)]
pub struct Options {
    pub sampling: SamplingParams,
    pub stop: Vec<String>,
    /// Longest reply, as far as there is room; what the configuration says when left out.
    pub up_to: Option<usize>,
    pub ignored: Vec<&'static str>,
}

impl Options {
    pub fn lower(options: Option<Map<String, Value>>, model: &Loaded) -> Result<Self, ApiError> {
        let mut lowered = Self {
            sampling: model.sampling().clone(),
            stop: Vec::new(),
            up_to: None,
            ignored: Vec::new(),
        };
        let mut given = Map::new();
        // Null is how clients write what they leave out.
        let options = options.unwrap_or_default().into_iter();
        for (name, value) in options.filter(|(_, value)| !value.is_null()) {
            lowered.take(&name, value, model.model.token_limit(), &mut given)?;
        }
        sampling::apply(
            &given,
            &mut lowered.sampling,
            model.chat_context().tokenizer(),
        )
        .map_err(in_our_words)?;
        Ok(lowered)
    }

    fn take(
        &mut self,
        name: &str,
        value: Value,
        context: usize,
        given: &mut Map<String, Value>,
    ) -> Result<(), ApiError> {
        let field = format!("options.{name}");
        if name == "num_ctx" {
            check_context(&field, &value, context)?;
        }
        match name {
            "stop" => self.stop = stop(&field, &value)?,
            "num_predict" => self.up_to = Some(longest(&field, &value)?),
            // Any number; a negative one is drawn anew.
            "seed" if value.as_i64().is_some_and(|seed| seed < 0) => {}
            _ => {
                let renamed = RENAMED.iter().find(|(theirs, _)| *theirs == name);
                let ours = renamed.map_or(name, |(_, ours)| ours);
                if let Some((ignored, _)) = IGNORED.iter().find(|(known, _)| *known == field) {
                    self.ignored.push(ignored);
                } else if let Some((_, why)) = REFUSED.iter().find(|(known, _)| *known == name) {
                    return Err(ApiError::unsupported(field, why));
                } else if PARAMETERS.iter().any(|known| known.name == ours) {
                    given.insert(ours.to_owned(), value);
                } else {
                    let what = format!("`{field}` is no option that this server knows");
                    return Err(ApiError::invalid(field, what).code("unknown_parameter"));
                }
            }
        }
        Ok(())
    }
}

/// Checks the options of a request that generates nothing, and says that they change nothing.
pub fn without_effect(
    options: Option<Map<String, Value>>,
    model: &Loaded,
) -> Result<Vec<&'static str>, ApiError> {
    let any = options.as_ref().is_some_and(|options| !options.is_empty());
    Options::lower(options, model)?;
    Ok(if any {
        ALL_IGNORED.iter().map(|(name, _)| *name).collect()
    } else {
        Vec::new()
    })
}

/// An error of the layers below, by the names that fields have here.
pub fn in_our_words(error: ApiError) -> ApiError {
    let parameters = PARAMETERS.iter().map(|parameter| {
        let theirs = RENAMED.iter().find(|(_, ours)| *ours == parameter.name);
        let theirs = theirs.map_or(parameter.name, |(theirs, _)| theirs);
        (parameter.name, format!("options.{theirs}"))
    });
    let others = [
        ("max_tokens", "options.num_predict"),
        ("stop", "options.stop"),
        ("thinking", "think"),
        ("response_format", "format"),
    ];
    let others = others.map(|(ours, theirs)| (ours, theirs.to_owned()));
    let names: Vec<_> = parameters.chain(others).collect();
    let borrowed: Vec<_> = names.iter().map(|(a, b)| (*a, b.as_str())).collect();
    error.renamed(&borrowed)
}

fn stop(field: &str, value: &Value) -> Result<Vec<String>, ApiError> {
    if let Some(one) = value.as_str() {
        return Ok(vec![one.to_owned()]);
    }
    let several = serde_json::from_value(value.clone());
    several.map_err(|_| ApiError::invalid(field, format!("`{field}` must be a list of strings")))
}

/// 0, -1 and -2 are all until the model or the context ends.
fn longest(field: &str, value: &Value) -> Result<usize, ApiError> {
    match value.as_i64() {
        Some(-2..=0) => Ok(usize::MAX),
        Some(most @ 1..) => Ok(usize::try_from(most).unwrap_or(usize::MAX)),
        _ => Err(ApiError::invalid(
            field,
            format!("`{field}` must be a number of tokens, or -1 for as many as there is room for"),
        )),
    }
}

fn check_context(field: &str, value: &Value, context: usize) -> Result<(), ApiError> {
    let wanted = value.as_u64().filter(|wanted| *wanted > 0);
    match wanted {
        Some(wanted) if wanted <= context as u64 => Ok(()),
        Some(wanted) => Err(ApiError::invalid(
            field,
            format!("`{field}` is {wanted}, and the model's context here is {context}"),
        )
        .code("context_length_exceeded")),
        None => Err(ApiError::invalid(
            field,
            format!("`{field}` must be a number of tokens, at least 1"),
        )),
    }
}
