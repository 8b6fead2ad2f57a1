//! Arbitrary output: no panic, no lost text, the same result however it is split, linear time.

use std::time::{Duration, Instant};

use crate::format_support::{both, check_calls, parse, show, with_calls};
use loquat_synthetic::SplitMix64;
use loquat_text::format::{
    CALLS, CallFormat, CallSyntax, Framing, OutputFormat, OutputPiece, ParseOptions, REASONING,
};

/// Text that is significant to some format, besides the format's markers.
const FRAGMENTS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "<",
    ">",
    "\"",
    "'",
    "\\",
    ",",
    ";",
    ":",
    "=",
    "\n",
    " ",
    "|",
    "é",
    "😀",
    "x",
    "1",
    "-1.5e3",
    "true",
    "None",
    "now",
    "weather",
    "now(",
    "city=",
    "call:",
    "{\"name\": \"now\"",
    ", \"arguments\": {",
    "\"parameters\": {}",
    "}}",
    "{\"now\": {",
    "functions.now:0",
    "to=functions.now",
    "\\u00e9",
    "```",
];

fn random_output(format: OutputFormat, random: &mut SplitMix64) -> String {
    let markers = format.markers();
    let mut output = String::new();
    for _ in 0..1 + random.below(14) {
        let marker = !markers.is_empty() && random.below(2) == 0;
        let fragment = if marker {
            markers[random.below(markers.len())]
        } else {
            FRAGMENTS[random.below(FRAGMENTS.len())]
        };
        // Some markers are split in half.
        match random.below(6) {
            0 => output.push_str(&half(fragment)),
            _ => output.push_str(fragment),
        }
    }
    output
}

fn text_of(pieces: &[OutputPiece]) -> String {
    let texts = pieces.iter().map(|piece| match piece {
        OutputPiece::Text(text) | OutputPiece::Reasoning(text) => text.as_str(),
        _ => "",
    });
    texts.collect()
}

fn is_subsequence(part: &str, whole: &str) -> bool {
    let mut whole = whole.chars();
    part.chars().all(|c| whole.any(|other| other == c))
}

#[test]
fn random_output_parses_the_same_however_split() {
    let formats = CALLS.iter().flat_map(|calls| {
        let reasoning = REASONING.iter().map(|it| Some(*it)).chain([None]);
        let pair = |reasoning| {
            (
                *calls,
                OutputFormat {
                    reasoning,
                    calls: Some(*calls),
                },
            )
        };
        reasoning.map(pair)
    });
    let mut random = SplitMix64::new(0x1234_5678);
    for (calls, format) in formats {
        for round in 0..60 {
            let output = random_output(format, &mut random);
            let start = ParseOptions {
                in_reasoning: round % 5 == 4,
                calls_forced: round % 7 == 6,
                ..with_calls()
            };
            let whole = parse(format, &start, [output.as_str()]);
            check_calls(&whole);
            let singles = parse(format, &start, output.split_inclusive(|_: char| true));
            assert_eq!(show(&whole), show(&singles), "{output:?}");

            let text = text_of(&whole);
            assert!(
                is_subsequence(&text, &output),
                "{output:?} became {whole:?}"
            );
            // Channel headers are not text and are dropped; so is a truncated forced call.
            let plain = matches!(&whole[..], [] | [OutputPiece::Text(_)]) && !start.calls_forced;
            if plain && format.reasoning.is_none() && calls.framing == Framing::Inline {
                assert_eq!(text, output, "{}", calls.name);
            }
        }
    }
}

fn half(text: &str) -> String {
    text.chars().take(text.chars().count() / 2).collect()
}

/// A prefix, and a pattern repeated up to a megabyte.
fn megabyte(beginning: &str, pattern: &str) -> String {
    beginning.to_owned() + &pattern.repeat((1 << 20) / pattern.len().max(1))
}

/// One format of every syntax.
const SYNTAXES: &[&str] = &[
    "hermes",
    "llama_json",
    "apertus",
    "deepseek_v3",
    "qwen3_coder",
    "llama_pythonic",
    "gemma4",
    "harmony",
];

/// A call up to the inside of a string among its arguments.
fn call_up_to_a_string(calls: &CallFormat) -> String {
    let CallFormat { section, call, .. } = calls;
    let head = match &calls.syntax {
        CallSyntax::Json(fields) => {
            let (name, arguments) = (fields.name[0], fields.arguments[0]);
            format!("[{{\"{name}\": \"now\", \"{arguments}\": {{\"a\": \"")
        }
        CallSyntax::KeyedJson => "[{\"now\": {\"a\": \"".to_owned(),
        CallSyntax::NameThenJson(it) => format!("{}now{}{{\"a\": \"", it.before, it.between),
        CallSyntax::Tagged(it) => {
            let (name, key_close) = (it.name, it.key_close[0].0);
            format!("{}now{}{}a{key_close}", name.open, name.close, it.key_open)
        }
        CallSyntax::Pythonic => "[now(a='".to_owned(),
        CallSyntax::Gemma { quote } => format!("call:now{{a:{quote}"),
    };
    format!("{}{}{head}", section.open, call.open)
}

/// A linear parse takes a fraction of a second; a quadratic one takes hours.
const LIMIT: Duration = Duration::from_secs(600);

#[test]
fn parse_time_is_linear() {
    for name in SYNTAXES {
        let format = both("think", name);
        let calls = format.calls.unwrap();
        let open = format!("{}{}", calls.section.open, calls.call.open);
        let call = call_up_to_a_string(calls);
        for output in [
            megabyte("", "plain text < [ { \n"),
            megabyte("", " \n"),
            megabyte("", &open),
            megabyte("", &format!("{open}{{\"name\": \"")),
            megabyte(&open, "["),
            megabyte(&open, "{\"a\":"),
            megabyte(&format!("{open}{{\"a\": \""), &open),
            megabyte(&call, "<| </x ]\\\\ \n"),
            megabyte(&call, &half(calls.call.close)),
        ] {
            let beginning: String = output.chars().take(60).collect();
            let started = Instant::now();
            parse(format, &with_calls(), [output.as_str()]);
            assert!(started.elapsed() < LIMIT, "{name} {beginning:?}");
        }
    }
}
