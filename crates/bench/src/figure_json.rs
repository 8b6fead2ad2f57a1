//! Figures that another program describes as JSON.

use serde_json::Value;

use super::error::BenchError;
use super::figure::{Figure, Line, Panel, Style};

impl Figure {
    /// Reads a figure and its caption.
    pub fn from_json(value: &Value) -> Result<(Self, String), BenchError> {
        read(value).map_err(BenchError::FigureField)
    }
}

/// The figure and its caption, or what is wrong with which field.
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
    found.ok_or_else(|| format!("`{field}` must be a string, not {}", value[field]))
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
    fn description_is_read_completely() {
        let (figure, caption) = read(&described()).unwrap();
        assert_eq!((figure.title.as_str(), caption.as_str()), ("t", "c"));
        let panel = &figure.panels[0];
        assert_eq!((panel.x.as_str(), panel.y.as_str()), ("tokens", "tokens/s"));
        assert_eq!(panel.lines[0].points, [(1.0, 2.5), (4.0, 8.0)]);
    }

    #[test]
    fn invalid_field_is_named() {
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
