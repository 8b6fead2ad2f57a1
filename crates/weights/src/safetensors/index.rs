//! Sharded checkpoints: an index that names each tensor's file.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Component, Path};

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::open;
use crate::{IndexFault, MAX_VOCABULARY_BYTES, RawTensor, WeightsError, read_side_file};

/// A `model.safetensors.index.json`; its `metadata` is not needed.
#[derive(Deserialize)]
struct Index {
    #[serde(deserialize_with = "weight_map")]
    weight_map: BTreeMap<String, String>,
}

/// Shards by tensor name. A map's own deserialization would keep the last of
/// two shards named for one tensor.
fn weight_map<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct Shards;

    impl<'de> Visitor<'de> for Shards {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("an object of shard names")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut shards = BTreeMap::new();
            while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                if shards.contains_key(&tensor) {
                    return Err(A::Error::custom(format_args!("`{tensor}` appears twice")));
                }
                shards.insert(tensor, shard);
            }
            Ok(shards)
        }
    }

    deserializer.deserialize_map(Shards)
}

/// All tensors of a sharded checkpoint, ordered by name. The index decides
/// what belongs to it: a tensor it does not name is left out.
pub fn open_index(index_json: &Path) -> Result<Vec<RawTensor>, WeightsError> {
    let fail = |fault| WeightsError::Index {
        path: index_json.to_owned(),
        fault,
    };
    let text =
        read_side_file(index_json, MAX_VOCABULARY_BYTES).map_err(|source| WeightsError::Io {
            path: index_json.to_owned(),
            source,
        })?;
    let index: Index = serde_json::from_slice(&text).map_err(|error| {
        fail(IndexFault::Json {
            why: error.to_string(),
        })
    })?;
    if index.weight_map.is_empty() {
        return Err(fail(IndexFault::Empty));
    }

    let mut shards: HashMap<&str, HashMap<String, RawTensor>> = HashMap::new();
    let mut tensors = Vec::new();
    for (tensor, shard) in &index.weight_map {
        if !shards.contains_key(shard.as_str()) {
            shards.insert(shard, open_shard(index_json, shard)?);
        }
        let found = (shards.get_mut(shard.as_str())).and_then(|shard| shard.remove(tensor));
        tensors.push(found.ok_or_else(|| {
            fail(IndexFault::MissingTensor {
                tensor: tensor.clone(),
                shard: shard.clone(),
            })
        })?);
    }
    Ok(tensors)
}

fn open_shard(index_json: &Path, shard: &str) -> Result<HashMap<String, RawTensor>, WeightsError> {
    let fail = |fault| WeightsError::Index {
        path: index_json.to_owned(),
        fault,
    };
    if !is_plain_name(shard) {
        return Err(fail(IndexFault::ShardName {
            shard: shard.to_owned(),
        }));
    }
    match open(&index_json.with_file_name(shard)) {
        Ok(tensors) => Ok(tensors.into_iter().map(|t| (t.name.clone(), t)).collect()),
        Err(WeightsError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            Err(fail(IndexFault::MissingShard {
                shard: shard.to_owned(),
            }))
        }
        Err(error) => Err(error),
    }
}

/// Whether `name` can only mean a file in the index's own folder, on any
/// operating system.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(components.next(), Some(Component::Normal(only)) if only == name)
        && components.next().is_none()
        && !name.contains(['/', '\\', ':', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_are_plain() {
        let table = [
            ("model-00001-of-00002.safetensors", true),
            ("..hidden", true),
            ("", false),
            (".", false),
            ("..", false),
            ("a/b", false),
            ("a/", false),
            ("/etc/passwd", false),
            ("../a", false),
            ("..\\a", false),
            ("C:a", false),
            ("a\0b", false),
        ];
        for (name, expected) in table {
            assert_eq!(is_plain_name(name), expected, "{name:?}");
        }
    }
}
