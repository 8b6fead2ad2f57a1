//! From a name to a model that answers.

use std::sync::Arc;
use std::thread;

use loquat_chat::Message;
use loquat_engine::{Engine, EngineOptions, SamplingParams};
use loquat_session::SessionOptions;
use loquat_store::{FileKind, NoProgress, Progress, Store, StoreOptions, Wanted};
use loquat_text::ChatTemplate;

use crate::{Chat, Continuation, Error, ModelFiles, backends};

/// A model that answers, as many at once as its memory has room for. Cloning shares it; what the
/// last clone leaves unanswered is cancelled.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    engine: Engine,
    chat: loquat_chat::ChatContext,
    sampling: SamplingParams,
}

/// How a model is found and opened; [`Default`] leaves everything to the machine and the model.
///
/// ```no_run
/// # fn main() -> Result<(), loquat::Error> {
/// let mut options = loquat::ModelOptions::default();
/// options.session.context = Some(4096);
/// options.backend = "cpu".to_owned();
/// let model = options.load("smollm2:135m")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// What `loquat backends` lists, or `auto`: one with a GPU where there is one, else the CPU.
    pub backend: String,
    pub session: SessionOptions,
    pub engine: EngineOptions,
    pub store: StoreOptions,
    /// Which files to take where there are several kinds of them.
    pub kind: Option<FileKind>,
    /// Instead of the model's own.
    pub template: Option<ChatTemplate>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            backend: "auto".to_owned(),
            session: SessionOptions::default(),
            engine: EngineOptions::default(),
            store: StoreOptions::default(),
            kind: None,
            template: None,
        }
    }
}

impl ModelOptions {
    /// Finds the model, downloads it where it is not here yet, and loads it.
    pub fn load(self, reference: &str) -> Result<Model, Error> {
        self.load_with(reference, &mut NoProgress)
    }

    /// The same, telling `progress` of a download.
    pub fn load_with(self, reference: &str, progress: &mut dyn Progress) -> Result<Model, Error> {
        // Before a download, which a misspelt backend would make vain.
        let backend = backends::select(&self.backend)?;
        let store = Store::open(self.store)?;
        let wanted = Wanted {
            reference,
            kind: self.kind,
        };
        let located = store.locate(&wanted, progress)?;
        let files = ModelFiles::open(&located)?;
        let chat = files.chat(self.template)?;
        let sampling = files.sampling()?;
        let session = files.session(backend, &self.session, &mut |_| {})?;
        let engine = Engine::start(session, Some(chat.tokenizer().clone()), self.engine)?;
        Ok(Model {
            inner: Arc::new(Inner {
                name: files.name,
                engine,
                chat,
                sampling,
            }),
        })
    }

    /// Loads on a thread of its own. Dropping the future does not stop what it began.
    pub async fn load_async(self, reference: &str) -> Result<Model, Error> {
        let reference = reference.to_owned();
        let (sender, receiver) = async_channel::bounded(1);
        let load = move || {
            // A caller who no longer waits does not miss it.
            let _ = sender.try_send(self.load(&reference));
        };
        let named = thread::Builder::new().name("loquat-load".to_owned());
        named.spawn(load).map_err(Error::Thread)?;
        let loaded = receiver.recv().await;
        loaded.unwrap_or(Err(Error::LoadingDied))
    }
}

impl Model {
    /// A path, a catalog name or a hub's `owner/name`, with everything left to the machine and
    /// the model; [`ModelOptions`] decides more.
    pub fn load(reference: &str) -> Result<Self, Error> {
        ModelOptions::default().load(reference)
    }

    /// The same for whoever must not block.
    pub async fn load_async(reference: &str) -> Result<Self, Error> {
        ModelOptions::default().load_async(reference).await
    }

    /// The name it was found by; of a path, its last part.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Asks a question by itself.
    pub fn chat(&self, question: impl Into<String>) -> Chat {
        self.converse(vec![Message::new(loquat_chat::Role::User, question.into())])
    }

    /// Asks with all that was said before: [`Conversation::messages`](crate::Conversation), or a
    /// list of one's own.
    pub fn converse(&self, messages: Vec<Message>) -> Chat {
        Chat::new(self.clone(), messages)
    }

    /// Continues a text exactly as given, without a chat template.
    pub fn complete(&self, text: impl Into<String>) -> Continuation {
        Continuation::new(self.clone(), text.into())
    }

    /// The most tokens that a prompt and its answer can have together.
    pub fn room(&self) -> usize {
        let engine = &self.inner.engine;
        let context = engine.capabilities().max_context;
        context.min(engine.memory().kv_capacity)
    }

    /// For what this library has no shorter way to say.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    pub(crate) fn chat_context(&self) -> &loquat_chat::ChatContext {
        &self.inner.chat
    }

    pub(crate) fn sampling(&self) -> &SamplingParams {
        &self.inner.sampling
    }
}
