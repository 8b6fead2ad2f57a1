//! Writes `docs/kv-drift.md`: how far each KV format moves each family's golden.

use std::fmt::Write;
use std::path::Path;

use loquat_cpu::CpuBackend;
use loquat_session::{KvFormat, Precision};
use loquat_testkit::{docs, goldens};

use crate::conformance::{is_latent, logits_of, prompt};

const OPENING: &str = "# Drift of KV formats by family

How far log-probabilities move from those with keys and values in f32, for the tiny golden
checkpoint of each family: the mean and the worst over the 70 tokens of one prompt, longer than
every window of these models. Everything else is computed in f32 (`--precision reference`).

The weights are random, so these numbers only show that a format works with a family's heads,
windows, sinks and soft caps, and which families it moves most: those with experts, whose router
may choose others at a near tie. [kv.md](kv.md) has the drift of real models.

`LOQUAT_WRITE_DOCS=1 cargo test -p loquat-cpu --test it kv_drift` regenerates this page; the tests
fail if it is out of date. A dash: latent attention refuses the format.

";

#[test]
fn page_of_drift_by_family_is_current() {
    let formats = ["f16", "q8", "k8v4", "turbo4", "turbo3"];
    let mut page = OPENING.to_owned();
    let _ = writeln!(page, "| family | `{}` |", formats.join("` | `"));
    let _ = writeln!(page, "|---|{}", "---|".repeat(formats.len()));
    for folder in goldens::all().unwrap() {
        let exact = logprobs(&folder, KvFormat::F32);
        let name = folder.file_name().unwrap().to_string_lossy();
        let _ = write!(page, "| `{name}` |");
        for format in formats {
            let format: KvFormat = format.parse().unwrap();
            if is_latent(&folder) && !format.is_float() {
                page.push_str(" – |");
                continue;
            }
            let found = logprobs(&folder, format);
            let moved = found.iter().zip(&exact).map(|(a, b)| (a - b).abs());
            let mean = moved.clone().sum::<f64>() / exact.len() as f64;
            let worst = moved.fold(0.0, f64::max);
            let _ = write!(page, " {mean:.4}, {worst:.3} |");
        }
        page.push('\n');
    }
    docs::assert_current(
        "docs/kv-drift.md",
        &page,
        "-p loquat-cpu --test it kv_drift",
    );
}

/// The log-probability of each token after the first.
fn logprobs(folder: &Path, format: KvFormat) -> Vec<f64> {
    let logits = logits_of(
        &CpuBackend::AUTO,
        folder,
        Precision::Reference,
        1,
        Some(format),
    );
    let vocab = logits.len() / prompt(1).len();
    let tokens = prompt(vocab as u32);
    let rows = logits.chunks(vocab).zip(&tokens[1..]);
    rows.map(|(bits, token)| {
        let logits: Vec<f64> = bits
            .iter()
            .map(|bits| f32::from_bits(*bits).into())
            .collect();
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        logits[*token as usize] - sum.ln()
    })
    .collect()
}
