//! Progress bars on stderr, only if it is a terminal.

use std::collections::HashMap;
use std::io::IsTerminal;

use indicatif::{HumanBytes, MultiProgress, ProgressBar, ProgressStyle};
use loquat_store::{FileProgress, Progress};

use crate::terminal::remark;

const DOWNLOAD: &str = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const FILE: &str = "  {wide_msg} {bar:20} {bytes}/{total_bytes}";
const SHARE: &str = "{msg} {bar:30} {percent}%";

/// A bar without a style.
fn new_bar(total: Option<u64>) -> ProgressBar {
    if std::io::stderr().is_terminal() {
        total.map_or_else(ProgressBar::new_spinner, ProgressBar::new)
    } else {
        ProgressBar::hidden()
    }
}

/// Sets the style, which draws the bar.
fn set_style(bar: &ProgressBar, template: &str, message: &str) {
    if let (Some(_), Ok(style)) = (bar.length(), ProgressStyle::with_template(template)) {
        bar.set_style(style);
    }
    bar.set_message(message.to_owned());
}

/// Shows a download: a bar for the total, and one above it for each file in progress. Without a
/// terminal it prints one line per file.
#[derive(Default)]
pub struct DownloadBar {
    bars: MultiProgress,
    total: Option<ProgressBar>,
    files: HashMap<usize, ProgressBar>,
    /// The next bytes may be from an earlier download and must not count towards the speed.
    resumes: bool,
}

impl Progress for DownloadBar {
    fn start(&mut self, what: &str, total_bytes: Option<u64>) {
        if !std::io::stderr().is_terminal() {
            remark(what);
        }
        self.total = Some(self.add(total_bytes, DOWNLOAD, what));
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(total) = &self.total {
            total.inc(bytes);
            if std::mem::take(&mut self.resumes) {
                total.reset_eta();
            }
        }
    }

    fn file(&mut self, file: usize, how: FileProgress<'_>) {
        match how {
            FileProgress::Started { name, bytes } => {
                if !std::io::stderr().is_terminal() {
                    remark(&format!("{name} ({})", HumanBytes(bytes)));
                }
                let bar = self.add(Some(bytes), FILE, name);
                self.files.insert(file, bar);
            }
            FileProgress::At(bytes) => {
                if let Some(bar) = self.files.get(&file) {
                    self.resumes = bar.position() == 0;
                    bar.set_position(bytes);
                    if self.resumes {
                        bar.reset_eta();
                    }
                }
            }
            FileProgress::Ended => {
                if let Some(bar) = self.files.remove(&file) {
                    bar.finish_and_clear();
                }
            }
        }
    }

    fn note(&mut self, text: &str) {
        self.bars.suspend(|| remark(text));
    }

    fn finish(&mut self) {
        for bar in self
            .files
            .drain()
            .map(|(_, bar)| bar)
            .chain(self.total.take())
        {
            bar.finish_and_clear();
        }
    }
}

impl DownloadBar {
    /// Adds a bar above the total. It joins the others before it is drawn, otherwise it would be
    /// drawn twice. Hidden bars do not join.
    fn add(&self, total: Option<u64>, template: &str, message: &str) -> ProgressBar {
        let bar = new_bar(total);
        let bar = match &self.total {
            _ if bar.is_hidden() => bar,
            Some(total) => self.bars.insert_before(total, bar),
            None => self.bars.add(bar),
        };
        set_style(&bar, template, message);
        bar
    }
}

/// Shows the completed share of a task.
pub struct ShareBar(ProgressBar);

impl ShareBar {
    const STEPS: u64 = 1000;

    pub fn start(what: &str) -> Self {
        let bar = new_bar(Some(Self::STEPS));
        set_style(&bar, SHARE, what);
        Self(bar)
    }

    pub fn set(&self, share: f32) {
        self.0.set_position((share * Self::STEPS as f32) as u64);
    }
}

impl Drop for ShareBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
