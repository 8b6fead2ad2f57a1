//! The server's configuration as plain data. The submodules read it from files, the environment and
//! flags.

mod adapters;
mod check;
mod effective;
mod errors;
mod key;
mod option_value;
mod options;
mod provenance;
mod raw_value;
mod reference;
mod sampling;
mod sources;
mod suggestion;
#[cfg(test)]
mod tests;
pub mod units;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use loquat::FileKind;
use loquat_engine::{Pooling, SpeculationMode, SpeculationOptions};
use loquat_session::{KvFormat, MemoryBudget, Precision};
use serde_json::{Map, Value};

pub use adapters::AdapterConfig;
pub(crate) use adapters::name_fault as adapter_name_fault;
pub use effective::{effective_json, effective_toml};
pub use errors::{ConfigError, ConfigErrors, FileLocation, Location};
pub use key::{entry as key_entry, generate as generate_key};
pub use options::{Flag, flags};
pub use reference::page as reference;
pub use sources::{EffectiveConfig, Sources};

/// The effective configuration.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Config {
    pub server: Server,
    pub tls: Option<Tls>,
    pub limits: Limits,
    pub cors: Cors,
    pub log: Log,
    pub telemetry: Telemetry,
    pub responses: Responses,
    pub remote_media: RemoteMedia,
    /// Memory for all models together, in bytes; idle models make room. `None`
    /// sets no limit.
    pub memory: Option<u64>,
    /// Without keys, anyone who can reach the server may use it.
    pub keys: Vec<Key>,
    /// Requests name one of them, unless there is only one.
    pub models: Vec<ModelConfig>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    pub host: IpAddr,
    pub port: u16,
    /// How long running requests may continue after a shutdown signal.
    pub shutdown_timeout: Duration,
    /// Serve the page at `/` and the API reference at `/docs`.
    pub page: bool,
    /// Names by which browsers may reach the server, besides its address and loopback names.
    pub host_names: Vec<String>,
    /// Refuse every unknown field of a request.
    pub strict_fields: bool,
    /// Refuse a `max_tokens` that exceeds the room in the context.
    pub strict_limits: bool,
    /// Refuse unknown model names even if only one model is served.
    pub strict_model_names: bool,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tls {
    /// PEM: the certificate chain.
    pub certificate: PathBuf,
    /// PEM.
    pub private_key: PathBuf,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    pub body_bytes: usize,
    pub header_bytes: usize,
    /// How long a request's headers may take to arrive.
    pub header_timeout: Duration,
    /// How long its body may.
    pub body_timeout: Duration,
    /// How long a client may leave sent data unread.
    pub write_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub idle_timeout: Duration,
    pub connections: usize,
    /// Longest time from a request's arrival to its end.
    pub request_timeout: Option<Duration>,
}

/// Which origins may use the server from a browser.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cors {
    /// Origins such as `https://example.org`; `*` allows all. None when empty.
    pub origins: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// A level, or a filter such as `info,loquat_engine=debug`.
    pub level: String,
    pub format: LogFormat,
    /// Write prompts and outputs into the log.
    pub content: bool,
}

/// The KV format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvChoice {
    /// The backend's preference.
    Auto,
    /// This format; an error if the backend or the model does not support it.
    Format(KvFormat),
}

impl KvChoice {
    const AUTO: &str = "auto";

    fn named(name: &str) -> Option<Self> {
        match name {
            Self::AUTO => Some(Self::Auto),
            name => name.parse().ok().map(Self::Format),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Auto => Self::AUTO.to_owned(),
            Self::Format(format) => format.to_string(),
        }
    }

    pub fn format(self) -> Option<KvFormat> {
        match self {
            Self::Auto => None,
            Self::Format(format) => Some(format),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// Where spans go, by OTLP over HTTP: `http://127.0.0.1:4318`. Off when unset.
    pub otlp_endpoint: Option<String>,
    pub service_name: String,
    /// The share of requests to trace, from 0 to 1, unless the client has decided.
    pub sample_ratio: f64,
}

/// Stored responses of `/v1/responses`.
#[derive(Debug, Clone, PartialEq)]
pub struct Responses {
    pub max_stored: usize,
    /// All of them together.
    pub max_bytes: usize,
    pub keep: Duration,
}

/// Images and videos that requests name by their address.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteMedia {
    /// Where they may be; nothing is fetched if empty.
    pub hosts: Vec<String>,
    /// All of one request.
    pub max_bytes: u64,
    /// All of one request.
    pub timeout: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    pub name: String,
    /// `sha256:` and 64 hexadecimal digits.
    pub hash: KeyHash,
    pub scopes: Vec<Scope>,
    /// Models it may use; all when `None`.
    pub models: Option<Vec<String>>,
    pub requests_per_minute: Option<u32>,
    /// Prompt and completion together.
    pub tokens_per_minute: Option<u32>,
    /// Requests at once.
    pub concurrent: Option<u32>,
}

/// The SHA-256 of a key. The server never stores the key itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHash(pub [u8; 32]);

/// What a key may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Inference,
    Metrics,
    /// Affect other clients' requests: unload models, and come before them.
    Manage,
    Admin,
}

impl Scope {
    pub fn name(self) -> &'static str {
        option_value::Keyword::keyword(&self)
    }

    pub fn named(name: &str) -> Option<Self> {
        let mut all = [Self::Inference, Self::Metrics, Self::Manage, Self::Admin].into_iter();
        all.find(|scope| scope.name() == name)
    }
}

/// A model to serve.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The name in requests.
    pub name: String,
    /// A path or a catalog name.
    pub source: String,
    /// Which files to load if the source has several kinds.
    pub kind: Option<FileKind>,
    /// The vision tower of a GGUF model, or `none`.
    pub mmproj: Option<String>,
    /// Further names; `*` matches any text.
    pub aliases: Vec<String>,
    /// `auto`, or one of `loquat backends`.
    pub backend: String,
    /// The label of one of the backend's devices; the first when unset.
    pub device: Option<String>,
    pub kv_format: KvChoice,
    /// Longest context in tokens; the model's own when unset.
    pub context: Option<usize>,
    /// Memory limit: bytes or a share of the machine.
    pub memory: Option<MemoryBudget>,
    /// Positions of images and videos that may be encoded at once.
    pub media_positions: Option<usize>,
    pub threads: Option<usize>,
    pub precision: Precision,
    /// Requests that compute at once.
    pub parallel: usize,
    /// Requests that may wait.
    pub max_queue: usize,
    /// How much prefill may slow down running streams: the ratio of their times per token.
    pub max_slowdown: f32,
    /// Who drafts tokens for speculative decoding.
    pub speculative: SpeculationMode,
    /// Most drafts of a request in a step.
    pub draft_max: usize,
    /// How long a request may wait in the queue.
    pub queue_timeout: Option<Duration>,
    /// Memory for prefixes of finished requests, in bytes; all that is free when `None`.
    pub cache_bytes: Option<u64>,
    /// Disk space for prefixes of finished requests, in bytes; 0 for none. `None` leaves it to the
    /// program.
    pub kv_disk: Option<u64>,
    /// Longest reply if the request sets no limit.
    pub max_tokens: usize,
    /// A built-in template's name or a file, in location of the model's own.
    pub template: Option<PathBuf>,
    /// Load at start; otherwise at first use.
    pub preload: bool,
    /// Unload after this idle time; never when `None`.
    pub idle_unload: Option<Duration>,
    /// A step that takes longer hangs: the model is opened again.
    pub step_timeout: Duration,
    /// Default sampling parameters by name.
    pub sampling: Map<String, Value>,
    /// How hidden states become an embedding: `mean` or `last`.
    pub pooling: Pooling,
    /// By the names that requests choose them by.
    pub adapters: BTreeMap<String, AdapterConfig>,
    /// Where `/v1/load_lora_adapter` may load further adapters from.
    pub adapter_folders: Vec<PathBuf>,
    /// Repositories on the hub from which it may, with `*` for any text.
    pub adapter_repos: Vec<String>,
    /// Adapters that are loaded at once.
    pub max_adapters: usize,
    /// Memory of all loaded adapters, in bytes.
    pub adapter_memory: u64,
    /// The largest rank of an adapter.
    pub max_adapter_rank: usize,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8080,
            shutdown_timeout: Duration::from_secs(30),
            page: true,
            host_names: Vec::new(),
            strict_fields: false,
            strict_limits: false,
            strict_model_names: false,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            header_bytes: 64 << 10,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            connections: 4096,
            request_timeout: None,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::Text,
            content: false,
        }
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            service_name: "loquat".to_owned(),
            sample_ratio: 1.0,
        }
    }
}

impl Default for Responses {
    fn default() -> Self {
        Self {
            max_stored: 1000,
            max_bytes: 64 << 20,
            keep: Duration::from_secs(24 * 3600),
        }
    }
}

impl Default for RemoteMedia {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            max_bytes: 32 << 20,
            timeout: Duration::from_secs(15),
        }
    }
}

impl ModelConfig {
    /// A model with default options.
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            source: source.into(),
            kind: None,
            mmproj: None,
            aliases: Vec::new(),
            backend: "auto".to_owned(),
            device: None,
            kv_format: KvChoice::Auto,
            context: None,
            memory: None,
            media_positions: None,
            threads: None,
            precision: Precision::Fast,
            parallel: 32,
            max_queue: 256,
            max_slowdown: 2.0,
            speculative: SpeculationMode::default(),
            draft_max: SpeculationOptions::default().max_tokens,
            queue_timeout: None,
            cache_bytes: None,
            kv_disk: None,
            max_tokens: loquat::DEFAULT_MAX_TOKENS,
            template: None,
            preload: false,
            idle_unload: None,
            step_timeout: Duration::from_secs(600),
            sampling: Map::new(),
            pooling: Pooling::Mean,
            adapters: BTreeMap::new(),
            adapter_folders: Vec::new(),
            adapter_repos: Vec::new(),
            max_adapters: 8,
            adapter_memory: 512 << 20,
            max_adapter_rank: 64,
        }
    }

    /// One with no option set.
    fn blank() -> Self {
        Self::new("", "")
    }
}

impl Key {
    /// A key with default options.
    pub fn new(name: impl Into<String>, hash: KeyHash) -> Self {
        Self {
            name: name.into(),
            hash,
            scopes: vec![Scope::Inference],
            models: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            concurrent: None,
        }
    }

    /// One with no option set.
    fn blank() -> Self {
        Self::new("", KeyHash([0; 32]))
    }
}
