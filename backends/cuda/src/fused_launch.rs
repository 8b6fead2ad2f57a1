//! Which kernel of the fast path computes an operation, and over what grid.
//!
//! The grids are one wave of blocks, so they depend on the GPU; results do not.

use crate::architectures::{ComputeCapability, file_targets};
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

/// Whether the kernels are for a GPU of this compute capability, compiled or not.
pub fn is_written_for(gpu: ComputeCapability) -> bool {
    let targets = file_targets(include_str!("../kernels/fast.cu"));
    targets.is_ok_and(|targets| {
        let mut targets = targets.into_iter().flatten();
        targets.any(|target| target.runs_on(gpu))
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
        FusedOp::Attention(attention) => attention_shape(attention, step, occupancy),
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
    ($size:literal) => {
        [
            concat!("gemm_store_", $size),
            concat!("gemm_residual_", $size),
            concat!("gemm_gated_", $size),
            concat!("gemm_largest_", $size),
        ]
    };
}

/// A form of the product of more than eight tokens; see `kernels/gemm.cuh`.
struct TiledForm {
    /// Tokens of a block.
    tokens: u32,
    /// Blocks that cut the columns.
    column_cuts: u32,
    /// Blocks that share weights.
    token_blocks: u32,
    /// Warpgroups that multiply, with 64 rows each: as many as give enough blocks.
    groups: &'static [u32],
    /// By epilogue.
    kernels: [&'static str; 4],
}

const fn tiled(
    tokens: u32,
    column_cuts: u32,
    token_blocks: u32,
    kernels: [&'static str; 4],
) -> TiledForm {
    TiledForm {
        tokens,
        column_cuts,
        token_blocks,
        groups: if tokens > 64 { &[1, 2] } else { &[1, 2, 3, 4] },
        kernels,
    }
}

const TILED_FORMS: [TiledForm; 8] = [
    tiled(16, 1, 1, tiled_kernels!("n16")),
    tiled(16, 2, 1, tiled_kernels!("n16_k2")),
    tiled(32, 1, 1, tiled_kernels!("n32")),
    tiled(32, 2, 1, tiled_kernels!("n32_k2")),
    tiled(64, 1, 1, tiled_kernels!("n64")),
    tiled(64, 2, 1, tiled_kernels!("n64_k2")),
    tiled(128, 1, 1, tiled_kernels!("n128")),
    // It does not find the largest.
    tiled(128, 1, 2, tiled_kernels!("n128_t2")),
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

/// More than eight tokens: the form that is estimated to take the least time.
fn tiled_shape(
    epilogue: Epilogue,
    linear: &FusedLinear,
    step: &Step,
    occupancy: &dyn Occupancy,
) -> LaunchShape {
    let most = TILED_FORMS.map(|form| form.tokens);
    let most = most.into_iter().find(|most| step.count <= *most);
    let forms = TILED_FORMS.iter().filter(|form| {
        let shares = form.token_blocks > 1;
        form.tokens == most.unwrap_or(128)
            && (!shares || step.count > form.tokens && epilogue != Epilogue::Largest)
    });
    let choices = forms.flat_map(|form| form.groups.iter().map(move |groups| (form, *groups)));
    let estimates = choices.filter_map(|(form, groups)| {
        tiled_estimate(form, groups, epilogue, linear, step, occupancy)
    });
    let best = estimates.min_by(|(one, _), (other, _)| one.total_cmp(other));
    // There always is one: forms that do not cut columns have room.
    best.map_or(LaunchShape::new("gemm_store_n16", 0, 0), |(_, shape)| shape)
}

/// Microseconds that a form takes, and its launch; none where it has no room for two stages. The
/// constants are fitted to times of eleven forms on an H200: they choose the form, results do not
/// depend on them.
fn tiled_estimate(
    form: &TiledForm,
    groups: u32,
    epilogue: Epilogue,
    linear: &FusedLinear,
    step: &Step,
    occupancy: &dyn Occupancy,
) -> Option<(f64, LaunchShape)> {
    /// Bytes in a microsecond: of all weights from memory, of what all blocks read from the cache,
    /// and of what one multiprocessor reads.
    const MEMORY: f64 = 4.1e6;
    const CACHE: f64 = 7e6;
    const MULTIPROCESSOR: f64 = 75e3;
    /// Of a launch, and of the exchange of sums in a cluster.
    const LAUNCH: f64 = 3.0;
    const EXCHANGE: f64 = 3.0;
    /// Of a stage, whatever its size; of 128 tokens, by one warpgroup alone and by two.
    const STAGE: f64 = 0.2;
    const MULTIPLY: [f64; 2] = [0.28, 0.4];

    let TiledForm {
        tokens,
        column_cuts,
        token_blocks,
        ..
    } = *form;
    let stage_bytes = groups * 8192 + tokens * 128;
    let shared_bytes = tiled_shared_bytes(form, groups, linear.parts)?;
    let kernel = form.kernels[epilogue as usize];
    let (threads, cluster) = (128 + 128 * groups, column_cuts * token_blocks);
    let panels = linear.rows.div_ceil(64 * groups);
    let items = panels * step.count.div_ceil(tokens * token_blocks);
    let running = if cluster > 1 {
        occupancy.clusters(kernel, threads, shared_bytes, cluster)
    } else {
        occupancy.blocks(kernel, threads, shared_bytes) * occupancy.multiprocessors()
    };
    let clusters = items.min(running.max(1));
    let rounds = items.div_ceil(clusters);
    let places = occupancy.multiprocessors().max(1);
    let rounds_per_place = rounds * (clusters * cluster).div_ceil(places);

    let stages = linear.cols.div_ceil(64 * column_cuts);
    let item_bytes = f64::from(stages * stage_bytes);
    let fetch = f64::from(stages) * (f64::from(stage_bytes) / MULTIPROCESSOR).max(STAGE);
    let weight_bytes = f64::from(linear.rows) * f64::from(linear.cols) * 2.0;
    let multiply = if tokens > 64 {
        MULTIPLY[groups as usize - 1] * f64::from(stages)
    } else {
        0.0
    };
    let busy = [
        weight_bytes / MEMORY,
        f64::from(items * cluster) * item_bytes / CACHE,
        f64::from(rounds_per_place) * fetch,
        f64::from(rounds) * multiply,
    ];
    let exchange = if column_cuts > 1 { EXCHANGE } else { 0.0 };
    let time = busy.into_iter().fold(0.0, f64::max) + LAUNCH + f64::from(rounds) * exchange;
    let shape = LaunchShape {
        shared_bytes,
        cluster: (cluster > 1).then_some([cluster, 1, 1]),
        ..LaunchShape::new(kernel, clusters * cluster, threads)
    };
    Some((time, shape))
}

/// As `gemm_smem` of `kernels/gemm.cuh`; none with room for fewer than two stages.
fn tiled_shared_bytes(form: &TiledForm, groups: u32, parts: u32) -> Option<u32> {
    const MOST: u32 = 212 * 1024;
    let kept = if form.column_cuts > 1 {
        parts / form.column_cuts * groups * form.tokens * 256
    } else {
        0
    };
    let stage = groups * 8192 + form.tokens * 128;
    let stages = (MOST.checked_sub(kept)? / stage).min(10);
    (stages >= 2).then_some(1024 + kept + stages * stage)
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

/// How attention for a row and key head is divided: its results are the same.
struct AttentionForm {
    /// Of four warps, in each block.
    groups: u32,
    /// Blocks.
    cluster: u32,
}

const fn attention_form(groups: u32, cluster: u32) -> AttentionForm {
    AttentionForm { groups, cluster }
}

/// In the order of `attention_kernels`.
const ATTENTION_FORMS: [AttentionForm; 5] = [
    attention_form(2, 8),
    attention_form(2, 4),
    attention_form(2, 2),
    attention_form(2, 1),
    // Four such blocks run at a time on a multiprocessor, instead of two.
    attention_form(1, 1),
];

/// The largest blocks of which there are about as many as multiprocessors.
fn choose_attention_form(heads: u32, occupancy: &dyn Occupancy) -> usize {
    const TWO_BLOCKS: u32 = 2;
    if heads > TWO_BLOCKS * occupancy.multiprocessors().max(128) {
        return 4;
    }
    match heads {
        0..32 => 0,
        32..64 => 1,
        64..128 => 2,
        _ => 3,
    }
}

macro_rules! attention_kernels {
    ($dim:literal, $queries:literal) => {
        [
            concat!("fused_attention_d", $dim, "_q", $queries, "_g2_c8"),
            concat!("fused_attention_d", $dim, "_q", $queries, "_g2_c4"),
            concat!("fused_attention_d", $dim, "_q", $queries, "_g2_c2"),
            concat!("fused_attention_d", $dim, "_q", $queries, "_g2_c1"),
            concat!("fused_attention_d", $dim, "_q", $queries, "_g1_c1"),
        ]
    };
}

fn attention_shape(
    attention: &FusedAttention,
    step: &Step,
    occupancy: &dyn Occupancy,
) -> LaunchShape {
    /// Into which a row's pages are cut.
    const SPLITS: u32 = 16;
    let kv = &attention.kv;
    let queries = attention.heads / kv.heads.max(1);
    let form = choose_attention_form(kv.heads * step.count, occupancy);
    let kernels = match (kv.head_dim, queries > 8) {
        (64, false) => attention_kernels!("64", "8"),
        (64, true) => attention_kernels!("64", "16"),
        (80, _) => attention_kernels!("80", "8"),
        (96, _) => attention_kernels!("96", "8"),
        (256, _) => attention_kernels!("256", "8"),
        (_, false) => attention_kernels!("128", "8"),
        (_, true) => attention_kernels!("128", "16"),
    };
    let AttentionForm { groups, cluster } = ATTENTION_FORMS[form];
    let shared = SPLITS * (queries * kv.head_dim).div_ceil(cluster);
    LaunchShape {
        grid: [cluster, kv.heads, step.count],
        shared_bytes: 4 * shared,
        cluster: (cluster > 1).then_some([cluster, 1, 1]),
        ..LaunchShape::new(kernels[form], 1, 128 * groups)
    }
}

/// Every kernel of `gemm.cu`.
pub fn gemm_kernels() -> Vec<&'static str> {
    let kernels = TILED_FORMS.iter().flat_map(|form| {
        let all = if form.token_blocks > 1 { 3 } else { 4 };
        form.kernels.into_iter().take(all)
    });
    kernels.collect()
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
