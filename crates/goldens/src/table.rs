//! Prints a run as a table, followed by notes and reasons.

use crate::discover::Set;
use crate::notes;
use crate::report::{Chunks, Outcome, Report};

/// The length of the longest family name.
const FAMILY_WIDTH: usize = 18;
const FORMAT_WIDTH: usize = 16;
const NUMBER_WIDTH: usize = 9;

/// Column widths, computed before the first checkpoint is judged.
pub struct Table {
    name_width: usize,
}

impl Table {
    pub fn new(sets: &[Set]) -> Self {
        let names = sets.iter().flat_map(|set| &set.cases);
        let widths = names.map(|case| case.name.chars().count());
        Self {
            name_width: widths.chain([4]).max().unwrap_or_default(),
        }
    }

    pub fn header(&self) -> String {
        self.line(
            [
                "name", "family", "format", "prompt_a", "prompt_b", "greedy", "chunks",
            ],
            "verdict",
        )
    }

    pub fn row(&self, report: &Report) -> String {
        let measured = report.measured();
        let number = |difference: Option<f32>| match difference {
            Some(difference) => format!("{difference:.1e}"),
            None => "-".to_owned(),
        };
        let chunks = match measured.map(|measured| measured.chunks) {
            None => "-".to_owned(),
            Some(Chunks::Identical) => "equal".to_owned(),
            Some(Chunks::Differ { by, .. }) => format!("{by:.1e}"),
        };
        self.line(
            [
                &report.name,
                report.family.as_deref().unwrap_or("-"),
                report.format.map_or("-", |format| format.name()),
                &number(measured.map(|measured| measured.prompt_a)),
                &number(measured.map(|measured| measured.prompt_b)),
                &number(measured.and_then(|measured| measured.greedy)),
                &chunks,
            ],
            verdict(report),
        )
    }

    fn line(&self, cells: [&str; 7], verdict: &str) -> String {
        let [name, family, format, a, b, greedy, chunks] = cells;
        let width = self.name_width;
        format!(
            "{name:<width$}  {family:<FAMILY_WIDTH$}{format:<FORMAT_WIDTH$}\
             {a:>NUMBER_WIDTH$}{b:>NUMBER_WIDTH$}{greedy:>NUMBER_WIDTH$}{chunks:>NUMBER_WIDTH$}  \
             {verdict}"
        )
    }
}

fn verdict(report: &Report) -> &'static str {
    match &report.outcome {
        Outcome::Equal(_) => "ok",
        Outcome::LoadsOnly => "loads only",
        Outcome::TextOnly => "text only",
        Outcome::NotSupported { .. } => "not supported",
        Outcome::Failed { .. } => "FAILED",
    }
}

/// Notes, reasons and totals below the table.
pub fn summary(backend: &str, reports: &[Report]) -> String {
    let notes = reports.iter().filter_map(|report| {
        let note = report.note.as_ref()?;
        Some(format!("{}: {note}", report.name))
    });
    let not_supported = reports.iter().filter_map(|report| match &report.outcome {
        Outcome::NotSupported { model_type, why } => Some(format!(
            "{}: {why}; it would need {}",
            report.name,
            // GGUF may use another name for the family than the golden does.
            notes::needs(model_type)
                .or_else(|| notes::needs(&report.name))
                .unwrap_or("changes that are not known yet")
        )),
        _ => None,
    });
    let failed = reports.iter().filter_map(|report| match &report.outcome {
        Outcome::Failed { why, .. } => Some(format!("{}/{}: {why}", report.set, report.name)),
        _ => None,
    });
    let mut text = String::new();
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text += &format!("\n{title}\n  {}\n", lines.join("\n  "));
        }
    };
    section("Notes", notes.collect());
    section("Not supported", not_supported.collect());
    section("FAILED", failed.collect());
    text + "\n" + &totals(backend, reports)
}

fn totals(backend: &str, reports: &[Report]) -> String {
    let count = |kind: &str| {
        let matching = reports.iter().filter(|report| verdict(report) == kind);
        matching.count()
    };
    let kinds = ["ok", "loads only", "text only", "not supported", "FAILED"];
    let counts = kinds.map(|kind| (count(kind), kind));
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(n, kind)| format!("{n} {kind}")).collect();
    format!(
        "goldens: {} judged on {backend}: {}\n",
        reports.len(),
        counts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use loquat_weights::Format;

    use super::*;
    use crate::discover::Origin;
    use crate::report::samples::{measured, report};

    fn reports() -> [Report; 4] {
        let unknown = Outcome::NotSupported {
            model_type: "apertus".into(),
            why: "no family reads it".into(),
        };
        let mut noted = report(
            Origin::Shared,
            "qwen2",
            Format::Mlx,
            measured(3e-6).outcome(),
        );
        noted.note = Some("greedy is not judged".into());
        let mut unsupported = report(Origin::Shared, "apertus", Format::Safetensors, unknown);
        (unsupported.family, unsupported.format) = (None, None);
        [
            noted,
            report(
                Origin::Committed,
                "llama",
                Format::Safetensors,
                measured(0.25).outcome(),
            ),
            report(
                Origin::CommandLine,
                "mamba2",
                Format::Gguf,
                Outcome::LoadsOnly,
            ),
            unsupported,
        ]
    }

    #[test]
    fn every_verdict_has_its_row() {
        let table = Table { name_width: 8 };
        let rows = reports().map(|report| table.row(&report));
        let lines = [&[table.header()][..], &rows].concat().join("\n");
        let expected = "\
name      family            format           prompt_a prompt_b   greedy   chunks  verdict
qwen2     qwen2             MLX safetensors    1.0e-6   3.0e-6   2.0e-6    equal  ok
llama     llama             safetensors        1.0e-6   2.5e-1   2.0e-6    equal  FAILED
mamba2    mamba2            GGUF                    -        -        -        -  loads only
apertus   -                 -                       -        -        -        -  not supported";
        assert_eq!(lines, expected);
    }

    #[test]
    fn summary_has_reasons_and_totals() {
        let expected = format!(
            "
Notes
  qwen2: greedy is not judged

Not supported
  apertus: no family reads it; it would need {}

FAILED
  set/llama: prompt_b differs by 2.5e-1; the limit is 1e-4

goldens: 4 judged on cpu: 1 ok, 1 loads only, 1 not supported, 1 FAILED
",
            notes::needs("apertus").unwrap()
        );
        assert_eq!(summary("cpu", &reports()), expected);
        assert_eq!(summary("cpu", &[]), "\ngoldens: 0 judged on cpu: \n");
    }
}
