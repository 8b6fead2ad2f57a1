//! Random sizes and contents for a case.

use super::case::{Buffer, Case, Element, Matrix, Operand, Placed, TablePlaces, Vectors, encode};
use crate::ops::{Format, Op};

/// Makes a case, with random sizes and contents.
pub struct Builder {
    random: u64,
    buffers: Vec<Buffer>,
    pub tables: TablePlaces,
    pub first: usize,
    pub count: usize,
    /// Tokens in buffers: those of the launch, and some around them.
    pub tokens: usize,
    pub rows: usize,
}

/// Around the sizes of warps, blocks and vector loads, and what fits none of them.
const SMALL: [usize; 16] = [1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33, 61, 64, 65, 96];
const LARGE: [usize; 16] = [
    127, 128, 129, 251, 256, 257, 509, 512, 576, 1009, 1024, 1031, 2048, 2053, 4096, 4099,
];

impl Builder {
    pub fn new(seed: u64) -> Self {
        let mut builder = Self {
            random: seed,
            buffers: Vec::new(),
            tables: TablePlaces::default(),
            first: 0,
            count: 0,
            tokens: 0,
            rows: 0,
        };
        builder.first = builder.pick(&[0, 0, 1, 3]);
        builder.count = builder.pick(&[1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 65, 130]);
        builder.tokens = builder.first + builder.count + builder.below(3);
        builder
    }

    /// Sets how many tokens the launch covers.
    pub fn set_count(&mut self, count: usize) {
        self.count = count;
        self.tokens = self.first + count + self.below(3);
    }

    /// SplitMix64, whose words are the same on every machine.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.random;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Between -1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.unit() + 1.0) / 2.0
    }

    pub fn small(&mut self) -> usize {
        self.pick(&SMALL)
    }

    /// Any size, but no more than leaves `others` of them within what an interpreter can compute.
    pub fn size(&mut self, others: usize) -> usize {
        const MOST: usize = 1 << 20;
        let size = if self.flag() {
            self.pick(&SMALL)
        } else {
            self.pick(&LARGE)
        };
        size.min((MOST / others.max(1)).max(1))
    }

    pub fn format(&mut self) -> Format {
        self.pick(&[Format::F32, Format::Bf16])
    }

    pub fn random_values(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.unit() * scale).collect()
    }

    /// Replaces a few values, in one case of four, by what is not finite.
    pub fn spoil(&mut self, values: &mut [f32]) {
        if values.is_empty() || self.below(4) > 0 {
            return;
        }
        for _ in 0..3 {
            let at = self.below(values.len());
            values[at] = self.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        }
    }

    pub fn add(&mut self, bytes: Vec<u8>, compared: Option<Element>) -> Operand {
        self.buffers.push(Buffer {
            bytes,
            pointers: Vec::new(),
            compared,
        });
        Operand(Some((self.buffers.len() - 1, 0)))
    }

    fn add_f32s(&mut self, values: &[f32], compared: Option<Element>) -> Operand {
        let bytes = encode(values, Format::F32);
        self.add(bytes, compared)
    }

    pub fn input(&mut self, values: &[f32]) -> Operand {
        self.add_f32s(values, None)
    }

    pub fn inputs(&mut self, len: usize, scale: f32) -> Operand {
        let values = self.random_values(len, scale);
        self.input(&values)
    }

    /// None in half of the cases.
    pub fn optional(&mut self, len: usize, scale: f32) -> Operand {
        if self.flag() {
            return Operand::NONE;
        }
        self.inputs(len, scale)
    }

    /// What the operation overwrites or changes.
    pub fn output(&mut self, values: &[f32]) -> Operand {
        self.add_f32s(values, Some(Element::F32))
    }

    /// What the operation overwrites, with other values in it before.
    pub fn outputs(&mut self, len: usize) -> Operand {
        let values = self.random_values(len, 1.0);
        self.output(&values)
    }

    /// Values of bf16.
    pub fn rounded_input(&mut self, values: &[f32]) -> Operand {
        self.add(encode(values, Format::Bf16), None)
    }

    /// Values of bf16 that the operation overwrites.
    pub fn rounded_outputs(&mut self, len: usize) -> Operand {
        let values = self.random_values(len, 1.0);
        self.add(encode(&values, Format::Bf16), Some(Element::Bf16))
    }

    pub fn words(&mut self, words: &[u32]) -> Operand {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.add(bytes, None)
    }

    /// `top_k` of `count` experts for each token: ascending and distinct, as a router's choices are.
    pub fn routes(&mut self, count: usize, top_k: usize) -> Operand {
        let mut experts = Vec::new();
        for _ in 0..self.tokens {
            let mut all: Vec<u32> = (0..count as u32).collect();
            while all.len() > top_k {
                all.remove(self.below(all.len()));
            }
            experts.extend(all);
        }
        self.words(&experts)
    }

    pub fn output_words(&mut self, len: usize) -> Operand {
        let words: Vec<u32> = (0..len as u32).collect();
        self.changed_words(&words)
    }

    /// Words that the operation changes.
    pub fn changed_words(&mut self, words: &[u32]) -> Operand {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.add(bytes, Some(Element::U32))
    }

    /// Structs with addresses in them, by their offset in bytes.
    pub fn table(&mut self, words: &[u32], pointers: Vec<(usize, Operand)>) -> Operand {
        let place = self.words(words);
        if let Some(buffer) = self.buffers.last_mut() {
            buffer.pointers = pointers;
        }
        place
    }

    pub fn matrix(&mut self, rows: usize, cols: usize) -> Matrix {
        self.matrices(1, rows, cols)
    }

    /// A stack of matrices.
    pub fn matrices(&mut self, count: usize, rows: usize, cols: usize) -> Matrix {
        let format = self.format();
        let values = self.random_values(count * rows * cols, 1.0);
        let at = self.add(encode(&values, format), None);
        Matrix {
            at,
            rows,
            cols,
            format,
        }
    }

    /// How many values are before `count` vectors, and up to their end. Vectors begin a few values
    /// into their buffer, and have gaps, in some cases.
    fn laid_out(&mut self, count: usize, len: usize) -> (usize, usize) {
        let (offset, gap) = (self.pick(&[0, 0, 0, 1, 4]), self.pick(&[0, 0, 0, 1, 3, 8]));
        (offset, offset + count * (len + gap))
    }

    /// Inputs of `len` for every token.
    pub fn vectors(&mut self, len: usize, scale: f32) -> Vectors {
        self.vectors_of(self.tokens, len, scale)
    }

    pub fn vectors_of(&mut self, count: usize, len: usize, scale: f32) -> Vectors {
        let (offset, total) = self.laid_out(count, len);
        let mut values = self.random_values(total, scale);
        self.spoil_seldom(&mut values);
        let at = self.input(&values).values(offset);
        vectors(at, count, total - offset)
    }

    /// Outputs of `len` for every token.
    pub fn output_vectors(&mut self, len: usize, scale: f32) -> Vectors {
        let (offset, total) = self.laid_out(self.tokens, len);
        let values = self.random_values(total, scale);
        let at = self.output(&values).values(offset);
        vectors(at, self.tokens, total - offset)
    }

    /// One value in a case of sixteen: a NaN must not reach other tokens.
    pub fn spoil_seldom(&mut self, values: &mut [f32]) {
        if !values.is_empty() && self.below(16) == 0 {
            let at = self.below(values.len());
            values[at] = f32::NAN;
        }
    }

    /// Positions of the tokens, below `end`.
    pub fn set_positions(&mut self, end: usize) {
        let positions: Vec<u32> = (0..self.tokens).map(|_| self.below(end) as u32).collect();
        self.tables.positions = self.words(&positions);
    }

    pub fn finish(self, build: impl Fn(&Placed) -> Op + 'static) -> Case {
        Case {
            buffers: self.buffers,
            tables: self.tables,
            first: self.first,
            count: self.count,
            rows: self.rows,
            build: Box::new(build),
        }
    }
}

fn vectors(at: Operand, count: usize, values: usize) -> Vectors {
    Vectors {
        at,
        stride: (values / count.max(1)) as u32,
    }
}
