//! What somebody may have meant.

/// The known word nearest to one that is not known: one that it begins, or one that a slip or
/// two of the fingers make of it.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let slips = |known: &str| {
        if known.starts_with(word) && word.len() > 1 {
            0
        } else {
            strsim::damerau_levenshtein(word, known)
        }
    };
    let counted = known.map(|known| (slips(known), known));
    let (slips, nearest) = counted.min_by_key(|(slips, _)| *slips)?;
    (slips <= most(word)).then_some(nearest)
}

/// Slips that leave a word of this length recognisable.
fn most(word: &str) -> usize {
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
    fn slips_are_forgiven_within_measure() {
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
