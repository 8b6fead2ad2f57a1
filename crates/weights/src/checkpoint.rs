//! A model on disk in any supported format: its spec, its tensors and their files.

use std::path::{Path, PathBuf};

use loquat_spec::families::{self, Described, MMPROJ_ARCHITECTURE};
use loquat_spec::{
    Config, GgufHeader, MediaAttention, ModelSpec, Naming, SpecError, VisionNaming,
    vision_tensor_name,
};

use crate::bind::{Weights, bind, bind_vision, check_vision, fit};
use crate::gguf::{Gguf, Metadata};
use crate::mmproj::tower_tensors;
use crate::mmproj_files::{MmprojChoice, MmprojMatch, folder_of, is_mmproj_name, mmproj_beside};
use crate::quantization::MlxQuantization;
use crate::{
    Blob, FileWatch, MAX_CONFIG_BYTES, RawTensor, WeightsError, read_side_file, safetensors,
};

/// The file format of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One GGUF file.
    Gguf,
    /// Safetensors with `config.json`.
    Safetensors,
    /// Safetensors that MLX quantized.
    Mlx,
}

impl Format {
    /// The name, for display.
    pub fn name(self) -> &'static str {
        match self {
            Format::Gguf => "GGUF",
            Format::Safetensors => "safetensors",
            Format::Mlx => "MLX safetensors",
        }
    }
}

/// An opened checkpoint. Its files are mapped, not read.
pub struct Checkpoint {
    /// The model as blocks and sizes.
    pub spec: ModelSpec,
    /// The format of its files.
    pub format: Format,
    /// The weight file, or the index of several; empty for a generated model.
    pub paths: Vec<PathBuf>,
    naming: Naming,
    /// Of the text model.
    tensors: Vec<RawTensor>,
    quantization: Option<MlxQuantization>,
    metadata: Option<Metadata>,
    vision: Option<VisionPart>,
    /// What `processor_config.json` would say, from the metadata of an `mmproj` file.
    processor: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Tensors of the vision part, under canonical names.
struct VisionPart {
    naming: VisionNaming,
    tensors: Vec<RawTensor>,
    quantization: Option<MlxQuantization>,
}

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl Checkpoint {
    /// Opens a model directory, a GGUF file under any name, a `.safetensors` file or a shard
    /// index. The last two need a `config.json` in the same folder. The tower of a GGUF model is a
    /// file next to it, if there is one.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        Self::open_with(path, MmprojChoice::Beside)
    }

    /// Opens a model with this vision tower.
    pub fn open_with(path: &Path, mmproj: MmprojChoice<'_>) -> Result<Self, WeightsError> {
        let mut checkpoint = Self::open_files(path)?;
        match mmproj {
            MmprojChoice::Off => checkpoint.drop_vision(),
            MmprojChoice::At(mmproj) => checkpoint.attach_mmproj(mmproj)?,
            MmprojChoice::Beside if checkpoint.format == Format::Gguf => {
                checkpoint.find_mmproj()?
            }
            MmprojChoice::Beside => {}
        }
        Ok(checkpoint)
    }

    fn open_files(path: &Path) -> Result<Self, WeightsError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            Self::open_directory(path)
        } else if !path.exists() {
            Err(not_a_model(path, "no such file or directory"))
        } else if name.ends_with(".gguf") || Gguf::is_at(path) {
            Self::open_gguf(path)
        } else if name.ends_with(".safetensors") || name.ends_with(".index.json") {
            let directory = path.parent().unwrap_or(Path::new("."));
            Self::open_safetensors(directory, path)
        } else {
            Err(not_a_model(
                path,
                "expected a directory, a .gguf file, a .safetensors file or its .index.json",
            ))
        }
    }

    fn open_directory(directory: &Path) -> Result<Self, WeightsError> {
        let [index, single] = [INDEX, SINGLE].map(|name| directory.join(name));
        let has_config = directory.join(CONFIG).is_file();
        // A single file next to an index is what the index describes.
        if has_config && single.is_file() {
            return Self::open_safetensors(directory, &single);
        }
        if has_config && index.is_file() {
            return Self::open_safetensors(directory, &index);
        }
        let mut ggufs = files_with_suffix(directory, ".gguf")?;
        let is_tower = |path: &PathBuf| is_mmproj_name(&path.to_string_lossy());
        if !ggufs.iter().all(is_tower) {
            ggufs.retain(|path| !is_tower(path));
        }
        match ggufs.as_slice() {
            [gguf] => Self::open_gguf(gguf),
            [] if has_config => Err(not_a_model(
                directory,
                format!("it has {CONFIG} but neither {SINGLE}, {INDEX} nor a .gguf file"),
            )),
            [] => Err(not_a_model(
                directory,
                format!("the folder has no {CONFIG} and no .gguf file"),
            )),
            several => {
                let names: Vec<_> = several
                    .iter()
                    .map(|path| path.display().to_string())
                    .collect();
                Err(not_a_model(
                    directory,
                    format!(
                        "the folder has several .gguf files; pass one of them: {}",
                        names.join(", ")
                    ),
                ))
            }
        }
    }

    fn open_gguf(path: &Path) -> Result<Self, WeightsError> {
        let gguf = Gguf::open(path)?;
        if gguf.metadata().str("general.architecture") == Some(MMPROJ_ARCHITECTURE) {
            let why = "it is the vision tower of a model (mmproj); open the model's own .gguf file, \
                       and pass this one with --mmproj if it is in another folder";
            return Err(not_a_model(path, why));
        }
        let described = families::from_gguf(&gguf).map_err(in_file(path))?;
        Ok(Self {
            paths: vec![path.to_owned()],
            ..Self::from_described_gguf(&described, gguf)?
        })
    }

    /// Like opening a GGUF file, from memory.
    pub fn from_gguf(gguf: Gguf) -> Result<Self, WeightsError> {
        Self::from_described_gguf(&families::from_gguf(&gguf)?, gguf)
    }

    fn from_described_gguf(described: &Described, gguf: Gguf) -> Result<Self, WeightsError> {
        let (spec, naming) = fit(&described.spec, &described.namings, gguf.tensors(), None)?;
        let (metadata, tensors) = gguf.into_parts();
        Ok(Self {
            spec,
            format: Format::Gguf,
            paths: Vec::new(),
            naming,
            tensors,
            quantization: None,
            metadata: Some(metadata),
            vision: None,
            processor: None,
        })
    }

    /// Adds the tower next to the model's file, or records why it cannot be used.
    fn find_mmproj(&mut self) -> Result<(), WeightsError> {
        let Some(model) = self.paths.first().cloned() else {
            return Ok(());
        };
        let found = mmproj_beside(&model).map_err(|source| WeightsError::Io {
            path: model.clone(),
            source,
        })?;
        match found {
            MmprojMatch::None => {}
            MmprojMatch::One(name) => {
                if let Err(error) = self.attach_mmproj(&folder_of(&model).join(name)) {
                    self.spec.vision_refusal = Some(error.to_string());
                }
            }
            MmprojMatch::Several(names) => {
                let names = names.join(", ");
                let why = format!("several mmproj files fit; choose one with --mmproj: {names}");
                self.spec.vision_refusal = Some(why);
            }
        }
        Ok(())
    }

    /// Leaves the model's text part, unless the tower's rules apply to text too.
    fn drop_vision(&mut self) {
        let vision = self.spec.vision.as_ref();
        if vision.is_some_and(|vision| vision.attention == MediaAttention::FirstRow) {
            return;
        }
        (self.spec.vision, self.spec.vision_refusal) = (None, None);
        self.vision = None;
    }

    /// Adds the vision tower of an `mmproj` file to the text model of a GGUF file.
    pub fn attach_mmproj(&mut self, path: &Path) -> Result<(), WeightsError> {
        let model = self.paths.first().cloned().unwrap_or_default();
        let misfit = |source: WeightsError| WeightsError::Mmproj {
            path: path.to_owned(),
            model: model.clone(),
            source: Box::new(source),
        };
        if self.format != Format::Gguf {
            let why = format!(
                "it is in {} format, whose files contain their own tower; mmproj files belong to GGUF models",
                self.format.name()
            );
            return Err(misfit(not_a_model(&model, why)));
        }
        let gguf = Gguf::open(path)?;
        let described = families::from_mmproj(&gguf, &self.spec);
        let described = described.map_err(|error| misfit(error.into()))?;
        let tensors = tower_tensors(gguf.tensors(), described.order).map_err(misfit)?;
        let mut spec = self.spec.clone();
        spec.vision = Some(described.vision.spec);
        spec.vision_refusal = None;
        let naming = described.vision.naming;
        check_vision(&spec, &naming, &tensors, None).map_err(misfit)?;
        self.spec = spec;
        self.vision = Some(VisionPart {
            naming,
            tensors,
            quantization: None,
        });
        self.processor = Some(described.processor);
        self.paths.truncate(1);
        self.paths.push(path.to_owned());
        Ok(())
    }

    /// The vision tower's file, if it has one of its own.
    pub fn mmproj(&self) -> Option<&Path> {
        self.processor.as_ref()?;
        self.paths.get(1).map(PathBuf::as_path)
    }

    /// What `processor_config.json` would say, from the metadata of an `mmproj` file.
    pub fn mmproj_processor(&self) -> Option<&serde_json::Map<String, serde_json::Value>> {
        self.processor.as_ref()
    }

    fn open_safetensors(directory: &Path, weights: &Path) -> Result<Self, WeightsError> {
        let config_path = directory.join(CONFIG);
        if !config_path.is_file() {
            return Err(not_a_model(
                weights,
                format!("{CONFIG} is missing in the same folder"),
            ));
        }
        let io = |source| WeightsError::Io {
            path: config_path.clone(),
            source,
        };
        let bytes = read_side_file(&config_path, MAX_CONFIG_BYTES).map_err(io)?;
        let text = String::from_utf8(bytes).map_err(|error| io(std::io::Error::other(error)))?;
        let config = Config::parse(&text, CONFIG).map_err(in_file(&config_path))?;
        let described = families::from_config(&config).map_err(in_file(&config_path))?;
        let quantization = MlxQuantization::from_config(&config)?;
        let tensors = if weights.extension().is_some_and(|ending| ending == "json") {
            safetensors::open_index(weights)?
        } else {
            safetensors::parse(Blob::map(weights)?, weights)?
        };
        Ok(Self {
            paths: vec![weights.to_owned()],
            ..Self::from_parsed_config(&described, quantization, tensors)?
        })
    }

    /// Like opening a folder with this `config.json` and these tensors, from memory.
    pub fn from_config(config: &Config, tensors: Vec<RawTensor>) -> Result<Self, WeightsError> {
        let quantization = MlxQuantization::from_config(config)?;
        Self::from_parsed_config(&families::from_config(config)?, quantization, tensors)
    }

    fn from_parsed_config(
        described: &Described,
        mut quantization: Option<MlxQuantization>,
        mut tensors: Vec<RawTensor>,
    ) -> Result<Self, WeightsError> {
        let mut vision = None;
        if described.wrapped {
            vision = described.vision.as_ref().and_then(|known| {
                let naming = known.naming;
                let own = vision_part(&tensors, &naming);
                let table = quantization.clone();
                // A prompt that attends both ways needs the vision part's rules in any case.
                let is_used = !own.is_empty() || known.spec.attention == MediaAttention::FirstRow;
                is_used.then(|| VisionPart {
                    naming,
                    tensors: own,
                    quantization: table
                        .map(|table| table.renamed(|name| naming.canonical_name(name))),
                })
            });
            tensors = text_model(tensors);
            quantization = quantization.map(|table| table.renamed(text_model_name));
        }
        let (mut spec, naming) = fit(
            &described.spec,
            &described.namings,
            &tensors,
            quantization.as_ref(),
        )?;
        if let Some((part, known)) = vision.as_ref().zip(described.vision.as_ref()) {
            spec.vision = Some(known.spec.clone());
            let fits = check_vision(
                &spec,
                &part.naming,
                &part.tensors,
                part.quantization.as_ref(),
            );
            // Text works without it: a tool may have renamed or dropped a part.
            if let Err(error) = fits
                && known.spec.attention != MediaAttention::FirstRow
            {
                (spec.vision, spec.vision_refusal) = (None, Some(error.to_string()));
                vision = None;
            }
        }
        Ok(Self {
            spec,
            vision,
            format: match quantization {
                Some(_) => Format::Mlx,
                None => Format::Safetensors,
            },
            paths: Vec::new(),
            naming,
            tensors,
            quantization,
            metadata: None,
            processor: None,
        })
    }

    /// Binds every role to its tensor, or reports all mismatches.
    pub fn bind(&self) -> Result<Weights, WeightsError> {
        let mut weights = bind(
            &self.spec,
            &self.naming,
            &self.tensors,
            self.quantization.as_ref(),
        )?;
        if let Some(vision) = &self.vision {
            let quantization = vision.quantization.as_ref();
            let tensors = &vision.tensors;
            bind_vision(
                &mut weights,
                &self.spec,
                &vision.naming,
                tensors,
                quantization,
            )?;
        }
        self.files().check()?;
        Ok(weights)
    }

    /// The files of its tensors.
    pub fn files(&self) -> FileWatch {
        let mut files = FileWatch::default();
        let vision = self.vision.iter().flat_map(|vision| &vision.tensors);
        for tensor in self.tensors.iter().chain(vision) {
            files.add_blob(&tensor.data);
        }
        files
    }

    /// Every tensor of the text model in the files.
    pub fn tensors(&self) -> &[RawTensor] {
        &self.tensors
    }

    /// The naming its tensors follow.
    pub fn naming(&self) -> &Naming {
        &self.naming
    }

    /// A GGUF file's metadata, including tokenizer and template.
    pub fn gguf_metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// The folder with the weights, tokenizer and template.
    pub fn directory(&self) -> &Path {
        let parent = self.paths.first().and_then(|path| path.parent());
        parent
            .filter(|path| !path.as_os_str().is_empty())
            .unwrap_or(Path::new("."))
    }
}

impl GgufHeader for Gguf {
    fn contains(&self, key: &str) -> bool {
        self.metadata().get(key).is_some()
    }

    fn str(&self, key: &str) -> Option<&str> {
        self.metadata().str(key)
    }

    fn bool(&self, key: &str) -> Option<bool> {
        self.metadata().bool(key)
    }

    fn u64(&self, key: &str) -> Option<u64> {
        self.metadata().u64(key)
    }

    fn f64(&self, key: &str) -> Option<f64> {
        self.metadata().f64(key)
    }

    fn u64s(&self, key: &str) -> Option<Vec<u64>> {
        let bools = || {
            let bools = self.metadata().bools(key)?;
            Some(bools.iter().map(|flag| u64::from(*flag)).collect())
        };
        self.metadata().u64s(key).or_else(bools)
    }

    fn f64s(&self, key: &str) -> Option<Vec<f64>> {
        let list = self.metadata().f32s(key)?;
        Some(list.iter().map(|value| f64::from(*value)).collect())
    }

    fn tensor_shape(&self, name: &str) -> Option<&[usize]> {
        let tensor = self.tensors().iter().find(|tensor| tensor.name == name)?;
        Some(&tensor.shape)
    }
}

/// The tensors of the text model in a larger model, renamed as if it were on its own. Some files
/// contain only the text model although the config wraps it.
fn text_model(tensors: Vec<RawTensor>) -> Vec<RawTensor> {
    let prefixed = |tensor: &RawTensor| {
        let name = &tensor.name;
        name.contains("language_model.") || name.starts_with("model.text_model.")
    };
    if !tensors.iter().any(prefixed) {
        let own = tensors.into_iter();
        return own
            .filter(|tensor| vision_tensor_name(&tensor.name).is_none())
            .collect();
    }
    let own = tensors.into_iter().filter_map(|tensor| {
        let name = text_model_name(&tensor.name)?;
        Some(RawTensor { name, ..tensor })
    });
    own.collect()
}

/// The tensors of the vision part. A convolution's weights become rows of values, whatever its
/// dimensions.
fn vision_part(tensors: &[RawTensor], naming: &VisionNaming) -> Vec<RawTensor> {
    let own = tensors.iter().filter_map(|tensor| {
        let name = naming.canonical_name(&tensor.name)?;
        let tensor = RawTensor {
            name,
            ..channels_first(tensor)
        };
        let mut shape = tensor.shape.clone();
        if let [rows, rest @ ..] = shape.as_slice()
            && rest.len() >= 3
        {
            shape = vec![*rows, rest.iter().product()];
        }
        Some(RawTensor { shape, ..tensor })
    });
    own.collect()
}

/// A convolution's weights as transformers stores them: MLX has the channels last.
fn channels_first(tensor: &RawTensor) -> RawTensor {
    let shape = &tensor.shape;
    let (outer, kernel, channels) = match *shape.as_slice() {
        [outer, height, width, channels] if height == width && channels != width => {
            (outer, height * width, channels)
        }
        [outer, frames, height, width, channels] if height == width && channels != width => {
            (outer, frames * height * width, channels)
        }
        _ => return tensor.clone(),
    };
    let bytes = tensor.dtype.block_bytes();
    let mut moved = Vec::with_capacity(tensor.data.len());
    for row in 0..outer {
        for channel in 0..channels {
            for place in 0..kernel {
                let at = ((row * kernel + place) * channels + channel) * bytes;
                moved.extend_from_slice(tensor.data.get(at..at + bytes).unwrap_or_default());
            }
        }
    }
    let mut shape = vec![outer, channels];
    shape.extend_from_slice(&tensor.shape[1..tensor.shape.len() - 1]);
    let data = Blob::from_vec(moved);
    RawTensor::new(&tensor.name, tensor.dtype, shape, data).unwrap_or_else(|_| tensor.clone())
}

/// `None` for tensors of the image or audio parts.
pub(crate) fn text_model_name(name: &str) -> Option<String> {
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        Some(format!("model.{rest}"))
    } else if let Some(rest) = name.strip_prefix("model.text_model.") {
        Some(format!("model.{rest}"))
    } else if let Some(rest) = name.strip_prefix("language_model.") {
        // mlx-vlm has no module between for some families.
        const WITHIN: [&str; 3] = ["embed_tokens.", "layers.", "norm."];
        let bare = WITHIN.iter().any(|module| rest.starts_with(module));
        Some(if bare {
            format!("model.{rest}")
        } else {
            rest.to_owned()
        })
    } else {
        name.starts_with("lm_head").then(|| name.to_owned())
    }
}

fn files_with_suffix(directory: &Path, suffix: &str) -> Result<Vec<PathBuf>, WeightsError> {
    let io = |source| WeightsError::Io {
        path: directory.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.is_file() && path.to_string_lossy().ends_with(suffix) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn not_a_model(path: &Path, why: impl Into<String>) -> WeightsError {
    WeightsError::NotAModel {
        path: path.to_owned(),
        why: why.into(),
    }
}

fn in_file(path: &Path) -> impl Fn(SpecError) -> WeightsError {
    let path = path.to_owned();
    move |source| WeightsError::Spec {
        path: path.clone(),
        source,
    }
}
