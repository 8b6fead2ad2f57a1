//! `loquat run`: one answer, or a conversation.

use loquat::{ModelFiles, ReplyDecoder};
use loquat_chat::{ChatContext, ChatRequest, Conversation, LoweredChat, ToolChoice};
use loquat_engine::{Engine, EngineOptions, SamplingParams};
use loquat_session::Backend;
use loquat_store::Store;
use loquat_text::GenerationConfig;

use crate::args::{ModelChoice, OutputForm, RunArgs};
use crate::chat::{self, Settings};
use crate::error::CliError;
use crate::fit::{self, OpenAttempt};
use crate::load::{self, LoadOptions, locate, open_store_on};
use crate::sampling::Sampling;
use crate::show::{ReasoningDisplay, Transcript, print_answer, print_summary, printer};
use crate::terminal::bytes;
use crate::wait::Interrupts;
use crate::{backends, prompt, request, voice};

pub fn run(args: &RunArgs, verbose: bool) -> Result<(), CliError> {
    let interrupts = Interrupts::listen()?;
    let store = open_store_on(args.source.network)?;
    let words = prompt::model_and_prompt(
        &store,
        &args.source,
        args.model.as_deref(),
        args.prompt.as_deref(),
    )?;
    let opener = Opener {
        // Before a download that an unknown backend or a missing file would waste.
        backend: backends::select(&args.session.backend)?,
        request: request(args)?,
        store: &store,
        interrupts: &interrupts,
        args,
        verbose,
    };
    let conversation = request::conversation(&args.conversation, words.prompt)?;
    check_form(args, conversation.is_some())?;

    let settings = Settings::from_args(args);
    let chosen = args.source.choice(words.model.as_deref());
    match conversation {
        Some(conversation) => {
            let asked = opener.ask(&chosen, settings)?;
            let lowered = asked.lower(&conversation)?;
            let talk = opener.load(asked)?;
            match talk.answer(lowered, &interrupts)?.finish {
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

/// What flags set for every answer, except the settings, which may change.
fn request(args: &RunArgs) -> Result<ChatRequest, CliError> {
    let mut request = request::settings(&args.conversation)?;
    request.parallel_tool_calls = !args.no_parallel_tool_calls;
    request.logprobs = args.output.logprobs()?;
    Ok(request)
}

/// Refuses flags that would have no effect.
fn check_form(args: &RunArgs, answers_once: bool) -> Result<(), CliError> {
    if args.output.output == OutputForm::Text {
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

/// Opens models with the options that flags set.
pub struct Opener<'a> {
    pub store: &'a Store,
    pub interrupts: &'a Interrupts,
    args: &'a RunArgs,
    backend: &'a dyn Backend,
    /// Everything except the messages and the settings.
    request: ChatRequest,
    verbose: bool,
}

impl Opener<'_> {
    /// Loads a model; the default one if none is named.
    pub fn open(&self, chosen: &ModelChoice, settings: Settings) -> Result<Talk, CliError> {
        self.load(self.ask(chosen, settings)?)
    }

    fn ask(&self, chosen: &ModelChoice, settings: Settings) -> Result<Asked, CliError> {
        let args = self.args;
        let options = args.session.options(1);
        let attempt = OpenAttempt::new(self.store, chosen, &args.session.backend, &options);
        fit::refuse_oversized(self.store, &attempt)?;
        let files = ModelFiles::open(&locate(self.store, chosen)?)?;
        let tokenizer = files.tokenizer()?;
        let defaults = files.generation_config()?;
        let file = args.conversation.template.as_deref();
        let template = voice::required_template(&files, &tokenizer, file)?;
        let chat_context = voice::chat(&files, tokenizer, template, &args.formats);
        let mut request = self.request.clone();
        if let Some(wanted) = args.answer.constraint()? {
            voice::grammar(chat_context.grammars(), &wanted)?;
            request.answer = Some(wanted.source);
        }
        let mut asked = Asked {
            attempt,
            files,
            chat_context,
            request,
            defaults,
            settings: Settings::default(),
        };
        asked.set(settings)?;
        Ok(asked)
    }

    fn load(&self, asked: Asked) -> Result<Talk, CliError> {
        let options = LoadOptions {
            backend: self.backend,
            session: self.args.session.options(1),
            engine: EngineOptions::default(),
        };
        let model = load::model(&asked.files, asked.chat_context.clone(), options);
        let model = model.map_err(|error| fit::with_advice(self.store, &asked.attempt, error))?;
        Ok(Talk {
            model,
            form: self.args.output.output,
            verbose: self.verbose,
            asked,
        })
    }
}

/// A model before its weights are loaded. It refuses most invalid requests already.
struct Asked {
    attempt: OpenAttempt,
    files: ModelFiles,
    chat_context: ChatContext,
    /// Everything except the messages.
    request: ChatRequest,
    /// The checkpoint's own sampling.
    defaults: GenerationConfig,
    settings: Settings,
}

impl Asked {
    /// Applies settings, or changes nothing if they are invalid.
    fn set(&mut self, settings: Settings) -> Result<(), CliError> {
        let sampling = Sampling::from_config(&self.defaults)?;
        let sampling = sampling.with_flags(&settings.sampling, self.chat_context.tokenizer())?;
        tracing::info!("sampling: {}", sampling.describe());
        self.request.sampling = sampling.params;
        settings.apply_to(&mut self.request);
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
        Ok(self.chat_context.lower(request)?)
    }
}

/// A loaded model with the settings of its chats.
pub struct Talk {
    asked: Asked,
    model: loquat::Model,
    form: OutputForm,
    verbose: bool,
}

impl Talk {
    pub fn engine(&self) -> &Engine {
        self.model.engine()
    }

    /// The most tokens that a prompt and its answer can have together.
    pub fn room(&self) -> usize {
        self.model.token_limit()
    }

    pub fn settings(&self) -> &Settings {
        &self.asked.settings
    }

    /// The sampling parameters in effect.
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

    /// Checks that a question can be asked with the settings.
    fn check(&self) -> Result<(), CliError> {
        let vocab_size = self.engine().capabilities().vocab_size;
        self.sampling().validate(vocab_size)?;
        let mut any = Conversation::default();
        any.push_user("?");
        self.asked.lower(&any)?;
        Ok(())
    }

    /// One line about the model.
    pub fn described(&self) -> String {
        let engine = self.engine();
        format!(
            "{} on {}, {} of weights, room for {} tokens",
            self.asked.files.name,
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
    ) -> Result<Transcript, CliError> {
        self.answer(self.asked.lower(conversation)?, interrupts)
    }

    /// The answer to tool results. A required call was made already.
    pub fn go_on(
        &self,
        conversation: &Conversation,
        interrupts: &Interrupts,
    ) -> Result<Transcript, CliError> {
        let tool_choice = loquat::after_call(&self.asked.request.tool_choice);
        let lowered = self.asked.lower_with(conversation, tool_choice)?;
        self.answer(lowered, interrupts)
    }

    fn answer(
        &self,
        lowered: LoweredChat,
        interrupts: &Interrupts,
    ) -> Result<Transcript, CliError> {
        let LoweredChat { generate, reply } = lowered;
        let Settings {
            max_tokens,
            show_reasoning,
            ..
        } = &self.asked.settings;
        let logprobs = generate.logprobs.is_some();
        let is_constrained = self.asked.request.answer.is_some();
        let max_tokens = max_tokens.map(usize::from);
        let decoder = ReplyDecoder::chat(reply);
        let answer = self.model.submit(generate, decoder, max_tokens)?;
        let reasoning = ReasoningDisplay::for_terminals(*show_reasoning);
        let tokenizer = self.asked.chat_context.tokenizer();
        let mut printer = printer(self.form, reasoning, tokenizer, logprobs);
        let transcript = print_answer(answer, interrupts, printer.as_mut())?;
        print_summary(&transcript, self.room(), is_constrained, self.verbose);
        Ok(transcript)
    }
}
