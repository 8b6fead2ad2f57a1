//! What a scenario tells: text for people, JSON for programs, a figure for both.

use serde_json::Value;

use super::figure::Figure;

/// A scenario's results.
pub struct Report {
    /// What the numbers are, after the model and the device.
    pub heading: String,
    pub text: String,
    /// An object; its fields follow those that all scenarios have.
    pub json: Value,
    pub figure: Option<Figure>,
    /// What should have held and did not.
    pub failures: Vec<String>,
}

/// Columns under their names: the first to the left, the others to the right.
pub struct Table(Vec<Vec<String>>);

impl Table {
    const GAP: usize = 2;

    pub fn new(names: &[&str]) -> Self {
        Self(vec![names.iter().map(|name| (*name).to_owned()).collect()])
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.0.push(cells);
    }

    pub fn text(&self) -> String {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.0.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate();
            let line: String = cells
                .map(|(column, (cell, &width))| match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}", width = width + Self::GAP),
                })
                .collect();
            line.trim_end().to_owned() + "\n"
        };
        self.0.iter().map(line).collect()
    }
}

/// A number with so many decimals, or a dash where nothing was measured.
pub fn number(value: f64, decimals: usize) -> String {
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
    fn columns_are_as_wide_as_their_widest() {
        let mut table = Table::new(&["", "speed", "p95"]);
        table.row(vec!["4 × 2".into(), number(12.345, 1), number(f64::NAN, 1)]);
        table.row(vec!["longer".into(), number(1234.5, 1), number(7.0, 1)]);
        let expected = "         speed  p95\n4 × 2     12.3    –\nlonger  1234.5  7.0\n";
        assert_eq!(table.text(), expected);
    }
}
