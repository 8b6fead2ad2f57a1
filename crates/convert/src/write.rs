//! The result's files, laid out before the first tensor is written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use loquat_weights::gguf::{Metadata, gguf_layout};
use loquat_weights::safetensors::safetensors_header;
use loquat_weights::{Dtype, TensorInfo};
use serde_json::json;

use crate::ConvertError;

/// Where a tensor's data begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    file: usize,
    start: u64,
}

/// Files with their headers, and a spot for each tensor.
pub(crate) struct Layout {
    files: Vec<(PathBuf, Vec<u8>)>,
    spots: Vec<Spot>,
    /// An index of the tensors, if there are several files.
    index: Option<String>,
    pub bytes: u64,
}

/// The largest shard, as in mlx-lm.
const SHARD: u64 = 5 << 30;

impl Layout {
    /// One file at `path`.
    pub fn gguf(
        path: PathBuf,
        metadata: &Metadata,
        tensors: &[TensorInfo],
    ) -> Result<Self, ConvertError> {
        let layout = gguf_layout(metadata, tensors)?;
        let starts = layout.starts.iter();
        Ok(Self {
            spots: starts
                .map(|start| Spot {
                    file: 0,
                    start: *start,
                })
                .collect(),
            files: vec![(path, layout.header)],
            index: None,
            bytes: layout.len,
        })
    }

    /// One file in `folder`, or several and their index, depending on size.
    pub fn safetensors(
        folder: &Path,
        tensors: &[TensorInfo],
        format: &str,
    ) -> Result<Self, ConvertError> {
        Self::shards(folder, tensors, format, SHARD)
    }

    fn shards(
        folder: &Path,
        tensors: &[TensorInfo],
        format: &str,
        most: u64,
    ) -> Result<Self, ConvertError> {
        let shards = shared_out(tensors, most)?;
        let mut layout = Self {
            files: Vec::new(),
            spots: vec![Spot { file: 0, start: 0 }; tensors.len()],
            index: None,
            bytes: 0,
        };
        let mut weight_map = BTreeMap::new();
        let mut total = 0;
        for (file, shard) in shards.iter().enumerate() {
            let name = match shards.len() {
                1 => "model.safetensors".to_owned(),
                count => format!("model-{:05}-of-{count:05}.safetensors", file + 1),
            };
            let infos: Vec<TensorInfo> = shard.iter().map(|at| tensors[*at].clone()).collect();
            let header = safetensors_header(&infos, format)?;
            let mut start = header.len() as u64;
            for (at, info) in shard.iter().zip(&infos) {
                layout.spots[*at] = Spot { file, start };
                start += info.bytes()? as u64;
                weight_map.insert(info.name.clone(), name.clone());
            }
            total += start - header.len() as u64;
            layout.bytes += start;
            layout.files.push((folder.join(name), header));
        }
        if shards.len() > 1 {
            let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
            layout.index = Some(format!("{index:#}"));
        }
        Ok(layout)
    }

    pub fn spot(&self, tensor: usize) -> Spot {
        self.spots[tensor]
    }

    /// Creates the files with their headers and space for their tensors.
    pub fn create(&self) -> Result<Files, ConvertError> {
        let mut files = Vec::new();
        for (path, header) in &self.files {
            let failed = ConvertError::writing(path);
            let mut file = File::create(path).map_err(&failed)?;
            file.write_all(header).map_err(&failed)?;
            files.push((path.clone(), file));
        }
        if let (Some(index), Some((path, _))) = (&self.index, self.files.first()) {
            let path = path.with_file_name("model.safetensors.index.json");
            std::fs::write(&path, index).map_err(ConvertError::writing(&path))?;
        }
        Ok(Files(files))
    }
}

/// The tensors of each file, larger types first, so that all are aligned.
fn shared_out(tensors: &[TensorInfo], most: u64) -> Result<Vec<Vec<usize>>, ConvertError> {
    let mut shards = vec![Vec::new()];
    let mut size = 0;
    for (at, tensor) in tensors.iter().enumerate() {
        let bytes = tensor.bytes()? as u64;
        if size > 0 && size + bytes > most {
            shards.push(Vec::new());
            size = 0;
        }
        size += bytes;
        if let Some(shard) = shards.last_mut() {
            shard.push(at);
        }
    }
    let width = |at: &usize| match tensors[*at].dtype {
        Dtype::F32 | Dtype::U32 => 0,
        Dtype::F16 | Dtype::BF16 => 1,
        _ => 2,
    };
    shards.iter_mut().for_each(|shard| shard.sort_by_key(width));
    Ok(shards)
}

/// Open files whose tensors' bytes may come in any order.
pub(crate) struct Files(Vec<(PathBuf, File)>);

impl Files {
    /// Writes bytes `offset` after the spot.
    pub fn write(&mut self, spot: Spot, offset: u64, bytes: &[u8]) -> Result<(), ConvertError> {
        let (path, file) = &mut self.0[spot.file];
        let written = file
            .seek(SeekFrom::Start(spot.start + offset))
            .and_then(|_| file.write_all(bytes));
        written.map_err(ConvertError::writing(path))
    }

    /// Flushes everything to disk.
    pub fn finish(self) -> Result<(), ConvertError> {
        for (path, file) in self.0 {
            file.sync_all().map_err(ConvertError::writing(&path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use loquat_weights::safetensors;

    use super::*;

    #[test]
    fn shards_hold_every_tensor_and_their_index_opens() {
        let folder = tempfile::tempdir().unwrap();
        let info = |name: &str, dtype, len| TensorInfo {
            name: name.to_owned(),
            dtype,
            shape: vec![len],
        };
        let tensors = [
            info("a", Dtype::BF16, 3),
            info("b", Dtype::F32, 2),
            info("c", Dtype::U8, 5),
            info("d", Dtype::F32, 100),
        ];
        let layout = Layout::shards(folder.path(), &tensors, "pt", 20).unwrap();
        let mut files = layout.create().unwrap();
        for (at, tensor) in tensors.iter().enumerate() {
            let bytes = vec![at as u8; tensor.bytes().unwrap()];
            files.write(layout.spot(at), 0, &bytes).unwrap();
        }
        files.finish().unwrap();
        let index = folder.path().join("model.safetensors.index.json");
        let read = safetensors::open_index(&index).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
        for (at, (tensor, expected)) in read.iter().zip(&tensors).enumerate() {
            assert_eq!(tensor.info(), *expected);
            assert!(tensor.data.iter().all(|byte| *byte == at as u8));
        }
    }
}
