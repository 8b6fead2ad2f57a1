//! `loquat run`: one answer, or a conversation.

use std::num::NonZeroUsize;

use loquat_chat::{Chat, ChatRequest, Conversation, Lowered, ToolChoice};
use loquat_session::Backend;

use crate::args::{Form, RunArgs};
use crate::error::CliError;
use crate::load::{Model, Speaker, locate, open_store_on};
use crate::sampling::Sampling;
use crate::show::{Thinking, close, listener};
use crate::stream::{Heard, hear};
use crate::wait::Interrupts;
use crate::{backends, converse, prompt, request, voice};

pub fn run(args: &RunArgs, verbose: bool) -> Result<(), CliError> {
    let store = open_store_on(args.source.network)?;
    let words = prompt::sort(
        &store,
        &args.source,
        args.model.as_deref(),
        args.prompt.as_deref(),
    )?;
    // Before a download, which a misspelt backend or a file that is not there would make vain.
    let backend = backends::select(&args.session.backend)?;
    let request = settings(args)?;
    let conversation = request::conversation(&args.conversation, words.prompt)?;
    check_form(args, conversation.is_some())?;

    let model = Model::open(&locate(
        &store,
        &args.source.chosen(words.model.as_deref()),
    )?)?;
    let asked = Asked::of(args, &model, request)?;
    match conversation {
        Some(conversation) => {
            let lowered = asked.lower(&conversation)?;
            let talk = asked.load(args, &model, backend, verbose)?;
            match talk.answer(lowered)?.end {
                Some(_) => Ok(()),
                None => Err(CliError::Interrupted),
            }
        }
        None => {
            let talk = asked.load(args, &model, backend, verbose)?;
            let conversation = Conversation::new(args.conversation.system.clone());
            converse::converse(&talk, conversation, &store.cache_dir().join("chat-history"))
        }
    }
}

/// All that flags say about every answer.
fn settings(args: &RunArgs) -> Result<ChatRequest, CliError> {
    let mut request = request::settings(&args.conversation)?;
    request.parallel_tool_calls = !args.no_parallel_tool_calls;
    request.thinking.budget = args.thinking_budget;
    request.stop.clone_from(&args.output.stop);
    request.logprobs = args.output.logprobs()?;
    Ok(request)
}

/// Refuses what would be without effect.
fn check_form(args: &RunArgs, answers_once: bool) -> Result<(), CliError> {
    if args.output.output == Form::Text {
        return Ok(());
    }
    if !answers_once {
        return Err(CliError::Usage {
            what: "`--output` of a conversation on a terminal".to_owned(),
            expected: "text; for JSON, give a prompt or --messages".to_owned(),
        });
    }
    if args.show_thinking {
        return Err(CliError::Usage {
            what: "`--show-thinking` is for text, and JSON has the thinking anyway; `--output`"
                .to_owned(),
            expected: "text".to_owned(),
        });
    }
    Ok(())
}

/// What to ask a model, before its weights are loaded: most refusals need none.
struct Asked {
    chat: Chat,
    /// Everything but the messages.
    request: ChatRequest,
}

impl Asked {
    fn of(args: &RunArgs, model: &Model, mut request: ChatRequest) -> Result<Self, CliError> {
        let tokenizer = model.tokenizer()?;
        let sampling = Sampling::of(&model.generation_config()?)?;
        let sampling = sampling.with(&args.output.sampling, &tokenizer)?;
        tracing::info!("sampling: {}", sampling.told());
        request.sampling = sampling.params;
        let file = args.conversation.template.as_deref();
        let template = voice::required_template(model, &tokenizer, file)?;
        let chat = voice::chat(model, tokenizer, template, &args.formats);
        if let Some(wanted) = args.answer.wanted()? {
            voice::grammar(chat.grammars(), &wanted)?;
            request.answer = Some(wanted.source);
        }
        Ok(Self { chat, request })
    }

    fn lower(&self, conversation: &Conversation) -> Result<Lowered, CliError> {
        self.lower_with(conversation, self.request.tool_choice.clone())
    }

    fn lower_with(
        &self,
        conversation: &Conversation,
        tool_choice: ToolChoice,
    ) -> Result<Lowered, CliError> {
        let request = ChatRequest {
            messages: conversation.messages(),
            tool_choice,
            ..self.request.clone()
        };
        Ok(self.chat.lower(request)?)
    }

    fn load(
        self,
        args: &RunArgs,
        model: &Model,
        backend: &dyn Backend,
        verbose: bool,
    ) -> Result<Talk, CliError> {
        let tokenizer = self.chat.tokenizer().clone();
        Ok(Talk {
            speaker: Speaker::load(model, tokenizer, backend, &args.session)?,
            interrupts: Interrupts::listen()?,
            form: args.output.output,
            thinking: Thinking::shown(args.show_thinking),
            max_tokens: args.output.max_tokens,
            verbose,
            asked: self,
        })
    }
}

/// A model that answers.
pub struct Talk {
    asked: Asked,
    speaker: Speaker,
    pub interrupts: Interrupts,
    form: Form,
    thinking: Thinking,
    max_tokens: Option<NonZeroUsize>,
    verbose: bool,
}

impl Talk {
    /// The answer to a question.
    pub fn ask(&self, conversation: &Conversation) -> Result<Heard, CliError> {
        self.answer(self.asked.lower(conversation)?)
    }

    /// What follows a tool's result. A call that was required has been made.
    pub fn go_on(&self, conversation: &Conversation) -> Result<Heard, CliError> {
        let tool_choice = match &self.asked.request.tool_choice {
            ToolChoice::None => ToolChoice::None,
            ToolChoice::Auto | ToolChoice::Required | ToolChoice::Named(_) => ToolChoice::Auto,
        };
        self.answer(self.asked.lower_with(conversation, tool_choice)?)
    }

    fn answer(&self, lowered: Lowered) -> Result<Heard, CliError> {
        let Lowered {
            mut generate,
            reply,
        } = lowered;
        let speaker = &self.speaker;
        generate.max_tokens = speaker.max_tokens(self.max_tokens, generate.prompt.len());
        let logprobs = generate.logprobs.is_some();
        let is_held = self.asked.request.answer.is_some();
        let generation = speaker.engine.submit(generate)?;
        let mut listener = listener(self.form, self.thinking, &speaker.tokenizer, logprobs);
        let heard = hear(generation, Some(reply), &self.interrupts, listener.as_mut())?;
        close(&heard, speaker.room(), is_held, self.verbose);
        Ok(heard)
    }
}
