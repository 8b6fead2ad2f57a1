//! Streamed detokenization equals decoding all tokens at once.

use loquat_synthetic::SplitMix64;
use loquat_text::{Detokenizer, DetokenizerOptions, Special, Tokenizer};

use crate::common::{byte_level, sentencepiece};

fn stream(tokenizer: &Tokenizer, ids: &[u32], options: DetokenizerOptions) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), options);
    let mut texts: Vec<String> = ids.iter().map(|id| detokenizer.push(*id)).collect();
    texts.push(detokenizer.finish());
    texts
}

#[test]
fn streamed_tokens_equal_decoded_text() {
    for (name, tokenizer) in [
        ("byte level", byte_level()),
        ("sentencepiece", sentencepiece()),
    ] {
        let mut random = SplitMix64::new(7);
        // Past the end as well: models pad their vocabulary.
        let bound = tokenizer.vocab_size() + 3;
        for _ in 0..4000 {
            let length = random.below(12);
            let ids: Vec<u32> = (0..length).map(|_| random.below(bound) as u32).collect();
            for skip_special in [false, true] {
                let options = DetokenizerOptions {
                    skip_special,
                    continues: false,
                };
                let streamed = stream(&tokenizer, &ids, options).concat();
                let decoded = tokenizer.decode(&ids, skip_special);
                assert_eq!(streamed, decoded, "{name} {ids:?} {skip_special}");
            }
        }
    }
}

#[test]
fn random_text_round_trips() {
    let alphabet: Vec<char> = " aabbé 你😀\n<tool>s/|▁".chars().collect();
    // SentencePiece writes a space as `▁`, so a `▁` in the text decodes to a space.
    let readable = |name: &str, text: String| match name {
        "sentencepiece" => text.replace('▁', " "),
        _ => text,
    };
    for (name, tokenizer) in [
        ("byte level", byte_level()),
        ("sentencepiece", sentencepiece()),
    ] {
        let mut random = SplitMix64::new(11);
        for _ in 0..2000 {
            let length = random.below(20);
            let pick = |_| alphabet[random.below(alphabet.len())];
            let text: String = (0..length).map(pick).collect();
            if text.contains("<tool>") {
                // A matched token is followed by an extra space, which decoding shows.
                continue;
            }
            let ids = tokenizer.encode(&text, Special::PLAIN).expect("ids");
            assert_eq!(
                tokenizer.decode(&ids, false),
                readable(name, text),
                "{name}"
            );
        }
    }
}

#[test]
fn characters_are_whole_and_spaces_kept() {
    let shown = DetokenizerOptions::default();
    let hidden = DetokenizerOptions {
        skip_special: true,
        ..shown
    };
    let continuing = DetokenizerOptions {
        continues: true,
        ..hidden
    };
    let byte = |byte: u32| 3 + byte;
    let (a, space_ab) = (260, 265);
    type Case<'a> = (&'a [u32], DetokenizerOptions, &'a [&'a str]);
    let euro = [byte(0xe2), byte(0x82), byte(0xac)];
    let cases: [Case<'_>; 6] = [
        (&euro, shown, &["", "", "€", ""]),
        (&euro[..2], shown, &["", "", "\u{fffd}"]),
        (&[byte(0xe2), a], shown, &["", "\u{fffd}a", ""]),
        (&[1, space_ab, space_ab], hidden, &["", "ab", " ab", ""]),
        (&[1, space_ab], shown, &["<s>", " ab", ""]),
        (&[space_ab, 2], continuing, &[" ab", "", ""]),
    ];
    let tokenizer = sentencepiece();
    for (ids, options, texts) in cases {
        assert_eq!(stream(&tokenizer, ids, options), texts, "{ids:?}");
    }
}
