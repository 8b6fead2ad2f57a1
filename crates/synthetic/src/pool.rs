//! Random values that many tensors share.
//!
//! Drawing every weight of a large model would be slow and take twice its memory: once here and
//! once in a backend. Instead, tensors are consecutive windows of a pool that wraps around at its
//! end. A pool is larger than any cache, so that a backend which computes on the windows still
//! reads its weights from memory.

use loquat_weights::Blob;

use crate::fill::fill;
use crate::format::Encoding;
use crate::random::SplitMix64;

/// Windows begin at multiples of this: total blocks of every encoding.
const UNIT: usize = 256;
/// Each pass begins one unit later, so that windows differ; the offset wraps after this many.
const ROUNDS: usize = 4096;

/// How pools are filled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drawing {
    /// The root mean square of the values.
    pub deviation: f32,
    pub seed: u64,
    /// A pool's size unless one tensor needs more.
    pub pool_bytes: usize,
}

impl Drawing {
    /// More than any cache holds.
    pub(crate) const POOL_BYTES: usize = 1 << 30;
}

/// A pool for each encoding.
pub(crate) struct Pools(Vec<Pool>);

impl Pools {
    /// For matrices of these encodings and sizes.
    pub(crate) fn new(matrices: &[(Encoding, usize)], drawing: Drawing) -> Self {
        let mut pools: Vec<Pool> = Vec::new();
        for (encoding, values) in matrices {
            let found = pools.iter().position(|pool| pool.encoding == *encoding);
            let index = found.unwrap_or(pools.len());
            if found.is_none() {
                pools.push(Pool::empty(*encoding));
            }
            pools[index].expect(*values);
        }
        let mut random = SplitMix64::new(drawing.seed);
        for pool in &mut pools {
            pool.draw(drawing, &mut random);
        }
        Self(pools)
    }

    /// The next window of each part of the encoding; `None` for an encoding without a pool.
    pub(crate) fn take(&mut self, encoding: Encoding, values: usize) -> Option<Vec<Blob>> {
        let mut pools = self.0.iter_mut();
        pools.find(|pool| pool.encoding == encoding)?.take(values)
    }
}

struct Pool {
    encoding: Encoding,
    /// Values of all matrices, each rounded up to total units.
    total: usize,
    largest: usize,
    /// One for each of the encoding's parts.
    blobs: Vec<Blob>,
    /// How many values the blobs hold.
    values: usize,
    next: usize,
    round: usize,
}

impl Pool {
    fn empty(encoding: Encoding) -> Self {
        Self {
            encoding,
            total: 0,
            largest: 0,
            blobs: Vec::new(),
            values: 0,
            next: 0,
            round: 0,
        }
    }

    fn expect(&mut self, values: usize) {
        let values = values.next_multiple_of(UNIT);
        self.total += values;
        self.largest = self.largest.max(values);
    }

    fn draw(&mut self, drawing: Drawing, random: &mut SplitMix64) {
        let parts = self.encoding.parts();
        let unit_bytes: usize = parts.iter().map(|part| part.bytes(UNIT)).sum();
        let allowed = drawing.pool_bytes / unit_bytes * UNIT;
        // The largest matrix fits at the start of every round.
        let shared = allowed.max(self.largest) + ROUNDS * UNIT;
        self.values = self.total.min(shared);
        let bytes = fill(self.encoding, self.values, drawing.deviation, random);
        self.blobs = bytes.into_iter().map(Blob::from_vec).collect();
    }

    fn take(&mut self, values: usize) -> Option<Vec<Blob>> {
        if self.next + values > self.values {
            self.round += 1;
            self.next = self.round % ROUNDS * UNIT;
        }
        let (start, end) = (self.next, self.next + values);
        self.next = end.next_multiple_of(UNIT);
        let parts = self.encoding.parts().into_iter().zip(&self.blobs);
        parts
            .map(|(part, blob)| blob.slice(part.bytes(start)..part.bytes(end)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use loquat_weights::Dtype;

    use super::*;

    const ENCODING: Encoding = Encoding::Affine { bits: 4 };
    const DRAWING: Drawing = Drawing {
        deviation: 0.02,
        seed: 1,
        pool_bytes: 1 << 20,
    };

    #[test]
    fn small_models_share_nothing() {
        let matrices = [
            (ENCODING, 640),
            (ENCODING, 64),
            (Encoding::Plain(Dtype::F32), 10),
        ];
        let mut pools = Pools::new(&matrices, DRAWING);
        let first = pools.take(ENCODING, 640).unwrap();
        let second = pools.take(ENCODING, 64).unwrap();
        let lens = |parts: &[Blob]| parts.iter().map(|part| part.len()).collect::<Vec<_>>();
        assert_eq!(lens(&first), [320, 20, 20]);
        assert_eq!(lens(&second), [32, 2, 2]);
        assert_ne!(first[0][..32], second[0][..32]);
        let total: usize = pools.0[0].blobs.iter().map(|blob| blob.len()).sum();
        assert_eq!(total, 1024 / 2 + 1024 / 64 * 4);
        assert!(pools.take(Encoding::Mxfp4, 64).is_none());
    }

    #[test]
    fn windows_differ_on_every_pass() {
        let values = 3 << 20;
        let mut pools = Pools::new(&[(ENCODING, values); 5], DRAWING);
        let held: usize = pools.0[0].blobs.iter().map(|blob| blob.len()).sum();
        assert!(held < 2 * values * 9 / 16, "{held}");
        let windows: Vec<_> = (0..5)
            .map(|_| pools.take(ENCODING, values).unwrap())
            .collect();
        for (index, window) in windows.iter().enumerate() {
            assert_eq!(window[0].len(), values / 2);
            let earlier = &windows[..index];
            assert!(
                earlier.iter().all(|other| *other[0] != *window[0]),
                "{index}"
            );
        }
    }
}
