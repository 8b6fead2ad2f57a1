//! Which kernel computes an operation, and over what grid.
//!
//! These are the general kernels of `kernels/general.cu`. They index the grid by its first dimension,
//! whose limit is far above that of the others; only the matrices of a batch are in the third.

use crate::fused_launch::{self, Occupancy};
use crate::ops::{Format, LowRank, Op, PAGE, Route, Step};

/// A kernel and its launch dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    pub kernel: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks that share their memory.
    pub cluster: Option<[u32; 3]>,
}

/// The general kernels.
pub const KERNELS: &[&str] = &[
    "activate",
    "add",
    "add_embedding",
    "add_features",
    "affine",
    "angles",
    "attend_bf16",
    "attend_dense",
    "attend_f32",
    "clamp",
    "combine_experts",
    "convolve",
    "copy_parts",
    "delta_gates",
    "delta_update",
    "delta_update_long",
    "draw_tokens",
    "embed",
    "embed_low_rank",
    "expert_linear_bf16",
    "expert_linear_f32",
    "finish_logits",
    "gather",
    "largest",
    "linear_few_bf16",
    "linear_few_f32",
    "linear_many_bf16",
    "linear_many_f32",
    "linear_one_bf16",
    "linear_one_f32",
    "low_rank",
    "mamba_update",
    "mamba_update_long",
    "multiply",
    "norm_vectors",
    "rope",
    "route",
    "scale_rows",
    "sum_rows",
    "temperature",
    "write_kv_bf16",
    "write_kv_f32",
];

/// The longest column of a recurrent state: the `key_dim` of a delta rule, the `state_len` of
/// Mamba-2.
pub const LONG_LEN: u32 = 512;
/// The largest batch of a linear operation.
pub const MAX_BATCH: u32 = 65_535;
/// The largest rank of an adapter: a block keeps a number for each in 48 KiB of shared memory.
pub const MAX_RANK: usize = 12_288;

// As in the kernels; a test compares them.
const WARP: u32 = 32;
const SPAN_THREADS: u32 = 256;
const SPAN: u32 = 1024;
const NORM_MAX_THREADS: u32 = 1024;
const FEW_THREADS: u32 = 128;
const FEW_ROWS: u32 = 4;
const FEW_TOKENS: u32 = 8;
const MANY_THREADS: u32 = 256;
const MANY_ROWS: u32 = 32;
const MANY_TOKENS: u32 = 16;
const LOW_RANK_THREADS: u32 = 256;
const LOW_RANK_ROWS: u32 = 1024;
const WRITE_THREADS: u32 = 128;
const ATTEND_THREADS: u32 = 256;
const CONVOLVE_THREADS: u32 = 128;
const STATE_THREADS: u32 = 256;
const SHORT_LEN: u32 = 256;
const SHORT_COLUMNS: u32 = 4;
const LONG_COLUMNS: u32 = 2;
const LARGEST_THREADS: u32 = 1024;
const DRAW_THREADS: u32 = 1024;

const FEW_BLOCK_ROWS: u32 = FEW_ROWS * FEW_THREADS / WARP;

/// The launch of an operation over a step. The grid has at least one block; kernels ignore what is
/// past the step.
pub fn shape(op: &Op, step: &Step, occupancy: &dyn Occupancy) -> LaunchShape {
    let count = step.count;
    let spans = |kernel, len: u32| {
        let blocks = count.saturating_mul(len.div_ceil(SPAN));
        LaunchShape::new(kernel, blocks, SPAN_THREADS)
    };
    match op {
        Op::Fused(op) => fused_launch::shape(op, step, occupancy),
        Op::Embed(p) => spans("embed", p.table.cols),
        Op::AddEmbedding(p) => spans("add_embedding", p.table.cols),
        Op::AddFeatures(p) => spans("add_features", p.width),
        Op::Norm(p) => {
            let blocks = count.saturating_mul(p.parts);
            LaunchShape::new("norm_vectors", blocks, norm_threads(p.len))
        }
        Op::Linear(p) => linear(p.matrix.format, p.matrix.rows, count).batched(p.batch),
        Op::LowRank(p) => low_rank(p, count),
        Op::ScaleRows(p) => spans("scale_rows", p.parts * p.rows),
        Op::EmbedLowRank(p) => spans("embed_low_rank", p.table.cols),
        Op::Angles(p) => spans("angles", p.pairs),
        Op::Rope(p) => spans("rope", p.heads * p.pairs),
        Op::Temperature(p) => spans("temperature", p.len),
        Op::WriteKv(p) => {
            let kernel = by_format(p.kv.format, "write_kv_f32", "write_kv_bf16");
            LaunchShape::new(kernel, count.saturating_mul(p.kv.heads), WRITE_THREADS)
        }
        Op::Attend(p) => {
            let kernel = by_format(p.kv.format, "attend_f32", "attend_bf16");
            attention(kernel, count, p.heads).with_dims(p.kv.head_dim, p.kv.value_dim)
        }
        Op::AttendDense(p) => {
            attention("attend_dense", count, p.heads).with_dims(p.head_dim, p.head_dim)
        }
        Op::Activate(p) => spans("activate", p.len),
        Op::Add(p) => spans("add", p.len),
        Op::Multiply(p) => spans("multiply", p.len),
        Op::Affine(p) => spans("affine", p.len),
        Op::Clamp(p) => spans("clamp", p.len),
        Op::Convolve(p) => {
            let blocks = count.saturating_mul(p.channels.div_ceil(CONVOLVE_THREADS));
            let taps = p.kernel.saturating_sub(1);
            LaunchShape {
                shared_bytes: 4 * taps * CONVOLVE_THREADS,
                ..LaunchShape::new("convolve", blocks, CONVOLVE_THREADS)
            }
        }
        Op::DeltaGates(p) => spans("delta_gates", p.heads * p.per_head),
        Op::DeltaUpdate(p) => {
            let kernels = ["delta_update", "delta_update_long"];
            state(
                kernels,
                p.key_dim,
                p.value_dim,
                count.saturating_mul(p.value_heads),
            )
        }
        Op::MambaUpdate(p) => {
            let kernels = ["mamba_update", "mamba_update_long"];
            state(
                kernels,
                p.state_len,
                p.head_dim,
                count.saturating_mul(p.heads),
            )
        }
        Op::Route(p) => LaunchShape {
            shared_bytes: route_bytes(p),
            ..LaunchShape::new("route", count, WARP)
        },
        Op::ExpertLinear(p) => {
            let kernel = by_format(p.matrix.format, "expert_linear_f32", "expert_linear_bf16");
            let blocks = count
                .saturating_mul(p.top_k)
                .saturating_mul(p.matrix.rows.div_ceil(FEW_BLOCK_ROWS));
            LaunchShape::new(kernel, blocks, FEW_THREADS)
        }
        Op::CombineExperts(p) => spans("combine_experts", p.len),
        Op::Gather(p) => spans("gather", p.len),
        Op::SumRows(p) => spans("sum_rows", p.matrix.cols),
        Op::CopyParts(p) => spans("copy_parts", p.parts * p.len),
        Op::FinishLogits(p) => spans("finish_logits", p.vocab),
        Op::Largest(_) => LaunchShape::new("largest", count, LARGEST_THREADS),
        Op::DrawTokens(_) => LaunchShape::new("draw_tokens", count, DRAW_THREADS),
    }
}

impl LaunchShape {
    pub(crate) fn new(kernel: &'static str, blocks: u32, threads: u32) -> Self {
        Self {
            kernel,
            grid: [blocks.max(1), 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
            cluster: None,
        }
    }

    fn batched(mut self, batch: u32) -> Self {
        debug_assert!(batch <= MAX_BATCH, "a batch of {batch} matrices");
        self.grid[2] = batch.max(1);
        self
    }

    /// Adds the memory of attention: the query, padded to two values per lane, two pages of scores,
    /// a page of weights per warp, and the sums of values.
    fn with_dims(mut self, head_dim: u32, value_dim: u32) -> Self {
        let pages = 2 + ATTEND_THREADS / WARP;
        let values = head_dim.next_multiple_of(2 * WARP) + pages * PAGE as u32 + value_dim;
        self.shared_bytes = 4 * values;
        self
    }
}

fn by_format(format: Format, f32: &'static str, bf16: &'static str) -> &'static str {
    match format {
        Format::F32 => f32,
        Format::Bf16 => bf16,
    }
}

/// Sums depend on the number of threads, so it is a function of the length alone.
fn norm_threads(len: u32) -> u32 {
    let values_per_thread = 4;
    let threads = len.div_ceil(values_per_thread).max(1);
    threads.next_power_of_two().clamp(WARP, NORM_MAX_THREADS)
}

/// All of these kernels give the same bits.
fn linear(format: Format, rows: u32, tokens: u32) -> LaunchShape {
    let of_rows = |per_block, tokens_per_block| {
        let row_blocks: u32 = rows.div_ceil(per_block);
        row_blocks.saturating_mul(tokens.div_ceil(tokens_per_block))
    };
    if tokens <= 1 {
        let kernel = by_format(format, "linear_one_f32", "linear_one_bf16");
        LaunchShape::new(kernel, of_rows(FEW_BLOCK_ROWS, 1), FEW_THREADS)
    } else if tokens <= FEW_TOKENS {
        let kernel = by_format(format, "linear_few_f32", "linear_few_bf16");
        LaunchShape::new(kernel, of_rows(FEW_BLOCK_ROWS, FEW_TOKENS), FEW_THREADS)
    } else {
        let kernel = by_format(format, "linear_many_f32", "linear_many_bf16");
        LaunchShape::new(kernel, of_rows(MANY_ROWS, MANY_TOKENS), MANY_THREADS)
    }
}

fn low_rank(op: &LowRank, tokens: u32) -> LaunchShape {
    let parts = tokens.saturating_mul(op.parts);
    let blocks = parts.saturating_mul(op.rows.div_ceil(LOW_RANK_ROWS));
    LaunchShape {
        // The compiler reads four values at a time, also past the last one.
        shared_bytes: 4 * op.rank.next_multiple_of(4),
        ..LaunchShape::new("low_rank", blocks, LOW_RANK_THREADS)
    }
}

fn attention(kernel: &'static str, tokens: u32, heads: u32) -> LaunchShape {
    LaunchShape::new(kernel, tokens.saturating_mul(heads), ATTEND_THREADS)
}

/// A block per head of a row and some of its state's columns of `len` values.
fn state(kernels: [&'static str; 2], len: u32, columns: u32, heads: u32) -> LaunchShape {
    debug_assert!(len <= LONG_LEN, "state columns of {len} values");
    let [short, long] = kernels;
    let (kernel, per_warp) = if len <= SHORT_LEN {
        (short, SHORT_COLUMNS)
    } else {
        (long, LONG_COLUMNS)
    };
    let per_block = per_warp * STATE_THREADS / WARP;
    let blocks = heads.saturating_mul(columns.div_ceil(per_block));
    LaunchShape::new(kernel, blocks, STATE_THREADS)
}

/// A number for each expert, group and choice.
fn route_bytes(op: &Route) -> u32 {
    4 * (op.count + op.groups + op.top_k)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::draw::{DrawTable, WEIGHT_BITS};
    use crate::ops::*;

    const SOURCES: &[&str] = &[
        include_str!("../kernels/general/attention.cuh"),
        include_str!("../kernels/general/draw.cuh"),
        include_str!("../kernels/general/elementwise.cuh"),
        include_str!("../kernels/general/experts.cuh"),
        include_str!("../kernels/general/linear.cuh"),
        include_str!("../kernels/general/low_rank.cuh"),
        include_str!("../kernels/general/norm.cuh"),
        include_str!("../kernels/general/readout.cuh"),
        include_str!("../kernels/general/recurrent.cuh"),
    ];
    const HEADER: &str = include_str!("../kernels/ops.cuh");

    const NONE: Address = Address::NONE;

    fn step(count: u32) -> Step {
        Step {
            count,
            ..Step::default()
        }
    }

    fn matrix(rows: u32, cols: u32, format: Format) -> MatrixRef {
        MatrixRef {
            values: NONE,
            rows,
            cols,
            format,
            reserved: 0,
        }
    }

    fn linear_op(rows: u32, format: Format) -> Op {
        Op::Linear(Linear {
            matrix: matrix(rows, 64, format),
            input: NONE,
            out: NONE,
            bias: NONE,
            input_stride: 64,
            out_stride: rows,
            batch: 3,
            input_step: 0,
            out_step: 0,
            reserved: 0,
        })
    }

    fn attend_op(head_dim: u32, value_dim: u32) -> Op {
        Op::Attend(Attend {
            kv: KvRef {
                pages: NONE,
                page_bytes: 0,
                keys: 0,
                values: 0,
                group: 0,
                heads: 2,
                head_dim,
                value_dim,
                format: Format::Bf16,
                values_in_keys: 0,
            },
            query: NONE,
            out: NONE,
            query_stride: 0,
            out_stride: 0,
            heads: 8,
            reach: ReachKind::All,
            reach_len: 0,
            looks_ahead: 0,
            scale: 1.0,
            softcap: 0.0,
            sinks: NONE,
        })
    }

    fn delta_op(key_dim: u32, value_dim: u32) -> Op {
        Op::DeltaUpdate(DeltaUpdate {
            query: NONE,
            key: NONE,
            value: NONE,
            out: NONE,
            decay: NONE,
            beta: NONE,
            key_heads: 2,
            value_heads: 4,
            key_dim,
            value_dim,
            per_head: 1,
            state: 0,
            strided: 0,
            reserved: 0,
        })
    }

    fn add_op(len: u32) -> Op {
        Op::Add(Add {
            a: NONE,
            b: NONE,
            out: NONE,
            a_stride: len,
            b_stride: len,
            out_stride: len,
            len,
            left: 1.0,
            right: 1.0,
        })
    }

    #[test]
    fn shapes_cover_the_work() {
        for (op, count, kernel, grid, block, shared_bytes) in [
            (add_op(1024), 3, "add", [3, 1, 1], 256, 0),
            (add_op(1025), 3, "add", [6, 1, 1], 256, 0),
            (add_op(7), 0, "add", [1, 1, 1], 256, 0),
            (
                linear_op(33, Format::F32),
                1,
                "linear_one_f32",
                [3, 1, 3],
                128,
                0,
            ),
            (
                linear_op(32, Format::Bf16),
                8,
                "linear_few_bf16",
                [2, 1, 3],
                128,
                0,
            ),
            (
                linear_op(33, Format::Bf16),
                17,
                "linear_many_bf16",
                [4, 1, 3],
                256,
                0,
            ),
            (
                attend_op(80, 64),
                5,
                "attend_bf16",
                [40, 1, 1],
                256,
                4 * (128 + 640 + 64),
            ),
            (delta_op(128, 128), 2, "delta_update", [32, 1, 1], 256, 0),
            (
                delta_op(512, 20),
                2,
                "delta_update_long",
                [16, 1, 1],
                256,
                0,
            ),
        ] {
            let expected = LaunchShape {
                kernel,
                grid,
                block: [block, 1, 1],
                shared_bytes,
                cluster: None,
            };
            assert_eq!(shape(&op, &step(count), &NoGpu), expected);
            assert!(KERNELS.contains(&kernel));
        }
    }

    /// General kernels do not depend on it.
    struct NoGpu;

    impl Occupancy for NoGpu {
        fn multiprocessors(&self) -> u32 {
            0
        }

        fn blocks(&self, _: &'static str, _: u32, _: u32) -> u32 {
            0
        }

        fn clusters(&self, _: &'static str, _: u32, _: u32, _: u32) -> u32 {
            0
        }
    }

    /// A kernel reads the inner product of a low rank in fours.
    #[test]
    fn memory_of_low_ranks_is_whole_fours() {
        for rank in [1, 4, 5, 16] {
            // SAFETY: zeros are valid for addresses and numbers, and nothing is launched.
            let op: LowRank = unsafe { std::mem::zeroed() };
            let op = LowRank { rank, ..op };
            let bytes = shape(&op.into(), &step(1), &NoGpu).shared_bytes;
            assert_eq!(bytes, 4 * rank.next_multiple_of(4));
        }
    }

    #[test]
    fn norm_threads_depend_on_the_length() {
        let threads = [1, 64, 128, 576, 2048, 4096, 20_000].map(norm_threads);
        assert_eq!(threads, [32, 32, 32, 256, 512, 1024, 1024]);
    }

    #[test]
    fn kernels_are_those_of_the_sources() {
        let mut found = BTreeSet::new();
        for source in SOURCES {
            for part in source.split("extern \"C\" __global__").skip(1) {
                let (before, _) = part.split_once("(const ").unwrap();
                found.insert(before.split_whitespace().last().unwrap());
            }
        }
        let listed: BTreeSet<&str> = KERNELS.iter().copied().collect();
        assert_eq!(found, listed);
    }

    #[test]
    fn constants_are_those_of_the_sources() {
        let text = format!("{HEADER}{}", SOURCES.concat());
        for (name, value) in [
            ("WARP", WARP),
            ("PAGE", PAGE as u32),
            ("MAX_ADAPTERS", MAX_ADAPTERS as u32),
            ("SPAN_THREADS", SPAN_THREADS),
            ("SPAN", SPAN),
            ("NORM_MAX_THREADS", NORM_MAX_THREADS),
            ("FEW_THREADS", FEW_THREADS),
            ("FEW_ROWS", FEW_ROWS),
            ("FEW_TOKENS", FEW_TOKENS),
            ("MANY_THREADS", MANY_THREADS),
            ("MANY_ROWS", MANY_ROWS),
            ("MANY_TOKENS", MANY_TOKENS),
            ("LOW_RANK_THREADS", LOW_RANK_THREADS),
            ("LOW_RANK_ROWS", LOW_RANK_ROWS),
            ("WRITE_THREADS", WRITE_THREADS),
            ("ATTEND_THREADS", ATTEND_THREADS),
            ("CONVOLVE_THREADS", CONVOLVE_THREADS),
            ("STATE_THREADS", STATE_THREADS),
            ("SHORT_LEN", SHORT_LEN),
            ("SHORT_COLUMNS", SHORT_COLUMNS),
            ("LONG_LEN", LONG_LEN),
            ("LONG_COLUMNS", LONG_COLUMNS),
            ("LARGEST_THREADS", LARGEST_THREADS),
            ("DRAW_THREADS", DRAW_THREADS),
        ] {
            let line = format!("constexpr uint32_t {name} = {value};");
            assert!(text.contains(&line), "{line}");
        }
        let bits = format!("constexpr int WEIGHT_BITS = {WEIGHT_BITS};");
        assert!(text.contains(&bits), "{bits}");
    }

    /// The sizes that the kernels assert of their structs are those of the Rust structs.
    #[test]
    fn parameter_sizes_are_those_of_the_header() {
        let tables = [
            ("Tables", size_of::<Tables>()),
            ("Step", size_of::<Step>()),
            ("RowTable", size_of::<RowTable>()),
            ("StateCopy", size_of::<StateCopy>()),
            ("PageRun", size_of::<PageRun>()),
            ("DrawTable", size_of::<DrawTable>()),
            ("MatrixRef", size_of::<MatrixRef>()),
            ("KvRef", size_of::<KvRef>()),
        ];
        for (name, bytes) in tables.iter().chain(OPERATIONS) {
            let line = format!("SIZE({name}, {bytes});");
            assert!(HEADER.contains(&line), "{line}");
        }
    }

    /// Kernels find fields where Rust has them.
    #[test]
    fn parameter_offsets_are_those_of_the_header() {
        use std::mem::offset_of;
        for (name, field, offset) in [
            ("Step", "tables", offset_of!(Step, tables)),
            ("Tables", "page_runs", offset_of!(Tables, page_runs)),
            ("RowTable", "before", offset_of!(RowTable, before)),
            ("KvRef", "format", offset_of!(KvRef, format)),
            ("Norm", "function", offset_of!(Norm, function)),
            ("Linear", "batch", offset_of!(Linear, batch)),
            ("LowRank", "rows", offset_of!(LowRank, rows)),
            ("ScaleRows", "scales", offset_of!(ScaleRows, scales)),
            ("EmbedLowRank", "rank", offset_of!(EmbedLowRank, rank)),
            ("Attend", "sinks", offset_of!(Attend, sinks)),
            ("Activate", "function", offset_of!(Activate, function)),
            ("DeltaUpdate", "per_head", offset_of!(DeltaUpdate, per_head)),
            ("Route", "normalise_eps", offset_of!(Route, normalise_eps)),
            (
                "ExpertLinear",
                "input_stride",
                offset_of!(ExpertLinear, input_stride),
            ),
        ] {
            let line = format!("OFFSET({name}, {field}, {offset});");
            assert!(HEADER.contains(&line), "{line}");
        }
    }
}
