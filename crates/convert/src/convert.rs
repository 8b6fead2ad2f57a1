//! A conversion from end to end.

use std::collections::HashMap;
use std::path::Path;

use loquat_spec::families::{self, Described};
use loquat_spec::{Config, FamilyFacts, ModelSpec, Naming, Role};
use loquat_weights::gguf::{Metadata, Value as Field};
use loquat_weights::{Dtype, TensorInfo};
use serde_json::{Map, Value, json};

use crate::choose::{Choice, file_type, mlx_table, unlisted_router};
use crate::describe::{self, gguf};
use crate::measure::{Report, TensorReport};
use crate::merge::MergedAdapter;
use crate::output::{OutputPath, PendingOutput, Shape};
use crate::plan::{self, Planned};
use crate::quantize::{Encoded, Encoding};
use crate::source::{COMPANION_FILES, Source, SourceMetadata};
use crate::tensor::convert_tensor;
use crate::write::{Files, Layout};
use crate::{ConvertError, Quant, Target, vocabulary};

/// The options of a conversion.
pub struct Conversion<'a> {
    /// A folder, a `.gguf` or `.safetensors` file, or an index.
    pub source: &'a Path,
    /// Adapters to fold into the result.
    pub adapters: &'a [MergedAdapter<'a>],
    pub out: &'a Path,
    pub target: Target,
    pub quant: Quant,
    /// The type of tensors that are not quantized; `None`: the source's.
    pub dtype: Option<Dtype>,
    /// The model's name, with which the adapters' base models are compared, and which is written
    /// into GGUF; `None`: the source folder's is written.
    pub name: Option<&'a str>,
    /// Quantize an already quantized model.
    pub requantize: bool,
    /// Replace an existing model.
    pub force: bool,
    /// Where running conversions are recorded, so that
    /// [`remove_leftovers`](crate::remove_leftovers) finds what killed ones leave.
    pub records: Option<&'a Path>,
}

/// Progress. The callback returns whether to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The number of values to convert.
    Begin(u64),
    Tensor(&'a str),
    /// This many more are converted.
    Values(u64),
}

/// Converts; on failure nothing is left behind.
pub fn convert(
    options: &Conversion<'_>,
    step: &mut dyn FnMut(Step<'_>) -> bool,
) -> Result<Report, ConvertError> {
    if let (Quant::Plain(Some(quant)), Some(dtype)) = (options.quant, options.dtype)
        && quant != dtype
    {
        return Err(ConvertError::TwoTypes { quant, dtype });
    }
    let source = Source::open(options.source, options.adapters, options.name)?;
    let mut notes = source.merge.notes.clone();
    if let Some(found) = source.quantized() {
        if options.quant.is_quantized() && !options.requantize {
            return Err(ConvertError::Quantized { found });
        }
        notes.push(format!(
            "the source was quantized ({found}): the figures do not include its own error"
        ));
    }
    let output = OutputPath {
        target: options.out,
        shape: match options.target {
            Target::Gguf => Shape::File,
            Target::Mlx | Target::Safetensors => Shape::Folder,
        },
        force: options.force,
    };
    output.check(&source)?;
    let float = match options.quant {
        Quant::Plain(Some(dtype)) => dtype,
        _ => options.dtype.unwrap_or_else(|| source.usual_float()),
    };
    let model = match options.target {
        Target::Gguf => TargetModel::gguf(&source, options, float, &mut notes)?,
        Target::Mlx | Target::Safetensors => {
            TargetModel::folder(&source, options, float, &mut notes)?
        }
    };
    if let (Target::Mlx, Quant::Mlx(_)) = (options.target, options.quant)
        && let Some(why) = unlisted_router(&model.spec)
    {
        let instead = "convert without --quant, or with mlx-lm".to_owned();
        return Err(family_error(model.spec.family, "MLX", why, instead));
    }
    let planned = plan::plan(
        &source,
        &plan::Target {
            spec: &model.spec,
            naming: &model.naming,
            generated: &model.generated,
        },
    )?;
    let result = EncodedPlan::choose(&model, &planned, options, float, &source, &mut notes);
    let output = output.open(options.records)?;
    let mut report = result.write(&model, &output, options, step)?;
    report.notes = notes;
    report.source_bytes = source.bytes();
    source.checkpoint.files().check()?;
    output.commit()?;
    Ok(report)
}

/// The result, except its tensors.
struct TargetModel {
    spec: ModelSpec,
    naming: Naming,
    generated: HashMap<Role, Vec<f32>>,
    metadata: TargetMetadata,
}

enum TargetMetadata {
    Gguf(Metadata),
    Folder {
        config: Map<String, Value>,
        files: Vec<(String, Vec<u8>)>,
    },
}

/// A file that is written next to the weights: its name and content.
type CompanionFile = (String, Vec<u8>);

impl TargetModel {
    fn gguf(
        source: &Source,
        options: &Conversion<'_>,
        float: Dtype,
        notes: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let file_type = Field::U32(file_type(options.quant, float));
        if let SourceMetadata::Gguf(metadata) = &source.metadata {
            let mut metadata = metadata.clone();
            metadata.insert("general.file_type", file_type);
            return Ok(Self {
                spec: source.spec().clone(),
                naming: *source.naming(),
                generated: HashMap::new(),
                metadata: TargetMetadata::Gguf(metadata),
            });
        }
        let family = source.spec().family;
        let refuse = |why: &str| family_error(family, "GGUF", why, gguf_families());
        let export = source.spec().facts().gguf_export.as_ref();
        let export = export.ok_or_else(|| refuse("its GGUF metadata keys are unknown"))?;
        if let Some(window) = gguf::ignored_window(source.spec(), export) {
            let context = source.spec().max_context;
            let why = format!(
                "llama.cpp ignores its window of {window} positions in a context of {context}"
            );
            let instead = "convert to mlx or safetensors".to_owned();
            return Err(family_error(family, "GGUF", &why, instead));
        }
        let (mut spec, generated) = describe::factors_as_tensors(source.spec());
        let mut metadata = gguf::metadata(&spec, export)
            .ok_or_else(|| refuse("it has layers without attention"))?;
        metadata.insert("general.file_type", file_type);
        let name = options.name.map(str::to_owned);
        let name = name.unwrap_or_else(|| model_name(&source.path));
        metadata.insert("general.name", Field::String(name));
        let naming = families::gguf_naming(export.architecture)?;
        let infos = shapes(&naming, &spec);
        let header = gguf::Header {
            metadata: &metadata,
            tensors: &infos,
        };
        let read = families::from_gguf(&header)?.spec;
        describe::same("GGUF", &spec, &read)?;
        spec = read;
        notes.extend(vocabulary::to_gguf(
            source.directory(),
            spec.vocab_size,
            &mut metadata,
        )?);
        Ok(Self {
            spec,
            naming,
            generated,
            metadata: TargetMetadata::Gguf(metadata),
        })
    }

    fn folder(
        source: &Source,
        options: &Conversion<'_>,
        float: Dtype,
        notes: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        match &source.metadata {
            SourceMetadata::Config { fields, described } => {
                Self::same_family(source, options, fields, described, notes)
            }
            SourceMetadata::Gguf(metadata) => {
                Self::from_gguf(source, options, metadata, float, notes)
            }
        }
    }

    /// From one folder to another: the config is kept.
    fn same_family(
        source: &Source,
        options: &Conversion<'_>,
        fields: &Map<String, Value>,
        described: &Described,
        notes: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let family = source.spec().family;
        let naming = match (options.target, described.mlx) {
            (Target::Mlx, Some(naming)) => naming,
            (Target::Mlx, None) | (Target::Safetensors, _) => described.namings[0],
            (Target::Gguf, _) => *source.naming(),
        };
        if naming.refit.is_some() && source.naming().refit.is_none() {
            let why = "mlx-lm folds multipliers into its matrices";
            let instead = "convert to safetensors, or with mlx-lm".to_owned();
            return Err(family_error(family, options.target.name(), why, instead));
        }
        if options.target == Target::Mlx
            && let Some(why) = describe::mlx::unreadable(fields, &source.spec().facts().mlx)
        {
            let instead = "convert to safetensors, or the original with mlx-lm".to_owned();
            return Err(family_error(family, options.target.name(), &why, instead));
        }
        if described.wrapped {
            notes.push("only the text model is converted, without image and audio parts".into());
        }
        let mut config = fields.clone();
        for field in [
            "quantization",
            "quantization_config",
            "text_config",
            "vision_config",
        ] {
            config.remove(field);
        }
        let mut files = Vec::new();
        for name in COMPANION_FILES {
            let path = source.directory().join(name);
            if path.is_file() {
                let bytes = std::fs::read(&path).map_err(ConvertError::reading(&path))?;
                files.push(((*name).to_owned(), bytes));
            }
        }
        Ok(Self {
            spec: source.spec().clone(),
            naming,
            generated: HashMap::new(),
            metadata: TargetMetadata::Folder { config, files },
        })
    }

    fn from_gguf(
        source: &Source,
        options: &Conversion<'_>,
        metadata: &Metadata,
        float: Dtype,
        notes: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let (family, target) = (source.spec().family, options.target.name());
        let refuse = |why: &str| family_error(family, target, why, config_families());
        let export = source.spec().config_export();
        let export =
            export.ok_or_else(|| refuse("its GGUF metadata does not determine a config.json"))?;
        let tensor = |role| source.stored(role).map(|(values, _)| values);
        let mut config =
            describe::config::fields(source.spec(), export, float, tensor).map_err(refuse)?;
        let text = Value::Object(config.clone()).to_string();
        let described = families::from_config(&Config::parse(&text, "config.json")?)?;
        describe::same("config.json", source.spec(), &described.spec)?;
        let words = vocabulary::to_json(metadata)?;
        if words.files.is_empty() {
            notes.push("the file has no vocabulary; no tokenizer.json is written".into());
        }
        config.extend(words.config);
        let files = words.files.into_iter();
        Ok(Self {
            naming: match (options.target, described.mlx) {
                (Target::Mlx, Some(naming)) => naming,
                _ => described.namings[0],
            },
            spec: described.spec,
            generated: HashMap::new(),
            metadata: TargetMetadata::Folder {
                config,
                files: files
                    .map(|(name, text)| (name.to_owned(), text.into_bytes()))
                    .collect(),
            },
        })
    }
}

fn family_error(family: &str, target: &'static str, why: &str, instead: String) -> ConvertError {
    ConvertError::Family {
        family: family.to_owned(),
        target,
        why: why.to_owned(),
        instead,
    }
}

fn gguf_families() -> String {
    format!(
        "--to gguf supports {}; use --to mlx or --to safetensors for others",
        families_with(|facts| facts.gguf_export.is_some())
    )
}

fn config_families() -> String {
    format!(
        "GGUF files of {} can be converted; use the safetensors of others",
        families_with(|facts| facts.config_export.is_some())
    )
}

fn families_with(has: impl Fn(&FamilyFacts) -> bool) -> String {
    let families = families::all().filter(|family| has(&family.facts));
    let names: Vec<&str> = families.map(|family| family.model_types[0]).collect();
    names.join(", ")
}

/// The model's name: that of its folder.
fn model_name(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = if path.is_file() {
        path.parent()
    } else {
        Some(path.as_path())
    };
    let name = folder.and_then(Path::file_name).unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The names and shapes of the spec's tensors, for reading the header back.
fn shapes(naming: &Naming, spec: &ModelSpec) -> Vec<TensorInfo> {
    let slots = naming.slots(spec).into_iter();
    slots
        .flat_map(|slot| {
            let shape = if Source::is_matrix(slot.kind) {
                vec![slot.layout.total, slot.kind.cols()]
            } else {
                vec![slot.layout.total]
            };
            slot.names.into_iter().map(move |name| TensorInfo {
                name,
                dtype: Dtype::F32,
                shape: shape.clone(),
            })
        })
        .collect()
}

/// The tensors with their types.
struct EncodedPlan<'a> {
    planned: &'a [Planned<'a>],
    encodings: Vec<Encoding>,
}

impl<'a> EncodedPlan<'a> {
    fn choose(
        model: &TargetModel,
        planned: &'a [Planned<'a>],
        options: &Conversion<'_>,
        float: Dtype,
        source: &Source,
        notes: &mut Vec<String>,
    ) -> Self {
        let own =
            options.dtype.is_none() && matches!(options.quant, Quant::Plain(None) | Quant::Mlx(_));
        let mut fallbacks = Vec::new();
        let encodings = planned.iter().map(|tensor| {
            let kept = source
                .float(tensor.role)
                .filter(|_| own && !source.is_gguf());
            let choice = Choice {
                target: options.target,
                quant: options.quant,
                spec: &model.spec,
                float: kept.unwrap_or(float),
            };
            let chosen = choice.encoding(tensor);
            if chosen.fell_back {
                fallbacks.push((tensor.name.as_str(), chosen.encoding.name()));
            }
            chosen.encoding
        });
        let encodings = encodings.collect();
        if let Some((name, stored)) = fallbacks.first() {
            notes.push(format!(
                "the type does not divide the rows of {} of {} tensors; {name}, for example, is \
                 {stored}",
                fallbacks.len(),
                planned.len()
            ));
        }
        Self { planned, encodings }
    }

    fn write(
        &self,
        model: &TargetModel,
        output: &PendingOutput<'_>,
        options: &Conversion<'_>,
        step: &mut dyn FnMut(Step<'_>) -> bool,
    ) -> Result<Report, ConvertError> {
        let (infos, first) = self.infos()?;
        let layout = match &model.metadata {
            TargetMetadata::Gguf(metadata) => Layout::gguf(output.whole(), metadata, &infos)?,
            TargetMetadata::Folder { .. } => {
                let format = match options.target {
                    Target::Mlx => "mlx",
                    Target::Gguf | Target::Safetensors => "pt",
                };
                Layout::safetensors(&output.whole(), &infos, format)?
            }
        };
        output.has_room(layout.bytes)?;
        if let TargetMetadata::Folder { config, files } = &model.metadata {
            self.write_companions(&output.whole(), &model.spec, (config, files), options)?;
        }
        let mut open = layout.create()?;
        let values = self
            .planned
            .iter()
            .map(|tensor| tensor.shape.iter().product::<usize>());
        step(Step::Begin(values.sum::<usize>() as u64));
        let mut report = Report {
            bytes: layout.bytes,
            ..Report::default()
        };
        for ((tensor, encoding), first) in self.planned.iter().zip(&self.encodings).zip(first) {
            if !step(Step::Tensor(&tensor.name)) {
                return Err(ConvertError::Interrupted);
            }
            let mut sink = Sink {
                files: &mut open,
                layout: &layout,
                first,
                written: [0; 3],
            };
            let error = convert_tensor(tensor, *encoding, &mut |run| sink.write(run), step)?;
            report.tensors.push(TensorReport {
                name: tensor.name.clone(),
                class: tensor.class,
                stored: encoding.name(),
                quantized: encoding.is_quantized(),
                bytes: sink.written.iter().sum(),
                error,
            });
        }
        open.finish()?;
        Ok(report)
    }

    /// The file's tensors and, for each planned tensor, the index of its first.
    fn infos(&self) -> Result<(Vec<TensorInfo>, Vec<usize>), ConvertError> {
        let (mut infos, mut first) = (Vec::new(), Vec::new());
        for (tensor, encoding) in self.planned.iter().zip(&self.encodings) {
            first.push(infos.len());
            let info = |name: String, dtype, cols: usize| {
                let mut shape = tensor.shape.clone();
                if let Some(last) = shape.last_mut() {
                    *last = cols;
                }
                TensorInfo { name, dtype, shape }
            };
            match encoding {
                Encoding::Plain(dtype) => {
                    infos.push(info(tensor.name.clone(), *dtype, tensor.cols()));
                }
                Encoding::Mlx { mode, float } => {
                    let module = module_of(&tensor.name);
                    let words = tensor.cols() * usize::from(mode.bits()) / 32;
                    let groups = tensor.cols() / mode.group();
                    let scale = Encoding::scale_dtype(*mode, *float);
                    infos.push(info(tensor.name.clone(), Dtype::U32, words));
                    infos.push(info(format!("{module}.scales"), scale, groups));
                    if scale == *float {
                        infos.push(info(format!("{module}.biases"), scale, groups));
                    }
                }
            }
        }
        Ok((infos, first))
    }

    fn write_companions(
        &self,
        folder: &Path,
        spec: &ModelSpec,
        (config, files): (&Map<String, Value>, &[CompanionFile]),
        options: &Conversion<'_>,
    ) -> Result<(), ConvertError> {
        std::fs::create_dir(folder).map_err(ConvertError::writing(folder))?;
        let mut config = config.clone();
        if let Some(dtype) = options.dtype.or(match options.quant {
            Quant::Plain(dtype) => dtype,
            Quant::Mlx(_) | Quant::Blocks { .. } => None,
        }) {
            let field = if config.contains_key("dtype") {
                "dtype"
            } else {
                "torch_dtype"
            };
            config.insert(field.into(), json!(describe::config::torch_name(dtype)));
        }
        if options.target == Target::Mlx {
            config = describe::mlx::styled(config, &spec.facts().mlx);
        }
        if let Quant::Mlx(mode) = options.quant {
            let modules = self.planned.iter().zip(&self.encodings);
            let modules = modules.map(|(tensor, encoding)| (module_of(&tensor.name), *encoding));
            let table = mlx_table(mode, modules);
            config.insert("quantization".into(), json!(table));
            config.insert("quantization_config".into(), json!(table));
        }
        let text = format!("{:#}\n", Value::Object(config)).into_bytes();
        let config = [("config.json".to_owned(), text)];
        for (name, bytes) in files.iter().chain(&config) {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(ConvertError::writing(&path))?;
        }
        Ok(())
    }
}

fn module_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// The destination of one tensor's codes, scales and biases.
struct Sink<'a> {
    files: &'a mut Files,
    layout: &'a Layout,
    first: usize,
    written: [u64; 3],
}

impl Sink<'_> {
    fn write(&mut self, run: &Encoded) -> Result<(), ConvertError> {
        let streams = [&run.codes, &run.scales, &run.biases];
        for (at, bytes) in streams
            .into_iter()
            .enumerate()
            .filter(|(_, bytes)| !bytes.is_empty())
        {
            let spot = self.layout.spot(self.first + at);
            self.files.write(spot, self.written[at], bytes)?;
            self.written[at] += bytes.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_lists_the_families() {
        let page = include_str!("../../../docs/convert.md");
        for (what, names) in [
            (
                "to GGUF",
                families_with(|facts| facts.gguf_export.is_some()),
            ),
            (
                "from GGUF",
                families_with(|facts| facts.config_export.is_some()),
            ),
        ] {
            let line = format!("- {what}: {names}");
            assert!(page.contains(&line), "docs/convert.md lacks `{line}`");
        }
    }
}
