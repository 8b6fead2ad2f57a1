//! Measures sessions and the engine on one NVIDIA GPU with random weights, and prints one table.
//!
//! `cargo run --release -p loquat-cuda --features cuda --example h200_table -- [OPTIONS]`
//!
//! - `--model NAMES`: shapes of `loquat-synthetic`, by default `llama-8b,llama-1b`
//! - `--batches NUMBERS`: sequences that decode together, by default 1, and for `llama-8b` 1,8,64
//! - `--depth N`: tokens of a prompt, by default 512
//! - `--tokens N`: decoded tokens per sequence, by default 128
//! - `--rounds N`: by default 3; the table shows their median
//! - `--budget SECONDS`: for the whole program, by default 270; what would take longer is left out
//! - `--quick`: only `llama-1b`, 16 tokens, one round
//! - `--steps N`: instead of the table, decodes N tokens with and without dependent launches, and
//!   compares tokens, keys and values, and the last hidden state bit for bit
//! - `--no-ceiling`: does not measure the read speed, so that there are no shares
//! - `--interpreter`: runs on the interpreter, to try this program on a machine without a GPU
//!
//! A share is of the tokens per second at which the bytes that a step must read (all matrices but an
//! untied embedding, and the keys and values) would take all of the read speed that a plain kernel
//! reaches in the same run.

mod bits;
mod ceiling;
mod engine_loop;
mod model;
mod options;
mod session_loop;
mod table;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use loquat_cuda::device::Device;
use loquat_cuda::{CudaBackend, Gpu, InterpretedBackend};
use loquat_session::{Backend, Probe, Session};

use model::Model;
use options::Options;
use session_loop::{BareRun, Workload};
use table::{MemoryRow, SpeedRow};

type Failure = Box<dyn Error>;

/// A run of the bare session stops after this long, with the steps that it has done.
const RUN_LIMIT: Duration = Duration::from_secs(15);
/// A prompt alone takes milliseconds, so it has this many times the rounds.
const PROMPT_ROUNDS: usize = 3;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let started = Instant::now();
    let options = Options::parse(std::env::args().skip(1))?;
    let mut bench = Bench {
        deadline: started + options.budget,
        gpu: None,
        bytes_per_second: None,
    };
    if !options.interpreter {
        if let Probe::Unavailable { why, remedy } = CudaBackend::AUTO.probe() {
            return Err(format!("{why} {remedy}").into());
        }
        // Kept open, so that the kernels and the context are not counted as a session's memory.
        let gpu = Gpu::open(0)?;
        let info = gpu.context().device();
        let name = format!("{}, {} multiprocessors", info.name, info.sm_count);
        println!("{name}, driver for CUDA {}", info.driver_version);
        if options.ceiling && options.steps.is_none() {
            let rate = ceiling::bytes_per_second(gpu.context())?;
            println!("read ceiling {:.3} TB/s", rate / 1e12);
            bench.bytes_per_second = Some(rate);
        }
        bench.gpu = Some(gpu);
    }
    if let Some(steps) = options.steps {
        return bits::compare(&options, steps);
    }
    let (mut speeds, mut memories) = (Vec::new(), Vec::new());
    for name in &options.models {
        let (rows, memory) = bench.measure(name, &options)?;
        speeds.extend(rows);
        memories.push(memory);
    }
    println!("\n{}", table::speeds(&speeds));
    println!("{}", table::memories(&memories));
    println!("{:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

struct Bench {
    deadline: Instant,
    gpu: Option<Gpu>,
    bytes_per_second: Option<f64>,
}

impl Bench {
    fn free_bytes(&self) -> Option<u64> {
        self.gpu.as_ref().map(|gpu| gpu.memory().0)
    }

    fn measure(
        &self,
        name: &str,
        options: &Options,
    ) -> Result<(Vec<SpeedRow>, MemoryRow), Failure> {
        let model = Model::new(name)?;
        let works = options.workloads(name);
        let session_options = options.session_options(&works);
        let backend: &dyn Backend = if options.interpreter {
            &InterpretedBackend::AUTO
        } else {
            &CudaBackend::AUTO
        };
        let plan = backend.plan(&model.source, &session_options)?;
        let before = self.free_bytes();
        let used = || Some(before?.saturating_sub(self.free_bytes()?));
        let started = Instant::now();
        let mut session = backend.open(model.source.clone(), &session_options, &mut |_| {})?;
        let mut memory = MemoryRow {
            model: name.to_owned(),
            generated: model.generated,
            loaded: started.elapsed(),
            weight_bytes: plan.memory.weight_bytes,
            planned: plan.resident_bytes,
            at_open: used(),
            peak: None,
            planned_at_peak: None,
        };
        eprintln!("{name}: opened in {:.1} s", memory.loaded.as_secs_f64());
        for note in &plan.notes {
            eprintln!("{name}: {note}");
        }
        session_loop::check_logits(session.as_mut(), options.depth)?;
        let mut rows: Vec<SpeedRow> = Vec::new();
        for work in works {
            // The first row is the prompt.
            let prompt_speed = rows.first().map(SpeedRow::bare);
            let mut row = SpeedRow::new(name, work);
            let rounds = match work {
                Workload::Prompt { .. } => PROMPT_ROUNDS * options.rounds,
                Workload::Decode { .. } => options.rounds,
            };
            for round in 0..rounds {
                if self.left() < round_estimate(&work, prompt_speed) {
                    eprintln!("{name}, {work}: round {round} left out: no time is left");
                    break;
                }
                let bare = session_loop::run(session.as_mut(), work, RUN_LIMIT, &mut |session| {
                    memory.record(used(), session);
                })?;
                let work = work.with_tokens(bare.tokens);
                let (engine, returned) = engine_loop::run(session, work)?;
                session = returned;
                row.push(&bare, engine);
                self.set_limit(&mut row, &model, session.as_ref(), &bare);
            }
            eprintln!("{}", row.progress());
            rows.push(row);
        }
        Ok((rows, memory))
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn set_limit(&self, row: &mut SpeedRow, model: &Model, session: &dyn Session, run: &BareRun) {
        let Workload::Decode { batch, .. } = row.work else {
            return;
        };
        let kv_bytes = session.memory().kv_bytes_per_token as f64 * run.mean_depth * batch as f64;
        let bytes = model.read_bytes as f64 + kv_bytes;
        row.limit = self
            .bytes_per_second
            .map(|rate| batch as f64 * rate / bytes);
    }
}

/// How long a round takes at least: the prompts of the bare loop and of the engine.
fn round_estimate(work: &Workload, prompt_speed: Option<f64>) -> Duration {
    let tokens = 2 * work.batch() * work.prompt_tokens();
    let seconds = prompt_speed.map_or(1.0, |speed| 1.0 + tokens as f64 / speed);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
