//! What loading a model reports to its caller.

use loquat_store::Progress;

/// A step of [`ModelOptions::load_with`](crate::ModelOptions::load_with).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum LoadProgress<'a> {
    /// Files are being downloaded.
    Downloading {
        /// Bytes so far, over all files.
        done_bytes: u64,
        /// Bytes of all files, if known.
        total_bytes: Option<u64>,
    },
    /// A notice from the download, such as a retry.
    Notice(&'a str),
    /// Weights are being loaded onto the device.
    Loading {
        /// From 0 to 1.
        fraction: f32,
    },
}

/// Reports a download as [`LoadProgress`].
pub(crate) struct DownloadProgress<'a> {
    report: &'a mut dyn FnMut(LoadProgress<'_>),
    done_bytes: u64,
    total_bytes: Option<u64>,
}

impl<'a> DownloadProgress<'a> {
    pub fn new(report: &'a mut dyn FnMut(LoadProgress<'_>)) -> Self {
        Self {
            report,
            done_bytes: 0,
            total_bytes: None,
        }
    }

    fn report(&mut self) {
        (self.report)(LoadProgress::Downloading {
            done_bytes: self.done_bytes,
            total_bytes: self.total_bytes,
        });
    }
}

impl Progress for DownloadProgress<'_> {
    fn start(&mut self, _what: &str, total_bytes: Option<u64>) {
        self.done_bytes = 0;
        self.total_bytes = total_bytes;
        self.report();
    }

    fn advance(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        self.report();
    }

    fn note(&mut self, message: &str) {
        (self.report)(LoadProgress::Notice(message));
    }

    fn finish(&mut self) {}
}
