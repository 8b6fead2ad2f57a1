//! JSON schemas: every answer validates, and unsupported keywords are refused by name.

use crate::common::validate::is_valid;
use crate::common::{accepts, answers, compile, grammars, refusal};
use loquat_grammar::{GrammarError, GrammarSource, check_schema};
use serde_json::{Value, json};

fn schemas() -> Vec<Value> {
    vec![
        json!({}),
        json!(true),
        json!({"type": "null"}),
        json!({"type": ["boolean", "null"]}),
        json!({"type": "integer", "minimum": -3, "maximum": 12}),
        json!({"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 103}),
        json!({"type": "number", "minimum": 0.5, "maximum": 1.25}),
        json!({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000}),
        json!({"type": "string", "minLength": 2, "maxLength": 4}),
        json!({"type": "string", "pattern": "^[a-c]{2,3}-\\d+$", "maxLength": 9}),
        json!({"type": "string", "pattern": "^a|z$", "maxLength": 5}),
        json!({"enum": ["red", "green\n\"dark\"", 3, 2.5, null, true, [1, {"a": "é"}]]}),
        json!({"const": {"kind": "fixed", "list": [1, 2]}}),
        json!({"type": "string", "enum": ["a", "ab", "abc"], "minLength": 2}),
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}),
        json!({"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}],
               "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 5}),
        json!({"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 0}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
               "required": ["b"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}},
               "additionalProperties": {"type": "boolean"}}),
        json!({"type": "object", "patternProperties": {"^s_": {"type": "string"}, "^n_": {"type": "null"}},
               "additionalProperties": false, "maxProperties": 3}),
        json!({"type": "object", "required": ["free"]}),
        json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": "null"}}),
        json!({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}]}),
        json!({"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}),
        json!({"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
               "$defs": {
                   "cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
                           "required": ["kind"]},
                   "dog": {"type": "object", "properties": {"kind": {"const": "dog"}, "good": {"type": "boolean"}},
                           "required": ["kind"]}}}),
        json!({"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 6}]}),
        json!({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                         {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}, "required": ["b"]}]}),
        json!({"$ref": "#/$defs/tree",
               "$defs": {"tree": {"type": "object", "properties": {
                   "value": {"type": "integer"},
                   "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
                   "required": ["value"], "additionalProperties": false}}}),
        json!({"type": "object", "properties": {"a/b": {"$ref": "#/$defs/x~1y"}}, "required": ["a/b"],
               "$defs": {"x/y": {"type": "integer"}}}),
        json!({"oneOf": [{"type": "integer"}, {"type": "string"}],
               "anyOf": [{"type": "string"}, {"type": "null"}], "allOf": [{"maxLength": 2}]}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": "string", "format": "uuid"}),
        json!({"type": "integer", "format": "int32", "title": "N", "description": "d", "x-order": 3}),
    ]
}

#[test]
fn schema_answers_validate() {
    for schema in schemas() {
        let grammar = compile(&GrammarSource::JsonSchema(schema.clone()));
        let answers = answers(&grammar, 12, 600);
        assert!(!answers.is_empty(), "no walk through {schema} ends");
        for answer in answers {
            let value: Value = serde_json::from_str(&answer)
                .unwrap_or_else(|error| panic!("{error}: {answer:?} of {schema}"));
            assert!(is_valid(&schema, &schema, &value), "{answer} of {schema}");
        }
    }
}

#[test]
fn json_spacing_is_fixed() {
    let any = compile(&GrammarSource::JsonObject);
    let cases = [
        (r#"{"a": 1, "b": [true, {}]}"#, true),
        (r#"{"a":1}"#, false),
        (r#"{"a": 1,"b": 2}"#, false),
        ("{\n}", false),
        (r#" {}"#, false),
        (r#"{} "#, false),
        (r#"[]"#, false),
        (r#"{"a": "x\ny"}"#, true),
        (r#"{"a": "\u0041"}"#, false),
    ];
    for (text, good) in cases {
        assert_eq!(accepts(&any, text), good, "{text}");
    }
}

#[test]
fn properties_keep_schema_order() {
    let schema = |text: &str| GrammarSource::JsonSchema(serde_json::from_str(text).expect("JSON"));
    let grammars = grammars();
    for (schema, good, bad) in [
        (
            schema(
                r#"{"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"required":["a","b"]}"#,
            ),
            r#"{"a": 1, "b": 2}"#,
            r#"{"b": 2, "a": 1}"#,
        ),
        (
            schema(
                r#"{"type":"object","properties":{"b":{"const":2},"a":{"const":1}},"required":["a","b"]}"#,
            ),
            r#"{"b": 2, "a": 1}"#,
            r#"{"a": 1, "b": 2}"#,
        ),
    ] {
        let grammar = grammars.compile(&schema).expect("a grammar");
        assert!(accepts(&grammar, good) && !accepts(&grammar, bad), "{good}");
    }
}

#[test]
fn property_names_cannot_be_escaped() {
    let grammar = compile(&GrammarSource::JsonSchema(json!({
        "type": "object", "properties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "string"}
    })));
    assert!(accepts(&grammar, r#"{"a": 1, "b": "x"}"#));
    for text in [
        r#"{"a": "x"}"#,
        r#"{"\u0061": "x"}"#,
        r#"{"b": "x", "a": "y"}"#,
    ] {
        assert!(!accepts(&grammar, text), "{text}");
    }
}

#[test]
fn unsupported_keywords_are_named() {
    let cases = [
        (json!({"not": {"type": "null"}}), "`not` at `#`"),
        (
            json!({"properties": {"a": {"items": {"uniqueItems": true}}}}),
            "`uniqueItems` at `#/properties/a/items`",
        ),
        (json!({"contains": {}}), "`contains`"),
        (json!({"if": {}, "then": {}}), "`if`"),
        (
            json!({"dependentRequired": {"a": ["b"]}}),
            "`dependentRequired`",
        ),
        (
            json!({"unevaluatedProperties": false}),
            "`unevaluatedProperties`",
        ),
        (
            json!({"propertyNames": {"pattern": "^a"}}),
            "`patternProperties`",
        ),
        (
            json!({"type": "string", "format": "regex"}),
            "`regex` is not among",
        ),
        (
            json!({"anyOf": [{"type": "strin"}]}),
            "`type` at `#/anyOf/0` of the schema is `\"strin\"`",
        ),
        (json!({"pattern": "(?=a)"}), "look-around"),
        (json!({"pattern": "(a)\\1"}), "backreferences"),
        (json!({"pattern": "a\\"}), "backslash"),
        (
            json!({"patternProperties": {"[": {}}}),
            "`patternProperties`",
        ),
        (
            json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}),
            "`oneOf`",
        ),
        (json!({"minProperties": 2}), "`minProperties`"),
        (json!({"$ref": "#/$defs/none"}), "`$ref`"),
        (json!({"$ref": "other.json"}), "`$ref`"),
        (json!({"minimum": "3"}), "`minimum`"),
        (json!({"maximum": 1e300}), "`maximum`"),
        (json!({"multipleOf": 0}), "`multipleOf`"),
        (json!({"multipleOf": 1000003}), "`multipleOf`"),
        (json!({"minLength": -1}), "`minLength`"),
        (json!({"enum": []}), "`enum`"),
        (json!({"const": "a\u{1}"}), "`const`"),
        (json!({"enum": [9007199254740993u64]}), "`enum`"),
        (json!({"required": "a"}), "`required`"),
        (json!({"items": 3}), "`#/items` of the schema is `3`"),
        (json!([]), "`#` of the schema"),
    ];
    for (schema, message) in cases {
        let checked = check_schema(&schema).expect_err("a refusal").to_string();
        assert!(checked.contains(message), "{checked:?} for {schema}");
        let refused = refusal(&GrammarSource::JsonSchema(schema));
        assert_eq!(refused.to_string(), checked);
        assert!(refused.is_request_fault());
    }
}

#[test]
fn unsatisfiable_schema_is_refused() {
    let cases = [
        json!(false),
        json!({"$ref": "#"}),
        json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}),
        json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
        json!({"type": "string", "enum": [1, 2]}),
        json!({"type": "object", "required": ["a"], "additionalProperties": false}),
    ];
    for schema in cases {
        let refused = refusal(&GrammarSource::JsonSchema(schema.clone()));
        let unsatisfiable = matches!(refused, GrammarError::Unsatisfiable { .. });
        assert!(unsatisfiable, "{refused} for {schema}");
    }
}

#[test]
fn ineffective_keywords_are_accepted() {
    for schema in [
        json!({"type": "array", "uniqueItems": false}),
        json!({"if": {"type": "null"}}),
        json!({"propertyNames": true, "dependentRequired": {}, "unevaluatedProperties": {}}),
        json!({"minContains": 1}),
        json!({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "$comment": "c",
               "default": 1, "examples": [1], "deprecated": true, "readOnly": true, "anything": {}}),
    ] {
        assert_eq!(check_schema(&schema), Ok(()), "{schema}");
    }
}

#[test]
fn recursive_alternative_is_accepted() {
    let grammar = compile(&GrammarSource::JsonSchema(json!({
        "anyOf": [{"$ref": "#"}, {"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]
    })));
    assert!(
        accepts(&grammar, "null") && accepts(&grammar, "[[null], []]") && !accepts(&grammar, "[1]")
    );
}

#[test]
fn older_drafts_are_supported() {
    let cases = [
        (
            json!({"type": "array", "items": [{"const": 1}], "additionalItems": false}),
            "[1]",
            "[1, 1]",
        ),
        (
            json!({"type": "integer", "minimum": 3, "exclusiveMinimum": true, "maximum": 5}),
            "4",
            "3",
        ),
        (
            json!({"$ref": "#/definitions/a", "definitions": {"a": {"const": 7}}}),
            "7",
            "8",
        ),
    ];
    for (schema, good, bad) in cases {
        let grammar = compile(&GrammarSource::JsonSchema(schema.clone()));
        assert!(
            accepts(&grammar, good) && !accepts(&grammar, bad),
            "{schema}"
        );
    }
}

#[test]
fn date_and_time_formats_are_enforced() {
    let cases = [
        ("date", "2024-02-29", true),
        ("date", "2023-02-29", false),
        ("date", "1900-02-29", false),
        ("date", "2000-02-29", true),
        ("date", "0000-01-01", false),
        ("date", "2023-04-31", false),
        ("time", "23:59:59Z", true),
        ("time", "23:59:60Z", false),
        ("time", "07:00:00.25+05:30", true),
        ("date-time", "2023-02-28T00:00:00Z", true),
        ("date-time", "2023-02-29T00:00:00Z", false),
    ];
    for (format, text, good) in cases {
        let schema = json!({"type": "string", "format": format});
        let grammar = compile(&GrammarSource::JsonSchema(schema));
        assert_eq!(
            accepts(&grammar, &format!("\"{text}\"")),
            good,
            "{format} {text}"
        );
    }
    let both = json!({"type": "string", "format": "date", "pattern": "^20"});
    let grammar = compile(&GrammarSource::JsonSchema(both));
    assert!(accepts(&grammar, "\"2024-02-29\"") && !accepts(&grammar, "\"1999-01-01\""));
}
