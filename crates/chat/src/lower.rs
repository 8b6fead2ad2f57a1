//! From a chat request to a generate request.

use loquat_engine::GenerateRequest;
use loquat_text::{ChatInput, ChatTemplate, Special, Tokenizer};
use serde_json::{Value, json};

use crate::{ChatError, ChatRequest, Message};

/// A model's way of writing conversations down.
#[derive(Debug, Clone)]
pub struct Chat {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl Chat {
    /// A model without a template refuses every chat.
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Self {
        Self {
            tokenizer,
            template,
        }
    }

    /// Writes the conversation out, opens the assistant's turn, and ends it at the model's own
    /// end tokens.
    pub fn lower(&self, request: ChatRequest) -> Result<GenerateRequest, ChatError> {
        let ChatRequest {
            messages,
            max_tokens,
            sampling,
            stop,
            logprobs,
            template_variables,
        } = request;
        let template = self.template.as_ref().ok_or(ChatError::NoTemplate)?;
        if messages.is_empty() {
            return Err(ChatError::NoMessages);
        }
        let rendered = template.render(&ChatInput {
            messages: messages.iter().map(lower_message).collect(),
            tools: None,
            add_generation_prompt: true,
            bos_token: self.token_text(self.tokenizer.bos()),
            eos_token: self.token_text(self.tokenizer.eos()),
            kwargs: template_variables,
        })?;
        Ok(GenerateRequest {
            prompt: self.tokenizer.encode(&rendered, Special::RENDERED)?,
            max_tokens,
            sampling,
            stop_ids: self.tokenizer.eos_ids().to_vec(),
            stop,
            logprobs,
            prompt_logprobs: false,
            skip_special: true,
            fresh_text: true,
            ..GenerateRequest::default()
        })
    }

    /// Templates name these tokens whether or not the model has them.
    fn token_text(&self, id: Option<u32>) -> String {
        id.and_then(|id| self.tokenizer.token_text(id))
            .unwrap_or_default()
    }
}

fn lower_message(message: &Message) -> Value {
    let Message { role, content } = message;
    json!({ "role": role.to_string(), "content": content })
}
