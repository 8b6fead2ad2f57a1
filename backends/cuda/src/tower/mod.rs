//! The vision tower: from the patches of a picture to features of the text model's size.
//!
//! Each batch of views is lowered by itself, because the sizes of views differ, and runs at once:
//! encoding is never part of a step. What depends on grids alone is computed on the host
//! ([`tables`]).

mod buffers;
mod lower;
mod project;
mod tables;
mod weights;

use loquat_session::media::TiledFeatures;
use loquat_session::tower::{TowerBatch, batches};
use loquat_session::{OpenError, Picture, SessionError};
use loquat_spec::{Arrangement, ModelSpec, PatchSpan, VisionSpec};

use crate::device::Device;
use crate::lower::WeightLoader;
use crate::ops::Step;
use crate::storage::MediaFeatures;
use buffers::TowerBuffers;
use lower::{FeatureTarget, Placement, TowerLowering, max_tokens, merged_positions};
use tables::{BatchTables, Term};
use weights::TowerWeights;

/// A loaded tower.
pub struct Tower {
    spec: VisionSpec,
    /// Values of a position of the text model.
    hidden: usize,
    weights: TowerWeights,
    buffers: TowerBuffers,
}

impl Tower {
    /// Whether towers of this spec run: tokens of a window must be adjacent in one order for all
    /// layers, and windows have no class token.
    pub fn supports(spec: &VisionSpec) -> bool {
        let Some(side) = tables::window(spec) else {
            return true;
        };
        let is_other =
            |span: &PatchSpan| matches!(span, PatchSpan::Window(other) if *other != side);
        spec.class_token.is_none() && !spec.layers.iter().any(is_other)
    }

    /// Loads or counts the weights. `None` if the model has no tower.
    pub fn load(
        spec: &ModelSpec,
        max_patches: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Option<Self>, OpenError> {
        let Some(vision) = &spec.vision else {
            return Ok(None);
        };
        Ok(Some(Self {
            weights: TowerWeights::load(vision, loader)?,
            buffers: TowerBuffers::new(vision, max_tokens(vision, max_patches)),
            hidden: spec.hidden_size,
            spec: vision.clone(),
        }))
    }

    /// Bytes of the largest batch's buffers.
    pub fn buffer_bytes(spec: &VisionSpec, max_patches: usize) -> u64 {
        let tokens = max_tokens(spec, max_patches);
        TowerBuffers::bytes(spec, tokens) + BatchTables::predict_bytes(spec, tokens)
    }

    /// The features of a picture or video of so many positions, whose layout has been checked. The
    /// caller owns their memory.
    pub fn encode(
        &mut self,
        device: &mut dyn Device,
        picture: &Picture,
        is_video: bool,
        positions: usize,
    ) -> Result<MediaFeatures, SessionError> {
        let levels = 1 + self.spec.deepstack.len();
        let values = device.allocate(4 * levels * positions * self.hidden)?;
        let target = FeatureTarget {
            values,
            positions,
            hidden: self.hidden,
            placement: Placement::From(0),
        };
        match self.encode_batches(device, picture, is_video, target) {
            Ok(()) => Ok(MediaFeatures {
                values,
                levels,
                positions,
            }),
            Err(error) => {
                device.free(values);
                Err(error)
            }
        }
    }

    fn encode_batches(
        &mut self,
        device: &mut dyn Device,
        picture: &Picture,
        is_video: bool,
        target: FeatureTarget,
    ) -> Result<(), SessionError> {
        let sums = match self.spec.arrangement {
            Arrangement::Views => None,
            Arrangement::Tiles { .. } => {
                let row_end =
                    merged_positions(&self.spec, &TowerBatch::new(&self.spec, &picture.views));
                let tiled = TiledFeatures::new(&self.spec, picture, is_video)?;
                Some((tiled.sources(row_end), row_end))
            }
        };
        let mut first = 0;
        for views in batches(&picture.views) {
            let batch = TowerBatch::new(&self.spec, views);
            let rows = merged_positions(&self.spec, &batch);
            let mut tables = BatchTables::new(&self.spec, views, &batch);
            let placement = match &sums {
                None => Placement::From(first),
                Some((sums, row_end)) => Placement::Sums {
                    features: tables.add_sums(&part(sums, first, first + rows)),
                    row_end: (first == 0)
                        .then(|| tables.add_sums(&part(sums, *row_end, row_end + 1))),
                    adds: first > 0,
                },
            };
            let target = FeatureTarget {
                placement,
                ..target
            };
            self.encode_batch(device, tables, target)?;
            first += rows;
        }
        Ok(())
    }

    fn encode_batch(
        &mut self,
        device: &mut dyn Device,
        mut tables: BatchTables,
        target: FeatureTarget,
    ) -> Result<(), SessionError> {
        let bytes = tables.bytes().len();
        let base = self.buffers.fit(device, tables.tokens, bytes)?;
        device.write(base, tables.bytes())?;
        tables.place(base);
        let lowering = TowerLowering {
            spec: &self.spec,
            weights: &self.weights,
            buffers: &self.buffers,
            tables: &tables,
            target,
            launches: Vec::new(),
        };
        for launch in lowering.lower() {
            let step = Step {
                count: launch.count as u32,
                ..Step::default()
            };
            device.launch(&launch.op, &step)?;
        }
        Ok(())
    }
}

/// The terms of each sum that are rows `first..end`, counted from `first`.
fn part(sums: &[Vec<Term>], first: usize, end: usize) -> Vec<Vec<Term>> {
    let own = |terms: &Vec<Term>| {
        let terms = terms.iter().filter(|(row, _)| (first..end).contains(row));
        terms.map(|(row, weight)| (row - first, *weight)).collect()
    };
    sums.iter().map(own).collect()
}
