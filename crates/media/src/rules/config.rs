//! A processor file merged over the defaults of its class.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::error::MediaError;
use crate::resample::{Arithmetic, Filter};
use crate::rules::{Precision, ValueRules};
use crate::size::Size;

/// Fields that say how files are loaded, or how batches are assembled, but not what the values
/// are.
const NEUTRAL: &[&str] = &[
    "_processor_class",
    "_valid_processor_keys",
    "auto_map",
    "backend",
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    "feature_extractor_type",
    "image_processor_type",
    "image_seq_len",
    "image_seq_length",
    "image_token",
    "input_data_format",
    "num_image_tokens",
    "processor_class",
    "return_metadata",
    "return_row_col_info",
    "return_tensors",
    "video_processor_type",
    "vision_feature_select_strategy",
];

/// One JSON object of a processor file. Fields that no rule reads are refused, see
/// [`Config::finish`].
pub(crate) struct Config<'a> {
    pub file: &'a str,
    fields: &'a Map<String, Value>,
    defaults: Map<String, Value>,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Config<'a> {
    pub fn new(
        file: &'a str,
        fields: &'a Map<String, Value>,
        defaults: &str,
    ) -> Result<Self, MediaError> {
        let defaults = match serde_json::from_str(defaults) {
            Ok(Value::Object(defaults)) => defaults,
            _ => Map::new(),
        };
        Ok(Self {
            file,
            fields,
            defaults,
            read: RefCell::new(BTreeSet::new()),
        })
    }

    /// The field's value, or its class's default. `null` counts as missing.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.read.borrow_mut().insert(field.to_string());
        let given = self.fields.get(field).filter(|value| !value.is_null());
        given.or_else(|| self.defaults.get(field).filter(|value| !value.is_null()))
    }

    /// Refuses fields that were not read and may change the values.
    pub fn finish(&self) -> Result<(), MediaError> {
        let is_read = |field: &str| self.read.borrow().contains(field);
        let unread = self.fields.iter().find(|(field, value)| {
            let neutral = value.is_null() || **value == Value::Bool(false);
            !(neutral || is_read(field) || NEUTRAL.contains(&field.as_str()))
        });
        match unread {
            Some((field, _)) => Err(self.unsupported(field)),
            None => Ok(()),
        }
    }

    pub fn unsupported(&self, field: &str) -> MediaError {
        let value = self.get(field).map(Value::to_string);
        let mut value = value.unwrap_or_default();
        value.truncate(
            value
                .char_indices()
                .nth(80)
                .map_or(value.len(), |(at, _)| at),
        );
        MediaError::UnsupportedOption {
            file: self.file.to_string(),
            field: field.to_string(),
            value,
        }
    }

    fn invalid(&self, field: &str, value: &Value, expected: &'static str) -> MediaError {
        let mut found = value.to_string();
        found.truncate(
            found
                .char_indices()
                .nth(80)
                .map_or(found.len(), |(at, _)| at),
        );
        MediaError::InvalidField {
            file: self.file.to_string(),
            field: field.to_string(),
            found,
            expected,
        }
    }

    fn missing(&self, field: &str) -> MediaError {
        MediaError::MissingField {
            file: self.file.to_string(),
            field: field.to_string(),
        }
    }

    pub fn flag(&self, field: &str) -> Result<bool, MediaError> {
        match self.get(field) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(self.invalid(field, value, "true or false")),
        }
    }

    pub fn optional_number(&self, field: &str) -> Result<Option<f64>, MediaError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if number.is_finite() && number > 0.0 => Ok(Some(number)),
            _ => Err(self.invalid(field, value, "a number above 0")),
        }
    }

    pub fn optional_count(&self, field: &str) -> Result<Option<u64>, MediaError> {
        self.get(field)
            .map(|value| self.count_of(field, value))
            .transpose()
    }

    /// A whole number from 1 to 2^40.
    fn count_of(&self, field: &str, value: &Value) -> Result<u64, MediaError> {
        // Some files write whole numbers as `16.0`.
        match value.as_f64() {
            Some(number)
                if number.fract() == 0.0 && (1.0..=(1u64 << 40) as f64).contains(&number) =>
            {
                Ok(number as u64)
            }
            _ => Err(self.invalid(field, value, "a whole number from 1 to 2^40")),
        }
    }

    pub fn count(&self, field: &str) -> Result<u64, MediaError> {
        self.optional_count(field)?
            .ok_or_else(|| self.missing(field))
    }

    fn side_of(&self, field: &str, value: &Value) -> Result<u32, MediaError> {
        match self.count_of(field, value) {
            Ok(side) if side <= 65_536 => Ok(side as u32),
            _ => Err(self.invalid(field, value, "a whole number from 1 to 65536")),
        }
    }

    /// A number of pixels along a side, of tiles or of tokens.
    pub fn side(&self, field: &str) -> Result<u32, MediaError> {
        let value = self.get(field).ok_or_else(|| self.missing(field))?;
        self.side_of(field, value)
    }

    pub fn optional_side(&self, field: &str) -> Result<Option<u32>, MediaError> {
        self.get(field)
            .map(|value| self.side_of(field, value))
            .transpose()
    }

    pub fn optional_text(&self, field: &str) -> Result<Option<&str>, MediaError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(self.invalid(field, value, "a string")),
        }
    }

    /// An entry of a size object, such as `longest_edge` of `size`.
    pub fn entry(&self, field: &str, key: &str) -> Result<Option<u64>, MediaError> {
        match self.get(field) {
            Some(Value::Object(size)) => size
                .get(key)
                .filter(|value| !value.is_null())
                .map(|value| self.count_of(&format!("{field}.{key}"), value))
                .transpose(),
            _ => Ok(None),
        }
    }

    pub fn side_entry(&self, field: &str, key: &str) -> Result<Option<u32>, MediaError> {
        let Some(count) = self.entry(field, key)? else {
            return Ok(None);
        };
        self.side_of(&format!("{field}.{key}"), &Value::from(count))
            .map(Some)
    }

    /// A size written as a number, as `[height, width]`, or as an object of both.
    pub fn optional_size(&self, field: &str) -> Result<Option<Size>, MediaError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        if value.is_number() {
            return Ok(Some(Size::square(self.side_of(field, value)?)));
        }
        if let Some(size) = self.pair(field, value)? {
            return Ok(Some(size));
        }
        match (
            self.side_entry(field, "height")?,
            self.side_entry(field, "width")?,
        ) {
            (Some(height), Some(width)) => Ok(Some(Size::new(width, height))),
            _ => Ok(None),
        }
    }

    fn pair(&self, field: &str, value: &Value) -> Result<Option<Size>, MediaError> {
        match value.as_array().map(Vec::as_slice) {
            Some([height, width]) => Ok(Some(Size::new(
                self.side_of(field, width)?,
                self.side_of(field, height)?,
            ))),
            _ => Ok(None),
        }
    }

    pub fn size(&self, field: &str) -> Result<Size, MediaError> {
        match (self.optional_size(field)?, self.get(field)) {
            (Some(size), _) => Ok(size),
            (None, Some(value)) => Err(self.invalid(field, value, "a height and a width")),
            (None, None) => Err(self.missing(field)),
        }
    }

    /// `[[height, width], …]`
    pub fn sizes(&self, field: &str) -> Result<Vec<Size>, MediaError> {
        let value = self.get(field).ok_or_else(|| self.missing(field))?;
        let invalid = || self.invalid(field, value, "pairs of height and width");
        let pairs = value.as_array().ok_or_else(invalid)?;
        let sizes: Vec<Size> = pairs
            .iter()
            .map(|pair| self.pair(field, pair)?.ok_or_else(invalid))
            .collect::<Result<_, _>>()?;
        if sizes.is_empty() || sizes.len() > 1_000 {
            return Err(invalid());
        }
        Ok(sizes)
    }

    fn channels(&self, field: &str) -> Result<[f64; 3], MediaError> {
        let value = self.get(field).ok_or_else(|| self.missing(field))?;
        let numbers: Option<Vec<f64>> = match value {
            Value::Number(_) => value.as_f64().map(|number| vec![number; 3]),
            Value::Array(numbers) => numbers.iter().map(Value::as_f64).collect(),
            _ => None,
        };
        numbers
            .and_then(|numbers| <[f64; 3]>::try_from(numbers).ok())
            .filter(|numbers| numbers.iter().all(|number| number.is_finite()))
            .ok_or_else(|| self.invalid(field, value, "three numbers"))
    }

    pub fn filter(&self) -> Result<Filter, MediaError> {
        let value = self
            .get("resample")
            .ok_or_else(|| self.missing("resample"))?;
        value
            .as_u64()
            .and_then(Filter::from_pillow)
            .ok_or_else(|| self.invalid("resample", value, "one of Pillow's filters, 0 to 5"))
    }

    /// Filters that torchvision does not have antialiased are computed as Pillow does.
    pub fn arithmetic(&self, filter: Filter) -> Arithmetic {
        match filter {
            Filter::Box | Filter::Hamming => Arithmetic::Pillow,
            _ => Arithmetic::Torchvision,
        }
    }

    /// The mean as a background colour.
    pub fn background(&self) -> Result<[u8; 3], MediaError> {
        Ok(self
            .channels("image_mean")?
            .map(|mean| (mean * 255.0) as u8))
    }

    pub fn values(&self, precision: Precision) -> Result<ValueRules, MediaError> {
        let scale = if self.flag("do_rescale")? {
            let scale = self.optional_number("rescale_factor")?;
            Some(scale.ok_or_else(|| self.missing("rescale_factor"))?)
        } else {
            self.get("rescale_factor");
            None
        };
        let normalize = if self.flag("do_normalize")? {
            let (mean, std) = (self.channels("image_mean")?, self.channels("image_std")?);
            if std.contains(&0.0) {
                let value = Value::from(std.to_vec());
                return Err(self.invalid("image_std", &value, "above 0"));
            }
            Some((mean, std))
        } else {
            self.get("image_mean");
            self.get("image_std");
            None
        };
        // Every image is converted to RGB, whether the field says so or not.
        self.get("do_convert_rgb");
        Ok(ValueRules {
            scale,
            normalize,
            precision,
        })
    }
}
