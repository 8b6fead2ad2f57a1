//! Reasoning and answer in every format, for prompts that end in either.

use crate::format_support::{both, case, check, with_calls};
use loquat_text::format::{OutputFormat, ParseOptions, REASONING};

fn reasoning(name: &str) -> OutputFormat {
    OutputFormat::named(Some(name), None).unwrap()
}

#[test]
fn reasoning_and_answer_are_separated() {
    for (format, output, wanted) in [
        (
            "think",
            "<think>\nHm, <b>\n\nso.\n</think>\n\n  Yes. \n",
            "R[Hm, <b>\n\nso.]T[  Yes. \n]",
        ),
        ("think", "\n<think></think>Yes", "T[Yes]"),
        ("think", "<think>\n\n</think>\n\nYes", "T[Yes]"),
        ("think", "<think>cut off </thi", "R[cut off </thi]"),
        ("think", "No thinking < here\n", "T[No thinking < here\n]"),
        (
            "think",
            "Use <think> and </think> so",
            "T[Use <think> and </think> so]",
        ),
        ("think", "<think>a</think>b</think>c", "R[a]T[b</think>c]"),
        ("think", "</think>\nYes", "T[Yes]"),
        ("think", "<think>a <think> b</think>c", "R[a <think> b]T[c]"),
        (
            "think_answer",
            "<think>\na\n</think>\n<answer>\nb\n</answer>",
            "R[a]T[b]",
        ),
        (
            "think_response",
            "<think>a</think><response>b</response>",
            "R[a]T[b]",
        ),
        ("kimi_vl", "◁think▷a◁ ◁/think▷b◁", "R[a◁]T[b◁]"),
        ("gemma4", "<|channel>thought\na\n<channel|>b", "R[a]T[b]"),
        ("gemma4", "<|channel>thought\n<channel|>b", "T[b]"),
        ("mistral", "[THINK]a [1][/THINK]b", "R[a [1]]T[b]"),
        (
            "command",
            "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>",
            "R[a]T[b]",
        ),
        (
            "command_text",
            "<|START_THINKING|>a<|END_THINKING|><|START_TEXT|>b<|END_TEXT|>",
            "R[a]T[b]",
        ),
        (
            "granite",
            "Here is my thought process:\n\na\n\nHere is my response:\n\nb",
            "R[a]T[b]",
        ),
        (
            "granite",
            "Here's my thought process:\na\nHere's my response:\nHere is",
            "R[a]T[Here is]",
        ),
        ("seed", "<seed:think>a</seed:think>b", "R[a]T[b]"),
        ("apertus", "<|inner_prefix|>a<|inner_suffix|>b", "R[a]T[b]"),
        (
            "solar",
            "<|think|>a<|end|><|begin|>assistant<|content|>b<|end|>",
            "R[a]T[b<|end|>]",
        ),
        (
            "kimi_k3",
            "<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|>",
            "R[a]T[b]",
        ),
        ("minimax_m3", "<mm:think>a</mm:think>b", "R[a]T[b]"),
        (
            "hunyuan3",
            "<think:opensource>a</think:opensource>b",
            "R[a]T[b]",
        ),
        (
            "apriel",
            "Here are my reasoning steps:\na\n[BEGIN FINAL RESPONSE]\nb\n[END FINAL RESPONSE]",
            "R[a]T[b]",
        ),
        (
            "harmony",
            "<|channel|>analysis<|message|>a\n<|end|><|start|>assistant<|channel|>final<|message|>b",
            "R[a\n]T[b]",
        ),
    ] {
        check(
            reasoning(format),
            &ParseOptions::default(),
            &case(output, wanted),
        );
    }
}

#[test]
fn prompt_may_end_in_reasoning() {
    let start = ParseOptions {
        in_reasoning: true,
        ..ParseOptions::default()
    };
    for (format, output, wanted) in [
        ("think", "\nHm.\n</think>\n\nYes", "R[Hm.]T[Yes]"),
        ("think", "<think>\nHm.</think>Yes", "R[Hm.]T[Yes]"),
        ("think", "Hm.", "R[Hm.]"),
        ("mistral", "a[/THINK]b", "R[a]T[b]"),
        ("apriel", "a\n[BEGIN FINAL RESPONSE]\nb", "R[a]T[b]"),
        (
            "harmony",
            "a<|end|><|start|>assistant<|channel|>final<|message|>b",
            "R[a]T[b]",
        ),
    ] {
        check(reasoning(format), &start, &case(output, wanted));
    }
}

#[test]
fn reasoning_precedes_calls() {
    for (formats, output, wanted) in [
        (
            ("think", "hermes"),
            "<think>\n<tool_call>?\n</think>\n\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
            "R[<tool_call>?]now({});",
        ),
        (
            ("think", "kimi_k2"),
            "<think>Hm <|tool_calls_section_begin|><|tool_call_begin|>now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>Ok",
            "R[Hm]now#now:0({});T[Ok]",
        ),
        (
            ("think", "kimi_k2"),
            "<think>a <|tool_calls_section_begin|> b</think>c",
            "R[a <|tool_calls_section_begin|> b]T[c]",
        ),
        (
            ("command", "command"),
            "<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[{\"tool_name\": \"now\", \"parameters\": {}}]<|END_ACTION|>",
            "R[a]now({});",
        ),
        (
            ("think", "llama_json"),
            "<think>{</think>\n{\"name\": \"now\", \"parameters\": {}}",
            "R[{]now({});",
        ),
        (
            ("gemma4", "gemma4"),
            "<|channel>thought\na<channel|><|tool_call>call:now{}<tool_call|>",
            "R[a]now({});",
        ),
    ] {
        check(
            both(formats.0, formats.1),
            &with_calls(),
            &case(output, wanted),
        );
    }
}

#[test]
fn prompt_that_opens_reasoning_is_detected() {
    for (format, prompt, open) in [
        ("think", "<|im_start|>assistant\n<think>\n", true),
        ("think", "<｜Assistant｜><think>", true),
        (
            "think",
            "<|im_start|>assistant\n<think>\n\n</think>\n\n",
            false,
        ),
        (
            "think",
            "What is <think>?<|im_end|>\n<|im_start|>assistant\n",
            false,
        ),
        ("think", "", false),
        ("gemma4", "<|turn>model\n<|channel>thought\n", true),
        (
            "gemma4",
            "<|turn>model\n<|channel>thought\n<channel|>",
            false,
        ),
        ("harmony", "<|start|>assistant", false),
        (
            "harmony",
            "<|start|>assistant<|channel|>analysis<|message|>",
            true,
        ),
        (
            "apriel",
            "<|begin_assistant|>\nHere are my reasoning steps:\n",
            true,
        ),
    ] {
        let format = reasoning(format).reasoning.unwrap();
        assert_eq!(format.is_open(prompt), open, "{}: {prompt:?}", format.name);
    }
}

/// Each format reads the texts it writes: opened and closed by them, reasoning and answer are
/// separated.
#[test]
fn open_and_close_texts_are_recognized() {
    for format in REASONING {
        assert!(format.is_open(format.open_text), "{}", format.name);
        let (open, close) = (format.open_text, format.close_text);
        let output = format!("{open}think{close}{}answer", format.answer_text);
        let case = crate::format_support::Case {
            output: output.leak(),
            wanted: "R[think]T[answer]",
        };
        check(reasoning(format.name), &ParseOptions::default(), &case);
    }
}
