//! Times the matrix products of the fast path one by one on an NVIDIA GPU, as one table.
//!
//! `cargo run --release -p loquat-cuda --features cuda --example kernel_times -- [TOKENS,…]`
//!
//! The shapes are those of a layer of Llama-3.1-8B and its head. A product is launched many times from
//! one graph, over several copies of its weights, so that none are in the cache; the time is the
//! median of five graphs, and includes the step from one kernel to the next.

use std::error::Error;
use std::time::Instant;

use loquat_cuda::Gpu;
use loquat_cuda::device::Device;
use loquat_cuda::fused::{Epilogue, FusedLinear, FusedOp, SILU, TILED, TRIGGER, parts};
use loquat_cuda::fused_launch::{MAX_TILED_CHOICES, MAX_TOKENS, TILE_TOKENS};
use loquat_cuda::ops::{Address, Op, Step};
use loquat_synthetic::SplitMix64;

/// Launches of a graph.
const LAUNCHES: usize = 24;
const GRAPHS: usize = 5;
/// All weights; several times the largest cache.
const WEIGHT_BYTES: u64 = 2 << 30;
/// Drawn once and copied.
const DRAWN: usize = 64 << 20;
const EPS: f32 = 1e-5;

struct Shape {
    name: &'static str,
    rows: u32,
    cols: u32,
    epilogue: Epilogue,
}

const SHAPES: [Shape; 5] = [
    Shape {
        name: "qkv",
        rows: 6144,
        cols: 4096,
        epilogue: Epilogue::Store,
    },
    Shape {
        name: "output",
        rows: 4096,
        cols: 4096,
        epilogue: Epilogue::Residual,
    },
    Shape {
        name: "gate and up",
        rows: 28672,
        cols: 4096,
        epilogue: Epilogue::Gated,
    },
    Shape {
        name: "down",
        rows: 4096,
        cols: 14336,
        epilogue: Epilogue::Residual,
    },
    Shape {
        name: "head",
        rows: 128_256,
        cols: 4096,
        epilogue: Epilogue::Largest,
    },
];

/// What all products read and write.
struct Buffers {
    weights: Address,
    x: Address,
    sums: Address,
    gain: Address,
    out: Address,
    next: Address,
    next_sums: Address,
    candidates: Address,
    arrivals: Address,
    tokens: Address,
}

fn main() -> Result<(), Box<dyn Error>> {
    let counts = match std::env::args().nth(1) {
        Some(list) => list.split(',').map(str::parse).collect::<Result<_, _>>()?,
        None => vec![1, 8, 16, 32, 64, 128, 512],
    };
    let mut gpu = Gpu::open(0)?;
    println!("{}", gpu.context().device().name);
    let most = counts.iter().copied().max().unwrap_or(1) as usize;
    let buffers = Buffers::new(&mut gpu, most.next_multiple_of(TILE_TOKENS))?;
    let groups = (most.next_multiple_of(TILE_TOKENS) / 8) as u32;
    println!("| product | tokens | µs | weights, TB/s | TFLOP/s |\n|---|---|---|---|---|");
    for count in counts {
        for shape in &SHAPES {
            if shape.epilogue == Epilogue::Largest && count > MAX_TILED_CHOICES {
                continue;
            }
            let micros = time(&mut gpu, &buffers, shape, count, groups)?;
            let weights = f64::from(shape.rows) * f64::from(shape.cols);
            println!(
                "| {} | {count} | {micros:.1} | {:.2} | {:.0} |",
                shape.name,
                2.0 * weights / micros / 1e6,
                2.0 * weights * f64::from(count) / micros / 1e6,
            );
        }
    }
    Ok(())
}

impl Buffers {
    fn new(gpu: &mut Gpu, tokens: usize) -> Result<Self, Box<dyn Error>> {
        let largest = |of: fn(&Shape) -> u32| SHAPES.iter().map(of).max().unwrap_or(0) as usize;
        let (rows, cols) = (largest(|shape| shape.rows), largest(|shape| shape.cols));
        let mut random = SplitMix64::new(1);
        // Of both signs, and small: about 2^-7 to 2^-6.
        let mut bf16 = move || (random.next_u64() as u16 & 0x80ff) | 0x3c00;
        let drawn: Vec<u16> = (0..DRAWN / 2).map(|_| bf16()).collect();
        let drawn: &[u8] = bytemuck::cast_slice(&drawn);
        let weights = gpu.allocate(WEIGHT_BYTES as usize)?;
        gpu.write(weights, drawn)?;
        for part in 1..WEIGHT_BYTES / DRAWN as u64 {
            gpu.copy(weights, weights.offset(part * DRAWN as u64), DRAWN)?;
        }
        let x = gpu.allocate(tokens * cols * 2)?;
        gpu.write(x, &drawn[..tokens * cols * 2])?;
        let mut filled = |count: usize, value: f32| -> Result<Address, Box<dyn Error>> {
            let at = gpu.allocate(count * 4)?;
            gpu.write(at, bytemuck::cast_slice(&vec![value; count]))?;
            Ok(at)
        };
        Ok(Self {
            weights,
            x,
            sums: filled(tokens * 256, 1.0)?,
            gain: filled(rows, 1.0)?,
            out: filled(tokens * 6144, 0.0)?,
            next: filled(tokens * cols, 0.0)?,
            next_sums: filled(tokens * 256, 0.0)?,
            candidates: filled(2 * 8 * 4096, 0.0)?,
            arrivals: filled(1, 0.0)?,
            tokens: filled(tokens, 0.0)?,
        })
    }

    fn linear(&self, shape: &Shape, weights: Address, flags: u32, groups: u32) -> FusedLinear {
        FusedLinear {
            weights,
            x: self.x,
            sums: if shape.epilogue == Epilogue::Residual {
                Address::NONE
            } else {
                self.sums
            },
            bias: Address::NONE,
            out: self.out,
            next: self.next,
            gain: self.gain,
            next_sums: self.next_sums,
            candidates: self.candidates,
            arrivals: self.arrivals,
            tokens: self.tokens,
            index: Address::NONE,
            rows: shape.rows,
            cols: shape.cols,
            parts: parts(shape.rows, shape.cols),
            sum_count: 256,
            eps: EPS,
            factor: 1.0,
            activation: SILU,
            flags,
            groups,
            reserved: 0,
        }
    }
}

/// Microseconds of one launch.
fn time(
    gpu: &mut Gpu,
    buffers: &Buffers,
    shape: &Shape,
    count: u32,
    groups: u32,
) -> Result<f64, Box<dyn Error>> {
    let bytes = 2 * u64::from(shape.rows) * u64::from(shape.cols);
    let copies = WEIGHT_BYTES / bytes;
    let flags = TRIGGER | if count > MAX_TOKENS { TILED } else { 0 };
    let step = Step {
        count,
        rows: count,
        ..Step::default()
    };
    let launches = (0..LAUNCHES as u64).map(|index| {
        let weights = buffers.weights.offset(index % copies * bytes);
        let linear = buffers.linear(shape, weights, flags, groups);
        (Op::from(FusedOp::Linear(shape.epilogue, linear)), step)
    });
    let record = gpu.record(launches.collect())?;
    let mut times = Vec::new();
    for _ in 0..=GRAPHS {
        let started = Instant::now();
        gpu.replay(record)?;
        gpu.read(buffers.arrivals, &mut [0; 4])?;
        times.push(started.elapsed().as_secs_f64() * 1e6 / LAUNCHES as f64);
    }
    gpu.forget(record);
    // The first one loads the kernel.
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(times[GRAPHS / 2])
}
