//! Medians and percentiles, and what engines count.

use loquat_engine::Stats;
use serde_json::{Value, json};

/// Percentiles of some measurements; NaN if there are none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    pub fn from_values(mut values: Vec<f64>) -> Self {
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

/// What an engine has stored of its prefixes on disk.
pub fn disk_json(stats: &Stats) -> Value {
    json!({
        "written_blocks": stats.disk.written_blocks,
        "pending_tokens": stats.disk.pending_tokens,
        "lost": stats.disk.lost,
    })
}

/// NaN if there are no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    at(&sorted, 0.5)
}

/// The median of the pairwise ratios: each pair was measured back to back.
pub fn median_ratio(values: &[f64], baselines: &[f64]) -> f64 {
    let pairs = values.iter().zip(baselines);
    let ratios: Vec<f64> = pairs.map(|(value, baseline)| value / baseline).collect();
    median(&ratios)
}

/// The value below which a `share` of the values lies, interpolated linearly.
fn at(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let index = share * last as f64;
    let (low, high) = (
        sorted[index.floor() as usize],
        sorted[index.ceil() as usize],
    );
    low + (high - low) * index.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
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
    fn percentiles_are_interpolated() {
        // 0 to 100 in any order: each percentile is its own number.
        let values = (0..=100).map(|i| f64::from(i * 37 % 101)).collect();
        let spread = Spread::from_values(values);
        let expected = Spread {
            p50: 50.0,
            p95: 95.0,
            p99: 99.0,
            max: 100.0,
        };
        assert_eq!(spread, expected);
        assert_eq!(Spread::from_values(vec![0.0, 10.0]).p95, 9.5);
    }

    #[test]
    fn missing_measurements_are_null_in_json() {
        assert_eq!(
            Spread::from_values(Vec::new()).to_json()["p95"],
            Value::Null
        );
        assert_eq!(Spread::from_values(vec![2.0]).to_json()["p95"], 2.0);
    }
}
