//! Chat requests from flags.

use std::path::PathBuf;

use loquat_chat::{
    ChatRequest, ContentPart, Conversation, Effort, Message, ReplyOpening, Thinking,
};

use crate::args::ConversationArgs;
use crate::error::CliError;
use crate::files;
use crate::prompt;

pub const MESSAGES: &str = "--messages";
const IMAGE: &str = "--image";
pub const TOOLS: &str = "--tools";

/// The chat request that flags set, without messages.
pub fn settings(args: &ConversationArgs) -> Result<ChatRequest, CliError> {
    let ConversationArgs {
        system: _,
        messages: _,
        image: _,
        prefill,
        tools,
        tool_choice,
        thinking,
        template: _,
        template_var,
        read_special,
    } = args;
    let tools = match tools {
        Some(path) => files::tools(TOOLS, path)?,
        None => Vec::new(),
    };
    Ok(ChatRequest {
        tools,
        tool_choice: tool_choice.clone(),
        thinking: Thinking {
            effort: thinking.map(Effort::from),
            budget: None,
        },
        template_variables: template_var.iter().cloned().collect(),
        read_special: *read_special,
        opening: match prefill {
            Some(_) => ReplyOpening::ContinueLast,
            None => ReplyOpening::NewTurn,
        },
        ..ChatRequest::default()
    })
}

/// The conversation so far: the file of messages, or a prompt from an argument or stdin. `None`
/// starts an interactive chat.
pub fn conversation(
    args: &ConversationArgs,
    prompt: Option<String>,
) -> Result<Option<Conversation>, CliError> {
    let Some(prefill) = &args.prefill else {
        return unfilled_conversation(args, prompt);
    };
    let Some(mut conversation) = unfilled_conversation(args, prompt)? else {
        return Err(CliError::Usage {
            what: "`--prefill` in an interactive chat".to_owned(),
            expected: "used with a prompt".to_owned(),
        });
    };
    conversation.push(Message::assistant(prefill.as_str()));
    Ok(Some(conversation))
}

fn unfilled_conversation(
    args: &ConversationArgs,
    prompt: Option<String>,
) -> Result<Option<Conversation>, CliError> {
    let mut conversation = Conversation::new(args.system.clone());
    if let Some(path) = &args.messages {
        if prompt.is_some() {
            return Err(CliError::Usage {
                what: "`--messages` is the conversation; a prompt beside it".to_owned(),
                expected: "its last message".to_owned(),
            });
        }
        for message in files::messages(MESSAGES, path)? {
            conversation.push(message);
        }
        return Ok(Some(conversation));
    }
    let is_stdin = |path: &PathBuf| path.as_os_str() == "-";
    let from_stdin = args.image.iter().filter(|path| is_stdin(path)).count();
    if from_stdin > 1 || from_stdin == 1 && prompt.is_none() {
        return Err(CliError::Usage {
            what: "stdin has one image; `--image -` more than once, or without a prompt".to_owned(),
            expected: "used once, beside a prompt".to_owned(),
        });
    }
    let prompt = match prompt {
        Some(prompt) => Some(prompt),
        None => prompt::from_stdin()?,
    };
    let Some(prompt) = prompt else {
        if args.image.is_empty() {
            return Ok(None);
        }
        return Err(CliError::Usage {
            what: "`--image` in an interactive chat".to_owned(),
            expected: "used with a prompt; in a chat, use /image FILE".to_owned(),
        });
    };
    if prompt.trim().is_empty() {
        return Err(CliError::NoPrompt);
    }
    let images = args.image.iter();
    let images = images.map(|path| files::image(IMAGE, path).map(ContentPart::Image));
    let mut parts = images.collect::<Result<Vec<_>, _>>()?;
    parts.push(prompt.into());
    conversation.push(Message::user(parts));
    Ok(Some(conversation))
}
