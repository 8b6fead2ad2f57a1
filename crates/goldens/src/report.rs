//! The result for one checkpoint.

use loquat_weights::Format;
use serde::{Serialize, Serializer};

use crate::discover::{Case, Origin, Set};

/// One checkpoint's line in the table.
#[derive(Debug, Serialize)]
pub struct Report {
    pub backend: &'static str,
    pub set: String,
    #[serde(skip)]
    pub origin: Origin,
    pub name: String,
    /// The family of the reference's model, which may differ from the GGUF architecture; `None` if
    /// the config could not be read.
    pub family: Option<String>,
    #[serde(serialize_with = "format_name")]
    pub format: Option<Format>,
    /// GGUF's `general.architecture`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// If the reference is of a model that reads pictures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vision: Option<VisionReport>,
    #[serde(flatten)]
    pub outcome: Outcome,
    /// A remark on the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a reference with pictures covers.
#[derive(Debug, Serialize)]
pub struct VisionReport {
    /// Whether the model reads videos, too.
    pub videos: bool,
    pub cases: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Outcome {
    /// Equal to its reference, within the limit.
    Equal(Differences),
    /// Opened; there is no reference.
    LoadsOnly,
    /// The backend does not run the model's vision part.
    TextOnly,
    /// No family has this `model_type`.
    NotSupported { model_type: String, why: String },
    Failed {
        #[serde(flatten)]
        measured: Option<Differences>,
        why: String,
    },
}

/// Largest absolute differences from the reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Differences {
    pub limit: f32,
    pub prompt_a: f32,
    pub prompt_b: f32,
    /// `None` if the reference has none, or is inconsistent.
    pub greedy: Option<f32>,
    /// Of encoded media; `None` for references of text alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<f32>,
    pub chunks: Chunks,
}

/// A prompt in chunks, against the same prompt as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Chunks {
    /// Bit for bit.
    Identical,
    Differ {
        /// The chunk size that differs most.
        size: usize,
        by: f32,
        /// Whether the session promises equality.
        promised: bool,
    },
}

impl Report {
    pub fn new(backend: &'static str, set: &Set, case: &Case) -> Self {
        Self {
            backend,
            set: set.title.clone(),
            origin: set.origin,
            name: case.name.clone(),
            family: None,
            format: None,
            architecture: None,
            vision: None,
            outcome: Outcome::LoadsOnly,
            note: None,
        }
    }

    /// Whether the run must fail. Only the shared set may contain unsupported families.
    pub fn fails(&self) -> bool {
        match self.outcome {
            Outcome::Failed { .. } => true,
            Outcome::NotSupported { .. } => self.origin != Origin::Shared,
            Outcome::Equal(_) | Outcome::LoadsOnly | Outcome::TextOnly => false,
        }
    }

    pub fn measured(&self) -> Option<&Differences> {
        match &self.outcome {
            Outcome::Equal(measured) => Some(measured),
            Outcome::Failed { measured, .. } => measured.as_ref(),
            Outcome::LoadsOnly | Outcome::TextOnly | Outcome::NotSupported { .. } => None,
        }
    }
}

impl Differences {
    pub fn outcome(self) -> Outcome {
        match self.exceeded_limits() {
            None => Outcome::Equal(self),
            Some(why) => Outcome::Failed {
                measured: Some(self),
                why,
            },
        }
    }

    /// The largest difference from the reference.
    pub fn worst(&self) -> f32 {
        let apart = [self.greedy, self.features];
        let apart = apart.into_iter().flatten().fold(0.0, f32::max);
        self.prompt_a.max(self.prompt_b).max(apart)
    }

    /// The larger of each difference.
    pub fn worse(self, other: Self) -> Self {
        Self {
            limit: self.limit,
            prompt_a: self.prompt_a.max(other.prompt_a),
            prompt_b: self.prompt_b.max(other.prompt_b),
            greedy: self.greedy.into_iter().chain(other.greedy).reduce(f32::max),
            features: self
                .features
                .into_iter()
                .chain(other.features)
                .reduce(f32::max),
            chunks: self.chunks.worse(other.chunks),
        }
    }

    /// Lists the differences over the limit; `None` if there are none.
    fn exceeded_limits(&self) -> Option<String> {
        let Self {
            limit,
            prompt_a,
            prompt_b,
            greedy,
            features,
            chunks,
        } = self;
        let cases = [
            ("prompt_a", Some(*prompt_a)),
            ("prompt_b", Some(*prompt_b)),
            ("greedy", *greedy),
            ("features", *features),
        ];
        let mut exceeded: Vec<String> = cases
            .into_iter()
            .filter_map(|(name, difference)| Some((name, difference?)))
            .filter(|(_, difference)| difference > limit)
            .map(|(name, difference)| format!("{name} differs by {difference:.1e}"))
            .collect();
        if let Chunks::Differ { size, by, promised } = *chunks
            && (promised || by > *limit)
        {
            exceeded.push(format!("prompt_b in chunks of {size} differs by {by:.1e}"));
        }
        if exceeded.is_empty() {
            None
        } else {
            Some(format!("{}; the limit is {limit:.0e}", exceeded.join(", ")))
        }
    }
}

impl Chunks {
    pub fn worse(self, other: Self) -> Self {
        match (self, other) {
            (Chunks::Identical, other) => other,
            (Chunks::Differ { by: a, .. }, Chunks::Differ { by: b, .. }) if b > a => other,
            _ => self,
        }
    }
}

fn format_name<S: Serializer>(format: &Option<Format>, to: S) -> Result<S::Ok, S::Error> {
    format.map(Format::name).serialize(to)
}

#[cfg(test)]
pub mod samples {
    use super::*;

    pub fn measured(prompt_b: f32) -> Differences {
        Differences {
            limit: 1e-4,
            prompt_a: 1e-6,
            prompt_b,
            greedy: Some(2e-6),
            features: None,
            chunks: Chunks::Identical,
        }
    }

    pub fn report(origin: Origin, family: &str, format: Format, outcome: Outcome) -> Report {
        Report {
            backend: "cpu",
            set: "set".into(),
            origin,
            name: family.into(),
            family: Some(family.into()),
            format: Some(format),
            architecture: (format == Format::Gguf).then(|| family.into()),
            vision: None,
            outcome,
            note: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{measured, report};
    use super::*;

    const SMALL: f32 = 1e-6;

    fn chunks(by: f32, promised: bool) -> Differences {
        Differences {
            chunks: Chunks::Differ {
                size: 7,
                by,
                promised,
            },
            ..measured(SMALL)
        }
    }

    #[test]
    fn each_limit_is_checked() {
        let table = [
            (measured(1e-4), None),
            (measured(1.1e-4), Some("prompt_b")),
            (measured(f32::INFINITY), Some("prompt_b")),
            (
                Differences {
                    prompt_a: 1.0,
                    ..measured(SMALL)
                },
                Some("prompt_a"),
            ),
            (
                Differences {
                    greedy: Some(1.0),
                    ..measured(SMALL)
                },
                Some("greedy"),
            ),
            (
                Differences {
                    greedy: None,
                    ..measured(SMALL)
                },
                None,
            ),
            (chunks(SMALL, false), None),
            (chunks(1.0, false), Some("chunks of 7")),
            (chunks(0.0, true), Some("chunks of 7")),
        ];
        for (measured, expected) in table {
            match (measured.exceeded_limits(), expected) {
                (Some(why), Some(named)) => assert!(why.contains(named), "{why}"),
                (why, named) => assert_eq!(why.as_deref(), named, "{measured:?}"),
            }
        }
    }

    #[test]
    fn worse_keeps_the_larger_differences() {
        let (one, other) = (measured(SMALL), chunks(1.0, true));
        for worse in [one.clone().worse(other.clone()), other.clone().worse(one)] {
            assert_eq!(worse, other);
        }
        let no_greedy = Differences {
            greedy: None,
            ..measured(SMALL)
        };
        assert_eq!(no_greedy.worse(measured(2.0)), measured(2.0));
    }

    #[test]
    fn unsupported_families_fail_outside_shared_set() {
        let unknown = || Outcome::NotSupported {
            model_type: "x".into(),
            why: "y".into(),
        };
        for (origin, fails) in [
            (Origin::Committed, true),
            (Origin::Shared, false),
            (Origin::CommandLine, true),
        ] {
            let report = |outcome| report(origin, "x", Format::Safetensors, outcome);
            assert_eq!(report(unknown()).fails(), fails, "{origin:?}");
            assert!(report(measured(1.0).outcome()).fails());
            assert!(!report(measured(SMALL).outcome()).fails());
            assert!(!report(Outcome::LoadsOnly).fails());
        }
    }

    #[test]
    fn json_has_all_fields() {
        let report = report(
            Origin::CommandLine,
            "llama",
            Format::Gguf,
            measured(0.5).outcome(),
        );
        let expected = serde_json::json!({
            "backend": "cpu",
            "set": "set",
            "name": "llama",
            "family": "llama",
            "format": "GGUF",
            "architecture": "llama",
            "verdict": "failed",
            "limit": 1e-4f32,
            "prompt_a": 1e-6f32,
            "prompt_b": 0.5,
            "greedy": 2e-6f32,
            "chunks": "identical",
            "why": "prompt_b differs by 5.0e-1; the limit is 1e-4",
        });
        assert_eq!(serde_json::to_value(&report).unwrap(), expected);
    }
}
