//! What somebody may have meant.

/// `; did you mean …?` where a known name is near, or nothing.
pub fn did_you_mean<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = known.into_iter().map(|name| (distance(found, name), name));
    let near = near.filter(|(away, name)| *away <= 1 + name.len() / 4);
    let nearest = near.min_by_key(|(away, _)| *away);
    nearest.map_or_else(String::new, |(_, name)| format!("; did you mean `{name}`?"))
}

/// Levenshtein's: letters to insert, remove or replace.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (removed, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = removed + 1;
        for (place, wanted) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *wanted);
            diagonal = row[place + 1];
            row[place + 1] = replaced.min(row[place] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_counted() {
        for (from, to, away) in [
            ("", "", 0),
            ("port", "port", 0),
            ("prot", "port", 2),
            ("ports", "port", 1),
            ("", "port", 4),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(from, to), away, "{from} {to}");
        }
    }

    #[test]
    fn only_what_is_near_is_offered() {
        let known = ["port", "host", "shutdown_timeout"];
        for (found, meant) in [
            ("prot", "; did you mean `port`?"),
            ("shutdown_timout", "; did you mean `shutdown_timeout`?"),
            ("banana", ""),
        ] {
            assert_eq!(did_you_mean(found, known), meant);
        }
    }
}
