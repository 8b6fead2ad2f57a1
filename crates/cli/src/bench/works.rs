//! Chosen works, each measured once through the engine: what a process reports that is compared
//! with another engine's.
//!
//! The rounds are the caller's, who starts a process for each, so that neither engine holds
//! memory or cores while the other is measured. All that a user waits for and pays with is
//! counted: opening the model with its tokenizer, and the most memory the process ever held.

use loquat_session::{Capabilities, Memory, Session, SessionOptions};
use loquat_text::Tokenizer;
use serde_json::{Value, json};

use super::Scenario;
use super::demand::ModelDemand;
use super::report::{Report, Table, number};
use super::work::{self, Work, through_engine};
use crate::args::BenchArgs;
use crate::error::CliError;
use crate::load::Model;
use crate::progress::ShareBar;
use crate::terminal::bytes;

pub struct Works {
    works: Vec<Work>,
    model: Option<(ModelDemand, Tokenizer)>,
}

impl Works {
    pub fn new(args: &BenchArgs) -> Self {
        Self {
            works: args.work.clone(),
            model: None,
        }
    }

    fn to_json(&self, work: Work, tokens_per_second: f64) -> Value {
        let demand = self.model.as_ref().map(|(model, _)| model.of(work));
        json!({
            "work": work.to_string(),
            "tokens_per_second": tokens_per_second,
            "read_bytes_per_token": demand.map(|demand| demand.read_bytes),
            "multiply_adds_per_token": demand.map(|demand| demand.multiply_adds),
        })
    }
}

impl Scenario for Works {
    fn name(&self) -> &'static str {
        "works"
    }

    fn sequences(&self) -> usize {
        self.works.iter().map(Work::batch).max().unwrap_or(1)
    }

    /// Room for these works and no more, as somebody would give it who knows what is to come.
    fn adapt(&self, options: &mut SessionOptions, context: usize) {
        let step = options.max_step_tokens;
        let longest = self
            .works
            .iter()
            .filter_map(|work| work.context(step))
            .max();
        let all = self.works.iter().filter_map(|work| work.room(step)).max();
        options.context = options.context.or(longest.map(|len| len.min(context)));
        options.kv_tokens = all;
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), CliError> {
        work::check(&self.works, capabilities, memory)
    }

    fn prepare(&mut self, model: &Model) -> Result<(), CliError> {
        let demand = ModelDemand::new(&model.source.spec, &model.source.weights);
        self.model = Some((demand, model.tokenizer()?));
        Ok(())
    }

    fn run(&self, mut session: Box<dyn Session>) -> Result<Report, CliError> {
        let bar = ShareBar::start("measuring");
        let mut table = Table::new(&["", "tokens/s"]);
        let mut results = Vec::new();
        for (place, &work) in self.works.iter().enumerate() {
            let (measured, returned) = through_engine(session, work)?;
            session = returned;
            let speed = measured.tokens_per_second;
            table.row(vec![work.name(), number(speed, 1)]);
            results.push(self.to_json(work, speed));
            bar.set((place + 1) as f32 / self.works.len() as f32);
        }
        let peak = loquat_server::peak_resident_bytes();
        let memory = peak.map_or("unknown".to_owned(), bytes);
        Ok(Report {
            heading: format!("peak memory {memory}"),
            text: table.text(),
            json: json!({ "peak_bytes": peak, "results": results }),
            figure: None,
            failures: Vec::new(),
        })
    }
}
