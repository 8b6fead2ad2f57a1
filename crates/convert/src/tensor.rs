//! Converts one tensor, a block of rows at a time on all cores.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::thread;

use crate::measure::QuantizationError;
use crate::plan::{Content, Planned};
use crate::quantize::{Encoded, Encoding};
use crate::rows::{Reader, Rows};
use crate::{ConvertError, Step};

/// Values in memory at once as `f32`; a single row may be larger.
const BLOCK: usize = 1 << 20;

/// Passes the tensor's new bytes to `sink` in order, a block at a time, and returns the error.
pub(crate) fn convert_tensor(
    planned: &Planned<'_>,
    encoding: Encoding,
    sink: &mut dyn FnMut(&Encoded) -> Result<(), ConvertError>,
    step: &mut dyn FnMut(Step<'_>) -> bool,
) -> Result<QuantizationError, ConvertError> {
    match &planned.content {
        Content::Values(values) => {
            let mut run = Run::default();
            run.row(&planned.name, 0, values, encoding)?;
            sink(&run.encoded)?;
            Ok(run.error)
        }
        Content::Matrix(rows) => {
            let reader = rows.reader()?;
            let converter = RowConverter {
                name: &planned.name,
                reader: &reader,
                cols: rows.cols(),
                encoding,
            };
            converter.all(rows, sink, step)
        }
    }
}

struct RowConverter<'a> {
    name: &'a str,
    reader: &'a Reader<'a>,
    cols: usize,
    encoding: Encoding,
}

/// Converted rows.
#[derive(Default)]
struct Run {
    encoded: Encoded,
    error: QuantizationError,
}

impl RowConverter<'_> {
    fn all(
        &self,
        rows: &Rows<'_>,
        sink: &mut dyn FnMut(&Encoded) -> Result<(), ConvertError>,
        step: &mut dyn FnMut(Step<'_>) -> bool,
    ) -> Result<QuantizationError, ConvertError> {
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let block = (BLOCK / self.cols.max(1)).max(1);
        let mut error = QuantizationError::default();
        let mut start = 0;
        while start < rows.count() {
            let end = (start + block).min(rows.count());
            for run in self.block(start..end, threads) {
                let run = run?;
                error.join(&run.error);
                sink(&run.encoded)?;
            }
            rows.release(start..end);
            let values = ((end - start) * self.cols) as u64;
            if !step(Step::Values(values)) {
                return Err(ConvertError::Interrupted);
            }
            start = end;
        }
        rows.release_all();
        Ok(error)
    }

    /// The block's rows, split evenly among threads, in order.
    fn block(&self, rows: Range<usize>, threads: usize) -> Vec<Result<Run, ConvertError>> {
        let share = rows.len().div_ceil(threads).max(1);
        thread::scope(|scope| {
            let starts = rows.clone().step_by(share);
            let workers: Vec<_> = starts
                .map(|start| {
                    let end = (start + share).min(rows.end);
                    scope.spawn(move || self.run(start..end))
                })
                .collect();
            let joined = workers.into_iter().map(|worker| match worker.join() {
                Ok(run) => run,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.collect()
        })
    }

    fn run(&self, rows: Range<usize>) -> Result<Run, ConvertError> {
        let mut run = Run::default();
        let mut values = vec![0.0; self.cols];
        for row in rows {
            self.reader.read(row, &mut values)?;
            run.row(self.name, row, &values, self.encoding)?;
        }
        Ok(run)
    }
}

impl Run {
    fn row(
        &mut self,
        name: &str,
        row: usize,
        values: &[f32],
        encoding: Encoding,
    ) -> Result<(), ConvertError> {
        if encoding.is_quantized()
            && let Some(found) = values.iter().find(|value| !value.is_finite())
        {
            return Err(ConvertError::NotFinite {
                tensor: name.to_owned(),
                row,
                found: *found,
            });
        }
        let mut encoded = Encoded::default();
        encoding.encode(values, &mut encoded);
        let mut stored = vec![0.0; values.len()];
        (encoding.decode(&encoded, &mut stored)).map_err(loquat_weights::WeightsError::from)?;
        if let Some(at) = stored.iter().position(|value| !value.is_finite())
            && values[at].is_finite()
        {
            return Err(ConvertError::TooLarge {
                tensor: name.to_owned(),
                row,
                found: values[at],
                stored: encoding.name(),
            });
        }
        self.error.add(values, &stored);
        self.encoded.codes.append(&mut encoded.codes);
        self.encoded.scales.append(&mut encoded.scales);
        self.encoded.biases.append(&mut encoded.biases);
        Ok(())
    }
}
