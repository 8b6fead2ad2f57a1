//! Rounds differences up, coarsely enough that the page is the same with every compiler.

/// Rounds up to one digit.
pub fn rounded_up(difference: f32) -> String {
    // `{:e}` prints the shortest text that parses to the same number, so 3e-6 stays 3e-6.
    let text = format!("{difference:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text;
    };
    let digit = mantissa.chars().next().and_then(|digit| digit.to_digit(10));
    let (Some(digit), Ok(exponent)) = (digit, exponent.parse::<i32>()) else {
        return text;
    };
    match (digit, mantissa.len() > 1) {
        (0, _) => "0".to_owned(),
        (digit, false) => format!("{digit}e{exponent}"),
        (9, true) => format!("1e{}", exponent + 1),
        (digit, true) => format!("{}e{exponent}", digit + 1),
    }
}

/// Rounds up to a power of ten.
pub fn power_of_ten(difference: f32) -> String {
    let rounded = rounded_up(difference);
    match rounded.split_once('e') {
        Some((digit, exponent)) if digit != "1" => match exponent.parse::<i32>() {
            Ok(exponent) => format!("1e{}", exponent + 1),
            Err(_) => rounded,
        },
        _ => rounded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_rounded_up_to_one_digit() {
        let table = [
            (0.0, "0"),
            (3e-6, "3e-6"),
            (3.01e-6, "4e-6"),
            (9.1e-6, "1e-5"),
            (9e-6, "9e-6"),
            (0.25, "3e-1"),
            (1.0, "1e0"),
        ];
        for (difference, expected) in table {
            assert_eq!(rounded_up(difference), expected);
        }
        for (difference, expected) in [
            (0.0, "0"),
            (1e-6, "1e-6"),
            (1.01e-6, "1e-5"),
            (9.1e-6, "1e-5"),
            (0.25, "1e0"),
        ] {
            assert_eq!(power_of_ten(difference), expected);
        }
    }
}
