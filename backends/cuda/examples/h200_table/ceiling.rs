//! How fast the GPU's memory can be read.

use loquat_cuda::driver::{Context, LaunchConfig};
use loquat_cuda::kernels::Kernels;
use loquat_synthetic::SplitMix64;

use crate::Failure;

/// Read by one launch: many times the largest cache.
const BYTES: u64 = 4 << 30;
/// Drawn once and copied: memory is not read faster because it repeats.
const DRAWN: u64 = 64 << 20;
const LAUNCHES: usize = 15;
const THREADS: u32 = 512;
/// Blocks per multiprocessor; the best counts.
const BLOCKS: [u32; 2] = [2, 4];

/// The best of some launch shapes, each the median of its launches.
pub fn bytes_per_second(context: &Context) -> Result<f64, Failure> {
    let kernels = Kernels::load(context)?;
    let kernel = kernels.get("measure_read")?;
    let words = context.allocate(BYTES)?;
    let sum = context.allocate(4)?;
    let mut random = SplitMix64::new(1);
    let drawn = (0..DRAWN / 8).flat_map(|_| random.next_u64().to_ne_bytes());
    let drawn: Vec<u8> = drawn.collect();
    context.write(words, &drawn)?;
    for part in 1..BYTES / DRAWN {
        context.copy(words, words + part * DRAWN, DRAWN)?;
    }
    context.fill_zero(sum, 4)?;
    let numbers = [words, BYTES / 16, sum];
    let parameters: Vec<u8> = numbers.into_iter().flat_map(u64::to_ne_bytes).collect();
    let mut best = 0.0_f64;
    for blocks in BLOCKS {
        let config = LaunchConfig {
            grid: [blocks * context.device().sm_count, 1, 1],
            block: [THREADS, 1, 1],
            shared_bytes: 0,
            dependent: false,
            cluster: None,
        };
        let mut times = Vec::new();
        for _ in 0..LAUNCHES {
            let (before, after) = (context.event()?, context.event()?);
            before.record()?;
            // SAFETY: the kernel reads `BYTES` bytes and writes one word, which are allocated.
            unsafe { context.launch(kernel, &config, &[&parameters]) }?;
            after.record()?;
            times.push(f64::from(after.elapsed_ms(&before)?) / 1e3);
        }
        times.sort_by(f64::total_cmp);
        best = best.max(BYTES as f64 / times[LAUNCHES / 2]);
    }
    context.free(words)?;
    context.free(sum)?;
    Ok(best)
}
