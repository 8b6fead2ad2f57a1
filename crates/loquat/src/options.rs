//! How a model is found and loaded.

use std::thread;

use loquat_engine::EngineOptions;
use loquat_session::SessionOptions;
use loquat_store::{FileKind, MmprojQuery, ModelQuery, Store, StoreOptions};
use loquat_text::ChatTemplate;
use loquat_text::format::FormatOverrides;

use crate::progress::DownloadProgress;
use crate::{AdapterFile, BackendChoice, Error, LoadProgress, Model, ModelFiles};

/// How to find and load a model. The [`Default`] leaves every choice to the machine and the model.
///
/// ```no_run
/// use loquat::{BackendChoice, ModelOptions};
///
/// # fn main() -> Result<(), loquat::Error> {
/// let mut options = ModelOptions::default();
/// options.backend = BackendChoice::CPU;
/// options.session.context = Some(4096);
/// let model = options.load("smollm2:135m")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    /// Which backend computes.
    pub backend: BackendChoice,
    /// Context, memory, threads and precision.
    pub session: SessionOptions,
    /// Batching, queueing and caching.
    pub engine: EngineOptions,
    /// Where models are cached, and the hub to download from.
    pub store: StoreOptions,
    /// Which files to use if the model comes in several formats.
    pub kind: Option<FileKind>,
    /// The vision tower of a GGUF model.
    pub mmproj: MmprojOption,
    /// Replaces the model's own chat template.
    pub template: Option<ChatTemplate>,
    /// Adapters of all requests that name none; they add up. The session gets room for them.
    pub adapters: Vec<AdapterFile>,
}

/// Which vision tower a GGUF model gets. Models of other formats contain their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum MmprojOption {
    /// An `mmproj` file next to the model or in its repository, if there is one.
    #[default]
    Auto,
    /// None: the model reads text only. This applies to models of all formats.
    Off,
    /// A file, or `owner/name:file` or `owner/name` on the hub.
    Reference(String),
}

impl MmprojOption {
    /// The option as a part of a query.
    pub fn query(&self) -> MmprojQuery<'_> {
        match self {
            Self::Auto => MmprojQuery::Auto,
            Self::Off => MmprojQuery::Off,
            Self::Reference(reference) => MmprojQuery::Reference(reference),
        }
    }
}

impl ModelOptions {
    /// Finds the model, downloads it if it is not on this machine, and loads it.
    pub fn load(self, reference: &str) -> Result<Model, Error> {
        self.load_with(reference, |_| {})
    }

    /// [`load`](Self::load), reporting the download and the loading of weights.
    ///
    /// ```no_run
    /// use loquat::{LoadProgress, ModelOptions};
    ///
    /// # fn main() -> Result<(), loquat::Error> {
    /// let model = ModelOptions::default().load_with("smollm2:135m", |progress| {
    ///     if let LoadProgress::Loading { fraction } = progress {
    ///         eprintln!("{:.0} %", fraction * 100.0);
    ///     }
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn load_with(
        self,
        reference: &str,
        mut progress: impl FnMut(LoadProgress<'_>),
    ) -> Result<Model, Error> {
        let Self {
            backend,
            session,
            engine,
            store,
            kind,
            mmproj,
            template,
            adapters,
        } = self;
        // Before a download that an unusable backend would waste.
        let backend = backend.resolve()?;
        let store = Store::open(store)?;
        let wanted = ModelQuery {
            reference,
            kind,
            mmproj: mmproj.query(),
        };
        let located = store.locate(&wanted, &mut DownloadProgress::new(&mut progress))?;
        let files = ModelFiles::open(&located)?;
        let chat_context = files.chat_context(template, FormatOverrides::default())?;
        let downloading = &mut DownloadProgress::new(&mut progress);
        let adapters = files.open_adapters(&adapters, &store, downloading)?;
        let loading = &mut |fraction| progress(LoadProgress::Loading { fraction });
        let session = files.session(backend, &adapters.make_room(&session), loading)?;
        let model = files.start(session, chat_context, engine)?;
        let applied = adapters.load(&model)?;
        Ok(model.with_adapters(&applied))
    }

    /// [`load`](Self::load) on a thread of its own. Dropping the future does not stop the loading.
    pub async fn load_async(self, reference: &str) -> Result<Model, Error> {
        let reference = reference.to_owned();
        let (sender, receiver) = async_channel::bounded(1);
        let load = move || {
            // Fails if the future was dropped.
            let _ = sender.try_send(self.load(&reference));
        };
        let thread = thread::Builder::new().name("loquat-load".to_owned());
        thread.spawn(load).map_err(Error::Thread)?;
        let loaded = receiver.recv().await;
        loaded.unwrap_or(Err(Error::LoadPanicked))
    }
}
