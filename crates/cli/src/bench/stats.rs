//! Medians and percentiles.

use serde_json::{Value, json};

/// Where some measurements lie; every field is NaN where there are none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            p50: at(&values, 0.50),
            p95: at(&values, 0.95),
            p99: at(&values, 0.99),
            max: at(&values, 1.0),
        }
    }

    pub fn to_json(self) -> Value {
        json!({ "p50": self.p50, "p95": self.p95, "p99": self.p99, "max": self.max })
    }
}

/// NaN where there is nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    at(&sorted, 0.5)
}

/// The value below which a `share` lies, between neighbours in proportion.
fn at(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = share * last as f64;
    let (low, high) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    low + (high - low) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_few_and_many() {
        for (values, expected) in [
            (&[3.0][..], 3.0),
            (&[4.0, 1.0], 2.5),
            (&[9.0, 1.0, 5.0], 5.0),
            (&[4.0, 1.0, 3.0, 2.0], 2.5),
        ] {
            assert_eq!(median(values), expected, "{values:?}");
        }
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn percentiles_lie_between_neighbours() {
        // 0 to 100 in any order: each percentile is its own number.
        let values = (0..=100).map(|i| f64::from(i * 37 % 101)).collect();
        let spread = Spread::of(values);
        let expected = Spread {
            p50: 50.0,
            p95: 95.0,
            p99: 99.0,
            max: 100.0,
        };
        assert_eq!(spread, expected);
        assert_eq!(Spread::of(vec![0.0, 10.0]).p95, 9.5);
    }

    #[test]
    fn nothing_measured_is_null_in_json() {
        assert_eq!(Spread::of(Vec::new()).to_json()["p95"], Value::Null);
        assert_eq!(Spread::of(vec![2.0]).to_json()["p95"], 2.0);
    }
}
