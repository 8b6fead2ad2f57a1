//! llama.cpp's notation, with grammars in the style of its examples.

use crate::common::{accepts, answers, compile};
use loquat_grammar::GrammarSource;

struct Case {
    name: &'static str,
    grammar: &'static str,
    taken: &'static [&'static str],
    refused: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        name: "json",
        grammar: r##"
            root   ::= object
            value  ::= object | array | string | number | ("true" | "false" | "null") ws
            object ::=
              "{" ws (
                        string ":" ws value
                ("," ws string ":" ws value)*
              )? "}" ws
            array  ::= "[" ws ( value ("," ws value)* )? "]" ws
            string ::=
              "\"" (
                [^"\\\x7F\x00-\x1F] |
                "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
              )* "\"" ws
            number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,2})? ws
            # at most one break, so that nothing rambles
            ws ::= | " " | "\n" [ \t]{0,20}
        "##,
        taken: &[
            "{}",
            "{\"a\": [1, 2.5e3, {\"b\":null}]}",
            "{ \"a\\u00e9\":\n\t\"x\"} ",
        ],
        refused: &["[]", "{a}", "{\"a\":}", "{}{}", "{\"a\":01}"],
    },
    Case {
        name: "list",
        grammar: "root ::= item+\n\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\u0085\\u2028\\u2029]+ \"\\n\"",
        taken: &["- a\n", "- a\n- é b\n"],
        refused: &["- a", "-a\n", "", "- \n"],
    },
    Case {
        name: "arithmetic",
        grammar: "root  ::= (expr \"=\" ws term \"\\n\")+\nexpr  ::= term ([-+*/] term)*\n\
                  term  ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\n\
                  num   ::= [0-9]+ ws\nws    ::= [ \\t\\n]*",
        taken: &["1+2=3\n", "(a -b1) *3 = x\n", "1=1\n\n2=2\n", "1=(2)\n"],
        refused: &["1+=3\n", "=1\n", "1=1"],
    },
    Case {
        name: "c-like",
        grammar: r#"
            root ::= (declaration)*
            declaration ::= dataType identifier "(" parameter? ")" "{" statement* "}"
            dataType ::= "int" ws | "float" ws | "char" ws
            identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*
            parameter ::= dataType identifier
            statement ::= ( dataType identifier ws "=" ws expression ";" ) |
                ( identifier ws "=" ws expression ";" ) | ( "return" ws expression ";" )
            expression ::= term (ws ("+" | "-") ws term)*
            term ::= factor (ws ("*" | "/") ws factor)*
            factor ::= identifier | number | "(" expression ")"
            number ::= [0-9]+
            ws ::= ([ \t\n]+)
        "#,
        taken: &[
            "",
            "int f(char x){return x * (2 + int1);}",
            "float g(){int y = 1;intx = y;return 0;}",
        ],
        refused: &["int f{}", "int f(){return;}", "intf(){}"],
    },
    Case {
        name: "chess",
        grammar: "root ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\n\
                  move ::= (pawn | nonpawn | castle) [+#]?\n\
                  nonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n\
                  pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\ncastle ::= \"O-O\" \"-O\"?",
        taken: &["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 e5\n12. O-O-O# exd8=Q+\n"],
        refused: &["1. e9 e5\n2. e4 e5\n", "1. e4 e5\n"],
    },
    Case {
        name: "greedy terminals",
        grammar: "root ::= line root?\nline ::= word+ \"b\" tail\nword ::= [a-z]*\ntail ::= \"ab\"* \"a\" \"\\n\"",
        taken: &["ba\n", "abba\n", "bababa\nba\n"],
        refused: &["b\n", "a\n"],
    },
    Case {
        name: "nested",
        grammar: "root ::= \"[\" ws (root (\",\" ws root)*)? \"]\" ws\nws ::= \" \"?",
        taken: &["[]", "[[], [[],[]]] "],
        refused: &["[", "[,]", "[]  "],
    },
    Case {
        name: "repeated repetitions",
        grammar: "root ::= ((\"a\"{2})* \"b\"?){0,2} (root \"!\")? (\"c\"+)?",
        taken: &["", "aab", "aabaabcc", "aa!c", "c!c", "baab!"],
        refused: &["a", "bbb", "aabaabaacc"],
    },
    Case {
        name: "any character",
        grammar: "root ::= . \"é\" .{2} [^] [\\]\\[^a\\-z-] \"\\U0001F642\\\"\"",
        taken: &["xéab\n-🙂\"", "日éßß🙂z🙂\"", "xéabc]🙂\""],
        refused: &["xeabc-🙂\"", "xéabcb🙂\""],
    },
];

fn gbnf(text: &str) -> GrammarSource {
    GrammarSource::Gbnf(text.to_string())
}

#[test]
fn gbnf_matches_llama_cpp_semantics() {
    for case in CASES {
        let grammar = compile(&gbnf(case.grammar));
        for text in case.taken {
            assert!(
                accepts(&grammar, text),
                "{}: {text:?} is refused",
                case.name
            );
        }
        for text in case.refused {
            assert!(!accepts(&grammar, text), "{}: {text:?} is taken", case.name);
        }
    }
}

#[test]
fn random_derivations_are_accepted() {
    for case in CASES {
        let grammar = compile(&gbnf(case.grammar));
        for text in answers(&grammar, 6, 300) {
            assert!(accepts(&grammar, &text), "{}: {text:?}", case.name);
        }
    }
}

#[test]
fn json_grammar_yields_json() {
    let json = CASES
        .iter()
        .find(|case| case.name == "json")
        .expect("the grammar");
    let answers = answers(&compile(&gbnf(json.grammar)), 20, 500);
    assert!(!answers.is_empty());
    for answer in answers {
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(&answer);
        assert!(parsed.is_ok(), "{answer:?}");
    }
}
