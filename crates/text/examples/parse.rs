//! Parses model outputs for the judges: one JSON object per line in, a list of pieces per line
//! out.
//!
//! In: `chunks` of output, the names of the `reasoning` and `calls` formats, and optionally
//! `in_reasoning`, `tools` as in a chat request, and `cut` if the output continues, so that held
//! text stays held.

use std::error::Error;
use std::io::{self, BufRead, Write};

use loquat_text::TextError;
use loquat_text::format::{OutputFormat, OutputParser, OutputPiece, ParseOptions, ToolSignature};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let pieces = parse(&serde_json::from_str(&line?)?)?;
        let pieces: Value = pieces.into_iter().map(shown).collect();
        writeln!(out, "{pieces}")?;
    }
    Ok(())
}

fn parse(case: &Value) -> Result<Vec<OutputPiece>, TextError> {
    let format = OutputFormat::named(case["reasoning"].as_str(), case["calls"].as_str())?;
    let start = ParseOptions {
        in_reasoning: case["in_reasoning"].as_bool().unwrap_or(false),
        calls: true,
        tools: list(&case["tools"]).map(signature).collect(),
        calls_forced: false,
    };
    let mut parser = OutputParser::new(format, start);
    let chunks = list(&case["chunks"]).filter_map(Value::as_str);
    let mut pieces: Vec<OutputPiece> = chunks.flat_map(|chunk| parser.push(chunk)).collect();
    if !case["cut"].as_bool().unwrap_or(false) {
        pieces.extend(parser.finish());
    }
    Ok(pieces)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn signature(tool: &Value) -> ToolSignature {
    let function = &tool["function"];
    ToolSignature {
        name: function["name"].as_str().unwrap_or_default().to_owned(),
        parameters: function["parameters"].clone(),
    }
}

fn shown(piece: OutputPiece) -> Value {
    match piece {
        OutputPiece::Reasoning(text) => json!({ "reasoning": text }),
        OutputPiece::Text(text) => json!({ "text": text }),
        OutputPiece::CallStart { index, name, id } => {
            json!({ "call": name, "index": index, "id": id })
        }
        OutputPiece::CallArguments { index, json } => json!({ "arguments": json, "index": index }),
        OutputPiece::CallEnd { index } => json!({ "end": index }),
    }
}
