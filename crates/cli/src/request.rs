//! Chat requests from flags.

use loquat_chat::{
    ChatRequest, ContentPart, Conversation, Effort, Message, ReplyOpening, Thinking,
};

use crate::args::ConversationArgs;
use crate::error::CliError;
use crate::files;
use crate::prompt;

pub const MESSAGES: &str = "--messages";
const IMAGE: &str = "--image";
const VIDEO: &str = "--video";
pub const TOOLS: &str = "--tools";

/// The chat request that flags set, without messages.
pub fn settings(args: &ConversationArgs) -> Result<ChatRequest, CliError> {
    let ConversationArgs {
        system: _,
        messages: _,
        image: _,
        video: _,
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
    check_stdin(args, prompt.is_some())?;
    let prompt = match prompt {
        Some(prompt) => Some(prompt),
        None => prompt::from_stdin()?,
    };
    let Some(prompt) = prompt else {
        let (flag, command) = match (args.image.first(), args.video.first()) {
            (None, None) => return Ok(None),
            (Some(_), _) => (IMAGE, "/image"),
            (None, Some(_)) => (VIDEO, "/video"),
        };
        return Err(CliError::Usage {
            what: format!("`{flag}` in an interactive chat"),
            expected: format!("used with a prompt; in a chat, use {command} FILE"),
        });
    };
    if prompt.trim().is_empty() {
        return Err(CliError::NoPrompt);
    }
    let images = args.image.iter();
    let images = images.map(|path| files::image(IMAGE, path).map(ContentPart::Image));
    let videos = args.video.iter();
    let videos = videos.map(|path| files::video(VIDEO, path).map(ContentPart::Video));
    let mut parts = images.chain(videos).collect::<Result<Vec<_>, _>>()?;
    parts.push(prompt.into());
    conversation.push(Message::user(parts));
    Ok(Some(conversation))
}

/// Stdin can be one image or one video, and then not the prompt.
fn check_stdin(args: &ConversationArgs, has_prompt: bool) -> Result<(), CliError> {
    let media = args.image.iter().map(|path| (IMAGE, path));
    let media = media.chain(args.video.iter().map(|path| (VIDEO, path)));
    let from_stdin = media.filter(|(_, path)| path.as_os_str() == "-");
    let flags: Vec<&str> = from_stdin.map(|(flag, _)| flag).collect();
    match flags.as_slice() {
        [] => Ok(()),
        [_] if has_prompt => Ok(()),
        [flag, ..] => Err(CliError::Usage {
            what: format!("stdin is one file; `{flag} -` beside another `-`, or without a prompt"),
            expected: "used once, beside a prompt".to_owned(),
        }),
    }
}
