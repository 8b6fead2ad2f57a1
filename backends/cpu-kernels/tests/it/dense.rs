//! Attention without masks: every version against the reference, that against `f64`, and one
//! query alone against many.

use super::*;

struct Case {
    key_dim: usize,
    value_dim: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
}

impl Case {
    fn new(random: &mut Random, positions: usize, [key_dim, value_dim]: [usize; 2]) -> Self {
        Self {
            key_dim,
            value_dim,
            keys: random.floats(positions * key_dim, 3.0),
            values: random.floats(positions * value_dim, 2.0),
            queries: random.floats(13 * key_dim, 3.0),
        }
    }

    fn positions(&self) -> usize {
        self.keys.len() / self.key_dim
    }

    fn run(&self, kernels: &Kernels, rounded: bool, queries: &[f32]) -> Vec<f32> {
        let (kernel, products) = if rounded {
            (kernels.attend_dense_bf16, kernels.dense_bf16)
        } else {
            (kernels.attend_dense, DenseProducts::Exact)
        };
        let layout = DenseLayout {
            products,
            positions: self.positions(),
            key_dim: self.key_dim,
            value_dim: self.value_dim,
        };
        let mut memory = vec![0; layout.words()];
        let keys = self.keys.chunks_exact(self.key_dim);
        let rows = keys.zip(self.values.chunks_exact(self.value_dim));
        for (position, row) in rows.enumerate() {
            let [keys, values] = layout.tile(position / DENSE_TILE);
            let (first, rest) = memory.split_at_mut(values.start);
            let tile = [&mut first[keys], &mut rest[..values.len()]];
            layout.store(tile, position % DENSE_TILE, row);
        }
        let count = queries.len() / self.key_dim;
        let mut out = vec![f32::NAN; count * layout.value_width()];
        let args = DenseArgs {
            layout,
            memory: &memory,
            scale: 0.3,
            queries,
        };
        unsafe { kernel(&args, &mut DenseScratch::default(), &mut out) };
        let rows = out.chunks_exact(layout.value_width());
        rows.flat_map(|row| row[..self.value_dim].to_vec())
            .collect()
    }

    fn exact(&self) -> Vec<f64> {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
            products.sum()
        };
        let answer = |query: &[f32]| {
            let scores = self.keys.chunks_exact(self.key_dim);
            let scores: Vec<f64> = scores.map(|key| 0.3 * dot(query, key)).collect();
            let max = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mixed = (0..self.value_dim).map(|at| {
                let column = self.values[at..].iter().step_by(self.value_dim);
                let products = column
                    .zip(&weights)
                    .map(|(v, weight)| f64::from(*v) * weight);
                products.sum::<f64>() / total
            });
            mixed.collect::<Vec<_>>()
        };
        self.queries
            .chunks_exact(self.key_dim)
            .flat_map(answer)
            .collect()
    }
}

fn cases() -> Vec<Case> {
    let mut random = Random(7);
    let mut cases = Vec::new();
    // Around registers, tiles and steps of the softmax.
    for positions in [1, 2, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 300] {
        for dims in [[1, 1], [7, 5], [32, 48], [72, 72], [80, 112], [128, 128]] {
            cases.push(Case::new(&mut random, positions, dims));
        }
    }
    cases
}

#[test]
fn dense_attention_is_softmax() {
    for case in cases() {
        let exact = case.exact();
        // Scores reach 40, of which an `f32` keeps 4e-6, and values 2. A bf16 has 8 bits, and errors
        // of weights and values add up.
        for (rounded, most) in [(false, 2e-5), (true, 0.06)] {
            let found = case.run(supported()[supported().len() - 1], rounded, &case.queries);
            for (found, exact) in found.iter().zip(&exact) {
                let error = (f64::from(*found) - exact).abs();
                let name = (case.positions(), case.key_dim, rounded);
                assert!(error < most, "{name:?}: {found} instead of {exact}");
            }
        }
    }
}

#[test]
fn dense_attention_is_the_same_everywhere() {
    let tables = supported();
    let reference = tables[tables.len() - 1];
    for case in cases() {
        for rounded in [false, true] {
            let expected = bits(&case.run(reference, rounded, &case.queries));
            for table in &tables {
                let found = bits(&case.run(table, rounded, &case.queries));
                assert_eq!(found, expected, "{} {rounded}", table.name);
                let alone = case.queries.chunks_exact(case.key_dim);
                let alone = alone.map(|query| case.run(table, rounded, query));
                let alone: Vec<f32> = alone.flatten().collect();
                assert_eq!(bits(&alone), expected, "{} {rounded} alone", table.name);
            }
        }
    }
}

#[test]
fn hostile_numbers_are_the_same_everywhere() {
    let tables = supported();
    let mut random = Random(11);
    let special = [
        0.0,
        -0.0,
        f32::MIN_POSITIVE,
        f32::MIN_POSITIVE / 3.0,
        -1e-42,
        1e-30,
        1e18,
        -1e18,
        3e38,
        f32::INFINITY,
        f32::NAN,
    ];
    for round in 0..200 {
        let mut case = Case::new(&mut random, 1 + round, [9, 17]);
        // Tiny numbers alone at first: one large number makes all weights but its own vanish.
        let kinds = if round < 100 { 6 } else { special.len() };
        for numbers in [&mut case.keys, &mut case.values, &mut case.queries] {
            for _ in 0..numbers.len().div_ceil(4) {
                let at = random.next() as usize % numbers.len();
                numbers[at] = special[random.next() as usize % kinds];
            }
        }
        for rounded in [false, true] {
            let reference = tables[tables.len() - 1];
            let expected = bits(&case.run(reference, rounded, &case.queries));
            for table in &tables {
                let found = bits(&case.run(table, rounded, &case.queries));
                assert_eq!(found, expected, "{} {rounded} {round}", table.name);
            }
        }
    }
}
