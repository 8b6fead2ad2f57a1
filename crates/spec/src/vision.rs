//! The part of a model that turns pictures into positions of the text model, as data: a tower of
//! attention blocks over patches, and projectors from its output to the text model's stream.

use crate::error::SpecError;
use crate::mixers::Reach;
use crate::model::{Activation, Dense, Norm};

/// From patches to features, step by step in the order of the fields.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionSpec {
    /// Values per patch inside the tower.
    pub hidden_size: usize,
    pub patch: PatchEmbedding,
    /// A learned vector beside the patches of each view, dropped before the projector.
    pub class_token: Option<ClassToken>,
    /// Applied before the positions are added.
    pub patch_norm: Option<Norm>,
    pub positions: Option<PatchPositions>,
    /// Applied to the sum of patches and positions.
    pub embedding_norm: Option<Norm>,
    pub block: VisionBlock,
    /// Which patches attend to each other, for each layer.
    pub layers: Vec<PatchSpan>,
    /// Applied to the last layer's output.
    pub final_norm: Option<Norm>,
    pub projector: Projector,
    /// Features from inner layers. The first are added to the text model's stream after its first
    /// layer, the second after its second, and so on.
    pub deepstack: Vec<Deepstack>,
    pub arrangement: Arrangement,
    /// What the text model's positions inside a picture attend to.
    pub attention: MediaAttention,
    /// Frames of a video are accepted.
    pub video: bool,
    /// Positions between frames follow the time between them. `None`: each frame is one further.
    pub positions_per_second: Option<f32>,
}

/// From the values of a patch to a vector: `matrix * (values * scale + offset) + bias`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PatchEmbedding {
    pub channels: usize,
    /// Frames that one patch covers.
    pub frames: usize,
    /// Rows and columns of pixels.
    pub side: usize,
    pub bias: bool,
    pub scale: f32,
    pub offset: f32,
    pub input: PixelInput,
    pub order: PatchOrder,
}

/// How a view's values are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PixelInput {
    /// `[channel][row][column]`, to be cut into patches.
    Planes,
    /// `[patch][value]`, in the order of the matrix's columns.
    Patches,
}

/// The order of a view's patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchOrder {
    RowMajor,
    /// Square blocks of this many patches a side, each in row-major order.
    Blocks(usize),
}

/// Where the class token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassToken {
    First,
    Last,
}

/// A learned table of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchPositions {
    /// One row for each patch of the only grid, in row-major order; the class token has its own.
    Fixed { rows: usize },
    /// A square table, sampled at each view's grid.
    Sampled { side: usize, sampling: Sampling },
    /// A table per axis, `[column, row][index]`; their rows are added.
    PerAxis { len: usize },
}

/// How a square table is sampled at a grid of another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sampling {
    /// Bilinear, corner on corner.
    BilinearCorners,
    /// Bilinear between centers of cells, with a wider filter when shrinking.
    BilinearAntialias,
    /// Bicubic between centers of cells, clamped to the border.
    BicubicCenters,
    /// The nearest row above each fraction of the grid.
    Buckets,
}

/// `x += post(attention(pre(x))); x += post(mlp(pre(x)))`, the same in all layers.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionBlock {
    pub norm: Norm,
    /// The norm also follows attention and feed-forward.
    pub sandwich: bool,
    /// A learned factor per channel multiplies what each half adds.
    pub gains: bool,
    pub heads: usize,
    pub head_dim: usize,
    pub qkv_bias: bool,
    pub output_bias: bool,
    /// Over each head of queries and keys.
    pub qk_norm: Option<Norm>,
    /// Over each head of values, without weights.
    pub value_norm: Option<Norm>,
    pub scale: f32,
    pub rope: Option<PatchRope>,
    pub mlp: Dense,
    /// Inputs and outputs of every matrix are clamped to learned bounds.
    pub clamped: bool,
}

/// Rotary positions over rows and columns. The class token is not rotated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PatchRope {
    pub theta: f32,
    pub layout: PatchRopeLayout,
}

/// Which pairs of a head rotate by which axis. `d` is the head's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchRopeLayout {
    /// Pairs `i, i + d/2`: the first half of the pairs by row, the others by column, both with the
    /// frequencies of `d/2` dimensions.
    Halves,
    /// Pairs `i, i + d/2`: the first half by row with every second frequency of `d` dimensions,
    /// the others by column with the frequencies between.
    HalvesAlternate,
    /// The first half of the head by column, the other by row, each in its own halves.
    Parts,
    /// Pairs `2i, 2i + 1`: the first half by column, the others by row; both count from 1.
    Interleaved,
}

/// Which patches of a frame attend to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchSpan {
    /// All of the frame.
    Frame,
    /// Those in the same square window of this many patches a side.
    Window(usize),
}

/// Steps from the tower's output to features.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Projector {
    pub steps: Vec<ProjectorStep>,
}

/// One step of a projector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ProjectorStep {
    /// Joins the vectors of square blocks of patches.
    Merge {
        side: usize,
        values: MergeOrder,
    },
    /// Replaces square blocks of patches by their mean.
    AveragePool {
        side: usize,
    },
    Scale(f32),
    /// `(x - bias) * scale`, both learned.
    Standardize,
    Norm(Norm),
    Linear {
        rows: usize,
        bias: bool,
    },
    Activation(Activation),
    /// A gated feed-forward back to the input's length.
    Gated(Dense),
}

/// The order of values in a merged vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeOrder {
    /// `[row][column][channel]`
    ChannelLast,
    /// `[channel][row][column]`
    ChannelFirst,
}

/// Features from the output of layer `after`, through a projector of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Deepstack {
    pub after: usize,
    pub projector: Projector,
}

/// How the features of a picture's views become one row of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    /// One view after another.
    Views,
    /// The first view, then the others as one picture: its padding is removed, a learned vector
    /// ends each row. Frames of a video shrink to half a side and one vector ends the video. The
    /// grid of tiles may have up to `max_tiles` times the positions of a view.
    Tiles { max_tiles: usize },
}

/// What positions inside a picture attend to besides earlier positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MediaAttention {
    /// Nothing.
    #[default]
    Causal,
    /// All of their view.
    View,
    /// The same, in layers with a window.
    WindowedView,
    /// All positions of the sequence's first row, text or not, attend to each other.
    FirstRow,
}

/// Frames, rows and columns: of patches, or of positions after merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    pub frames: usize,
    pub rows: usize,
    pub cols: usize,
}

impl Grid {
    /// `None` if the product overflows.
    pub fn len(self) -> Option<usize> {
        self.frames.checked_mul(self.rows)?.checked_mul(self.cols)
    }

    /// Whether it has no cells.
    pub fn is_empty(self) -> bool {
        self.len() == Some(0)
    }
}

impl MediaAttention {
    /// Whether positions of a view attend to each other in any layer.
    pub fn keeps_views_whole(self) -> bool {
        matches!(self, Self::View | Self::WindowedView)
    }

    /// Whether layers of this reach attend to later positions.
    pub fn applies_to(self, reach: Reach) -> bool {
        self != Self::WindowedView || matches!(reach, Reach::Window(_))
    }
}

impl PatchEmbedding {
    /// Values of one patch.
    pub fn values(&self) -> usize {
        self.channels * self.frames * self.side * self.side
    }
}

impl Projector {
    /// Patches per position along each axis.
    pub fn merged_side(&self) -> usize {
        let sides = self.steps.iter().map(|step| match step {
            ProjectorStep::Merge { side, .. } | ProjectorStep::AveragePool { side } => *side,
            _ => 1,
        });
        sides.product()
    }

    /// Every step with the lengths of its input and output vectors.
    pub fn sized(&self, input: usize) -> Vec<(ProjectorStep, usize, usize)> {
        let mut len = input;
        let sized = self.steps.iter().map(|step| {
            let before = len;
            len = match step {
                ProjectorStep::Merge { side, .. } => len * side * side,
                ProjectorStep::Linear { rows, .. } => *rows,
                _ => len,
            };
            (*step, before, len)
        });
        sized.collect()
    }

    /// The length of its output for vectors of `input` values.
    pub fn output_len(&self, input: usize) -> usize {
        self.sized(input).last().map_or(input, |(.., len)| *len)
    }
}

impl VisionSpec {
    /// The grid of positions that a grid of patches becomes. `None` if it is empty, too large or
    /// does not divide.
    pub fn merged(&self, patches: Grid) -> Option<Grid> {
        let side = self.projector.merged_side();
        let divides = patches.rows.is_multiple_of(side) && patches.cols.is_multiple_of(side);
        let len = patches.len()?;
        (divides && len > 0).then(|| Grid {
            rows: patches.rows / side,
            cols: patches.cols / side,
            ..patches
        })
    }

    /// The only grid that the positions' table allows, if there is one.
    pub fn fixed_patches(&self) -> Option<usize> {
        match self.positions {
            Some(PatchPositions::Fixed { rows }) => {
                Some(rows - usize::from(self.class_token.is_some()))
            }
            _ => None,
        }
    }

    /// The longest side of a grid, if the positions' table bounds it.
    pub fn max_side(&self) -> Option<usize> {
        match self.positions {
            Some(PatchPositions::PerAxis { len }) => Some(len),
            _ => None,
        }
    }

    /// Values that encoding keeps for a position.
    pub fn feature_len(&self, hidden_size: usize) -> usize {
        hidden_size * (1 + self.deepstack.len())
    }

    /// Checks sizes against each other and the text model.
    pub(crate) fn validate(&self, hidden_size: usize, layers: usize) -> Result<(), SpecError> {
        let invalid = |field: &str, found: usize, expected: String| {
            Err(SpecError::invalid(
                format!("vision_config.{field}"),
                found,
                expected,
            ))
        };
        let block = &self.block;
        let counts = [
            ("hidden_size", self.hidden_size),
            ("patch_size", self.patch.side),
            ("num_channels", self.patch.channels),
            ("temporal_patch_size", self.patch.frames),
            ("num_attention_heads", block.heads),
            ("head_dim", block.head_dim),
            ("intermediate_size", block.mlp.size),
        ];
        for (field, count) in counts {
            if count == 0 || count > MAX_SIZE {
                return invalid(field, count, format!("from 1 to {MAX_SIZE}"));
            }
        }
        if self.patch.side > MAX_SIDE || self.patch.frames > MAX_SIDE || self.patch.channels > 4 {
            return invalid("patch_size", self.patch.side, format!("at most {MAX_SIDE}"));
        }
        if self.layers.len() > MAX_LAYERS {
            let found = self.layers.len();
            return invalid("num_hidden_layers", found, format!("at most {MAX_LAYERS}"));
        }
        if block.rope.is_some() && !block.head_dim.is_multiple_of(4) {
            return invalid("head_dim", block.head_dim, "a multiple of 4".to_owned());
        }
        if self.deepstack.len() > layers {
            let found = self.deepstack.len();
            return invalid(
                "deepstack_visual_indexes",
                found,
                format!("at most {layers}"),
            );
        }
        let projectors = self.deepstack.iter().map(|stacked| &stacked.projector);
        for step in projectors
            .chain([&self.projector])
            .flat_map(|projector| &projector.steps)
        {
            let (ProjectorStep::Merge { side, .. } | ProjectorStep::AveragePool { side }) = step
            else {
                continue;
            };
            if *side == 0 || *side > MAX_MERGED {
                let expected = format!("from 1 to {MAX_MERGED}");
                return invalid("spatial_merge_size", *side, expected);
            }
        }
        let table = match self.positions {
            None => 1,
            Some(PatchPositions::Fixed { rows }) => rows - usize::from(self.class_token.is_some()),
            Some(PatchPositions::Sampled { side, .. }) => side,
            Some(PatchPositions::PerAxis { len }) => len,
        };
        if table == 0 || table > MAX_SIZE {
            let expected = format!("from 1 to {MAX_SIZE}");
            return invalid("num_position_embeddings", table, expected);
        }
        let side = self.projector.merged_side();
        for stacked in &self.deepstack {
            let (after, count) = (stacked.after, self.layers.len());
            if after >= count || stacked.projector.merged_side() != side {
                return invalid("deepstack_visual_indexes", after, format!("below {count}"));
            }
        }
        let projectors = self.deepstack.iter().map(|stacked| &stacked.projector);
        for projector in projectors.chain([&self.projector]) {
            let found = projector.output_len(self.hidden_size);
            if found != hidden_size {
                return invalid(
                    "out_hidden_size",
                    found,
                    format!("{hidden_size}, the text model's hidden size"),
                );
            }
        }
        if let PatchOrder::Blocks(block) = self.patch.order
            && block != side
        {
            return invalid("spatial_merge_size", block, side.to_string());
        }
        Ok(())
    }
}

/// Bounds on counts, so that products of two cannot overflow.
const MAX_SIZE: usize = 1 << 20;
const MAX_SIDE: usize = 256;
const MAX_MERGED: usize = 64;
const MAX_LAYERS: usize = 1024;

impl ProjectorStep {
    /// Whether it has tensors of its own.
    pub(crate) fn is_learned(&self) -> bool {
        match self {
            Self::Linear { .. } | Self::Standardize | Self::Gated(_) => true,
            Self::Norm(norm) => norm.weight || norm.bias,
            Self::Merge { .. }
            | Self::AveragePool { .. }
            | Self::Scale(_)
            | Self::Activation(_) => false,
        }
    }
}
