//! `loquat render`: the prompt that a conversation renders to.

use std::io::IsTerminal;

use loquat::ModelFiles;
use loquat_chat::{BoundaryTokens, ChatContext, ChatRequest};
use loquat_store::Store;
use loquat_text::{ChatInput, ChatTemplate, Clock, Special};
use serde_json::{Value, json};

use crate::args::{FormatArgs, RenderArgs};
use crate::error::CliError;
use crate::load::locate;
use crate::request::{self, MESSAGES, TOOLS};
use crate::terminal::print;
use crate::{chat_setup, files, prompt};

pub fn run(args: &RenderArgs) -> Result<(), CliError> {
    let (store, arguments) = prompt::read_arguments(&args.input.source, &args.model, &args.prompt)?;
    let input = RenderInput::read(args, arguments.prompt)?;
    let renderer = Renderer::open(args, &store, arguments.model.as_deref())?;
    if args.tokens {
        print(&format!("{}\n", json!(renderer.tokens(&input)?)))
    } else {
        print_exactly(&renderer.text(&input)?)
    }
}

/// Adds no line break, so that output can be compared byte by byte, except on a terminal.
fn print_exactly(text: &str) -> Result<(), CliError> {
    print(text)?;
    if std::io::stdout().is_terminal() && !text.ends_with('\n') {
        print("\n")
    } else {
        Ok(())
    }
}

/// What to render.
enum RenderInput {
    Conversation {
        request: Box<ChatRequest>,
        /// Open the assistant's turn.
        reply: bool,
    },
    /// Passed to the template unchanged.
    Raw(Box<ChatInput>),
}

impl RenderInput {
    fn read(args: &RenderArgs, prompt: Option<String>) -> Result<Self, CliError> {
        let reply = !args.no_generation_prompt;
        if let (true, Some(messages)) = (args.raw, &args.input.conversation.messages) {
            let input = ChatInput {
                messages: files::json(MESSAGES, messages)?,
                tools: raw_tools(args)?,
                add_generation_prompt: reply,
                kwargs: args
                    .input
                    .conversation
                    .template_var
                    .iter()
                    .cloned()
                    .collect(),
                ..ChatInput::default()
            };
            return Ok(Self::Raw(Box::new(input)));
        }
        let mut request = request::settings(&args.input.conversation)?;
        let conversation = request::conversation(&args.input.conversation, prompt)?;
        request.messages = conversation.ok_or(CliError::NoPrompt)?.messages();
        Ok(Self::Conversation {
            request: Box::new(request),
            reply,
        })
    }
}

fn raw_tools(args: &RenderArgs) -> Result<Option<Value>, CliError> {
    let tools = args.input.conversation.tools.as_deref();
    let tools = tools.map(|path| files::json(TOOLS, path)).transpose()?;
    Ok(tools.map(|tools| match tools {
        one @ Value::Object(_) => Value::Array(vec![one]),
        list => list,
    }))
}

/// What renders it: a model, or a template alone.
struct Renderer {
    template: ChatTemplate,
    ends: BoundaryTokens,
    chat: Option<ChatContext>,
}

impl Renderer {
    fn open(args: &RenderArgs, store: &Store, model: Option<&str>) -> Result<Self, CliError> {
        let file = args.input.conversation.template.as_deref();
        let set_clock = |template: ChatTemplate| match args.date {
            Some(seconds) => template.with_clock(Clock::Fixed(seconds)),
            None => template,
        };
        if let (None, Some(path)) = (model, file) {
            let text = |given: &Option<String>| given.clone().unwrap_or_default();
            return Ok(Self {
                template: set_clock(chat_setup::named_template("--template", path)?),
                ends: BoundaryTokens {
                    bos_token: text(&args.bos_token),
                    eos_token: text(&args.eos_token),
                },
                chat: None,
            });
        }
        if args.bos_token.is_some() || args.eos_token.is_some() {
            return Err(CliError::Usage {
                what: "`--bos-token` and `--eos-token` come from the model; they".to_owned(),
                expected: "omitted".to_owned(),
            });
        }
        let model = ModelFiles::open(&locate(store, &args.input.source.choice(model))?)?;
        let tokenizer = model.tokenizer()?;
        let template = set_clock(chat_setup::required_template(&model, &tokenizer, file)?);
        Ok(Self {
            template: template.clone(),
            ends: BoundaryTokens::from_tokenizer(&tokenizer),
            chat: Some(chat_setup::chat_context(
                &model,
                tokenizer,
                template,
                &FormatArgs::default(),
            )),
        })
    }

    fn text(&self, input: &RenderInput) -> Result<String, CliError> {
        Ok(match (input, &self.chat) {
            (RenderInput::Raw(input), _) => self.template.render(&ChatInput {
                bos_token: self.ends.bos_token.clone(),
                eos_token: self.ends.eos_token.clone(),
                ..(**input).clone()
            })?,
            (RenderInput::Conversation { request, reply }, Some(chat)) => {
                chat.render(request, *reply)?
            }
            (RenderInput::Conversation { request, reply }, None) => {
                loquat_chat::render(&self.template, request, &self.ends, *reply)?
            }
        })
    }

    fn tokens(&self, input: &RenderInput) -> Result<Vec<u32>, CliError> {
        let chat = self.chat.as_ref().ok_or_else(|| CliError::Usage {
            what: "`--tokens` needs a tokenizer; the command".to_owned(),
            expected: "given a model too".to_owned(),
        })?;
        Ok(match input {
            RenderInput::Conversation { request, reply } => chat.tokens(request, *reply)?,
            RenderInput::Raw(_) => chat
                .tokenizer()
                .encode(&self.text(input)?, Special::RENDERED)?,
        })
    }
}
