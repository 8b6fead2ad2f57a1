//! SmolLM2 behind a server that ends: the next turn of a conversation reads its prefix.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use loquat_store::{NoProgress, Store, StoreOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Of the time without a stored prefix.
const MOST: f64 = 0.2;
const TOKENS: u64 = 4000;

/// One test at a time, since they measure.
static SERIAL: Mutex<()> = Mutex::new(());

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(cache: &Path, model: &str, disk: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loquat"));
        command
            .args(["serve", "--port=0", "--backend=cpu", disk, model])
            .env("LOQUAT_CACHE", cache)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("an address").unwrap();
            if let Some((_, address)) = line.split_once("http://") {
                break address.to_owned();
            }
        };
        // A full pipe would block the server.
        std::thread::spawn(move || lines.for_each(drop));
        let server = Self { child, address };
        while !server
            .send("GET", "/health/ready", "")
            .starts_with("HTTP/1.1 200")
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn send(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let (address, len) = (&self.address, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {len}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn ask(&self, prompt: &str, max_tokens: usize) -> Value {
        let body = json!({ "prompt": prompt, "max_tokens": max_tokens, "temperature": 0 });
        let answer = self.send("POST", "/v1/completions", &body.to_string());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// Seconds to the first token, which is the whole answer, and how many tokens were cached.
    fn first_token(&self, prompt: &str) -> (f64, u64) {
        let started = Instant::now();
        let answer = self.ask(prompt, 1);
        let took = started.elapsed().as_secs_f64();
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        (took, cached.as_u64().unwrap_or(0))
    }

    /// Ends it by SIGTERM, and returns once it has exited.
    fn terminate(mut self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", "TERM", &id]).status();
        assert!(sent.unwrap().success());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    /// Waits until the blocks of so many tokens are on disk.
    fn wait_for_blocks(&self, tokens: u64) {
        let started = Instant::now();
        while self.metric("loquat_kv_disk_written_blocks_total") < (tokens / 64) as f64 {
            assert!(
                started.elapsed() < Duration::from_secs(120),
                "it is not written"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn metric(&self, name: &str) -> f64 {
        let metrics = self.send("GET", "/metrics", "");
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    /// By SIGKILL.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

#[test]
fn killed_server_continues_conversation_quickly() {
    continues_quickly_after("SIGKILL", |server, tokens| {
        let started = Instant::now();
        server.wait_for_blocks(tokens);
        let waited = started.elapsed().as_secs_f64();
        println!("stored {waited:.2} s after the answer");
        drop(server);
    });
}

#[test]
fn terminated_server_continues_conversation_quickly() {
    continues_quickly_after("SIGTERM", |server, _| {
        let started = Instant::now();
        server.terminate();
        let took = started.elapsed().as_secs_f64();
        println!("exited {took:.2} s after the signal");
    });
}

/// The first turn is computed, `end` ends its server, and another one answers the second turn.
fn continues_quickly_after(signal: &str, end: impl FnOnce(Server, u64)) {
    let _serial = SERIAL.lock();
    let store = Store::open(StoreOptions::default()).unwrap();
    let model = store.locate(&"smollm2:135m".into(), &mut NoProgress);
    let model = model.unwrap().path.to_str().unwrap().to_owned();
    let cache = TempDir::new().unwrap();

    let sentence = "The river carries the small boats past the mill and out to the quiet sea. ";
    let first = sentence.repeat(250);
    let server = Server::start(cache.path(), &model, "--kv-disk=2GiB");
    let answer = server.ask(&first, 32);
    let tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!((TOKENS..TOKENS + 500).contains(&tokens), "{tokens} tokens");
    let next = format!("{first}{} And what then? ", text(&answer));
    end(server, tokens);

    let cold = Server::start(cache.path(), &model, "--kv-disk=0B");
    let (cold_seconds, cached) = cold.first_token(&next);
    assert_eq!(cached, 0);
    let expected = cold.ask(&next, 32);
    drop(cold);

    let warm = Server::start(cache.path(), &model, "--kv-disk=2GiB");
    let (warm_seconds, cached) = warm.first_token(&next);
    assert!(cached >= tokens / 64 * 64, "{cached} of {tokens} tokens");
    assert_eq!(text(&warm.ask(&next, 32)), text(&expected));
    let ratio = warm_seconds / cold_seconds;
    println!("{signal}, {tokens} tokens: {warm_seconds:.3} s of {cold_seconds:.3} s ({ratio:.3})");
    assert!(ratio <= MOST, "{warm_seconds} s of {cold_seconds} s");
}
