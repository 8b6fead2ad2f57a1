//! Where two texts part.

/// The first line, counted from 1, in which two texts differ, and what each has there.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_part_at_the_first_line_that_differs() {
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
}
