//! From a completion's request to generate requests, one for each prompt.

use std::sync::Arc;

use loquat_chat::ChatContext;
use loquat_engine::{GenerateRequest, Logprobs, SamplingParams};
use loquat_grammar::Grammar;
use loquat_text::{Special, Tokenizer};
use serde_json::{Map, Value};

use super::wire::{CompletionRequest, PromptItem};
use crate::error::ApiError;
use crate::models::Loaded;
use crate::openai::answer::Guided;
use crate::openai::options::{self, Streaming};
use crate::sampling;
use crate::union::TextOr;

const DEFAULT_MAX_TOKENS: usize = 16;
const MOST_PROMPTS: usize = 1024;
/// Of all prompts together, those that `best_of` throws away included.
const MOST_CHOICES: usize = 4096;

/// What is asked for, and how it is to be told.
#[derive(Debug)]
pub struct Lowered {
    pub prompts: Vec<Prompt>,
    /// How many choices of each to make, of which the best `n` are told.
    pub best_of: usize,
    pub n: usize,
    pub telling: Telling,
    /// `None` for an answer in one piece.
    pub stream: Option<Streaming>,
    pub cache_salt: Option<String>,
    pub ignored: Vec<&'static str>,
}

#[derive(Debug)]
pub struct Prompt {
    /// As it was given; read off its tokens otherwise.
    pub text: Arc<str>,
    pub generate: GenerateRequest,
}

/// What is told of each choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Telling {
    pub echo: bool,
    /// Alternatives to each token.
    pub logprobs: Option<usize>,
    /// Alternatives to each of the prompt's.
    pub prompt_logprobs: Option<usize>,
}

/// The request over what is in force without it. Tokenizes and compiles, which may take long.
pub fn lower(
    request: CompletionRequest,
    given: &Map<String, Value>,
    chat: &ChatContext,
    in_force: &SamplingParams,
) -> Result<Lowered, ApiError> {
    let CompletionRequest {
        model: _,
        prompt,
        max_tokens,
        echo,
        n,
        best_of,
        logprobs,
        prompt_logprobs,
        stop,
        stream,
        stream_options,
        response_format,
        guided_json,
        guided_regex,
        guided_choice,
        guided_grammar,
        structured_outputs,
        cache_salt,
        priority,
        ignore_eos,
    } = request;
    let tokenizer = chat.tokenizer();
    let mut ignored = Vec::new();
    let guided = Guided {
        response_format,
        guided_json,
        guided_regex,
        guided_choice,
        guided_grammar,
        structured_outputs,
    };
    let grammar = match guided.lower(&mut ignored)? {
        Some(rule) => Some(rule.compile(chat)?),
        None => None,
    };
    let stream = options::streaming(stream, stream_options, &mut ignored)?;
    let n = options::choices("n", n)?;
    let best_of = best(n, best_of, stream.is_some())?;
    let telling = Telling {
        echo: echo.unwrap_or(false),
        logprobs: options::alternatives("logprobs", logprobs)?,
        prompt_logprobs: options::alternatives("prompt_logprobs", prompt_logprobs)?,
    };
    let max_tokens = max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    let mut sampling = in_force.clone();
    sampling::apply(given, &mut sampling, tokenizer)?;
    let shared = GenerateRequest {
        max_tokens,
        sampling,
        stop_ids: if ignore_eos.unwrap_or(false) {
            Vec::new()
        } else {
            tokenizer.eos_ids().to_vec()
        },
        stop: options::stops(stop)?,
        logprobs: telling.wanted(best_of > n),
        prompt_logprobs: telling.scores_prompt(max_tokens)?,
        skip_special: true,
        priority: priority.unwrap_or(0),
        ..GenerateRequest::default()
    };
    let prompts = prompts(prompt, best_of, tokenizer)?.into_iter();
    let prompts = prompts.map(|(text, tokens)| Prompt {
        text: text.into(),
        generate: GenerateRequest {
            prompt: tokens,
            constraint: grammar.as_ref().map(Grammar::constraint),
            ..shared.clone()
        },
    });
    Ok(Lowered {
        prompts: prompts.collect(),
        best_of,
        n,
        telling,
        stream,
        cache_salt,
        ignored,
    })
}

impl Telling {
    /// The engine has one number of alternatives for prompt and output. Choices are ranked by
    /// their log-probabilities.
    fn wanted(&self, ranked: bool) -> Option<Logprobs> {
        let most = self.logprobs.max(self.prompt_logprobs);
        most.or(ranked.then_some(0)).map(Logprobs::for_model)
    }

    /// Whether the prompt's own log-probabilities are computed. The engine generates nothing at
    /// all only where they are.
    fn scores_prompt(&self, max_tokens: usize) -> Result<bool, ApiError> {
        let told = self.echo && self.logprobs.is_some() || self.prompt_logprobs.is_some();
        if max_tokens == 0 && !self.echo && !told {
            Err(ApiError::invalid(
                "max_tokens",
                "`max_tokens` is 0; it must be at least 1, unless `echo` or `prompt_logprobs` is \
                 all that is asked for",
            ))
        } else {
            Ok(told || max_tokens == 0)
        }
    }
}

fn best(n: usize, best_of: Option<usize>, streams: bool) -> Result<usize, ApiError> {
    let Some(best_of) = best_of else {
        return Ok(n);
    };
    let best_of = options::choices("best_of", Some(best_of))?;
    if best_of < n {
        let what = format!("`best_of` is {best_of}; it must be at least `n`, which is {n}");
        return Err(ApiError::invalid("best_of", what));
    }
    if best_of > n && streams {
        let what = "`best_of` cannot be streamed: which are best is known at the end";
        return Err(ApiError::invalid("best_of", what));
    }
    Ok(best_of)
}

/// Refuses texts that cannot fit before anything is done with them.
pub fn check_texts(prompt: &TextOr<PromptItem>, model: &Loaded) -> Result<(), ApiError> {
    let check = |item: &PromptItem| match item {
        PromptItem::Text(text) => model.check_text(text.len()),
        PromptItem::Token(_) | PromptItem::Tokens(_) => Ok(()),
    };
    match prompt {
        TextOr::Text(text) => model.check_text(text.len()),
        TextOr::Many(items) => items.iter().try_for_each(check),
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
        let what = "`prompt` is empty; it must have at least one token";
        return Err(ApiError::invalid("prompt", what));
    }
    if let Some(tokens) = tokens_of_one(&items) {
        return Ok(vec![(tokenizer.decode(&tokens, false), tokens)]);
    }
    let count = items.len();
    if count > MOST_PROMPTS {
        let what = format!("`prompt` has {count} prompts; at most {MOST_PROMPTS} are taken");
        return Err(ApiError::invalid("prompt", what));
    }
    if count * choices > MOST_CHOICES {
        let what = format!(
            "`prompt` has {count} prompts, with {choices} continuations of each; at most \
             {MOST_CHOICES} are made of all together"
        );
        return Err(ApiError::invalid("prompt", what));
    }
    let items = items.into_iter().enumerate();
    let prompts = items.map(|(index, item)| match item {
        PromptItem::Text(text) => {
            let tokens = tokenizer.encode(&text, Special::PROMPT);
            let tokens = tokens.map_err(|error| ApiError::internal(&error))?;
            Ok((text, tokens))
        }
        PromptItem::Tokens(tokens) => Ok((tokenizer.decode(&tokens, false), tokens)),
        PromptItem::Token(_) => Err(ApiError::invalid(
            format!("prompt[{index}]"),
            "`prompt` has token ids beside prompts; it must be one prompt or a list of prompts",
        )),
    });
    prompts.collect()
}

fn tokens_of_one(items: &[PromptItem]) -> Option<Vec<u32>> {
    let tokens = items.iter().map(|item| match item {
        PromptItem::Token(id) => Some(*id),
        PromptItem::Text(_) | PromptItem::Tokens(_) => None,
    });
    tokens.collect()
}
