//! A figure that another program describes as JSON, drawn as the scenarios' own are.

use std::path::Path;

use serde_json::Value;

use super::figure::{Figure, Line, Panel, Style};
use crate::error::CliError;

const FLAG: &str = "--draw";

/// Draws what the file at `description` describes into the one at `svg`.
pub fn run(description: &Path, svg: &Path) -> Result<(), CliError> {
    let text = std::fs::read_to_string(description).map_err(|source| CliError::File {
        flag: FLAG,
        path: description.to_owned(),
        source,
    })?;
    let value: Value = serde_json::from_str(&text).map_err(|source| CliError::Json {
        flag: FLAG,
        origin: description.display().to_string(),
        source,
    })?;
    let (figure, caption) = read(&value).map_err(|what| CliError::Field { flag: FLAG, what })?;
    figure.save(&caption, svg)
}

/// The figure and its caption, or the field that is not as it should be.
fn read(value: &Value) -> Result<(Figure, String), String> {
    let figure = Figure {
        title: text(value, "title")?,
        panels: list(value, "panels", panel)?,
    };
    Ok((figure, text(value, "caption")?))
}

fn panel(value: &Value) -> Result<Panel, String> {
    Ok(Panel {
        title: text(value, "title")?,
        x: text(value, "x")?,
        y: text(value, "y")?,
        lines: list(value, "lines", line)?,
        shade: None,
    })
}

fn line(value: &Value) -> Result<Line, String> {
    Ok(Line {
        name: text(value, "name")?,
        points: list(value, "points", point)?,
        style: Style::Marked,
    })
}

fn point(value: &Value) -> Result<(f64, f64), String> {
    let pair = value.as_array().map(Vec::as_slice);
    let numbers = match pair {
        Some([x, y]) => x.as_f64().zip(y.as_f64()),
        _ => None,
    };
    numbers.ok_or_else(|| format!("each of `points` must be two numbers, not {value}"))
}

fn text(value: &Value, field: &str) -> Result<String, String> {
    let found = value[field].as_str().map(str::to_owned);
    found.ok_or_else(|| format!("`{field}` must be a text, not {}", value[field]))
}

fn list<T>(
    value: &Value,
    field: &str,
    item: impl Fn(&Value) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let items = value[field].as_array();
    let items = items.ok_or_else(|| format!("`{field}` must be a list, not {}", value[field]))?;
    items.iter().map(item).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn described() -> Value {
        json!({
            "title": "t", "caption": "c",
            "panels": [{
                "title": "p", "x": "tokens", "y": "tokens/s",
                "lines": [{ "name": "loquat", "points": [[1, 2.5], [4, 8]] }],
            }],
        })
    }

    #[test]
    fn a_description_is_read_whole() {
        let (figure, caption) = read(&described()).unwrap();
        assert_eq!((figure.title.as_str(), caption.as_str()), ("t", "c"));
        let panel = &figure.panels[0];
        assert_eq!((panel.x.as_str(), panel.y.as_str()), ("tokens", "tokens/s"));
        assert_eq!(panel.lines[0].points, [(1.0, 2.5), (4.0, 8.0)]);
    }

    #[test]
    fn a_field_that_is_not_right_is_named() {
        for (pointer, wrong, named) in [
            ("/title", json!(1), "`title`"),
            ("/caption", Value::Null, "`caption`"),
            ("/panels", json!({}), "`panels`"),
            ("/panels/0/y", json!([]), "`y`"),
            ("/panels/0/lines/0/name", Value::Null, "`name`"),
            ("/panels/0/lines/0/points/1", json!([1]), "two numbers"),
            ("/panels/0/lines/0/points/0/0", json!("1"), "two numbers"),
        ] {
            let mut value = described();
            *value.pointer_mut(pointer).unwrap() = wrong;
            let error = read(&value).map(drop).unwrap_err();
            assert!(error.contains(named), "{pointer}: {error}");
        }
    }
}
