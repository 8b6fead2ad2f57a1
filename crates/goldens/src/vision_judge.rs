//! Compares features, logits and greedy tokens of prompts with pictures.

use loquat_session::conformance::max_difference;
use loquat_session::{
    Emit, MediaHandle, ModelSource, SequenceId, Session, SessionError, SessionOptions, Span,
    StepBatch, StepOutput,
};
use loquat_spec::{Config, MediaAttention, VisionSpec};
use loquat_weights::Checkpoint;

use crate::discover::Case;
use crate::judge::{Judge, JudgeError, hub_style_copy, same_bits, source};
use crate::report::{Chunks, Differences, Outcome, Report};
use crate::vision::{VisionCase, VisionGolden};

/// The largest difference allowed, unless the reference itself is less exact than that.
const LIMIT: f32 = 1e-4;
const CHUNKS: [usize; 3] = [1, 7, 16];
const CONFIG: &str = "config.json";

/// A part of a prompt: tokens, or positions of a handle.
enum Part {
    Tokens(Vec<u32>),
    Media(MediaHandle, std::ops::Range<usize>),
}

impl Judge {
    pub(crate) fn evaluate_vision(
        &self,
        case: &Case,
        source_model: &ModelSource,
        golden: &VisionGolden,
        report: &mut Report,
    ) -> Result<Outcome, JudgeError> {
        if source_model.spec.vision.is_some() && !self.judged.reads_images(source_model) {
            return Ok(Outcome::TextOnly);
        }
        let reference_error = golden.info.fp32_vs_fp64.unwrap_or(0.0);
        let inexact = reference_error * self.judged.reference_errors;
        let limit = LIMIT.max(inexact).max(self.judged.limit);
        let mut notes = Vec::new();
        let mut measured = self.measure_vision(case, source_model, golden, (limit, &mut notes))?;
        if let Some(copy) = hub_style_copy(&case.model)? {
            let copied = source(&Checkpoint::open(copy.path())?)?;
            if copied.spec != source_model.spec {
                return Err(JudgeError::SpecMismatch {
                    current: format!("{:?}", source_model.spec.vision),
                    hub_style: format!("{:?}", copied.spec.vision),
                });
            }
            let again = self.measure_vision(case, &copied, golden, (limit, &mut Vec::new()))?;
            measured = measured.worse(again);
        }
        report.note = Some(notes.join("; "));
        Ok(measured.outcome())
    }

    fn measure_vision(
        &self,
        case: &Case,
        source: &ModelSource,
        golden: &VisionGolden,
        (limit, notes): (f32, &mut Vec<String>),
    ) -> Result<Differences, JudgeError> {
        let failed = |case: &str, why: String| JudgeError::Vision {
            case: case.to_owned(),
            why,
        };
        let vision = source.spec.vision.as_ref();
        let vision = vision.ok_or_else(|| {
            let why = source.spec.vision_refusal.as_deref();
            failed("model", why.unwrap_or("it has no vision part").to_owned())
        })?;
        let reference = case.golden.as_deref().unwrap_or(&case.model);
        let text = std::fs::read_to_string(reference.join(CONFIG)).unwrap_or_default();
        let config =
            Config::parse(&text, CONFIG).map_err(|error| failed(CONFIG, error.to_string()))?;
        let mut all = Differences {
            limit,
            prompt_a: 0.0,
            prompt_b: 0.0,
            greedy: None,
            features: None,
            chunks: Chunks::Identical,
        };
        for case in &golden.cases {
            let refused = |source: SessionError| failed(case.name, source.to_string());
            let mut run = self.open_vision(source, case)?;
            let found = run
                .measure(vision, &config, (case, golden))
                .map_err(refused)?
                .map_err(|why| failed(case.name, why))?;
            notes.push(format!(
                "{} logits {:.0e}{}{}",
                case.name,
                found.prompt_b,
                found
                    .features
                    .map_or(String::new(), |d| format!(" features {d:.0e}")),
                found
                    .greedy
                    .map_or(String::new(), |d| format!(" greedy {d:.0e}")),
            ));
            let found = match case.name {
                "text" => Differences {
                    prompt_a: found.prompt_b,
                    prompt_b: 0.0,
                    ..found
                },
                _ => found,
            };
            all = all.worse(Differences { limit, ..found });
        }
        Ok(all)
    }

    fn open_vision(&self, source: &ModelSource, case: &VisionCase) -> Result<Run, JudgeError> {
        let context = case.tokens.len() + case.greedy_ids.len();
        let options = SessionOptions {
            max_step_tokens: context,
            max_sequences: 4,
            ..self.options(context)
        };
        let opened = self
            .judged
            .backend
            .open(source.clone(), &options, &mut |_| {});
        Ok(Run {
            session: opened.map_err(|source| JudgeError::Open {
                case: case.name,
                source,
            })?,
            batch: StepBatch::default(),
            output: StepOutput::default(),
        })
    }
}

struct Run {
    session: Box<dyn Session>,
    batch: StepBatch,
    output: StepOutput,
}

impl Run {
    fn measure(
        &mut self,
        vision: &VisionSpec,
        config: &Config,
        (case, golden): (&VisionCase, &VisionGolden),
    ) -> Result<Result<Differences, String>, SessionError> {
        let runs = case.runs(&golden.info.placeholder_ids);
        let media = match case.media(vision, config, runs.len()) {
            Ok(media) => media,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let mut handles = Vec::new();
        let mut levels: Vec<Vec<f32>> = vec![Vec::new(); case.features.len()];
        for media in &media {
            let handle = self.session.encode(media)?;
            let features = self.session.media_features(handle.id)?;
            let level = features.len() / levels.len().max(1);
            for (level, own) in levels.iter_mut().zip(features.chunks(level.max(1))) {
                level.extend_from_slice(own);
            }
            handles.push(handle);
        }
        let mut features = None;
        for (found, expected) in levels.iter().zip(&case.features) {
            if found.len() != expected.len() {
                let (found, expected) = (found.len(), expected.len());
                return Ok(Err(format!("{found} feature values, expected {expected}")));
            }
            let by = max_difference(found, expected);
            features = features.into_iter().chain([by]).reduce(f32::max);
        }
        let parts = match parts(case, &runs, &handles) {
            Ok(parts) => parts,
            Err(why) => return Ok(Err(why)),
        };
        let vocab = self.session.capabilities().vocab_size;
        let (whole, sequence) = self.feed(&parts, usize::MAX)?;
        let logits = max_difference(&whole, &case.logits);
        let greedy = self.greedy(case, sequence)?;
        let last = whole[whole.len() - vocab..].to_vec();
        let greedy_logits = [last, greedy].concat();
        let greedy = max_difference(&greedy_logits, &case.greedy_logits);
        let argmax = |logits: &[f32]| {
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            logits.iter().position(|logit| *logit == best)
        };
        let chosen = greedy_logits.chunks(vocab).map(argmax);
        let same = chosen.eq(case.greedy_ids.iter().map(|id| Some(*id as usize)));
        let mut chunks = Chunks::Identical;
        if vision.attention != MediaAttention::FirstRow {
            for size in CHUNKS {
                let (chunked, sequence) = self.feed(&parts, size)?;
                self.session.release(sequence)?;
                if !same_bits(&chunked, &whole) {
                    chunks = chunks.worse(Chunks::Differ {
                        size,
                        by: max_difference(&chunked, &whole),
                        promised: self.session.capabilities().chunk_invariant,
                    });
                }
            }
        }
        for handle in handles {
            self.session.release_media(handle.id)?;
        }
        if self.session.memory().media_in_use != 0 {
            return Ok(Err("released media still hold memory".to_owned()));
        }
        if whole.len() != case.logits.len() || !same {
            let what = format!("greedy ids differ (logits by {logits:.1e}, features {features:?})");
            return Ok(Err(what));
        }
        Ok(Ok(Differences {
            limit: 0.0,
            prompt_a: 0.0,
            prompt_b: logits,
            greedy: Some(greedy),
            features,
            chunks,
        }))
    }

    /// The logits after each position of a new sequence, in rows of up to `size` positions;
    /// indivisible media stay whole.
    fn feed(
        &mut self,
        parts: &[Part],
        size: usize,
    ) -> Result<(Vec<f32>, SequenceId), SessionError> {
        let sequence = self.session.create()?;
        let mut logits = Vec::new();
        let mut row: Vec<Span<'_>> = Vec::new();
        let mut len = 0;
        for part in parts {
            match part {
                Part::Tokens(tokens) => {
                    let mut rest = tokens.as_slice();
                    while !rest.is_empty() {
                        let (own, after) = rest.split_at(rest.len().min(size - len));
                        row.push(Span::Tokens(own));
                        (rest, len) = (after, len + own.len());
                        self.flush((sequence, size), &mut row, &mut len, &mut logits)?;
                    }
                }
                Part::Media(handle, range) if handle.divisible => {
                    let mut range = range.clone();
                    while !range.is_empty() {
                        let end = range.end.min(range.start.saturating_add(size - len));
                        let own = range.start..end;
                        len += own.len();
                        row.push(Span::Media {
                            id: handle.id,
                            range: own,
                        });
                        range.start = end;
                        self.flush((sequence, size), &mut row, &mut len, &mut logits)?;
                    }
                }
                Part::Media(handle, range) => {
                    len += range.len();
                    row.push(Span::Media {
                        id: handle.id,
                        range: range.clone(),
                    });
                    self.flush((sequence, size), &mut row, &mut len, &mut logits)?;
                }
            }
        }
        self.flush((sequence, 1), &mut row, &mut len, &mut logits)?;
        Ok((logits, sequence))
    }

    /// Runs the row once it has `size` positions.
    fn flush(
        &mut self,
        (sequence, size): (SequenceId, usize),
        row: &mut Vec<Span<'_>>,
        len: &mut usize,
        logits: &mut Vec<f32>,
    ) -> Result<(), SessionError> {
        if *len < size || *len == 0 {
            return Ok(());
        }
        let emit = Emit::Logits { positions: *len };
        self.batch.clear();
        self.batch.push_spans(sequence, row.drain(..), emit);
        self.session.step(&self.batch, &mut self.output)?;
        if let Some(error) = self.output.rows().iter().find_map(|row| row.error.clone()) {
            return Err(error);
        }
        for position in 0..*len {
            logits.extend_from_slice(self.output.logits(0, position));
        }
        *len = 0;
        Ok(())
    }

    /// The logits after each of the reference's tokens but the last.
    fn greedy(
        &mut self,
        case: &VisionCase,
        sequence: SequenceId,
    ) -> Result<Vec<f32>, SessionError> {
        let mut logits = Vec::new();
        for id in &case.greedy_ids[..case.greedy_ids.len() - 1] {
            self.batch.clear();
            let emit = Emit::Logits { positions: 1 };
            self.batch.push(sequence, &[*id], emit);
            self.session.step(&self.batch, &mut self.output)?;
            if let Some(error) = self.output.rows().iter().find_map(|row| row.error.clone()) {
                return Err(error);
            }
            logits.extend_from_slice(self.output.logits(0, 0));
        }
        self.session.release(sequence)?;
        Ok(logits)
    }
}

/// The prompt with handles in place of placeholders.
fn parts(
    case: &VisionCase,
    runs: &[std::ops::Range<usize>],
    handles: &[MediaHandle],
) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let (mut at, mut handle, mut taken) = (0, 0, 0);
    for run in runs {
        if at < run.start {
            parts.push(Part::Tokens(case.tokens[at..run.start].to_vec()));
        }
        let mut left = run.len();
        // Pictures may follow each other without text between.
        while left > 0 {
            let current = handles
                .get(handle)
                .ok_or("too few media for the placeholders")?;
            let count = left.min(current.positions - taken);
            parts.push(Part::Media(*current, taken..taken + count));
            (left, taken) = (left - count, taken + count);
            if taken == current.positions {
                (handle, taken) = (handle + 1, 0);
            }
        }
        at = run.end;
    }
    if handle != handles.len() || taken != 0 {
        return Err("too few placeholders for the media".to_owned());
    }
    if at < case.tokens.len() {
        parts.push(Part::Tokens(case.tokens[at..].to_vec()));
    }
    Ok(parts)
}
