//! `loquat run`: one answer, or a conversation.

use std::cell::Cell;
use std::num::NonZeroUsize;

use loquat::{AdapterFile, ModelFiles, OpenAdapters, ReplyDecoder};
use loquat_chat::{
    ChatContext, ChatRequest, ContentPart, Conversation, LoweredChat, Message, ToolChoice,
};
use loquat_engine::{Engine, EngineOptions, SamplingParams};
use loquat_session::Backend;
use loquat_store::Store;
use loquat_text::GenerationConfig;

use crate::args::{ModelChoice, OutputForm, RunArgs};
use crate::chat::{self, Settings};
use crate::error::CliError;
use crate::fit::{self, OpenAttempt};
use crate::interrupts::Interrupts;
use crate::load::{self, LoadOptions, locate};
use crate::sampling::Sampling;
use crate::show::{
    ReasoningDisplay, Transcript, print_answer, print_summary, printer, warn_of_reduced_limit,
};
use crate::terminal::bytes;
use crate::{backends, chat_setup, prompt, request};

pub fn run(args: &RunArgs, verbose: bool) -> Result<(), CliError> {
    let interrupts = Interrupts::listen()?;
    let (store, words) = prompt::read_arguments(&args.input.source, &args.model, &args.prompt)?;
    let opener = ModelOpener {
        // Before a download that an unknown backend or a missing file would waste.
        backend: backends::select(&args.session.backend)?,
        request: request(args)?,
        store: &store,
        interrupts: &interrupts,
        args,
        verbose,
    };
    let conversation = request::conversation(&args.input.conversation, words.prompt)?;
    check_form(args, conversation.is_some())?;

    let settings = Settings::from_args(args);
    let chosen = args.input.source.choice(words.model.as_deref());
    match conversation {
        Some(conversation) => {
            let adapters = &args.adapters.files;
            let prepared = opener.prepare(&chosen, settings, adapters)?;
            let lowered = prepared.lower(&conversation)?;
            let model = opener.load(prepared)?;
            match model.answer(lowered, &interrupts)?.finish {
                Some(_) => Ok(()),
                None => Err(CliError::Interrupted),
            }
        }
        None => {
            let model = opener.open(&chosen, settings, &args.adapters.files)?;
            let conversation = Conversation::new(args.input.conversation.system.clone());
            chat::converse(&opener, model, conversation)
        }
    }
}

/// What flags set for every answer, except the settings, which may change.
fn request(args: &RunArgs) -> Result<ChatRequest, CliError> {
    let mut request = request::settings(&args.input.conversation)?;
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
pub struct ModelOpener<'a> {
    pub store: &'a Store,
    pub interrupts: &'a Interrupts,
    args: &'a RunArgs,
    backend: &'a dyn Backend,
    /// Everything except the messages and the settings.
    request: ChatRequest,
    verbose: bool,
}

impl ModelOpener<'_> {
    /// Loads a model; the default one if none is named.
    pub fn open(
        &self,
        chosen: &ModelChoice,
        settings: Settings,
        adapters: &[AdapterFile],
    ) -> Result<ChatModel, CliError> {
        self.load(self.prepare(chosen, settings, adapters)?)
    }

    fn prepare(
        &self,
        chosen: &ModelChoice,
        settings: Settings,
        adapter_files: &[AdapterFile],
    ) -> Result<PreparedModel, CliError> {
        let args = self.args;
        let options = args.session.options(1);
        let attempt = OpenAttempt::new(self.store, chosen, &args.session.backend, &options);
        fit::refuse_oversized(self.store, &attempt)?;
        let files = ModelFiles::open(&locate(self.store, chosen)?)?;
        let adapters = load::adapters(self.store, &files, adapter_files)?;
        let tokenizer = files.tokenizer()?;
        let defaults = files.generation_config()?;
        let file = args.input.conversation.template.as_deref();
        let template = chat_setup::required_template(&files, &tokenizer, file)?;
        let chat_context = chat_setup::chat_context(&files, tokenizer, template, &args.formats);
        let mut request = self.request.clone();
        if let Some(wanted) = args.answer.constraint()? {
            chat_setup::grammar(chat_context.grammars(), &wanted)?;
            request.answer = Some(wanted.source);
        }
        let mut prepared = PreparedModel {
            chosen: chosen.clone(),
            attempt,
            files,
            adapters,
            adapter_files: adapter_files.to_vec(),
            chat_context,
            request,
            defaults,
            settings: Settings::default(),
        };
        prepared.set(settings)?;
        Ok(prepared)
    }

    fn load(&self, prepared: PreparedModel) -> Result<ChatModel, CliError> {
        let options = LoadOptions {
            backend: self.backend,
            session: self.args.session.options(1),
            engine: EngineOptions {
                kv_disk: self
                    .args
                    .kv_disk
                    .filter(|bytes| *bytes > 0)
                    .map(|max_bytes| load::kv_blocks(self.store.cache_dir(), max_bytes)),
                speculation: self.args.speculation.options(),
                ..EngineOptions::default()
            },
            adapters: prepared.adapters.clone(),
        };
        let model = load::model(&prepared.files, prepared.chat_context.clone(), options);
        let model =
            model.map_err(|error| fit::with_advice(self.store, &prepared.attempt, error))?;
        Ok(ChatModel {
            model,
            form: self.args.output.output,
            verbose: self.verbose,
            prepared,
            warned_max_tokens: Cell::default(),
        })
    }
}

/// A model before its weights are loaded. It refuses most invalid requests already.
struct PreparedModel {
    chosen: ModelChoice,
    attempt: OpenAttempt,
    files: ModelFiles,
    adapters: OpenAdapters,
    /// The same, with the scales in effect; 0 is off.
    adapter_files: Vec<AdapterFile>,
    chat_context: ChatContext,
    /// Everything except the messages.
    request: ChatRequest,
    /// The checkpoint's own sampling.
    defaults: GenerationConfig,
    settings: Settings,
}

impl PreparedModel {
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
pub struct ChatModel {
    prepared: PreparedModel,
    model: loquat::Model,
    form: OutputForm,
    verbose: bool,
    /// The limit whose reduction was reported, since every later answer has less room.
    warned_max_tokens: Cell<Option<NonZeroUsize>>,
}

impl ChatModel {
    pub fn engine(&self) -> &Engine {
        self.model.engine()
    }

    /// The most tokens that a prompt and its answer can have together.
    pub fn room(&self) -> usize {
        self.model.token_limit()
    }

    pub fn settings(&self) -> &Settings {
        &self.prepared.settings
    }

    /// The sampling parameters in effect.
    pub fn sampling(&self) -> &SamplingParams {
        &self.prepared.request.sampling
    }

    /// Changes settings, unless the model refuses them.
    pub fn set(&mut self, settings: Settings) -> Result<(), CliError> {
        let before = self.prepared.settings.clone();
        self.prepared.set(settings)?;
        if let Err(refused) = self.check() {
            self.prepared.set(before)?;
            return Err(refused);
        }
        Ok(())
    }

    /// Checks that a question can be asked with the settings.
    fn check(&self) -> Result<(), CliError> {
        let vocab_size = self.engine().capabilities().vocab_size;
        self.sampling().validate(vocab_size)?;
        let mut conversation = Conversation::default();
        conversation.push_user("?");
        self.prepared.lower(&conversation)?;
        Ok(())
    }

    /// Checks that a question about an image or a video can be asked.
    pub fn check_media(&self, media: &ContentPart) -> Result<(), CliError> {
        let request = ChatRequest {
            messages: vec![Message::user(vec![media.clone()])],
            ..self.prepared.request.clone()
        };
        self.model.chat_context().tokens(&request, true)?;
        Ok(())
    }

    /// How it was named.
    pub fn chosen(&self) -> &ModelChoice {
        &self.prepared.chosen
    }

    /// The loaded adapters. The scale of one that is off is 0.
    pub fn adapters(&self) -> &[AdapterFile] {
        &self.prepared.adapter_files
    }

    /// Sets the scales of the loaded adapters, from the next answer on.
    pub fn scale_adapters(&mut self, scale: impl Fn(&AdapterFile) -> f32) {
        let mut applied = self.model.adapters().to_vec();
        for (file, applied) in self.prepared.adapter_files.iter_mut().zip(&mut applied) {
            file.scale = scale(file);
            applied.scale = file.scale;
        }
        self.model = self.model.with_adapters(&applied);
    }

    /// One line about the model.
    pub fn described(&self) -> String {
        let engine = self.engine();
        format!(
            "{} on {}, {} of weights, room for {} tokens",
            self.prepared.files.name,
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
        self.answer(self.prepared.lower(conversation)?, interrupts)
    }

    /// The answer to tool results. A required call was made already.
    pub fn go_on(
        &self,
        conversation: &Conversation,
        interrupts: &Interrupts,
    ) -> Result<Transcript, CliError> {
        let tool_choice = loquat::after_call(&self.prepared.request.tool_choice);
        let lowered = self.prepared.lower_with(conversation, tool_choice)?;
        self.answer(lowered, interrupts)
    }

    fn answer(
        &self,
        lowered: LoweredChat,
        interrupts: &Interrupts,
    ) -> Result<Transcript, CliError> {
        let LoweredChat {
            generate,
            reply,
            joins_system,
        } = lowered;
        if joins_system {
            tracing::info!("the template takes no later system messages; joined with the first");
        }
        let Settings {
            max_tokens,
            show_reasoning,
            ..
        } = &self.prepared.settings;
        let logprobs = generate.logprobs.is_some();
        let is_constrained = self.prepared.request.answer.is_some();
        let decoder = ReplyDecoder::chat(reply);
        let answer = self
            .model
            .submit(generate, decoder, max_tokens.map(usize::from))?;
        if self.warned_max_tokens.get() != *max_tokens
            && warn_of_reduced_limit(*max_tokens, &answer)
        {
            self.warned_max_tokens.set(*max_tokens);
        }
        let reasoning = ReasoningDisplay::for_terminals(*show_reasoning);
        let tokenizer = self.prepared.chat_context.tokenizer();
        let mut printer = printer(self.form, reasoning, tokenizer, logprobs);
        let transcript = print_answer(answer, interrupts, printer.as_mut())?;
        print_summary(&transcript, self.room(), is_constrained, self.verbose);
        Ok(transcript)
    }
}
