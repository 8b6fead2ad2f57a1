//! `cargo xtask goldens`: compares the logits of checkpoints on a backend with those of other
//! implementations, and writes or checks the support matrix of the docs.
//!
//! Development only. It uses sessions directly, because it tests a backend's results, not the
//! engine's scheduling. It does not generate goldens.

mod args;
mod backends;
mod discover;
mod error;
mod golden;
mod grid;
mod judge;
mod lines;
mod matrix;
mod notes;
mod report;
mod rounding;
mod table;
mod vision;
mod vision_judge;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use loquat_session::Probe;

use args::Args;
use backends::JudgedBackend;
use discover::Set;
use error::Error;
use judge::Judge;
use report::Report;
use table::Table;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("goldens: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every checkpoint passed.
fn run(args: &Args) -> Result<bool, Error> {
    require_available(args.backend)?;
    let sets = discover::sets(args)?;
    let judge = Judge {
        judged: args.backend,
        prefer_hf: args.prefer_hf,
    };
    let reports = if args.json {
        print_json(&judge, &sets)?
    } else {
        print_table(&judge, &sets)?
    };
    if let Some(path) = &args.write_matrix {
        matrix::write(path, args.backend, &reports)?;
    }
    if let Some(path) = &args.check_matrix {
        matrix::check(path, args.backend, &reports)?;
    }
    Ok(!reports.iter().any(Report::fails))
}

fn require_available(judged: &JudgedBackend) -> Result<(), Error> {
    match judged.backend.probe() {
        Probe::Available(_) => Ok(()),
        Probe::Unavailable { why, remedy } => Err(Error::Unavailable {
            backend: judged.name(),
            why,
            remedy,
        }),
    }
}

/// Prints each row as soon as it is judged.
fn print_table(judge: &Judge, sets: &[Set]) -> Result<Vec<Report>, Error> {
    let mut out = std::io::stdout();
    let table = Table::new(sets);
    writeln!(out, "{}", table.header())?;
    let mut reports = Vec::new();
    for set in sets {
        writeln!(out, "-- {}", set.title)?;
        for case in &set.cases {
            let report = judge.judge(set, case);
            writeln!(out, "{}", table.row(&report))?;
            reports.push(report);
        }
    }
    let summary = table::summary(judge.judged.name(), &reports);
    write!(out, "{summary}")?;
    Ok(reports)
}

fn print_json(judge: &Judge, sets: &[Set]) -> Result<Vec<Report>, Error> {
    let judged = |set| move |case| judge.judge(set, case);
    let reports: Vec<Report> = sets
        .iter()
        .flat_map(|set| set.cases.iter().map(judged(set)))
        .collect();
    let mut out = std::io::stdout();
    serde_json::to_writer_pretty(&mut out, &reports)?;
    writeln!(out)?;
    Ok(reports)
}
