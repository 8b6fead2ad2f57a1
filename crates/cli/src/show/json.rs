//! A reply for programs.

use loquat_chat::{ReplyEvent, ToolCall};
use loquat_engine::{FinishReason, TokenInfo, Usage};
use loquat_text::Tokenizer;
use serde_json::{Value, json};

use crate::error::CliError;
use crate::stream::{End, Heard, Listener};
use crate::terminal::print;

/// Prints one object when all is said.
pub struct Whole<'a> {
    /// Where log-probabilities are wanted.
    pub tokens: Option<&'a Tokenizer>,
}

impl Listener for Whole<'_> {
    fn event(&mut self, _event: &ReplyEvent) -> Result<(), CliError> {
        Ok(())
    }

    fn end(&mut self, heard: &Heard) -> Result<(), CliError> {
        let reply = &heard.reply;
        let calls: Vec<Value> = reply.tool_calls.iter().map(call).collect();
        let mut object = json!({
            "reasoning": reply.reasoning,
            "text": reply.text,
            "tool_calls": calls,
        });
        add(&mut object, ending(heard));
        if let Some(tokenizer) = self.tokens {
            object["logprobs"] = logprobs(&heard.tokens, tokenizer);
        }
        line(&object)
    }
}

/// Prints a line for each event.
pub struct Events<'a> {
    /// Where log-probabilities are wanted.
    pub tokens: Option<&'a Tokenizer>,
}

impl Listener for Events<'_> {
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

    fn end(&mut self, heard: &Heard) -> Result<(), CliError> {
        let mut object = json!({ "type": "finished" });
        add(&mut object, ending(heard));
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

fn ending(heard: &Heard) -> Value {
    let Some(end) = &heard.end else {
        return json!({ "finish_reason": "interrupted", "usage": null, "seed": null });
    };
    let End {
        reason,
        usage,
        timings: _,
        seed,
    } = end;
    let Usage {
        prompt_tokens,
        completion_tokens,
        cached_tokens,
    } = usage;
    let called = !heard.reply.tool_calls.is_empty();
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

/// A call. Arguments that are cut short are told as the text they are.
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

/// With no more digits than tell it apart: 0.6 in 32 bits is 0.6000000238418579 in 64. What is
/// not finite is null.
pub fn number(value: f32) -> Value {
    let shortest = value.to_string().parse::<f64>();
    shortest.map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use loquat_chat::Reply;
    use loquat_engine::Timings;

    use super::*;

    fn heard(reason: FinishReason, calls: Vec<ToolCall>) -> Heard {
        Heard {
            whole_calls: vec![true; calls.len()],
            reply: Reply {
                tool_calls: calls,
                ..Reply::default()
            },
            tokens: Vec::new(),
            end: Some(End {
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
    fn the_end_is_told_as_it_was() {
        let usage = json!({ "prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 2 });
        for (reason, calls, name) in [
            (FinishReason::Stop, vec![], "stop"),
            (FinishReason::Stop, vec![add()], "tool_calls"),
            (FinishReason::StopString(0), vec![], "stop_string"),
            (FinishReason::Length, vec![add()], "length"),
        ] {
            let told = ending(&heard(reason, calls));
            let expected = json!({ "finish_reason": name, "usage": usage, "seed": 7 });
            assert_eq!(told, expected);
        }
        let interrupted = ending(&Heard::default());
        assert_eq!(interrupted["finish_reason"], "interrupted");
    }

    #[test]
    fn arguments_are_an_object_or_the_text_there_is() {
        for (arguments, told) in [
            ("{\"a\": 1}", json!({ "a": 1 })),
            ("{}", json!({})),
            ("{\"a\": ", json!("{\"a\": ")),
            ("[1]", json!("[1]")),
        ] {
            let called = ToolCall {
                arguments: arguments.into(),
                ..add()
            };
            let expected = json!({ "id": "1", "name": "add", "arguments": told });
            assert_eq!(call(&called), expected);
        }
    }

    #[test]
    fn numbers_are_short() {
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
