//! `loquat render`: a conversation as the model would be given it.

use std::io::IsTerminal;

use loquat_chat::{BoundaryTokens, ChatContext, ChatRequest};
use loquat_store::Store;
use loquat_text::{ChatInput, ChatTemplate, Clock, Special};
use serde_json::{Value, json};

use crate::args::{FormatArgs, RenderArgs};
use crate::error::CliError;
use crate::load::{Model, locate, open_store_on};
use crate::request::{self, MESSAGES, TOOLS};
use crate::terminal::print;
use crate::{chat_setup, files, prompt};

pub fn run(args: &RenderArgs) -> Result<(), CliError> {
    let store = open_store_on(args.source.network)?;
    let words = prompt::sort(
        &store,
        &args.source,
        args.model.as_deref(),
        args.prompt.as_deref(),
    )?;
    let asked = Asked::read(args, words.prompt)?;
    let subject = Subject::open(args, &store, words.model.as_deref())?;
    if args.tokens {
        print(&format!("{}\n", json!(subject.tokens(&asked)?)))
    } else {
        print_exactly(&subject.text(&asked)?)
    }
}

/// What is compared byte by byte gets no line break of ours, but for a shell's prompt.
fn print_exactly(text: &str) -> Result<(), CliError> {
    print(text)?;
    if std::io::stdout().is_terminal() && !text.ends_with('\n') {
        print("\n")
    } else {
        Ok(())
    }
}

/// What is to be written out.
enum Asked {
    Conversation {
        request: Box<ChatRequest>,
        /// Open the assistant's turn.
        reply: bool,
    },
    /// For the template as it stands.
    Raw(Box<ChatInput>),
}

impl Asked {
    fn read(args: &RenderArgs, prompt: Option<String>) -> Result<Self, CliError> {
        let reply = !args.no_generation_prompt;
        if let (true, Some(messages)) = (args.raw, &args.conversation.messages) {
            let input = ChatInput {
                messages: files::json(MESSAGES, messages)?,
                tools: raw_tools(args)?,
                add_generation_prompt: reply,
                kwargs: args.conversation.template_var.iter().cloned().collect(),
                ..ChatInput::default()
            };
            return Ok(Self::Raw(Box::new(input)));
        }
        let mut request = request::settings(&args.conversation)?;
        let conversation = request::conversation(&args.conversation, prompt)?;
        request.messages = conversation.ok_or(CliError::NoPrompt)?.messages();
        Ok(Self::Conversation {
            request: Box::new(request),
            reply,
        })
    }
}

fn raw_tools(args: &RenderArgs) -> Result<Option<Value>, CliError> {
    let tools = args.conversation.tools.as_deref();
    let tools = tools.map(|path| files::json(TOOLS, path)).transpose()?;
    Ok(tools.map(|tools| match tools {
        one @ Value::Object(_) => Value::Array(vec![one]),
        list => list,
    }))
}

/// Who writes it out: a model, or a template alone.
struct Subject {
    template: ChatTemplate,
    ends: BoundaryTokens,
    chat: Option<ChatContext>,
}

impl Subject {
    fn open(args: &RenderArgs, store: &Store, model: Option<&str>) -> Result<Self, CliError> {
        let file = args.conversation.template.as_deref();
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
                what: "the model has its own; `--bos-token` and `--eos-token`".to_owned(),
                expected: "left out".to_owned(),
            });
        }
        let model = Model::open(&locate(store, &args.source.chosen(model))?)?;
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

    fn text(&self, asked: &Asked) -> Result<String, CliError> {
        Ok(match (asked, &self.chat) {
            (Asked::Raw(input), _) => self.template.render(&ChatInput {
                bos_token: self.ends.bos_token.clone(),
                eos_token: self.ends.eos_token.clone(),
                ..(**input).clone()
            })?,
            (Asked::Conversation { request, reply }, Some(chat)) => chat.render(request, *reply)?,
            (Asked::Conversation { request, reply }, None) => {
                loquat_chat::render(&self.template, request, &self.ends, *reply)?
            }
        })
    }

    fn tokens(&self, asked: &Asked) -> Result<Vec<u32>, CliError> {
        let chat = self.chat.as_ref().ok_or_else(|| CliError::Usage {
            what: "`--tokens` are a model's; there".to_owned(),
            expected: "a model beside the template".to_owned(),
        })?;
        Ok(match asked {
            Asked::Conversation { request, reply } => chat.tokens(request, *reply)?,
            Asked::Raw(_) => chat
                .tokenizer()
                .encode(&self.text(asked)?, Special::RENDERED)?,
        })
    }
}
