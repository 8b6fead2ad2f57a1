//! Reads the reports of a round's processes and computes statistics over rounds.

use serde_json::Value;

use super::workloads::Workload;
use crate::error::Error;

pub struct Round {
    pub machine: MachineLimits,
    pub llama_cpp: Measurement,
    pub loquat: Measurement,
    /// Tokens per second of ik_llama.cpp, in the order of the workloads, if it was run.
    pub ik_llama_cpp: Option<Vec<Option<f64>>>,
}

/// The machine's limits, measurement in this round.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineLimits {
    pub read_bytes_per_second: f64,
    pub multiply_adds_per_second: f64,
    pub instructions: String,
}

/// The report of one engine's process.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    pub device: String,
    pub ready_seconds: f64,
    /// `None` on systems that do not report it.
    pub peak_bytes: Option<f64>,
    /// Tokens per second, in the order of the workloads.
    pub speeds: Vec<f64>,
    /// The cost of a token of each workload, which only Loquat reports.
    pub token_costs: Option<Vec<TokenCost>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenCost {
    pub read_bytes: f64,
    pub multiply_adds: f64,
}

impl MachineLimits {
    pub fn from_json(report: &Value) -> Result<Self, Error> {
        Ok(Self {
            read_bytes_per_second: number(report, "read_bytes_per_second")?,
            multiply_adds_per_second: number(report, "int8_multiply_adds_per_second")?,
            instructions: text(report, "instructions")?,
        })
    }

    /// The minimum time of a token, and whether memory or arithmetic determines it.
    pub fn min_token_time(&self, cost: TokenCost) -> (f64, Limit) {
        let reading = cost.read_bytes / self.read_bytes_per_second;
        let arithmetic = cost.multiply_adds / self.multiply_adds_per_second;
        if reading >= arithmetic {
            (reading, Limit::Memory)
        } else {
            (arithmetic, Limit::Arithmetic)
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Memory,
    Arithmetic,
}

impl Limit {
    pub fn name(self) -> &'static str {
        match self {
            Limit::Memory => "memory",
            Limit::Arithmetic => "int8",
        }
    }
}

impl Measurement {
    pub fn from_json(report: &Value, workloads: &[Workload]) -> Result<Self, Error> {
        let results = workloads
            .iter()
            .map(|workload| workload_result(report, workload));
        let results = results.collect::<Result<Vec<&Value>, Error>>()?;
        let speeds = results
            .iter()
            .map(|result| number(result, "tokens_per_second"));
        let token_costs = results.iter().map(|result| {
            Some(TokenCost {
                read_bytes: result["read_bytes_per_token"].as_f64()?,
                multiply_adds: result["multiply_adds_per_token"].as_f64()?,
            })
        });
        Ok(Self {
            device: text(report, "device")?,
            ready_seconds: number(report, "ready_seconds")?,
            peak_bytes: report["peak_bytes"].as_f64(),
            speeds: speeds.collect::<Result<_, _>>()?,
            token_costs: token_costs.collect(),
        })
    }
}

/// The speeds that `llama-bench -o json` reports.
pub fn llama_bench_speeds(
    report: &Value,
    workloads: &[Workload],
) -> Result<Vec<Option<f64>>, Error> {
    let tests = report.as_array().into_iter().flatten();
    let speed = |workload: &Workload| {
        let Some((prompt, reply)) = workload.llama_bench_tokens() else {
            return Ok(None);
        };
        let mut tests = tests.clone();
        let test = tests.find(|test| test["n_prompt"] == prompt && test["n_gen"] == reply);
        let test = test.ok_or_else(|| unexpected(format!("no test of `{}`", workload.name)))?;
        number(test, "avg_ts").map(Some)
    };
    workloads.iter().map(speed).collect()
}

/// The result of one workload.
fn workload_result<'a>(report: &'a Value, workload: &Workload) -> Result<&'a Value, Error> {
    let results = report["results"].as_array();
    let mut results = results.into_iter().flatten();
    let found = results.find(|result| result["work"] == workload.name);
    found.ok_or_else(|| unexpected(format!("no result for `{}`", workload.name)))
}

fn number(value: &Value, field: &str) -> Result<f64, Error> {
    let number = value[field].as_f64().filter(|number| *number > 0.0);
    number.ok_or_else(|| unexpected(format!("`{field}` is not a number above 0")))
}

fn text(value: &Value, field: &str) -> Result<String, Error> {
    let text = value[field].as_str().map(str::to_owned);
    text.ok_or_else(|| unexpected(format!("`{field}` is not a string")))
}

fn unexpected(problem: String) -> Error {
    Error::UnexpectedOutput {
        command: "benchmark".to_owned(),
        problem,
    }
}

/// Median, minimum and maximum over rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `values` must not be empty.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self {
            median: (at(last / 2) + at(last.div_ceil(2))) / 2.0,
            min: at(0),
            max: at(last),
        }
    }

    pub fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self {
            median: change(self.median),
            min: change(self.min),
            max: change(self.max),
        }
    }
}

/// One figure of both engines in all rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    pub llama_cpp: Vec<f64>,
    pub loquat: Vec<f64>,
}

impl Pair {
    /// `None` if one engine does not report the figure.
    pub fn from_rounds(
        rounds: &[Round],
        figure: impl Fn(&Measurement) -> Option<f64>,
    ) -> Option<Self> {
        let all = |side: fn(&Round) -> &Measurement| -> Option<Vec<f64>> {
            rounds.iter().map(|round| figure(side(round))).collect()
        };
        Some(Self {
            llama_cpp: all(|round| &round.llama_cpp)?,
            loquat: all(|round| &round.loquat)?,
        })
    }

    /// Loquat's figure divided by llama.cpp's, per round: each ratio compares two processes that
    /// ran back to back.
    pub fn ratio(&self) -> Spread {
        let rounds = self.loquat.iter().zip(&self.llama_cpp);
        Spread::from_values(rounds.map(|(loquat, llama_cpp)| loquat / llama_cpp))
    }
}

/// Speed as a share of the machine's limit in the same round; medians over rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    pub llama_cpp: f64,
    pub loquat: f64,
    pub limit: Limit,
}

impl Share {
    /// `None` if Loquat does not report the cost of a token.
    pub fn from_rounds(rounds: &[Round], index: usize) -> Option<Self> {
        let min_times = rounds.iter().map(|round| {
            let cost = round.loquat.token_costs.as_ref()?.get(index)?;
            Some(round.machine.min_token_time(*cost))
        });
        let min_times = min_times.collect::<Option<Vec<(f64, Limit)>>>()?;
        let share = |side: fn(&Round) -> &Measurement| {
            let rounds = rounds.iter().zip(&min_times);
            let shares = rounds.map(|(round, (min_time, _))| side(round).speeds[index] * min_time);
            Spread::from_values(shares).median
        };
        Some(Self {
            llama_cpp: share(|round| &round.llama_cpp),
            loquat: share(|round| &round.loquat),
            limit: min_times.first()?.1,
        })
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::super::workloads::QUICK;
    use super::*;

    /// A round of the quick workloads with these speeds of the first workload.
    pub fn round(llama_cpp: f64, loquat: f64) -> Round {
        let measurement = |speed: f64, token_costs| Measurement {
            device: "d".to_owned(),
            ready_seconds: 1.0 / speed,
            peak_bytes: Some(1e6),
            speeds: vec![speed, speed / 10.0, speed / 5.0],
            token_costs,
        };
        let cost = |read_bytes, multiply_adds| TokenCost {
            read_bytes,
            multiply_adds,
        };
        let costs = vec![cost(1e3, 1e6), cost(1e6, 1e6), cost(1e5, 1e6)];
        Round {
            machine: MachineLimits {
                read_bytes_per_second: 1e9,
                multiply_adds_per_second: 1e10,
                instructions: "AVX2".to_owned(),
            },
            llama_cpp: measurement(llama_cpp, None),
            loquat: measurement(loquat, Some(costs)),
            ik_llama_cpp: None,
        }
    }

    #[test]
    fn llama_bench_tests_are_found_by_their_tokens() {
        let mut report = json!([
            { "n_prompt": 0, "n_gen": 32, "avg_ts": 20.0 },
            { "n_prompt": 512, "n_gen": 0, "avg_ts": 100.0 },
        ]);
        let speeds = llama_bench_speeds(&report, QUICK).unwrap();
        assert_eq!(speeds, [Some(100.0), Some(20.0), None]);
        report[0]["n_gen"] = json!(16);
        let error = llama_bench_speeds(&report, QUICK).unwrap_err().to_string();
        assert!(error.contains("decode:32@1"), "{error}");
    }

    #[test]
    fn spread_is_median_min_and_max() {
        for (values, median, min, max) in [
            (&[3.0][..], 3.0, 3.0, 3.0),
            (&[4.0, 1.0], 2.5, 1.0, 4.0),
            (&[9.0, 1.0, 5.0], 5.0, 1.0, 9.0),
        ] {
            let expected = Spread { median, min, max };
            assert_eq!(
                Spread::from_values(values.iter().copied()),
                expected,
                "{values:?}"
            );
        }
    }

    #[test]
    fn ratio_is_the_median_of_round_ratios() {
        // The machine is slower in the second round; the ratio of medians would be 1.5.
        let rounds = [round(100.0, 200.0), round(50.0, 100.0), round(100.0, 150.0)];
        let pair = Pair::from_rounds(&rounds, |measurement| Some(measurement.speeds[0])).unwrap();
        let expected = Spread {
            median: 2.0,
            min: 1.5,
            max: 2.0,
        };
        assert_eq!(pair.ratio(), expected);
        let unreported = Pair::from_rounds(&rounds, |measurement| {
            measurement.token_costs.as_ref().map(|_| 1.0)
        });
        assert_eq!(unreported, None, "llama.cpp does not report it");
    }

    #[test]
    fn shares_are_of_the_binding_limit() {
        let rounds = [round(100.0, 200.0)];
        for (index, limit, llama_cpp, loquat) in [
            // 1e6 multiply-adds take 1e-4 s, 1e3 bytes 1e-6 s.
            (0, Limit::Arithmetic, 0.01, 0.02),
            (1, Limit::Memory, 0.01, 0.02),
            (2, Limit::Memory, 0.002, 0.004),
        ] {
            let share = Share::from_rounds(&rounds, index).unwrap();
            assert_eq!(share.limit, limit, "{index}");
            assert!((share.llama_cpp - llama_cpp).abs() < 1e-9, "{share:?}");
            assert!((share.loquat - loquat).abs() < 1e-9, "{share:?}");
        }
    }

    #[test]
    fn bad_report_field_is_named() {
        let report = json!({
            "device": "d", "ready_seconds": 0.5, "peak_bytes": 7, "results": [
                { "work": "decode:32@1", "tokens_per_second": 2.0 },
                { "work": "prompt:512", "tokens_per_second": 1.0 },
                { "work": "decode:16@1x8", "tokens_per_second": 3.0 },
            ],
        });
        let measurement = Measurement::from_json(&report, QUICK).unwrap();
        assert_eq!(
            measurement.speeds,
            [1.0, 2.0, 3.0],
            "in the order of the workloads"
        );
        assert_eq!(
            (measurement.peak_bytes, &measurement.token_costs),
            (Some(7.0), &None)
        );
        for (pointer, wrong, named) in [
            ("/device", Value::Null, "`device`"),
            ("/ready_seconds", json!("soon"), "`ready_seconds`"),
            ("/results/2/work", json!("other"), "`decode:16@1x8`"),
            ("/results/0/tokens_per_second", json!(0), "above 0"),
        ] {
            let mut report = report.clone();
            *report.pointer_mut(pointer).unwrap() = wrong;
            let error = Measurement::from_json(&report, QUICK)
                .unwrap_err()
                .to_string();
            assert!(error.contains(named), "{pointer}: {error}");
        }
        let machine = json!({ "read_bytes_per_second": 1.0, "instructions": "x" });
        let error = MachineLimits::from_json(&machine).unwrap_err().to_string();
        assert!(error.contains("`int8_multiply_adds_per_second`"), "{error}");
    }
}
