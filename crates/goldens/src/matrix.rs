//! The support matrix: family × format × backend, with how each was verified. A page that is
//! generated from a run, and checked against one.

use std::collections::BTreeMap;
use std::path::Path;

use loquat_spec::families;
use loquat_weights::Format;

use crate::discover::Origin;
use crate::error::Error;
use crate::knowledge::{REAL_WEIGHTS, UNSAID_IN_GGUF, UNSUPPORTED};
use crate::lines::first_difference;
use crate::report::{Outcome, Report};

const FORMATS: [Format; 3] = [Format::Safetensors, Format::Mlx, Format::Gguf];

const OPENING: &str = "\
# Which models run

Generated from a run of the committed goldens by `cargo xtask goldens --committed --write-matrix docs/support.md`; `cargo xtask test` fails when the page says anything else than the run. How each family was verified, in each format and on each backend:

- **golden**: tiny checkpoints of the family give the logits that the reference implementation computed, as a whole, token by token, and in chunks. The number is the worst absolute difference over all of them, rounded up; 1e-4 is allowed, and 1e-3 where MLX quantized the weights.
- a model's name: its **real weights** give transformers' log-probabilities and greedy texts.
- **loads only**: a checkpoint opens, with no reference to compare it with.
- –: not verified; it may load or not.
";

/// The best that is known of one family in one format.
#[derive(Default)]
struct Cell {
    golden: Option<f32>,
    loads: bool,
    real: Vec<&'static str>,
}

impl Cell {
    fn text(&self) -> String {
        let golden = self
            .golden
            .map(|worst| format!("golden {}", rounded_up(worst)));
        let loads = (self.loads && self.golden.is_none()).then(|| "loads only".to_owned());
        let real = self.real.iter().map(|model| (*model).to_owned());
        let parts: Vec<String> = golden.into_iter().chain(loads).chain(real).collect();
        match parts.is_empty() {
            true => "–".to_owned(),
            false => parts.join(", "),
        }
    }
}

type Rows = BTreeMap<String, [Cell; FORMATS.len()]>;

/// The page, from the committed reports alone: what else lies about on a machine must not
/// change it.
pub fn page(reports: &[Report]) -> Result<String, Error> {
    let committed = reports.iter();
    let committed: Vec<&Report> = committed
        .filter(|report| report.origin == Origin::Committed)
        .collect();
    if committed.iter().any(|report| report.fails()) {
        return Err(Error::NoMatrix);
    }
    let mut text = OPENING.to_owned();
    let mut backends: BTreeMap<&str, Rows> = BTreeMap::new();
    for report in &committed {
        enter(backends.entry(report.backend).or_default(), report);
    }
    for (backend, mut rows) in backends {
        add_real_weights(backend, &mut rows);
        text += &format!("\n## On `{backend}`\n\n{}", table(&rows));
    }
    Ok(text + &other_names(&committed) + &unsaid_in_gguf() + &unsupported())
}

fn enter(rows: &mut Rows, report: &Report) {
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
        Outcome::NotSupported { .. } | Outcome::Failed { .. } => {}
    }
}

fn add_real_weights(backend: &str, rows: &mut Rows) {
    for real in REAL_WEIGHTS.iter().filter(|real| real.backend == backend) {
        cell(rows, real.family, real.format).real.push(real.model);
    }
}

fn cell<'a>(rows: &'a mut Rows, family: &str, format: Format) -> &'a mut Cell {
    let place = match format {
        Format::Safetensors => 0,
        Format::Mlx => 1,
        Format::Gguf => 2,
    };
    &mut rows.entry(family.to_owned()).or_default()[place]
}

fn table(rows: &Rows) -> String {
    let heads = FORMATS.map(Format::name).join(" | ");
    let rows = rows.iter().map(|(family, cells)| {
        let cells: Vec<String> = cells.iter().map(Cell::text).collect();
        format!("| `{family}` | {} |\n", cells.join(" | "))
    });
    format!("| Family | {heads} |\n|---|---|---|---|\n") + &rows.collect::<String>()
}

/// Names that load without a golden of their own: aliases, and families still to be judged.
fn other_names(committed: &[&Report]) -> String {
    let families = committed
        .iter()
        .filter_map(|report| report.family.as_deref());
    let families: Vec<&str> = families.collect();
    let architectures = committed.iter();
    let architectures: Vec<&str> = architectures
        .filter_map(|report| report.architecture.as_deref())
        .collect();
    let types = without(families::model_types(), &families);
    let architectures = without(families::architectures(), &architectures);
    if types.is_empty() && architectures.is_empty() {
        return String::new();
    }
    let line = |title: &str, names: &[String]| match names.is_empty() {
        true => String::new(),
        false => format!("- {title}: {}\n", names.join(", ")),
    };
    format!(
        "\n## Also read\n\nNames without a golden of their own; most are further names of \
         families above.\n\n{}{}",
        line("`model_type` in config.json", &types),
        line("`general.architecture` in GGUF", &architectures)
    )
}

/// `names` that are not among `known`, in order, as code.
fn without(names: Vec<&str>, known: &[&str]) -> Vec<String> {
    let mut names: Vec<&str> = names;
    names.retain(|name| !known.contains(name));
    names.sort_unstable();
    names.dedup();
    names.iter().map(|name| format!("`{name}`")).collect()
}

fn unsaid_in_gguf() -> String {
    let opening = "\n## What GGUF does not say\n\nWhere the format has no key, the reader takes \
                   for granted what llama.cpp does; a model that is otherwise cannot be told from \
                   its file.\n\n| Family | Taken for granted |\n|---|---|\n";
    opening.to_owned() + &two_columns(UNSAID_IN_GGUF)
}

fn unsupported() -> String {
    let opening = "\n## Not yet\n\nFamilies that have a reference and do not run.\n\n\
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

/// To one digit, never below the value: a page should not change with a compiler's mood.
fn rounded_up(difference: f32) -> String {
    // The shortest text that reads back as the same number, so that 3e-6 stays 3e-6.
    let text = format!("{difference:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text;
    };
    let digit = mantissa.chars().next().and_then(|digit| digit.to_digit(10));
    let (Some(digit), Ok(exponent)) = (digit, exponent.parse::<i32>()) else {
        return text;
    };
    match (digit, mantissa.len() > 1) {
        (0, _) => "0".to_owned(),
        (digit, false) => format!("{digit}e{exponent}"),
        (9, true) => format!("1e{}", exponent + 1),
        (digit, true) => format!("{}e{exponent}", digit + 1),
    }
}

pub fn write(path: &Path, page: &str) -> Result<(), Error> {
    std::fs::write(path, page).map_err(in_file(path))
}

/// An error that shows the first line in which the file differs from `page`.
pub fn check(path: &Path, page: &str) -> Result<(), Error> {
    let found = std::fs::read_to_string(path).map_err(in_file(path))?;
    match first_difference(&found, page) {
        None => Ok(()),
        Some((line, found, expected)) => Err(Error::StaleMatrix {
            path: path.to_owned(),
            line,
            page: found.to_owned(),
            run: expected.to_owned(),
        }),
    }
}

fn in_file(path: &Path) -> impl Fn(std::io::Error) -> Error {
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

    #[test]
    fn differences_are_rounded_up_to_one_digit() {
        let table = [
            (0.0, "0"),
            (3e-6, "3e-6"),
            (3.01e-6, "4e-6"),
            (9.1e-6, "1e-5"),
            (9e-6, "9e-6"),
            (0.25, "3e-1"),
            (1.0, "1e0"),
        ];
        for (difference, expected) in table {
            assert_eq!(rounded_up(difference), expected);
        }
    }

    fn committed(family: &str, format: Format, outcome: Outcome) -> Report {
        report(Origin::Committed, family, format, outcome)
    }

    #[test]
    fn a_family_shows_its_worst_golden_and_all_else_that_is_known() {
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
        let page = page(&reports).unwrap();
        let rows: Vec<&str> = page
            .lines()
            .skip_while(|line| *line != "## On `cpu`")
            .skip(2)
            .take_while(|line| !line.is_empty())
            .collect();
        let expected = [
            "| Family | safetensors | MLX safetensors | GGUF |",
            "|---|---|---|---|",
            "| `gemma3_text` | – | – | Gemma-3-270M Q4_K_M |",
            "| `llama` | golden 8e-6 | – | golden 5e-6, SmolLM2-135M-Instruct Q4_1 |",
            "| `mamba2` | – | – | loads only |",
            "| `qwen2` | – | golden 4e-5 | – |",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn names_without_a_golden_are_listed() {
        let reports = [
            committed("llama", Format::Gguf, measured(0.0).outcome()),
            committed("mistral", Format::Safetensors, measured(0.0).outcome()),
        ];
        let page = page(&reports).unwrap();
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
    fn what_only_people_know_is_listed() {
        let reports = [committed("llama", Format::Mlx, measured(0.0).outcome())];
        let page = page(&reports).unwrap();
        for (names, text) in UNSAID_IN_GGUF.iter().chain(UNSUPPORTED) {
            let names = names.replace(", ", "`, `");
            assert!(
                page.contains(&format!("| `{names}` | {text} |\n")),
                "{names}"
            );
        }
    }

    #[test]
    fn a_run_that_fails_tells_no_matrix() {
        let bad = || measured(1.0).outcome();
        let committed = [committed("llama", Format::Mlx, bad())];
        assert!(matches!(page(&committed), Err(Error::NoMatrix)));
        let elsewhere = [report(Origin::Given, "llama", Format::Mlx, bad())];
        assert!(page(&elsewhere).is_ok());
    }

    #[test]
    fn a_stale_page_is_refused_with_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("support.md");
        assert!(matches!(check(&path, "a\nb\n"), Err(Error::Io { .. })));
        write(&path, "a\nb\n").unwrap();
        assert!(check(&path, "a\nb\n").is_ok());
        let error = check(&path, "a\nc\n").unwrap_err();
        assert!(
            matches!(&error, Error::StaleMatrix { line: 2, page, run, .. } if page == "b" && run == "c"),
            "{error}"
        );
    }
}
