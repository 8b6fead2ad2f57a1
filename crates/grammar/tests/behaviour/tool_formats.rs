//! Every tool-call format: the parser reads the calls that its grammar admits.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::Walker;
use loquat_engine::Constraint;
use loquat_grammar::{Grammar, GrammarSource, Grammars};
use loquat_text::format::{
    CALLS, CallFormat, CallRules, CallSyntax, Framing, OutputFormat, OutputParser, OutputPiece,
    ParseOptions, ToolRule, ToolSignature,
};
use loquat_text::{Special, Tokenizer};
use serde_json::{Value, json};

/// Values that all notations can express.
fn weather() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
            "place": {
                "type": "object",
                "properties": {"north": {"type": "boolean"}, "code": {"type": ["integer", "null"]}},
                "required": ["north"],
                "additionalProperties": false
            }
        },
        "required": ["city", "unit"],
        "additionalProperties": false
    })
}

fn no_parameters() -> Value {
    json!({"type": "object", "properties": {}, "additionalProperties": false})
}

/// A vocabulary, with or without the format's marks among its special tokens.
struct Model {
    tokenizer: Tokenizer,
    grammars: Grammars,
}

impl Model {
    fn new(tokenizer: Tokenizer) -> Self {
        let grammars = Grammars::new(tokenizer.clone(), tokenizer.vocab_size());
        Self {
            tokenizer,
            grammars,
        }
    }

    fn byte_level() -> Self {
        Self::new(crate::common::tokenizer())
    }

    /// The byte-level tokenizer with more special tokens.
    fn with_specials(tokens: &[&str]) -> Self {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens/llama");
        let read = |name: &str| std::fs::read_to_string(golden.join(name)).expect(name);
        let mut tokenizer: Value = serde_json::from_str(&read("tokenizer.json")).expect("JSON");
        let first = crate::common::tokenizer().vocab_size();
        let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
        for (index, token) in tokens.iter().enumerate() {
            added.push(json!({
                "id": first + index, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true
            }));
        }
        let dir = tempfile::tempdir().expect("a folder");
        let write =
            |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect(name);
        write("tokenizer.json", &tokenizer.to_string());
        write("tokenizer_config.json", &read("tokenizer_config.json"));
        Self::new(Tokenizer::from_huggingface(dir.path()).expect("a tokenizer"))
    }

    fn special(&self, text: &str) -> Option<u32> {
        let id = self.tokenizer.token_id(text)?;
        self.tokenizer.is_special(id).then_some(id)
    }

    fn grammar(&self, format: &CallFormat, rules: &CallRules<'_>) -> Grammar {
        let lark = format.lark(rules, &|text| self.special(text));
        let lark = lark.unwrap_or_else(|error| panic!("{}: {error}", format.name));
        let compiled = self.grammars.compile(&GrammarSource::Lark(lark.clone()));
        compiled.unwrap_or_else(|error| panic!("{}: {error}\n{lark}", format.name))
    }

    /// A reply that starts with `opening` and continues at random, if it ends.
    fn reply(&self, grammar: &Grammar, opening: &str, exits: &[&str], seed: u64) -> Option<String> {
        let mut constraint = grammar.constraint();
        let begun = self
            .tokenizer
            .encode(opening, Special::RENDERED)
            .expect("tokens");
        for id in &begun {
            constraint.accept(*id).expect(opening);
        }
        let vocab_size = self.tokenizer.vocab_size();
        let walker = Walker::new(self.tokenizer.clone(), vocab_size, seed);
        let mut walker = walker.with_exits(exits);
        let rest = walker.walk_ids(&mut constraint, 1500)?;
        Some(self.tokenizer.decode(&[begun, rest].concat(), false))
    }
}

/// The models each format is tried with.
fn models(format: &CallFormat) -> Vec<Model> {
    let markers = output(format).markers();
    let tokens: BTreeSet<&str> = markers
        .into_iter()
        .filter(|marker| marker.starts_with(['<', '[']) && marker.ends_with(['>', ']']))
        .filter(|marker| !marker.contains([' ', '\n']))
        .collect();
    let tokens: Vec<&str> = tokens.into_iter().collect();
    vec![Model::byte_level(), Model::with_specials(&tokens)]
}

fn output(format: &CallFormat) -> OutputFormat {
    OutputFormat::named(None, Some(format.name)).expect("a known format")
}

struct Call {
    name: String,
    arguments: String,
    whole: bool,
}

fn parse(format: &CallFormat, schema: &Value, text: &str, forced: bool) -> (String, Vec<Call>) {
    let signature = |name: &str, schema: &Value| ToolSignature {
        name: name.to_string(),
        parameters: schema.clone(),
    };
    let start = ParseOptions {
        calls: true,
        tools: vec![
            signature("get_weather", schema),
            signature("ping", &no_parameters()),
        ],
        calls_forced: forced,
        ..ParseOptions::default()
    };
    let mut parser = OutputParser::new(output(format), start);
    let mut pieces = parser.push(text);
    pieces.extend(parser.finish());
    let (mut words, mut calls) = (String::new(), Vec::<Call>::new());
    for piece in pieces {
        match piece {
            OutputPiece::Reasoning(text) | OutputPiece::Text(text) => words.push_str(&text),
            OutputPiece::CallStart { name, .. } => calls.push(Call {
                name,
                arguments: String::new(),
                whole: false,
            }),
            OutputPiece::CallArguments { index, json } => calls[index].arguments.push_str(&json),
            OutputPiece::CallEnd { index } => calls[index].whole = true,
        }
    }
    (words, calls)
}

/// Only the keywords that [`weather`] uses.
fn satisfies(value: &Value, schema: &Value) -> bool {
    let of_type = |name: &Value| match name.as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        other => panic!("{other:?}"),
    };
    let typed = match &schema["type"] {
        Value::Array(names) => names.iter().any(of_type),
        name => of_type(name),
    };
    let listed = schema["enum"]
        .as_array()
        .is_none_or(|values| values.contains(value));
    let few = |items: &Vec<Value>| {
        schema["maxItems"]
            .as_u64()
            .is_none_or(|max| items.len() as u64 <= max)
    };
    let items = value.as_array().is_none_or(|items| {
        few(items) && items.iter().all(|item| satisfies(item, &schema["items"]))
    });
    let members = value.as_object().is_none_or(|members| {
        let known = |(name, value): (&String, &Value)| match schema["properties"].get(name) {
            Some(schema) => satisfies(value, schema),
            None => false,
        };
        let required = schema["required"].as_array().into_iter().flatten();
        let mut required = required.filter_map(Value::as_str);
        members.iter().all(known) && required.all(|name| members.contains_key(name))
    });
    typed && listed && items && members
}

/// The number of calls in a reply, or what is wrong with one.
fn check(format: &CallFormat, text: &str, strict: bool, forced: bool) -> Result<usize, String> {
    let (_, calls) = parse(format, &weather(), text, forced);
    for Call {
        name,
        arguments,
        whole,
    } in &calls
    {
        if !whole {
            return Err(format!("broken: {arguments}"));
        }
        let arguments: Value =
            serde_json::from_str(arguments).map_err(|error| format!("{error}: {arguments}"))?;
        let schema = match name.as_str() {
            "get_weather" => weather(),
            "ping" => no_parameters(),
            other => return Err(format!("no such tool: {other}")),
        };
        if !arguments.is_object() || (strict && !satisfies(&arguments, &schema)) {
            return Err(format!("arguments violate the schema: {arguments}"));
        }
    }
    Ok(calls.len())
}

fn with_tools<T>(strict: bool, work: impl FnOnce(&[ToolRule<'_>]) -> T) -> T {
    let (weather, nothing) = (weather(), no_parameters());
    let rule = |name, parameters| ToolRule {
        name,
        parameters,
        strict,
    };
    work(&[rule("get_weather", &weather), rule("ping", &nothing)])
}

/// Replies of a grammar with these openings, and the errors in them.
fn failures(model: &Model, format: &CallFormat, rules: &CallRules<'_>, start: &str) -> Vec<String> {
    let grammar = model.grammar(format, rules);
    let strict = rules.tools.iter().all(|tool| tool.strict);
    let replies = (0..6).filter_map(|seed| model.reply(&grammar, start, &[], seed));
    let mut replies = replies.peekable();
    if replies.peek().is_none() {
        return vec![format!("{}: never ends", format.name)];
    }
    let wrong = |text: String| {
        let (words, _) = parse(format, &weather(), &text, rules.at_least_one);
        let why = match check(format, &text, strict, rules.at_least_one) {
            Err(why) => why,
            Ok(0) => "no call".to_string(),
            Ok(count) if count > 1 && !rules.parallel => "more than one call".to_string(),
            Ok(_) if rules.at_least_one && !words.trim().is_empty() => "text".to_string(),
            Ok(_) => return None,
        };
        Some(format!("{}: {why} in {text:?}", format.name))
    };
    replies.filter_map(wrong).take(1).collect()
}

#[test]
fn required_calls_parse_as_calls() {
    let mut found = Vec::new();
    for format in CALLS {
        for model in models(format) {
            for (strict, parallel) in [(true, true), (true, false), (false, true)] {
                found.extend(with_tools(strict, |tools| {
                    let rules = CallRules {
                        tools,
                        at_least_one: true,
                        parallel,
                    };
                    failures(&model, format, &rules, "")
                }));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn started_call_after_text_is_completed() {
    let mut found = Vec::new();
    let inline = |format: &&&CallFormat| format.framing == Framing::Inline && !format.unmarked;
    for format in CALLS.iter().filter(inline) {
        for model in models(format) {
            for parallel in [true, false] {
                found.extend(with_tools(true, |tools| {
                    let rules = CallRules {
                        tools,
                        at_least_one: false,
                        parallel,
                    };
                    let marks = format.opening_marks().into_iter();
                    let starts = marks.map(|mark| format!("Let me see. {mark}"));
                    let failures = starts.map(|start| failures(&model, format, &rules, &start));
                    failures.flatten().collect::<Vec<_>>()
                }));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn raw_string_values_follow_composed_schemas() {
    // The forms pydantic and others write for enumerations and optional values.
    let texts = [
        (json!({"$ref": "#/$defs/Color"}), &["red", "dark blue"][..]),
        (
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
            &[],
        ),
        (json!({"type": ["string", "null"]}), &[]),
        (json!({"enum": ["a", "b", null]}), &["a", "b"]),
    ];
    let tagged = |format: &&&CallFormat| matches!(format.syntax, CallSyntax::Tagged(_));
    for format in CALLS.iter().filter(tagged) {
        for (property, among) in &texts {
            let schema = json!({
                "type": "object",
                "properties": {"text": property},
                "required": ["text"],
                "$defs": {"Color": {"type": "string", "enum": ["red", "dark blue"]}},
            });
            for model in models(format) {
                check_texts(&model, format, &schema, among);
            }
        }
    }
}

fn check_texts(model: &Model, format: &CallFormat, schema: &Value, among: &[&str]) {
    let exits: &[&str] = match &format.syntax {
        // A JSON value ends at its own quotation mark.
        CallSyntax::Tagged(syntax) if syntax.key_close.len() == 1 => &[syntax.value_close.trim()],
        _ => &[],
    };
    let rules = CallRules {
        tools: &[ToolRule {
            name: "get_weather",
            parameters: schema,
            strict: true,
        }],
        at_least_one: true,
        parallel: false,
    };
    let grammar = model.grammar(format, &rules);
    let replies = (0..12).filter_map(|seed| model.reply(&grammar, "", exits, seed));
    let replies: Vec<String> = replies.collect();
    assert!(!replies.is_empty(), "{}: never ends", format.name);
    for reply in replies {
        let (_, calls) = parse(format, schema, &reply, true);
        let arguments: Value = serde_json::from_str(&calls[0].arguments).expect(&reply);
        let is_valid = match &arguments["text"] {
            Value::String(text) => among.is_empty() || among.contains(&text.as_str()),
            Value::Null => true,
            _ => false,
        };
        assert!(is_valid, "{}: {arguments} of {reply}", format.name);
    }
}

#[test]
fn single_call_is_not_repeated() {
    let inline = |format: &&&CallFormat| format.framing == Framing::Inline;
    for format in CALLS.iter().filter(inline) {
        let model = Model::byte_level();
        let (one, free) = with_tools(true, |tools| {
            let rules = |at_least_one| CallRules {
                tools,
                at_least_one,
                parallel: false,
            };
            (
                model.grammar(format, &rules(true)),
                model.grammar(format, &rules(false)),
            )
        });
        let Some(call) = (0..9).find_map(|seed| model.reply(&one, "", &[], seed)) else {
            panic!("{}: never ends", format.name);
        };
        assert!(
            crate::common::accepts(&free, &call),
            "{}: {call}",
            format.name
        );
        for more in ["\n", ""] {
            let twice = format!("{call}{more}{call}");
            assert!(
                !crate::common::accepts(&free, &twice),
                "{}: {twice}",
                format.name
            );
        }
        for text in ["", "Well: 1 < 2.", "  so"] {
            assert!(
                crate::common::accepts(&free, text),
                "{}: {text}",
                format.name
            );
        }
        if format.unmarked {
            for text in ["  {\"name\": \"x\"", " [f("] {
                assert!(
                    !crate::common::accepts(&free, text),
                    "{}: {text}",
                    format.name
                );
            }
        }
    }
}
