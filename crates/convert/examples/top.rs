//! Next-token predictions for the judges. Input: a JSON object per line with a `model`'s path and
//! token `ids`. Output: a line for each, in order, with the `top` token after each token and its
//! `margin`, the lead of its logit.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use loquat_cpu::CpuBackend;
use loquat_session::{
    Backend, Emit, ModelSource, Precision, Session, SessionOptions, StepBatch, StepOutput,
};
use loquat_weights::Checkpoint;
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// At least the longest prompt of the judges.
const CONTEXT: usize = 512;

fn main() -> Result<()> {
    let mut opened: Option<(String, Box<dyn Session>)> = None;
    for line in io::stdin().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let model = case["model"].as_str().ok_or("`model` is missing")?;
        let ids = case["ids"].as_array().ok_or("`ids` is missing")?;
        let ids: Vec<u32> = ids
            .iter()
            .filter_map(|id| id.as_u64()?.try_into().ok())
            .collect();
        if opened.as_ref().is_none_or(|(name, _)| name != model) {
            opened = None;
        }
        let (_, session) = match &mut opened {
            Some(opened) => opened,
            None => opened.insert((model.to_owned(), open(Path::new(model))?)),
        };
        println!("{}", top(session.as_mut(), &ids)?);
    }
    Ok(())
}

fn open(path: &Path) -> Result<Box<dyn Session>> {
    let checkpoint = Checkpoint::open(path)?;
    let source = ModelSource {
        weights: Arc::new(checkpoint.bind()?),
        paths: checkpoint.paths.clone(),
        spec: Arc::new(checkpoint.spec.clone()),
    };
    let options = SessionOptions {
        context: Some(CONTEXT),
        max_sequences: 1,
        max_step_tokens: CONTEXT,
        precision: Precision::Reference,
        ..SessionOptions::default()
    };
    Ok(CpuBackend::AUTO.open(source, &options, &mut |_| {})?)
}

fn top(session: &mut dyn Session, ids: &[u32]) -> Result<Value> {
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let sequence = session.create()?;
    let emit = Emit::Logits {
        positions: ids.len(),
    };
    batch.push(sequence, ids, emit);
    session.step(&batch, &mut output)?;
    if let Some(error) = output.rows().iter().find_map(|row| row.error.clone()) {
        return Err(error.into());
    }
    let (mut tops, mut margins) = (Vec::new(), Vec::new());
    for position in 0..ids.len() {
        let mut ranked: Vec<(usize, f32)> = output
            .logits(0, position)
            .iter()
            .copied()
            .enumerate()
            .collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        tops.push(ranked[0].0);
        margins.push(ranked[0].1 - ranked[1].1);
    }
    session.release(sequence)?;
    Ok(json!({ "top": tops, "margin": margins }))
}
