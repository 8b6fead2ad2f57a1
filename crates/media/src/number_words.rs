//! Numbers in English words, as num2words writes them: SmolVLM's video prompt has one.

const SMALL: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] = [
    "", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
];

/// Frame counts are below a million; larger numbers are written in digits.
pub fn number_words(number: usize) -> String {
    match number {
        0..20 => SMALL[number].to_string(),
        20..100 => {
            let ten = TENS[number / 10];
            match number % 10 {
                0 => ten.to_string(),
                rest => format!("{ten}-{}", SMALL[rest]),
            }
        }
        100..1_000 => {
            let hundred = format!("{} hundred", SMALL[number / 100]);
            match number % 100 {
                0 => hundred,
                rest => format!("{hundred} and {}", number_words(rest)),
            }
        }
        1_000..1_000_000 => {
            let thousand = format!("{} thousand", number_words(number / 1_000));
            match number % 1_000 {
                0 => thousand,
                rest @ 1..100 => format!("{thousand} and {}", number_words(rest)),
                rest => format!("{thousand}, {}", number_words(rest)),
            }
        }
        _ => number.to_string(),
    }
}

#[test]
fn numbers_are_written_as_num2words_does() {
    for (number, words) in [
        (0, "zero"),
        (3, "three"),
        (20, "twenty"),
        (64, "sixty-four"),
        (100, "one hundred"),
        (768, "seven hundred and sixty-eight"),
        (1_001, "one thousand and one"),
        (4_096, "four thousand and ninety-six"),
        (2_345, "two thousand, three hundred and forty-five"),
    ] {
        assert_eq!(number_words(number), words);
    }
}
