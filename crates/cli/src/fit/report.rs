//! What `loquat fit` prints.

use std::time::Duration;

use loquat_bench::Table;
use serde_json::{Value, json};

use super::machine::Machine;
use super::outlook::{Fits, Outlook, USABLE};
use crate::error::CliError;
use crate::terminal::bytes;

pub struct Report<'a> {
    pub machine: &'a Machine,
    pub asked: Option<u64>,
    /// Best first.
    pub outlooks: &'a [Outlook],
    /// What does not fit, too.
    pub all: bool,
}

const HEADINGS: [&str; 8] = [
    "model", "files", "size", "needs", "fits", "context", "tokens/s", "prompt",
];
/// Columns before the numbers.
const TEXT_COLUMNS: usize = 2;

impl Report<'_> {
    pub fn text(&self) -> String {
        let shown: Vec<&Outlook> = self.shown().collect();
        let mut text = format!("{}\n", self.about_machine());
        if !shown.is_empty() {
            let mut table = Table::with_text_columns(&HEADINGS, TEXT_COLUMNS);
            for outlook in &shown {
                table.row(row(outlook));
            }
            text += &format!("\n{}", table.text());
            text += &self.legend(&shown);
        }
        let hidden = self.outlooks.len() - shown.len();
        if hidden > 0 {
            text += &format!("{hidden} others of the catalog do not fit; --all lists them.\n");
        }
        match self.best() {
            Some(best) if !self.all => {
                text += &format!("Best here: loquat run {}\n", best.subject.spelled());
            }
            None if !self.all => text += "Nothing of the catalog fits this machine.\n",
            _ => {}
        }
        text
    }

    pub fn json(&self) -> Result<String, CliError> {
        let Machine {
            backend,
            device,
            is_gpu,
            memory_bytes,
            available_bytes,
            pace,
        } = self.machine;
        let models: Vec<Value> = self.shown().map(as_json).collect();
        let report = json!({
            "machine": {
                "backend": backend,
                "device": device,
                "gpu": is_gpu,
                "memory_bytes": memory_bytes,
                "available_bytes": available_bytes,
                "read_bytes_per_second": pace.map(|pace| pace.read_bytes_per_second),
                "int8_multiply_adds_per_second": pace.map(|pace| pace.multiply_adds_per_second),
                "measured_seconds_ago": pace.map(|pace| pace.age.as_secs()),
            },
            "context": self.asked,
            "best": self.best().map(|best| best.subject.spelled()),
            "models": models,
        });
        let text = serde_json::to_string_pretty(&report);
        let text = text.map_err(|error| CliError::Output(error.into()))?;
        Ok(format!("{text}\n"))
    }

    fn shown(&self) -> impl Iterator<Item = &Outlook> {
        let is_shown = |outlook: &&Outlook| self.all || outlook.fits.runs();
        self.outlooks.iter().filter(is_shown)
    }

    fn best(&self) -> Option<&Outlook> {
        self.outlooks.first().filter(|best| best.fits.runs())
    }

    fn about_machine(&self) -> String {
        let machine = self.machine;
        let mut parts = vec![machine.device.clone()];
        parts.push(match machine.memory_bytes {
            Some(memory) => format!("{} of memory", bytes(memory)),
            None => "memory unknown".to_owned(),
        });
        let available = machine.available_bytes.map(bytes);
        parts.extend(available.map(|size| format!("{size} of it free now")));
        parts.push(match machine.pace {
            Some(pace) => format!(
                "reads {:.0} GB/s, {:.0} billion int8 multiply-adds/s (measured {}; --measure does \
                 so anew)",
                pace.read_bytes_per_second / 1e9,
                pace.multiply_adds_per_second / 1e9,
                ago(pace.age)
            ),
            None => "speed unknown".to_owned(),
        });
        parts.join("; ")
    }

    fn legend(&self, shown: &[&Outlook]) -> String {
        let contexts = shown.iter().map(|outlook| outlook.subject.context);
        let context = contexts.max().unwrap_or_default();
        let how = if shown.iter().all(|outlook| outlook.subject.is_exact) {
            "as the backend plans it"
        } else {
            "estimated"
        };
        let mut text = format!(
            "\nneeds: weights, buffers and up to {context} tokens of KV, {how}; context: the \
             longest that fits comfortably.\n"
        );
        if self.machine.pace.is_some() {
            text += "tokens/s: estimated, with an empty context, and with as many tokens in it.\n";
        }
        let tight = |outlook: &&&Outlook| outlook.fits == Fits::Tightly;
        if let Some(tight) = shown.iter().find(tight) {
            let name = tight.subject.spelled();
            text += &format!("tightly: close what you can spare before you run {name}.\n");
        }
        text
    }
}

fn row(outlook: &Outlook) -> [String; HEADINGS.len()] {
    let subject = &outlook.subject;
    let [decode, prompt] = match outlook.speed {
        Some(speed) => {
            let slow = if speed.full < USABLE { " slow" } else { "" };
            let range = format!("{} to {}{slow}", rate(speed.fresh), rate(speed.full));
            [range, rate(speed.prompt)]
        }
        None => ["unknown".to_owned(), "unknown".to_owned()],
    };
    let context = match outlook.roomy_context {
        0 => "-".to_owned(),
        context => context.to_string(),
    };
    [
        subject.spelled(),
        subject.files.clone(),
        bytes(subject.weight_bytes),
        bytes(outlook.need_bytes),
        outlook.fits.name().to_owned(),
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

/// No more digits than an estimate has.
fn rate(tokens_per_second: f64) -> String {
    if tokens_per_second < 9.95 {
        format!("{tokens_per_second:.1}")
    } else {
        format!("{tokens_per_second:.0}")
    }
}

fn as_json(outlook: &Outlook) -> Value {
    let subject = &outlook.subject;
    json!({
        "model": subject.spelled(),
        "files": subject.files,
        "parameters": subject.parameters,
        "active_parameters": subject.active_parameters,
        "fits": outlook.fits.name(),
        "exact": subject.is_exact,
        "weight_bytes": subject.weight_bytes,
        "kv_bytes_per_token": subject.kv_bytes_per_token,
        "context": subject.context,
        "need_bytes": outlook.need_bytes,
        "comfortable_context": outlook.roomy_context,
        "model_context": subject.longest_context,
        "decode_tokens_per_second": outlook.speed.map(|speed| json!({
            "fresh": speed.fresh,
            "full": speed.full,
        })),
        "prompt_tokens_per_second": outlook.speed.map(|speed| speed.prompt),
    })
}
