//! Running a checkpoint and comparing it with its reference.

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

use crate::backends::Judged;
use crate::discover::{Case, GOLDEN, Set};
use crate::golden::{Golden, GoldenError, Greedy, Prompt};
use crate::lines::{first_difference, with_context};
use crate::report::{Chunks, Measured, Outcome, Report};

/// Short of, across and beyond the sizes that kernels work in.
const CHUNKS: [usize; 3] = [1, 7, 16];
/// The smallest session.
const IDLE_CONTEXT: usize = 16;
const CONFIG: &str = "config.json";
const OLDER_CONFIG: &str = "config.hub_style.json";

pub struct Judge {
    pub judged: &'static Judged,
    pub prefer_hf: bool,
}

#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Golden(#[from] GoldenError),
    #[error("{what} cannot be opened: {source}")]
    Open {
        what: &'static str,
        source: OpenError,
    },
    #[error("{what}: {source}")]
    Step {
        what: &'static str,
        source: SessionError,
    },
    #[error("{what}: {found} logits, but the reference has {expected}")]
    Count {
        what: &'static str,
        found: usize,
        expected: usize,
    },
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("with {OLDER_CONFIG}: {0}")]
    OlderStyle(Box<Fault>),
    #[error("it describes `{older}`, but {CONFIG} `{newer}`")]
    OtherSpec { newer: String, older: String },
}

/// References for MLX-quantized weights come from MLX's kernels, which sum in another order; all
/// others from fp32 arithmetic on the same numbers.
fn limit(format: Format) -> f32 {
    match format {
        Format::Mlx => 1e-3,
        Format::Safetensors | Format::Gguf => 1e-4,
    }
}

impl Judge {
    /// Never fails: every error, even a panic, becomes the verdict.
    pub fn judge(&self, set: &Set, case: &Case) -> Report {
        let mut report = Report::new(self.judged.name(), set, case);
        let examined = catch_unwind(AssertUnwindSafe(|| self.examine(case, &mut report)));
        report.outcome = match examined {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(fault)) => not_supported(&fault).unwrap_or_else(|| failed(fault.to_string())),
            Err(panic) => failed(format!("panicked: {}", panic_message(panic.as_ref()))),
        };
        report
    }

    /// Fills in the report as far as it gets.
    fn examine(&self, case: &Case, report: &mut Report) -> Result<Outcome, Fault> {
        let checkpoint = Checkpoint::open(&case.model)?;
        let golden_family = case.golden.as_deref().and_then(family_of);
        report.family = golden_family.or_else(|| Some(checkpoint.spec.family.to_owned()));
        report.format = Some(checkpoint.format);
        let header = checkpoint.gguf_metadata();
        report.architecture = header
            .and_then(|header| header.str("general.architecture"))
            .map(str::to_owned);

        let source = source(&checkpoint)?;
        let Some(folder) = &case.golden else {
            self.sit(&source, "the model", IDLE_CONTEXT)?;
            return Ok(Outcome::LoadsOnly);
        };
        let mut golden = Golden::open(folder, self.prefer_hf)?;
        let limit = limit(checkpoint.format).max(self.judged.limit);
        report.note = drop_doubtful(&mut golden, limit);
        let mut measured = self.measure(&source, &golden, limit)?;
        if let Some(twin) = older_style(&case.model)? {
            let again = self
                .measure_twin(twin.path(), &source, &golden, limit)
                .map_err(|fault| Fault::OlderStyle(Box::new(fault)))?;
            measured = measured.worse(again);
        }
        Ok(measured.outcome())
    }

    fn measure_twin(
        &self,
        twin: &Path,
        original: &ModelSource,
        golden: &Golden,
        limit: f32,
    ) -> Result<Measured, Fault> {
        let twin = source(&Checkpoint::open(twin)?)?;
        if twin.spec != original.spec {
            let shown = [&original.spec, &twin.spec].map(|spec| format!("{spec:#?}"));
            let line = first_difference(&shown[0], &shown[1]).map_or(0, |(line, ..)| line);
            let [newer, older] = shown.map(|spec| with_context(&spec, line));
            return Err(Fault::OtherSpec { newer, older });
        }
        self.measure(&twin, golden, limit)
    }

    fn measure(
        &self,
        source: &ModelSource,
        golden: &Golden,
        limit: f32,
    ) -> Result<Measured, Fault> {
        let Golden {
            prompt_a,
            prompt_b,
            greedy,
        } = golden;
        let a = self
            .sit(source, "prompt_a", prompt_a.tokens.len())?
            .logits(once(&prompt_a.tokens[..]))?;
        let (b, chunks) = self.whole_and_chunked(source, prompt_b)?;
        let greedy = greedy.as_ref();
        Ok(Measured {
            limit,
            prompt_a: difference("prompt_a", &a, &prompt_a.logits)?,
            prompt_b: difference("prompt_b", &b, &prompt_b.logits)?,
            greedy: greedy
                .map(|greedy| self.greedy(source, &prompt_a.tokens, greedy))
                .transpose()?,
            chunks,
        })
    }

    fn whole_and_chunked(
        &self,
        source: &ModelSource,
        prompt: &Prompt,
    ) -> Result<(Vec<f32>, Chunks), Fault> {
        let mut sitting = self.sit(source, "prompt_b", prompt.tokens.len())?;
        let promised = sitting.session.capabilities().batch_invariant;
        let whole = sitting.logits(once(&prompt.tokens[..]))?;
        let mut worst = Chunks::Identical;
        for size in CHUNKS {
            let chunked = sitting.logits(prompt.tokens.chunks(size))?;
            let by = difference("prompt_b in chunks", &chunked, &whole)?;
            if !same_bits(&chunked, &whole) {
                worst = worst.worse(Chunks::Differ { size, by, promised });
            }
        }
        Ok((whole, worst))
    }

    /// The prompt as a whole, then token by token, as a conversation runs.
    fn greedy(&self, source: &ModelSource, prompt: &[u32], greedy: &Greedy) -> Result<f32, Fault> {
        let fed = &greedy.ids[..greedy.ids.len() - 1];
        let mut sitting = self.sit(source, "greedy", prompt.len() + fed.len())?;
        let logits = sitting.logits(once(prompt).chain(fed.chunks(1)))?;
        // The first id was chosen after the prompt's last token.
        let before = (prompt.len() - 1) * sitting.session.capabilities().vocab_size;
        difference(
            "greedy",
            logits.get(before..).unwrap_or_default(),
            &greedy.logits,
        )
    }

    /// `context` is the case's own length: some ropes choose their frequencies by it, as the
    /// reference does by the length of what it reads.
    fn sit(
        &self,
        source: &ModelSource,
        what: &'static str,
        context: usize,
    ) -> Result<Sitting, Fault> {
        let options = SessionOptions {
            context: Some(context),
            max_sequences: 1,
            max_step_tokens: context,
            precision: Precision::Reference,
            ..SessionOptions::default()
        };
        let opened = self
            .judged
            .backend
            .open(source.clone(), &options, &mut |_| {});
        Ok(Sitting {
            what,
            session: opened.map_err(|source| Fault::Open { what, source })?,
            batch: StepBatch::default(),
            output: StepOutput::default(),
        })
    }
}

/// A session, and what to call its work in an error.
struct Sitting {
    what: &'static str,
    session: Box<dyn Session>,
    batch: StepBatch,
    output: StepOutput,
}

impl Sitting {
    /// The logits after each token of a fresh sequence that is fed `chunks`.
    fn logits<'a>(&mut self, chunks: impl Iterator<Item = &'a [u32]>) -> Result<Vec<f32>, Fault> {
        let what = self.what;
        self.feed(chunks)
            .map_err(|source| Fault::Step { what, source })
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

fn source(checkpoint: &Checkpoint) -> Result<ModelSource, Fault> {
    Ok(ModelSource {
        weights: Arc::new(checkpoint.bind()?),
        paths: checkpoint.paths.clone(),
        spec: Arc::new(checkpoint.spec.clone()),
    })
}

/// The family in the reference's config, if that exists and parses.
fn family_of(golden: &Path) -> Option<String> {
    let text = std::fs::read_to_string(golden.join(CONFIG)).ok()?;
    let config = Config::parse(&text, CONFIG).ok()?;
    let described = families::from_config(&config).ok()?;
    Some(described.spec.family.to_owned())
}

/// Removes the greedy case, with a note, if the reference contradicts itself by more than the
/// limit.
fn drop_doubtful(golden: &mut Golden, limit: f32) -> Option<String> {
    let doubt = golden.greedy.as_ref()?.doubt?;
    if doubt <= limit {
        return None;
    }
    golden.greedy = None;
    Some(format!(
        "greedy is not judged: the reference's own decoding is {doubt:.1e} from its prefill"
    ))
}

/// A copy of the checkpoint with its config in the older, more common style; `None` if the folder
/// has no such config.
fn older_style(folder: &Path) -> Result<Option<TempDir>, Fault> {
    let config = folder.join(OLDER_CONFIG);
    if !config.is_file() {
        return Ok(None);
    }
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Fault::Io { path, source }
    };
    let twin = tempfile::tempdir().map_err(failed(&std::env::temp_dir()))?;
    let copy = |from: &Path, name: &str| {
        let copied = std::fs::copy(from, twin.path().join(name));
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
    Ok(Some(twin))
}

fn difference(what: &'static str, found: &[f32], expected: &[f32]) -> Result<f32, Fault> {
    if found.len() == expected.len() {
        Ok(max_difference(found, expected))
    } else {
        Err(Fault::Count {
            what,
            found: found.len(),
            expected: expected.len(),
        })
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
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

/// An unsupported family is not the checkpoint's fault.
fn not_supported(fault: &Fault) -> Option<Outcome> {
    let Fault::Weights(WeightsError::Spec { source, .. }) = fault else {
        return None;
    };
    let SpecError::UnknownFamily { field, found, .. } = source else {
        return None;
    };
    Some(Outcome::NotSupported {
        model_type: found.clone(),
        why: format!("no family reads the `{field}` `{found}`"),
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
