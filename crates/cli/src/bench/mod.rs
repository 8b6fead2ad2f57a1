//! `loquat bench`: what a model and the engine do on this machine, in numbers.
//!
//! Each scenario is a file: [`compare`] (the default), [`works`], [`clients`], [`intruder`],
//! [`turns`], [`constrained`], [`contended`], [`soak`], [`http`] and [`start`]; [`machine`] needs
//! no model. All drive the engine through the doors that programs use.

mod clients;
mod compare;
mod constrained;
mod contended;
mod demand;
mod draw;
mod figure;
mod http;
mod intruder;
mod machine;
mod random;
mod reading;
mod report;
mod soak;
mod start;
mod stats;
mod synthetic;
mod turns;
mod work;
mod works;

use std::time::{Duration, Instant};

use loquat_engine::{Engine, EngineOptions};
use loquat_session::{Capabilities, Memory, Session, SessionOptions};
use serde_json::{Value, json};

use crate::args::BenchArgs;
use crate::backends;
use crate::error::CliError;
use crate::load::{self, Model, locate, open_store_on};
use crate::terminal::print;
use random::Random;
use reading::{ask, greedy};
use report::Report;

pub use demand::{Demand, ModelDemand};
pub use work::Work;

/// One thing to measure.
trait Scenario {
    fn name(&self) -> &'static str;

    /// Sequences that it runs at once.
    fn sequences(&self) -> usize;

    /// Asks for a session unlike the usual, for a model of this context.
    fn adapt(&self, _options: &mut SessionOptions, _context: usize) {}

    /// Refuses, before anything is loaded, what would not fit.
    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), CliError>;

    /// Takes from the model what it needs besides a session.
    fn prepare(&mut self, _model: &Model) -> Result<(), CliError> {
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>) -> Result<Report, CliError>;
}

/// What stands over every report.
struct Subject {
    model: String,
    device: String,
    /// Opening the session.
    load: Duration,
    /// All that came before the model could compute.
    ready: Duration,
}

pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    if let (Some(recipe), Some(path)) = (&args.synthetic, &args.save) {
        return synthetic::save(recipe, path);
    }
    if let (Some(description), Some(path)) = (&args.draw, &args.svg) {
        return draw::run(description, path);
    }
    if args.machine {
        return machine::run(args);
    }
    let began = Instant::now();
    let mut scenario = chosen(args)?;
    if let Some(path) = &args.svg {
        figure::check_writable(path)?;
    }
    let backend = backends::select(&args.session.backend)?;
    let model = match &args.synthetic {
        Some(recipe) => synthetic::model(recipe)?,
        None => {
            let store = open_store_on(args.source.network)?;
            Model::open(&locate(&store, &args.chosen())?)?
        }
    };
    let mut options = args.session.options(scenario.sequences());
    scenario.adapt(&mut options, model.source.spec.max_context);
    let plan = backend.plan(&model.source, &options)?;
    scenario.check(&plan.capabilities, &plan.memory)?;
    scenario.prepare(&model)?;

    let started = Instant::now();
    let session = load::session(&model, backend, &options)?;
    let subject = Subject {
        model: model.name.clone(),
        device: session.capabilities().device.clone(),
        load: started.elapsed(),
        ready: began.elapsed(),
    };
    let report = scenario.run(session)?;
    publish(args, scenario.name(), &subject, report)
}

fn chosen(args: &BenchArgs) -> Result<Box<dyn Scenario>, CliError> {
    Ok(if let Some(tokens) = args.intruder {
        Box::new(intruder::Intruder::new(args, tokens.get()))
    } else if let Some(turns) = args.turns {
        Box::new(turns::Turns::new(args, turns.get()))
    } else if let Some(seconds) = args.soak {
        Box::new(soak::Soak::new(args, seconds))
    } else if args.http {
        Box::new(http::Http::new(args))
    } else if let Some(neighbours) = args.contended {
        Box::new(contended::Contended::new(args, neighbours.get()))
    } else if args.start {
        Box::new(start::Start::new(args))
    } else if args.constrained {
        Box::new(constrained::Constrained::new(args))
    } else if !args.work.is_empty() {
        Box::new(works::Works::new(args))
    } else if args.clients.is_empty() {
        Box::new(compare::Compare::new(args))
    } else {
        Box::new(clients::Clients::new(args)?)
    })
}

/// Writes the report out, and fails where the scenario found something wrong.
fn publish(
    args: &BenchArgs,
    scenario: &str,
    subject: &Subject,
    report: Report,
) -> Result<(), CliError> {
    let Subject {
        model,
        device,
        load,
        ready,
    } = subject;
    if let (Some(path), Some(figure)) = (&args.svg, &report.figure) {
        figure.save(&format!("{model} on {device}"), path)?;
    }
    let load = load.as_secs_f64();
    let text = if args.json {
        as_json(
            json!({
                "scenario": scenario,
                "model": model,
                "device": device,
                "load_seconds": load,
                "ready_seconds": ready.as_secs_f64(),
            }),
            report.json,
        )?
    } else {
        format!(
            "{model} on {device}, loaded in {load:.2} s, {}\n\n{}",
            report.heading, report.text
        )
    };
    print(&text)?;
    verdict(report.failures)
}

fn verdict(failures: Vec<String>) -> Result<(), CliError> {
    if failures.is_empty() {
        Ok(())
    } else {
        Err(CliError::Checks(failures))
    }
}

fn as_json(mut head: Value, body: Value) -> Result<String, CliError> {
    if let (Value::Object(head), Value::Object(body)) = (&mut head, body) {
        head.extend(body);
    }
    let text = serde_json::to_string_pretty(&head);
    Ok(text.map_err(|error| CliError::Output(error.into()))? + "\n")
}

/// A first request touches memory that later ones find warm.
fn warm_up(session: Box<dyn Session>) -> Result<Box<dyn Session>, CliError> {
    let vocab_size = session.capabilities().vocab_size;
    let room = session.capabilities().max_context;
    let engine = Engine::start(session, None, EngineOptions::default())?;
    let prompt = Random::new(u64::MAX, 0).tokens(vocab_size, (room / 2).clamp(1, 32));
    let tokens = (room - prompt.len()).clamp(1, 8);
    ask(&engine, greedy(prompt, tokens))?;
    Ok(engine.into_session()?)
}

/// The KV that a sequence of `len` takes: whole runs.
fn held(len: usize, memory: &Memory) -> usize {
    let whole = len.checked_next_multiple_of(memory.kv_granularity.max(1));
    whole.unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_check_fails_the_command_in_so_many_words() {
        assert!(verdict(Vec::new()).is_ok());
        let failures = ["memory: it grew", "ends: 2 of 3"].map(str::to_owned);
        let error = verdict(failures.to_vec()).unwrap_err();
        assert_eq!(error.exit_code(), 1);
        assert!(!error.is_silent());
        let expected = "2 of the checks failed: memory: it grew; ends: 2 of 3";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_report_follows_its_head() {
        let text = as_json(json!({ "model": "m" }), json!({ "results": [1] })).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report, json!({ "model": "m", "results": [1] }));
        assert!(text.find("model") < text.find("results"));
    }
}
