//! What is printed, as Markdown.

use std::time::Duration;

use loquat_session::Session;

use crate::session_loop::{BareRun, Workload};

/// One workload of one model.
pub struct SpeedRow {
    model: String,
    pub work: Workload,
    /// Tokens per second, one per round.
    bare: Vec<f64>,
    engine: Vec<f64>,
    /// Tokens per second at the read ceiling.
    pub limit: Option<f64>,
}

impl SpeedRow {
    pub fn new(model: &str, work: Workload) -> Self {
        Self {
            model: model.to_owned(),
            work,
            bare: Vec::new(),
            engine: Vec::new(),
            limit: None,
        }
    }

    pub fn push(&mut self, bare: &BareRun, engine: f64) {
        self.bare.push(bare.tokens_per_second);
        self.engine.push(engine);
    }

    /// The median of the bare session's rounds.
    pub fn bare(&self) -> f64 {
        median(&self.bare)
    }

    /// One line, as soon as it is known.
    pub fn progress(&self) -> String {
        let (bare, engine) = (self.bare(), median(&self.engine));
        let (bare, engine) = (decimals(bare, 1), decimals(engine, 1));
        format!("{}, {}: {bare}, {engine}", self.model, self.work)
    }

    fn cells(&self) -> [String; 8] {
        let (bare, engine) = (self.bare(), median(&self.engine));
        let step = match self.work {
            Workload::Prompt { tokens } => tokens,
            Workload::Decode { batch, .. } => batch,
        };
        [
            self.model.clone(),
            self.work.to_string(),
            decimals(bare, 1),
            decimals(spread(&self.bare), 3),
            decimals(1e6 * step as f64 / bare, 0),
            decimals(self.limit.map_or(f64::NAN, |limit| bare / limit), 3),
            decimals(engine, 1),
            decimals(engine / bare, 3),
        ]
    }
}

/// The memory of one session.
pub struct MemoryRow {
    pub model: String,
    pub generated: Duration,
    pub loaded: Duration,
    pub weight_bytes: u64,
    pub planned: u64,
    /// What the device reports as used by the session.
    pub at_open: Option<u64>,
    /// The most at the end of a workload.
    pub peak: Option<u64>,
    /// Of the plan, without the KV that no sequence held then.
    pub planned_at_peak: Option<u64>,
}

impl MemoryRow {
    /// Records what is used now, if it is the most.
    pub fn record(&mut self, used: Option<u64>, session: &dyn Session) {
        let memory = session.memory();
        let unused = memory.kv_capacity.saturating_sub(memory.kv_in_use) as u64;
        let unused_bytes = unused * memory.kv_bytes_per_token;
        let planned = self.planned.saturating_sub(unused_bytes);
        if used > self.peak {
            self.peak = used;
            self.planned_at_peak = Some(planned);
        }
    }

    fn cells(&self) -> [String; 9] {
        let gigabytes = |bytes: Option<u64>| {
            let bytes = bytes.map_or(f64::NAN, |bytes| bytes as f64);
            decimals(bytes / 1e9, 3)
        };
        let planned = self.planned_at_peak;
        let pair = self.peak.zip(planned);
        let ratio = pair.map_or(f64::NAN, |(peak, planned)| peak as f64 / planned as f64);
        let loaded = self.loaded.as_secs_f64();
        [
            self.model.clone(),
            decimals(self.generated.as_secs_f64(), 1),
            decimals(loaded, 1),
            decimals(self.weight_bytes as f64 / loaded / 1e9, 1),
            gigabytes(Some(self.planned)),
            gigabytes(self.at_open),
            gigabytes(planned),
            gigabytes(self.peak),
            decimals(ratio, 3),
        ]
    }
}

pub fn speeds(rows: &[SpeedRow]) -> String {
    let heads = [
        "model",
        "workload",
        "session, tokens/s",
        "spread",
        "µs/step",
        "share of the read limit",
        "engine, tokens/s",
        "engine / session",
    ];
    markdown(heads, rows.iter().map(SpeedRow::cells))
}

pub fn memories(rows: &[MemoryRow]) -> String {
    let heads = [
        "model",
        "drawn in s",
        "loaded in s",
        "GB/s",
        "planned, GB",
        "used after opening",
        "planned for what is in use",
        "used at the peak",
        "used / planned",
    ];
    markdown(heads, rows.iter().map(MemoryRow::cells))
}

fn markdown<const N: usize>(heads: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let heads = line(&heads.map(str::to_owned));
    let rule = format!("|{}\n", "---|".repeat(N));
    let rows: String = rows.map(|cells| line(&cells)).collect();
    heads + &rule + &rows
}

/// NaN is what was not measured.
fn decimals(value: f64, count: usize) -> String {
    if value.is_finite() {
        format!("{value:.count$}")
    } else {
        "–".to_owned()
    }
}

/// NaN without values.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 if middle == 0 => f64::NAN,
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

/// From the least to the most, as a share of the median.
fn spread(values: &[f64]) -> f64 {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (most - least) / median(values)
}
