//! Measures the machine's limits: memory bandwidth and int8 multiply-adds. A model's speed is
//! reported as a share of these.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use loquat_cpu_kernels::Kernels;
use loquat_session::{OpenError, SessionOptions};

use crate::{instruction_set, machine};

/// The machine's limits with this many threads.
#[derive(Debug, Clone, Copy)]
pub struct MachineLimits {
    pub threads: usize,
    /// Bytes of memory, not cache, that all threads together read in a second.
    pub read_bytes_per_second: f64,
    /// Products of two int8 values, added up in int32, that all threads compute in a second.
    pub multiply_adds_per_second: f64,
    /// The instruction set.
    pub instructions: &'static str,
}

/// How thorough a measurement is.
struct Effort {
    /// Far beyond any last-level cache.
    read_bytes: usize,
    /// Other work on the machine only makes a pass slower, so the best pass counts.
    passes: usize,
    /// Long enough for the clock to settle at what the instructions allow.
    arithmetic_pass: Duration,
}

impl Effort {
    /// For benchmarks.
    const THOROUGH: Self = Self {
        read_bytes: 1 << 30,
        passes: 12,
        arithmetic_pass: Duration::from_millis(40),
    };
    /// For a rough estimate.
    const QUICK: Self = Self {
        read_bytes: 512 << 20,
        passes: 4,
        arithmetic_pass: Duration::from_millis(20),
    };
}

/// The share of memory that is read is one divided by this.
const READ_SHARE: u64 = 8;
/// A smaller size would measure caches.
const MIN_READ_BYTES: usize = 64 << 20;

/// Measures with this many threads, or one per core. Takes about a second.
pub fn measure(threads: Option<usize>) -> Result<MachineLimits, OpenError> {
    measure_with(&Effort::THOROUGH, threads)
}

/// Takes a few tenths of a second, and is less precise.
pub fn measure_quickly(threads: Option<usize>) -> Result<MachineLimits, OpenError> {
    measure_with(&Effort::QUICK, threads)
}

fn measure_with(effort: &Effort, threads: Option<usize>) -> Result<MachineLimits, OpenError> {
    let threads = machine::resolve_threads(&SessionOptions {
        threads,
        ..SessionOptions::default()
    })?;
    let unit = Unit::widest(&instruction_set::allowed()?);
    Ok(MachineLimits {
        threads,
        read_bytes_per_second: read_speed(effort, threads),
        multiply_adds_per_second: arithmetic_speed(effort, threads, unit),
        instructions: unit.name,
    })
}

/// One instruction set's multiply-add.
#[derive(Clone, Copy)]
struct Unit {
    name: &'static str,
    /// The kernels that use it, by their name.
    kernels: &'static str,
    /// Computes [`Unit::multiply_adds`] this many times, from registers alone.
    multiply: unsafe fn(u64) -> i32,
    multiply_adds: u64,
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Independent accumulators: latency times throughput of all current cores.
const CHAINS: usize = 12;

impl Unit {
    const PORTABLE: Self = Self {
        name: "portable",
        kernels: "portable",
        multiply: portable::multiply,
        multiply_adds: portable::MULTIPLY_ADDS,
    };

    /// The units of these kernels, widest first.
    fn supported(kernels: &[&Kernels]) -> Vec<Self> {
        let mut units = Vec::new();
        #[cfg(target_arch = "x86_64")]
        units.extend(x86::UNITS);
        units.push(Self::PORTABLE);
        units.retain(|unit| kernels.iter().any(|kernels| kernels.name == unit.kernels));
        units
    }

    fn widest(kernels: &[&Kernels]) -> Self {
        let units = Self::supported(kernels);
        units.first().copied().unwrap_or(Self::PORTABLE)
    }
}

/// The best of several passes of all threads, each over its own memory.
fn read_speed(effort: &Effort, threads: usize) -> f64 {
    let bytes = read_bytes(effort, machine::memory_bytes());
    let lines = bytes / threads / size_of::<Line>();
    let seconds = best_pass(threads, effort.passes, || {
        let memory = own_memory(lines);
        move || {
            black_box(sum(black_box(&memory)));
        }
    });
    (lines * threads * size_of::<Line>()) as f64 / seconds
}

/// Sums all memory, so that every byte is read. Plain loads are fast enough: they are far faster
/// than memory.
fn sum(memory: &[Line]) -> u64 {
    /// Independent sums.
    const CHAINS: usize = 8;
    let (blocks, rest) = memory.as_chunks::<CHAINS>();
    let mut sums = [Line([0; 8]); CHAINS];
    for block in blocks {
        for (sum, line) in sums.iter_mut().zip(block) {
            sum.add(line);
        }
    }
    rest.iter().for_each(|line| sums[0].add(line));
    let all = sums.iter().flat_map(|sum| sum.0);
    all.fold(0, u64::wrapping_add)
}

impl Line {
    #[inline(always)]
    fn add(&mut self, other: &Self) {
        for (sum, value) in self.0.iter_mut().zip(other.0) {
            *sum = sum.wrapping_add(value);
        }
    }
}

fn read_bytes(effort: &Effort, memory: Option<u64>) -> usize {
    let requested = effort.read_bytes;
    let spare = memory.map_or(requested as u64, |bytes| bytes / READ_SHARE);
    requested.min(spare as usize).max(MIN_READ_BYTES)
}

/// Written once, in huge pages if available: small pages would add the cost of TLB misses.
fn own_memory(lines: usize) -> Vec<Line> {
    let mut memory: Vec<Line> = Vec::with_capacity(lines);
    #[cfg(target_os = "linux")]
    request_huge_pages(&mut memory);
    memory.extend((0..lines as u64).map(|index| Line([index; 8])));
    memory
}

/// Best effort: the memory also works with small pages.
#[cfg(target_os = "linux")]
fn request_huge_pages(memory: &mut Vec<Line>) {
    const PAGE: usize = 4096;
    let spare = memory.spare_capacity_mut();
    let start = spare.as_ptr().addr();
    let skipped = start.next_multiple_of(PAGE) - start;
    let len = size_of_val(spare).saturating_sub(skipped) / PAGE * PAGE;
    // SAFETY: the range is whole pages inside our own allocation, and the advice changes no
    // contents.
    unsafe {
        let first = spare.as_mut_ptr().byte_add(skipped);
        libc::madvise(first.cast(), len, libc::MADV_HUGEPAGE);
    }
}

/// The best of several passes, each as long as [`Effort::arithmetic_pass`].
fn arithmetic_speed(effort: &Effort, threads: usize, unit: Unit) -> f64 {
    let run = |times: u64| {
        // SAFETY: the function is of a unit that this machine supports.
        black_box(unsafe { (unit.multiply)(black_box(times)) });
    };
    let times = times_within(effort.arithmetic_pass, run);
    let seconds = best_pass(threads, effort.passes, || move || run(times));
    (times * unit.multiply_adds * threads as u64) as f64 / seconds
}

/// How often `run` completes in this time, found by doubling.
fn times_within(span: Duration, run: impl Fn(u64)) -> u64 {
    let mut times = 1024;
    loop {
        let started = Instant::now();
        run(times);
        let taken = started.elapsed();
        if taken * 4 >= span || times >= 1 << 40 {
            let share = span.as_secs_f64() / taken.as_secs_f64().max(1e-9);
            return ((times as f64 * share) as u64).max(1);
        }
        times *= 4;
    }
}

/// Seconds of the fastest of `passes`. In each pass every thread runs what `prepare` returned, from
/// a common start to the last one's end.
fn best_pass<W: FnMut()>(threads: usize, passes: usize, prepare: impl Fn() -> W + Sync) -> f64 {
    let gate = Barrier::new(threads);
    let passes_of_one = || {
        let mut work = prepare();
        work();
        let timed = (0..passes).map(|_| {
            gate.wait();
            let started = Instant::now();
            work();
            (started, Instant::now())
        });
        timed.collect::<Vec<_>>()
    };
    let times: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(passes_of_one)).collect();
        let own = passes_of_one();
        let others = others.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        std::iter::once(own).chain(others).collect()
    });
    let seconds = (0..passes).filter_map(|pass| {
        let started = times.iter().map(|thread| thread[pass].0).min()?;
        let ended = times.iter().map(|thread| thread[pass].1).max()?;
        Some((ended - started).as_secs_f64())
    });
    seconds.fold(f64::INFINITY, f64::min)
}

mod portable {
    use super::CHAINS;

    const LANES: usize = 16;
    pub const MULTIPLY_ADDS: u64 = (CHAINS * LANES) as u64;

    pub fn multiply(times: u64) -> i32 {
        let mut sums = [[1i32; LANES]; CHAINS];
        let weights: [i8; LANES] = std::hint::black_box([3; LANES]);
        for _ in 0..times {
            for chain in &mut sums {
                for (sum, weight) in chain.iter_mut().zip(weights) {
                    *sum = sum.wrapping_add(i32::from(*sum as i8) * i32::from(weight));
                }
            }
        }
        sums.iter().flatten().fold(0, |sum, x| sum.wrapping_add(*x))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;

    use super::{CHAINS, Unit};

    pub const UNITS: [Unit; 3] = [
        Unit {
            name: "AVX-512 VNNI",
            kernels: "avx512-vnni",
            multiply: multiply_avx512_vnni,
            multiply_adds: 64 * CHAINS as u64,
        },
        Unit {
            name: "AVX-VNNI",
            kernels: "avx-vnni",
            multiply: multiply_avx_vnni,
            multiply_adds: 32 * CHAINS as u64,
        },
        Unit {
            name: "AVX2",
            kernels: "avx2",
            multiply: multiply_avx2,
            multiply_adds: 32 * CHAINS as u64,
        },
    ];

    /// Assembly, since the compiler would simplify chains whose sums are constant.
    macro_rules! chains {
        ($name:ident, $features:literal, $register:ident, $zero:ident, $ones:ident, $total:ident,
         $($step:literal),+) => {
            #[target_feature(enable = $features)]
            fn $name(times: u64) -> i32 {
                let (bytes, ones) = ($ones(0x0101), $ones(1));
                let mut sums = [$zero(); CHAINS];
                for _ in 0..times {
                    for sum in &mut sums {
                        // SAFETY: works on the registers it names alone, with instructions of
                        // the features that the function is for.
                        unsafe {
                            asm!(
                                $($step),+,
                                sum = inout($register) *sum,
                                bytes = in($register) bytes,
                                ones = in($register) ones,
                                pairs = out($register) _,
                                options(nomem, nostack, preserves_flags),
                            );
                        }
                    }
                }
                $total(sums)
            }
        };
    }

    chains!(
        multiply_avx512_vnni,
        "avx512f,avx512vnni",
        zmm_reg,
        _mm512_setzero_si512,
        _mm512_set1_epi16,
        total_512,
        "vpdpbusd {sum}, {bytes}, {bytes} /* {ones} {pairs} */"
    );
    chains!(
        multiply_avx_vnni,
        "avx2,avxvnni",
        ymm_reg,
        _mm256_setzero_si256,
        _mm256_set1_epi16,
        total_256,
        "{{vex}} vpdpbusd {sum}, {bytes}, {bytes} /* {ones} {pairs} */"
    );
    // Sums of sixteen bits, as kernels for small codes keep them; wider ones take a third
    // instruction.
    chains!(
        multiply_avx2,
        "avx2",
        ymm_reg,
        _mm256_setzero_si256,
        _mm256_set1_epi16,
        total_of_pairs,
        "vpmaddubsw {pairs}, {bytes}, {bytes} /* {ones} */",
        "vpaddw {sum}, {sum}, {pairs}"
    );

    #[target_feature(enable = "avx512f")]
    fn total_512(sums: [__m512i; CHAINS]) -> i32 {
        let sum = sums.into_iter().reduce(|a, b| _mm512_add_epi32(a, b));
        sum.map_or(0, |sum| _mm512_reduce_add_epi32(sum))
    }

    #[target_feature(enable = "avx2")]
    fn total_of_pairs(sums: [__m256i; CHAINS]) -> i32 {
        total_256(sums.map(|sums| _mm256_madd_epi16(sums, _mm256_set1_epi16(1))))
    }

    #[target_feature(enable = "avx2")]
    fn total_256(sums: [__m256i; CHAINS]) -> i32 {
        let mut lanes = [0i32; 8];
        for sum in sums {
            // SAFETY: the array is as long as the register.
            unsafe {
                let all = _mm256_add_epi32(_mm256_loadu_si256(lanes.as_ptr().cast()), sum);
                _mm256_storeu_si256(lanes.as_mut_ptr().cast(), all);
            }
        }
        lanes.iter().fold(0, |sum, lane| sum.wrapping_add(*lane))
    }
}

#[cfg(test)]
mod tests {
    use loquat_cpu_kernels::supported;

    use super::*;

    #[test]
    fn units_read_all_and_count_multiplications() {
        for lines in [0, 1, 7, 8, 9, 1000] {
            let expected = (0..lines as u64).sum::<u64>() * 8;
            assert_eq!(sum(&own_memory(lines)), expected, "{lines}");
        }
        let vector = |unit: &Unit| unit.name != Unit::PORTABLE.name;
        for unit in Unit::supported(&supported()).into_iter().filter(vector) {
            // Every product is of ones, so the sum counts them.
            // SAFETY: the unit is among those supported.
            let made = unsafe { (unit.multiply)(5) };
            assert_eq!(made as u64, 5 * unit.multiply_adds, "{}", unit.name);
        }
    }

    #[test]
    fn read_size_exceeds_caches_within_memory() {
        for (memory, expected) in [
            (None, 1 << 30),
            (Some(64 << 30), 1 << 30),
            (Some(4 << 30), 512 << 20),
            (Some(1 << 20), MIN_READ_BYTES),
        ] {
            let bytes = read_bytes(&Effort::THOROUGH, memory);
            assert_eq!(bytes, expected, "{memory:?}");
        }
    }

    #[test]
    fn pass_lasts_as_long_as_slowest_thread() {
        let index = std::sync::atomic::AtomicU64::new(0);
        let seconds = best_pass(3, 2, || {
            let wait = 5 * index.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            move || std::thread::sleep(Duration::from_millis(wait))
        });
        assert!(seconds >= 0.010, "{seconds}");
    }

    #[test]
    fn limits_are_measured_and_zero_threads_refused() {
        for measure in [measure, measure_quickly] {
            let limits = measure(Some(1)).unwrap();
            assert_eq!(limits.threads, 1);
            for speed in [
                limits.read_bytes_per_second,
                limits.multiply_adds_per_second,
            ] {
                assert!(speed > 0.0 && speed.is_finite(), "{limits:?}");
            }
            assert!(measure(Some(0)).is_err());
        }
    }
}
