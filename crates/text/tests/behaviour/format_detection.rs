//! Detection of output formats.

use std::collections::BTreeMap;

use crate::format_support::{parse, show};
use loquat_text::TextError;
use loquat_text::format::{
    CALLS, OutputFormat, OutputPiece, ParseOptions, REASONING, ToolSignature,
};
use serde_json::{Value, json};

fn detect(template: &str, tokens: &[&str]) -> (Option<&'static str>, Option<&'static str>) {
    let format = OutputFormat::detect(template, &|token| tokens.contains(&token));
    (
        format.reasoning.map(|it| it.name),
        format.calls.map(|it| it.name),
    )
}

#[test]
fn template_takes_precedence_over_vocabulary() {
    for (template, tokens, reasoning, calls) in [
        ("{{ messages }}", &[][..], None, "hermes"),
        (
            "{{ messages }}",
            &["<think>", "<tool_call>"],
            Some("think"),
            "hermes",
        ),
        (
            "{{ messages }}",
            &["[THINK]", "[ARGS]"],
            Some("mistral"),
            "mistral",
        ),
        ("{{ messages }}", &["<|tool_call_start|>"], None, "lfm2"),
        (
            "<think> <tool_call>",
            &["[THINK]", "[ARGS]"],
            Some("think"),
            "hermes",
        ),
        (
            "<tool_call>\n<function= <parameter=",
            &[],
            None,
            "qwen3_coder",
        ),
    ] {
        assert_eq!(
            detect(template, tokens),
            (reasoning, Some(calls)),
            "{template} {tokens:?}"
        );
    }
}

#[test]
fn formats_are_found_by_name() {
    let format = OutputFormat::named(Some("mistral"), Some("xlam")).unwrap();
    assert_eq!(format.reasoning.unwrap().name, "mistral");
    assert_eq!(format.calls.unwrap().name, "xlam");
    assert!(OutputFormat::named(None, None).unwrap().calls.is_none());

    let error = OutputFormat::named(Some("thinking"), None).unwrap_err();
    assert!(
        matches!(&error, TextError::UnknownReasoningFormat { known, .. } if known.contains("think, ") || known.ends_with("think")),
        "{error}"
    );
    let error = OutputFormat::named(None, Some("qwen")).unwrap_err();
    assert!(
        matches!(&error, TextError::UnknownCallFormat { known, .. } if known.contains("qwen3_coder")),
        "{error}"
    );
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = CALLS.iter().map(|it| it.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CALLS.len());
    let mut names: Vec<_> = REASONING.iter().map(|it| it.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), REASONING.len());
}

#[test]
fn markers_include_both_formats() {
    let markers = OutputFormat::named(Some("think"), Some("kimi_k2"))
        .unwrap()
        .markers();
    for marker in [
        "<think>",
        "</think>",
        "<|tool_calls_section_begin|>",
        "<|tool_call_end|>",
    ] {
        assert!(markers.contains(&marker), "{marker}: {markers:?}");
    }
    assert!(
        markers.iter().all(|it| !it.is_empty() && it.trim() == *it),
        "{markers:?}"
    );
}

struct Corpus {
    templates: BTreeMap<String, String>,
    rendered: Value,
}

/// The templates of the shared corpus, if it is present.
fn corpus() -> Option<Corpus> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/templates");
    let read = |name: &str| -> Option<Value> {
        serde_json::from_slice(&std::fs::read(format!("{folder}/{name}")).ok()?).ok()
    };
    let (Some(corpus), Some(rendered)) = (read("corpus.json"), read("rendered.json")) else {
        eprintln!("skipped: there is no corpus of templates beside the project");
        return None;
    };
    let templates = corpus.as_object()?.iter();
    let templates =
        templates.map(|(id, it)| (id.clone(), it["template"].as_str().unwrap_or("").to_owned()));
    Some(Corpus {
        templates: templates.collect(),
        rendered,
    })
}

/// Every template of the corpus that speaks of tools, by the format it is found to show.
#[rustfmt::skip]
const TOOL_TEMPLATES: &[(&str, &[&str])] = &[
    ("apertus", &["ae354cfceb686cdb", "dea688e9f24a339a"]),
    ("command", &["cc60b553279347d8", "d8366efb9f07c571"]),
    ("command_r", &["bf9e9ee8c0f2297c"]),
    ("deepseek_v3", &["0d11fd8d7cf3f212", "632b76dae12609b5", "76233095fd644a62", "a3b4449b9e31a7f3", "bbe594884b44d740", "dd2675619a64a449", "fe055ac311d9124c"]),
    ("deepseek_v31", &["07b65954a3ca1e27", "4ba2ab3d33bd9615", "8b99b81c2f0d3ab0", "d9f5f351b276cf9e"]),
    ("deepseek_v32", &["8e5a13fcc4bdd4d9"]),
    ("deepseek_v4", &["7bd4fbdf0c06cd73", "aec3d906bce80d43"]),
    ("function_tag", &["2fc9dbfaea552f86"]),
    ("functiongemma", &["9d60691c7f5e3fe6"]),
    ("functools", &["b79920e63d66e055", "fcb749f5c5d6bbc4"]),
    ("gemma4", &["65f93a25708c9524", "729e3b84baa79a98", "85a08664d16d8f3b", "afdbb2abe3667ccd"]),
    ("gigachat3", &["bbbf2de800b645df"]),
    ("gigachat31", &["304f0d64aa3ba30e"]),
    ("glm45", &["0719a4c065b07352", "444819b8ad461287", "5f1bf14725b6a0e6", "8804f445c761b9f2", "cefcef90515772c0"]),
    ("glm47", &["d63ad536c3c81880"]),
    ("granite", &["16744456e2bfb33c", "3c71df5f65998746", "4ae5bbdb15115852"]),
    ("granite_20b", &["4bb42dac7699af82"]),
    ("harmony", &["a4c9919cbbd4acdd"]),
    ("hermes", &["10490379c20af484", "11421244f6755349", "19eacf64569032f0", "4578103bf225f58d", "53027728115c28ec", "546b04dba74993ef", "5c7c96c27cfecf34", "5ed15374ce53e19a", "7ce09d55d3690e06", "87a2728cb8dc9fe4", "9524df67b77a7b25", "9d08161b0665b9d3", "a30b8c4531dda191", "a3e32125a1642d0f", "b4dbc981fed2d237", "cd8e9439f0570856", "cfc67e5f349f3769", "e132ae041e1217b5", "fed2756d2d24e127"]),
    ("hunyuan3", &["84437b9746423f04"]),
    ("internlm2", &["e00f16381b76d36b"]),
    ("kimi_k2", &["1d396d5b128cdb9b", "2f6c593d50682612", "9fcc72b7c248a720"]),
    ("lfm2", &["2294f49b51a0b9a1", "6d65c8804847ad74", "f05bf4b967dc993b"]),
    ("llama_json", &["5816fce10444e03c", "8aedd05f7ab549b8", "c22af47e53f44425", "c5d275e741705515", "d613df7c1443a660", "e10ca381b1ccc5cf"]),
    ("llama_pythonic", &["2def37d45314ec79", "3fe950790d033a6e", "659a5b7f8c93ba63", "a4958a09420919b8", "b9ded9033e0fe544"]),
    ("minicpm5", &["7451a05cf1e28a79"]),
    ("minimax_m1", &["e1790d8fbe1c587e"]),
    ("minimax_m2", &["967ff7e387676f4b"]),
    ("mistral", &["039a4710e2aabaa7", "39f03c383413f531", "5b8f31f111986965"]),
    ("mistral_list", &["0121272d0fe4c382", "0b4dd7ac0ba2c78c", "a53352b09d6ecea6", "e4676cb56dffea77"]),
    ("nemotron", &["52ae8e50fa083e63"]),
    ("qwen3_coder", &["5a38bfa058332662", "a4aee8afcf2e0711", "ab7813c3abdd9cb6", "ad22cb6365e58696", "b18b99dff7261214", "d287fb2edf144207"]),
    ("seed", &["3f9e0dc4adeb8032"]),
    ("solar", &["4618a1ec1a3442b9"]),
    ("tool_calls_list", &["05d3f879ab204075", "2f5ce4b3c1e0ab30", "fae87682d3551b1c"]),
    ("xlam", &["1d41a6a1069756ec", "777a5f5ca9ed21c5"]),
];

/// How many templates of the corpus use each reasoning format.
const THINKING_TEMPLATES: &[(&str, usize)] = &[
    ("apertus", 2),
    ("apriel", 2),
    ("command", 1),
    ("command_text", 1),
    ("gemma4", 4),
    ("harmony", 1),
    ("hunyuan3", 1),
    ("kimi_k3", 1),
    ("minimax_m3", 1),
    ("mistral", 1),
    ("seed", 1),
    ("solar", 1),
    ("think", 37),
    ("think_response", 1),
];

#[test]
fn corpus_formats_are_detected() {
    let Some(corpus) = corpus() else {
        return;
    };
    let mut calls: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut thinking: BTreeMap<&str, usize> = BTreeMap::new();
    for (id, template) in &corpus.templates {
        let (reasoning, call) = detect(template, &[]);
        println!(
            "{id} {:<16} {}",
            call.unwrap_or("-"),
            reasoning.unwrap_or("-")
        );
        if template.contains("tool") {
            calls.entry(call.unwrap_or("-")).or_default().push(id);
        }
        if let Some(reasoning) = reasoning {
            *thinking.entry(reasoning).or_default() += 1;
        }
    }
    let wanted = TOOL_TEMPLATES
        .iter()
        .map(|(name, ids)| (*name, ids.to_vec()));
    assert_eq!(calls, wanted.collect());
    assert_eq!(thinking, THINKING_TEMPLATES.iter().copied().collect());
}

/// Templates whose calls are not parsed back: two formats that are not supported (MiniMax M3 and
/// Kimi K3), one that needs the recipient in a header (Muse Glimmer), and three whose rendering is
/// invalid because quotation marks are missing.
const UNREAD: &[&str] = &[
    "11421244f6755349",
    "4578103bf225f58d",
    "a3e32125a1642d0f",
    "a4958a09420919b8",
    "b79920e63d66e055",
    "b9ded9033e0fe544",
    "cfc67e5f349f3769",
];

/// The parser reads back the calls that a template renders.
#[test]
fn rendered_calls_parse_back() {
    let Some(corpus) = corpus() else {
        return;
    };
    let start = ParseOptions {
        calls: true,
        tools: vec![ToolSignature {
            name: "get_weather".to_owned(),
            parameters: json!({"properties": {"city": {"type": "string"}, "unit": {"type": "string"}}}),
        }],
        ..ParseOptions::default()
    };
    let (mut read, mut unread) = (0, Vec::new());
    for (id, template) in &corpus.templates {
        let rendered = &corpus.rendered[format!("{id}/tool_round")]["ok"];
        let Some(message) = rendered.as_str().and_then(assistant_message) else {
            continue;
        };
        let format = OutputFormat::detect(template, &|_| false);
        let bare = format.calls.is_some_and(|calls| calls.unmarked);
        let begin = if bare { message.find(['{', '[']) } else { None };
        let pieces = parse(format, &start, [&message[begin.unwrap_or(0)..]]);
        if arguments_of(&pieces, "get_weather") == Some(json!({"city": "Paris", "unit": "c"})) {
            read += 1;
        } else {
            println!("{id}: {}", show(&pieces));
            unread.push(id.as_str());
        }
    }
    assert_eq!(unread, UNREAD);
    assert_eq!(read, 75);
}

/// The text between the user's message and the tool's result, if it contains a call.
fn assistant_message(conversation: &str) -> Option<&str> {
    let (_, after) = conversation.split_once("你好</b>")?;
    let (message, _) = after
        .split_once("{\"t\"")
        .or(after.split_once("{\\\"t\\\""))?;
    message.contains("Paris").then_some(message)
}

fn arguments_of(pieces: &[OutputPiece], tool: &str) -> Option<Value> {
    let named =
        |piece: &OutputPiece| matches!(piece, OutputPiece::CallStart { name, .. } if name == tool);
    let ended = |piece: &OutputPiece| matches!(piece, OutputPiece::CallEnd { .. });
    if !pieces.iter().any(named) || !pieces.iter().any(ended) {
        return None;
    }
    let fragments = pieces.iter().filter_map(|piece| match piece {
        OutputPiece::CallArguments { json, .. } => Some(json.as_str()),
        _ => None,
    });
    serde_json::from_str(&fragments.collect::<String>()).ok()
}
