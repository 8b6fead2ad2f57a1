//! Compiles a source to a matcher in its start state, in bounded time and memory.

use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};
use loquat_text::Tokenizer;
use serde_json::json;

use crate::error::reason;
use crate::source::Notation;
use crate::tokens::TokenEnv;
use crate::{GrammarError, GrammarSource, Result, gbnf, lark, schema};

/// llguidance recurses over schemas, rules and groups, and the caller's stack may be small. Only
/// the used part takes memory.
const STACK: usize = 256 << 20;

/// Bytes of a grammar's text. The largest published schemas are a third of it.
const MAX_BYTES: usize = 4 << 20;

/// A lexer state takes one or two kilobytes, and every request may have its own.
const LEXER_STATES: usize = 50_000;

/// An object with this many optional properties needs a few times as many states. llguidance's
/// default allows fewer than five hundred.
const MAX_ITEMS_IN_ROW: usize = 20_000;

/// The limit for all rows that one mask examines.
const MAX_ITEMS_IN_STEP: usize = 200_000;

pub(crate) struct Compiler {
    factory: ParserFactory,
}

impl Compiler {
    /// Builds the vocabulary's trie, and one for each of the slices of it that llguidance allows
    /// at once.
    pub(crate) fn new(tokenizer: Tokenizer, vocab_size: usize) -> Result<Self> {
        let env: TokEnv = Arc::new(TokenEnv::new(tokenizer, vocab_size)?);
        let capabilities = InferenceCapabilities {
            ff_tokens: true,
            ..InferenceCapabilities::default()
        };
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, capabilities, &slices).map_err(|error| {
            GrammarError::Vocabulary {
                reason: reason(&error.to_string()),
            }
        })?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            max_items_in_row: MAX_ITEMS_IN_ROW,
            step_max_items: MAX_ITEMS_IN_STEP,
            max_lexer_states: LEXER_STATES,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self { factory })
    }

    /// A matcher at the start of the grammar. Its first mask is computed here, and a copy follows
    /// the forced tokens: a grammar that admits nothing, or forces tokens without end, is refused.
    pub(crate) fn compile(&self, source: &GrammarSource) -> Result<Matcher> {
        let notation = source.notation();
        on_large_stack(notation, || {
            let parser = self.factory.create_parser(lower(source)?);
            let mut matcher = Matcher::new(parser);
            let mut trial = matcher.deep_clone();
            trial.consume_ff_tokens();
            let failed = trial.get_error().or_else(|| {
                let mask = matcher.compute_mask();
                mask.err().map(|error| error.to_string())
            });
            match failed {
                None => Ok(matcher),
                Some(error) => Err(refused(notation, &error)),
            }
        })
    }
}

fn lower(source: &GrammarSource) -> Result<TopLevelGrammar> {
    let limited = |text: &str| {
        if text.len() > MAX_BYTES {
            Err(GrammarError::TooLarge {
                notation: source.notation(),
                what: "bytes",
                limit: MAX_BYTES,
            })
        } else {
            Ok(())
        }
    };
    match source {
        GrammarSource::JsonObject => {
            schema::prepare(&json!({"type": "object"})).map(TopLevelGrammar::from_json_schema)
        }
        GrammarSource::JsonSchema(written) => {
            schema::prepare(written).map(TopLevelGrammar::from_json_schema)
        }
        GrammarSource::Regex(pattern) => {
            limited(pattern)?;
            lark::regex(pattern).map(TopLevelGrammar::from_lark)
        }
        GrammarSource::Choice(choices) => {
            choices.iter().try_for_each(|choice| limited(choice))?;
            lark::choice(choices).map(TopLevelGrammar::from_lark)
        }
        GrammarSource::Lark(text) => {
            limited(text)?;
            lark::prepare(text).map(TopLevelGrammar::from_lark)
        }
        GrammarSource::Gbnf(text) => {
            limited(text)?;
            gbnf::to_lark(text).map(TopLevelGrammar::from_lark)
        }
    }
}

/// llguidance's reason, reworded if this crate has a better text.
fn refused(notation: Notation, error: &str) -> GrammarError {
    let reason = match notation {
        // Its line numbers refer to a generated grammar that the request does not contain.
        Notation::Regex | Notation::Choice | Notation::Gbnf => without_position(reason(error)),
        Notation::Schema | Notation::Lark => reason(error),
    };
    match reason.strip_prefix("Unsatisfiable schema: ") {
        Some(why) => GrammarError::Unsatisfiable {
            why: why.to_string(),
        },
        None => GrammarError::Refused { notation, reason },
    }
}

fn without_position(reason: String) -> String {
    match reason.split_once(": ") {
        Some((place, rest)) if place.starts_with("line ") => rest.to_string(),
        _ => reason,
    }
}

/// Runs `work` on a stack deep enough for the limits. A panic becomes an error.
pub(crate) fn on_large_stack<T: Send>(
    notation: Notation,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    on_stack(STACK, notation, work)
}

fn on_stack<T: Send>(
    bytes: usize,
    notation: Notation,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(bytes);
        let thread = builder.spawn_scoped(scope, work);
        let thread = thread.map_err(|error| GrammarError::NoThread {
            notation,
            reason: error.to_string(),
        })?;
        thread.join().unwrap_or_else(|_| {
            let reason = "compiling it panicked".to_string();
            Err(GrammarError::Refused { notation, reason })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than any address space has.
    const NO_STACK: usize = 1 << 60;

    #[test]
    fn missing_thread_is_not_the_requests_fault() {
        let error = on_stack(NO_STACK, Notation::Schema, || Ok(())).expect_err("no thread");
        assert!(matches!(error, GrammarError::NoThread { .. }), "{error}");
        assert!(!error.is_request_fault());
    }
}
