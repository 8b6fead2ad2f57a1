//! Selected workloads, each measured once through the engine, for comparisons with other engines.
//!
//! The caller starts one process per round, so that neither engine holds memory or cores while the
//! other is measured. The report includes the time to open the model with its tokenizer, and the
//! process's peak memory.

use loquat_session::{Capabilities, Memory, Session, SessionOptions};
use loquat_text::Tokenizer;
use serde_json::{Value, json};

use loquat::ModelFiles;
use loquat::human::bytes;

use super::demand::ModelDemand;
use super::error::BenchError;
use super::report::{Report, Table, number};
use super::workload::{self, Workload, through_engine};
use super::{Harness, Scenario};

pub struct Workloads {
    workloads: Vec<Workload>,
    model: Option<(ModelDemand, Tokenizer)>,
}

impl Workloads {
    pub fn new(workloads: Vec<Workload>) -> Self {
        Self {
            workloads,
            model: None,
        }
    }

    fn to_json(&self, work: Workload, tokens_per_second: f64) -> Value {
        let demand = self.model.as_ref().map(|(model, _)| model.per_token(work));
        json!({
            "work": work.to_string(),
            "tokens_per_second": tokens_per_second,
            "read_bytes_per_token": demand.map(|demand| demand.read_bytes),
            "multiply_adds_per_token": demand.map(|demand| demand.multiply_adds),
        })
    }
}

impl Scenario for Workloads {
    fn name(&self) -> &'static str {
        "works"
    }

    fn sequences(&self) -> usize {
        workload::max_batch(&self.workloads)
    }

    /// Reserves exactly what these workloads need.
    fn adapt(&self, options: &mut SessionOptions, context: usize) {
        let step = options.max_step_tokens;
        let longest = self
            .workloads
            .iter()
            .filter_map(|work| work.context(step))
            .max();
        let kv_tokens = self
            .workloads
            .iter()
            .filter_map(|work| work.kv_tokens(step));
        options.context = options.context.or(longest.map(|len| len.min(context)));
        options.kv_tokens = kv_tokens.max();
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError> {
        workload::check(&self.workloads, capabilities, memory)
    }

    fn prepare(&mut self, model: &ModelFiles) -> Result<(), BenchError> {
        let demand = ModelDemand::new(&model.source.spec, &model.source.weights);
        self.model = Some((demand, model.tokenizer()?));
        Ok(())
    }

    fn run(
        &self,
        mut session: Box<dyn Session>,
        harness: &Harness<'_>,
    ) -> Result<Report, BenchError> {
        let mut table = Table::new(&["", "tokens/s"]);
        let mut results = Vec::new();
        for (index, &work) in self.workloads.iter().enumerate() {
            let (run, returned) = through_engine(session, work)?;
            session = returned;
            let speed = run.tokens_per_second;
            table.row([work.name(), number(speed, 1)]);
            results.push(self.to_json(work, speed));
            harness.progress(index + 1, self.workloads.len());
        }
        let peak = loquat_server::peak_resident_bytes();
        let memory = peak.map_or("unknown".to_owned(), bytes);
        Ok(Report::new(
            format!("peak memory {memory}"),
            table.text(),
            json!({ "peak_bytes": peak, "results": results }),
        ))
    }
}
