//! Tool calls in every format: complete, several, with text around them, ambiguous and invalid.

use crate::format_support::{Case, both, calls, case, check, tools, with_calls};
use loquat_text::format::ParseOptions;

fn check_all(format: &str, cases: &[Case]) {
    for each in cases {
        check(calls(format), &with_calls(), each);
    }
}

#[test]
fn hermes() {
    check_all(
        "hermes",
        &[
            case(
                "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
                r#"weather({"city": "Paris"});"#,
            ),
            case(
                "Let me look. \n<tool_call>{\"name\":\"weather\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"arguments\": {\"a\": [1, {\"b\": null}]}, \"name\": \"now\"}\n</tool_call>\nDone. ",
                r#"T[Let me look.]weather({});now({"a": [1, {"b": null}]});T[Done. ]"#,
            ),
            case(
                r#"<tool_call>{"name": "f", "arguments": {"a": "</tool_call> } \" \\ é 😀 \u00e9"}}</tool_call>"#,
                r#"f({"a": "</tool_call> } \" \\ é 😀 \u00e9"});"#,
            ),
            // Raw line breaks in strings, arguments as a string, none at all, and keys of no matter.
            case(
                "<tool_call>{\"thought\": {\"x\": 1}, \"name\": \"f\", \"arguments\": {\"a\": \"1\n2\"}}</tool_call>",
                r#"f({"a": "1\n2"});"#,
            ),
            case(
                r#"<tool_call>{"name": "f", "arguments": "{\"a\": 1}", "id": 7}</tool_call>"#,
                r#"f({"a": 1});"#,
            ),
            case(r#"<tool_call>{"name": "f"}</tool_call>"#, "f({});"),
            case(
                r#"<tool_call>{"id": "x1", "name": "f", "arguments": null}</tool_call>"#,
                "f#x1({});",
            ),
            // A list, two objects in one, a missing brace, no closing marker.
            case(
                r#"<tool_call>[{"name": "f", "arguments": {}}, {"name": "g"}]</tool_call>"#,
                "f({});g({});",
            ),
            case(
                "<tool_call>{\"name\": \"f\"}\n{\"name\": \"g\"}</tool_call>",
                "f({});g({});",
            ),
            case(
                r#"<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> Hm"#,
                r#"f({"a": 1});T[ Hm]"#,
            ),
            case(
                r#"<tool_call>{"name": "f", "arguments": {"a": 1}}"#,
                r#"f({"a": 1});"#,
            ),
            // Broken before the call is known to be one: text, to the letter.
            case(
                " <tool_call>\nno json </tool_call>",
                "T[ <tool_call>\nno json </tool_call>]",
            ),
            case(
                "<tool_call>{\"name\": 3}</tool_call>",
                "T[<tool_call>{\"name\": 3}</tool_call>]",
            ),
            case("<tool_call>{}</tool_call>", "T[<tool_call>{}</tool_call>]"),
            case("<tool_call>[]</tool_call>", "T[<tool_call>[]</tool_call>]"),
            case(
                "a <tool_call> {\"name\": \"f\"",
                "T[a <tool_call> {\"name\": \"f\"]",
            ),
            case("a <tool_ca", "T[a <tool_ca]"),
            case(
                "<tool_call>\n<tool_call>{\"name\": \"f\"}</tool_call>",
                "T[<tool_call>]f({});",
            ),
            // Invalid later: the arguments so far, and no end.
            case(
                r#"<tool_call>{"name": "f", "arguments": {"a": "x"#,
                r#"f({"a": "x)…"#,
            ),
            case(
                r#"<tool_call>{"name": "f", "arguments": {"a": 12"#,
                r#"f({"a": 12)…"#,
            ),
            case(
                r#"<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call><tool_call>{"name": "g"}</tool_call>"#,
                r#"f({"a": oops}})…g({});"#,
            ),
        ],
    );
}

#[test]
fn qwen3_coder() {
    check_all(
        "qwen3_coder",
        &[
            case(
                "Yes.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork \"é\" {1}\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=detailed>\nTrue\n</parameter>\n</function>\n</tool_call>",
                r#"T[Yes.]weather({"city":"New\nYork \"é\" {1}","days":3,"detailed":true});"#,
            ),
            case(
                "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n<parameter=tags>\n[\"a\", {\"b\": null}]\n</parameter>\n<parameter=place>\n{'x': 1.5}\n</parameter>\n</function>\n</tool_call>",
                r#"now({});weather({"tags":["a", {"b": null}],"place":{"x":1.5}});"#,
            ),
            // Padding is one line break; the schema decides; unknown parameters are parsed by their
            // look.
            case(
                "<tool_call><function=weather><parameter=city>\n\n7\n\n</parameter><parameter=note>null</parameter><parameter=more>7</parameter><parameter=days>soon</parameter></function></tool_call>",
                r#"weather({"city":"\n7\n","note":null,"more":7,"days":"soon"});"#,
            ),
            case(
                "<tool_call><function=weather><parameter=city>a </function> < </tool_call> b</parameter></function></tool_call>",
                r#"weather({"city":"a </function> < </tool_call> b"});"#,
            ),
            // Without the outer marker, and without the inner end.
            case(
                "Ok\n<function=now>\n</function>\n</tool_call>\nDone",
                "T[Ok]now({});T[Done]",
            ),
            case("<tool_call>\n<function=now>\n</tool_call>", "now({});"),
            case(
                "<tool_call>\n<function=now>",
                "T[<tool_call>\n<function=now>]",
            ),
            case("<tool_call>\n<functional>", "T[<tool_call>\n<functional>]"),
            case(
                "<tool_call> <tool_call> <function=now></function></tool_call>",
                "T[<tool_call>]now({});",
            ),
            case(
                "<tool_call>\n<function=weather>\n<parameter=city>\nPar",
                r#"weather({"city":"Par)…"#,
            ),
            case(
                "<tool_call>\n<function=weather>\n<parameter=days>\n1",
                r#"weather({"days":1)…"#,
            ),
            case(
                "<tool_call><function=weather><parameter=days>1</parameter>?</function></tool_call>T",
                r#"weather({"days":1?</function>)…T[T]"#,
            ),
        ],
    );
}

#[test]
fn llama_json() {
    check_all(
        "llama_json",
        &[
            case(
                "\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}",
                r#"weather({"city": "Paris"});"#,
            ),
            case(
                r#"{"name": "weather", "parameters": {}}; {"name": "now", "parameters": {"a": 1}}"#,
                r#"weather({});now({"a": 1});"#,
            ),
            case(
                r#"<|python_tag|>{"name": "weather", "parameters": {}}"#,
                "weather({});",
            ),
            case(
                r#"Ok <|python_tag|>{"name": "unheard", "parameters": {}}"#,
                "T[Ok]unheard({});",
            ),
            case(
                r#"{"type": "function", "name": "now", "parameters": {}}"#,
                "now({});",
            ),
            case(
                r#"[{"name": "now", "parameters": {}}, {"name": "now"}]"#,
                "now({});now({});",
            ),
            case(
                r#"{"name": "now", "parameters": {}} and more"#,
                "now({});T[ and more]",
            ),
            // Plain answers stay unchanged.
            case(
                r#"{"name": "unheard", "parameters": {}}"#,
                r#"T[{"name": "unheard", "parameters": {}}]"#,
            ),
            case(
                " { \"city\": \"Paris\" }\n",
                "T[ { \"city\": \"Paris\" }\n]",
            ),
            case(r#"{"name": "now"#, r#"T[{"name": "now]"#),
            case("[1, 2]", "T[[1, 2]]"),
            case("{}", "T[{}]"),
            case("See {\"name\": \"now\"}", "T[See {\"name\": \"now\"}]"),
            case(
                r#"{"name": "now", "parameters": {}}; {"name": "unheard"}"#,
                r#"now({});T[; {"name": "unheard"}]"#,
            ),
            case(
                "<|python_tag|>print(\"x\")<|python_tag|>{\"name\": \"now\"}",
                "T[<|python_tag|>print(\"x\")]now({});",
            ),
        ],
    );
}

#[test]
fn forced_call_needs_no_known_tool() {
    let start = ParseOptions {
        calls_forced: true,
        ..with_calls()
    };
    let each = case(r#"{"name": "unheard", "parameters": {}}"#, "unheard({});");
    check(calls("llama_json"), &start, &each);
}

#[test]
fn truncated_forced_call_is_not_text() {
    let start = ParseOptions {
        calls_forced: true,
        ..with_calls()
    };
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"P";
    let name_ends = call.find(", ").expect("a comma");
    for cut in 0..name_ends {
        check(calls("hermes"), &start, &case(&call[..cut], ""));
    }
    let each = case(call, r#"weather({"city": "P)…"#);
    check(calls("hermes"), &start, &each);
}

#[test]
fn llama_pythonic() {
    check_all(
        "llama_pythonic",
        &[
            case(
                r#"[weather(city="Paris", days=3, detailed=True, note=None), now()]"#,
                r#"weather({"city":"Paris","days":3,"detailed":true,"note":null});now({});"#,
            ),
            case(
                "<|python_start|>[ weather( tags = ['a', (1, 2.5)], place={'x': {\"y\": -1}}, ) ]<|python_end|>",
                r#"weather({"tags":["a",[1,2.5]],"place":{"x":{"y":-1}}});"#,
            ),
            case(
                r#"[weather(city='it\'s "é" \n )]')]"#,
                r#"weather({"city":"it's \"é\" \n )]"});"#,
            ),
            case("[now()]\nWell", "now({});T[Well]"),
            case("[unheard(a=1)]", "T[[unheard(a=1)]]"),
            case("[link](url)", "T[[link](url)]"),
            case("[weather(\"Paris\")]", "T[[weather(\"Paris\")]]"),
            case("[1, 2]", "T[[1, 2]]"),
            case("A [now()]", "T[A [now()]]"),
            case("[now(), unheard()]", "now({});T[, unheard()]]"),
            case("[weather(city=Paris)]", r#"weather({"city":Paris)])…"#),
            case("[weather(city=\"Par", r#"weather({"city":"Par)…"#),
        ],
    );
}

#[test]
fn mistral() {
    check_all(
        "mistral",
        &[
            case(
                "[TOOL_CALLS]weather[ARGS]{\"city\": \"[ARGS] é\"}[TOOL_CALLS]now[CALL_ID]abc123xyz[ARGS]{}",
                r#"weather({"city": "[ARGS] é"});now#abc123xyz({});"#,
            ),
            case(
                "Sure. [TOOL_CALLS]weather{\"a\": 1}",
                r#"T[Sure.]weather({"a": 1});"#,
            ),
            case("[TOOL_CALLS][ARGS]{}", "T[[TOOL_CALLS][ARGS]{}]"),
            case(
                "[TOOL_CALLS]two words[ARGS]{}",
                "T[[TOOL_CALLS]two words[ARGS]{}]",
            ),
            case("[TOOL_CALLS]now[ARGS]", "T[[TOOL_CALLS]now[ARGS]]"),
            case("[TOOL_CALLS]now[ARGS]{\"a", "now({\"a)…"),
            case("[TOOL_", "T[[TOOL_]"),
        ],
    );
    check_all(
        "mistral_list",
        &[
            case(
                r#"[TOOL_CALLS] [{"name": "weather", "arguments": {"a": [1]}, "id": "abc123xyz"}, {"id": "x", "name": "now", "arguments": {}}]"#,
                r#"weather({"a": [1]});now#x({});"#,
            ),
            case("[TOOL_CALLS][{\"name\": \"now\"},]\nT", "now({});T[T]"),
            case("[TOOL_CALLS][]", "T[[TOOL_CALLS][]]"),
            case(
                "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}, oops]",
                "now({});T[, oops]]",
            ),
        ],
    );
}

#[test]
fn deepseek() {
    check_all(
        "deepseek_v3",
        &[
            case(
                "Hm<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"```\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                r#"T[Hm]weather({"city": "```"});now({});"#,
            ),
            case(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>.",
                "now({});T[.]",
            ),
            case(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now",
                "T[<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now]",
            ),
        ],
    );
    check_all(
        "deepseek_v31",
        &[
            case(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"a\": {\"b\": []}}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                r#"weather({"a": {"b": []}});now({});"#,
            ),
            case(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"a\": 1 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                r#"weather({"a": 1 2})…now({});"#,
            ),
        ],
    );
    check_all(
        "deepseek_v32",
        &[case(
            "Ok\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">7 < 8</｜DSML｜parameter>\n<｜DSML｜parameter name=\"x\" string=\"false\">[1, \"2\"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            r#"T[Ok]weather({"city":"7 < 8","x":[1, "2"]});now({});"#,
        )],
    );
    check_all(
        "deepseek_v4",
        &[case(
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "now({});",
        )],
    );
}

#[test]
fn glm() {
    for format in ["glm45", "glm47"] {
        check_all(
            format,
            &[
                case(
                    "Ok\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>a\n\"b\" </arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
                    r#"T[Ok]weather({"city":"a\n\"b\" ","days":3});now({});"#,
                ),
                case(
                    "<tool_call>weather<arg_key>tags</arg_key><arg_value>[]</arg_value></tool_call><tool_call>now</tool_call>",
                    r#"weather({"tags":[]});now({});"#,
                ),
                case(
                    "<tool_call>two words</tool_call>",
                    "T[<tool_call>two words</tool_call>]",
                ),
                case(
                    "<tool_call>weather\n<arg_key>city</arg_key>\nParis",
                    "weather({\"city\":\nParis)…",
                ),
                case("<tool_call>{\"name\": 1}", "T[<tool_call>{\"name\": 1}]"),
            ],
        );
    }
    check_all(
        "hunyuan3",
        &[case(
            "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>x</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
            r#"weather({"city":"x"});now({});"#,
        )],
    );
}

#[test]
fn kimi_k2() {
    check_all(
        "kimi_k2",
        &[
            case(
                "Ok <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"x\"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
                r#"T[Ok]weather#functions.weather:0({"city": "x"});now#functions.now:1({});"#,
            ),
            case(
                "<|tool_call_begin|>ns:now<|tool_call_argument_begin|>{}<|tool_call_end|>",
                "ns:now({});",
            ),
            case(
                "<|tool_calls_section_begin|><|tool_call_begin|>now:2<|tool_call_argument_begin|> <|tool_call_end|><|tool_calls_section_end|>\nT",
                "now#now:2({});T[T]",
            ),
            case(
                "<|tool_calls_section_begin|><|tool_calls_section_end|>",
                "T[<|tool_calls_section_begin|><|tool_calls_section_end|>]",
            ),
        ],
    );
}

#[test]
fn gemma() {
    check_all(
        "gemma4",
        &[
            case(
                "<|tool_call>call:weather{city:<|\"|>a, \"b\" {c}<|\"|>,days:3,tags:[<|\"|>x<|\"|>,true,null],place:{y:-1.5}}<tool_call|><|tool_call>call:now{}<tool_call|>",
                r#"weather({"city":"a, \"b\" {c}","days":3,"tags":["x",true,null],"place":{"y":-1.5}});now({});"#,
            ),
            case(
                "Ok<|tool_call>call:weather{city:Paris}<tool_call|>",
                r#"T[Ok]weather({"city":"Paris"});"#,
            ),
            case(
                "<|tool_call>now{}<tool_call|>",
                "T[<|tool_call>now{}<tool_call|>]",
            ),
            case(
                "<|tool_call>call:weather{city:<|\"|>Par",
                r#"weather({"city":"Par)…"#,
            ),
            case(
                "<|tool_call>call:weather{city:<|\"|>Par<|",
                r#"weather({"city":"Par<|)…"#,
            ),
            case(
                "<|tool_call>call:weather{days}<tool_call|>T",
                "weather({days})…T[T]",
            ),
        ],
    );
    check_all(
        "functiongemma",
        &[case(
            "<start_function_call>call:weather{city:<escape>x\ny<escape>,days:1}<end_function_call>",
            r#"weather({"city":"x\ny","days":1});"#,
        )],
    );
    check_all(
        "gemma3",
        &[
            case(
                "Look:\n```tool_code\nweather(city=\"x\")\nnow()\n```\nDone",
                r#"T[Look:]weather({"city":"x"});now({});T[Done]"#,
            ),
            case(
                "```tool_code\nimport os\n```",
                "T[```tool_code\nimport os\n```]",
            ),
        ],
    );
}

#[test]
fn lists_of_json_objects() {
    for (format, open, close) in [
        ("granite", "<|tool_call|>", ""),
        ("granite", "<tool_call>", ""),
        ("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
        ("tool_calls_list", "<tool_calls>", "</tool_calls>"),
        ("minimax_m1", "<tool_calls>\n", "\n</tool_calls>"),
        ("functools", "functools", ""),
        ("lfm2", "<|tool_call_start|>", "<|tool_call_end|>"),
        ("xlam", "", ""),
    ] {
        let list =
            r#"[{"name": "weather", "arguments": {"a": "]"}}, {"name": "now", "arguments": {}}]"#;
        let output = format!("{open}{list}{close}");
        let case = Case {
            output: output.leak(),
            wanted: r#"weather({"a": "]"});now({});"#,
        };
        check(calls(format), &with_calls(), &case);
    }
}

#[test]
fn other_json_objects() {
    check_all(
        "minimax_m1",
        &[case(
            "<tool_calls>\n{\"name\": \"weather\", \"arguments\": {}}\n{\"name\": \"now\", \"arguments\": {}}\n</tool_calls>",
            "weather({});now({});",
        )],
    );
    check_all(
        "command",
        &[
            case(
                "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"x\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"now\", \"parameters\": {}}\n]<|END_ACTION|>",
                r#"weather#0({"city": "x"});now#1({});"#,
            ),
            case(
                "<|START_ACTION|>none<|END_ACTION|>",
                "T[<|START_ACTION|>none<|END_ACTION|>]",
            ),
        ],
    );
    check_all(
        "command_r",
        &[case(
            "I will.\nAction:\n```json\n[\n    {\n        \"tool_name\": \"now\",\n        \"parameters\": {}\n    }\n]\n```",
            "T[I will.]now({});",
        )],
    );
    check_all(
        "apertus",
        &[case(
            "<|tools_prefix|>[{\"weather\": {\"city\": \"x\"}}, {\"now\": {}}]<|tools_suffix|>",
            r#"weather({"city": "x"});now({});"#,
        )],
    );
    check_all(
        "internlm2",
        &[case(
            "Ok<|action_start|><|plugin|>\n{\"name\": \"now\", \"parameters\": {}}<|action_end|>",
            "T[Ok]now({});",
        )],
    );
    check_all(
        "gigachat31",
        &[case(
            "<|function_call|>{\"name\": \"now\", \"arguments\": {}}",
            "now({});",
        )],
    );
    check_all(
        "gigachat3",
        &[
            case(
                "Ok<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"now\", \"arguments\": {}}",
                "T[Ok]now({});",
            ),
            case(
                "function call<|role_sep|>\n{\"name\": \"now\", \"arguments\": {}}",
                "now({});",
            ),
        ],
    );
    check_all(
        "granite_20b",
        &[case(
            "<function_call> {\"name\": \"now\", \"arguments\": {}}\n<function_call> {\"name\": \"now\", \"arguments\": {}}",
            "now({});now({});",
        )],
    );
    check_all(
        "functools",
        &[case("import functools\n", "T[import functools\n]")],
    );
}

#[test]
fn other_tags() {
    check_all(
        "minimax_m2",
        &[
            case(
                "Ok\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">\"a\"\n</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>\n",
                r#"T[Ok]weather({"city":"\"a\"\n","days":2});now({});"#,
            ),
            case(
                "<minimax:tool_call>\n<invoke>",
                "T[<minimax:tool_call>\n<invoke>]",
            ),
        ],
    );
    check_all(
        "seed",
        &[case(
            "<seed:tool_call>\n<function=weather>\n<parameter=city>\nx</parameter>\n</function>\n</seed:tool_call>",
            r#"weather({"city":"\nx"});"#,
        )],
    );
    check_all(
        "minicpm5",
        &[case(
            "<function name=\"weather\"><param name=\"city\">x</param></function><function name=\"now\"></function>",
            r#"weather({"city":"x"});now({});"#,
        )],
    );
    check_all(
        "function_tag",
        &[
            case(
                "<function=weather>{\"city\": \"x\"}</function>",
                r#"weather({"city": "x"});"#,
            ),
            case(
                "<function=weather>x</function>",
                "T[<function=weather>x</function>]",
            ),
        ],
    );
    check_all(
        "solar",
        &[case(
            "<|tool_calls|><|tool_call:begin|>a1b2<|tool_call:name|>weather<|tool_call:args|>{\"city\": \"x\"}<|tool_call:end|><|tool_call:begin|>c3<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|>",
            r#"weather#a1b2({"city": "x"});now#c3({});"#,
        )],
    );
    check_all(
        "lfm2",
        &[
            case(
                "<|tool_call_start|>[weather(city='x', days=1), now()]<|tool_call_end|>Checking.",
                r#"weather({"city":"x","days":1});now({});T[Checking.]"#,
            ),
            case("<|tool_call_start|>now()<|tool_call_end|>", "now({});"),
        ],
    );
}

#[test]
fn harmony() {
    let format = both("harmony", "harmony");
    for each in [
        case(
            "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"<|x\"}<|call|>",
            r#"R[Think.]weather({"city": "<|x"});"#,
        ),
        case(
            " to=functions.now<|channel|>commentary <|constrain|>json<|message|>{}",
            "now({});",
        ),
        case(
            "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant to=functions.now<|channel|>commentary json<|message|><|call|><|start|>assistant<|channel|>final<|message|>Done.\n<|return|>",
            "T[I will look.]now({});T[Done.\n]",
        ),
        case("<|channel|>final<|message|>{\"a\": 1}", "T[{\"a\": 1}]"),
        case("Plain text", "T[Plain text]"),
        case(
            "<|channel|>analysis<|message|>a<|channel|>final<|message|>b",
            "R[a]T[b]",
        ),
        case(
            "<|channel|>commentary to=functions.now",
            "T[<|channel|>commentary to=functions.now]",
        ),
        case(
            "<|channel|>commentary to=functions.now<|message|>oops<|call|>",
            "T[<|channel|>commentary to=functions.now<|message|>oops]",
        ),
        case(
            "<|channel|>commentary to=functions.now<|message|>{\"a\": 1",
            "now({\"a\": 1)…",
        ),
        case(
            "<|channel|>commentary to=functions.now<|message|>{a}<|call|>",
            "now({a})…",
        ),
        case(
            "<|channel|>analysis to=python<|message|>1+1<|call|>",
            "R[1+1]",
        ),
        case(
            "<|channel|>commentary to=now<|message|>{}<|call|>",
            "now({});",
        ),
    ] {
        check(format, &with_calls(), &each);
    }
    let off = ParseOptions {
        calls: false,
        ..with_calls()
    };
    let header = "<|channel|>commentary to=functions.now<|message|>{}";
    check(
        format,
        &off,
        &case(
            header,
            "T[<|channel|>commentary to=functions.now<|message|>{}]",
        ),
    );
}

#[test]
fn calls_are_text_when_not_parsed() {
    let off = ParseOptions {
        tools: tools(),
        ..ParseOptions::default()
    };
    for (format, output, wanted) in [
        (
            "hermes",
            "<tool_call>{\"name\": \"now\"}</tool_call> ",
            "T[<tool_call>{\"name\": \"now\"}</tool_call> ]",
        ),
        (
            "llama_json",
            "{\"name\": \"now\"}",
            "T[{\"name\": \"now\"}]",
        ),
        (
            "mistral",
            "[TOOL_CALLS]now[ARGS]{}",
            "T[[TOOL_CALLS]now[ARGS]{}]",
        ),
    ] {
        check(calls(format), &off, &case(output, wanted));
    }
}
