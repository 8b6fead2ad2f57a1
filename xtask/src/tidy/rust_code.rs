//! A minimal Rust lexer that separates code from comments and literals.

use std::collections::BTreeSet;

use super::line_of;

/// The source with comments and the contents of literals replaced by spaces; lines stay the same.
pub fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let blanked = comment_length(rest)
            .or_else(|| raw_string_length(rest, code.chars().next_back()))
            .or_else(|| string_length(rest))
            .or_else(|| character_length(rest));
        let length = match blanked {
            Some(length) => {
                let text = &rest[..length];
                code.extend(text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
                length
            }
            None => {
                code.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    code
}

/// The contents of every string literal, with the line it starts on; escapes stay as written.
pub fn string_literals(source: &str) -> Vec<(usize, &str)> {
    let (mut literals, mut line, mut at) = (Vec::new(), 1, 0);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let string = raw_string_length(rest, source[..at].chars().next_back())
            .or_else(|| string_length(rest));
        if let Some(length) = string {
            let is_quote = |c: char| matches!(c, '"' | '#');
            let text = rest[..length].trim_start_matches('r');
            literals.push((line, text.trim_matches(is_quote)));
        }
        let skipped = string
            .or_else(|| comment_length(rest))
            .or_else(|| character_length(rest));
        let length = skipped.unwrap_or(first.len_utf8());
        line += rest[..length].matches('\n').count();
        at += length;
    }
    literals
}

/// The lines of items under `#[cfg(test)]`, in code without comments and literals.
pub fn test_lines(code: &str) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    for (at, attribute) in code.match_indices("#[cfg(test)]") {
        let item = &code[at + attribute.len()..];
        let mut depth = 0usize;
        let end = item.find(|c| {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && matches!(c, '}' | ';')
        });
        let end = end.map_or(code.len(), |end| at + attribute.len() + end);
        lines.extend(line_of(code, at)..=line_of(code, end));
    }
    lines
}

/// Offsets of the identifier `word` in `code`.
pub fn word_offsets<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = code[..at].chars().next_back();
            let after = code[at + word.len()..].chars().next();
            !before.is_some_and(is_identifier) && !after.is_some_and(is_identifier)
        })
}

fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn comment_length(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0usize, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" if depth == 1 => return Some(at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    Some(text.len())
}

fn raw_string_length(text: &str, before: Option<char>) -> Option<usize> {
    // The `r` of `br"…"` follows a `b`; an identifier that ends in `r` opens no string.
    if before.is_some_and(|c| is_identifier(c) && c != 'b' && c != 'c') {
        return None;
    }
    let after_r = text.strip_prefix('r')?;
    let opened = after_r.trim_start_matches('#');
    let hashes = after_r.len() - opened.len();
    let body = opened.strip_prefix('"')?;
    let closer = format!("\"{}", "#".repeat(hashes));
    let opener_length = text.len() - body.len();
    let length = body
        .find(&closer)
        .map(|end| opener_length + end + closer.len());
    Some(length.unwrap_or(text.len()))
}

fn string_length(text: &str) -> Option<usize> {
    quoted_length(text, '"')
}

/// A character literal; a lifetime such as `'a` has no closing quote.
fn character_length(text: &str) -> Option<usize> {
    let body = text.strip_prefix('\'')?;
    let mut chars = body.chars();
    let first = chars.next()?;
    let closes = chars.next() == Some('\'');
    (first == '\\' || closes).then(|| quoted_length(text, '\''))?
}

fn quoted_length(text: &str, quote: char) -> Option<usize> {
    let body = text.strip_prefix(quote)?;
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + 2),
            _ => {}
        }
    }
    Some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        for (source, kept) in [
            ("a // x\nb", "a b"),
            ("a /* x /* y */ z */ b", "a b"),
            (r#"f("x\"y") + 1"#, "f( ) + 1"),
            ("r#\"x\"y\"# z", "z"),
            ("br\"\\\" z", "b z"),
            ("color\"x\" z", "color z"),
            ("('\"', '\\'') z", "( , ) z"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("'é' z", "z"),
            ("a /* never closed", "a"),
            ("a \"never closed", "a"),
        ] {
            let code = code_only(source);
            let words: Vec<&str> = code.split_whitespace().collect();
            assert_eq!(words.join(" "), kept, "{source}");
            assert_eq!(code.chars().count(), source.chars().count(), "{source}");
        }
    }

    #[test]
    fn string_literals_have_lines() {
        let source = "f(\"a\") // \"b\"\n'\"' r#\"c\"# br\"d\" \"\"";
        let expected = [(1, "a"), (2, "c"), (2, "d"), (2, "")];
        assert_eq!(string_literals(source), expected);
    }

    #[test]
    fn test_items_end_at_their_brace() {
        let code = "fn f() {}\n#[cfg(test)]\nmod tests {\n  { }\n}\nfn g() {}\n\
                    #[cfg(test)]\nmod more;\nfn h() {}";
        let lines: Vec<usize> = test_lines(code).into_iter().collect();
        assert_eq!(lines, [2, 3, 4, 5, 7, 8]);
    }

    #[test]
    fn words_are_whole() {
        let found: Vec<usize> = word_offsets("ab b (b) b_ ab", "b").collect();
        assert_eq!(found, [3, 6]);
    }
}
