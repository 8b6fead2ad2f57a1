//! What the processes of a round report, and what many rounds come to.

use serde_json::Value;

use super::works::Work;
use crate::error::Error;

pub struct Round {
    pub machine: Machine,
    pub theirs: Measured,
    pub ours: Measured,
}

/// The machine's limits, as they were in this round.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub read_bytes_per_second: f64,
    pub multiply_adds_per_second: f64,
    pub instructions: String,
}

/// One process of one engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    pub device: String,
    pub ready_seconds: f64,
    /// Where the system does not tell, it is not compared.
    pub peak_bytes: Option<f64>,
    /// Tokens per second, in the order of the works.
    pub speeds: Vec<f64>,
    /// What a token of each work takes of the machine: our side says.
    pub demands: Option<Vec<Demand>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    pub read_bytes: f64,
    pub multiply_adds: f64,
}

impl Machine {
    pub fn read(report: &Value) -> Result<Self, Error> {
        Ok(Self {
            read_bytes_per_second: number(report, "read_bytes_per_second")?,
            multiply_adds_per_second: number(report, "int8_multiply_adds_per_second")?,
            instructions: text(report, "instructions")?,
        })
    }

    /// The least time that a token can take, and whether memory or arithmetic sets it.
    pub fn floor(&self, demand: Demand) -> (f64, Limit) {
        let reading = demand.read_bytes / self.read_bytes_per_second;
        let arithmetic = demand.multiply_adds / self.multiply_adds_per_second;
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

impl Measured {
    pub fn read(report: &Value, works: &[Work]) -> Result<Self, Error> {
        let results = works.iter().map(|work| result(report, work));
        let results = results.collect::<Result<Vec<&Value>, Error>>()?;
        let speeds = results
            .iter()
            .map(|result| number(result, "tokens_per_second"));
        let demands = results.iter().map(|result| {
            Some(Demand {
                read_bytes: result["read_bytes_per_token"].as_f64()?,
                multiply_adds: result["multiply_adds_per_token"].as_f64()?,
            })
        });
        Ok(Self {
            device: text(report, "device")?,
            ready_seconds: number(report, "ready_seconds")?,
            peak_bytes: report["peak_bytes"].as_f64(),
            speeds: speeds.collect::<Result<_, _>>()?,
            demands: demands.collect(),
        })
    }
}

/// What a report says of one work.
fn result<'a>(report: &'a Value, work: &Work) -> Result<&'a Value, Error> {
    let results = report["results"].as_array();
    let mut results = results.into_iter().flatten();
    let found = results.find(|result| result["work"] == work.name);
    found.ok_or_else(|| unexpected(format!("nothing about `{}`", work.name)))
}

fn number(value: &Value, field: &str) -> Result<f64, Error> {
    let number = value[field].as_f64().filter(|number| *number > 0.0);
    number.ok_or_else(|| unexpected(format!("no number above 0 as `{field}`")))
}

fn text(value: &Value, field: &str) -> Result<String, Error> {
    let text = value[field].as_str().map(str::to_owned);
    text.ok_or_else(|| unexpected(format!("no text as `{field}`")))
}

fn unexpected(what: String) -> Error {
    Error::Answer {
        command: "an engine's process".to_owned(),
        what,
    }
}

/// Median and range of the rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// `values` must not be empty.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self {
            median: (at(last / 2) + at(last.div_ceil(2))) / 2.0,
            least: at(0),
            most: at(last),
        }
    }

    pub fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self {
            median: change(self.median),
            least: change(self.least),
            most: change(self.most),
        }
    }
}

/// One figure of both engines over all rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    pub theirs: Vec<f64>,
    pub ours: Vec<f64>,
}

impl Pair {
    /// `None` if one engine does not report the figure.
    pub fn from_rounds(
        rounds: &[Round],
        figure: impl Fn(&Measured) -> Option<f64>,
    ) -> Option<Self> {
        let all = |side: fn(&Round) -> &Measured| -> Option<Vec<f64>> {
            rounds.iter().map(|round| figure(side(round))).collect()
        };
        Some(Self {
            theirs: all(|round| &round.theirs)?,
            ours: all(|round| &round.ours)?,
        })
    }

    /// Ours over theirs, round by round: each compares two processes that ran back to back.
    pub fn ratio(&self) -> Spread {
        let rounds = self.ours.iter().zip(&self.theirs);
        Spread::from_values(rounds.map(|(ours, theirs)| ours / theirs))
    }
}

/// Medians of the rounds' shares of what the machine could do in that very round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    pub theirs: f64,
    pub ours: f64,
    pub limit: Limit,
}

impl Share {
    /// `None` if our side does not report the demand.
    pub fn from_rounds(rounds: &[Round], place: usize) -> Option<Self> {
        let floors = rounds.iter().map(|round| {
            let demand = round.ours.demands.as_ref()?.get(place)?;
            Some(round.machine.floor(*demand))
        });
        let floors = floors.collect::<Option<Vec<(f64, Limit)>>>()?;
        let share = |side: fn(&Round) -> &Measured| {
            let rounds = rounds.iter().zip(&floors);
            let shares = rounds.map(|(round, (floor, _))| side(round).speeds[place] * floor);
            Spread::from_values(shares).median
        };
        Some(Self {
            theirs: share(|round| &round.theirs),
            ours: share(|round| &round.ours),
            limit: floors.first()?.1,
        })
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::super::works::QUICK;
    use super::*;

    /// A round of the quick works in which their first speed is `theirs` and ours is `ours`.
    pub fn round(theirs: f64, ours: f64) -> Round {
        let measured = |speed: f64, demands| Measured {
            device: "d".to_owned(),
            ready_seconds: 1.0 / speed,
            peak_bytes: Some(1e6),
            speeds: vec![speed, speed / 10.0, speed / 5.0],
            demands,
        };
        let demand = |read_bytes, multiply_adds| Demand {
            read_bytes,
            multiply_adds,
        };
        let demands = vec![demand(1e3, 1e6), demand(1e6, 1e6), demand(1e5, 1e6)];
        Round {
            machine: Machine {
                read_bytes_per_second: 1e9,
                multiply_adds_per_second: 1e10,
                instructions: "AVX2".to_owned(),
            },
            theirs: measured(theirs, None),
            ours: measured(ours, Some(demands)),
        }
    }

    #[test]
    fn medians_and_ends_of_few_and_many() {
        for (values, median, least, most) in [
            (&[3.0][..], 3.0, 3.0, 3.0),
            (&[4.0, 1.0], 2.5, 1.0, 4.0),
            (&[9.0, 1.0, 5.0], 5.0, 1.0, 9.0),
        ] {
            let expected = Spread {
                median,
                least,
                most,
            };
            assert_eq!(
                Spread::from_values(values.iter().copied()),
                expected,
                "{values:?}"
            );
        }
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_own() {
        // The machine is slower in the second round; the ratio of medians would be 1.5.
        let rounds = [round(100.0, 200.0), round(50.0, 100.0), round(100.0, 150.0)];
        let pair = Pair::from_rounds(&rounds, |measured| Some(measured.speeds[0])).unwrap();
        let expected = Spread {
            median: 2.0,
            least: 1.5,
            most: 2.0,
        };
        assert_eq!(pair.ratio(), expected);
        let silent = Pair::from_rounds(&rounds, |measured| measured.demands.as_ref().map(|_| 1.0));
        assert_eq!(silent, None, "theirs do not say");
    }

    #[test]
    fn shares_are_of_the_limit_that_binds() {
        let rounds = [round(100.0, 200.0)];
        for (place, limit, theirs, ours) in [
            // 1e6 multiply-adds take 1e-4 s, 1e3 bytes 1e-6 s.
            (0, Limit::Arithmetic, 0.01, 0.02),
            (1, Limit::Memory, 0.01, 0.02),
            (2, Limit::Memory, 0.002, 0.004),
        ] {
            let share = Share::from_rounds(&rounds, place).unwrap();
            assert_eq!(share.limit, limit, "{place}");
            assert!((share.theirs - theirs).abs() < 1e-9, "{share:?}");
            assert!((share.ours - ours).abs() < 1e-9, "{share:?}");
        }
    }

    #[test]
    fn reports_are_read_or_refused_by_field() {
        let report = json!({
            "device": "d", "ready_seconds": 0.5, "peak_bytes": 7, "results": [
                { "work": "decode:32@1", "tokens_per_second": 2.0 },
                { "work": "prompt:512", "tokens_per_second": 1.0 },
                { "work": "decode:16@1x8", "tokens_per_second": 3.0 },
            ],
        });
        let measured = Measured::read(&report, QUICK).unwrap();
        assert_eq!(measured.speeds, [1.0, 2.0, 3.0], "in the works' order");
        assert_eq!((measured.peak_bytes, &measured.demands), (Some(7.0), &None));
        for (pointer, wrong, named) in [
            ("/device", Value::Null, "`device`"),
            ("/ready_seconds", json!("soon"), "`ready_seconds`"),
            ("/results/2/work", json!("other"), "`decode:16@1x8`"),
            ("/results/0/tokens_per_second", json!(0), "above 0"),
        ] {
            let mut report = report.clone();
            *report.pointer_mut(pointer).unwrap() = wrong;
            let error = Measured::read(&report, QUICK).unwrap_err().to_string();
            assert!(error.contains(named), "{pointer}: {error}");
        }
        let machine = json!({ "read_bytes_per_second": 1.0, "instructions": "x" });
        let error = Machine::read(&machine).unwrap_err().to_string();
        assert!(error.contains("`int8_multiply_adds_per_second`"), "{error}");
    }
}
