//! Finds the first difference of two texts, and the context of a line in an indented text.

/// The number, from 1, of the first line in which two texts differ, and that line of each.
pub fn first_difference<'a>(a: &'a str, b: &'a str) -> Option<(usize, &'a str, &'a str)> {
    const END: &str = "(the end)";
    let (mut left, mut right) = (a.split('\n'), b.split('\n'));
    for number in 1.. {
        match (left.next(), right.next()) {
            (None, None) => break,
            (a, b) if a == b => {}
            (a, b) => return Some((number, a.unwrap_or(END), b.unwrap_or(END))),
        }
    }
    None
}

/// Line `number` of an indented text, preceded by the lines that enclose it, all on one line.
pub fn with_context(text: &str, number: usize) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<&str> = text.lines().take(number).collect();
    let mut path: Vec<&str> = Vec::new();
    for line in lines.iter().rev() {
        if path.last().is_none_or(|inner| indent(line) < indent(inner)) {
            path.push(line);
        }
    }
    let path: Vec<&str> = path.iter().rev().map(|line| line.trim()).collect();
    path.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_differing_line_is_found() {
        let table = [
            ("a\nb", "a\nb", None),
            ("a\nb\nc", "a\nx\ny", Some((2, "b", "x"))),
            ("a", "a\nb", Some((2, "(the end)", "b"))),
            ("a\n", "a", Some((2, "", "(the end)"))),
        ];
        for (a, b, expected) in table {
            assert_eq!(first_difference(a, b), expected, "{a:?} {b:?}");
        }
    }

    #[test]
    fn line_is_shown_with_context() {
        let text = "Model {\n    layers: [\n        Window(\n            9,\n        ),\n        \
                    Full,\n    ],\n    eps: 1,\n}";
        assert_eq!(with_context(text, 4), "Model { layers: [ Window( 9,");
        assert_eq!(with_context(text, 6), "Model { layers: [ Full,");
        assert_eq!(with_context(text, 8), "Model { eps: 1,");
        assert_eq!(with_context(text, 1), "Model {");
    }
}
