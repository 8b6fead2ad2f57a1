//! Replies as JSON.

use loquat::{Finish, FinishReason, ReplyEvent, TokenInfo, ToolCall, Usage};
use loquat_text::Tokenizer;
use serde_json::{Value, json};

use super::transcript::{ReplyPrinter, Transcript};
use crate::error::CliError;
use crate::terminal::print;

/// Prints one object at the end.
pub struct ObjectPrinter<'a> {
    /// Set to print log-probabilities.
    pub tokens: Option<&'a Tokenizer>,
}

impl ReplyPrinter for ObjectPrinter<'_> {
    fn event(&mut self, _event: &ReplyEvent) -> Result<(), CliError> {
        Ok(())
    }

    fn end(&mut self, transcript: &Transcript) -> Result<(), CliError> {
        let reply = &transcript.reply;
        let calls: Vec<Value> = reply.tool_calls.iter().map(call).collect();
        let mut object = json!({
            "reasoning": reply.reasoning,
            "text": reply.text,
            "tool_calls": calls,
        });
        add(&mut object, ending(transcript));
        if let Some(tokenizer) = self.tokens {
            object["logprobs"] = logprobs(&transcript.tokens, tokenizer);
        }
        line(&object)
    }
}

/// Prints a line for each event.
pub struct EventsPrinter<'a> {
    /// Set to print log-probabilities.
    pub tokens: Option<&'a Tokenizer>,
}

impl ReplyPrinter for EventsPrinter<'_> {
    fn event(&mut self, event: &ReplyEvent) -> Result<(), CliError> {
        line(&match event {
            ReplyEvent::Reasoning(text) => json!({ "type": "reasoning", "text": text }),
            ReplyEvent::Text(text) => json!({ "type": "text", "text": text }),
            ReplyEvent::CallStart { index, id, name } => {
                json!({ "type": "call_start", "index": index, "id": id, "name": name })
            }
            ReplyEvent::CallArguments { index, json } => {
                json!({ "type": "call_arguments", "index": index, "json": json })
            }
            ReplyEvent::CallEnd { index } => json!({ "type": "call_end", "index": index }),
        })
    }

    fn tokens(&mut self, tokens: &[TokenInfo]) -> Result<(), CliError> {
        match self.tokens {
            Some(tokenizer) => {
                line(&json!({ "type": "tokens", "logprobs": logprobs(tokens, tokenizer) }))
            }
            None => Ok(()),
        }
    }

    fn end(&mut self, transcript: &Transcript) -> Result<(), CliError> {
        let mut object = json!({ "type": "finished" });
        add(&mut object, ending(transcript));
        line(&object)
    }
}

fn line(value: &Value) -> Result<(), CliError> {
    print(&format!("{value}\n"))
}

fn add(object: &mut Value, fields: Value) {
    if let (Value::Object(object), Value::Object(fields)) = (object, fields) {
        object.extend(fields);
    }
}

fn ending(transcript: &Transcript) -> Value {
    let Some(finish) = &transcript.finish else {
        return json!({ "finish_reason": "interrupted", "usage": null, "seed": null });
    };
    let Finish {
        reason,
        usage,
        timings: _,
        seed,
    } = finish;
    let Usage {
        prompt_tokens,
        completion_tokens,
        cached_tokens,
    } = usage;
    let called = !transcript.reply.tool_calls.is_empty();
    json!({
        "finish_reason": match reason {
            FinishReason::Stop if called => "tool_calls",
            FinishReason::Stop => "stop",
            FinishReason::StopString(_) => "stop_string",
            FinishReason::Length => "length",
        },
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "cached_tokens": cached_tokens,
        },
        "seed": seed,
    })
}

/// A call. Incomplete arguments are printed as a string.
pub fn call(call: &ToolCall) -> Value {
    let ToolCall {
        id,
        name,
        arguments,
    } = call;
    let arguments = match serde_json::from_str(arguments) {
        Ok(object @ Value::Object(_)) => object,
        _ => Value::from(arguments.as_str()),
    };
    json!({ "id": id, "name": name, "arguments": arguments })
}

fn logprobs(tokens: &[TokenInfo], tokenizer: &Tokenizer) -> Value {
    let entry = |id: u32, logprob: Option<f32>| {
        let text = tokenizer.token_text(id).unwrap_or_default();
        json!({ "token": text, "id": id, "logprob": logprob.map(number) })
    };
    let token = |token: &TokenInfo| {
        let mut object = entry(token.id, token.logprob);
        let top = token.top.iter();
        object["top"] = top
            .map(|(id, logprob)| entry(*id, Some(*logprob)))
            .collect();
        object
    };
    tokens.iter().map(token).collect()
}

/// The shortest digits that identify the `f32`: 0.6 is 0.6000000238418579 as an `f64`. `null` if
/// not finite.
pub fn number(value: f32) -> Value {
    let shortest = value.to_string().parse::<f64>();
    shortest.map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use loquat::{Reply, Timings};

    use super::*;

    fn transcript(reason: FinishReason, calls: Vec<ToolCall>) -> Transcript {
        Transcript {
            complete_calls: vec![true; calls.len()],
            reply: Reply {
                tool_calls: calls,
                ..Reply::default()
            },
            tokens: Vec::new(),
            finish: Some(Finish {
                reason,
                usage: Usage {
                    prompt_tokens: 5,
                    completion_tokens: 3,
                    cached_tokens: 2,
                },
                timings: Timings::default(),
                seed: 7,
            }),
        }
    }

    fn add() -> ToolCall {
        ToolCall {
            id: "1".into(),
            name: "add".into(),
            arguments: "{\"a\": 1}".into(),
        }
    }

    #[test]
    fn ending_has_reason_usage_and_seed() {
        let usage = json!({ "prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 2 });
        for (reason, calls, name) in [
            (FinishReason::Stop, vec![], "stop"),
            (FinishReason::Stop, vec![add()], "tool_calls"),
            (FinishReason::StopString(0), vec![], "stop_string"),
            (FinishReason::Length, vec![add()], "length"),
        ] {
            let ending = ending(&transcript(reason, calls));
            let expected = json!({ "finish_reason": name, "usage": usage, "seed": 7 });
            assert_eq!(ending, expected);
        }
        let interrupted = ending(&Transcript::default());
        assert_eq!(interrupted["finish_reason"], "interrupted");
    }

    #[test]
    fn arguments_are_an_object_or_a_string() {
        for (arguments, printed) in [
            ("{\"a\": 1}", json!({ "a": 1 })),
            ("{}", json!({})),
            ("{\"a\": ", json!("{\"a\": ")),
            ("[1]", json!("[1]")),
        ] {
            let called = ToolCall {
                arguments: arguments.into(),
                ..add()
            };
            let expected = json!({ "id": "1", "name": "add", "arguments": printed });
            assert_eq!(call(&called), expected);
        }
    }

    #[test]
    fn numbers_have_no_extra_digits() {
        for (value, text) in [
            (0.6, "0.6"),
            (-1.5, "-1.5"),
            (1e-7, "1e-7"),
            (f32::NEG_INFINITY, "null"),
            (f32::NAN, "null"),
        ] {
            assert_eq!(number(value).to_string(), text);
        }
    }
}
