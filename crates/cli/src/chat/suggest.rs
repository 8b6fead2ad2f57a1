//! Suggestions for misspelt names.

/// The closest known word: one that starts with `word`, or one within a typo or two.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let typos = |known: &str| {
        if known.starts_with(word) && word.len() > 1 {
            0
        } else {
            strsim::damerau_levenshtein(word, known)
        }
    };
    let counted = known.map(|known| (typos(known), known));
    let (typos, nearest) = counted.min_by_key(|(typos, _)| *typos)?;
    (typos <= max_typos(word)).then_some(nearest)
}

/// Typos that leave a word of this length recognisable.
fn max_typos(word: &str) -> usize {
    match word.chars().count() {
        0..=2 => 0,
        3..=5 => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn typos_are_tolerated() {
        let known = ["set", "unset", "system", "save", "temperature", "top-p"];
        for (word, expected) in [
            ("sett", Some("set")),
            ("systme", Some("system")),
            ("sys", Some("system")),
            ("temprature", Some("temperature")),
            ("topp", Some("top-p")),
            ("etc", None),
            ("s", None),
            ("", None),
            ("usr", None),
            ("humidity", None),
        ] {
            assert_eq!(nearest(word, known.into_iter()), expected, "{word}");
        }
    }
}
