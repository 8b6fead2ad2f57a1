//! Runs a checkpoint and compares it with its reference.

use std::any::Any;
use std::iter::once;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use loquat_session::conformance::max_difference;
use loquat_session::{
    Emit, ModelSource, OpenError, Precision, Session, SessionError, SessionOptions, StepBatch,
    StepOutput,
};
use loquat_spec::{Config, SpecError, families};
use loquat_weights::{Checkpoint, Format, WeightsError};
use tempfile::TempDir;

use crate::backends::JudgedBackend;
use crate::discover::{Case, GOLDEN, Set};
use crate::golden::{Golden, GoldenError, Greedy, Prompt};
use crate::lines::{first_difference, with_context};
use crate::report::{Chunks, Differences, Outcome, Report, VisionReport};
use crate::vision::VisionGolden;

/// Chunk sizes below, across and above the tile sizes of kernels.
const CHUNKS: [usize; 3] = [1, 7, 16];
/// The context of a session that only loads the model.
const IDLE_CONTEXT: usize = 16;
const CONFIG: &str = "config.json";
const HUB_STYLE_CONFIG: &str = "config.hub_style.json";

pub struct Judge {
    pub judged: &'static JudgedBackend,
    pub prefer_hf: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum JudgeError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Golden(#[from] GoldenError),
    #[error("cannot open {case}: {source}")]
    Open {
        case: &'static str,
        source: OpenError,
    },
    #[error("{case}: {source}")]
    Step {
        case: &'static str,
        source: SessionError,
    },
    #[error("{case}: {why}")]
    Vision { case: String, why: String },
    #[error("{case}: {found} logits, but the reference has {expected}")]
    Count {
        case: &'static str,
        found: usize,
        expected: usize,
    },
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("with {HUB_STYLE_CONFIG}: {0}")]
    HubStyle(Box<JudgeError>),
    #[error("it describes `{hub_style}`, but {CONFIG} describes `{current}`")]
    SpecMismatch { current: String, hub_style: String },
}

/// The largest difference allowed. References for MLX-quantized weights come from MLX's kernels,
/// which sum in another order; all others use fp32 arithmetic on the same values.
fn limit(format: Format) -> f32 {
    match format {
        Format::Mlx => 1e-3,
        Format::Safetensors | Format::Gguf => 1e-4,
    }
}

impl Judge {
    /// Never fails: errors and panics become the verdict.
    pub fn judge(&self, set: &Set, case: &Case) -> Report {
        let mut report = Report::new(self.judged.name(), set, case);
        let result = catch_unwind(AssertUnwindSafe(|| self.evaluate(case, &mut report)));
        report.outcome = match result {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => not_supported(&error).unwrap_or_else(|| failed(error.to_string())),
            Err(panic) => failed(format!("panicked: {}", panic_message(panic.as_ref()))),
        };
        report
    }

    /// Fills in the report up to the first error.
    fn evaluate(&self, case: &Case, report: &mut Report) -> Result<Outcome, JudgeError> {
        let checkpoint = Checkpoint::open(&case.model)?;
        let family = case.golden.as_deref().and_then(golden_family);
        report.family = family.or_else(|| Some(checkpoint.spec.family.to_owned()));
        report.format = Some(checkpoint.format);
        let header = checkpoint.gguf_metadata();
        report.architecture = header
            .and_then(|header| header.str("general.architecture"))
            .map(str::to_owned);

        let source = source(&checkpoint)?;
        let Some(folder) = &case.golden else {
            self.open_session(&source, "the model", IDLE_CONTEXT)?;
            return Ok(Outcome::LoadsOnly);
        };
        if let Some(golden) = VisionGolden::open(folder)? {
            report.family = Some(golden.info.model_type.clone());
            let vision = source.spec.vision.as_ref();
            report.vision = Some(VisionReport {
                videos: vision.is_some_and(|vision| vision.video),
                cases: golden.cases.iter().map(|case| case.title).collect(),
            });
            return self.evaluate_vision(case, &source, &golden, report);
        }
        let mut golden = Golden::open(folder, self.prefer_hf)?;
        let limit = limit(checkpoint.format).max(self.judged.limit);
        report.note = drop_inconsistent_greedy(&mut golden, limit);
        let mut measured = self.measure(&source, &golden, limit)?;
        if let Some(copy) = hub_style_copy(&case.model)? {
            let again = self
                .measure_hub_style(copy.path(), &source, &golden, limit)
                .map_err(|error| JudgeError::HubStyle(Box::new(error)))?;
            measured = measured.worse(again);
        }
        Ok(measured.outcome())
    }

    fn measure_hub_style(
        &self,
        copy: &Path,
        original: &ModelSource,
        golden: &Golden,
        limit: f32,
    ) -> Result<Differences, JudgeError> {
        let copy = source(&Checkpoint::open(copy)?)?;
        if copy.spec != original.spec {
            let specs = [&original.spec, &copy.spec].map(|spec| format!("{spec:#?}"));
            let line = first_difference(&specs[0], &specs[1]).map_or(0, |(line, ..)| line);
            let [current, hub_style] = specs.map(|spec| with_context(&spec, line));
            return Err(JudgeError::SpecMismatch { current, hub_style });
        }
        self.measure(&copy, golden, limit)
    }

    fn measure(
        &self,
        source: &ModelSource,
        golden: &Golden,
        limit: f32,
    ) -> Result<Differences, JudgeError> {
        let Golden {
            prompt_a,
            prompt_b,
            greedy,
        } = golden;
        let a = self
            .open_session(source, "prompt_a", prompt_a.tokens.len())?
            .logits(once(&prompt_a.tokens[..]))?;
        let (b, chunks) = self.measure_chunks(source, prompt_b)?;
        let greedy = greedy.as_ref();
        Ok(Differences {
            limit,
            prompt_a: difference("prompt_a", &a, &prompt_a.logits)?,
            prompt_b: difference("prompt_b", &b, &prompt_b.logits)?,
            greedy: greedy
                .map(|greedy| self.greedy(source, &prompt_a.tokens, greedy))
                .transpose()?,
            features: None,
            chunks,
        })
    }

    fn measure_chunks(
        &self,
        source: &ModelSource,
        prompt: &Prompt,
    ) -> Result<(Vec<f32>, Chunks), JudgeError> {
        let mut session = self.open_session(source, "prompt_b", prompt.tokens.len())?;
        let promised = session.session.capabilities().chunk_invariant;
        let one_step = session.logits(once(&prompt.tokens[..]))?;
        let mut worst = Chunks::Identical;
        for size in CHUNKS {
            let chunked = session.logits(prompt.tokens.chunks(size))?;
            let by = difference("prompt_b in chunks", &chunked, &one_step)?;
            if !same_bits(&chunked, &one_step) {
                worst = worst.worse(Chunks::Differ { size, by, promised });
            }
        }
        Ok((one_step, worst))
    }

    /// Prefills the prompt, then decodes token by token.
    fn greedy(
        &self,
        source: &ModelSource,
        prompt: &[u32],
        greedy: &Greedy,
    ) -> Result<f32, JudgeError> {
        let decoded = &greedy.ids[..greedy.ids.len() - 1];
        let mut session = self.open_session(source, "greedy", prompt.len() + decoded.len())?;
        let logits = session.logits(once(prompt).chain(decoded.chunks(1)))?;
        // The first id was chosen after the prompt's last token.
        let before = (prompt.len() - 1) * session.session.capabilities().vocab_size;
        difference(
            "greedy",
            logits.get(before..).unwrap_or_default(),
            &greedy.logits,
        )
    }

    pub(crate) fn options(&self, context: usize) -> SessionOptions {
        SessionOptions {
            context: Some(context),
            max_sequences: 1,
            max_step_tokens: context,
            precision: Precision::Reference,
            ..SessionOptions::default()
        }
    }

    /// `context` is the length of the case: some RoPE variants choose frequencies by it, as the
    /// reference does by its input length.
    pub(crate) fn open_session(
        &self,
        source: &ModelSource,
        case: &'static str,
        context: usize,
    ) -> Result<CaseSession, JudgeError> {
        let options = self.options(context);
        let opened = self
            .judged
            .backend
            .open(source.clone(), &options, &mut |_| {});
        Ok(CaseSession {
            case,
            session: opened.map_err(|source| JudgeError::Open { case, source })?,
            batch: StepBatch::default(),
            output: StepOutput::default(),
        })
    }
}

/// A session and the name of its case in errors.
pub(crate) struct CaseSession {
    case: &'static str,
    pub session: Box<dyn Session>,
    batch: StepBatch,
    output: StepOutput,
}

impl CaseSession {
    /// The logits after each token of a new sequence of `chunks`.
    fn logits<'a>(
        &mut self,
        chunks: impl Iterator<Item = &'a [u32]>,
    ) -> Result<Vec<f32>, JudgeError> {
        let case = self.case;
        self.feed(chunks)
            .map_err(|source| JudgeError::Step { case, source })
    }

    fn feed<'a>(
        &mut self,
        chunks: impl Iterator<Item = &'a [u32]>,
    ) -> Result<Vec<f32>, SessionError> {
        let sequence = self.session.create()?;
        let mut all = Vec::new();
        for chunk in chunks {
            let positions = chunk.len();
            self.batch.clear();
            self.batch.push(sequence, chunk, Emit::Logits { positions });
            self.session.step(&self.batch, &mut self.output)?;
            if let Some(error) = self.output.rows().iter().find_map(|row| row.error.clone()) {
                return Err(error);
            }
            for position in 0..positions {
                all.extend_from_slice(self.output.logits(0, position));
            }
        }
        self.session.release(sequence)?;
        Ok(all)
    }
}

pub(crate) fn source(checkpoint: &Checkpoint) -> Result<ModelSource, JudgeError> {
    Ok(ModelSource {
        weights: Arc::new(checkpoint.bind()?),
        paths: checkpoint.paths.clone(),
        spec: Arc::new(checkpoint.spec.clone()),
    })
}

/// The family in the reference's config, if that exists and parses.
fn golden_family(golden: &Path) -> Option<String> {
    let text = std::fs::read_to_string(golden.join(CONFIG)).ok()?;
    let config = Config::parse(&text, CONFIG).ok()?;
    let model = families::from_config(&config).ok()?;
    Some(model.spec.family.to_owned())
}

/// Removes the greedy case, and returns a note, if the reference's decoding differs from its
/// prefill by more than the limit.
fn drop_inconsistent_greedy(golden: &mut Golden, limit: f32) -> Option<String> {
    let difference = golden.greedy.as_ref()?.cache_vs_prefill?;
    if difference <= limit {
        return None;
    }
    golden.greedy = None;
    Some(format!(
        "greedy is not judged: the reference's decoding differs from its prefill by {difference:.1e}"
    ))
}

/// A copy of the checkpoint that uses its hub-style config; `None` if the folder has none.
pub(crate) fn hub_style_copy(folder: &Path) -> Result<Option<TempDir>, JudgeError> {
    let config = folder.join(HUB_STYLE_CONFIG);
    if !config.is_file() {
        return Ok(None);
    }
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| JudgeError::Io { path, source }
    };
    let folder_copy = tempfile::tempdir().map_err(failed(&std::env::temp_dir()))?;
    let copy = |from: &Path, name: &str| {
        let copied = std::fs::copy(from, folder_copy.path().join(name));
        copied.map(drop).map_err(failed(from))
    };
    copy(&config, CONFIG)?;
    for entry in std::fs::read_dir(folder).map_err(failed(folder))? {
        let path = entry.map_err(failed(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if (name.ends_with(".safetensors") && name != GOLDEN) || name.ends_with(".index.json") {
            copy(&path, &name)?;
        }
    }
    Ok(Some(folder_copy))
}

fn difference(case: &'static str, found: &[f32], expected: &[f32]) -> Result<f32, JudgeError> {
    if found.len() == expected.len() {
        Ok(max_difference(found, expected))
    } else {
        Err(JudgeError::Count {
            case,
            found: found.len(),
            expected: expected.len(),
        })
    }
}

pub(crate) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    let bits = |values: &[f32]| {
        values
            .iter()
            .map(|value| value.to_bits())
            .collect::<Vec<_>>()
    };
    bits(a) == bits(b)
}

fn failed(why: String) -> Outcome {
    Outcome::Failed {
        measured: None,
        why,
    }
}

/// The outcome for a family that has no row in the spec; `None` for other errors.
fn not_supported(error: &JudgeError) -> Option<Outcome> {
    let JudgeError::Weights(WeightsError::Spec { source, .. }) = error else {
        return None;
    };
    let SpecError::UnknownFamily { field, found, .. } = source else {
        return None;
    };
    Some(Outcome::NotSupported {
        model_type: found.clone(),
        why: format!("no family has the `{field}` `{found}`"),
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
