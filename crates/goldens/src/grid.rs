//! The table of the support matrix. It is parsed from the existing page, so that a run on one
//! backend keeps the columns of the others.

use std::collections::BTreeMap;

use loquat_weights::Format;

pub const EMPTY_CELL: &str = "–";
const FIRST_HEADING: &str = "Family";

/// Cells by family and column heading.
#[derive(Default)]
pub struct Grid(BTreeMap<String, BTreeMap<String, String>>);

/// The heading of a column.
pub fn column_heading(format: Format, backend: &str) -> String {
    format!("{} on `{backend}`", format.name())
}

impl Grid {
    /// The table of a page; empty if it has none.
    pub fn read(page: &str) -> Self {
        let mut grid = Self::default();
        let opening = format!("| {FIRST_HEADING} | ");
        let mut lines = page.lines().skip_while(|line| !line.starts_with(&opening));
        let headings: Vec<&str> = lines.next().map(cells).unwrap_or_default();
        for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
            let row = cells(line);
            let Some((family, texts)) = row.split_first() else {
                continue;
            };
            for (heading, text) in headings.iter().skip(1).zip(texts) {
                grid.set(
                    family.trim_matches('`'),
                    (*heading).to_owned(),
                    (*text).to_owned(),
                );
            }
        }
        grid
    }

    pub fn get(&self, family: &str, heading: &str) -> Option<&str> {
        self.0.get(family)?.get(heading).map(String::as_str)
    }

    pub fn set(&mut self, family: &str, heading: String, text: String) {
        let row = self.0.entry(family.to_owned()).or_default();
        row.insert(heading, text);
    }

    /// A row for every family, with these columns.
    pub fn table(&self, headings: &[String]) -> String {
        let title = format!("| {FIRST_HEADING} | {} |\n", headings.join(" | "));
        let rule = format!("|---{}|\n", "|---".repeat(headings.len()));
        let rows = self.0.keys().map(|family| {
            let texts = headings.iter().map(|heading| self.get(family, heading));
            let texts: Vec<&str> = texts.map(|text| text.unwrap_or(EMPTY_CELL)).collect();
            format!("| `{family}` | {} |\n", texts.join(" | "))
        });
        title + &rule + &rows.collect::<String>()
    }
}

fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# Title

| Family | a on `x` | a on `y` |
|---|---|---|
| `llama` | golden 3e-6, Some Model | – |
| `qwen2` | loads only | golden 1e-5 |

| Family | Other |
|---|---|
| `gemma` | text |
";

    #[test]
    fn table_round_trips() {
        let grid = Grid::read(PAGE);
        let headings = ["a on `x`", "a on `y`"].map(str::to_owned);
        let table = grid.table(&headings);
        assert!(PAGE.contains(&format!("\n\n{table}\n")), "{table}");
        assert_eq!(grid.get("qwen2", "a on `y`"), Some("golden 1e-5"));
        assert_eq!(grid.get("gemma", "Other"), None);
    }

    #[test]
    fn page_without_table_has_no_rows() {
        for page in ["", "# Title\n", "| Family | a |"] {
            let grid = Grid::read(page);
            assert_eq!(grid.table(&[]), "| Family |  |\n|---|\n", "{page:?}");
        }
    }
}
