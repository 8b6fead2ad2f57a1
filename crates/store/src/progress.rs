//! What a long operation tells its caller while it runs.

/// Receives the progress of one operation at a time: `start`, then any number of `advance` and
/// `file`, then `finish`, which comes also when the operation fails. A `note` may come at any time.
pub trait Progress {
    /// `what` is a phrase such as "downloading smollm2:135m".
    fn start(&mut self, what: &str, total_bytes: Option<u64>);
    /// So many bytes more, of whichever file; the sum never passes the total that `start` gave.
    fn advance(&mut self, bytes: u64);
    /// How it stands with one file of an operation on several, some of which may be under way at
    /// once. Its bytes come by `advance` too. `file` is the same in all calls about one file.
    fn file(&mut self, _file: usize, _how: FileProgress<'_>) {}
    /// Something the user should know that is not an error.
    fn note(&mut self, message: &str);
    fn finish(&mut self);
}

/// What happens to one of several files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileProgress<'a> {
    Started {
        name: &'a str,
        bytes: u64,
    },
    /// So many of its bytes are done: more than before when an earlier download is taken up, less
    /// when the file has to be begun anew.
    At(u64),
    /// It is in place. A file that fails does not get here.
    Ended,
}

/// Shows nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&mut self, _what: &str, _total_bytes: Option<u64>) {}
    fn advance(&mut self, _bytes: u64) {}
    fn note(&mut self, _message: &str) {}
    fn finish(&mut self) {}
}

/// Turns observations of a growing size into increments, never backwards and never past `limit`.
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

    /// The thing observed is whole: closes the gap left by observing it only now and then.
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
    fn the_meter_reports_growth_only_and_stops_at_its_limit() {
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
