//! Which kernel of the fast path computes an operation, and over what grid.
//!
//! The grids are one wave of blocks, so they depend on the GPU; results do not.

use crate::fused::{Epilogue, FusedAttention, FusedLinear, FusedOp, FusedPromptAttention};
use crate::launch::LaunchShape;
use crate::ops::Step;

/// What shapes depend on besides the operation.
pub trait Occupancy {
    /// Multiprocessors of the GPU.
    fn multiprocessors(&self) -> u32;

    /// Blocks of a kernel that one multiprocessor runs at a time, with so many threads and bytes of
    /// dynamic shared memory; 0 for a kernel that does not exist.
    fn blocks(&self, kernel: &'static str, threads: u32, shared_bytes: u32) -> u32;

    /// Clusters of so many blocks that the GPU runs at a time.
    fn clusters(&self, kernel: &'static str, threads: u32, shared_bytes: u32, blocks: u32) -> u32;
}

/// Tokens that a launch of a linear operation covers at most, unless they are in tiles.
pub const MAX_TOKENS: u32 = 8;
/// Tokens of which the likeliest next ones are found at once, if they are in tiles.
pub const MAX_TILED_CHOICES: u32 = 128;
/// Tiled buffers have room for a multiple of this.
pub const TILE_TOKENS: usize = 128;

const LINEAR: [[[&str; 4]; 4]; 4] = {
    macro_rules! variants {
        ($epilogue:literal) => {
            [
                variants!($epilogue, "1"),
                variants!($epilogue, "2"),
                variants!($epilogue, "4"),
                variants!($epilogue, "8"),
            ]
        };
        ($epilogue:literal, $tokens:literal) => {
            [
                concat!("fused_linear_", $epilogue, "_m", $tokens, "_ring16"),
                concat!("fused_linear_", $epilogue, "_m", $tokens, "_odd16"),
                concat!("fused_linear_", $epilogue, "_m", $tokens, "_ring8"),
                concat!("fused_linear_", $epilogue, "_m", $tokens, "_wide16"),
            ]
        };
    }
    [
        variants!("store"),
        variants!("residual"),
        variants!("gated"),
        variants!("largest"),
    ]
};

/// Head sizes that attention is built for, and whether more than eight query heads may share a key
/// head.
const HEAD_DIMS: [(u32, bool); 5] = [
    (64, true),
    (80, false),
    (96, false),
    (128, true),
    (256, false),
];

/// Whether attention has a kernel for these heads.
pub fn has_attention(head_dim: usize, queries_per_key: usize) -> bool {
    HEAD_DIMS.iter().any(|(dim, wide)| {
        *dim as usize == head_dim && queries_per_key <= if *wide { 16 } else { 8 }
    })
}

/// The launch of an operation.
pub fn shape(op: &FusedOp, step: &Step, occupancy: &dyn Occupancy) -> LaunchShape {
    match op {
        FusedOp::Embed(embed) => {
            let ropes = embed.angles.iter().filter(|set| set.pairs > 0).count();
            LaunchShape {
                grid: [step.count, 1 + ropes as u32, 1],
                ..LaunchShape::new("fused_embed", step.count, 256)
            }
        }
        FusedOp::Linear(epilogue, linear) if step.count > MAX_TOKENS => {
            tiled_shape(*epilogue, linear, step, occupancy)
        }
        FusedOp::Linear(epilogue, linear) => linear_shape(*epilogue, linear, step, occupancy),
        FusedOp::Attention(attention) => attention_shape(attention, step),
        FusedOp::QkvFinish(finish) => LaunchShape {
            grid: [
                step.count.div_ceil(32),
                finish.heads + 2 * finish.kv.heads,
                1,
            ],
            ..LaunchShape::new(head_kernel(QKV_FINISH, finish.kv.head_dim), 1, 256)
        },
        FusedOp::PromptAttention(attention) => prompt_shape(attention, step),
        FusedOp::Pack(pack) => {
            let rows = if pack.up.is_none() {
                pack.rows.next_multiple_of(16)
            } else {
                pack.rows * 2
            };
            let pairs = u64::from(rows) * u64::from(pack.cols / 2);
            let blocks = pairs.div_ceil(256).min(4096) as u32;
            LaunchShape::new("pack_fragments", blocks, 256)
        }
        FusedOp::Advance(_) => LaunchShape::new("advance", 1, 256),
    }
}

fn linear_shape(
    epilogue: Epilogue,
    linear: &FusedLinear,
    step: &Step,
    occupancy: &dyn Occupancy,
) -> LaunchShape {
    let bucket = match step.count {
        0..=1 => 0,
        2 => 1,
        3..=4 => 2,
        _ => 3,
    };
    let variants = &LINEAR[epilogue as usize][bucket];
    let [ring16, odd16, ring8, wide16] = *variants;
    let (tiles, blocks) = (linear.rows.div_ceil(16), linear.cols / 32);
    let threads = 32 * linear.parts;
    let shared_bytes = if bucket == 0 { linear.cols * 2 } else { 0 };
    let multiprocessors = occupancy.multiprocessors();
    let shape = |kernel: &'static str| {
        let places = occupancy.blocks(kernel, threads, shared_bytes) * multiprocessors;
        LaunchShape {
            shared_bytes,
            ..LaunchShape::new(kernel, tiles.min(places), threads)
        }
    };
    if linear.parts > 8 {
        return shape(wide16);
    }
    if !blocks.is_multiple_of(8 * linear.parts) {
        return shape(odd16);
    }
    let rounds = |kernel| {
        let places = occupancy.blocks(kernel, threads, shared_bytes) * multiprocessors;
        if places == 0 {
            u32::MAX
        } else {
            tiles.div_ceil(places)
        }
    };
    // One round of smaller rings instead of two, of which the second is half empty.
    let few = rounds(ring16) <= 3 && epilogue == Epilogue::Store;
    if few && rounds(ring8) < rounds(ring16) {
        return shape(ring8);
    }
    shape(ring16)
}

macro_rules! tiled_kernels {
    ($kind:literal, $size:literal) => {
        [
            concat!("gemm_", $kind, "_store_", $size),
            concat!("gemm_", $kind, "_residual_", $size),
            concat!("gemm_", $kind, "_gated_", $size),
            concat!("gemm_", $kind, "_largest_", $size),
        ]
    };
}

/// By tokens and epilogue.
const BATCH: [(u32, [&str; 4]); 4] = [
    (16, tiled_kernels!("batch", "n16")),
    (32, tiled_kernels!("batch", "n32")),
    (64, tiled_kernels!("batch", "n64")),
    (128, tiled_kernels!("batch", "n128")),
];
/// By blocks of a cluster and epilogue. None finds the largest.
const PROMPT: [[&str; 4]; 3] = [
    tiled_kernels!("prompt", "c1"),
    tiled_kernels!("prompt", "c2"),
    tiled_kernels!("prompt", "c4"),
];
const QKV_FINISH: [&str; 5] = [
    "fused_qkv_finish_d64",
    "fused_qkv_finish_d80",
    "fused_qkv_finish_d96",
    "fused_qkv_finish_d128",
    "fused_qkv_finish_d256",
];
const PROMPT_ATTENTION: [&str; 5] = [
    "fused_prompt_attention_d64",
    "fused_prompt_attention_d80",
    "fused_prompt_attention_d96",
    "fused_prompt_attention_d128",
    "fused_prompt_attention_d256",
];

/// The kernel for heads of this size.
fn head_kernel(kernels: [&'static str; 5], head_dim: u32) -> &'static str {
    let known = HEAD_DIMS.iter().position(|(dim, _)| *dim == head_dim);
    kernels[known.unwrap_or(0)]
}

/// More than eight tokens. The numbers are those of `kernels/gemm.cuh`.
fn tiled_shape(
    epilogue: Epilogue,
    linear: &FusedLinear,
    step: &Step,
    occupancy: &dyn Occupancy,
) -> LaunchShape {
    const CLUSTER: u32 = 4;
    let tokens = step.count;
    let batch = BATCH.iter().find(|(most, _)| tokens <= *most);
    let per = linear.parts.div_ceil(CLUSTER);
    let most_groups = |size: u32| if size <= 64 { 4 } else { 2 };
    // Sixteen parts of more tokens do not fit its ring.
    let fits = |size: u32| per <= if size <= 32 { 4 } else { 2 };
    if let Some((size, kernels)) = batch.filter(|(size, _)| fits(*size)) {
        let kernel = kernels[epilogue as usize];
        let tiles = linear.rows.div_ceil(64);
        let shared = |groups: u32| batch_shared_bytes(*size, groups);
        let most = most_groups(*size);
        let clusters = occupancy.clusters(kernel, 128 * most, shared(most), CLUSTER);
        let clusters = clusters.max(1);
        let groups = (most / per).min(tiles.div_ceil(clusters)) * per;
        let needed = tiles.div_ceil(groups / per);
        return LaunchShape {
            shared_bytes: shared(groups),
            cluster: Some([CLUSTER, 1, 1]),
            ..LaunchShape::new(kernel, clusters.min(needed) * CLUSTER, 128 * groups)
        };
    }
    const THREADS: u32 = 384;
    const SHARED: u32 = 1024 + 8 * 128 * 128 + 8 * 5 * 2048;
    let panels = linear.rows.div_ceil(128);
    let shapes = [1, 2, 4].map(|cluster: u32| {
        let kernel = PROMPT[cluster.ilog2() as usize][epilogue as usize];
        let items = panels.div_ceil(cluster) * tokens.div_ceil(128);
        let running = occupancy.clusters(kernel, THREADS, SHARED, cluster);
        let clusters = items.min(running.max(1));
        let shape = LaunchShape {
            shared_bytes: SHARED,
            cluster: Some([cluster, 1, 1]),
            ..LaunchShape::new(kernel, clusters * cluster, THREADS)
        };
        (items.div_ceil(clusters), shape)
    });
    // Small clusters read the tokens' vectors more often: 15 and 2 percent of a round, measured.
    let costs = [115, 102, 100];
    let best = shapes.iter().zip(costs).rev();
    let best = best.min_by_key(|((rounds, _), cost)| rounds * cost);
    best.map_or(shapes[2].1, |((_, shape), _)| *shape)
}

fn batch_shared_bytes(tokens: u32, groups: u32) -> u32 {
    let stages = if tokens <= 32 { 16 } else { 6 };
    let ring = if tokens <= 16 { 5 } else { 3 };
    let stride = tokens / 4 + 2;
    1024 + stages * tokens * 128 + groups * 4 * ring * 2048 + groups * 4 * 64 * stride * 4
}

fn prompt_shape(attention: &FusedPromptAttention, step: &Step) -> LaunchShape {
    const PAGE: u32 = crate::ops::PAGE as u32;
    let (kv, head_dim) = (&attention.kv, attention.kv.head_dim);
    let queries = attention.heads / kv.heads.max(1);
    // A row may end with a part of a tile.
    let tiles = step.count.div_ceil((128 / queries.max(1)).max(1)) + attention.row_count;
    let stages = if head_dim > 128 { 2 } else { 3 };
    let page = PAGE * (head_dim + 8) + head_dim * (PAGE + 8);
    LaunchShape {
        grid: [tiles, kv.heads, 1],
        shared_bytes: 2 * (stages * page + 128 * (head_dim + 8)),
        ..LaunchShape::new(head_kernel(PROMPT_ATTENTION, head_dim), 1, 256)
    }
}

/// How attention is divided: its results are the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Two groups of warps in each of eight blocks.
    Long,
    /// One group in each of eight blocks.
    Short,
    /// A block for each row and key head.
    Many,
}

/// Key heads over all rows from which a block for each fills the GPU.
const MANY_HEADS: u32 = 256;
/// From so many on, fewer warps wait for each other.
const SHORT_HEADS: u32 = 32;

macro_rules! attention_kernels {
    ($dim:literal, $queries:literal) => {
        [
            concat!("fused_attention_d", $dim, "_q", $queries, "_g2_c8"),
            concat!("fused_attention_d", $dim, "_q", $queries, "_g1_c8"),
            concat!("fused_attention_d", $dim, "_q", $queries, "_g2_c1"),
        ]
    };
}

fn attention_shape(attention: &FusedAttention, step: &Step) -> LaunchShape {
    /// Into which a row's pages are cut.
    const SPLITS: u32 = 16;
    let kv = &attention.kv;
    let queries = attention.heads / kv.heads.max(1);
    let heads = kv.heads * step.count;
    let form = if heads >= MANY_HEADS {
        Form::Many
    } else if heads >= SHORT_HEADS {
        Form::Short
    } else {
        Form::Long
    };
    let kernels = match (kv.head_dim, queries > 8) {
        (64, false) => attention_kernels!("64", "8"),
        (64, true) => attention_kernels!("64", "16"),
        (80, _) => attention_kernels!("80", "8"),
        (96, _) => attention_kernels!("96", "8"),
        (256, _) => attention_kernels!("256", "8"),
        (_, false) => attention_kernels!("128", "8"),
        (_, true) => attention_kernels!("128", "16"),
    };
    let groups = if form == Form::Short { 1 } else { 2 };
    let cluster = if form == Form::Many { 1 } else { 8 };
    let shared = SPLITS * (queries * kv.head_dim).div_ceil(cluster);
    LaunchShape {
        grid: [cluster, kv.heads, step.count],
        shared_bytes: 4 * shared,
        cluster: (cluster > 1).then_some([cluster, 1, 1]),
        ..LaunchShape::new(kernels[form as usize], 1, 128 * groups)
    }
}

/// Every kernel of `gemm.cu`.
pub fn gemm_kernels() -> Vec<&'static str> {
    let batch = BATCH.iter().flat_map(|(_, kernels)| *kernels);
    let prompt = PROMPT
        .iter()
        .flat_map(|[store, residual, gated, _]| [*store, *residual, *gated]);
    batch.chain(prompt).collect()
}

/// Every kernel of `prompt.cu`.
pub fn prompt_kernels() -> Vec<&'static str> {
    QKV_FINISH.into_iter().chain(PROMPT_ATTENTION).collect()
}

/// Every kernel of `fast.cu`.
pub fn kernels() -> Vec<&'static str> {
    let mut kernels = vec!["fused_embed", "pack_fragments"];
    for (epilogue, buckets) in LINEAR.iter().enumerate() {
        for variants in buckets {
            let [ring16, odd16, ring8, wide16] = *variants;
            kernels.extend([ring16, odd16]);
            if epilogue == Epilogue::Store as usize {
                kernels.push(ring8);
            }
            if epilogue <= Epilogue::Residual as usize {
                kernels.push(wide16);
            }
        }
    }
    kernels.extend(attention_kernels!("64", "8"));
    kernels.extend(attention_kernels!("64", "16"));
    kernels.extend(attention_kernels!("80", "8"));
    kernels.extend(attention_kernels!("96", "8"));
    kernels.extend(attention_kernels!("128", "8"));
    kernels.extend(attention_kernels!("128", "16"));
    kernels.extend(attention_kernels!("256", "8"));
    kernels
}
