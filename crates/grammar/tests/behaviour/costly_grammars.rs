//! Costly grammars: each compiles or is refused quickly.

use std::time::{Duration, Instant};

use crate::common::grammars;
use loquat_grammar::{GrammarError, GrammarSource, check_schema};
use serde_json::{Map, Value, json};

/// Far above the time of any grammar, even on a busy machine; detects hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// A schema around a schema, `depth` times.
fn nested(depth: usize, wrap: fn(Value) -> Map<String, Value>) -> Value {
    (0..depth).fold(json!({"type": "null"}), |inner, _| {
        Value::Object(wrap(inner))
    })
}

fn keyword(name: &str, value: Value) -> Map<String, Value> {
    Map::from_iter([(name.to_string(), value)])
}

fn all_of(inner: Value) -> Map<String, Value> {
    keyword("allOf", Value::Array(vec![inner]))
}

fn items(inner: Value) -> Map<String, Value> {
    keyword("items", inner)
}

fn definitions(count: usize, body: impl Fn(usize) -> Value) -> Value {
    let definitions = (0..count).map(|number| (format!("d{number}"), body(number)));
    json!({"$ref": "#/$defs/d0", "$defs": Value::Object(definitions.collect())})
}

fn reference(number: usize) -> Value {
    json!({"$ref": format!("#/$defs/d{number}")})
}

fn schemas() -> Vec<(&'static str, Value)> {
    let strings = |count: usize| {
        (0..count)
            .map(|n| json!(format!("value {n}")))
            .collect::<Vec<_>>()
    };
    let both = |n: usize| json!({"allOf": [reference((n + 1) % 40), {"type": "object"}]});
    let union = |n: usize| {
        let option = |name: &str| {
            let properties = keyword(&format!("{name}{n}"), json!({"type": "string"}));
            json!({"type": "object", "properties": properties})
        };
        json!({"anyOf": [option("a"), option("b")]})
    };
    vec![
        ("deep allOf", nested(900, all_of)),
        ("deep items", nested(900, items)),
        (
            "long chain of references",
            definitions(400, |n| json!({"items": reference((n + 1) % 400)})),
        ),
        (
            "references that intersect in a circle",
            definitions(40, both),
        ),
        (
            "product of unions",
            json!({"allOf": (0..30).map(union).collect::<Vec<_>>()}),
        ),
        ("large enum", json!({"enum": strings(40_000)})),
        (
            "many items",
            json!({"type": "array", "minItems": 1_000_000_000u64}),
        ),
        (
            "at most many items",
            json!({"type": "array", "maxItems": 1_000_000_000u64}),
        ),
        (
            "long string",
            json!({"type": "string", "minLength": 1_000_000_000u64}),
        ),
        (
            "longer string",
            json!({"type": "string", "maxLength": 10_000_000_000u64}),
        ),
        (
            "long email",
            json!({"type": "string", "format": "email", "minLength": 100_000}),
        ),
        (
            "repeated repetition",
            json!({"pattern": "^(x{1000}){1000}{1000}$"}),
        ),
        (
            "ambiguous repetition",
            json!({"pattern": "^(a|a)*(a*)*(.*a){20}b$"}),
        ),
        (
            "common multiple",
            json!({"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}),
        ),
        (
            "narrow range",
            json!({"type": "number", "minimum": 1e-300, "maximum": 2e-300}),
        ),
        (
            "itself or something",
            json!({"anyOf": [{"$ref": "#"}, {"type": "string"}]}),
        ),
    ]
}

fn others() -> Vec<(&'static str, GrammarSource)> {
    let chain: String = (0..4000)
        .map(|n| format!("a{n} ::= \"x\" a{} | \"y\"\n", n + 1))
        .collect();
    let doubling: String = (0..40)
        .map(|n| format!("a{n} ::= a{} a{}\n", n + 1, n + 1))
        .collect();
    let rules: String = (0..4000)
        .map(|n| format!("a{n}: \"x\" a{}\n", n + 1))
        .collect();
    let words = (0..50_000).map(|n| format!("word {n}")).collect();
    let lark = |text: String| GrammarSource::Lark(text);
    let gbnf = |text: String| GrammarSource::Gbnf(text);
    let regex = |text: &str| GrammarSource::Regex(text.to_string());
    vec![
        ("many choices", GrammarSource::Choice(words)),
        ("regex (x{1000}){1000}", regex("(x{1000}){1000}")),
        ("regex (a?){500}a{500}", regex("(a?){500}a{500}")),
        ("regex of brackets", regex(&"(".repeat(100_000))),
        (
            "chain of Lark rules",
            lark(format!("start: a0\n{rules}a4000: \"z\"")),
        ),
        (
            "brackets in Lark",
            lark(format!("start: {}", "(".repeat(100_000))),
        ),
        ("endless Lark", lark("start: \"a\" start".to_string())),
        (
            "repetition in Lark",
            lark("start: (\"a\"{1000}){1000000}".to_string()),
        ),
        (
            "chain of GBNF rules",
            gbnf(format!("root ::= a0 root?\n{chain}a4000 ::= \"z\"")),
        ),
        (
            "doubling GBNF",
            gbnf(format!("root ::= a0 root?\n{doubling}a40 ::= \"z\"?")),
        ),
        (
            "repetition in GBNF",
            gbnf("root ::= ((([a-z]{99}){99}){99}) root?".to_string()),
        ),
        (
            "brackets in GBNF",
            gbnf(format!("root ::= {}", "(".repeat(100_000))),
        ),
    ]
}

#[test]
fn every_grammar_compiles_or_fails_quickly() {
    let grammars = grammars();
    let schemas = schemas().into_iter();
    let schemas = schemas.map(|(name, schema)| (name, GrammarSource::JsonSchema(schema)));
    for (name, source) in schemas.chain(others()) {
        let began = Instant::now();
        let outcome = grammars.compile(&source);
        let took = began.elapsed();
        assert!(took < LIMIT, "{name} took {took:?}");
        let reason = outcome
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(!reason.contains('\n'), "{name}: {reason}");
    }
}

#[test]
fn depth_and_size_are_bounded() {
    let cases = [
        (nested(5000, all_of), "levels"),
        (nested(5000, items), "levels"),
        (
            definitions(5000, |n| json!({"items": reference((n + 1) % 5000)})),
            "levels",
        ),
        (json!({"enum": vec![0; 100_000]}), "schemas and values"),
    ];
    for (schema, limit) in cases {
        match check_schema(&schema) {
            Err(GrammarError::TooLarge { what, .. }) => assert_eq!(what, limit),
            other => panic!("{limit}: {other:?}"),
        }
    }
}
