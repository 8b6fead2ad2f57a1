//! What a batch's launches read besides weights: pixels, positions and indices, computed on the
//! host and copied to the device in one piece.

use loquat_session::View;
use loquat_session::media::patches;
use loquat_session::tower::{ProjectedGrids, TowerBatch};
use loquat_spec::{PatchRopeLayout, PatchSpan, Projector, ProjectorStep, VisionSpec};

use crate::ops::Address;

/// A row and its weight in a sum.
pub type Term = (usize, f32);

/// A table's place in the copied bytes.
#[derive(Clone, Copy)]
pub struct Table(u64);

/// Sums of weighted rows, for [`SumRows`](crate::ops::SumRows).
#[derive(Clone, Copy)]
pub struct SumTable {
    pub terms: Table,
    pub rows: Table,
    pub weights: Table,
}

/// The angles of a part of each head.
#[derive(Clone, Copy)]
pub struct RopeTable {
    pub cos: Table,
    pub sin: Table,
    pub pairs: usize,
    /// The part's first value in a head.
    pub first: usize,
}

/// The tokens of views with class tokens.
#[derive(Clone, Copy)]
pub struct ClassTables {
    /// Tokens as sums of embedded patches.
    pub patches: SumTable,
    /// Tokens as sums of the only class token.
    pub class: SumTable,
}

/// What a step of a projector reads.
#[derive(Clone, Copy)]
pub enum StepTable {
    None,
    /// The vectors of each block, one block after another.
    Order(Table),
    /// The mean of each block.
    Mean(SumTable),
}

/// The tables of some views.
pub struct BatchTables {
    bytes: Vec<u8>,
    base: Address,
    /// Class tokens included.
    pub tokens: usize,
    pub patches: usize,
    /// `f32[patch][value]`
    pub pixels: Table,
    pub class: Option<ClassTables>,
    pub positions: Option<SumTable>,
    spans: Vec<(PatchSpan, Table)>,
    pub ropes: Vec<RopeTable>,
    /// The token of each patch, in the order of the tower's output.
    pub output: Table,
    /// For the steps of each projector.
    pub projectors: Vec<Vec<StepTable>>,
}

/// The side of windows; `None` if no layer has any.
pub fn window(spec: &VisionSpec) -> Option<usize> {
    spec.layers.iter().find_map(|span| match span {
        PatchSpan::Window(side) => Some(*side),
        PatchSpan::Frame => None,
    })
}

impl BatchTables {
    pub fn new(spec: &VisionSpec, views: &[View], batch: &TowerBatch) -> Self {
        let order = TokenOrder::new(spec, batch);
        let mut staging = Staging::default();
        let pixels = pixels(spec, views, &order);
        let per_patch = spec.patch.values();
        let mut tables = Self {
            base: Address::NONE,
            tokens: batch.tokens,
            patches: pixels.len() / per_patch.max(1),
            pixels: staging.add(&pixels),
            class: class_tables(batch, &mut staging),
            positions: None,
            spans: Vec::new(),
            ropes: ropes(spec, batch, &order, &mut staging),
            output: output_order(batch, &order, &mut staging),
            projectors: Vec::new(),
            bytes: Vec::new(),
        };
        if spec.positions.is_some() {
            let positions = batch.positions(spec);
            tables.positions = Some(staging.sums(&order.permuted(&positions)));
        }
        for span in &spec.layers {
            if tables.spans.iter().all(|(known, _)| known != span) {
                let ranges = order.ranges(batch, *span);
                tables
                    .spans
                    .push((*span, staging.add(ranges.as_flattened())));
            }
        }
        let stacked = spec.deepstack.iter().map(|stacked| &stacked.projector);
        for projector in [&spec.projector].into_iter().chain(stacked) {
            let steps = steps(projector, batch, tables.patches, &mut staging);
            tables.projectors.push(steps);
        }
        tables.bytes = staging.bytes;
        tables
    }

    /// Adds sums to the tables.
    pub fn add_sums(&mut self, sums: &[Vec<Term>]) -> SumTable {
        let mut staging = Staging {
            bytes: std::mem::take(&mut self.bytes),
        };
        let table = staging.sums(sums);
        self.bytes = staging.bytes;
        table
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the bytes are on the device.
    pub fn place(&mut self, base: Address) {
        self.base = base;
    }

    pub fn address(&self, table: Table) -> Address {
        self.base.offset(table.0)
    }

    /// Which tokens each token attends to.
    pub fn ranges(&self, span: PatchSpan) -> Address {
        let table = self.spans.iter().find(|(known, _)| *known == span);
        table.map_or(Address::NONE, |(_, table)| self.address(*table))
    }

    /// Bytes of the tables of so many patches, approximately.
    pub fn predict_bytes(spec: &VisionSpec, patches: usize) -> u64 {
        use loquat_spec::PatchPositions::Sampled;
        // Bicubic sampling has the most terms, unless a large table shrinks.
        const TERMS: usize = 16;
        let rope = spec.block.rope.map_or(0, |_| spec.block.head_dim);
        let steps: usize = spec.projector.steps.len() * (1 + spec.deepstack.len());
        let of_patch = spec.patch.values() + rope + 2 * TERMS + 8 + steps;
        let table = match spec.positions {
            Some(Sampled { side, .. }) => 8 * side * side,
            _ => 0,
        };
        4 * (patches as u64 * of_patch as u64 + table as u64)
    }
}

/// The order of tokens on the device, in which those of a window are adjacent.
struct TokenOrder {
    /// The batch's token at each place; `None` if that is its own place.
    tokens: Option<Vec<usize>>,
    /// The place of each of the batch's tokens.
    places: Vec<usize>,
}

impl TokenOrder {
    fn new(spec: &VisionSpec, batch: &TowerBatch) -> Self {
        let Some(side) = window(spec) else {
            return Self {
                tokens: None,
                places: (0..batch.tokens).collect(),
            };
        };
        let tokens = batch.groups(PatchSpan::Window(side)).concat();
        let mut places = vec![0; batch.tokens];
        for (place, token) in tokens.iter().enumerate() {
            places[*token] = place;
        }
        Self {
            tokens: Some(tokens),
            places,
        }
    }

    /// Items of the batch's tokens in the order of the device.
    fn permuted<T: Clone>(&self, of_tokens: &[T]) -> Vec<T> {
        match &self.tokens {
            None => of_tokens.to_vec(),
            Some(tokens) => tokens
                .iter()
                .map(|token| of_tokens[*token].clone())
                .collect(),
        }
    }

    /// Vectors of `width` values, likewise.
    fn permuted_vectors(&self, values: Vec<f32>, width: usize) -> Vec<f32> {
        let Some(tokens) = &self.tokens else {
            return values;
        };
        let vectors = tokens
            .iter()
            .flat_map(|token| &values[token * width..(token + 1) * width]);
        vectors.copied().collect()
    }

    /// The places that the token at each place attends to.
    fn ranges(&self, batch: &TowerBatch, span: PatchSpan) -> Vec<[u32; 2]> {
        let mut ranges = vec![[0; 2]; batch.tokens];
        for group in batch.groups(span) {
            let places = group.iter().map(|token| self.places[*token]);
            // A frame consists of whole windows, so that its tokens are adjacent too.
            let first = places.min().unwrap_or(0);
            let end = first + group.len();
            ranges[first..end].fill([first as u32, end as u32]);
        }
        ranges
    }
}

/// The values of all patches, in the order of the device.
fn pixels(spec: &VisionSpec, views: &[View], order: &TokenOrder) -> Vec<f32> {
    let (scale, offset) = (spec.patch.scale, spec.patch.offset);
    let mut values = Vec::new();
    for view in views {
        let own = patches(spec, view);
        if (scale, offset) == (1.0, 0.0) {
            values.extend(own);
        } else {
            values.extend(own.into_iter().map(|value| value * scale + offset));
        }
    }
    order.permuted_vectors(values, spec.patch.values())
}

fn class_tables(batch: &TowerBatch, staging: &mut Staging) -> Option<ClassTables> {
    batch.views.iter().find_map(|view| view.class)?;
    let mut patches = vec![Vec::new(); batch.tokens];
    let mut class = patches.clone();
    let mut patch = 0;
    for view in &batch.views {
        for token in view.patches() {
            patches[token].push((patch, 1.0));
            patch += 1;
        }
        if let Some(token) = view.class {
            class[token].push((0, 1.0));
        }
    }
    Some(ClassTables {
        patches: staging.sums(&patches),
        class: staging.sums(&class),
    })
}

fn ropes(
    spec: &VisionSpec,
    batch: &TowerBatch,
    order: &TokenOrder,
    staging: &mut Staging,
) -> Vec<RopeTable> {
    let Some(rope) = spec.block.rope else {
        return Vec::new();
    };
    let angles = batch.angles(rope, spec.block.head_dim);
    let all = angles.pairs;
    let [cos, sin] = [angles.cos, angles.sin].map(|values| order.permuted_vectors(values, all));
    let parts = match rope.layout {
        PatchRopeLayout::Halves
        | PatchRopeLayout::HalvesAlternate
        | PatchRopeLayout::Interleaved => 1,
        PatchRopeLayout::Parts => 2,
    };
    let pairs = all / parts;
    let part = |part: usize, values: &[f32]| -> Vec<f32> {
        let of_tokens = values.chunks_exact(all);
        of_tokens
            .flat_map(|values| &values[part * pairs..(part + 1) * pairs])
            .copied()
            .collect()
    };
    (0..parts)
        .map(|index| RopeTable {
            cos: staging.add(&part(index, &cos)),
            sin: staging.add(&part(index, &sin)),
            pairs,
            first: index * 2 * pairs,
        })
        .collect()
}

fn output_order(batch: &TowerBatch, order: &TokenOrder, staging: &mut Staging) -> Table {
    let tokens = batch.views.iter().flat_map(|view| view.patches());
    let places: Vec<u32> = tokens.map(|token| order.places[token] as u32).collect();
    staging.add(&places)
}

fn steps(
    projector: &Projector,
    batch: &TowerBatch,
    patches: usize,
    staging: &mut Staging,
) -> Vec<StepTable> {
    let mut grids = ProjectedGrids::new(batch);
    let mut vectors = patches;
    let steps = projector.steps.iter().map(|step| match step {
        ProjectorStep::Merge { side, .. } => {
            vectors /= side * side;
            grids.merge(*side).map_or(StepTable::None, |order| {
                let order: Vec<u32> = order.into_iter().map(|index| index as u32).collect();
                StepTable::Order(staging.add(&order))
            })
        }
        ProjectorStep::AveragePool { side } => {
            let order = grids.merge(*side);
            let order = order.unwrap_or_else(|| (0..vectors).collect());
            let block = side * side;
            vectors /= block;
            let share = 1.0 / block as f32;
            let blocks = order.chunks_exact(block);
            let means: Vec<Vec<Term>> = blocks
                .map(|block| block.iter().map(|index| (*index, share)).collect())
                .collect();
            StepTable::Mean(staging.sums(&means))
        }
        _ => StepTable::None,
    });
    steps.collect()
}

/// Tables begin at multiples of this.
const ALIGNMENT: usize = 16;

#[derive(Default)]
struct Staging {
    bytes: Vec<u8>,
}

impl Staging {
    fn add<T: bytemuck::NoUninit>(&mut self, values: &[T]) -> Table {
        let start = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(bytemuck::cast_slice(values));
        Table(start as u64)
    }

    fn sums(&mut self, sums: &[Vec<Term>]) -> SumTable {
        let mut ends = vec![0];
        let (mut rows, mut weights) = (Vec::new(), Vec::new());
        for terms in sums {
            rows.extend(terms.iter().map(|(row, _)| *row as u32));
            weights.extend(terms.iter().map(|(_, weight)| *weight));
            ends.push(rows.len() as u32);
        }
        SumTable {
            terms: self.add(&ends),
            rows: self.add(&rows),
            weights: self.add(&weights),
        }
    }
}
