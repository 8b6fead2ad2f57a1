//! Tools that are closures, and the loop that calls them.

use std::error::Error as StdError;

use loquat_chat::{Message, Reply, Tool, ToolCall, ToolChoice};
use serde_json::Value;

use crate::{Chat, Error};

/// What a tool returns. The model reads an error as the tool's result.
pub type ToolResult = Result<String, Box<dyn StdError + Send + Sync>>;

type ToolFunction<'a> = Box<dyn FnMut(Value) -> ToolResult + Send + 'a>;

/// Tools with the closures that run them, for [`Chat::run_tools`].
#[derive(Default)]
pub struct Toolbox<'a> {
    tools: Vec<(Tool, ToolFunction<'a>)>,
}

/// A conversation after [`Chat::run_tools`].
#[derive(Debug, Clone, PartialEq)]
pub struct ToolConversation {
    /// The model's final reply, without tool calls.
    pub reply: Reply,
    /// All messages: the request's, the calls with their results, and the final reply.
    pub messages: Vec<Message>,
}

impl<'a> Toolbox<'a> {
    /// No tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool. `run` receives its arguments: a JSON object.
    pub fn with(mut self, tool: Tool, run: impl FnMut(Value) -> ToolResult + Send + 'a) -> Self {
        self.tools.push((tool, Box::new(run)));
        self
    }

    fn definitions(&self) -> Vec<Tool> {
        self.tools.iter().map(|(tool, _)| tool.clone()).collect()
    }

    fn call(&mut self, call: &ToolCall) -> Message {
        let ToolCall {
            id,
            name,
            arguments,
        } = call;
        let result = self.run(name, arguments);
        let text = result.unwrap_or_else(|error| format!("error: {error}"));
        Message {
            name: Some(name.clone()),
            ..Message::tool(id.clone(), text)
        }
    }

    fn run(&mut self, name: &str, arguments: &str) -> ToolResult {
        let tool = self.tools.iter_mut().find(|(tool, _)| tool.name == name);
        let (_, run) = tool.ok_or_else(|| format!("there is no tool `{name}`"))?;
        run(serde_json::from_str(arguments)?)
    }
}

impl Chat {
    /// Asks, runs the tools that the model calls, and asks again with their results until the
    /// model answers without a call. Fails with [`Error::ToolRounds`] if it still calls tools
    /// after `max_rounds` answers.
    ///
    /// ```no_run
    /// use loquat::{Tool, Toolbox};
    /// use serde_json::json;
    ///
    /// # fn main() -> Result<(), loquat::Error> {
    /// let model = loquat::Model::load("qwen3:0.6b")?;
    /// let weather = Tool {
    ///     name: "weather".to_owned(),
    ///     description: Some("Current weather in a city".to_owned()),
    ///     parameters: json!({
    ///         "type": "object",
    ///         "properties": { "city": { "type": "string" } },
    ///         "required": ["city"]
    ///     }),
    ///     strict: true,
    /// };
    /// let mut tools = Toolbox::new().with(weather, |arguments| {
    ///     Ok(format!("Rain in {}", arguments["city"]))
    /// });
    /// let chat = model.chat("Do I need an umbrella in Bergen?");
    /// println!("{}", chat.run_tools(&mut tools, 4)?.reply.text);
    /// # Ok(())
    /// # }
    /// ```
    pub fn run_tools(
        self,
        tools: &mut Toolbox<'_>,
        max_rounds: usize,
    ) -> Result<ToolConversation, Error> {
        let mut chat = self.tools(tools.definitions());
        for _ in 0..max_rounds {
            let reply = chat.clone().reply()?;
            let calls = reply.tool_calls.clone();
            let mut added = vec![reply.clone().into_message()];
            if calls.is_empty() {
                let messages = [chat.messages(), &added].concat();
                return Ok(ToolConversation { reply, messages });
            }
            added.extend(calls.iter().map(|call| tools.call(call)));
            chat = chat.request(|request| {
                request.messages.append(&mut added);
                request.tool_choice = after_call(&request.tool_choice);
            });
        }
        Err(Error::ToolRounds { rounds: max_rounds })
    }
}

/// The choice for the rounds after a call: a required call was made.
pub fn after_call(choice: &ToolChoice) -> ToolChoice {
    match choice {
        ToolChoice::None => ToolChoice::None,
        ToolChoice::Auto | ToolChoice::Required | ToolChoice::Named(_) => ToolChoice::Auto,
    }
}
