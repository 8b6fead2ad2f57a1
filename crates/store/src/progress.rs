//! Progress reports of long operations.

/// Receives the progress of one operation at a time: `start`, any number of `advance` and `file`,
/// then `finish`, even if the operation fails. A `note` may come at any time.
pub trait Progress {
    /// `what` is a phrase such as "downloading smollm2:135m".
    fn start(&mut self, what: &str, total_bytes: Option<u64>);
    /// Reports more bytes, of any file. The sum never exceeds the total given to `start`.
    fn advance(&mut self, bytes: u64);
    /// Reports one of several files, which may progress in parallel. Its bytes are reported to
    /// `advance` too. `file` identifies the file.
    fn file(&mut self, _file: usize, _how: FileProgress<'_>) {}
    /// Something the user should know that is not an error.
    fn note(&mut self, message: &str);
    /// The operation has ended.
    fn finish(&mut self);
}

/// The progress of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileProgress<'a> {
    /// The file's download begins.
    Started {
        /// Its name, for display.
        name: &'a str,
        /// Its size.
        bytes: u64,
    },
    /// Bytes done so far. Starts above 0 for a resumed download, and goes back when a file is
    /// restarted.
    At(u64),
    /// The file is complete.
    Ended,
}

/// Ignores all progress.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&mut self, _what: &str, _total_bytes: Option<u64>) {}
    fn advance(&mut self, _bytes: u64) {}
    fn note(&mut self, _message: &str) {}
    fn finish(&mut self) {}
}

/// Turns observed sizes into increments. Never goes back and never exceeds `limit`.
pub(crate) struct Meter<'a> {
    progress: &'a mut dyn Progress,
    limit: Option<u64>,
    reported: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(progress: &'a mut dyn Progress, limit: Option<u64>) -> Self {
        Self {
            progress,
            limit,
            reported: 0,
        }
    }

    pub(crate) fn observe(&mut self, bytes: u64) {
        let bytes = self.limit.map_or(bytes, |limit| bytes.min(limit));
        if bytes > self.reported {
            self.progress.advance(bytes - self.reported);
            self.reported = bytes;
        }
    }

    /// Reports the rest when the download is complete.
    pub(crate) fn complete(&mut self, bytes: u64) {
        self.observe(self.limit.unwrap_or(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Sum(Vec<u64>);

    impl Progress for Sum {
        fn start(&mut self, _what: &str, _total_bytes: Option<u64>) {}
        fn advance(&mut self, bytes: u64) {
            self.0.push(bytes);
        }
        fn note(&mut self, _message: &str) {}
        fn finish(&mut self) {}
    }

    #[test]
    fn meter_reports_growth_up_to_limit() {
        for (limit, seen, whole, expected) in [
            (Some(10), &[3, 3, 2, 7][..], 10, &[3, 4, 3][..]),
            (Some(10), &[4, 25], 25, &[4, 6]),
            (None, &[4, 25], 30, &[4, 21, 5]),
        ] {
            let mut sum = Sum::default();
            let mut meter = Meter::new(&mut sum, limit);
            seen.iter().for_each(|&bytes| meter.observe(bytes));
            meter.complete(whole);
            assert_eq!(sum.0, expected, "limit {limit:?}, seen {seen:?}");
        }
    }
}
