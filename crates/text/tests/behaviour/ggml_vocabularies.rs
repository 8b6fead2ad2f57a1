//! Token ids of 47 hard strings in seven real vocabularies, as llama.cpp and transformers agree on
//! them.

use std::path::Path;

use loquat_text::{Detokenizer, DetokenizerOptions, Special, Tokenizer};
use loquat_weights::gguf::Gguf;

const VOCABULARIES: [&str; 7] = [
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gpt-2",
    "llama-spm",
    "phi-3",
    "starcoder",
];

fn cases(file: &Path) -> Vec<(String, Vec<u32>)> {
    let read = |suffix: &str| {
        let path = format!("{}{suffix}", file.display());
        std::fs::read_to_string(path).expect("the strings and their ids")
    };
    let (texts, ids) = (read(".inp"), read(".out"));
    let texts = texts.split("\n__ggml_vocab_test__\n").map(str::to_owned);
    let parse = |line: &str| {
        let numbers = line.split_whitespace().map(|id| id.parse().expect("an id"));
        numbers.collect()
    };
    texts.zip(ids.split('\n').map(parse)).collect()
}

#[test]
fn strings_encode_to_reference_ids_and_back() {
    let Some(dir) = crate::common::shared("tokenizers") else {
        return;
    };
    let mut wrong = Vec::new();
    for name in VOCABULARIES {
        let file = dir.join(format!("ggml-vocab-{name}.gguf"));
        let gguf = Gguf::open(&file).expect("a GGUF file");
        let tokenizer = Tokenizer::from_gguf(gguf.metadata()).expect("a tokenizer");
        let cases = cases(&file);
        assert_eq!(cases.len(), 47, "{name}");
        for (text, ids) in cases {
            let encoded = tokenizer.encode(&text, Special::PLAIN).expect("ids");
            if encoded != ids {
                wrong.push(format!("{name}: {text:?} gave {encoded:?}, not {ids:?}"));
            }
            assert_eq!(tokenizer.decode(&ids, false), text, "{name}");
            let mut detokenizer =
                Detokenizer::new(tokenizer.clone(), DetokenizerOptions::default());
            let mut streamed: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
            streamed += &detokenizer.finish();
            assert_eq!(streamed, text, "{name}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
