//! A scripted model. Unit tests and `tests/` share this file, so it names the crate by its public
//! path.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use loquat::RequestDefaults;
use loquat_chat::ChatContext;
use loquat_engine::{EngineOptions, SamplingParams, SpeculationMode, SpeculationOptions};
use loquat_grammar::Grammars;
use loquat_server::config::ModelConfig;
use loquat_server::{ModelInfo, OpenFailure, Opened, Opener, Planned};
use loquat_testkit::fake_session::{FakeOptions, FakeSession};
use loquat_testkit::goldens;
use loquat_text::format::FormatOverrides;
use loquat_text::{ChatTemplate, Special, Tokenizer};
use serde_json::{Value, json};

/// The model's name in tests.
pub const MODEL: &str = "tiny";

pub const TEMPLATE: &str = "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}\
    {% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}\
    {% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>\
    {% endfor %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}\
    {% endif %}";

/// One token per byte, and a few special ones.
pub fn tokenizer() -> Tokenizer {
    Tokenizer::from_huggingface(&goldens::family("llama")).expect("the golden tokenizer")
}

const FIM_TOKENS: [&str; 3] = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];

/// The same with fill-in-the-middle tokens.
fn fim_tokenizer() -> Tokenizer {
    let golden = goldens::family("llama").join("tokenizer.json");
    let text = std::fs::read_to_string(golden).expect("the golden tokenizer");
    let mut json: Value = serde_json::from_str(&text).expect("JSON");
    let first = tokenizer().vocab_size();
    let added = json["added_tokens"].as_array_mut().expect("a list");
    added.extend(FIM_TOKENS.iter().zip(first..).map(|(token, id)| {
        json!({
            "id": id, "content": token, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        })
    }));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokenizer.json");
    std::fs::write(&file, json.to_string()).expect("written");
    for name in [
        "tokenizer_config.json",
        "generation_config.json",
        "config.json",
    ] {
        let source = goldens::family("llama").join(name);
        if source.is_file() {
            std::fs::copy(source, folder.path().join(name)).expect("copied");
        }
    }
    Tokenizer::from_huggingface(&file).expect("a tokenizer")
}

/// The chat context of the scripted model.
pub fn chat() -> ChatContext {
    chat_with(tokenizer(), TEMPLATE)
}

fn chat_with(tokenizer: Tokenizer, template: &str) -> ChatContext {
    let template = ChatTemplate::new(template).expect("a template");
    let grammars = Grammars::new(tokenizer.clone(), tokenizer.vocab_size());
    ChatContext::new(
        tokenizer,
        Some(template),
        grammars,
        FormatOverrides::default(),
    )
}

/// Opens a fake model that gives every conversation the same reply.
/// It thinks between `<think>` and `</think>`, and calls tools between `<tool_call>` and
/// `</tool_call>`.
pub struct Scripted {
    pub reply: String,
    /// How long each token takes.
    pub delay: Duration,
    pub context: usize,
    /// Whether it returns hidden states.
    pub embeddings: bool,
    /// Steps hang while a test holds this lock.
    pub hold: Arc<Mutex<()>>,
    /// Whether its vocabulary has fill-in-the-middle tokens, after which it writes the reply.
    pub fim: bool,
    /// Its chat template.
    pub template: String,
    /// Off by default: a script that repeats itself is still to take a step for each token.
    pub speculation: SpeculationMode,
}

impl Scripted {
    pub fn new(reply: &str) -> Self {
        Self {
            reply: reply.to_owned(),
            delay: Duration::ZERO,
            context: 4096,
            embeddings: true,
            hold: Arc::default(),
            fim: false,
            template: TEMPLATE.to_owned(),
            speculation: SpeculationMode::Off,
        }
    }

    fn info(&self) -> ModelInfo {
        ModelInfo {
            family: "llama".to_owned(),
            format: "safetensors".to_owned(),
            quantization: "bf16".to_owned(),
            parameters: 1000,
            size_bytes: 2000,
            modified: 1_700_000_000,
            backend: "fake".to_owned(),
            device: "fake".to_owned(),
            on_gpu: false,
            context: self.context,
            has_template: true,
            tools: true,
            thinking: true,
            embeddings: self.embeddings,
            images: false,
            videos: false,
            template: Some(self.template.clone()),
        }
    }
}

impl Opener for Scripted {
    fn plan(&self, _model: &ModelConfig) -> Result<Planned, OpenFailure> {
        Ok(Planned {
            info: self.info(),
            resident_bytes: 1000,
        })
    }

    fn open(&self, model: &ModelConfig) -> Result<Opened, OpenFailure> {
        let tokenizer = if self.fim {
            fim_tokenizer()
        } else {
            tokenizer()
        };
        let opening = if self.fim {
            FIM_TOKENS[2]
        } else {
            "<|im_start|>assistant\n"
        };
        let plain = |text: &str, special| tokenizer.encode(text, special).expect("tokens");
        let mut script = plain(&self.reply, Special::PLAIN);
        script.extend(tokenizer.eos_ids().first());
        let session = FakeSession::new(FakeOptions {
            vocab_size: tokenizer.vocab_size(),
            hidden_size: self.embeddings.then_some(8),
            max_context: self.context,
            script,
            opening: plain(opening, Special::RENDERED),
            delay: self.delay,
            hold: Arc::clone(&self.hold),
            ..FakeOptions::default()
        });
        let options = EngineOptions {
            max_queue: model.max_queue,
            max_running: Some(model.parallel),
            speculation: SpeculationOptions {
                mode: self.speculation,
                ..SpeculationOptions::default()
            },
            ..EngineOptions::default()
        };
        let chat = chat_with(tokenizer, &self.template);
        let opened = loquat::Model::from_session(MODEL, Box::new(session), chat, options);
        let opened = opened.map_err(OpenFailure::new)?;
        Ok(Opened {
            model: opened.with_defaults(RequestDefaults {
                sampling: SamplingParams::greedy(),
                ..RequestDefaults::default()
            }),
            info: self.info(),
            resident_bytes: 1000,
        })
    }
}

/// Makes the steps of a model with this lock wait until the sender is dropped.
pub fn hold_steps(hold: &Arc<Mutex<()>>) -> mpsc::Sender<()> {
    let hold = Arc::clone(hold);
    let (release, released) = mpsc::channel::<()>();
    let (locked, is_locked) = mpsc::channel();
    std::thread::spawn(move || {
        let _held = hold.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = locked.send(());
        // Fails when the sender is dropped.
        let _ = released.recv();
    });
    is_locked.recv().expect("the thread runs");
    release
}

/// Blocks each opening while the sender lives, then fails.
pub struct Stuck(Mutex<mpsc::Receiver<()>>);

impl Stuck {
    pub fn new() -> (Self, mpsc::Sender<()>) {
        let (release, gate) = mpsc::channel();
        (Self(Mutex::new(gate)), release)
    }
}

impl Opener for Stuck {
    fn plan(&self, model: &ModelConfig) -> Result<Planned, OpenFailure> {
        Scripted::new("").plan(model)
    }

    fn open(&self, _model: &ModelConfig) -> Result<Opened, OpenFailure> {
        let gate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = gate.recv();
        Err(OpenFailure::new("released"))
    }
}
