//! How far each KV format moves a real model: log-probabilities of long texts, and whether a
//! needle is found in a long prompt. Prints the rows of the tables in `docs/kv.md`.
//!
//! `cargo run --release -p loquat-cpu --example kv_drift -- MODEL.gguf NAME [DEPTHS [FORMAT…]]`
//!
//! Texts are read with `--precision reference`: the rounding of activations in the fast precision
//! moves log-probabilities more than most formats do. Needles are looked for in the fast one.
//!
//! The name is that of a file of `goldens-real`, whose token ids are the texts. A needle is a sequence
//! of rarely used tokens in the middle of a text repeated to the depth. The prompt ends with the
//! first half of the needle; found are the tokens of its other half that the model finds likeliest.
//!
//! Formats are compared with f32; all of `FORMATS` are run if none is named.

use std::path::Path;

use loquat_cpu::CpuBackend;
use loquat_session::{
    Backend, Emit, KvFormat, ModelSource, Precision, Session, SessionOptions, StepBatch, StepOutput,
};
use loquat_testkit::goldens;
use loquat_testkit::real::reference;

/// Presets, another pair, and boundary layers.
const FORMATS: [&str; 11] = [
    "f32",
    "f16",
    "bf16",
    "q8",
    "k8v4",
    "q8:turbo3",
    "turbo4",
    "turbo4,boundary=1",
    "turbo3",
    "turbo3,boundary=1",
    "turbo2",
];
/// Tokens of a text long enough to judge by.
const LONG: usize = 256;
/// Tokens in a step.
const STEP: usize = 128;
/// Needles at each depth, and tokens of each half.
const NEEDLES: usize = 3;
const HALF: usize = 8;

fn main() {
    let mut args = std::env::args().skip(1);
    let (model, name) = (args.next().unwrap(), args.next().unwrap());
    let depths = args.next().unwrap_or_else(|| "2048,4096".to_owned());
    let depths: Vec<usize> = depths
        .split(',')
        .map(|depth| depth.parse().unwrap())
        .collect();
    let mut formats: Vec<String> = args.collect();
    if formats.is_empty() {
        formats = FORMATS.map(str::to_owned).to_vec();
    }
    let source = goldens::source(Path::new(&model)).unwrap();
    let reference = reference(&name);
    let texts = reference.cases.iter().map(|case| &case.ids);
    let texts: Vec<&Vec<u32>> = texts.filter(|ids| ids.len() >= LONG).collect();
    let heads: String = depths
        .iter()
        .map(|depth| format!(" needle at {depth} |"))
        .collect();
    println!("| format | KiB per token | mean difference | worst | text's mean |{heads}");
    println!("|---|---|---|---|---|{}", "---|".repeat(depths.len()));
    let read_texts = |format| -> Vec<f32> {
        let mut session = open(&source, format, Precision::Reference, 2048);
        let all = texts.iter().flat_map(|ids| logprobs(&mut *session, ids));
        all.collect()
    };
    let exact = read_texts(KvFormat::F32);
    for format in formats {
        let format: KvFormat = format.parse().unwrap();
        let found = read_texts(format);
        let moved = found.iter().zip(&exact).map(|(a, b)| (a - b).abs());
        let mean = |values: &[f32]| values.iter().sum::<f32>() / values.len() as f32;
        let worst = moved.clone().fold(0.0f32, f32::max);
        let moved: Vec<f32> = moved.collect();
        let deepest = depths.iter().copied().max().unwrap_or(0);
        let mut session = open(&source, format, Precision::Fast, deepest);
        let needles: String = depths
            .iter()
            .map(|depth| {
                let found = needles(&mut *session, texts[0], *depth);
                format!(" {found} of {} |", NEEDLES * HALF)
            })
            .collect();
        println!(
            "| {format} | {:.1} | {:.4} | {worst:.3} | {:+.4} |{needles}",
            session.memory().kv_bytes_per_token as f64 / 1024.0,
            mean(&moved),
            mean(&found) - mean(&exact),
        );
    }
}

fn open(
    source: &ModelSource,
    format: KvFormat,
    precision: Precision,
    longest: usize,
) -> Box<dyn Session> {
    let options = SessionOptions {
        precision,
        kv_format: Some(format),
        kv_tokens: Some(longest + 2 * HALF),
        max_step_tokens: STEP,
        ..SessionOptions::default()
    };
    CpuBackend::AUTO
        .open(source.clone(), &options, &mut |_| {})
        .unwrap()
}

/// The log-probability of each token after the first.
fn logprobs(session: &mut dyn Session, ids: &[u32]) -> Vec<f32> {
    let mut found = Vec::new();
    run(session, ids, 0, &mut |position, logits| {
        if let Some(next) = ids.get(position + 1) {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
            found.push(logits[*next as usize] - max - sum.ln() as f32);
        }
    });
    found
}

/// How many tokens of the needles' second halves are the likeliest.
fn needles(session: &mut dyn Session, text: &[u32], depth: usize) -> usize {
    let mut found = 0;
    for index in 0..NEEDLES {
        // Rarely used tokens, without a pattern.
        let needle: Vec<u32> = (0..2 * HALF)
            .map(|i| 5000 + ((index * 2 * HALF + i) * 7919 % 20_011) as u32)
            .collect();
        let filler = depth - needle.len() - HALF;
        let place = filler * (2 * index + 1) / (2 * NEEDLES);
        let mut ids: Vec<u32> = text.iter().copied().cycle().take(filler).collect();
        ids.splice(place..place, needle.iter().copied());
        // All but the last token is read; each answer is compared with the next.
        ids.extend(&needle);
        let first = ids.len() - HALF - 1;
        run(
            session,
            &ids[..ids.len() - 1],
            first,
            &mut |position, logits| {
                let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
                found +=
                    usize::from(best.map(|(id, _)| id as u32) == ids.get(position + 1).copied());
            },
        );
    }
    found
}

/// Reads the tokens and hands over the logits after those from `first` on.
fn run(session: &mut dyn Session, ids: &[u32], first: usize, each: &mut dyn FnMut(usize, &[f32])) {
    let sequence = session.create().unwrap();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    for (step, tokens) in ids.chunks(STEP).enumerate() {
        let end = step * STEP + tokens.len();
        let positions = end.saturating_sub(first).min(tokens.len());
        batch.clear();
        let emit = match positions {
            0 => Emit::Nothing,
            positions => Emit::Logits { positions },
        };
        batch.push(sequence, tokens, emit);
        session.step(&batch, &mut output).unwrap();
        assert!(
            output.rows()[0].error.is_none(),
            "{:?}",
            output.rows()[0].error
        );
        for index in 0..positions {
            each(end - positions + index, output.logits(0, index));
        }
    }
    session.release(sequence).unwrap();
}
