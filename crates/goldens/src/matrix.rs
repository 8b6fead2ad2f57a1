//! The support matrix: family × format × backend, and how each was verified. A run writes or checks
//! the columns of its backend.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use loquat_spec::families;
use loquat_weights::Format;

use crate::backends::{BACKENDS, JudgedBackend};
use crate::discover::Origin;
use crate::error::Error;
use crate::grid::{EMPTY_CELL, Grid, column_heading};
use crate::lines::first_difference;
use crate::notes::{GGUF_DEFAULTS, REAL_WEIGHTS, UNSUPPORTED};
use crate::report::{Outcome, Report};
use crate::rounding::{power_of_ten, rounded_up};

const FORMATS: [Format; 3] = [Format::Safetensors, Format::Mlx, Format::Gguf];

const OPENING: &str = "\
# Which models run

Generated from runs of the committed goldens by `cargo xtask goldens --committed --write-matrix docs/support.md`, which writes the columns of one backend (`--backend mlx` for MLX's); `cargo xtask test` fails if the page differs from the runs. How each family was verified, in each format and on each backend:

- **golden**: tiny checkpoints of the family reproduce the logits of the reference implementation: whole prompts, token by token, and in chunks. The number is the worst absolute difference over all of them, rounded up; 1e-4 is allowed, and 1e-3 where MLX quantized the weights or computes. On `mlx`, MLX's CPU device was judged in fp32, and the number is a power of ten from 1e-4 up, because its results differ slightly between machines; `cpu`'s are bit-identical. `cuda` was judged in fp32 on one NVIDIA H200, in November 2026, and its numbers are powers of ten from 1e-5 up; where a vision model's reference has an error of its own above 5e-5, twice that is allowed.
- a model's name: its **real weights** reproduce transformers' log-probabilities and greedy texts.
- **loads only**: a checkpoint opens; there is no reference to compare it with.
- –: not verified; it may or may not load.
";

const VISION_HEADING: &str = "## Models that read pictures";

const VISION_OPENING: &str = "
The same for models with a vision part: features of pictures, logits of prompts with them, and greedy tokens, from preprocessed values, one image and two, text alone, and a video. Preprocessing of these files is equal to transformers' in every value, which the tests of `crates/media` check. GGUF models come with an `mmproj` file.

";

/// Headings of what does not depend on the backend.
const INPUTS: &str = "Inputs";
const CASES: &str = "Verified with";

/// The verification of one family in one format.
#[derive(Default)]
struct Cell {
    golden: Option<f32>,
    loads: bool,
    real: Vec<&'static str>,
}

impl Cell {
    fn text(&self, judged: &JudgedBackend) -> String {
        let rounded = |worst: f32| match judged.smallest_shown {
            None => rounded_up(worst),
            Some(smallest) => power_of_ten(worst.max(smallest)),
        };
        let golden = self
            .golden
            .map(|worst| format!("golden {}", rounded(worst)));
        let loads = (self.loads && self.golden.is_none()).then(|| "loads only".to_owned());
        let real = self.real.iter().map(|model| (*model).to_owned());
        let parts: Vec<String> = golden.into_iter().chain(loads).chain(real).collect();
        if parts.is_empty() {
            EMPTY_CELL.to_owned()
        } else {
            parts.join(", ")
        }
    }
}

type Rows = BTreeMap<String, [Cell; FORMATS.len()]>;

/// The page, with the columns of `judged` from the committed reports only, so that it is the same
/// on every machine, and the other columns from `before`.
fn page(judged: &JudgedBackend, reports: &[Report], before: &str) -> Result<String, Error> {
    if BACKENDS.iter().all(|known| known.name() != judged.name()) {
        let known: Vec<_> = BACKENDS.iter().map(JudgedBackend::name).collect();
        return Err(Error::NotInMatrix {
            backend: judged.name(),
            known: known.join(", "),
        });
    }
    let committed = reports.iter();
    let committed: Vec<&Report> = committed
        .filter(|report| report.origin == Origin::Committed)
        .collect();
    if committed.iter().any(|report| report.fails()) {
        return Err(Error::NoMatrix);
    }
    let mut rows = Rows::default();
    let (vision, text): (Vec<&Report>, Vec<&Report>) = committed
        .iter()
        .copied()
        .partition(|report| report.vision.is_some());
    for report in text {
        add_report(&mut rows, report);
    }
    add_real_weights(judged.name(), &mut rows);
    let (before, vision_before) = before.split_once(VISION_HEADING).unwrap_or((before, ""));
    let table = table(judged, &rows, &Grid::read(before));
    let vision = vision_table(judged, &vision, &Grid::read(vision_before));
    Ok(format!(
        "{OPENING}\n{table}{vision}{}{}{}",
        other_names(&committed),
        gguf_defaults(),
        unsupported()
    ))
}

fn add_report(rows: &mut Rows, report: &Report) {
    let (Some(family), Some(format)) = (&report.family, report.format) else {
        return;
    };
    let cell = cell(rows, family, format);
    match &report.outcome {
        Outcome::Equal(measured) => {
            let worst = cell.golden.unwrap_or(0.0).max(measured.worst());
            cell.golden = Some(worst);
        }
        Outcome::LoadsOnly => cell.loads = true,
        Outcome::TextOnly | Outcome::NotSupported { .. } | Outcome::Failed { .. } => {}
    }
}

/// Adds the rows of all models, even those of other backends, so that their columns are kept.
fn add_real_weights(backend: &str, rows: &mut Rows) {
    for real in REAL_WEIGHTS {
        let cell = cell(rows, real.family, real.format);
        if real.backend == backend {
            cell.real.push(real.model);
        }
    }
}

fn cell<'a>(rows: &'a mut Rows, family: &str, format: Format) -> &'a mut Cell {
    let column = match format {
        Format::Safetensors => 0,
        Format::Mlx => 1,
        Format::Gguf => 2,
    };
    &mut rows.entry(family.to_owned()).or_default()[column]
}

/// A heading for each format on each backend.
fn headings() -> Vec<String> {
    let names = || BACKENDS.iter().map(JudgedBackend::name);
    let headings = FORMATS
        .iter()
        .flat_map(|format| names().map(|name| column_heading(*format, name)));
    headings.collect()
}

/// The section of models that read pictures; empty if the run has none.
fn vision_table(judged: &JudgedBackend, reports: &[&Report], before: &Grid) -> String {
    if reports.is_empty() {
        return String::new();
    }
    let results = headings();
    let mut rows = Rows::default();
    let mut grid = Grid::default();
    let mut covered: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for report in reports {
        add_report(&mut rows, report);
        let (Some(family), Some(vision)) = (&report.family, &report.vision) else {
            continue;
        };
        let inputs = if vision.videos {
            "images, videos"
        } else {
            "images"
        };
        grid.set(family, INPUTS.to_owned(), inputs.to_owned());
        let cases = covered.entry(family).or_default();
        for case in &vision.cases {
            if !cases.contains(case) {
                cases.push(case);
            }
        }
        for heading in &results {
            if let Some(text) = before.get(family, heading) {
                grid.set(family, heading.clone(), text.to_owned());
            }
        }
    }
    for (family, cases) in covered {
        grid.set(family, CASES.to_owned(), cases.join(", "));
    }
    for (family, cells) in &rows {
        for (format, cell) in FORMATS.iter().zip(cells) {
            let heading = column_heading(*format, judged.name());
            grid.set(family, heading, cell.text(judged));
        }
    }
    let headings = [vec![INPUTS.to_owned(), CASES.to_owned()], results].concat();
    format!(
        "\n{VISION_HEADING}\n{VISION_OPENING}{}",
        grid.table(&headings)
    )
}

/// The families of this run, each format's backends side by side.
fn table(judged: &JudgedBackend, rows: &Rows, before: &Grid) -> String {
    let headings = headings();
    let mut grid = Grid::default();
    for (family, cells) in rows {
        for heading in &headings {
            if let Some(text) = before.get(family, heading) {
                grid.set(family, heading.clone(), text.to_owned());
            }
        }
        for (format, cell) in FORMATS.iter().zip(cells) {
            grid.set(
                family,
                column_heading(*format, judged.name()),
                cell.text(judged),
            );
        }
    }
    grid.table(&headings)
}

/// Names without a golden: aliases, and families that are not judged yet.
fn other_names(committed: &[&Report]) -> String {
    let families = committed
        .iter()
        .filter_map(|report| report.family.as_deref());
    let families: Vec<&str> = families.collect();
    let architectures = committed.iter();
    let architectures: Vec<&str> = architectures
        .filter_map(|report| report.architecture.as_deref())
        .collect();
    let types = unlisted(families::model_types(), &families);
    let architectures = unlisted(families::architectures(), &architectures);
    if types.is_empty() && architectures.is_empty() {
        return String::new();
    }
    let line = |title: &str, names: &[String]| {
        if names.is_empty() {
            String::new()
        } else {
            format!("- {title}: {}\n", names.join(", "))
        }
    };
    format!(
        "\n## Also read\n\nNames without a golden; most are aliases of families \
         above.\n\n{}{}",
        line("`model_type` in config.json", &types),
        line("`general.architecture` in GGUF", &architectures)
    )
}

/// `names` that are not among `known`, in order, as code.
fn unlisted(names: Vec<&str>, known: &[&str]) -> Vec<String> {
    let mut names: Vec<&str> = names;
    names.retain(|name| !known.contains(name));
    names.sort_unstable();
    names.dedup();
    names.iter().map(|name| format!("`{name}`")).collect()
}

fn gguf_defaults() -> String {
    let opening = "\n## What GGUF does not say\n\nIf the format has no key, the reader assumes \
                   what llama.cpp assumes; a GGUF file of a model that differs is read \
                   incorrectly.\n\n| Family | Assumption |\n|---|---|\n";
    opening.to_owned() + &two_columns(GGUF_DEFAULTS)
}

fn unsupported() -> String {
    let opening = "\n## Not supported yet\n\nFamilies that have a reference but do not run.\n\n\
                   | Family | What it would need |\n|---|---|\n";
    opening.to_owned() + &two_columns(UNSUPPORTED)
}

/// Rows of a comma-separated list of names, shown as code, and a text.
fn two_columns(rows: &[(&str, &str)]) -> String {
    let row = |(names, text): &(&str, &str)| {
        let names: Vec<String> = names.split(", ").map(|name| format!("`{name}`")).collect();
        format!("| {} | {text} |\n", names.join(", "))
    };
    rows.iter().map(row).collect()
}

/// Writes the columns of `judged` into the page; creates it if needed.
pub fn write(path: &Path, judged: &JudgedBackend, reports: &[Report]) -> Result<(), Error> {
    let before = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        read => read,
    };
    let page = page(judged, reports, &before.map_err(io_error(path))?)?;
    std::fs::write(path, page).map_err(io_error(path))
}

/// Fails with the first line that differs from the page for `reports`.
pub fn check(path: &Path, judged: &JudgedBackend, reports: &[Report]) -> Result<(), Error> {
    let found = std::fs::read_to_string(path).map_err(io_error(path))?;
    match first_difference(&found, &page(judged, reports, &found)?) {
        None => Ok(()),
        Some((line, found, expected)) => Err(Error::StaleMatrix {
            path: path.to_owned(),
            backend: judged.name(),
            line,
            page: found.to_owned(),
            run: expected.to_owned(),
        }),
    }
}

fn io_error(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io {
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples::{measured, report};

    fn judged(name: &str) -> &'static JudgedBackend {
        crate::backends::named(name).unwrap()
    }

    fn on_cpu(reports: &[Report]) -> Result<String, Error> {
        page(judged("cpu"), reports, "")
    }

    fn rows(page: &str) -> Vec<&str> {
        page.lines()
            .skip_while(|line| !line.starts_with("| Family |"))
            .take_while(|line| !line.is_empty())
            .collect()
    }

    fn committed(family: &str, format: Format, outcome: Outcome) -> Report {
        report(Origin::Committed, family, format, outcome)
    }

    #[test]
    fn family_shows_worst_golden_and_real_weights() {
        let equal = |worst| measured(worst).outcome();
        let reports = [
            committed("mamba2", Format::Gguf, Outcome::LoadsOnly),
            committed("llama", Format::Safetensors, equal(3e-6)),
            committed("llama", Format::Safetensors, equal(7.5e-6)),
            committed("llama", Format::Gguf, equal(5e-6)),
            committed("qwen2", Format::Mlx, equal(4e-5)),
            committed("qwen2", Format::Mlx, Outcome::LoadsOnly),
            report(Origin::Shared, "gemma", Format::Safetensors, equal(3e-6)),
        ];
        let page = on_cpu(&reports).unwrap();
        let expected = [
            "| Family | safetensors on `cpu` | safetensors on `mlx` | safetensors on `cuda` \
             | MLX safetensors on `cpu` | MLX safetensors on `mlx` | MLX safetensors on `cuda` \
             | GGUF on `cpu` | GGUF on `mlx` | GGUF on `cuda` |",
            "|---|---|---|---|---|---|---|---|---|---|",
            "| `gemma3_text` | – | – | – | – | – | – | Gemma-3-270M Q4_K_M | – | – |",
            "| `llama` | golden 8e-6 | – | – | – | – | – \
             | golden 5e-6, SmolLM2-135M-Instruct Q4_1 | – | – |",
            "| `mamba2` | – | – | – | – | – | – | loads only | – | – |",
            "| `qwen2` | – | – | – | golden 4e-5 | – | – | – | – | – |",
        ];
        assert_eq!(rows(&page), expected);
    }

    #[test]
    fn run_keeps_columns_of_other_backends() {
        let run = |name: &str, worst, before: &str| {
            let outcome = measured(worst).outcome();
            let reports = [committed("qwen2", Format::Safetensors, outcome)];
            page(judged(name), &reports, before).unwrap()
        };
        let both = run("mlx", 3e-6, &run("cpu", 2e-6, ""));
        let expected = "| `qwen2` | golden 2e-6 | golden 1e-4 | – | – | – | – | – | – | – |";
        let rows = rows(&both);
        assert!(rows.contains(&expected), "{rows:?}");
        assert_eq!(run("cpu", 2e-6, &both), both);
        assert_ne!(run("cpu", 3e-6, &both), both);
        assert_eq!(run("mlx", 3e-5, &both), both);
    }

    #[test]
    fn vision_models_have_a_table_of_their_own() {
        let run = |name: &str, outcome: Outcome, before: &str| {
            let mut vision = committed("llava", Format::Gguf, outcome);
            vision.vision = Some(crate::report::VisionReport {
                videos: true,
                cases: vec!["one image", "video"],
            });
            let text = committed("qwen2", Format::Gguf, measured(2e-6).outcome());
            page(judged(name), &[vision, text], before).unwrap()
        };
        let on_cpu = run("cpu", measured(2e-6).outcome(), "");
        let row = "| `llava` | images, videos | one image, video | – | – | – | – | – | – \
                   | golden 2e-6 | – | – |";
        assert!(on_cpu.contains(row), "{on_cpu}");
        assert!(!rows(&on_cpu).iter().any(|row| row.contains("llava")));
        // A backend that reads text only leaves the other columns.
        let both = run("mlx", Outcome::TextOnly, &on_cpu);
        assert!(both.contains(row), "{both}");
        let both = run("mlx", measured(2e-6).outcome(), &both);
        let row = row.replace("2e-6 | – |", "2e-6 | golden 1e-4 |");
        assert!(both.contains(&row), "{both}");
        assert_eq!(run("cpu", measured(2e-6).outcome(), &both), both);
    }

    #[test]
    fn names_without_golden_are_listed() {
        let reports = [
            committed("llama", Format::Gguf, measured(0.0).outcome()),
            committed("mistral", Format::Safetensors, measured(0.0).outcome()),
        ];
        let page = on_cpu(&reports).unwrap();
        let line = |title: &str| {
            let found = page.lines().find(|line| line.contains(title));
            found.unwrap_or_default().to_owned()
        };
        let types = line("`model_type`");
        let architectures = line("`general.architecture`");
        assert!(types.contains("`qwen2`") && architectures.contains("`qwen2`"));
        assert!(!types.contains("`llama`") && !architectures.contains("`llama`"));
        assert!(!types.contains("`mistral`"));
    }

    #[test]
    fn notes_are_listed() {
        let reports = [committed("llama", Format::Mlx, measured(0.0).outcome())];
        let page = on_cpu(&reports).unwrap();
        for (names, text) in GGUF_DEFAULTS.iter().chain(UNSUPPORTED) {
            let names = names.replace(", ", "`, `");
            assert!(
                page.contains(&format!("| `{names}` | {text} |\n")),
                "{names}"
            );
        }
    }

    #[test]
    fn failing_run_writes_no_matrix() {
        let bad = || measured(1.0).outcome();
        let committed = [committed("llama", Format::Mlx, bad())];
        assert!(matches!(on_cpu(&committed), Err(Error::NoMatrix)));
        let not_committed = [report(Origin::CommandLine, "llama", Format::Mlx, bad())];
        assert!(on_cpu(&not_committed).is_ok());
    }

    #[test]
    fn stale_page_is_refused_with_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("support.md");
        let cpu = judged("cpu");
        let run = |worst| [committed("llama", Format::Gguf, measured(worst).outcome())];
        assert!(matches!(
            check(&path, cpu, &run(2e-6)),
            Err(Error::Io { .. })
        ));
        write(&path, cpu, &run(2e-6)).unwrap();
        assert!(check(&path, cpu, &run(2e-6)).is_ok());
        let error = check(&path, cpu, &run(3e-6)).unwrap_err();
        assert!(
            matches!(&error, Error::StaleMatrix { backend: "cpu", page, run, .. }
                if page.contains("golden 2e-6") && run.contains("golden 3e-6")),
            "{error}"
        );
    }
}
