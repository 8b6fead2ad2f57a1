//! `loquat bench`: opens the model, runs a scenario of `loquat_bench`, prints its report.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use loquat::ModelFiles;
use loquat_bench::{
    Adapters, Clients, Constrained, Contention, Conversation, Encoding, EngineOverhead, Figure,
    Harness, Http, PrefillInterference, Report, ReportHead, Scenario, Soak, Speculation, Startup,
    Until, Workload, Workloads, machine, synthetic,
};
use loquat_convert::WorkFolder;
use loquat_engine::{DiskOptions, SpeculationOptions};
use loquat_server::config::units;
use loquat_synthetic::Recipe;

use crate::args::BenchArgs;
use crate::backends;
use crate::convert;
use crate::error::CliError;
use crate::files;
use crate::load::{self, kv_blocks, locate, open_store, open_store_on};
use crate::progress::ShareBar;
use crate::serve::reader_grace;
use crate::terminal::{print, print_json};

const MAX_CLIENTS: usize = 1024;
/// Requests per client if neither `--requests` nor `--seconds` is given.
const REQUESTS_PER_CLIENT: usize = 4;
/// Clients over HTTP without `--batch`.
const HTTP_CLIENTS: usize = 32;

pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    if let (Some(recipe), Some(path)) = (&args.synthetic, &args.save) {
        return save(recipe, path);
    }
    if let (Some(description), Some(path)) = (&args.draw, &args.svg) {
        return draw(description, path);
    }
    if args.machine {
        let report = machine(args.session.threads)?;
        return if args.json {
            print_json(&report.json)
        } else {
            print(&report.text)
        };
    }
    measure(args)
}

/// A folder of stored prefixes that is removed at the end: prompts of benchmarks are random.
struct BenchBlocks(DiskOptions);

impl BenchBlocks {
    fn new(max_bytes: u64) -> Result<Self, CliError> {
        let mut options = kv_blocks(open_store()?.cache_dir(), max_bytes);
        options
            .folder
            .set_file_name(format!("kv-bench-{}", std::process::id()));
        Ok(Self(options))
    }
}

impl Drop for BenchBlocks {
    fn drop(&mut self) {
        let folder = &self.0.folder;
        if let Err(error) = std::fs::remove_dir_all(folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!(
                "warning: {} could not be removed: {error}",
                folder.display()
            );
        }
    }
}

fn draw(description: &Path, svg: &Path) -> Result<(), CliError> {
    let description = files::json("--draw", description)?;
    let (figure, caption) = Figure::from_json(&description)?;
    files::overwrite(svg, &figure.svg(&caption, svg)?)
}

fn save(recipe: &Recipe, path: &Path) -> Result<(), CliError> {
    let records = convert::records(&open_store()?);
    let work = WorkFolder::beside(path, Some(&records)).map_err(|source| CliError::Write {
        path: path.to_owned(),
        source,
    })?;
    print(&synthetic::save(recipe, path, work.path())?)
}

fn measure(args: &BenchArgs) -> Result<(), CliError> {
    let began = Instant::now();
    let blocks = match args.kv_disk {
        Some(max_bytes) => Some(BenchBlocks::new(max_bytes)?),
        None => None,
    };
    let mut scenario = scenario(args, blocks.as_ref())?;
    if let Some(path) = &args.svg {
        Figure::check_writable(path)?;
    }
    let backend = backends::select(&args.session.backend)?;
    let model = match &args.synthetic {
        Some(recipe) => synthetic::model(recipe)?,
        None => {
            let store = open_store_on(args.source.network)?;
            ModelFiles::open(&locate(&store, &args.source.choice(args.model.as_deref()))?)?
        }
    };
    let mut options = args.session.options(scenario.sequences());
    scenario.adapt(&mut options, model.source.spec.max_context);
    scenario.adapt_to(&mut options, &model.source.spec)?;
    let plan = backend.plan(&model.source, &options)?;
    scenario.check(&plan.capabilities, &plan.memory)?;
    scenario.prepare(&model)?;

    let started = Instant::now();
    let session = load::session(&model, backend, &options)?;
    let head = ReportHead {
        scenario: scenario.name(),
        model: model.name.clone(),
        device: session.capabilities().device.clone(),
        load: started.elapsed(),
        ready: began.elapsed(),
    };
    let bar = ShareBar::start("measuring");
    let harness = Harness {
        model: &model,
        progress: &|share| bar.set(share),
    };
    let report = scenario.run(session, &harness);
    drop(bar);
    publish(args, &head, report?)
}

/// Prints the report, and fails if one of its checks failed.
fn publish(args: &BenchArgs, head: &ReportHead, report: Report) -> Result<(), CliError> {
    if let (Some(path), Some(figure)) = (&args.svg, &report.figure) {
        files::overwrite(path, &figure.svg(&head.caption(), path)?)?;
    }
    if args.json {
        print_json(&report.to_json(head))?;
    } else {
        print(&report.to_text(head))?;
    }
    if report.failures.is_empty() {
        Ok(())
    } else {
        Err(CliError::Checks(report.failures))
    }
}

fn scenario(args: &BenchArgs, blocks: Option<&BenchBlocks>) -> Result<Box<dyn Scenario>, CliError> {
    let kv_disk = blocks.map(|blocks| blocks.0.clone());
    let tokens = args.decode_tokens.get();
    let seed = args.seed;
    Ok(if let Some(prompt) = args.prefill_interference {
        Box::new(PrefillInterference {
            tokens: prompt.get(),
            batches: args.batches(4),
            steady_tokens: tokens,
            rounds: args.rounds(3),
            seed,
            max_slowdown: args.max_slowdown,
        })
    } else if let Some(count) = args.adapters {
        let count = count.get();
        let decode = |batch| Workload::Decode {
            depth: 1,
            batch,
            tokens,
        };
        let mut workloads = vec![Workload::Prompt { tokens: 512 }, decode(1)];
        workloads.extend((count > 1).then(|| decode(count)));
        let rank = args.adapter_rank.get();
        Box::new(Adapters::new(count, rank, workloads, args.rounds(5)))
    } else if let Some(turns) = args.turns {
        Box::new(Conversation {
            turns: turns.get(),
            user_tokens: args.user_tokens.get(),
            answer_tokens: tokens,
            rounds: args.rounds(3),
            seed,
            kv_disk,
        })
    } else if let Some(seconds) = args.soak {
        Box::new(Soak {
            time: Duration::from_secs(seconds.get() as u64),
            seed,
        })
    } else if args.http {
        Box::new(Http {
            clients: args.batches(HTTP_CLIENTS)[0],
            rounds: args.rounds(5),
            tokens,
            seed,
            reader_grace: reader_grace(args.session.threads.map(NonZeroUsize::get)),
            serve_arguments: serve_arguments(args),
        })
    } else if let Some(busy_threads) = args.contended {
        Box::new(Contention {
            workload: Workload::Decode {
                tokens,
                depth: 1,
                batch: 1,
            },
            busy_threads: busy_threads.get(),
            rounds: args.rounds(5),
        })
    } else if let Some(side) = args.encode {
        Box::new(Encoding {
            side: side.get(),
            rounds: args.rounds(5),
            seed,
        })
    } else if args.start {
        Box::new(Startup {
            rounds: args.rounds(5),
            run_arguments: run_arguments(args),
        })
    } else if let Some(mode) = args.speculative {
        let options = SpeculationOptions {
            mode,
            ..SpeculationOptions::default()
        };
        let lengths = (tokens, args.rounds(5));
        Box::new(Speculation::new(options, args.batches(1), lengths, seed))
    } else if args.constrained {
        Box::new(Constrained {
            batches: args.batches(1),
            tokens,
            rounds: args.rounds(5),
            seed,
        })
    } else if !args.work.is_empty() {
        Box::new(Workloads::new(args.work.clone()))
    } else if args.clients.is_empty() {
        Box::new(engine_overhead(args))
    } else {
        Box::new(clients(args, kv_disk)?)
    })
}

fn engine_overhead(args: &BenchArgs) -> EngineOverhead {
    let prompts = args.prompt_tokens.iter().map(|tokens| Workload::Prompt {
        tokens: tokens.get(),
    });
    let decodes = args.depth.iter().flat_map(|depth| {
        args.batches(1).into_iter().map(|batch| Workload::Decode {
            tokens: args.decode_tokens.get(),
            depth: depth.get(),
            batch,
        })
    });
    EngineOverhead {
        workloads: prompts.chain(decodes).collect(),
        rounds: args.rounds(5),
    }
}

fn clients(args: &BenchArgs, kv_disk: Option<DiskOptions>) -> Result<Clients, CliError> {
    let counts: Vec<usize> = args.clients.iter().map(|count| count.get()).collect();
    let most = counts.iter().copied().max().unwrap_or(1);
    if most > MAX_CLIENTS {
        return Err(CliError::Usage {
            what: format!("`--clients {most}`"),
            expected: format!("at most {MAX_CLIENTS}"),
        });
    }
    let until = match (args.seconds, args.requests) {
        (Some(seconds), _) => Until::Elapsed(Duration::from_secs(seconds.get() as u64)),
        (None, None) => Until::Requests(REQUESTS_PER_CLIENT * most),
        (None, Some(requests)) if requests.get() < most => {
            return Err(CliError::Usage {
                what: format!("`--requests {requests}`"),
                expected: format!("at least {most}, one for each client"),
            });
        }
        (None, Some(requests)) => Until::Requests(requests.get()),
    };
    Ok(Clients {
        counts,
        prompt: args.prompt_range,
        output: args.output_range,
        until,
        max_slowdown: args.max_slowdown,
        seed: args.seed,
        kv_disk,
    })
}

/// Arguments of `loquat serve` that open the same model the same way.
fn serve_arguments(args: &BenchArgs) -> Vec<String> {
    let session = &args.session;
    let model = args.model.iter().cloned();
    let offline = args.source.network.offline.then(|| "--offline".to_owned());
    let flags = given([
        ("--backend", Some(session.backend.clone())),
        ("--context", session.context.map(|it| it.to_string())),
        ("--threads", session.threads.map(|it| it.to_string())),
    ]);
    // The bare session computes each token in a step of its own.
    let plain = ["--speculative".to_owned(), "off".to_owned()];
    model.chain(flags).chain(offline).chain(plain).collect()
}

/// A `loquat run` command that opens the same model the same way and generates one token.
fn run_arguments(args: &BenchArgs) -> Vec<String> {
    const PROMPT: &str = "hi";
    let session = &args.session;
    let precision = session.precision.to_possible_value();
    let flags = given([
        ("--backend", Some(session.backend.clone())),
        ("--context", session.context.map(|it| it.to_string())),
        ("--memory", session.memory.map(units::budget_text)),
        ("--threads", session.threads.map(|it| it.to_string())),
        ("--precision", precision.map(|it| it.get_name().to_owned())),
        ("--kv-format", session.kv_format.map(|it| it.to_string())),
        ("--max-tokens", Some("1".to_owned())),
        ("--output", Some("events".to_owned())),
    ]);
    let words = ["run"].into_iter().chain(args.model.as_deref());
    let words = words.chain([PROMPT]).map(str::to_owned);
    words.chain(args.source.flags()).chain(flags).collect()
}

/// The flags that have a value.
fn given<const N: usize>(
    flags: [(&str, Option<String>); N],
) -> impl Iterator<Item = String> + use<'_, N> {
    let given = |(name, value): (&str, Option<String>)| Some([name.to_owned(), value?]);
    flags.into_iter().filter_map(given).flatten()
}
