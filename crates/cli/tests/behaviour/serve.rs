//! `serve` and `config`: sockets, signals and configuration errors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::support::{
    Altered, Files, HANG_TIMEOUT, LETTER_A, Outcome, command, ends, golden, loquat,
};

/// A server that is killed when dropped.
pub struct Serving {
    pub child: Child,
    pub address: String,
    /// Its stderr up to the address.
    announced: String,
    /// Its later stderr.
    log: Arc<Mutex<String>>,
    _cache: Option<TempDir>,
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        let cache = TempDir::new().unwrap();
        let mut serving = Self::start_in(cache.path(), args);
        serving._cache = Some(cache);
        serving
    }

    /// With this cache directory.
    pub fn start_in(cache: &Path, args: &[&str]) -> Self {
        let mut command = command(cache);
        let command = command.args(["serve", "--port=0"]).args(args);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut announced = String::new();
        let address = loop {
            let line = lines.next().expect("an address").unwrap();
            announced += &line;
            if let Some((_, address)) = line.split_once("http://") {
                break address.to_owned();
            }
        };
        let log = Arc::<Mutex<String>>::default();
        let written = Arc::clone(&log);
        // A full pipe would block the server.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *written.lock().unwrap() += &format!("{line}\n");
            }
        });
        Self {
            child,
            address,
            announced,
            log,
            _cache: None,
        }
    }

    /// The status line, the headers and the body.
    pub fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let address = &self.address;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A connection on which this was posted.
    pub fn posted(&self, path: &str, body: &serde_json::Value) -> TcpStream {
        self.posted_as(path, body, None)
    }

    /// The same with a key.
    pub fn posted_as(&self, path: &str, body: &serde_json::Value, key: Option<&str>) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let (address, body) = (&self.address, body.to_string());
        let key = key.map(|key| format!("authorization: Bearer {key}\r\n"));
        let key = key.unwrap_or_default();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{key}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        stream
    }

    /// The answer of a model to a fixed question.
    fn ask(&self, model: &str) -> String {
        let question = json!({
            "model": model, "prompt": "Hello", "max_tokens": 8, "temperature": 0,
        });
        let mut answer = String::new();
        let mut stream = self.posted("/v1/completions", &question);
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub fn wait_until(&self, path: &str, expected: &str) {
        wait_until_contains(|| self.get(path), expected);
    }

    pub fn wait_for_log(&self, expected: &str) {
        wait_until_contains(|| self.log.lock().unwrap().clone(), expected);
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }
}

fn wait_until_contains(text: impl Fn() -> String, expected: &str) {
    let deadline = Instant::now() + HANG_TIMEOUT;
    loop {
        let text = text();
        if text.contains(expected) {
            return;
        }
        assert!(Instant::now() < deadline, "no {expected:?} in {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const OK: &str = "HTTP/1.1 200";

#[test]
fn server_runs_until_signal() {
    for signal in ["TERM", "INT"] {
        let mut serving = Serving::start(&[&format!("tiny={}", golden("llama"))]);
        let announced = &serving.announced;
        assert!(
            announced.starts_with("loquat serves tiny at http://127.0.0.1:"),
            "{announced}"
        );
        serving.wait_until("/health/ready", OK);
        assert!(serving.get("/health").starts_with(OK));
        let models = serving.get("/v1/models");
        for word in ["\"tiny\"", "\"llama\"", "\"safetensors\"", "\"cpu\""] {
            assert!(models.contains(word), "{models}");
        }
        serving.signal(signal);
        assert_eq!(ends(&mut serving.child), 0);
    }
}

/// A pipe holds 64 KiB; each request logs more than a hundred bytes.
#[test]
fn unread_log_does_not_stop_the_server() {
    let cache = TempDir::new().unwrap();
    let mut command = command(cache.path());
    let model = format!("tiny={}", golden("llama"));
    command.args(["serve", "--port=0", "--log-level=trace", &model]);
    let mut child = command.spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    let address = loop {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "an address");
        if let Some((_, address)) = line.trim_end().split_once("loquat serves tiny at http://") {
            break address.to_owned();
        }
    };
    let serving = Serving {
        child,
        address,
        announced: String::new(),
        log: Arc::default(),
        _cache: Some(cache),
    };
    for _ in 0..1000 {
        assert!(serving.get("/health").starts_with(OK));
    }
    serving.signal("TERM");
    let mut serving = serving;
    assert_eq!(ends(&mut serving.child), 0);
    drop(log);
}

#[test]
fn used_port_is_refused_with_address() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refused = loquat(["serve", "--port", &port, &golden("llama")]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    let words = format!("cannot listen on 127.0.0.1:{port}");
    assert!(refused.stderr.contains(&words), "{}", refused.stderr);
}

#[test]
fn unservable_model_is_refused_at_start() {
    let model = golden("llama");
    for (args, code, words) in [
        (&["nowhere.gguf"][..], 3, "nowhere.gguf"),
        (&[&model, "--context=513"], 2, "at most"),
        (&[&model, "--memory=1kB"], 3, "`memory` allows 1000"),
        (
            &[&model, "--backend=nope"],
            2,
            "model `llama`: no backend is named `nope`",
        ),
        (
            &[&model, &model],
            2,
            "another model is already named `llama`",
        ),
    ] {
        let args = ["serve", "--port=0"].iter().chain(args);
        loquat(args.copied()).refused(code, &[words]);
    }
}

#[test]
fn unsupported_options_are_refused_at_start() {
    let files = Files::new();
    for (option, words) in [
        ("kv_format = \"f1\"", "`models.kv_format` must be \"auto\""),
        ("device = \"gpu\"", "`device` is \"gpu\""),
        (
            "template = \"nowhere.jinja\"",
            "template: cannot read nowhere.jinja",
        ),
        ("context = 513", "at most"),
    ] {
        let source = golden("llama");
        let file = format!("[[models]]\nname = \"a\"\nsource = {source:?}\n{option}\n");
        let file = files.write("loquat.toml", &file);
        loquat(["serve", "--port=0", "--config", &file]).refused(2, &[words]);
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let files = Files::new();
    let file = files.write("bad.toml", "[server]\nprot = 1\n[log]\nformat = \"xml\"\n");
    let lines = [
        "2 errors",
        "bad.toml:2:1",
        "did you mean `port`?",
        "bad.toml:4:10",
    ];
    loquat(["serve", "--config", &file]).refused(2, &lines);
    loquat(["config", "check", &file]).refused(2, &lines);
    loquat(["config", "show", "--config", &file]).refused(2, &lines);
    let both = ["--port: `server.port` must be", "bad.toml:2:1"];
    loquat(["serve", "--config", &file, "--port=x"]).refused(2, &both);
    loquat(["config", "check", "nowhere.toml"]).refused(2, &["nowhere.toml"]);
    let missing = "[[models]]\nname = \"a\"\nsource = \"nowhere.gguf\"\nbackend = \"nope\"\n";
    let missing = files.write("missing.toml", missing);
    checked(&missing).refused(2, &["missing.toml:4:11", "`nope`"]);
    let missing = files.write(
        "missing.toml",
        "[[models]]\nname = \"a\"\nsource = \"nowhere.gguf\"\n",
    );
    loquat(["config", "check", &missing]).refused(2, &["missing.toml:3:10", "nowhere.gguf"]);
    let model = golden("llama");
    let several = format!(
        "[[models]]\nname = \"a\"\nsource = \"{model}\"\nbackend = \"nope\"\n\
         [[models]]\nname = \"b\"\nsource = \"nowhere.gguf\"\n\
         [[models]]\nname = \"c\"\nsource = \"{model}\"\ncontext = 100000\n\
         [[models]]\nname = \"d\"\nsource = \"{model}\"\ntemplate = \"nonsense\"\n"
    );
    let several = files.write("several.toml", &several);
    let places = [
        "4 errors",
        "toml:4:11",
        "toml:7:10",
        "toml:11:11",
        "toml:15:12",
    ];
    checked(&several).refused(2, &places);
}

#[test]
fn requested_file_kind_is_used() {
    let files = Files::new();
    let model = format!("[[models]]\nname = \"a\"\nsource = {:?}\n", golden("llama"));
    let plain = files.write("plain.toml", &format!("{model}kind = \"safetensors\"\n"));
    loquat(["config", "check", &plain]).quiet();
    let words = ["is safetensors", "not gguf"];
    let other = files.write("other.toml", &format!("{model}kind = \"gguf\"\n"));
    loquat(["config", "check", &other]).refused(2, &words);
    loquat(["serve", "--port=0", "--config", &other]).refused(3, &words);
    loquat(["serve", "--port=0", "--kind=gguf", &golden("llama")]).refused(3, &words);
    // Nothing of the hub is asked: the catalog knows its forms.
    let absent = "[[models]]\nname = \"a\"\nsource = \"gemma3:270m\"\nkind = \"mlx\"\n";
    let absent = files.write("absent.toml", absent);
    loquat(["config", "check", &absent]).refused(2, &["gemma3:270m", "mlx"]);
    let typo = files.write("typo.toml", &format!("{model}kind = \"ggml\"\n"));
    loquat(["config", "check", &typo]).refused(2, &["typo.toml:4:8", "\"safetensors\""]);
}

/// Checks a file without `LOQUAT_BACKEND`.
fn checked(file: &str) -> Outcome {
    let cache = TempDir::new().unwrap();
    let mut command = command(cache.path());
    command.env_remove("LOQUAT_BACKEND");
    let command = command.args(["config", "check", file]);
    command.output().unwrap().into()
}

#[test]
fn effective_configuration_shows_origins() {
    let files = Files::new();
    let file = files.write("loquat.toml", "[server]\nport = 1\npage = false\n");
    let cache = TempDir::new().unwrap();
    let mut command = command(cache.path());
    let command = command.args(["config", "show", "--log-level=warn", &golden("llama")]);
    let command = command
        .env("LOQUAT_CONFIG", &file)
        .env("LOQUAT_SERVER_PORT", "2");
    let shown = Outcome::from(command.output().unwrap()).quiet();
    for (line, origin) in [
        ("port = 2", "LOQUAT_SERVER_PORT"),
        ("page = false", "loquat.toml:3"),
        ("level = \"warn\"", "--log-level"),
        ("host = \"127.0.0.1\"", "default"),
        ("name = \"llama\"", "command line"),
    ] {
        let shown = shown
            .lines()
            .any(|shown| shown.starts_with(line) && shown.ends_with(origin));
        assert!(shown, "{line} {origin}");
    }
}

#[test]
fn created_key_grants_access() {
    let made = loquat(["config", "key", "team", "--scope", "inference,admin"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let text = made.text();
    let (key, entry) = text.split_once("\n\n").unwrap();
    assert!(key.starts_with("lq-") && !entry.contains(key), "{text}");
    let files = Files::new();
    let file = files.write(
        "loquat.toml",
        &format!(
            "{entry}[[models]]\nname = \"tiny\"\nsource = {:?}\n",
            golden("llama")
        ),
    );
    let checked = loquat(["config", "check", &file]);
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""));
    assert!(
        checked.text().contains("1 key, models tiny"),
        "{}",
        checked.text()
    );
    loquat(["config", "key", "team", "--scope=all"])
        .refused(2, &["inference, metrics, manage or admin"]);

    let serving = Serving::start(&["--config", &file]);
    assert!(serving.get("/v1/models").starts_with("HTTP/1.1 401"));
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    let address = &serving.address;
    write!(stream, "GET /v1/models HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with(OK) && answer.contains("tiny"),
        "{answer}"
    );
}

#[test]
fn hangup_reloads_configuration() {
    let files = Files::new();
    let model = |name: &str| {
        format!(
            "[[models]]\nname = \"{name}\"\nsource = {:?}\n",
            golden("llama")
        )
    };
    let file = files.write("loquat.toml", &model("before"));
    let mut serving = Serving::start(&["--config", &file]);
    serving.wait_until("/v1/models", "\"before\"");
    files.write("loquat.toml", &model("after"));
    serving.signal("HUP");
    serving.wait_until("/v1/models", "\"after\"");
    files.write("loquat.toml", "[[models]]\nname = 5\n");
    serving.signal("HUP");
    // An invalid file keeps the old configuration.
    serving.wait_for_log("loquat.toml:2");
    assert!(serving.get("/v1/models").contains("\"after\""));
    serving.signal("TERM");
    assert_eq!(ends(&mut serving.child), 0);
}

#[test]
fn reference_matches_docs_page() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(loquat(["config", "reference"]).quiet(), page);
}

/// The text of a completion.
fn answered(answer: &str) -> String {
    assert!(answer.starts_with(OK), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    body["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[cfg(unix)]
#[test]
fn truncated_model_fails_alone_and_recovers() {
    let model = Altered::endless();
    let weights = model.file("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let (damaged, other) = (
        format!("damaged={}", model.path()),
        format!("other={}", golden("llama")),
    );
    let mut serving = Serving::start(&[&damaged, &other]);
    let before = ["damaged", "other"].map(|model| answered(&serving.ask(model)));

    let endless = json!({
        "model": "damaged", "prompt": "Hello", "max_tokens": 90_000, "stream": true,
        "logit_bias": { LETTER_A: 100 },
    });
    let mut streams = [0; 2].map(|_| {
        let stream = serving.posted("/v1/completions", &endless);
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.starts_with("data: {")));
        lines
    });
    let file = std::fs::File::options().write(true).open(&weights);
    file.unwrap().set_len(10_000).unwrap();
    for lines in &mut streams {
        let error = lines.find(|line| line.contains("error")).expect("an error");
        assert!(error.contains("model_files_changed"), "{error}");
        assert!(!error.contains(model.path()), "{error}");
    }
    serving.wait_for_log("and now has 10000");

    // While the file is damaged, only its model is refused.
    let refused = serving.ask("damaged");
    assert!(refused.contains("model_load_failed"), "{refused}");
    assert_eq!(answered(&serving.ask("other")), before[1]);

    std::fs::write(&weights, whole).unwrap();
    wait_until_contains(|| serving.ask("damaged"), OK);
    assert_eq!(answered(&serving.ask("damaged")), before[0]);
    serving.signal("TERM");
    assert_eq!(ends(&mut serving.child), 0);
}

#[test]
fn unread_stream_does_not_delay_the_exit() {
    let model = Altered::endless();
    let mut serving = Serving::start(&["--shutdown-timeout=100ms", model.path()]);
    let endless = json!({
        "prompt": "Hello", "max_tokens": 50_000, "stream": true, "logit_bias": { LETTER_A: 100 },
    });
    let stream = serving.posted("/v1/completions", &endless);
    let mut reader = BufReader::new(stream);
    let begun = reader
        .by_ref()
        .lines()
        .any(|line| line.unwrap().starts_with("data: {"));
    assert!(begun);
    serving.signal("TERM");
    assert_eq!(ends(&mut serving.child), 0);
}
