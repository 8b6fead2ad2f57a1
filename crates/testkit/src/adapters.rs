//! Adapters with random weights, and those of files against logits of peft.

use std::path::{Path, PathBuf};

use loquat_session::conformance::max_difference;
use loquat_session::{
    AdapterId, AdapterLimits, AppliedAdapter, Backend, Emit, ModelSource, Precision, Session,
    SessionOptions, StepBatch, StepOutput,
};
use loquat_spec::ModelSpec;
use loquat_synthetic::AdapterRecipe;
use loquat_weights::{AdapterWeights, Checkpoint};

use crate::goldens::{self, Arrays};

/// Two adapters that can be combined: one of everything with magnitudes, in f32, and one of the
/// layers' matrices, in bf16.
pub fn pair(spec: &ModelSpec) -> Vec<AdapterWeights> {
    let recipes = [
        AdapterRecipe {
            bf16: false,
            magnitudes: true,
            everything: true,
            ..AdapterRecipe::linear(5, 1)
        },
        AdapterRecipe::linear(8, 2),
    ];
    let made = recipes.iter().map(|recipe| recipe.make(spec));
    made.map(|adapter| adapter.unwrap_or_else(|error| panic!("{error}")))
        .collect()
}

/// A session with adapters.
pub struct AdaptedSession {
    pub session: Box<dyn Session>,
    pub ids: Vec<AdapterId>,
}

impl AdaptedSession {
    /// Opens a model and loads these adapters.
    pub fn open(
        backend: &dyn Backend,
        source: ModelSource,
        adapters: &[AdapterWeights],
        precision: Precision,
    ) -> Self {
        let options = SessionOptions {
            precision,
            adapters: AdapterLimits::holding(adapters),
            ..SessionOptions::default()
        };
        let opened = backend.open(source, &options, &mut |_| {});
        let mut session = opened.unwrap_or_else(|error| panic!("{error}"));
        let ids = adapters.iter().map(|adapter| {
            let loaded = session.load_adapter(adapter);
            loaded.unwrap_or_else(|error| panic!("{}: {error}", adapter.info().name))
        });
        let ids = ids.collect();
        Self { session, ids }
    }

    /// The logits of every position of a new sequence.
    pub fn logits(&mut self, adapters: &[AppliedAdapter], tokens: &[u32]) -> Vec<f32> {
        let computed = self.try_logits(adapters, tokens);
        computed.unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_logits(
        &mut self,
        adapters: &[AppliedAdapter],
        tokens: &[u32],
    ) -> Result<Vec<f32>, loquat_session::SessionError> {
        let sequence = self.session.create_adapted(adapters)?;
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        let positions = tokens.len();
        batch.push(sequence, tokens, Emit::Logits { positions });
        self.session.step(&batch, &mut output)?;
        if let Some(error) = &output.rows()[0].error {
            return Err(error.clone());
        }
        self.session.release(sequence)?;
        Ok(output.all_logits_mut().to_vec())
    }
}

/// The adapters of files, in the form of peft and, if it exists, of mlx-lm.
fn forms(folder: &Path) -> Vec<PathBuf> {
    let forms = [folder.to_owned(), folder.join("mlx")];
    forms.into_iter().filter(|form| form.is_dir()).collect()
}

/// What a backend gets wrong with the golden adapters: each whose logits differ from peft's by more
/// than `tolerance`, in reference precision.
pub fn differences_from_peft(backend: &dyn Backend, tolerance: f32) -> Vec<String> {
    let folders = goldens::adapters().unwrap_or_else(|error| panic!("golden adapters: {error}"));
    let forms: Vec<(PathBuf, PathBuf)> = folders
        .iter()
        .flat_map(|folder| forms(folder).into_iter().map(|form| (folder.clone(), form)))
        .collect();
    assert_eq!(forms.len(), 25 + 14, "golden adapters");
    let faults = forms.iter().filter_map(|(folder, form)| {
        let name = format!("{}, {}", backend.name(), form.display());
        match difference_from_peft(backend, folder, form) {
            Ok(difference) if difference <= tolerance => None,
            Ok(difference) => Some(format!("{name}: differs by {difference}")),
            Err(error) => Some(format!("{name}: {error}")),
        }
    });
    faults.collect()
}

fn difference_from_peft(
    backend: &dyn Backend,
    folder: &Path,
    form: &Path,
) -> Result<f32, loquat_weights::WeightsError> {
    let base = goldens::adapter_base(folder);
    let adapter = AdapterWeights::open(form, &Checkpoint::open(&base)?.adapter_base())?;
    let arrays = Arrays::open(folder)?;
    let (tokens, expected) = (arrays.tokens("prompt_b"), arrays.floats("logits_b"));
    let source = goldens::source(&base)?;
    let mut adapted = AdaptedSession::open(backend, source, &[adapter], Precision::Reference);
    let whole = AppliedAdapter::whole(adapted.ids[0]);
    let found = adapted.logits(&[whole], &tokens);
    assert_eq!(found.len(), expected.len(), "{}", form.display());
    Ok(max_difference(&found, &expected))
}
