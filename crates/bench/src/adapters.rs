//! Decoding and prompts with adapters, against the same without, on the bare session.
//!
//! The adapters are random, of all matrices in the layers. Rounds alternate, so that both cases see
//! the same machine.

use loquat_engine::EngineError;
use loquat_session::{
    AdapterLimits, AppliedAdapter, Capabilities, Memory, Session, SessionOptions,
};
use loquat_spec::ModelSpec;
use loquat_synthetic::AdapterRecipe;
use loquat_weights::AdapterWeights;
use serde_json::json;

use super::error::BenchError;
use super::report::{Report, Table, number, rounds_heading};
use super::stats::{median, median_ratio};
use super::workload::{self, Workload, on_session, on_session_adapted};
use super::{Harness, Scenario};

pub struct Adapters {
    /// How many; rows use them in turn.
    pub count: usize,
    pub rank: usize,
    pub workloads: Vec<Workload>,
    pub rounds: usize,
    /// Made from the model.
    made: Vec<AdapterWeights>,
}

impl Adapters {
    pub fn new(count: usize, rank: usize, workloads: Vec<Workload>, rounds: usize) -> Self {
        Self {
            count,
            rank,
            workloads,
            rounds,
            made: Vec::new(),
        }
    }

    fn make(&self, spec: &ModelSpec) -> Result<Vec<AdapterWeights>, BenchError> {
        let make = |seed: usize| {
            let made = AdapterRecipe::linear(self.rank, seed as u64).make(spec);
            made.map_err(|mismatch| BenchError::Adapter(mismatch.to_string()))
        };
        (0..self.count).map(make).collect()
    }
}

impl Scenario for Adapters {
    fn name(&self) -> &'static str {
        "adapters"
    }

    fn sequences(&self) -> usize {
        workload::max_batch(&self.workloads)
    }

    fn adapt_to(
        &mut self,
        options: &mut SessionOptions,
        spec: &ModelSpec,
    ) -> Result<(), BenchError> {
        self.made = self.make(spec)?;
        options.adapters = AdapterLimits::holding(&self.made);
        Ok(())
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError> {
        workload::check(&self.workloads, capabilities, memory)
    }

    fn run(
        &self,
        mut session: Box<dyn Session>,
        harness: &Harness<'_>,
    ) -> Result<Report, BenchError> {
        let session = session.as_mut();
        let mut applied = Vec::new();
        for weights in &self.made {
            let id = session.load_adapter(weights).map_err(EngineError::from)?;
            applied.push(AppliedAdapter::whole(id));
        }
        let bytes = session.memory().adapter_bytes;
        let mut table = Table::new(&["", "base", "adapted", "of base"]);
        let mut results = Vec::new();
        let all = self.workloads.len() * (self.rounds + 1);
        for (index, work) in self.workloads.iter().enumerate() {
            let (mut base, mut adapted) = (Vec::new(), Vec::new());
            // Round 0 is a warm-up and is not counted.
            for round in 0..=self.rounds {
                let plain = on_session(session, *work)?;
                let with = on_session_adapted(session, *work, &applied)?;
                if round > 0 {
                    base.push(plain);
                    adapted.push(with);
                }
                harness.progress(index * (self.rounds + 1) + round + 1, all);
            }
            let ratio = median_ratio(&adapted, &base);
            table.row([
                work.name(),
                number(median(&base), 1),
                number(median(&adapted), 1),
                number(ratio, 3),
            ]);
            results.push(json!({
                "work": work.to_string(),
                "base_tokens_per_second": median(&base),
                "adapted_tokens_per_second": median(&adapted),
                "ratio": ratio,
            }));
        }
        let (count, rank) = (self.count, self.rank);
        Ok(Report::new(
            format!(
                "{count} adapters of rank {rank}, {}, tokens/s",
                rounds_heading(self.rounds)
            ),
            table.text(),
            json!({
                "adapters": count,
                "rank": rank,
                "adapter_bytes": bytes,
                "results": results,
            }),
        ))
    }
}
