//! The `quantization` table of an MLX checkpoint's `config.json`.

use std::collections::HashMap;

use loquat_spec::Config;

use crate::WeightsError;
use crate::decode::MlxMode;

/// How MLX quantized a checkpoint: one mode, and modules that differ. A module is quantized
/// when its scales are in the file; this table says how to read them.
#[derive(Clone, Debug, PartialEq)]
pub struct MlxQuantization {
    default: MlxMode,
    modules: HashMap<String, MlxMode>,
}

impl MlxQuantization {
    /// `None` if the checkpoint is not quantized. Another tool's quantization is refused by name.
    pub fn from_config(config: &Config) -> Result<Option<Self>, WeightsError> {
        if let Some(table) = config.object("quantization")? {
            return Self::from_table(&table).map(Some);
        }
        let Some(table) = config.object("quantization_config")? else {
            return Ok(None);
        };
        match table.str("quant_method")? {
            // gpt-oss and DeepSeek on the hub: tensor names identify the format.
            Some("mxfp4" | "fp8") => Ok(None),
            Some(method) => Err(WeightsError::Quantization {
                field: "quantization_config.quant_method".into(),
                found: method.to_owned(),
                expected: "absent, mxfp4 or fp8; another tool's quantization is not supported"
                    .into(),
            }),
            None => Self::from_table(&table).map(Some),
        }
    }

    pub fn mode_of(&self, module: &str) -> MlxMode {
        self.modules.get(module).copied().unwrap_or(self.default)
    }

    /// The table for modules under other names; those without one are dropped.
    pub(crate) fn renamed(self, name: impl Fn(&str) -> Option<String>) -> Self {
        let modules = self.modules.into_iter();
        Self {
            modules: modules
                .filter_map(|(module, mode)| Some((name(&module)?, mode)))
                .collect(),
            ..self
        }
    }

    fn from_table(table: &Config) -> Result<Self, WeightsError> {
        let default = mode(table)?;
        let mut modules = HashMap::new();
        for field in table.fields() {
            if let Some(serde_json::Value::Object(_)) = table.get(field)
                && let Some(own) = table.object(field)?
            {
                modules.insert(field.to_owned(), mode(&own)?);
            }
        }
        Ok(Self { default, modules })
    }
}

fn mode(table: &Config) -> Result<MlxMode, WeightsError> {
    let bits = table.usize("bits")?;
    let group = table.usize("group_size")?;
    let refuse = |field: &str, found: String, expected: &str| WeightsError::Quantization {
        field: table.path(field),
        found,
        expected: expected.into(),
    };
    let fixed = |mode: MlxMode, right: (usize, usize)| {
        if bits != right.0 {
            return Err(refuse("bits", bits.to_string(), &right.0.to_string()));
        }
        if group != right.1 {
            return Err(refuse(
                "group_size",
                group.to_string(),
                &right.1.to_string(),
            ));
        }
        Ok(mode)
    };
    match table.str("mode")?.unwrap_or("affine") {
        "affine" => {
            if !matches!(bits, 2..=6 | 8) {
                return Err(refuse("bits", bits.to_string(), "2, 3, 4, 5, 6 or 8"));
            }
            if !matches!(group, 32 | 64 | 128) {
                return Err(refuse("group_size", group.to_string(), "32, 64 or 128"));
            }
            Ok(MlxMode::Affine {
                bits: bits as u8,
                group,
            })
        }
        "mxfp4" => fixed(MlxMode::Mxfp4, (4, 32)),
        "mxfp8" => fixed(MlxMode::Mxfp8, (8, 32)),
        "nvfp4" => fixed(MlxMode::Nvfp4, (4, 16)),
        other => Err(refuse(
            "mode",
            format!("`{other}`"),
            "affine, mxfp4, mxfp8 or nvfp4",
        )),
    }
}
