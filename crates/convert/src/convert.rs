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
use crate::place::{Place, Shape, Site};
use crate::plan::{self, Planned};
use crate::pour::pour;
use crate::quantize::{Encoded, Encoding};
use crate::source::{About, BESIDE, Source};
use crate::write::{Files, Layout};
use crate::{ConvertError, Quant, Target, vocabulary};

/// What is wanted.
pub struct Conversion<'a> {
    /// What `weights` opens: a folder, a `.gguf` or `.safetensors` file, an index.
    pub source: &'a Path,
    pub out: &'a Path,
    pub target: Target,
    pub quant: Quant,
    /// What stays plain, in this type; `None`: in the source's own.
    pub dtype: Option<Dtype>,
    /// What a result without a name of its own is called; `None`: as the source's folder is.
    pub name: Option<&'a str>,
    /// Quantize what is quantized already.
    pub requantize: bool,
    /// Replace what is there.
    pub force: bool,
}

/// How far it is. Whoever hears of it answers whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// So many values are to come.
    Begin(u64),
    Tensor(&'a str),
    /// So many more are done.
    Values(u64),
}

/// Converts, or leaves nothing behind.
pub fn convert(
    wanted: &Conversion<'_>,
    step: &mut dyn FnMut(Step<'_>) -> bool,
) -> Result<Report, ConvertError> {
    if let (Quant::Plain(Some(quant)), Some(dtype)) = (wanted.quant, wanted.dtype)
        && quant != dtype
    {
        return Err(ConvertError::TwoTypes { quant, dtype });
    }
    let source = Source::open(wanted.source)?;
    let mut notes = Vec::new();
    if let Some(found) = source.quantized() {
        if wanted.quant.is_quantized() && !wanted.requantize {
            return Err(ConvertError::Quantized { found });
        }
        notes.push(format!(
            "the source was quantized ({found}): its own error is in the result and not in the \
             figures"
        ));
    }
    let site = Site {
        target: wanted.out,
        shape: match wanted.target {
            Target::Gguf => Shape::File,
            Target::Mlx | Target::Safetensors => Shape::Folder,
        },
        force: wanted.force,
    };
    site.check(&source)?;
    let float = match wanted.quant {
        Quant::Plain(Some(dtype)) => dtype,
        _ => wanted.dtype.unwrap_or_else(|| source.usual_float()),
    };
    let model = match wanted.target {
        Target::Gguf => Model::gguf(&source, wanted, float, &mut notes)?,
        Target::Mlx | Target::Safetensors => Model::folder(&source, wanted, float, &mut notes)?,
    };
    if let (Target::Mlx, Quant::Mlx(_)) = (wanted.target, wanted.quant)
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
            made: &model.made,
        },
    )?;
    let result = Outcome::choose(&model, &planned, wanted, float, &source, &mut notes);
    let place = site.open()?;
    let mut report = result.write(&model, &place, wanted, step)?;
    report.notes = notes;
    report.source_bytes = source.bytes();
    place.settle()?;
    Ok(report)
}

/// What the result is, before its tensors.
struct Model {
    spec: ModelSpec,
    naming: Naming,
    made: HashMap<Role, Vec<f32>>,
    about: Written,
}

enum Written {
    Gguf(Metadata),
    Folder {
        config: Map<String, Value>,
        files: Vec<(String, Vec<u8>)>,
    },
}

impl Model {
    fn gguf(
        source: &Source,
        wanted: &Conversion<'_>,
        float: Dtype,
        notes: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let file_type = Field::U32(file_type(wanted.quant, float));
        if let About::Gguf(metadata) = &source.about {
            let mut metadata = metadata.clone();
            metadata.insert("general.file_type", file_type);
            return Ok(Self {
                spec: source.spec().clone(),
                naming: *source.naming(),
                made: HashMap::new(),
                about: Written::Gguf(metadata),
            });
        }
        let family = source.spec().family;
        let refuse = |why: &str| family_error(family, "GGUF", why, gguf_families());
        let export = source.spec().facts().gguf_export.as_ref();
        let export =
            export.ok_or_else(|| refuse("what llama.cpp calls its numbers is not known here"))?;
        if let Some(window) = gguf::ignored_window(source.spec(), export) {
            let context = source.spec().max_context;
            let why = format!(
                "llama.cpp would not keep to its window of {window} positions in a context of \
                 {context}"
            );
            let instead = "convert to mlx or safetensors".to_owned();
            return Err(family_error(family, "GGUF", &why, instead));
        }
        let (mut spec, made) = describe::carried_factors(source.spec());
        let mut metadata = gguf::metadata(&spec, export)
            .ok_or_else(|| refuse("it is not attention throughout"))?;
        metadata.insert("general.file_type", file_type);
        let name = wanted.name.map(str::to_owned);
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
            made,
            about: Written::Gguf(metadata),
        })
    }

    fn folder(
        source: &Source,
        wanted: &Conversion<'_>,
        float: Dtype,
        notes: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        match &source.about {
            About::Config { fields, described } => {
                Self::same_family(source, wanted, fields, described, notes)
            }
            About::Gguf(metadata) => Self::from_gguf(source, wanted, metadata, float, notes),
        }
    }

    /// From one folder to another: the config stays as it is.
    fn same_family(
        source: &Source,
        wanted: &Conversion<'_>,
        fields: &Map<String, Value>,
        described: &Described,
        notes: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let family = source.spec().family;
        let naming = match (wanted.target, described.mlx) {
            (Target::Mlx, Some(naming)) => naming,
            (Target::Mlx, None) | (Target::Safetensors, _) => described.namings[0],
            (Target::Gguf, _) => *source.naming(),
        };
        if naming.refit.is_some() && source.naming().refit.is_none() {
            let why = "mlx-lm's form of it has multipliers folded into its matrices";
            let instead = "convert to safetensors, or with mlx-lm".to_owned();
            return Err(family_error(family, wanted.target.name(), why, instead));
        }
        if wanted.target == Target::Mlx
            && let Some(why) = describe::mlx::unreadable(fields, &source.spec().facts().mlx)
        {
            let instead = "convert to safetensors, or the original with mlx-lm".to_owned();
            return Err(family_error(family, wanted.target.name(), &why, instead));
        }
        if described.wrapped {
            notes.push("only the text model is converted; images and sound are left out".into());
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
        for name in BESIDE {
            let path = source.directory().join(name);
            if path.is_file() {
                let bytes = std::fs::read(&path).map_err(ConvertError::reading(&path))?;
                files.push(((*name).to_owned(), bytes));
            }
        }
        Ok(Self {
            spec: source.spec().clone(),
            naming,
            made: HashMap::new(),
            about: Written::Folder { config, files },
        })
    }

    fn from_gguf(
        source: &Source,
        wanted: &Conversion<'_>,
        metadata: &Metadata,
        float: Dtype,
        notes: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let (family, target) = (source.spec().family, wanted.target.name());
        let refuse = |why: &str| family_error(family, target, why, config_families());
        let export = source.spec().config_export();
        let export =
            export.ok_or_else(|| refuse("a config.json cannot be made from its GGUF keys"))?;
        let tensor = |role| source.stored(role).map(|(values, _)| values);
        let mut config =
            describe::config::fields(source.spec(), export, float, tensor).map_err(refuse)?;
        let text = Value::Object(config.clone()).to_string();
        let described = families::from_config(&Config::parse(&text, "config.json")?)?;
        describe::same("config.json", source.spec(), &described.spec)?;
        let words = vocabulary::to_json(metadata)?;
        if words.files.is_empty() {
            notes.push("the file has no vocabulary, so there is no tokenizer.json".into());
        }
        config.extend(words.config);
        let files = words.files.into_iter();
        Ok(Self {
            naming: match (wanted.target, described.mlx) {
                (Target::Mlx, Some(naming)) => naming,
                _ => described.namings[0],
            },
            spec: described.spec,
            made: HashMap::new(),
            about: Written::Folder {
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
        "--to gguf takes {}; for the others there are --to mlx and --to safetensors",
        families_with(|facts| facts.gguf_export.is_some())
    )
}

fn config_families() -> String {
    format!(
        "from GGUF there are {}; others need their safetensors",
        families_with(|facts| facts.config_export.is_some())
    )
}

fn families_with(has: impl Fn(&FamilyFacts) -> bool) -> String {
    let families = families::all().filter(|family| has(&family.facts));
    let names: Vec<&str> = families.map(|family| family.model_types[0]).collect();
    names.join(", ")
}

/// What the model is called: the folder's or the file's name.
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

/// The names and shapes that a naming gives the spec's tensors, for reading their header.
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
struct Outcome<'a> {
    planned: &'a [Planned<'a>],
    encodings: Vec<Encoding>,
}

impl<'a> Outcome<'a> {
    fn choose(
        model: &Model,
        planned: &'a [Planned<'a>],
        wanted: &Conversion<'_>,
        float: Dtype,
        source: &Source,
        notes: &mut Vec<String>,
    ) -> Self {
        let own =
            wanted.dtype.is_none() && matches!(wanted.quant, Quant::Plain(None) | Quant::Mlx(_));
        let mut fallen = Vec::new();
        let encodings = planned.iter().map(|tensor| {
            let kept = source
                .float(tensor.role)
                .filter(|_| own && !source.is_gguf());
            let choice = Choice {
                target: wanted.target,
                quant: wanted.quant,
                spec: &model.spec,
                float: kept.unwrap_or(float),
            };
            let chosen = choice.of(tensor);
            if chosen.fell_back {
                fallen.push((tensor.name.as_str(), chosen.encoding.name()));
            }
            chosen.encoding
        });
        let encodings = encodings.collect();
        if let Some((name, stored)) = fallen.first() {
            notes.push(format!(
                "{} of {} tensors have rows that the type does not divide, such as {name}, \
                 which is {stored}",
                fallen.len(),
                planned.len()
            ));
        }
        Self { planned, encodings }
    }

    fn write(
        &self,
        model: &Model,
        place: &Place<'_>,
        wanted: &Conversion<'_>,
        step: &mut dyn FnMut(Step<'_>) -> bool,
    ) -> Result<Report, ConvertError> {
        let (infos, first) = self.infos()?;
        let layout = match &model.about {
            Written::Gguf(metadata) => Layout::gguf(place.whole(), metadata, &infos)?,
            Written::Folder { .. } => {
                let format = match wanted.target {
                    Target::Mlx => "mlx",
                    Target::Gguf | Target::Safetensors => "pt",
                };
                Layout::safetensors(&place.whole(), &infos, format)?
            }
        };
        place.has_room(layout.bytes)?;
        if let Written::Folder { config, files } = &model.about {
            self.write_beside(&place.whole(), &model.spec, (config, files), wanted)?;
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
            let error = pour(tensor, *encoding, &mut |run| sink.write(run), step)?;
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

    /// The file's tensors, and for each of ours the first of its one, two or three.
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

    fn write_beside(
        &self,
        folder: &Path,
        spec: &ModelSpec,
        (config, files): (&Map<String, Value>, &[(String, Vec<u8>)]),
        wanted: &Conversion<'_>,
    ) -> Result<(), ConvertError> {
        std::fs::create_dir(folder).map_err(ConvertError::writing(folder))?;
        let mut config = config.clone();
        if let Some(dtype) = wanted.dtype.or(match wanted.quant {
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
        if wanted.target == Target::Mlx {
            config = describe::mlx::styled(config, &spec.facts().mlx);
        }
        if let Quant::Mlx(mode) = wanted.quant {
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

/// Where one tensor's codes, scales and biases go.
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
