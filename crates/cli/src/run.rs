//! `loquat run`: one answer, or a conversation.

use loquat_chat::{ChatContext, ChatRequest, Conversation, LoweredChat, ToolChoice};
use loquat_engine::{Engine, SamplingParams};
use loquat_session::Backend;
use loquat_store::Store;
use loquat_text::GenerationConfig;

use crate::args::{Chosen, Form, RunArgs};
use crate::chat::{self, Settings};
use crate::error::CliError;
use crate::fit::{self, Attempt};
use crate::load::{Model, Speaker, locate, open_store_on};
use crate::sampling::Sampling;
use crate::show::{Thinking, close, listener};
use crate::stream::{Heard, hear};
use crate::terminal::bytes;
use crate::wait::Interrupts;
use crate::{backends, prompt, request, voice};

pub fn run(args: &RunArgs, verbose: bool) -> Result<(), CliError> {
    let interrupts = Interrupts::listen()?;
    let store = open_store_on(args.source.network)?;
    let words = prompt::sort(
        &store,
        &args.source,
        args.model.as_deref(),
        args.prompt.as_deref(),
    )?;
    let opener = Opener {
        // Before a download, which a misspelt backend or a file that is not there would make vain.
        backend: backends::select(&args.session.backend)?,
        request: request(args)?,
        store: &store,
        interrupts: &interrupts,
        args,
        verbose,
    };
    let conversation = request::conversation(&args.conversation, words.prompt)?;
    check_form(args, conversation.is_some())?;

    let settings = Settings::of(args);
    let chosen = args.source.chosen(words.model.as_deref());
    match conversation {
        Some(conversation) => {
            let asked = opener.ask(&chosen, settings)?;
            let lowered = asked.lower(&conversation)?;
            let talk = opener.load(asked)?;
            match talk.answer(lowered, &interrupts)?.end {
                Some(_) => Ok(()),
                None => Err(CliError::Interrupted),
            }
        }
        None => {
            let talk = opener.open(&chosen, settings)?;
            let conversation = Conversation::new(args.conversation.system.clone());
            chat::converse(&opener, talk, conversation)
        }
    }
}

/// All that flags say about every answer, but for the settings, which may change.
fn request(args: &RunArgs) -> Result<ChatRequest, CliError> {
    let mut request = request::settings(&args.conversation)?;
    request.parallel_tool_calls = !args.no_parallel_tool_calls;
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
    if args.show_reasoning.is_some() {
        return Err(CliError::Usage {
            what: "`--show-reasoning` is for text, and JSON has the thinking anyway; `--output`"
                .to_owned(),
            expected: "text".to_owned(),
        });
    }
    Ok(())
}

/// Opens models as the flags say.
pub struct Opener<'a> {
    pub store: &'a Store,
    pub interrupts: &'a Interrupts,
    args: &'a RunArgs,
    backend: &'a dyn Backend,
    /// Everything but the messages and the settings.
    request: ChatRequest,
    verbose: bool,
}

impl Opener<'_> {
    /// A model that answers; the default one when none is named.
    pub fn open(&self, chosen: &Chosen, settings: Settings) -> Result<Talk, CliError> {
        self.load(self.ask(chosen, settings)?)
    }

    fn ask(&self, chosen: &Chosen, settings: Settings) -> Result<Asked, CliError> {
        let args = self.args;
        let options = args.session.options(1);
        let attempt = Attempt::new(self.store, chosen, &args.session.backend, &options);
        fit::refuse_hopeless(self.store, &attempt)?;
        let model = Model::open(&locate(self.store, chosen)?)?;
        let tokenizer = model.tokenizer()?;
        let defaults = model.generation_config()?;
        let file = args.conversation.template.as_deref();
        let template = voice::required_template(&model, &tokenizer, file)?;
        let chat = voice::chat(&model, tokenizer, template, &args.formats);
        let mut request = self.request.clone();
        if let Some(wanted) = args.answer.wanted()? {
            voice::grammar(chat.grammars(), &wanted)?;
            request.answer = Some(wanted.source);
        }
        let mut asked = Asked {
            attempt,
            model,
            chat,
            request,
            defaults,
            settings: Settings::default(),
        };
        asked.set(settings)?;
        Ok(asked)
    }

    fn load(&self, asked: Asked) -> Result<Talk, CliError> {
        let tokenizer = asked.chat.tokenizer().clone();
        let session = &self.args.session;
        let speaker = Speaker::load(&asked.model, tokenizer, self.backend, session);
        let speaker = speaker.map_err(|error| fit::advised(self.store, &asked.attempt, error))?;
        Ok(Talk {
            speaker,
            form: self.args.output.output,
            verbose: self.verbose,
            asked,
        })
    }
}

/// What to ask a model, before its weights are loaded: most refusals need none.
struct Asked {
    attempt: Attempt,
    model: Model,
    chat: ChatContext,
    /// Everything but the messages.
    request: ChatRequest,
    /// How the checkpoint's authors want it sampled.
    defaults: GenerationConfig,
    settings: Settings,
}

impl Asked {
    /// Takes settings over, or leaves all as it was.
    fn set(&mut self, settings: Settings) -> Result<(), CliError> {
        let sampling = Sampling::of(&self.defaults)?;
        let sampling = sampling.with(&settings.sampling, self.chat.tokenizer())?;
        tracing::info!("sampling: {}", sampling.told());
        self.request.sampling = sampling.params;
        settings.ask_for(&mut self.request);
        self.settings = settings;
        Ok(())
    }

    fn lower(&self, conversation: &Conversation) -> Result<LoweredChat, CliError> {
        self.lower_with(conversation, self.request.tool_choice.clone())
    }

    fn lower_with(
        &self,
        conversation: &Conversation,
        tool_choice: ToolChoice,
    ) -> Result<LoweredChat, CliError> {
        let request = ChatRequest {
            messages: conversation.messages(),
            tool_choice,
            ..self.request.clone()
        };
        Ok(self.chat.lower(request)?)
    }
}

/// A model that answers.
pub struct Talk {
    asked: Asked,
    speaker: Speaker,
    form: Form,
    verbose: bool,
}

impl Talk {
    pub fn engine(&self) -> &Engine {
        &self.speaker.engine
    }

    /// The most tokens that a prompt and its answer can have together.
    pub fn room(&self) -> usize {
        self.speaker.room()
    }

    pub fn settings(&self) -> &Settings {
        &self.asked.settings
    }

    /// How tokens are chosen, whoever decided on it.
    pub fn sampling(&self) -> &SamplingParams {
        &self.asked.request.sampling
    }

    /// Changes settings, unless the model refuses them.
    pub fn set(&mut self, settings: Settings) -> Result<(), CliError> {
        let before = self.asked.settings.clone();
        self.asked.set(settings)?;
        if let Err(refused) = self.check() {
            self.asked.set(before)?;
            return Err(refused);
        }
        Ok(())
    }

    /// Whether any question at all could be asked so.
    fn check(&self) -> Result<(), CliError> {
        let vocab_size = self.engine().capabilities().vocab_size;
        self.sampling().validate(vocab_size)?;
        let mut any = Conversation::default();
        any.push_user("?");
        self.asked.lower(&any)?;
        Ok(())
    }

    /// Which model it is, in a line.
    pub fn described(&self) -> String {
        let engine = self.engine();
        format!(
            "{} on {}, {} of weights, room for {} tokens",
            self.asked.model.name,
            engine.capabilities().device,
            bytes(engine.memory().weight_bytes),
            self.room()
        )
    }

    /// The answer to a question.
    pub fn ask(
        &self,
        conversation: &Conversation,
        interrupts: &Interrupts,
    ) -> Result<Heard, CliError> {
        self.answer(self.asked.lower(conversation)?, interrupts)
    }

    /// What follows a tool's result. A call that was required has been made.
    pub fn go_on(
        &self,
        conversation: &Conversation,
        interrupts: &Interrupts,
    ) -> Result<Heard, CliError> {
        let tool_choice = match &self.asked.request.tool_choice {
            ToolChoice::None => ToolChoice::None,
            ToolChoice::Auto | ToolChoice::Required | ToolChoice::Named(_) => ToolChoice::Auto,
        };
        let lowered = self.asked.lower_with(conversation, tool_choice)?;
        self.answer(lowered, interrupts)
    }

    fn answer(&self, lowered: LoweredChat, interrupts: &Interrupts) -> Result<Heard, CliError> {
        let LoweredChat {
            mut generate,
            reply,
        } = lowered;
        let speaker = &self.speaker;
        let Settings {
            max_tokens,
            show_reasoning,
            ..
        } = &self.asked.settings;
        generate.max_tokens = speaker.max_tokens(*max_tokens, generate.prompt.len());
        let logprobs = generate.logprobs.is_some();
        let is_held = self.asked.request.answer.is_some();
        let generation = speaker.engine.submit(generate)?;
        let thinking = Thinking::shown(*show_reasoning);
        let mut listener = listener(self.form, thinking, &speaker.tokenizer, logprobs);
        let heard = hear(generation, Some(reply), interrupts, listener.as_mut())?;
        close(&heard, speaker.room(), is_held, self.verbose);
        Ok(heard)
    }
}
