//! The result of a scenario, as text, as JSON and as a figure.

use std::time::Duration;

use serde_json::{Value, json};

use super::figure::Figure;

/// A scenario's results.
pub struct Report {
    /// What the numbers are; follows the model and the device.
    pub heading: String,
    pub text: String,
    /// An object; its fields follow those of the head.
    pub json: Value,
    pub figure: Option<Figure>,
    /// The checks that failed.
    pub failures: Vec<String>,
}

/// What every report starts with.
pub struct ReportHead {
    pub scenario: &'static str,
    pub model: String,
    pub device: String,
    /// Opening the session.
    pub load: Duration,
    /// From the start of the command until the session is open.
    pub ready: Duration,
}

impl ReportHead {
    /// The caption of a figure.
    pub fn caption(&self) -> String {
        format!("{} on {}", self.model, self.device)
    }
}

impl Report {
    /// A report of text and JSON alone.
    pub(crate) fn new(heading: String, text: String, json: Value) -> Self {
        Self {
            heading,
            text,
            json,
            figure: None,
            failures: Vec::new(),
        }
    }

    pub fn to_text(&self, head: &ReportHead) -> String {
        let load = head.load.as_secs_f64();
        let (caption, heading) = (head.caption(), &self.heading);
        format!(
            "{caption}, loaded in {load:.2} s, {heading}\n\n{}",
            self.text
        )
    }

    pub fn to_json(&self, head: &ReportHead) -> Value {
        let mut json = json!({
            "scenario": head.scenario,
            "model": head.model,
            "device": head.device,
            "load_seconds": head.load.as_secs_f64(),
            "ready_seconds": head.ready.as_secs_f64(),
        });
        if let (Value::Object(head), Value::Object(body)) = (&mut json, &self.json) {
            head.extend(body.clone());
        }
        json
    }
}

/// How a report says that its numbers are medians.
pub(crate) fn rounds_heading(rounds: usize) -> String {
    match rounds {
        1 => "one round".to_owned(),
        rounds => format!("median of {rounds} rounds"),
    }
}

/// A table whose columns are as wide as their widest cell. The first row is the heading.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns aligned to the left; the others are aligned to the right.
    left: usize,
}

impl Table {
    const GAP: &str = "  ";

    /// A table with one column of names and then columns of numbers.
    pub fn new(headings: &[&str]) -> Self {
        Self::with_text_columns(headings, 1)
    }

    /// A table of text, aligned to the left.
    pub fn text_only(headings: &[&str]) -> Self {
        Self::with_text_columns(headings, headings.len())
    }

    /// A table whose first `text_columns` columns are text, aligned to the left.
    pub fn with_text_columns(headings: &[&str], text_columns: usize) -> Self {
        Self {
            rows: vec![headings.iter().map(|name| (*name).to_owned()).collect()],
            left: text_columns,
        }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate();
            let cells: Vec<String> = cells
                .map(|(column, (cell, &width))| {
                    if column < self.left {
                        format!("{cell:<width$}")
                    } else {
                        format!("{cell:>width$}")
                    }
                })
                .collect();
            cells.join(Self::GAP).trim_end().to_owned() + "\n"
        };
        self.rows.iter().map(line).collect()
    }
}

/// A number with so many decimals, or a dash if nothing was measured.
pub(crate) fn number(value: f64, decimals: usize) -> String {
    if value.is_finite() {
        format!("{value:.decimals$}")
    } else {
        "–".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_widest_cell() {
        let mut table = Table::new(&["", "speed", "p95"]);
        table.row(["4 × 2".into(), number(12.345, 1), number(f64::NAN, 1)]);
        table.row(["longer".into(), number(1234.5, 1), number(7.0, 1)]);
        let expected = "         speed  p95\n4 × 2     12.3    –\nlonger  1234.5  7.0\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn text_columns_are_aligned_left() {
        let mut table = Table::text_only(&["A", "LONG", "C"]);
        table.row(["é".into(), "x".into(), String::new()]);
        table.row(["abc".into(), "y".into(), "z".into()]);
        assert_eq!(table.text(), "A    LONG  C\né    x\nabc  y     z\n");
    }

    #[test]
    fn json_body_follows_head() {
        let head = ReportHead {
            scenario: "s",
            model: "m".to_owned(),
            device: "d".to_owned(),
            load: Duration::from_secs(1),
            ready: Duration::from_secs(2),
        };
        let report = Report::new(String::new(), String::new(), json!({ "results": [1] }));
        let json = report.to_json(&head);
        assert_eq!(json["ready_seconds"], 2.0);
        assert_eq!(json["results"], json!([1]));
        let text = json.to_string();
        assert!(text.find("model") < text.find("results"));
    }
}
