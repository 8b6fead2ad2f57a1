//! Prefixes on disk: servers that end or are killed, and start again.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::serve::Serving;
use crate::support::{Altered, Files, ends, loquat};

/// A tiny model with room for a conversation of 4,000 tokens.
fn model() -> Altered {
    Altered::with_context(8192)
}

/// The same with windows that free memory.
fn windowed() -> Altered {
    Altered::from("gemma3_text").replace(
        "config.json",
        "\"max_position_embeddings\": 512",
        "\"max_position_embeddings\": 8192",
    )
}

/// Writes a token for each byte.
fn conversation(kind: usize, tokens: usize) -> String {
    let words = [
        "alder", "birch", "cedar", "hazel", "larch", "maple", "rowan",
    ];
    let words = (0..).map(|at: usize| words[(at * at + kind * at + kind) % words.len()]);
    let text: Vec<&str> = words.take(tokens / 5).collect();
    text.join(" ")[..tokens].to_owned()
}

#[derive(Debug, PartialEq)]
struct Answer {
    text: String,
    prompt_tokens: u64,
    cached_tokens: u64,
}

fn ask_as(serving: &Serving, prompt: &str, key: Option<&str>) -> Answer {
    let body = json!({
        "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": true,
    });
    let mut stream = serving.posted_as("/v1/completions", &body, key);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let body: Value = serde_json::from_str(body).expect(body);
    let usage = &body["usage"];
    Answer {
        text: body["choices"][0]["text"].as_str().unwrap().to_owned(),
        prompt_tokens: usage["prompt_tokens"].as_u64().unwrap(),
        cached_tokens: usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or(0),
    }
}

fn ask(serving: &Serving, prompt: &str) -> Answer {
    ask_as(serving, prompt, None)
}

fn metric(serving: &Serving, name: &str) -> f64 {
    let metrics = serving.get("/metrics");
    let mut lines = metrics.lines().filter(|line| line.starts_with(name));
    let line = lines
        .next()
        .unwrap_or_else(|| panic!("no {name} in {metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until the conversation's blocks are written.
fn stored(serving: &Serving, blocks: u64) {
    for _ in 0..6000 {
        if metric(serving, "loquat_kv_disk_written_blocks_total") as u64 >= blocks {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("not written: {}", serving.get("/metrics"));
}

fn files(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache.join("kv-blocks")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// The first turn, the prompt of the next one, and its answer without anything stored.
struct Turns {
    first: String,
    next: String,
    cold: Answer,
}

impl Turns {
    fn new(serving: &Serving) -> Self {
        let first = conversation(1, 4000);
        let answer = ask(serving, &first);
        let next = format!("{first}{}{}", answer.text, conversation(2, 30));
        let cold = ask_cold(&next);
        Self { first, next, cold }
    }
}

fn ask_cold(prompt: &str) -> Answer {
    let cache = TempDir::new().unwrap();
    let model = model();
    let serving = Serving::start_in(cache.path(), &["--kv-disk=0B", model.path()]);
    let answer = ask(&serving, prompt);
    assert!(!cache.path().join("kv-blocks").exists());
    answer
}

#[test]
fn conversation_survives_sigkill_and_sigterm() {
    let model = model();
    for signal in ["KILL", "TERM"] {
        let cache = TempDir::new().unwrap();
        let mut serving = Serving::start_in(cache.path(), &[model.path()]);
        let turns = Turns::new(&serving);
        let blocks = turns.cold.prompt_tokens / 64 - 1;
        if signal == "KILL" {
            stored(&serving, blocks);
        }
        serving.signal(signal);
        if signal == "TERM" {
            assert_eq!(ends(&mut serving.child), 0);
        } else {
            serving.child.wait().unwrap();
        }
        assert!(files(cache.path()).len() as u64 >= blocks, "after {signal}");
        for file in files(cache.path()) {
            assert_eq!(
                fs::metadata(file).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
        let serving = Serving::start_in(cache.path(), &[model.path()]);
        let answer = ask(&serving, &turns.next);
        assert_eq!(answer.text, turns.cold.text, "after {signal}");
        assert_eq!(answer.prompt_tokens, turns.cold.prompt_tokens);
        assert!(
            answer.cached_tokens >= 64 * blocks,
            "after {signal}: {answer:?}"
        );
        assert_eq!(metric(&serving, "loquat_kv_disk_hits_total"), 1.0);
    }
}

#[test]
fn two_servers_share_a_folder() {
    let (cache, model) = (TempDir::new().unwrap(), model());
    let [one, other] = [(); 2].map(|()| Serving::start_in(cache.path(), &[model.path()]));
    let turns = Turns::new(&one);
    stored(&one, turns.cold.prompt_tokens / 64 - 1);
    let answer = ask(&other, &turns.next);
    assert_eq!(answer.text, turns.cold.text);
    assert!(answer.cached_tokens > 3900, "{answer:?}");
    // Both write what the other writes.
    let prompts = [5, 6].map(|kind| conversation(kind, 2000));
    std::thread::scope(|scope| {
        for serving in [&one, &other] {
            scope.spawn(|| prompts.each_ref().map(|prompt| ask(serving, prompt)));
        }
    });
    for prompt in &prompts {
        assert_eq!(ask(&one, prompt).text, ask(&other, prompt).text);
    }
    for serving in [&one, &other] {
        assert_eq!(metric(serving, "loquat_kv_disk_damaged_blocks_total"), 0.0);
    }
}

#[test]
fn damaged_files_cost_no_request() {
    let (cache, model) = (TempDir::new().unwrap(), model());
    let serving = Serving::start_in(cache.path(), &[model.path()]);
    let turns = Turns::new(&serving);
    stored(&serving, turns.cold.prompt_tokens / 64 - 1);
    drop(serving);
    for (at, file) in files(cache.path()).into_iter().enumerate() {
        let mut bytes = fs::read(&file).unwrap();
        let place = at * 7919 % bytes.len();
        match at % 3 {
            0 => bytes[place] ^= 0x55,
            1 => bytes.truncate(place),
            _ => {}
        }
        fs::write(&file, bytes).unwrap();
    }
    let serving = Serving::start_in(cache.path(), &[model.path()]);
    assert_eq!(ask(&serving, &turns.next).text, turns.cold.text);
    assert_eq!(ask(&serving, &turns.first).prompt_tokens, 4000);
}

#[test]
fn keys_never_read_each_others_files() {
    let (cache, model) = (TempDir::new().unwrap(), model());
    let keys = ["ann", "bob"].map(|name| {
        let text = loquat(["config", "key", name, "--scope", "inference"]).text();
        let (key, entry) = text.split_once("\n\n").unwrap();
        (key.to_owned(), entry.to_owned())
    });
    let model = format!(
        "[[models]]\nname = \"m\"\nsource = {:?}\nkv_disk = \"1GiB\"\n",
        model.path()
    );
    let files = Files::new();
    let entries = keys.each_ref().map(|(_, entry)| entry.as_str()).concat();
    let config = files.write("loquat.toml", &(entries + &model));
    let prompt = conversation(1, 2000);
    let mut texts = Vec::new();
    for (key, cached) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut serving = Serving::start_in(cache.path(), &["--config", &config]);
        let answer = ask_as(&serving, &prompt, Some(&keys[key].0));
        assert_eq!(answer.cached_tokens > 0, cached, "{answer:?}");
        texts.push(answer.text);
        serving.signal("TERM");
        assert_eq!(ends(&mut serving.child), 0);
    }
    texts.dedup();
    assert_eq!(texts.len(), 1);
}

/// Waits until everything is written.
fn all_stored(serving: &Serving) {
    stored(serving, 1);
    for _ in 0..6000 {
        if metric(serving, "loquat_kv_disk_pending_tokens") == 0.0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("not written: {}", serving.get("/metrics"));
}

fn ask_cold_of(model: &Altered, prompt: &str) -> Answer {
    let cache = TempDir::new().unwrap();
    let serving = Serving::start_in(cache.path(), &["--kv-disk=0B", model.path()]);
    ask(&serving, prompt)
}

#[test]
fn conversation_of_windowed_model_survives() {
    let model = windowed();
    for signal in ["KILL", "TERM"] {
        let cache = TempDir::new().unwrap();
        let mut serving = Serving::start_in(cache.path(), &[model.path()]);
        let first = conversation(1, 4000);
        let answer = ask(&serving, &first);
        assert_eq!(answer, ask_cold_of(&model, &first));
        if signal == "KILL" {
            all_stored(&serving);
        }
        serving.signal(signal);
        if signal == "TERM" {
            assert_eq!(ends(&mut serving.child), 0);
        } else {
            serving.child.wait().unwrap();
        }
        // The first prompt continues where it ended, whatever the answer is.
        let next = format!("{first}{}", conversation(2, 30));
        let cold = ask_cold_of(&model, &next);
        let serving = Serving::start_in(cache.path(), &[model.path()]);
        let found = ask(&serving, &next);
        assert_eq!(found.text, cold.text, "after {signal}");
        let computed = found.prompt_tokens - found.cached_tokens;
        assert!(computed <= 64, "after {signal}: {found:?}");
        assert_eq!(metric(&serving, "loquat_kv_disk_hits_total"), 1.0);
        drop(serving);
        // Damaged at any place: computed again.
        for (at, file) in files(cache.path()).into_iter().enumerate() {
            let mut bytes = fs::read(&file).unwrap();
            let place = at * 7919 % bytes.len();
            bytes[place] ^= 0x55;
            fs::write(&file, bytes).unwrap();
        }
        let serving = Serving::start_in(cache.path(), &[model.path()]);
        assert_eq!(ask(&serving, &next), cold, "after {signal}");
    }
}
