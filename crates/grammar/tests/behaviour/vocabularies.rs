//! Real vocabularies, byte-level and SentencePiece: forced tokens match the tokenizer's.

use std::path::Path;

use crate::common::Walker;
use loquat_engine::Constraint;
use loquat_grammar::{GrammarSource, Grammars};
use loquat_text::{Special, Tokenizer};
use loquat_weights::gguf::Gguf;
use serde_json::{Value, json};

const VOCABULARIES: [&str; 4] = ["gpt-2", "llama-spm", "phi-3", "starcoder"];

fn tokenizer(name: &str) -> Option<Tokenizer> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/tokenizers");
    let file = Path::new(folder).join(format!("ggml-vocab-{name}.gguf"));
    if !file.is_file() {
        eprintln!("skipped: {} is missing", file.display());
        return None;
    }
    let gguf = Gguf::open(&file).expect("a GGUF file");
    Some(Tokenizer::from_gguf(gguf.metadata()).expect("a tokenizer"))
}

fn bytes(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    let bytes = ids
        .iter()
        .map(|id| tokenizer.token_bytes(*id).unwrap_or_default());
    bytes.collect::<Vec<_>>().concat()
}

#[test]
fn forced_tokens_match_the_tokenizer() {
    let text = "{\"temperature\": \"Größe 🙂\", \"unit";
    for tokenizer in VOCABULARIES.into_iter().filter_map(tokenizer) {
        let grammars = Grammars::new(tokenizer.clone(), tokenizer.vocab_size());
        let choices = vec![format!("{text}A"), format!("{text}B")];
        let grammar = grammars
            .compile(&GrammarSource::Choice(choices))
            .expect("a grammar");
        let forced = grammar.constraint().forced().expect("tokens");
        let spelt = bytes(&tokenizer, &forced);
        assert!(text.as_bytes().starts_with(&spelt), "{spelt:?}");
        // Text that could merge with what follows is left to the model.
        assert!(spelt.len() + 24 > text.len(), "{spelt:?}");
        let after_line = tokenizer
            .encode(&format!("\n{text}"), Special::PLAIN)
            .expect("tokens");
        let expected = &after_line[after_line.len() - forced.len() - 1..];
        let shared = forced.iter().filter(|id| expected.contains(id)).count();
        assert!(
            shared + 3 >= forced.len(),
            "{forced:?} is not {after_line:?}"
        );
    }
}

#[test]
fn answers_validate_in_every_vocabulary() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "sizes": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3},
            "kind": {"enum": ["small", "smaller", "größer"]}
        },
        "required": ["name", "kind"],
        "additionalProperties": false
    });
    for tokenizer in VOCABULARIES.into_iter().filter_map(tokenizer) {
        let grammars = Grammars::new(tokenizer.clone(), tokenizer.vocab_size());
        let grammar = grammars.compile(&GrammarSource::JsonSchema(schema.clone()));
        let grammar = grammar.expect("a grammar");
        let mut complete = 0;
        for seed in 0..8 {
            let mut walker = Walker::new(tokenizer.clone(), tokenizer.vocab_size(), seed);
            let Some(ids) = walker.walk_ids(&mut grammar.constraint(), 200) else {
                continue;
            };
            let text = String::from_utf8(bytes(&tokenizer, &ids)).expect("text");
            let value: Value = serde_json::from_str(&text).expect("JSON");
            assert!(
                crate::common::validate::is_valid(&schema, &schema, &value),
                "{text}"
            );
            complete += 1;
        }
        assert!(complete > 0, "no walk ends");
    }
}
