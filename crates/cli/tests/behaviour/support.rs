//! Runs the binary without the user's caches and variables.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than anything takes on a busy machine, unless it hangs.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(300);

/// The tiny models' end-of-text token, and the one that writes `A`.
pub const EOS: &str = "258";
pub const LETTER_A: &str = "32";

/// A template with tools and a thinking switch that opens a thinking block.
pub const TEMPLATE: &str = "\
{{ bos_token }}{% for tool in tools or [] %}{{ tool.function.name }} <tool_call>
{% endfor %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif %}{% endif %}";

pub const WEATHER: &str = r#"{
  "name": "get_weather", "description": "The weather of a city.", "strict": true,
  "parameters": {
    "type": "object",
    "properties": { "city": { "enum": ["Paris", "Rome"] }, "days": { "enum": [1, 2] } },
    "required": ["city", "days"], "additionalProperties": false
  }
}"#;

/// The result of a command.
pub struct Outcome {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Outcome {
    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    /// Its stdout; fails unless it succeeded with an empty stderr.
    #[track_caller]
    pub fn quiet(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""));
        self.text()
    }

    /// Fails unless it was refused with this code and an error that contains all of these.
    #[track_caller]
    pub fn refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{}", self.stderr);
        assert!(self.stdout.is_empty(), "{}", self.text());
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        assert!(!self.stderr.contains('\x1b'), "{:?}", self.stderr);
        for word in words {
            assert!(
                self.stderr.contains(word),
                "no {word:?} in: {}",
                self.stderr
            );
        }
    }
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("ended by a signal"),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The binary on the CPU backend, with its own cache and none of the user's settings.
pub fn command(cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquat"));
    let variables = std::env::vars_os().map(|(name, _)| name);
    let prefixes = ["LOQUAT_", "HF_", "HUGGING"];
    for name in variables {
        let text = name.to_string_lossy();
        if prefixes.iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
    command.env_remove("NO_COLOR");
    command
        .env("LOQUAT_CACHE", cache)
        // No models or catalogs of the user, and no hub except a test's own.
        .env("HF_HOME", cache.join("huggingface"))
        .env("HF_ENDPOINT", "http://127.0.0.1:1")
        .env("XDG_CONFIG_HOME", cache.join("config"))
        .env("LOQUAT_BACKEND", "cpu");
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs to the end with nothing on stdin.
pub fn loquat<'a>(args: impl IntoIterator<Item = &'a str>) -> Outcome {
    let cache = TempDir::new().unwrap();
    command(cache.path()).args(args).output().unwrap().into()
}

/// Runs to the end with this on stdin.
pub fn piped(args: &[&str], stdin: &[u8]) -> Outcome {
    let cache = TempDir::new().unwrap();
    let mut command = command(cache.path());
    let mut child = command.args(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    child.wait_with_output().unwrap().into()
}

/// The exit code of a child that exits by itself. One that hangs is killed.
#[track_caller]
pub fn ends(child: &mut Child) -> i32 {
    let deadline = Instant::now() + HANG_TIMEOUT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().expect("ended by a signal");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("it hangs");
}

/// The path of a tiny model.
pub fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens");
    path.join(name).to_str().unwrap().to_owned()
}

/// Temporary files.
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// A modified copy of a tiny model.
pub struct Altered(TempDir);

impl Altered {
    pub fn from(name: &str) -> Self {
        let directory = TempDir::new().unwrap();
        for file in fs::read_dir(golden(name)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), directory.path().join(file.file_name())).unwrap();
        }
        Self(directory)
    }

    /// With a context for answers that take minutes.
    pub fn endless() -> Self {
        Self::with_context(200_000)
    }

    pub fn with_context(tokens: usize) -> Self {
        Self::from("llama").replace(
            "config.json",
            "\"max_position_embeddings\": 512",
            &format!("\"max_position_embeddings\": {tokens}"),
        )
    }

    /// Without a chat template, and with a vocabulary that no built-in one matches.
    pub fn without_template() -> Self {
        let model = Self::from("llama").without("chat_template.jinja");
        model.replace("tokenizer.json", "<|im_start|>", "<|im_begin|>")
    }

    pub fn without(self, file: &str) -> Self {
        fs::remove_file(self.file(file)).unwrap();
        self
    }

    pub fn replace(self, file: &str, from: &str, to: &str) -> Self {
        let text = fs::read_to_string(self.file(file)).unwrap();
        assert!(text.contains(from), "no {from} in {file}");
        fs::write(self.file(file), text.replace(from, to)).unwrap();
        self
    }

    pub fn with(self, file: &str, text: &str) -> Self {
        fs::write(self.file(file), text).unwrap();
        self
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}
