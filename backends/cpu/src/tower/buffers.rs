//! Memory that the layers of an encoding use one after another: the system clears fresh memory,
//! which takes longer than a norm.

use crate::linear::Activations;

#[derive(Default)]
pub struct Buffers {
    spare: Vec<Vec<f32>>,
    /// Stored keys and values.
    pub words: Vec<u32>,
    /// What a matrix reads.
    pub activations: Activations,
}

impl Buffers {
    /// A buffer of any values, to be [given back](Buffers::give).
    pub fn take(&mut self, len: usize) -> Vec<f32> {
        let spare = self.spare.iter().enumerate();
        let enough = spare.filter(|(_, buffer)| buffer.capacity() >= len);
        let smallest = enough.min_by_key(|(_, buffer)| buffer.capacity());
        let mut buffer = match smallest.map(|(at, _)| at) {
            Some(at) => self.spare.swap_remove(at),
            None => Vec::with_capacity(len),
        };
        buffer.resize(len, 0.0);
        buffer
    }

    /// The same with these values.
    pub fn copy(&mut self, values: &[f32]) -> Vec<f32> {
        let mut buffer = self.take(values.len());
        buffer.copy_from_slice(values);
        buffer
    }

    pub fn give<const N: usize>(&mut self, buffers: [Vec<f32>; N]) {
        self.spare.extend(buffers);
    }
}
