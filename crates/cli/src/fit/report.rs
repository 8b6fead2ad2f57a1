//! The report of `loquat fit`.

use std::time::Duration;

use loquat_bench::Table;
use serde_json::{Value, json};

use super::estimate::{FitEstimate, Fits, USABLE};
use super::machine::Machine;
use crate::terminal::bytes;

pub struct FitReport<'a> {
    pub machine: &'a Machine,
    pub asked: Option<u64>,
    /// Best first.
    pub estimates: &'a [FitEstimate],
    /// Include what does not fit.
    pub all: bool,
}

const HEADINGS: [&str; 8] = [
    "model", "files", "size", "needs", "fits", "context", "tokens/s", "prompt",
];
/// Columns before the numbers.
const TEXT_COLUMNS: usize = 2;

impl FitReport<'_> {
    pub fn text(&self) -> String {
        let shown: Vec<&FitEstimate> = self.shown().collect();
        let mut text = format!("{}\n", self.about_machine());
        if !shown.is_empty() {
            let mut table = Table::with_text_columns(&HEADINGS, TEXT_COLUMNS);
            for estimate in &shown {
                table.row(row(estimate));
            }
            text += &format!("\n{}", table.text());
            text += &self.legend(&shown);
        }
        let hidden = self.estimates.len() - shown.len();
        if hidden > 0 {
            text += &format!("{hidden} more models of the catalog do not fit; --all lists them.\n");
        }
        match self.best() {
            Some(best) if !self.all => {
                text += &format!(
                    "Best for this machine: loquat run {}\n",
                    best.subject.reference()
                );
            }
            None if !self.all => text += "No model of the catalog fits this machine.\n",
            _ => {}
        }
        text
    }

    pub fn json(&self) -> Value {
        let Machine {
            backend,
            device,
            is_gpu,
            memory_bytes,
            available_bytes,
            speed,
            reported_bytes_per_second,
        } = self.machine;
        let measured = speed.map(|speed| speed.read_bytes_per_second);
        let reported = reported_bytes_per_second.map(|reported| reported as f64);
        let models: Vec<Value> = self.shown().map(as_json).collect();
        json!({
            "machine": {
                "backend": backend,
                "device": device,
                "gpu": is_gpu,
                "memory_bytes": memory_bytes,
                "available_bytes": available_bytes,
                "read_bytes_per_second": measured.or(reported),
                "int8_multiply_adds_per_second": speed.map(|speed| speed.multiply_adds_per_second),
                "measured_seconds_ago": speed.map(|speed| speed.age.as_secs()),
            },
            "context": self.asked,
            "best": self.best().map(|best| best.subject.reference()),
            "models": models,
        })
    }

    fn shown(&self) -> impl Iterator<Item = &FitEstimate> {
        let is_shown = |estimate: &&FitEstimate| self.all || estimate.fits.runs();
        self.estimates.iter().filter(is_shown)
    }

    fn best(&self) -> Option<&FitEstimate> {
        self.estimates.first().filter(|best| best.fits.runs())
    }

    fn about_machine(&self) -> String {
        let machine = self.machine;
        let mut parts = vec![machine.device.clone()];
        parts.push(match machine.memory_bytes {
            Some(memory) => format!("{} of memory", bytes(memory)),
            None => "memory unknown".to_owned(),
        });
        let available = machine.available_bytes.map(bytes);
        parts.extend(available.map(|size| format!("{size} available")));
        parts.push(match (machine.speed, machine.reported_bytes_per_second) {
            (Some(speed), _) => format!(
                "reads {:.0} GB/s, {:.0} billion int8 multiply-adds/s (measured {}; --measure repeats it)",
                speed.read_bytes_per_second / 1e9,
                speed.multiply_adds_per_second / 1e9,
                ago(speed.age)
            ),
            (None, Some(reported)) => {
                format!("reads {} GB/s, as its driver reports", reported / 1_000_000_000)
            }
            (None, None) => "speed unknown".to_owned(),
        });
        parts.join("; ")
    }

    fn legend(&self, shown: &[&FitEstimate]) -> String {
        let contexts = shown.iter().map(|estimate| estimate.subject.context);
        let context = contexts.max().unwrap_or_default();
        let how = if shown.iter().all(|estimate| estimate.subject.is_exact) {
            "as planned by the backend"
        } else {
            "estimated"
        };
        let mut text = format!(
            "\nneeds: weights, buffers and up to {context} tokens of KV, {how}; context: the longest \
             that fits comfortably.\n"
        );
        let machine = self.machine;
        if machine.speed.is_some() || machine.reported_bytes_per_second.is_some() {
            text += "tokens/s: estimated, with an empty and with a full context.\n";
        }
        let tight = |estimate: &&&FitEstimate| estimate.fits == Fits::Tightly;
        if let Some(tight) = shown.iter().find(tight) {
            let name = tight.subject.reference();
            text += &format!("tightly: close other programs before you run {name}.\n");
        }
        text
    }
}

fn row(estimate: &FitEstimate) -> [String; HEADINGS.len()] {
    let subject = &estimate.subject;
    let unknown = || "unknown".to_owned();
    let [decode, prompt] = match estimate.speed {
        Some(speed) => {
            let slow = if speed.full < USABLE { " slow" } else { "" };
            let range = format!("{} to {}{slow}", rate(speed.fresh), rate(speed.full));
            [range, speed.prompt.map_or_else(unknown, rate)]
        }
        None => [unknown(), unknown()],
    };
    let context = match estimate.comfortable_context {
        0 => "-".to_owned(),
        context => context.to_string(),
    };
    [
        subject.reference(),
        subject.files.clone(),
        bytes(subject.weight_bytes),
        bytes(estimate.need_bytes),
        estimate.fits.name().to_owned(),
        context,
        decode,
        prompt,
    ]
}

fn ago(age: Duration) -> String {
    match age.as_secs() / 60 {
        0 => "just now".to_owned(),
        minutes => format!("{minutes} min ago"),
    }
}

/// As many digits as an estimate deserves.
fn rate(tokens_per_second: f64) -> String {
    if tokens_per_second < 9.95 {
        format!("{tokens_per_second:.1}")
    } else {
        format!("{tokens_per_second:.0}")
    }
}

fn as_json(estimate: &FitEstimate) -> Value {
    let subject = &estimate.subject;
    json!({
        "model": subject.reference(),
        "files": subject.files,
        "parameters": subject.parameters,
        "active_parameters": subject.active_parameters,
        "fits": estimate.fits.name(),
        "exact": subject.is_exact,
        "weight_bytes": subject.weight_bytes,
        "kv_bytes_per_token": subject.kv.bytes_per_token(),
        "context": subject.context,
        "need_bytes": estimate.need_bytes,
        "comfortable_context": estimate.comfortable_context,
        "model_context": subject.longest_context,
        "decode_tokens_per_second": estimate.speed.map(|speed| json!({
            "fresh": speed.fresh,
            "full": speed.full,
        })),
        "prompt_tokens_per_second": estimate.speed.and_then(|speed| speed.prompt),
    })
}
