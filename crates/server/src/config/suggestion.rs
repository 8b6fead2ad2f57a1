//! Suggestions for misspelled names.

/// `; did you mean …?` if a known name is similar, or nothing.
pub fn did_you_mean<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = known
        .into_iter()
        .map(|name| (strsim::levenshtein(found, name), name));
    let near = near.filter(|(distance, name)| *distance <= 1 + name.len() / 4);
    let nearest = near.min_by_key(|(distance, _)| *distance);
    nearest.map_or_else(String::new, |(_, name)| format!("; did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let known = ["port", "host", "shutdown_timeout"];
        for (found, suggestion) in [
            ("prot", "; did you mean `port`?"),
            ("shutdown_timout", "; did you mean `shutdown_timeout`?"),
            ("banana", ""),
        ] {
            assert_eq!(did_you_mean(found, known), suggestion);
        }
    }
}
