//! Choices, regular expressions and grammars, and the guarantees of every constraint.

use std::sync::Arc;

use crate::common::{Walker, accepts, answers, compile, grammars, refusal, tokenizer};
use loquat_engine::{Constraint, TokenMask};
use loquat_grammar::{GrammarSource, Grammars};
use regex::Regex;

fn lark(text: &str) -> GrammarSource {
    GrammarSource::Lark(text.to_string())
}

fn regex(pattern: &str) -> GrammarSource {
    GrammarSource::Regex(pattern.to_string())
}

#[test]
fn choice_admits_only_its_strings() {
    let choices = [
        "yes",
        "yes, but",
        "no",
        "\"quoted\"\n\ttwo lines\\",
        "日本語 🙂",
        "",
        "\u{7f}",
    ];
    let choices: Vec<String> = choices.map(str::to_string).into();
    let grammar = compile(&GrammarSource::Choice(choices.clone()));
    for choice in &choices {
        assert!(accepts(&grammar, choice), "{choice:?}");
    }
    for other in ["y", "yes,", "yesno", "No", "日本"] {
        assert!(!accepts(&grammar, other), "{other:?}");
    }
    for answer in answers(&grammar, 30, 100) {
        assert!(choices.contains(&answer), "{answer:?}");
    }
}

#[test]
fn regex_matches_the_whole_answer() {
    let patterns = [
        r"[a-z]+@[a-z]+\.(com|org)",
        r"^\d{3}-\d{4}$",
        r"(?i)hello( w[oö]rld)?",
        r"a/b\/c|x{2,4}",
        r"(a|b)*abb",
        r"\p{Lu}\p{Ll}{1,5}",
        r"",
    ];
    for pattern in patterns {
        let anchored = Regex::new(&format!("^(?:{pattern})$")).expect("a pattern");
        let answers = answers(&compile(&regex(pattern)), 12, 200);
        assert!(!answers.is_empty(), "{pattern}");
        for answer in answers {
            assert!(anchored.is_match(&answer), "{answer:?} for {pattern}");
        }
    }
}

#[test]
fn invalid_grammar_is_refused_with_reason() {
    let cases = [
        (GrammarSource::Choice(Vec::new()), "the choice is empty"),
        (regex("(?=a)b"), "look-around"),
        (regex(r"(a)\1"), "backreferences"),
        (regex("a\\"), "backslash"),
        (regex("["), "unclosed"),
        (regex(r"[^\x00-\x{10FFFF}]"), "admits no text"),
        (lark("start: \"a\nb: \"c\""), "line 1"),
        (lark("start: missing"), "missing"),
        (lark("other: \"a\""), "start"),
        (lark("start: \"a\" start"), "Too many items"),
        (lark("start: %json {\"not\": {}}"), "`not` at `#`"),
        (lark("start: %json {\"type\""), "invalid JSON"),
        (
            GrammarSource::Gbnf("root ::= x".to_string()),
            "line 1, column 10",
        ),
    ];
    for (source, reason) in cases {
        let refused = refusal(&source).to_string();
        assert!(refused.contains(reason), "{refused:?} for {source:?}");
    }
}

#[test]
fn lark_grammar_may_contain_schemas() {
    let grammar = compile(&lark(
        "start: \"<\" value \">\"\n# a \"comment\" %json {\nvalue: %json {\n  \"type\": \"array\",\n  \
         \"items\": {\"type\": \"integer\", \"maximum\": 9, \"minimum\": 0}\n}\n",
    ));
    assert!(
        accepts(&grammar, "<[1, 2]>")
            && !accepts(&grammar, "<[1,2]>")
            && !accepts(&grammar, "<[10]>")
    );
    let misplaced = lark("start: a\na: %json {\n\n\n\"type\": \"null\"}\nb: ?");
    let refused = refusal(&misplaced).to_string();
    assert!(refused.contains("line 6"), "{refused}");
}

#[test]
fn special_tokens_need_a_grammar_reference() {
    let tokenizer = tokenizer();
    let special = (0..tokenizer.vocab_size() as u32)
        .find(|id| tokenizer.is_special(*id) && !tokenizer.eos_ids().contains(id));
    let special = special.expect("a special token that ends nothing");
    let mut mask = TokenMask::none(tokenizer.vocab_size());
    let mut free = compile(&regex("(?s:.*)")).constraint();
    free.allowed(&mut mask).expect("a mask");
    assert!(!mask.contains(special));
    assert!(tokenizer.eos_ids().iter().all(|end| mask.contains(*end)));
    let mut named = compile(&lark(&format!("start: <[{special}]> \"a\""))).constraint();
    assert_eq!(named.forced().expect("tokens").first(), Some(&special));
}

#[test]
fn end_is_allowed_only_when_complete() {
    let tokenizer = tokenizer();
    let mut constraint = compile(&regex("ab?c{2}")).constraint();
    let mut mask = TokenMask::none(tokenizer.vocab_size());
    let end = tokenizer.eos_ids()[0];
    for byte in ["a", "c", "c"] {
        assert!(!constraint.is_complete());
        constraint.allowed(&mut mask).expect("a mask");
        assert!(!mask.contains(end), "before {byte}");
        constraint
            .accept(tokenizer.token_id(byte).expect(byte))
            .expect(byte);
    }
    assert!(constraint.is_complete(), "no token can follow");

    let mut open = compile(&regex("a+")).constraint();
    open.accept(tokenizer.token_id("a").expect("a")).expect("a");
    open.allowed(&mut mask).expect("a mask");
    assert!(mask.contains(end) && !open.is_complete(), "more can follow");
    open.accept(end).expect("the end");
    assert!(open.is_complete());
}

#[test]
fn disallowed_token_fails_with_readable_error() {
    let tokenizer = tokenizer();
    let mut constraint = compile(&regex("abc")).constraint();
    let error = constraint
        .accept(tokenizer.token_id("x").expect("x"))
        .expect_err("x")
        .to_string();
    assert!(
        error.starts_with("the answer cannot continue in its grammar"),
        "{error}"
    );
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn forks_are_independent() {
    let tokenizer = tokenizer();
    let id = |text: &str| tokenizer.token_id(text).expect("a byte");
    let mut one = compile(&lark("start: \"a\" (\"b\" | \"c\" \"d\")")).constraint();
    one.accept(id("a")).expect("a");
    let mut other = one.clone();
    one.accept(id("b")).expect("b");
    assert!(one.is_complete() && !other.is_complete());
    other.accept(id("c")).expect("c");
    assert_eq!(other.forced().expect("tokens"), [id("d")]);
}

#[test]
fn padding_logits_are_never_allowed() {
    let tokenizer = tokenizer();
    let (size, wider) = (tokenizer.vocab_size(), tokenizer.vocab_size() + 100);
    let grammars = Grammars::new(tokenizer.clone(), wider);
    let mut constraint = grammars
        .compile(&regex("(?s:.*)"))
        .expect("a grammar")
        .constraint();
    let mut mask = TokenMask::none(wider);
    constraint.allowed(&mut mask).expect("a mask");
    assert!((size..wider).all(|id| !mask.contains(id as u32)));
    assert!(mask.contains(tokenizer.token_id("a").expect("a")));
}

#[test]
fn threads_share_compiled_grammars() {
    let grammars = Arc::new(grammars());
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let grammars = grammars.clone();
            scope.spawn(move || {
                let source = regex(&format!("[a-f]{{{}}}", 1 + seed % 3));
                let grammar = grammars.compile(&source).expect("a grammar");
                let walked = Walker::bytes(seed).walk(&mut grammar.constraint(), 10);
                assert_eq!(walked.0.len() as u64, 1 + seed % 3);
            });
        }
    });
}
