//! Python's character data that the standard library lacks.

/// First of each ten decimal digits beyond ASCII (category Nd, Unicode 14).
const DECIMALS: [u32; 65] = [
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6,
    0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50,
    0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
    0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650,
    0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50,
    0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];
/// Digits that are not decimal: superscripts, subscripts, circled ones.
const DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
    (0x10a40, 0x10a43),
    (0x10e60, 0x10e68),
    (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];
/// Ideographs with numeric values.
const NUMERALS: &str = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿\
                        弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零";

pub(super) fn is_decimal(c: char) -> bool {
    let code = c as u32;
    c.is_ascii_digit()
        || DECIMALS
            .iter()
            .any(|first| (*first..first + 10).contains(&code))
}

pub(super) fn is_digit(c: char) -> bool {
    let code = c as u32;
    is_decimal(c)
        || DIGITS
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&code))
}

pub(super) fn is_numeric(c: char) -> bool {
    c.is_numeric() || NUMERALS.contains(c)
}

/// A character in title case.
fn push_title(out: &mut String, c: char) {
    match c {
        'Ǆ' | 'ǅ' | 'ǆ' => out.push('ǅ'),
        'Ǉ' | 'ǈ' | 'ǉ' => out.push('ǈ'),
        'Ǌ' | 'ǋ' | 'ǌ' => out.push('ǋ'),
        'Ǳ' | 'ǲ' | 'ǳ' => out.push('ǲ'),
        // Georgian has capitals, but no titles.
        '\u{10d0}'..='\u{10ff}' => out.push(c),
        c => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
    }
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title_letter(c)
}

fn is_title_letter(c: char) -> bool {
    matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
}

/// `str.title`: a letter after an uncased character is in title case.
pub(super) fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut after_cased = false;
    for c in text.chars() {
        if after_cased {
            out.extend(c.to_lowercase())
        } else {
            push_title(&mut out, c)
        }
        after_cased = is_cased(c);
    }
    out
}

pub(super) fn is_titled(text: &str) -> bool {
    let (mut after_cased, mut any) = (false, false);
    for c in text.chars() {
        let is_capital = c.is_uppercase() || is_title_letter(c);
        if is_capital == after_cased && is_cased(c) {
            return false;
        }
        after_cased = is_cased(c);
        any |= after_cased;
    }
    any
}

pub(super) fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    let mut out = String::with_capacity(text.len());
    if let Some(first) = characters.next() {
        push_title(&mut out, first);
    }
    out.push_str(&characters.as_str().to_lowercase());
    out
}

pub(super) fn casefolded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'ı' => out.push(c),
            // Cherokee folds to its capitals.
            '\u{13a0}'..='\u{13f5}' => out.push(c),
            c => out.extend(c.to_uppercase().flat_map(char::to_lowercase)),
        }
    }
    out
}

pub(super) fn case_swapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_mapping_matches_python() {
        type Case = (fn(&str) -> String, &'static str, &'static str);
        let cases: [Case; 8] = [
            (titled, "it's me, ǆ 3rd", "It'S Me, ǅ 3Rd"),
            (titled, "ßa ﬁx ვ", "Ssa Fix ვ"),
            (capitalized, "hELLO wORLD", "Hello world"),
            (capitalized, "ß", "Ss"),
            (casefolded, "Straße ΣΑΣ ı", "strasse σασ ı"),
            (casefolded, "ſﬁ", "sfi"),
            (case_swapped, "aBc ß", "AbC SS"),
            (titled, "", ""),
        ];
        for (function, text, wanted) in cases {
            assert_eq!(function(text), wanted, "{text}");
        }
    }

    #[test]
    fn digit_values_match_python() {
        // Character, then `isdecimal`, `isdigit`, `isnumeric`.
        let cases = [
            ('7', [true, true, true]),
            ('١', [true, true, true]),
            ('²', [false, true, true]),
            ('½', [false, false, true]),
            ('三', [false, false, true]),
            ('x', [false, false, false]),
        ];
        for (c, wanted) in cases {
            assert_eq!([is_decimal(c), is_digit(c), is_numeric(c)], wanted, "{c}");
        }
    }
}
