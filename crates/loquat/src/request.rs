//! Requests to a model, built step by step.

use loquat_chat::{
    ChatRequest, ContentPart, Image, LoweredChat, Message, Reply, ReplyDecoder, ReplyOpening,
    Thinking, Tool, ToolChoice, Video,
};
use loquat_engine::{Logprobs, SamplingParams};
use loquat_grammar::GrammarSource;
use serde_json::Value;

use crate::{Answer, ContinuationRequest, Error, Model, PromptEmbeddings};

/// The options and terminal methods that chats and continuations share.
macro_rules! request_options {
    ($builder:ident, $constraint:ident) => {
        impl $builder {
            /// Longest answer in tokens, reduced to the room that the prompt leaves in the
            /// context; see [`Answer::max_tokens`]. The default is
            /// [`RequestDefaults::max_tokens`](crate::RequestDefaults).
            pub fn max_tokens(mut self, count: usize) -> Self {
                self.max_tokens = Some(count);
                self
            }

            /// 0 always takes the likeliest token.
            pub fn temperature(mut self, temperature: f32) -> Self {
                self.request.sampling.temperature = temperature;
                self
            }

            /// The same seed and request give the same answer.
            pub fn seed(mut self, seed: u64) -> Self {
                self.request.sampling.seed = Some(seed);
                self
            }

            /// Changes any sampling parameter. Parameters left alone keep the model's own
            /// defaults, or Loquat's if the model has none.
            pub fn sampling(mut self, change: impl FnOnce(&mut SamplingParams)) -> Self {
                change(&mut self.request.sampling);
                self
            }

            /// Ends the answer before this string. Call it once for each string.
            pub fn stop(mut self, text: impl Into<String>) -> Self {
                self.request.stop.push(text.into());
                self
            }

            /// Log-probabilities of the answer's tokens, each with this many of the likeliest
            /// alternatives. Read them from [`Answer::tokens`].
            pub fn logprobs(mut self, alternatives: usize) -> Self {
                self.request.logprobs = Some(Logprobs::for_model(alternatives));
                self
            }

            /// Constrains the answer to JSON that matches this schema.
            pub fn schema(self, schema: Value) -> Self {
                self.constraint(GrammarSource::JsonSchema(schema))
            }

            /// Constrains the whole answer to this regular expression.
            pub fn regex(self, regex: impl Into<String>) -> Self {
                self.constraint(GrammarSource::Regex(regex.into()))
            }

            /// Constrains the answer to one of these texts.
            pub fn choice<T: Into<String>>(self, choices: impl IntoIterator<Item = T>) -> Self {
                let choices = choices.into_iter().map(Into::into);
                self.constraint(GrammarSource::Choice(choices.collect()))
            }

            /// Constrains the answer to any kind of grammar. The last constraint counts.
            pub fn constraint(mut self, constraint: GrammarSource) -> Self {
                self.request.$constraint = Some(constraint);
                self
            }

            /// Blocks until the answer is complete and returns its text.
            pub fn text(self) -> Result<String, Error> {
                Ok(self.reply()?.text)
            }

            /// Blocks until the answer is complete.
            pub fn reply(self) -> Result<Reply, Error> {
                self.stream()?.into_reply()
            }

            /// [`text`](Self::text) without blocking the thread.
            pub async fn text_async(self) -> Result<String, Error> {
                Ok(self.reply_async().await?.text)
            }

            /// [`reply`](Self::reply) without blocking the thread.
            pub async fn reply_async(self) -> Result<Reply, Error> {
                self.stream()?.into_reply_async().await
            }
        }
    };
}

request_options!(Chat, answer);
request_options!(Continuation, constraint);

/// A question, or a conversation for the model to continue. Created by
/// [`Model::chat`](crate::Model::chat) and [`Model::converse`](crate::Model::converse).
#[must_use = "a chat is sent by `text`, `reply` or `stream`"]
#[derive(Clone)]
pub struct Chat {
    model: Model,
    request: ChatRequest,
    max_tokens: Option<usize>,
}

impl Chat {
    pub(crate) fn new(model: Model, messages: Vec<Message>) -> Self {
        let request = ChatRequest {
            messages,
            sampling: model.defaults().sampling.clone(),
            ..ChatRequest::default()
        };
        Self {
            model,
            request,
            max_tokens: None,
        }
    }

    /// Instructions for the model, placed before all other messages.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        let message = Message::system(text.into());
        self.request.messages.insert(0, message);
        self
    }

    /// Adds an image to the last message, before its text. Call it once for each image.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), loquat::Error> {
    /// let model = loquat::Model::load("./Qwen3-VL-2B-Instruct")?;
    /// let image = loquat::Image::open("cat.png")?;
    /// println!("{}", model.chat("What is this?").image(image).text()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn image(self, image: Image) -> Self {
        self.media(image.into())
    }

    /// Adds a video to the last message, before its text.
    pub fn video(self, video: Video) -> Self {
        self.media(video.into())
    }

    fn media(mut self, media: ContentPart) -> Self {
        match self.request.messages.last_mut() {
            Some(last) => last.content.insert_media(media),
            None => {
                let message = Message::user(vec![media]);
                self.request.messages.push(message);
            }
        }
        self
    }

    /// Starts the answer with this text, which the model continues. The answer does not repeat it.
    pub fn prefill(mut self, text: impl Into<String>) -> Self {
        self.request.messages.push(Message::assistant(text.into()));
        self.request.opening = ReplyOpening::ContinueLast;
        self
    }

    /// Functions that the model may call. [`Reply::tool_calls`] holds its calls;
    /// [`Chat::run_tools`] also runs them.
    pub fn tools(mut self, tools: Vec<Tool>) -> Self {
        self.request.tools = tools;
        self
    }

    /// Whether the model calls tools. By default it decides.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.request.tool_choice = choice;
        self
    }

    /// How much the model reasons before it answers.
    pub fn thinking(mut self, thinking: Thinking) -> Self {
        self.request.thinking = thinking;
        self
    }

    /// Changes any field of the request, such as template variables.
    pub fn request(mut self, change: impl FnOnce(&mut ChatRequest)) -> Self {
        change(&mut self.request);
        self
    }

    /// Sends the request and returns its answer to read while it is generated.
    pub fn stream(self) -> Result<Answer, Error> {
        let Self { model, request, .. } = self;
        let is_constrained = request.answer.is_some();
        let LoweredChat {
            generate, reply, ..
        } = model.chat_context().lower(request)?;
        let answer = model.submit(generate, ReplyDecoder::chat(reply), self.max_tokens)?;
        Ok(answer.constrained(is_constrained))
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.request.messages
    }
}

/// A text for the model to continue. Created by [`Model::complete`](crate::Model::complete).
#[must_use = "a continuation is sent by `text`, `reply` or `stream`"]
#[derive(Clone)]
pub struct Continuation {
    model: Model,
    request: ContinuationRequest,
    max_tokens: Option<usize>,
}

impl Continuation {
    pub(crate) fn new(model: Model, text: String) -> Self {
        let request = ContinuationRequest {
            sampling: model.defaults().sampling.clone(),
            ..ContinuationRequest::new(text)
        };
        Self {
            model,
            request,
            max_tokens: None,
        }
    }

    /// The text that follows what the model writes, for models with fill-in-the-middle tokens.
    pub fn suffix(mut self, text: impl Into<String>) -> Self {
        self.request.suffix = Some(text.into());
        self
    }

    /// Raw input embeddings before the text, which may be empty.
    pub fn embeddings(mut self, embeddings: PromptEmbeddings) -> Self {
        self.request.embeddings = Some(embeddings);
        self
    }

    /// Sends the request and returns its answer to read while it is generated.
    pub fn stream(self) -> Result<Answer, Error> {
        let Self { model, request, .. } = self;
        if let Some(embeddings) = &request.embeddings {
            embeddings.check_width(model.engine().capabilities().hidden_size)?;
        }
        let is_constrained = request.constraint.is_some();
        let generate = request.lower(model.chat_context())?;
        let answer = model.submit(generate, ReplyDecoder::plain_text(), self.max_tokens)?;
        Ok(answer.constrained(is_constrained))
    }
}
