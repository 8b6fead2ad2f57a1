//! What a step costs by its streams and the tokens beyond one of each, as measured.

/// Weight of a new measurement in the running mean.
const BLEND_WEIGHT: f64 = 0.25;
/// A step this many times longer than expected is an outlier.
const OUTLIER_FACTOR: f64 = 2.0;
/// The first measurements of a shape include warming up: the smallest of these counts.
const WARM_UP: u32 = 3;
/// After this many steps a measurement must be repeated to be believed, because an outlier that made
/// a shape look expensive would otherwise never be corrected.
const STALE: u64 = 2048;
/// Without any measurement, one more token is taken to cost this share of a stream's: so little that
/// two streams of which one has drafts may try it.
const INITIAL_SHARE: f64 = 0.03;
/// Shapes are tried in small strides: at most this many times the tokens tried before, and
/// [`FIRST_STRIDE`].
const STRIDE: usize = 2;
const FIRST_STRIDE: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct StepCosts {
    /// By streams, then by tokens beyond one of each.
    rows: Vec<Vec<Measured>>,
    steps: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    seconds: f64,
    samples: u32,
    /// The step of the last measurement.
    at: u64,
}

impl StepCosts {
    pub fn record(&mut self, streams: usize, extra: usize, seconds: f64) {
        self.steps += 1;
        if self.rows.len() <= streams {
            self.rows.resize_with(streams + 1, Vec::new);
        }
        let row = &mut self.rows[streams];
        if row.len() <= extra {
            row.resize(extra + 1, Measured::default());
        }
        let known = &mut row[extra];
        known.seconds = match known.samples {
            0 => seconds,
            few if few < WARM_UP => known.seconds.min(seconds),
            _ => {
                let most = OUTLIER_FACTOR * known.seconds;
                known.seconds + BLEND_WEIGHT * (seconds.min(most) - known.seconds)
            }
        };
        known.samples = known.samples.saturating_add(1);
        known.at = self.steps;
    }

    /// Seconds of a step, interpolated between measured ones; `None` if streams alone were never
    /// measured.
    pub fn estimate(&self, streams: usize, extra: usize) -> Option<f64> {
        let row = self.rows.get(streams)?;
        let alone = row.first().filter(|measured| measured.samples > 0)?;
        let below = self.believed(row, 0..extra + 1).next_back();
        let (low, low_seconds) = below.unwrap_or((0, alone.seconds));
        if low == extra {
            return Some(low_seconds);
        }
        let above = self.believed(row, extra + 1..row.len()).next();
        let slope = match above {
            Some((high, seconds)) => (seconds - low_seconds) / (high - low) as f64,
            None if low > 0 => ((low_seconds - alone.seconds) / low as f64).max(0.0),
            None => alone.seconds / streams.max(1) as f64 * INITIAL_SHARE,
        };
        Some(low_seconds + slope * (extra - low) as f64)
    }

    /// The most extra tokens to try now.
    pub fn longest_stride(&self, streams: usize) -> usize {
        let row = self.rows.get(streams).map_or(&[][..], Vec::as_slice);
        let longest = self.believed(row, 1..row.len()).next_back();
        STRIDE * longest.map_or(0, |(extra, _)| extra) + FIRST_STRIDE
    }

    /// Measurements of a row that are recent, or of streams alone.
    fn believed(
        &self,
        row: &[Measured],
        range: std::ops::Range<usize>,
    ) -> impl DoubleEndedIterator<Item = (usize, f64)> {
        let steps = self.steps;
        let range = range.start..range.end.min(row.len()).max(range.start);
        let measured = row.get(range.clone()).unwrap_or_default();
        let measured = range.zip(measured);
        measured.filter_map(move |(extra, measured)| {
            let is_recent = extra == 0 || steps - measured.at < STALE;
            (measured.samples > 0 && is_recent).then_some((extra, measured.seconds))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_measurements() {
        let mut costs = StepCosts::default();
        assert_eq!(costs.estimate(1, 0), None);
        costs.record(1, 4, 2.0);
        assert_eq!(costs.estimate(1, 4), None, "nothing to compare with");
        costs.record(1, 0, 1.0);
        assert_eq!(costs.estimate(1, 0), Some(1.0));
        assert_eq!(costs.estimate(1, 4), Some(2.0));
        assert_eq!(costs.estimate(1, 2), Some(1.5), "between");
        assert_eq!(costs.estimate(1, 8), Some(3.0), "beyond");
        assert_eq!(costs.estimate(2, 1), None, "other streams");
    }

    #[test]
    fn first_stride_is_short() {
        let mut costs = StepCosts::default();
        costs.record(2, 0, 1.0);
        assert_eq!(costs.longest_stride(2), 3);
        assert_eq!(costs.estimate(2, 3), Some(1.045));
        costs.record(2, 3, 1.5);
        assert_eq!(costs.longest_stride(2), 9);
    }

    #[test]
    fn outliers_are_forgotten() {
        let mut costs = StepCosts::default();
        costs.record(1, 0, 1.0);
        costs.record(1, 2, 50.0);
        costs.record(1, 2, 1.2);
        assert_eq!(costs.estimate(1, 2), Some(1.2), "it was warming up");
        costs.record(1, 3, 50.0);
        assert!(costs.estimate(1, 3) > Some(10.0));
        for _ in 0..STALE {
            costs.record(1, 0, 1.0);
        }
        assert!(costs.estimate(1, 3) < Some(2.0), "it is tried again");
    }
}
