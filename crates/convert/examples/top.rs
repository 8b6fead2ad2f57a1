//! Next-token predictions for the judges. Input: a JSON object per line with a `model`'s path and
//! token `ids`, and the path of an `adapter` if one is applied. Output: a line for each, in order,
//! with the `top` token after each token and its `margin`, the lead of its logit; and all `logits`
//! after the last token, if the input sets `logits`.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use loquat_cpu::CpuBackend;
use loquat_session::{
    AdapterLimits, AppliedAdapter, Backend, Emit, ModelSource, Precision, Session, SessionOptions,
    StepBatch, StepOutput,
};
use loquat_weights::{AdapterWeights, Checkpoint};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// At least the longest prompt of the judges.
const CONTEXT: usize = 512;

/// A session, and the adapter of its sequences.
struct Opened {
    model: String,
    adapter: Option<String>,
    session: Box<dyn Session>,
    applied: Vec<AppliedAdapter>,
}

fn main() -> Result<()> {
    let mut opened: Option<Opened> = None;
    for line in io::stdin().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let model = case["model"].as_str().ok_or("`model` is missing")?;
        let adapter = case["adapter"].as_str();
        let ids = case["ids"].as_array().ok_or("`ids` is missing")?;
        let ids: Vec<u32> = ids
            .iter()
            .filter_map(|id| id.as_u64()?.try_into().ok())
            .collect();
        if opened
            .as_ref()
            .is_none_or(|own| own.model != model || own.adapter.as_deref() != adapter)
        {
            opened = None;
        }
        let own = match &mut opened {
            Some(own) => own,
            None => opened.insert(open(model, adapter)?),
        };
        println!("{}", top(own, &ids, case["logits"] == true)?);
    }
    Ok(())
}

fn open(model: &str, adapter: Option<&str>) -> Result<Opened> {
    let checkpoint = Checkpoint::open(Path::new(model))?;
    let source = ModelSource {
        weights: Arc::new(checkpoint.bind()?),
        paths: checkpoint.paths.clone(),
        spec: Arc::new(checkpoint.spec.clone()),
    };
    let base = checkpoint.adapter_base();
    let weights = adapter.map(|path| AdapterWeights::open(Path::new(path), &base));
    let weights = weights.transpose()?;
    let options = SessionOptions {
        context: Some(CONTEXT),
        max_sequences: 1,
        max_step_tokens: CONTEXT,
        precision: Precision::Reference,
        adapters: AdapterLimits::holding(&weights),
        ..SessionOptions::default()
    };
    let mut session = CpuBackend::AUTO.open(source, &options, &mut |_| {})?;
    let ids = weights.iter().map(|weights| session.load_adapter(weights));
    let ids = ids.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(Opened {
        model: model.to_owned(),
        adapter: adapter.map(str::to_owned),
        session,
        applied: ids.into_iter().map(AppliedAdapter::whole).collect(),
    })
}

fn top(opened: &mut Opened, ids: &[u32], with_logits: bool) -> Result<Value> {
    let session = opened.session.as_mut();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let sequence = session.create_adapted(&opened.applied)?;
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
    let mut answer = json!({ "top": tops, "margin": margins });
    if let (true, Some(last)) = (with_logits, ids.len().checked_sub(1)) {
        answer["logits"] = output.logits(0, last).into();
    }
    Ok(answer)
}
