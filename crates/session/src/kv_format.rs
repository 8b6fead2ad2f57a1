//! How keys and values are stored, and the names of formats.

use std::fmt;
use std::str::FromStr;

/// How an element of a key or a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvElementFormat {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// bfloat16.
    Bf16,
    /// Rotated, then eight bits for each element, and factors for groups of them.
    Q8,
    /// Rotated, then one of 16 centroids of a normal distribution, and a factor for each vector.
    Turbo4,
    /// One of 8 centroids.
    Turbo3,
    /// One of 4 centroids.
    Turbo2,
}

impl KvElementFormat {
    /// Every format, largest first.
    pub const ALL: [Self; 7] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8,
        Self::Turbo4,
        Self::Turbo3,
        Self::Turbo2,
    ];

    /// The name in `KEYS:VALUES`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8",
            Self::Turbo4 => "turbo4",
            Self::Turbo3 => "turbo3",
            Self::Turbo2 => "turbo2",
        }
    }

    /// Elements are floats, not rotated and coded.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// How a session stores keys and values.
///
/// Its name is a preset or `KEYS:VALUES`, then perhaps `,boundary=LAYERS` and `,skip=WEIGHT`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvFormat {
    keys: KvElementFormat,
    values: KvElementFormat,
    boundary: usize,
    skip_below: f32,
}

/// A threshold is never NaN, so every format equals itself.
impl Eq for KvFormat {}

/// Layers at each end that centroid formats store as q8 by default.
const BOUNDARY: usize = 1;

impl KvFormat {
    /// 32-bit floats.
    pub const F32: Self = Self::of(KvElementFormat::F32);
    /// 16-bit IEEE floats.
    pub const F16: Self = Self::of(KvElementFormat::F16);
    /// bfloat16.
    pub const BF16: Self = Self::of(KvElementFormat::Bf16);
    /// Eight bits.
    pub const Q8: Self = Self::of(KvElementFormat::Q8);
    /// Keys of eight bits, values of four.
    pub const K8V4: Self = Self::pair(KvElementFormat::Q8, KvElementFormat::Turbo4);
    /// Four bits.
    pub const TURBO4: Self = Self::of(KvElementFormat::Turbo4);
    /// Three bits.
    pub const TURBO3: Self = Self::of(KvElementFormat::Turbo3);
    /// Two bits.
    pub const TURBO2: Self = Self::of(KvElementFormat::Turbo2);

    /// The formats that have a name of their own, largest first.
    pub const PRESETS: [(&'static str, Self); 8] = [
        ("f32", Self::F32),
        ("f16", Self::F16),
        ("bf16", Self::BF16),
        ("q8", Self::Q8),
        ("k8v4", Self::K8V4),
        ("turbo4", Self::TURBO4),
        ("turbo3", Self::TURBO3),
        ("turbo2", Self::TURBO2),
    ];

    const fn of(format: KvElementFormat) -> Self {
        Self::pair(format, format)
    }

    const fn pair(keys: KvElementFormat, values: KvElementFormat) -> Self {
        let coarse = !matches!(keys, KvElementFormat::Q8) && !keys.is_float();
        Self {
            keys,
            values,
            boundary: if coarse { BOUNDARY } else { 0 },
            skip_below: 0.0,
        }
    }

    /// Keys and values stored differently. Both must be floats of one kind, or neither.
    pub fn new(keys: KvElementFormat, values: KvElementFormat) -> Result<Self, KvFormatError> {
        if keys != values && (keys.is_float() || values.is_float()) {
            return Err(KvFormatError::MixedFloats);
        }
        Ok(Self::pair(keys, values))
    }

    /// Stores this many layers at each end as q8. Floats and q8 have nothing to gain.
    pub fn with_boundary(self, layers: usize) -> Result<Self, KvFormatError> {
        let coarsest = [self.keys, self.values]
            .iter()
            .all(|format| format.is_float() || *format == KvElementFormat::Q8);
        if coarsest && layers > 0 {
            return Err(KvFormatError::NoBoundary);
        }
        Ok(Self {
            boundary: layers,
            ..self
        })
    }

    /// Skips values whose softmax weight is certainly smaller; 0 skips none.
    pub fn with_skip_below(self, weight: f32) -> Result<Self, KvFormatError> {
        if !(0.0..1.0).contains(&weight) {
            return Err(KvFormatError::SkipRange);
        }
        if self.is_float() && weight > 0.0 {
            return Err(KvFormatError::NoSkip);
        }
        Ok(Self {
            skip_below: weight,
            ..self
        })
    }

    /// The format of keys. Unless they are floats, values may have another.
    pub fn element(&self) -> KvElementFormat {
        self.keys
    }

    /// Keys and values are floats.
    pub fn is_float(&self) -> bool {
        self.keys.is_float()
    }

    /// The format of keys and of values in a layer: number `index` of those `layers` that store
    /// any.
    pub fn layer(&self, index: usize, layers: usize) -> [KvElementFormat; 2] {
        let from_end = layers.saturating_sub(index + 1);
        if index.min(from_end) < self.boundary {
            [KvElementFormat::Q8; 2]
        } else {
            [self.keys, self.values]
        }
    }

    /// Values whose softmax weight is certainly smaller are skipped.
    pub fn skip_below(&self) -> f32 {
        self.skip_below
    }

    /// The names of all presets.
    pub fn preset_names() -> String {
        Self::PRESETS.map(|(name, _)| name).join(", ")
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Self::pair(self.keys, self.values);
        match Self::PRESETS.iter().find(|(_, preset)| *preset == plain) {
            Some((name, _)) => f.write_str(name)?,
            None => write!(f, "{}:{}", self.keys.name(), self.values.name())?,
        }
        if self.boundary != plain.boundary {
            write!(f, ",boundary={}", self.boundary)?;
        }
        if self.skip_below > 0.0 {
            write!(f, ",skip={}", self.skip_below)?;
        }
        Ok(())
    }
}

impl FromStr for KvFormat {
    type Err = KvFormatError;

    fn from_str(name: &str) -> Result<Self, KvFormatError> {
        let mut parts = name.split(',');
        let base = parts.next().unwrap_or_default();
        let preset = Self::PRESETS.iter().find(|(preset, _)| *preset == base);
        let mut format = match (preset, base.split_once(':')) {
            (Some((_, preset)), _) => *preset,
            (None, Some((keys, values))) => Self::new(element(keys)?, element(values)?)?,
            (None, None) => return Err(KvFormatError::Unknown),
        };
        for part in parts {
            format = match part.split_once('=') {
                Some(("boundary", layers)) => {
                    let layers = layers.parse().map_err(|_| KvFormatError::BoundaryRange)?;
                    format.with_boundary(layers)?
                }
                Some(("skip", weight)) => {
                    let weight = weight.parse().map_err(|_| KvFormatError::SkipRange)?;
                    format.with_skip_below(weight)?
                }
                _ => return Err(KvFormatError::UnknownOption),
            };
        }
        Ok(format)
    }
}

fn element(name: &str) -> Result<KvElementFormat, KvFormatError> {
    let mut all = KvElementFormat::ALL.into_iter();
    let found = all.find(|format| format.name() == name);
    found.ok_or(KvFormatError::UnknownElement)
}

/// Why a text does not name a format; it continues "`TEXT` …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KvFormatError {
    /// Neither a preset nor a pair.
    #[error(
        "is not a KV format. Use one of: {}, or KEYS:VALUES, such as q8:turbo3",
        KvFormat::preset_names()
    )]
    Unknown,
    /// In a pair.
    #[error("has an unknown element format. Use q8, turbo4, turbo3 or turbo2 for keys and values")]
    UnknownElement,
    /// A float beside something else.
    #[error("mixes floats with another format. Use q8, turbo4, turbo3 or turbo2 for both")]
    MixedFloats,
    /// Behind a comma.
    #[error("has an unknown option. Use `boundary=LAYERS` or `skip=WEIGHT`")]
    UnknownOption,
    /// Not a number of layers.
    #[error("needs a number of layers after `boundary=`")]
    BoundaryRange,
    /// Neither keys nor values are centroids.
    #[error("has no boundary layers: `boundary` needs turbo4, turbo3 or turbo2")]
    NoBoundary,
    /// Not a weight.
    #[error("needs a weight from 0 to below 1 after `skip=`")]
    SkipRange,
    /// Floats.
    #[error("skips no values: `skip` needs q8, turbo4, turbo3 or turbo2")]
    NoSkip,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_printed() {
        for (name, printed) in [
            ("f16", "f16"),
            ("q8:turbo4", "k8v4"),
            ("turbo3:turbo2", "turbo3:turbo2"),
            ("turbo4,boundary=0", "turbo4,boundary=0"),
            ("turbo4,skip=0", "turbo4"),
            ("k8v4,skip=0.001,boundary=2", "k8v4,boundary=2,skip=0.001"),
        ] {
            let format: KvFormat = name.parse().unwrap();
            assert_eq!(format.to_string(), printed);
            assert_eq!(printed.parse(), Ok(format));
        }
        for (name, preset) in KvFormat::PRESETS {
            assert_eq!(
                (name.parse(), preset.to_string()),
                (Ok(preset), name.into())
            );
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        for (name, error) in [
            ("", KvFormatError::Unknown),
            ("turbo9", KvFormatError::Unknown),
            ("q8:", KvFormatError::UnknownElement),
            ("f16:turbo4", KvFormatError::MixedFloats),
            ("f16:f32", KvFormatError::MixedFloats),
            ("turbo4,", KvFormatError::UnknownOption),
            ("turbo4,edge=1", KvFormatError::UnknownOption),
            ("turbo4,boundary=-1", KvFormatError::BoundaryRange),
            ("q8,boundary=1", KvFormatError::NoBoundary),
            ("q8,skip=1", KvFormatError::SkipRange),
            ("q8,skip=NaN", KvFormatError::SkipRange),
            ("f16,skip=0.1", KvFormatError::NoSkip),
        ] {
            assert_eq!(name.parse::<KvFormat>(), Err(error), "{name}");
        }
    }

    #[test]
    fn boundary_layers_are_at_both_ends() {
        let format: KvFormat = "turbo3,boundary=1".parse().unwrap();
        let layers = |count| -> Vec<bool> {
            let formats = (0..count).map(|index| format.layer(index, count));
            formats
                .map(|[keys, _]| keys == KvElementFormat::Q8)
                .collect()
        };
        assert_eq!(layers(4), [true, false, false, true]);
        assert_eq!(layers(1), [true]);
    }
}
