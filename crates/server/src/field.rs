//! Request fields, as errors name them.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! fields {
    ($($variant:ident = $name:literal,)*) => {
        /// The name of a request field.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Field {
            $($variant,)*
        }

        impl Field {
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

fields! {
    AddGenerationPrompt = "add_generation_prompt",
    AddSpecial = "add_special",
    AddSpecialTokens = "add_special_tokens",
    After = "after",
    AllowedTools = "allowed_tools",
    Annotations = "annotations",
    Arguments = "arguments",
    Audio = "audio",
    Background = "background",
    BestOf = "best_of",
    BudgetTokens = "budget_tokens",
    ChatTemplateKwargs = "chat_template_kwargs",
    ChatTemplate = "chat_template",
    Choice = "choice",
    Container = "container",
    Content = "content",
    Context = "context",
    Conversation = "conversation",
    Data = "data",
    Dimensions = "dimensions",
    Documents = "documents",
    DraftMax = "speculative.n_max",
    Echo = "echo",
    Effort = "effort",
    EnableThinking = "enable_thinking",
    File = "file",
    FileId = "file_id",
    Format = "format",
    Function = "function",
    FunctionCall = "function_call",
    Functions = "functions",
    Grammar = "grammar",
    GuidedChoice = "guided_choice",
    GuidedGrammar = "guided_grammar",
    GuidedJson = "guided_json",
    GuidedRegex = "guided_regex",
    Height = "height",
    Id = "id",
    ImageUrl = "image_url",
    Images = "images",
    IncludeStopStrInOutput = "include_stop_str_in_output",
    Input = "input",
    InputAudio = "input_audio",
    Json = "json",
    JsonObject = "json_object",
    JsonSchema = "json_schema",
    KeepAlive = "keep_alive",
    Limit = "limit",
    Logprobs = "logprobs",
    Lora = "lora",
    LoraName = "lora_name",
    LoraPath = "lora_path",
    MaxCompletionTokens = "max_completion_tokens",
    MaxOutputTokens = "max_output_tokens",
    MaxTokens = "max_tokens",
    McpServers = "mcp_servers",
    Messages = "messages",
    Metadata = "metadata",
    Modalities = "modalities",
    Model = "model",
    Moderation = "moderation",
    MultimodalData = "multimodal_data",
    N = "n",
    NPredict = "n_predict",
    NProbs = "n_probs",
    Name = "name",
    NumCtx = "num_ctx",
    NumPredict = "num_predict",
    Options = "options",
    Order = "order",
    OutputConfig = "output_config",
    Parameters = "parameters",
    ParseSpecial = "parse_special",
    Patience = "patience",
    PreviousResponseId = "previous_response_id",
    Priority = "priority",
    Prompt = "prompt",
    PromptEmbeds = "prompt_embeds",
    PromptLogprobs = "prompt_logprobs",
    Reasoning = "reasoning",
    ReasoningContent = "reasoning_content",
    ReasoningEffort = "reasoning_effort",
    Refusal = "refusal",
    Regex = "regex",
    ResponseFormat = "response_format",
    Role = "role",
    Scale = "scale",
    Schema = "schema",
    Shift = "shift",
    Source = "source",
    Steps = "steps",
    Stop = "stop",
    StopSequences = "stop_sequences",
    StopTokenIds = "stop_token_ids",
    Stream = "stream",
    ContinueFinalMessage = "continue_final_message",
    Prefix = "prefix",
    InputPrefix = "input_prefix",
    InputSuffix = "input_suffix",
    InputExtra = "input_extra",
    StreamOptions = "stream_options",
    StructuredOutputs = "structured_outputs",
    Suffix = "suffix",
    System = "system",
    Temperature = "temperature",
    Template = "template",
    TemplateVariables = "template_variables",
    Text = "text",
    Think = "think",
    Thinking = "thinking",
    ThinkingBudget = "thinking_budget",
    ThinkingTokenBudget = "thinking_token_budget",
    Tokens = "tokens",
    ToolCallId = "tool_call_id",
    ToolCalls = "tool_calls",
    ToolChoice = "tool_choice",
    ToolName = "tool_name",
    ToolUseId = "tool_use_id",
    Tools = "tools",
    TopLogprobs = "top_logprobs",
    Truncate = "truncate",
    TruncatePromptTokens = "truncate_prompt_tokens",
    Url = "url",
    VideoUrl = "video_url",
    Videos = "videos",
    Truncation = "truncation",
    Type = "type",
    UseBeamSearch = "use_beam_search",
    WebSearchOptions = "web_search_options",
    Width = "width",
}

impl Field {
    pub fn field(self, field: Field) -> FieldPath {
        FieldPath::from(self).field(field)
    }

    pub fn index(self, index: usize) -> FieldPath {
        FieldPath::from(self).index(index)
    }
}

/// The path of a request field: `messages[0].content`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath(String);

impl FieldPath {
    /// A path that a table of parameters, a lower layer or the request itself spells out.
    pub fn verbatim(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    pub fn field(self, field: Field) -> Self {
        self.key(field.name())
    }

    /// An entry of an object with arbitrary keys.
    pub fn key(mut self, key: &str) -> Self {
        self.0.push('.');
        self.0.push_str(key);
        self
    }

    pub fn index(mut self, index: usize) -> Self {
        self.0.push_str(&format!("[{index}]"));
        self
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Field> for FieldPath {
    fn from(field: Field) -> Self {
        Self(field.name().to_owned())
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for FieldPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_join_fields_and_indices() {
        let call = Field::Messages.index(3).field(Field::ToolCalls).index(0);
        let path = call.field(Field::Function).field(Field::Arguments);
        assert_eq!(
            path.as_str(),
            "messages[3].tool_calls[0].function.arguments"
        );
        assert_eq!(
            FieldPath::from(Field::Options).key("top_k").to_string(),
            "options.top_k"
        );
    }
}
