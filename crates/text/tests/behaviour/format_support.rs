//! Helpers of the format tests: a compact notation of the expected pieces.

use loquat_synthetic::SplitMix64;
use loquat_text::format::{OutputFormat, OutputParser, OutputPiece, ParseOptions, ToolSignature};
use serde_json::json;

/// One output and its expected pieces.
///
/// In `wanted`, `R[…]` is reasoning, `T[…]` text, `name#id(arguments);` a call; a call without its
/// end has `…` instead of `;`.
pub struct Case {
    pub output: &'static str,
    pub wanted: &'static str,
}

pub const fn case(output: &'static str, wanted: &'static str) -> Case {
    Case { output, wanted }
}

/// The tools that the cases call.
pub fn tools() -> Vec<ToolSignature> {
    let tool = |name: &str, properties| ToolSignature {
        name: name.to_owned(),
        parameters: json!({"type": "object", "properties": properties}),
    };
    vec![
        tool(
            "weather",
            json!({
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "detailed": {"type": "boolean"},
                "note": {"type": ["string", "null"]},
                "tags": {"type": "array"},
                "place": {"type": "object"},
            }),
        ),
        tool("now", json!({})),
    ]
}

pub fn with_calls() -> ParseOptions {
    ParseOptions {
        calls: true,
        tools: tools(),
        ..ParseOptions::default()
    }
}

pub fn calls(name: &str) -> OutputFormat {
    OutputFormat::named(None, Some(name)).unwrap()
}

pub fn both(reasoning: &str, calls: &str) -> OutputFormat {
    OutputFormat::named(Some(reasoning), Some(calls)).unwrap()
}

/// Parses an output that arrives in these parts.
pub fn parse<'a>(
    format: OutputFormat,
    start: &ParseOptions,
    parts: impl IntoIterator<Item = &'a str>,
) -> Vec<OutputPiece> {
    let mut parser = OutputParser::new(format, start.clone());
    let mut pieces: Vec<_> = parts.into_iter().flat_map(|it| parser.push(it)).collect();
    pieces.extend(parser.finish());
    pieces
}

/// Pieces in the notation of [`Case`].
pub fn show(pieces: &[OutputPiece]) -> String {
    let mut out = String::new();
    let mut open = "";
    let mut call = false;
    for piece in pieces {
        let kind = match piece {
            OutputPiece::Reasoning(_) => "R[",
            OutputPiece::Text(_) => "T[",
            _ => "",
        };
        if !open.is_empty() && open != kind {
            out.push(']');
            open = "";
        }
        if call
            && !matches!(
                piece,
                OutputPiece::CallArguments { .. } | OutputPiece::CallEnd { .. }
            )
        {
            out.push_str(")…");
            call = false;
        }
        match piece {
            OutputPiece::Reasoning(text) | OutputPiece::Text(text) => {
                assert!(!text.is_empty(), "an empty piece: {pieces:?}");
                if open.is_empty() {
                    out.push_str(kind);
                    open = kind;
                }
                out.push_str(text);
            }
            OutputPiece::CallStart { name, id, .. } => {
                let id = id.as_ref().map(|id| format!("#{id}"));
                out.push_str(&format!("{name}{}(", id.unwrap_or_default()));
                call = true;
            }
            OutputPiece::CallArguments { json, .. } => out.push_str(json),
            OutputPiece::CallEnd { .. } => {
                out.push_str(");");
                call = false;
            }
        }
    }
    if !open.is_empty() {
        out.push(']');
    }
    if call {
        out.push_str(")…");
    }
    out
}

/// Calls are numbered from zero, their fragments match, and a call with an end is an object.
pub fn check_calls(pieces: &[OutputPiece]) {
    let mut calls: Vec<String> = Vec::new();
    for piece in pieces {
        match piece {
            OutputPiece::CallStart { index, name, .. } => {
                assert_eq!(*index, calls.len(), "{pieces:?}");
                assert!(!name.is_empty(), "{pieces:?}");
                calls.push(String::new());
            }
            OutputPiece::CallArguments { index, json } => {
                assert_eq!(*index, calls.len() - 1, "{pieces:?}");
                calls[*index].push_str(json);
            }
            OutputPiece::CallEnd { index } => {
                assert_eq!(*index, calls.len() - 1, "{pieces:?}");
                let arguments = serde_json::from_str::<serde_json::Value>(&calls[*index]);
                assert!(arguments.is_ok_and(|it| it.is_object()), "{pieces:?}");
            }
            OutputPiece::Text(_) | OutputPiece::Reasoning(_) => {}
        }
    }
}

/// Checks a case unsplit and split: in two at every character, into single characters, and in three
/// at some positions.
pub fn check(format: OutputFormat, start: &ParseOptions, case: &Case) {
    let Case { output, wanted } = *case;
    let whole = parse(format, start, [output]);
    assert_eq!(show(&whole), wanted, "the output was {output:?}");
    check_calls(&whole);

    let cuts: Vec<_> = output.char_indices().map(|(at, _)| at).collect();
    for &cut in &cuts {
        let parts = [&output[..cut], &output[cut..]];
        assert_eq!(show(&parse(format, start, parts)), wanted, "cut: {parts:?}");
    }
    let singles = output.split_inclusive(|_: char| true);
    assert_eq!(
        show(&parse(format, start, singles)),
        wanted,
        "character by character"
    );
    let mut random = SplitMix64::new(0x9e37_79b9);
    for _ in 0..if cuts.is_empty() { 0 } else { 20 } {
        let mut at = [(); 2].map(|()| cuts[random.below(cuts.len())]);
        at.sort_unstable();
        let parts = [&output[..at[0]], &output[at[0]..at[1]], &output[at[1]..]];
        assert_eq!(show(&parse(format, start, parts)), wanted, "cut: {parts:?}");
    }
}
