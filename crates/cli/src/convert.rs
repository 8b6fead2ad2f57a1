//! `loquat convert`: converts a model to another format or quantization and reports the error.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loquat::AdapterFile;
use loquat_convert::{
    Conversion, MergedAdapter, Quant, QuantizationError, Report, Step, Target, convert,
};
use loquat_store::{ResolvedModel, Store, path_reference, reference_path};
use serde_json::{Value, json};

use crate::args::ConvertArgs;
use crate::error::CliError;
use crate::load::{locate, open_store_on};
use crate::progress::{DownloadBar, ShareBar};
use crate::terminal::{bytes, print, print_json, remark};

pub fn run(args: &ConvertArgs) -> Result<(), CliError> {
    let target: Target = args.to.into();
    let quant = match &args.quant {
        Some(name) => Quant::parse(target, name, args.group_size)?,
        None => Quant::default_of(target),
    };
    let store = open_store_on(args.source.network)?;
    let choice = args.source.choice(args.model.as_deref());
    let source = locate(&store, &choice)?;
    // A download's directory is named by hash, so the reference is the better name.
    let name = choice
        .reference
        .as_deref()
        .filter(|name| !reference_path(name).exists());
    let locate = |adapter: &AdapterFile| {
        let reference = path_reference(&adapter.path);
        store.locate_adapter(&reference, &mut DownloadBar::default())
    };
    let located: Vec<ResolvedModel> = args.adapters.iter().map(locate).collect::<Result<_, _>>()?;
    let adapters: Vec<MergedAdapter> = located
        .iter()
        .zip(&args.adapters)
        .map(|(located, adapter)| MergedAdapter {
            path: &located.path,
            scale: adapter.scale,
        })
        .collect();
    let interrupted = listen_for_interrupt()?;
    let bar = ShareBar::start(&format!("converting to {}", args.output.display()));
    let (mut total, mut done) = (0, 0);
    let start = Instant::now();
    let report = convert(
        &Conversion {
            source: &source.path,
            adapters: &adapters,
            out: &args.output,
            target,
            quant,
            dtype: args.dtype.map(Into::into),
            name,
            requantize: args.requantize,
            force: args.force,
            records: Some(&records(&store)),
        },
        &mut |step| {
            match step {
                Step::Begin(values) => total = values,
                Step::Values(values) => done += values,
                Step::Tensor(_) => {}
            }
            bar.set(done as f32 / (total.max(1)) as f32);
            !interrupted.load(Ordering::Relaxed)
        },
    )?;
    drop(bar);
    let summary = ConversionSummary {
        args,
        report: &report,
        elapsed: start.elapsed(),
    };
    if args.json {
        print_json(&summary.json())
    } else {
        report
            .notes
            .iter()
            .for_each(|note| remark(&format!("note: {note}")));
        print(&summary.text())
    }
}

/// Where work folders of models are recorded while they are written, for `loquat prune`.
pub fn records(store: &Store) -> PathBuf {
    store.cache_dir().join("conversions")
}

/// Ctrl-C and requests to terminate end the conversion between two blocks of rows, so that it can
/// clean up.
fn listen_for_interrupt() -> Result<Arc<AtomicBool>, CliError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let handler = {
        let interrupted = Arc::clone(&interrupted);
        move || interrupted.store(true, Ordering::Relaxed)
    };
    ctrlc::set_handler(handler).map_err(|error| CliError::Terminal(error.to_string()))?;
    #[cfg(unix)]
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .map_err(|error| CliError::Terminal(error.to_string()))?;
    }
    Ok(interrupted)
}

struct ConversionSummary<'a> {
    args: &'a ConvertArgs,
    report: &'a Report,
    elapsed: Duration,
}

impl ConversionSummary<'_> {
    fn text(&self) -> String {
        let report = self.report;
        let types: Vec<String> = report
            .by_type()
            .iter()
            .map(|(name, (count, size))| format!("{count} × {name} ({})", bytes(*size)))
            .collect();
        let mut rows = vec![
            ("output", self.args.output.display().to_string()),
            (
                "size",
                format!("{} of {}", bytes(report.bytes), bytes(report.source_bytes)),
            ),
            (
                "bits per weight",
                format!("{:.2}", report.bits_per_weight()),
            ),
            ("tensors", types.join(", ")),
            ("quantization error", relative(&report.whole())),
        ];
        if let Some(worst) = report.worst() {
            let error = relative(&worst.error);
            rows.push(("worst tensor", format!("{error} in {}", worst.name)));
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        for (name, value) in rows {
            let _ = writeln!(text, "{name:<21}{value}");
        }
        for (class, error) in report.by_class() {
            let _ = writeln!(text, "  {:<19}{}", class.name(), relative(&error));
        }
        let _ = writeln!(text, "{:<21}{:.1} s", "time", self.elapsed.as_secs_f64());
        text
    }

    fn json(&self) -> Value {
        let report = self.report;
        let classes: serde_json::Map<String, Value> = report
            .by_class()
            .iter()
            .map(|(class, error)| (class.name().to_owned(), as_json(error)))
            .collect();
        let tensors: Vec<Value> = report
            .tensors
            .iter()
            .map(|tensor| {
                json!({
                    "name": tensor.name, "stored": tensor.stored, "bytes": tensor.bytes,
                    "quantized": tensor.quantized, "error": as_json(&tensor.error),
                })
            })
            .collect();
        json!({
            "output": self.args.output.to_string_lossy(),
            "bytes": report.bytes,
            "source_bytes": report.source_bytes,
            "bits_per_weight": report.bits_per_weight(),
            "error": as_json(&report.whole()),
            "classes": classes,
            "worst": report.worst().map(|worst| worst.name.as_str()),
            "seconds": self.elapsed.as_secs_f64(),
            "notes": report.notes,
            "tensors": tensors,
        })
    }
}

fn relative(error: &QuantizationError) -> String {
    match error.relative() {
        0.0 => "none".to_owned(),
        relative => format!("{:.3} % (largest {:.3e})", relative * 100.0, error.largest),
    }
}

fn as_json(error: &QuantizationError) -> Value {
    json!({
        "relative_rms": error.relative(), "largest": error.largest, "values": error.values,
    })
}
