//! Running the binary away from the caches and variables of whoever tests.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The tiny models' end-of-text token, and the one that writes `A`.
pub const EOS: &str = "258";
pub const LETTER_A: &str = "32";

/// A template that knows tools and a switch for thinking, and opens it.
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

/// What a command left behind.
pub struct Outcome {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Outcome {
    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    /// Its stdout, once it is known to have succeeded with nothing to remark.
    #[track_caller]
    pub fn quiet(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""));
        self.text()
    }

    /// Fails unless it was refused with this code, plainly, and in words that hold all of these.
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

/// The binary on the CPU, whatever else the machine has, with a cache of its own and no settings
/// of the tester's.
pub fn command(cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquat"));
    let variables = std::env::vars_os().map(|(name, _)| name);
    let ours = ["LOQUAT_", "HF_", "HUGGING"];
    for name in variables {
        let text = name.to_string_lossy();
        if ours.iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
    command.env_remove("NO_COLOR");
    command
        .env("LOQUAT_CACHE", cache)
        // Neither models nor catalogs of whoever tests, and no hub but a test's own.
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

/// The exit status of a child that is to end by itself, soon. One that does not is ended.
#[track_caller]
pub fn ends(child: &mut Child) -> i32 {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().expect("ended by a signal");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("it went on and on");
}

/// A tiny model as it stands.
pub fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens");
    path.join(name).to_str().unwrap().to_owned()
}

/// Files that flags name.
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// Writes one, and gives its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// A tiny model to be changed.
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

    /// With room for answers that take minutes.
    pub fn endless() -> Self {
        Self::from("llama").replace(
            "config.json",
            "\"max_position_embeddings\": 512",
            "\"max_position_embeddings\": 200000",
        )
    }

    /// Without a template, and with no vocabulary that a built-in one would fit.
    pub fn mute() -> Self {
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
