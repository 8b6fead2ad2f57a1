//! What is asked of a model, put together piece by piece.

use loquat_chat::{ChatRequest, LoweredChat, Message, Reply, Role, Thinking, Tool, ToolChoice};
use loquat_engine::{GenerateRequest, SamplingParams};
use loquat_grammar::GrammarSource;
use loquat_text::Special;
use serde_json::Value;

use crate::{Answer, Error, Model};

/// What may be said of any answer.
pub(crate) struct Wish {
    pub model: Model,
    sampling: SamplingParams,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    pub form: Option<GrammarSource>,
}

impl Wish {
    fn new(model: Model) -> Self {
        let sampling = model.sampling().clone();
        Self {
            model,
            sampling,
            max_tokens: None,
            stop: Vec::new(),
            form: None,
        }
    }

    /// All that there is room for, where nobody said.
    fn max_tokens(&self, prompt: usize) -> usize {
        let room = || self.model.room().saturating_sub(prompt).max(1);
        self.max_tokens.unwrap_or_else(room)
    }
}

/// The wishes, and the ways to have them granted, that every kind of question has.
macro_rules! wishes {
    ($kind:ident) => {
        impl $kind {
            /// Longest answer in tokens; left out, all that the context has room for.
            pub fn max_tokens(mut self, count: usize) -> Self {
                self.wish.max_tokens = Some(count);
                self
            }

            /// 0 takes the likeliest token always.
            pub fn temperature(mut self, temperature: f32) -> Self {
                self.wish.sampling.temperature = temperature;
                self
            }

            /// The same seed and the same question give the same answer.
            pub fn seed(mut self, seed: u64) -> Self {
                self.wish.sampling.seed = Some(seed);
                self
            }

            /// Changes any of the parameters by which tokens are chosen; they are the model's
            /// own, or ours where it has none.
            pub fn sampling(mut self, change: impl FnOnce(&mut SamplingParams)) -> Self {
                change(&mut self.wish.sampling);
                self
            }

            /// Ends the answer before this string. May be said several times.
            pub fn stop(mut self, text: impl Into<String>) -> Self {
                self.wish.stop.push(text.into());
                self
            }

            /// The answer is JSON that this schema admits.
            pub fn schema(self, schema: Value) -> Self {
                self.form(GrammarSource::JsonSchema(schema))
            }

            /// The answer matches this regular expression as a whole.
            pub fn regex(self, regex: impl Into<String>) -> Self {
                self.form(GrammarSource::Regex(regex.into()))
            }

            /// The answer is one of these.
            pub fn choice<T: Into<String>>(self, choices: impl IntoIterator<Item = T>) -> Self {
                let choices = choices.into_iter().map(Into::into);
                self.form(GrammarSource::Choice(choices.collect()))
            }

            /// What the answer must be, said in any of the ways there are. The last one counts.
            pub fn form(mut self, form: GrammarSource) -> Self {
                self.wish.form = Some(form);
                self
            }

            /// Waits for the whole answer, and gives its words.
            pub fn text(self) -> Result<String, Error> {
                Ok(self.reply()?.text)
            }

            /// Waits for the whole answer.
            pub fn reply(self) -> Result<Reply, Error> {
                self.stream()?.finish()
            }

            /// [`text`](Self::text) for whoever must not block.
            pub async fn text_async(self) -> Result<String, Error> {
                Ok(self.reply_async().await?.text)
            }

            /// [`reply`](Self::reply) for whoever must not block.
            pub async fn reply_async(self) -> Result<Reply, Error> {
                self.stream()?.finish_async().await
            }
        }
    };
}

wishes!(Chat);
wishes!(Continuation);

/// A question to a model, or a whole conversation for it to go on with.
#[must_use = "nothing is asked before it is told how to answer"]
pub struct Chat {
    wish: Wish,
    request: ChatRequest,
}

impl Chat {
    pub(crate) fn new(model: Model, messages: Vec<Message>) -> Self {
        Self {
            wish: Wish::new(model),
            request: ChatRequest {
                messages,
                ..ChatRequest::default()
            },
        }
    }

    /// How the model is to behave; goes before everything else that is said.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        let message = Message::new(Role::System, text.into());
        self.request.messages.insert(0, message);
        self
    }

    /// Functions that the model may call. The reply's `tool_calls` say what it wants called.
    pub fn tools(mut self, tools: Vec<Tool>) -> Self {
        self.request.tools = tools;
        self
    }

    /// Whether tools are called: as the model likes it, unless this says otherwise.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.request.tool_choice = choice;
        self
    }

    /// How much to think before the answer.
    pub fn thinking(mut self, thinking: Thinking) -> Self {
        self.request.thinking = thinking;
        self
    }

    /// Asks; the answer is read as it comes.
    pub fn stream(self) -> Result<Answer, Error> {
        let Self { wish, mut request } = self;
        request.answer.clone_from(&wish.form);
        request.sampling.clone_from(&wish.sampling);
        request.stop.clone_from(&wish.stop);
        let LoweredChat {
            mut generate,
            reply,
        } = wish.model.chat_context().lower(request)?;
        generate.max_tokens = wish.max_tokens(generate.prompt.len());
        let generation = wish.model.engine().submit(generate)?;
        Ok(Answer::new(generation, Some(reply), wish))
    }
}

/// A text for a model to continue.
#[must_use = "nothing is continued before it is told how to answer"]
pub struct Continuation {
    wish: Wish,
    text: String,
}

impl Continuation {
    pub(crate) fn new(model: Model, text: String) -> Self {
        Self {
            wish: Wish::new(model),
            text,
        }
    }

    /// Begins; the text is read as it comes.
    pub fn stream(self) -> Result<Answer, Error> {
        let Self { wish, text } = self;
        let context = wish.model.chat_context();
        let tokenizer = context.tokenizer();
        let prompt = tokenizer.encode(&text, Special::PROMPT)?;
        let grammar = wish
            .form
            .as_ref()
            .map(|form| context.grammars().compile(form));
        let grammar = grammar.transpose()?;
        let generation = wish.model.engine().submit(GenerateRequest {
            max_tokens: wish.max_tokens(prompt.len()),
            prompt,
            sampling: wish.sampling.clone(),
            stop_ids: tokenizer.eos_ids().to_vec(),
            stop: wish.stop.clone(),
            skip_special: true,
            constraint: grammar.map(|grammar| grammar.constraint()),
            ..GenerateRequest::default()
        })?;
        Ok(Answer::new(generation, None, wish))
    }
}
