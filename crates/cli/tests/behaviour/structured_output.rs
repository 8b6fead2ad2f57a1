//! Constrained answers.

use serde_json::Value;

use crate::support::{Files, Outcome, golden, loquat};

const SCHEMA: &str = r#"{
  "type": "object",
  "properties": {
    "size": { "enum": ["small", "large"] },
    "count": { "type": "integer", "minimum": 3, "maximum": 5 }
  },
  "required": ["size", "count"],
  "additionalProperties": false
}"#;

/// Whether an answer is valid.
type Check<'a> = &'a dyn Fn(&str) -> bool;

/// Runs a command and lets the model end by itself.
fn ask(command: &str, flags: &[&str]) -> Outcome {
    let model = golden("llama");
    let words = [command, &model, "hi", "--seed", "3", "-t", "1"];
    // It might only think.
    let thoughtless = (command == "run").then_some("--reasoning-format=none");
    loquat(
        words
            .into_iter()
            .chain(thoughtless)
            .chain(flags.iter().copied()),
    )
}

#[test]
fn answers_satisfy_constraints() {
    let files = Files::new();
    let schema = files.write("schema.json", SCHEMA);
    let lark = files.write(
        "grammar.lark",
        "start: greeting \" \" name\ngreeting: \"hi\" | \"yo\"\nname: /[ab]{2}/\n",
    );
    let gbnf = files.write(
        "grammar.gbnf",
        "root ::= \"x\" digit \"y\"\ndigit ::= [0-9]\n",
    );
    let sound = |answer: &str| -> bool {
        let Ok(value) = serde_json::from_str::<Value>(answer) else {
            return false;
        };
        let size = value["size"] == "small" || value["size"] == "large";
        let count = value["count"].as_i64();
        size && count.is_some_and(|count| (3..=5).contains(&count))
    };
    let greets = |answer: &str| {
        let name = answer.strip_prefix("hi ").or(answer.strip_prefix("yo "));
        let letters = |name: &str| name.len() == 2 && name.chars().all(|c| "ab".contains(c));
        name.is_some_and(letters)
    };
    let digit = |answer: &str| {
        let inner = answer
            .strip_prefix('x')
            .and_then(|rest| rest.strip_suffix('y'));
        inner.is_some_and(|digit| digit.len() == 1 && digit.parse::<u8>().is_ok())
    };
    let letters = |answer: &str| answer.len() == 4 && answer.chars().all(|c| "pq".contains(c));
    let chosen = |answer: &str| ["yes", "no", "not now"].contains(&answer);
    let cases: [(&[&str], Check<'_>); 6] = [
        (&["--json-schema", &schema], &sound),
        (&["--json-schema", SCHEMA], &sound),
        (&["--regex", "[pq]{4}"], &letters),
        (
            &["--choice", "yes", "--choice", "no", "--choice", "not now"],
            &chosen,
        ),
        (&["--grammar", &lark], &greets),
        (&["--grammar", &gbnf], &digit),
    ];
    for (flags, sound) in cases {
        for command in ["run", "generate"] {
            let answer = ask(command, flags).quiet();
            let answer = answer.strip_suffix('\n').unwrap();
            assert!(sound(answer), "{command} {flags:?}: {answer:?}");
        }
    }
}

#[test]
fn json_flag_forces_an_object() {
    // The token `}`, which ends the object at once.
    let answer = ask("run", &["--json", "--logit-bias=92=100"]).quiet();
    assert_eq!(answer, "{}\n");
    let free = ask("run", &["--logit-bias=92=100", "-n", "3"]).quiet();
    assert_eq!(free, "}}}\n");
}

#[test]
fn constraints_exclude_each_other() {
    for (one, other) in [
        (["--json", "--choice=a"], ["--json", "--choice"]),
        (
            ["--json-schema={}", "--regex=a"],
            ["--json-schema", "--regex"],
        ),
        (["--grammar=g.lark", "--json"], ["--grammar", "--json"]),
    ] {
        for command in ["run", "generate"] {
            ask(command, &one).refused(2, &other);
        }
    }
}

#[test]
fn invalid_constraint_names_flag() {
    let files = Files::new();
    let broken = files.write("broken.json", "{\"type\": ");
    let lark = files.write("bad.lark", "start: nope\n");
    let gbnf = files.write("bad.gbnf", "root ::= \"a\n");
    let cases: [(&[&str], i32, &[&str]); 10] = [
        (
            &["--json-schema=missing.json"],
            2,
            &["--json-schema", "cannot read missing.json"],
        ),
        (
            &["--json-schema", &broken],
            2,
            &["--json-schema", "broken.json is not valid JSON"],
        ),
        (
            &["--json-schema={"],
            2,
            &["--json-schema", "not valid JSON"],
        ),
        (
            &["--json-schema={\"type\": \"object\", \"not\": {}}"],
            4,
            &["--json-schema", "`not`"],
        ),
        (
            &["--json-schema={\"type\": \"thing\"}"],
            4,
            &["--json-schema", "`type`", "thing"],
        ),
        (&["--regex=("], 4, &["--regex"]),
        (&["--regex=(?=a)b"], 4, &["--regex"]),
        (
            &["--grammar=missing.lark"],
            2,
            &["--grammar", "cannot read missing.lark"],
        ),
        (&["--grammar", &lark], 4, &["--grammar", "nope"]),
        (&["--grammar", &gbnf], 4, &["--grammar", "line 1"]),
    ];
    for (flags, code, words) in cases {
        for command in ["run", "generate"] {
            ask(command, flags).refused(code, words);
        }
    }
}

#[test]
fn truncated_answer_is_reported() {
    for command in ["run", "generate"] {
        let cut = ask(command, &["--regex", "[a-z]{20}", "-n", "5"]);
        assert_eq!(cut.code, 0, "{}", cut.stderr);
        assert!(cut.stderr.contains("incomplete"), "{}", cut.stderr);
        let whole = ask(command, &["--regex", "[a-z]{4}", "-n", "50"]);
        assert!(!whole.stderr.contains("incomplete"), "{}", whole.stderr);
    }
}
