//! Times the attention of one token in one layer, over KV of every format at several depths, and
//! compares the formats with f16.
//!
//! `cargo run --release -p loquat-cpu-kernels --example attention_speed [threads [rounds [set]]]`
//!
//! The shape is Llama-3-8B's: 32 heads of 128, 8 of them with keys and values. Formats take turns
//! in every round, and a round's times are compared with each other, so that other work on the
//! machine disturbs all of them alike. Printed are medians over the rounds, and the best.

use std::time::Instant;

use loquat_cpu_kernels::{
    AttendArgs, AttendQuery, Bf16Bits, CodeFormat, CodeOperand, CodeSpan, F16Bits, HeadCodes,
    HeadLayout, HeadPages, Kernels, KvElement, PAGE, PagePtr, PlainElement, supported,
};

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const DEPTHS: [usize; 2] = [8192, 32768];

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |default: usize| args.next().map_or(default, |arg| arg.parse().unwrap());
    let (threads, rounds) = (number(2), number(15));
    let set = args.next();
    let tables = supported();
    let kernels = match &set {
        Some(set) => tables.iter().find(|table| table.name == set).unwrap(),
        None => &tables[0],
    };
    println!(
        "{HEADS} heads, {KV_HEADS} KV heads of {HEAD_DIM}, {threads} threads, {}, medians of \
         {rounds} rounds",
        kernels.name
    );
    println!("| depth | format | MiB | of f16 | µs | best µs | speed of f16 | best of f16 |");
    println!("|---|---|---|---|---|---|---|---|");
    for depth in DEPTHS {
        report(kernels, depth, threads, rounds);
    }
}

fn report(kernels: &'static Kernels, depth: usize, threads: usize, rounds: usize) {
    let query = random(HEADS * HEAD_DIM);
    let same = |format| (format, format);
    let layers: Vec<(&str, Box<dyn Layer>)> = vec![
        ("f16", Box::new(FloatLayer::<F16Bits>::new(depth))),
        ("bf16", Box::new(FloatLayer::<Bf16Bits>::new(depth))),
        ("q8", Box::new(CodeLayer::new(same(CodeFormat::Q8), depth))),
        (
            "k8v4",
            Box::new(CodeLayer::new((CodeFormat::Q8, CodeFormat::Turbo4), depth)),
        ),
        (
            "turbo4",
            Box::new(CodeLayer::new(same(CodeFormat::Turbo4), depth)),
        ),
        (
            "turbo3",
            Box::new(CodeLayer::new(same(CodeFormat::Turbo3), depth)),
        ),
        (
            "turbo2",
            Box::new(CodeLayer::new(same(CodeFormat::Turbo2), depth)),
        ),
    ];
    let mut times = vec![Vec::new(); layers.len()];
    let mut out = vec![0.0; HEADS * HEAD_DIM];
    for round in 0..=rounds {
        for (i, (_, layer)) in layers.iter().enumerate() {
            let started = Instant::now();
            layer.attend(kernels, &query, &mut out, threads);
            // The first round touches the memory.
            if round > 0 {
                times[i].push(started.elapsed().as_secs_f64());
            }
        }
    }
    let f16 = (layers[0].1.bytes(), times[0].clone());
    for ((name, layer), times) in layers.iter().zip(&times) {
        let ratios = f16.1.iter().zip(times).map(|(f16, time)| f16 / time);
        let seconds = median(times.clone());
        println!(
            "| {depth} | {name} | {:.1} | {:.3} | {:.0} | {:.0} | {:.2} | {:.2} |",
            layer.bytes() as f64 / f64::from(1 << 20),
            layer.bytes() as f64 / f16.0 as f64,
            seconds * 1e6,
            best(times) * 1e6,
            median(ratios.collect()),
            best(&f16.1) / best(times),
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// One layer's keys and values.
trait Layer {
    fn bytes(&self) -> usize;
    fn attend(&self, kernels: &Kernels, query: &[f32], out: &mut [f32], threads: usize);
}

struct FloatLayer<T> {
    pages: Vec<PagePtr<T>>,
    _memory: Vec<T>,
}

const FLOATS: usize = 2 * HEAD_DIM * PAGE;

impl<T: PlainElement> FloatLayer<T> {
    fn new(depth: usize) -> Self {
        let page_len = KV_HEADS * FLOATS;
        let values = random(page_len);
        let mut memory: Vec<T> = (0..depth / PAGE)
            .flat_map(|_| values.iter().map(|value| T::store(*value)))
            .collect();
        let pages = memory.chunks_exact_mut(page_len);
        let pages = pages.map(|page| PagePtr::new(page.as_mut_ptr(), page.len()));
        Self {
            pages: pages.collect(),
            _memory: memory,
        }
    }
}

impl<T: PlainElement> Layer for FloatLayer<T> {
    fn bytes(&self) -> usize {
        size_of_val(&*self._memory)
    }

    fn attend(&self, kernels: &Kernels, query: &[f32], out: &mut [f32], threads: usize) {
        let head = |head: usize| HeadPages {
            pages: &self.pages,
            layout: HeadLayout {
                keys: head * FLOATS,
                key_dim: HEAD_DIM,
                values: Some(head * FLOATS + HEAD_DIM * PAGE),
                value_dim: HEAD_DIM,
                codes: None,
            },
        };
        attend(kernels, &head, (query, out), threads);
    }
}

struct CodeLayer {
    /// Of keys and of values.
    formats: (CodeFormat, CodeFormat),
    pages: Vec<PagePtr<u8>>,
    memory: Vec<u8>,
}

impl CodeLayer {
    fn new((key, value): (CodeFormat, CodeFormat), depth: usize) -> Self {
        let codes = Self::head((key, value), 0);
        let head_len = codes.value.at + codes.value.page_bytes();
        let mut page = vec![0; KV_HEADS * head_len];
        let pointer = PagePtr::new(page.as_mut_ptr(), page.len());
        let tokens = random(PAGE * 2 * HEAD_DIM);
        for head in 0..KV_HEADS {
            let codes = Self::head((key, value), head * head_len);
            for (slot, token) in tokens.chunks_exact(2 * HEAD_DIM).enumerate() {
                for (span, values) in [codes.key, codes.value].iter().zip(token.chunks(HEAD_DIM)) {
                    // SAFETY: the page is this function's own.
                    unsafe { span.write(pointer, slot, values) };
                }
            }
        }
        let mut memory = page.repeat(depth / PAGE);
        let pages = memory.chunks_exact_mut(page.len());
        let pages = pages.map(|page| PagePtr::new(page.as_mut_ptr(), page.len()));
        Self {
            formats: (key, value),
            pages: pages.collect(),
            memory,
        }
    }

    /// A head whose part of a page begins at `at`.
    fn head((key, value): (CodeFormat, CodeFormat), at: usize) -> HeadCodes {
        let key = CodeSpan {
            at,
            operand: CodeOperand::Key,
            format: key,
            dim: HEAD_DIM,
        };
        HeadCodes {
            key,
            value: CodeSpan {
                at: at + key.page_bytes(),
                operand: CodeOperand::Value,
                format: value,
                dim: HEAD_DIM,
            },
            skip_below: 0.0,
        }
    }
}

impl Layer for CodeLayer {
    fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// With the rotations of the query and of the output.
    fn attend(&self, kernels: &Kernels, query: &[f32], out: &mut [f32], threads: usize) {
        let head_len = self.memory.len() / self.pages.len() / KV_HEADS;
        let head = |head: usize| {
            let codes = Self::head(self.formats, head * head_len);
            HeadPages {
                pages: &self.pages,
                layout: HeadLayout {
                    keys: codes.key.at,
                    key_dim: HEAD_DIM,
                    values: Some(codes.value.at),
                    value_dim: HEAD_DIM,
                    codes: Some(codes),
                },
            }
        };
        let mut query = query.to_vec();
        for head in query.chunks_exact_mut(HEAD_DIM) {
            // SAFETY: `supported` gave the table.
            unsafe { (kernels.rotate_codes)(head) };
        }
        attend(kernels, &head, (&query, out), threads);
        for head in out.chunks_exact_mut(HEAD_DIM) {
            // SAFETY: as above.
            unsafe { (kernels.unrotate_codes)(head) };
        }
    }
}

/// All heads, shared between threads.
fn attend<'a, T: KvElement>(
    kernels: &Kernels,
    head: &(dyn Fn(usize) -> HeadPages<'a, T> + Sync),
    (query, out): (&[f32], &mut [f32]),
    threads: usize,
) {
    let group = HEADS / KV_HEADS * HEAD_DIM;
    let per_thread = KV_HEADS.div_ceil(threads);
    std::thread::scope(|scope| {
        let outs = out.chunks_mut(per_thread * group);
        let parts = query.chunks(per_thread * group).zip(outs).enumerate();
        for (thread, (query, out)) in parts {
            scope.spawn(move || {
                let heads = query.chunks(group).zip(out.chunks_mut(group));
                for (i, (query, out)) in heads.enumerate() {
                    let pages = head(thread * per_thread + i);
                    let args = AttendArgs {
                        scale: 1.0 / (HEAD_DIM as f32).sqrt(),
                        softcap: None,
                        value_dim: HEAD_DIM,
                        pages,
                        piece: None,
                    };
                    let queries = query.chunks(HEAD_DIM).zip(out.chunks_mut(HEAD_DIM));
                    let mut queries: Vec<AttendQuery> = queries
                        .map(|(query, out)| AttendQuery {
                            query,
                            sink: None,
                            seen: 0..pages.pages.len() * PAGE,
                            out,
                        })
                        .collect();
                    // SAFETY: `supported` gave the table.
                    unsafe { T::attend(kernels)(&args, &mut queries) };
                }
            });
        }
    });
}

/// Values from -1 to 1.
fn random(len: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}
