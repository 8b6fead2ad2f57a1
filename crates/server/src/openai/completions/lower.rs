//! Lowers a completion request to a generate request for each prompt.

use std::sync::Arc;

use loquat::PromptEmbeddings;
use loquat_engine::{GenerateRequest, Logprobs, PromptMedia, join_spans};
use loquat_grammar::Grammar;
use loquat_text::{FimPrompt, Special, Tokenizer};

use super::wire::{CompletionRequest, PromptItem};
use crate::error::ApiError;
use crate::field::Field;
use crate::fill_in::{FillIn, fill_in};
use crate::lowering::{StopFlag, encoding_error};
use crate::media_data;
use crate::models::Loaded;
use crate::openai::options::{self, Streaming};
use crate::sampling;
use crate::union::TextOr;
use crate::wire::JsonBody;

/// OpenAI's documented default, instead of the model's.
const OPENAI_COMPLETION_TOKENS: usize = 16;
const MOST_PROMPTS: usize = 1024;
/// Of all prompts together, including those that `best_of` discards.
const MOST_CHOICES: usize = 4096;

#[derive(Debug)]
pub struct LoweredCompletion {
    pub prompts: Vec<Prompt>,
    /// Choices generated for each prompt; the best `n` are returned.
    pub best_of: usize,
    pub n: usize,
    pub output: OutputOptions,
    /// `None` for an answer in one piece.
    pub streaming: Option<Streaming>,
    pub cache_salt: Option<String>,
    pub ignored: Vec<&'static str>,
}

#[derive(Debug)]
pub struct Prompt {
    /// As it was sent, or decoded from its tokens.
    pub text: Arc<str>,
    pub generate: GenerateRequest,
}

/// A prompt's text, its tokens, and the media among them.
type EncodedPrompt = (String, Vec<u32>, Vec<PromptMedia>);

/// What is returned beside a choice's text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputOptions {
    pub echo: bool,
    /// Number of alternatives to each token.
    pub logprobs: Option<usize>,
    /// Number of alternatives to each prompt token.
    pub prompt_logprobs: Option<usize>,
}

/// Lowers a request. Tokenizes and compiles, so it belongs off the async threads.
pub fn lower(
    body: JsonBody<CompletionRequest>,
    model: &Loaded,
    stop_flag: &StopFlag,
) -> Result<LoweredCompletion, ApiError> {
    let (chat, defaults) = (model.chat_context(), model.sampling());
    let JsonBody {
        value,
        sampling: overrides,
        answer_format,
        mut ignored,
        removed: _,
    } = body;
    let CompletionRequest {
        model: _,
        lora: _,
        prompt,
        prompt_embeds,
        suffix,
        max_tokens,
        echo,
        n,
        best_of,
        logprobs,
        prompt_logprobs,
        stop,
        stop_token_ids,
        skip_special_tokens,
        stream,
        stream_options,
        cache_salt,
        priority,
        ignore_eos,
        draft_max,
    } = value;
    let tokenizer = chat.tokenizer();
    let grammar = match answer_format.lower(&mut ignored)? {
        Some(constraint) => Some(constraint.compile(chat)?),
        None => None,
    };
    let streaming = options::streaming(stream, stream_options, &mut ignored)?;
    let n = options::choices(Field::N, n)?;
    let best_of = self::best_of(n, best_of, streaming.is_some())?;
    let output = OutputOptions {
        echo: echo.unwrap_or(false),
        logprobs: options::alternatives(Field::Logprobs, logprobs)?,
        prompt_logprobs: options::alternatives(Field::PromptLogprobs, prompt_logprobs)?,
    };
    let max_tokens = max_tokens.unwrap_or(OPENAI_COMPLETION_TOKENS);
    let mut stop_ids = stop_token_ids.unwrap_or_default();
    let suffix = suffix.filter(|suffix| !suffix.is_empty());
    let input = Input::new(prompt, prompt_embeds, suffix.is_some())?;
    let prompts = match (input, suffix) {
        (Input::Embeddings(files), _) => embedded_prompts(files, best_of, output.echo, model)?,
        (Input::Prompt(prompt), Some(suffix)) => {
            let text = single_text(prompt)?;
            let prompt = FimPrompt {
                prefix: &text,
                suffix: &suffix,
                files: &[],
            };
            let FillIn { prompt, ends } = fill_in(model, Field::Suffix, prompt, stop_flag)?;
            stop_ids.extend(ends);
            vec![(text, prompt, Vec::new())]
        }
        (Input::Prompt(prompt), None) => {
            let tokenizer = tokenizer.interruptible(stop_flag.signal());
            let prompts = prompts(prompt, best_of, &tokenizer)?.into_iter();
            let prompts = prompts.map(|(text, tokens)| (text, tokens, Vec::new()));
            prompts.collect()
        }
    };
    if !ignore_eos.unwrap_or(false) {
        stop_ids.extend(tokenizer.eos_ids());
    }
    let shared = GenerateRequest {
        max_tokens,
        sampling: sampling::apply(&overrides, defaults, tokenizer)?,
        stop_ids,
        stop: options::stops(stop)?,
        logprobs: output.logprobs(best_of > n),
        prompt_logprobs: output.scores_prompt(max_tokens)?,
        skip_special: skip_special_tokens.unwrap_or(true),
        priority: priority.unwrap_or(0),
        draft_tokens: draft_max,
        ..GenerateRequest::default()
    };
    let prompts = prompts.into_iter().map(|(text, tokens, media)| Prompt {
        text: text.into(),
        generate: GenerateRequest {
            prompt: tokens,
            media,
            constraint: grammar.as_ref().map(Grammar::constraint),
            ..shared.clone()
        },
    });
    Ok(LoweredCompletion {
        prompts: prompts.collect(),
        best_of,
        n,
        output,
        streaming,
        cache_salt,
        ignored,
    })
}

impl OutputOptions {
    /// The engine has one number of alternatives for prompt and output. Ranking choices needs their
    /// log-probabilities.
    fn logprobs(&self, ranked: bool) -> Option<Logprobs> {
        let most = self.logprobs.max(self.prompt_logprobs);
        most.or(ranked.then_some(0)).map(Logprobs::for_model)
    }

    /// Whether to compute the prompt's log-probabilities. Without them the engine generates at least
    /// one token.
    fn scores_prompt(&self, max_tokens: usize) -> Result<bool, ApiError> {
        let requested = self.echo && self.logprobs.is_some() || self.prompt_logprobs.is_some();
        if max_tokens == 0 && !self.echo && !requested {
            Err(ApiError::invalid(
                Field::MaxTokens,
                "is 0; it must be at least 1 without `echo` or `prompt_logprobs`",
            ))
        } else {
            Ok(requested || max_tokens == 0)
        }
    }
}

fn best_of(n: usize, best_of: Option<usize>, streams: bool) -> Result<usize, ApiError> {
    let Some(best_of) = best_of else {
        return Ok(n);
    };
    let best_of = options::choices(Field::BestOf, Some(best_of))?;
    if best_of < n {
        let problem = format!("is {best_of}; it must be at least `n`, which is {n}");
        return Err(ApiError::invalid(Field::BestOf, problem));
    }
    if best_of > n && streams {
        let problem = "cannot be streamed: the best choices are known at the end";
        return Err(ApiError::invalid(Field::BestOf, problem));
    }
    Ok(best_of)
}

/// Refuses prompts that cannot fit, before they are tokenized. Returns the longest text's size.
pub fn check_texts(prompt: &TextOr<PromptItem>, model: &Loaded) -> Result<usize, ApiError> {
    let items = match prompt {
        TextOr::Text(text) => return model.check_text(text.len()).map(|()| text.len()),
        TextOr::Many(items) => items,
    };
    let single_tokens = items
        .iter()
        .filter(|item| matches!(item, PromptItem::Token(_)));
    model.check_prompt(single_tokens.count(), 0)?;
    let mut longest = 0;
    for item in items {
        match item {
            PromptItem::Text(text) => {
                model.check_text(text.len())?;
                longest = longest.max(text.len());
            }
            PromptItem::Tokens(tokens) => model.check_prompt(tokens.len(), 0)?,
            PromptItem::Token(_) => {}
        }
    }
    Ok(longest)
}

/// What is continued.
enum Input {
    Prompt(TextOr<PromptItem>),
    Embeddings(TextOr<String>),
}

impl Input {
    fn new(
        prompt: Option<TextOr<PromptItem>>,
        embeddings: Option<TextOr<String>>,
        has_suffix: bool,
    ) -> Result<Self, ApiError> {
        match (prompt, embeddings) {
            (Some(prompt), None) => Ok(Self::Prompt(prompt)),
            (None, Some(_)) if has_suffix => {
                let problem = "needs a `prompt` of text, not `prompt_embeds`";
                Err(ApiError::invalid(Field::Suffix, problem))
            }
            (None, Some(embeddings)) => Ok(Self::Embeddings(embeddings)),
            (Some(_), Some(_)) => {
                let problem = "replaces `prompt`; send one of them";
                Err(ApiError::invalid(Field::PromptEmbeds, problem))
            }
            (None, None) => Err(ApiError::invalid(Field::Prompt, "is missing")),
        }
    }
}

/// Prompts of raw embeddings, which have no text.
fn embedded_prompts(
    files: TextOr<String>,
    choices: usize,
    echo: bool,
    model: &Loaded,
) -> Result<Vec<EncodedPrompt>, ApiError> {
    if echo {
        let problem = "is not possible with `prompt_embeds`, which have no text";
        return Err(ApiError::invalid(Field::Echo, problem));
    }
    let (files, is_only) = match files {
        TextOr::Text(file) => (vec![file], true),
        TextOr::Many(files) => (files, false),
    };
    check_count(Field::PromptEmbeds, files.len(), choices)?;
    let hidden_size = model.engine().capabilities().hidden_size;
    let files = files.into_iter().enumerate();
    let prompts = files.map(|(index, file)| {
        let field = if is_only {
            Field::PromptEmbeds.into()
        } else {
            Field::PromptEmbeds.index(index)
        };
        let bytes = media_data::decode(field.clone(), &file)?;
        let embeddings = PromptEmbeddings::from_safetensors(bytes).and_then(|embeddings| {
            embeddings.check_width(hidden_size)?;
            Ok(embeddings)
        });
        let embeddings = embeddings.map_err(|error| ApiError::invalid(field, error.to_string()))?;
        let (tokens, media) = join_spans(vec![embeddings.into_span()]);
        Ok((String::new(), tokens, media))
    });
    prompts.collect()
}

/// The only prompt, before a suffix.
fn single_text(prompt: TextOr<PromptItem>) -> Result<String, ApiError> {
    match prompt {
        TextOr::Text(text) => Ok(text),
        TextOr::Many(items) => match <[PromptItem; 1]>::try_from(items) {
            Ok([PromptItem::Text(text)]) => Ok(text),
            _ => {
                let problem = "must be one text with `suffix`";
                Err(ApiError::invalid(Field::Prompt, problem))
            }
        },
    }
}

/// Each prompt as text and as tokens.
fn prompts(
    prompt: TextOr<PromptItem>,
    choices: usize,
    tokenizer: &Tokenizer,
) -> Result<Vec<(String, Vec<u32>)>, ApiError> {
    let items = match prompt {
        TextOr::Text(text) => vec![PromptItem::Text(text)],
        TextOr::Many(items) => items,
    };
    if items.is_empty() {
        let problem = "is empty; it must have at least one token";
        return Err(ApiError::invalid(Field::Prompt, problem));
    }
    if let Some(tokens) = single_prompt(&items) {
        return Ok(vec![(tokenizer.decode(&tokens, false), tokens)]);
    }
    check_count(Field::Prompt, items.len(), choices)?;
    let items = items.into_iter().enumerate();
    let prompts = items.map(|(index, item)| match item {
        PromptItem::Text(text) => {
            let tokens = tokenizer.encode(&text, Special::PROMPT);
            let tokens = tokens.map_err(|error| encoding_error(&error))?;
            Ok((text, tokens))
        }
        PromptItem::Tokens(tokens) => Ok((tokenizer.decode(&tokens, false), tokens)),
        PromptItem::Token(_) => Err(ApiError::invalid(
            Field::Prompt.index(index),
            "is a token id among prompts; send one prompt or a list of prompts",
        )),
    });
    prompts.collect()
}

fn check_count(field: Field, prompts: usize, choices: usize) -> Result<(), ApiError> {
    let problem = if prompts == 0 {
        "is empty; it must have at least one prompt".to_owned()
    } else if prompts > MOST_PROMPTS {
        format!("has {prompts} prompts; at most {MOST_PROMPTS} are allowed")
    } else if prompts * choices > MOST_CHOICES {
        format!(
            "has {prompts} prompts with {choices} choices each; at most {MOST_CHOICES} choices in \
             total are allowed"
        )
    } else {
        return Ok(());
    };
    Err(ApiError::invalid(field, problem))
}

/// The tokens of the only prompt, if the items are token ids.
fn single_prompt(items: &[PromptItem]) -> Option<Vec<u32>> {
    let tokens = items.iter().map(|item| match item {
        PromptItem::Token(id) => Some(*id),
        PromptItem::Text(_) | PromptItem::Tokens(_) => None,
    });
    tokens.collect()
}
